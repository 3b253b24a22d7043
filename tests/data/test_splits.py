"""Splits: the papers' counts, a rule that never changes silently, and groups of classes."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.data import (
    balanced_holdout,
    class_order,
    head_mid_tail,
    longtail_counts,
    longtail_subset,
    semi_supervised_split,
    split_digest,
    unlabelled_counts,
)
from evenhand.data.splits import class_orders, stratified_holdout
from evenhand.randomness import mix, scramble

CIFAR10_LABELS = torch.arange(50_000) * 7 % 10  # 5000 of each class, interleaved
FRACTION = st.floats(0, 1)
DIGESTS = [
    "b35bfccaea29cb3c",
    "f044ca7663a556ce",
    "fd450872b1a35dae",
    "eed721beef92fc64",
    "782c2d27e99eadf5",
    "6856210bea07a869",
]


@pytest.mark.parametrize(
    ("n_max", "num_classes", "imbalance", "counts"),
    [
        (5000, 10, 10, [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]),
        (5000, 10, 50, [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100]),
        (5000, 10, 100, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]),
        (5000, 10, 1000, [5000, 2320, 1077, 500, 232, 107, 50, 23, 10, 5]),
        (50_000, 5, 10, [50_000, 28_117, 15_811, 8_891, 5_000]),
        (50_000, 5, 100, [50_000, 15_811, 5_000, 1_581, 500]),
        (50_000, 5, 1000, [50_000, 8_891, 1_581, 281, 50]),
        (1500, 10, 100, [1500, 899, 539, 323, 193, 116, 69, 41, 25, 15]),
        (3000, 10, 100, [3000, 1798, 1078, 646, 387, 232, 139, 83, 50, 30]),
        (450, 10, 10, [450, 348, 269, 208, 161, 125, 96, 75, 58, 45]),
        (7, 1, 100, [7]),
    ],
)
def test_counts_of_the_papers(n_max: int, num_classes: int, imbalance: float, counts: list[int]) -> None:
    assert longtail_counts(n_max, num_classes, imbalance) == counts


@pytest.mark.parametrize(
    ("n_max", "num_classes", "imbalance", "last", "total"),
    [
        (5000, 10, 10, 500, 20_431),
        (5000, 10, 50, 100, 13_996),
        (5000, 10, 100, 50, 12_406),
        (5000, 10, 200, 25, 11_203),
        (5000, 10, 1000, 5, 9_324),
        (500, 100, 10, 50, 19_573),
        (500, 100, 50, 10, 12_608),
        (500, 100, 100, 5, 10_847),
        (500, 100, 200, 2, 9_502),
        (50_000, 5, 10, 5000, 107_819),
        (50_000, 5, 100, 500, 72_892),
        (50_000, 5, 1000, 50, 60_803),
        (1500, 10, 100, 15, 3_720),
        (3000, 10, 100, 30, 7_443),
        (150, 100, 10, 15, 5_835),
        (300, 100, 10, 30, 11_720),
        (433, 100, 10, 43, 16_945),
        (866, 100, 10, 86, 33_939),
        (450, 10, 10, 45, 1_835),
    ],
)
def test_totals_of_the_papers(n_max: int, num_classes: int, imbalance: float, last: int, total: int) -> None:
    counts = longtail_counts(n_max, num_classes, imbalance)
    assert (counts[-1], sum(counts)) == (last, total)


@given(st.integers(1, 100_000), st.integers(2, 40), st.integers(1, 1000))
def test_floor_is_exact(n_max: int, num_classes: int, imbalance: int) -> None:
    imbalance = min(imbalance, n_max)
    with localcontext() as context:
        context.prec = 50
        decay = Decimal(imbalance).ln() / (num_classes - 1)
        exact = [int(n_max * (-decay * i).exp() + Decimal("1e-30")) for i in range(num_classes)]
    assert longtail_counts(n_max, num_classes, imbalance) == exact


def test_step_profile() -> None:
    assert longtail_counts(5000, 10, 100, kind="step") == [5000] * 5 + [50] * 5
    assert longtail_counts(500, 100, 100, kind="step") == [500] * 50 + [5] * 50
    assert longtail_counts(30, 5, 10, kind="step") == [30, 30, 30, 3, 3]


def test_imbalance_below_one_inverts() -> None:
    assert longtail_counts(3000, 10, 1 / 100) == longtail_counts(3000, 10, 100)[::-1]
    assert unlabelled_counts(3000, 10, 100, "inverted") == [30, 50, 83, 139, 232, 387, 646, 1078, 1798, 3000]
    assert unlabelled_counts(3000, 10, 100, "equal") == longtail_counts(3000, 10, 100)
    assert unlabelled_counts(3000, 10, 100, "uniform") == [3000] * 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((50, 10, 100), "imbalance 100 leaves classes empty at n_max 50; use at most 50"),
        ((50, 10, 0), "imbalance 0"),
        ((0, 10, 1), "n_max 0"),
        ((50, 10, float("nan")), "imbalance nan"),
        ((50, 10, 5, "linear"), "'linear'.*'exp' or 'step'"),
    ],
)
def test_bad_profiles(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        longtail_counts(*arguments)
    with pytest.raises(ValueError, match="did you mean 'inverted'"):
        unlabelled_counts(50, 5, 2, "invert")


def test_trap_11_same_seed_same_split_whatever_the_global_generator() -> None:
    counts = longtail_counts(5000, 10, 100)
    torch.manual_seed(1)
    np.random.seed(1)
    first = longtail_subset(CIFAR10_LABELS, counts, seed=0)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = longtail_subset(CIFAR10_LABELS.tolist(), np.array(counts), seed=0)
    assert torch.equal(first, again)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first, longtail_subset(CIFAR10_LABELS, counts, seed=1))


def test_splits_never_change_silently() -> None:
    """These digests are part of every published number: changing the rule must be a decision."""
    counts = longtail_counts(5000, 10, 100)
    train, val = balanced_holdout(CIFAR10_LABELS, 500, 0, 10)
    labelled, unlabelled = semi_supervised_split(
        CIFAR10_LABELS, longtail_counts(1500, 10, 100), unlabelled_counts(3000, 10, 100, "inverted"), 0
    )
    splits = (
        longtail_subset(CIFAR10_LABELS, counts, 0), longtail_subset(CIFAR10_LABELS, counts, 1),
        train, val, labelled, unlabelled,
    )  # fmt: skip
    assert [split_digest(s) for s in splits] == DIGESTS


def test_the_stated_rule_literally() -> None:
    labels, counts, seed = torch.tensor([1, 0, 1, 1, 0, 2, 1]), [1, 3, 1], 5
    expected = []
    for k, count in enumerate(counts):
        members = [i for i, y in enumerate(labels.tolist()) if y == k]
        start = mix(seed, "subset", k)
        order = sorted(range(len(members)), key=lambda j: scramble(start + j))
        expected += [members[j] for j in order[:count]]
    assert longtail_subset(labels, counts, seed).tolist() == sorted(expected)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(-(2**63), 2**63), st.lists(FRACTION, min_size=10))
def test_subsets_are_exact_nested_and_independent(labels: list[int], seed: int, shares: list[float]) -> None:
    available = np.bincount(np.array(labels, dtype=int), minlength=5)
    large = [int(n * share) for n, share in zip(available, shares[:5], strict=True)]
    small = [int(n * share) for n, share in zip(large, shares[5:10], strict=True)]
    picked = longtail_subset(labels, large, seed)
    chosen = np.array(labels, dtype=int)[picked.numpy()]
    assert np.bincount(chosen, minlength=5).tolist() == large
    assert picked.tolist() == sorted(set(picked.tolist()))
    assert set(longtail_subset(labels, small, seed).tolist()) <= set(picked.tolist())
    other = longtail_subset(labels, [large[0], 0, 0, 0, 0], seed)
    assert other.tolist() == [i for i in picked.tolist() if labels[i] == 0]


def test_every_member_is_equally_likely() -> None:
    labels = torch.zeros(20, dtype=torch.int64)
    hits = torch.zeros(20)
    for seed in range(2000):
        hits[longtail_subset(labels, [5], seed)] += 1
    assert (hits - 500).abs().max() < 90  # more than 4.5 standard deviations of 19


def test_too_few_samples_and_labels_outside() -> None:
    with pytest.raises(ValueError, match="class 1 has 1 samples but 2 are asked for"):
        longtail_subset([0, 0, 1], [1, 2], 0)
    with pytest.raises(ValueError, match=r"label 2 of sample 1 is outside 0..1"):
        longtail_subset([0, 2, 1], [1, 1], 0)
    with pytest.raises(ValueError, match="class 0 has 2 samples but 3"):
        balanced_holdout([0, 0, 1, 1, 1], 2, 0, 2)
    with pytest.raises(ValueError, match="class 1 has 2 samples but 3"):
        semi_supervised_split([0, 0, 1, 1], [1, 1], [1, 2], 0)
    with pytest.raises(ValueError, match="2 labelled but 1 unlabelled"):
        semi_supervised_split([0, 0, 1, 1], [1, 1], [1], 0)
    with pytest.raises(ValueError, match="counts hold -1"):
        longtail_subset([0, 0], [-1], 0)


def test_trap_16_validation_is_balanced_and_disjoint() -> None:
    train, val = balanced_holdout(CIFAR10_LABELS, 500, 3, 10)
    assert torch.bincount(CIFAR10_LABELS[val]).tolist() == [500] * 10
    assert torch.equal(torch.cat([train, val]).sort().values, torch.arange(50_000))
    assert torch.equal(train, train.sort().values)
    tail = train[longtail_subset(CIFAR10_LABELS[train], longtail_counts(4500, 10, 100), 3)]
    assert not set(tail.tolist()) & set(val.tolist())


def test_semi_supervised_parts_are_disjoint_and_stable() -> None:
    few, many = longtail_counts(1500, 10, 100), unlabelled_counts(3000, 10, 100, "inverted")
    labelled, unlabelled = semi_supervised_split(CIFAR10_LABELS, few, many, 0)
    assert torch.bincount(CIFAR10_LABELS[labelled]).tolist() == few
    assert torch.bincount(CIFAR10_LABELS[unlabelled]).tolist() == many
    assert not set(labelled.tolist()) & set(unlabelled.tolist())
    same, _ = semi_supervised_split(CIFAR10_LABELS, few, [0] * 10, 0)
    _, also = semi_supervised_split(CIFAR10_LABELS, [0] * 10, many, 0)
    assert torch.equal(labelled, same)
    assert torch.equal(unlabelled, also)


def test_class_order() -> None:
    names = ["ant", "cat", "dog"]
    assert class_order("index", 3) == [0, 1, 2]
    assert class_order("reversed", 3) == [2, 1, 0]
    assert class_order(["cat", "dog", "ant"], 3, names) == [2, 0, 1]
    assert class_order([1, 2, 0], 3) == [2, 0, 1]
    assert class_order("counts", 3, counts=[5, 9, 5]) == [1, 0, 2]
    profile = [100, 10, 1]
    assert [profile[rank] for rank in class_order("reversed", 3)] == [1, 10, 100]
    with pytest.raises(ValueError, match="no class is called 'dogs'; did you mean 'dog'"):
        class_order(["ant", "cat", "dogs"], 3, names)
    with pytest.raises(ValueError, match="each of the 3 classes once"):
        class_order(["ant", "ant", "dog"], 3, names)
    with pytest.raises(ValueError, match="'random' is unknown"):
        class_order("random", 3)


def test_trap_08_groups_by_stated_rule() -> None:
    ten = longtail_counts(5000, 10, 100)
    assert head_mid_tail(ten) == [("head", [0, 1, 2]), ("mid", [3, 4, 5, 6]), ("tail", [7, 8, 9])]
    assert head_mid_tail(ten, "3/4/3") == head_mid_tail(ten)
    assert head_mid_tail(ten[::-1])[0] == ("head", [9, 8, 7])
    hundred = head_mid_tail(longtail_counts(500, 100, 100), "36/35/29")
    assert [(name, len(members)) for name, members in hundred] == [("head", 36), ("mid", 35), ("tail", 29)]
    assert hundred[2][1] == list(range(71, 100))
    shots = head_mid_tail([101, 100, 20, 19], "shots:100,20")
    assert shots == [("head", [0]), ("mid", [1, 2]), ("tail", [3])]
    step = head_mid_tail(longtail_counts(500, 5, 100, kind="step"), "halves")
    assert step == [("head", [0, 1, 2]), ("tail", [3, 4])]
    assert head_mid_tail([100] * 90 + [1] * 10, "90/10")[1] == ("tail", list(range(90, 100)))


def test_empty_groups_are_left_out() -> None:
    assert head_mid_tail([500, 400], "shots:100,20") == [("head", [0, 1])]
    assert head_mid_tail([500, 400]) == [("head", [0]), ("tail", [1])]


@pytest.mark.parametrize("rule", ["3/4/4", "all", "shots:100", "10", "5/6/-1", "1/2/3/4", "shots:20,100", ""])
def test_groups_that_do_not_fit(rule: str) -> None:
    with pytest.raises(ValueError, match=f"groups '{rule}' do not fit 10 classes"):
        head_mid_tail(longtail_counts(5000, 10, 100), rule)


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=30),
    st.sampled_from(["thirds", "halves", "shots:100,20"]),
)
def test_groups_partition_the_classes_by_count(counts: list[int], rule: str) -> None:
    ranked = [k for _, members in head_mid_tail(counts, rule) for k in members]
    assert sorted(ranked) == list(range(len(counts)))
    flat = [counts[k] for k in ranked]
    assert flat == sorted(flat, reverse=True)


def test_profiles_at_their_limits() -> None:
    assert longtail_counts(1, 1, 1) == [1]
    assert longtail_counts(7, 1, 1) == [7]
    assert longtail_counts(100, 2, 100) == [100, 1]
    assert longtail_counts(100, 3, 0.01) == [1, 10, 100]
    assert longtail_counts(10, 3, 2, "step") == [10, 10, 5]
    assert unlabelled_counts(10, 2, 2) == [10, 5]
    for arguments in ((0, 2, 1), (5, 0, 1), (5, 2.5, 1), (5, 2, -1), (5, 2, float("inf"))):
        with pytest.raises(ValueError, match="must be positive"):
            longtail_counts(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_max 100 is the last class's count"):
        longtail_counts(100, 3, 0.0099)
    with pytest.raises(ValueError, match="use at most 100"):
        longtail_counts(100, 3, 101)


def test_a_share_is_held_out_exactly_by_largest_rest() -> None:
    """ceil(0.3 * 11) = 4, of 6, 4 and 1 samples: 2.18, 1.45 and 0.36, so that the fourth is the second class's."""
    labels = [0] * 6 + [1] * 4 + [2]
    rest, held = stratified_holdout(labels, 0.3, 0, 3)
    assert np.bincount(np.array(labels)[held], minlength=3).tolist() == [2, 2, 0]
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(11))
    assert len(stratified_holdout([0] * 10, 0.3, 0, 1)[1]) == 3  # 0.3 * 10 is no 3.0000000000000004
    assert len(stratified_holdout([0] * 10, 0.31, 0, 1)[1]) == 4
    ties = stratified_holdout([0, 0, 1, 1], 0.25, 0, 2)[1]
    assert ties.tolist() in ([0], [1])  # equal rests: the lowest class
    orders = class_orders(labels, 3, 5, "stratified")
    front = sorted([*orders[0][:2].tolist(), *orders[1][:2].tolist()])
    assert stratified_holdout(labels, 0.3, 5, 3)[1].tolist() == front
    assert [len(part) for part in stratified_holdout([], 0.3, 0, 2)] == [0, 0]


def test_the_purpose_and_the_ends_of_each_split() -> None:
    labels = [0] * 9 + [1] * 7
    semi, holdout, subset = (class_orders(labels, 2, 4, purpose) for purpose in ("semi", "holdout", "subset"))
    labelled, unlabelled = semi_supervised_split(labels, [2, 1], [3, 2], 4)
    assert labelled.tolist() == sorted([*semi[0][:2].tolist(), *semi[1][:1].tolist()])
    assert unlabelled.tolist() == sorted([*semi[0][-3:].tolist(), *semi[1][-2:].tolist()])
    train, val = balanced_holdout(labels, 2, 4, 2)
    assert val.tolist() == sorted([*holdout[0][:2].tolist(), *holdout[1][:2].tolist()])
    assert train.tolist() == sorted({*range(16)} - {*val.tolist()})
    assert longtail_subset(labels, [3, 0], 4).tolist() == sorted(subset[0][:3].tolist())
    assert len(balanced_holdout(labels, 6, 4, 2)[0]) == 4  # one of the rarer class is left
    with pytest.raises(ValueError, match="class 1 has 7 samples but 8 are needed"):
        balanced_holdout(labels, 7, 4, 2)
    assert [len(part) for part in semi_supervised_split(labels, [4, 3], [5, 4], 4)] == [7, 9]
    with pytest.raises(ValueError, match="class 0 has 9 samples but 10 are asked for"):
        semi_supervised_split(labels, [5, 3], [5, 4], 4)
    with pytest.raises(ValueError, match="2 labelled but 1 unlabelled counts"):
        semi_supervised_split(labels, [5, 3], [5], 4)
    with pytest.raises(ValueError, match="class 'bee' has 7 samples but 8"):
        longtail_subset(labels, [1, 8], 4, ["ant", "bee"])
    with pytest.raises(ValueError, match=r"label 2 of sample 1 is outside 0\.\.1"):
        class_orders([0, 2], 2, 0, "x")
    with pytest.raises(ValueError, match=r"label -1 of sample 0"):
        class_orders([-1, 1], 2, 0, "x")
    with pytest.raises(ValueError, match=r"counts hold 1\.5"):
        longtail_subset(labels, [1.5, 1], 4)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="counts hold -1"):
        longtail_subset(labels, [-1, 1], 4)


def test_thirds_of_any_number_of_classes() -> None:
    sizes = {k: [len(m) for _, m in head_mid_tail([1] * k)] for k in (1, 2, 3, 4, 5, 7, 8)}
    assert sizes == {1: [1], 2: [1, 1], 3: [1, 1, 1], 4: [1, 2, 1], 5: [2, 1, 2], 7: [2, 3, 2], 8: [3, 2, 3]}
    assert head_mid_tail([3, 3, 9], "1/2") == [("head", [2]), ("tail", [0, 1])]
    assert head_mid_tail([5, 5], "0/2/0") == [("mid", [0, 1])]
    assert class_order("counts", 3, counts=torch.tensor([1, 3, 2])) == [2, 0, 1]
    with pytest.raises(ValueError, match="'counts' is unknown"):
        class_order("counts", 3)


@pytest.mark.parametrize(
    "split",
    [
        lambda labels, counts: longtail_subset(labels, counts, seed=0),
        lambda labels, counts: semi_supervised_split(labels, counts, [1, 1, 1], seed=0),
        lambda labels, counts: semi_supervised_split(labels, [1, 1, 1], counts, seed=0),
        lambda _labels, counts: head_mid_tail(counts, "1/1/1"),
        lambda _labels, counts: class_order("counts", 3, counts=counts),
    ],
)
def test_counts_by_name_are_not_read_as_the_list_of_their_keys(split: Any) -> None:
    labels, counts = torch.arange(3).repeat_interleave(20), {0: 10, 1: 5, 2: 1}  # as a list [0, 1, 2]
    with pytest.raises(ValueError, match="a dict where a list of numbers is asked for: give its values, in order"):
        split(labels, counts)
    assert str(split(labels, counts.values())) == str(split(labels, [10, 5, 1]))
