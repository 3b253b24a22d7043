"""Samplers: joint batches that depend on (seed, step) alone, sliced among processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from evenhand.data import Repeated, Shuffled, Weighted, longtail_counts, sample_weights
from evenhand.data.samplers import repeated
from evenhand.randomness import dice, mix, scramble

COUNTS = longtail_counts(500, 10, 100)
LABELS = torch.arange(10).repeat_interleave(torch.tensor(COUNTS))


def test_scramble_is_splitmix64() -> None:
    """The first outputs of the published generator seeded with 1234567."""
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(scramble(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_mix_is_stable_and_separates_purposes() -> None:
    assert [mix(0), mix(0, 1), mix(1, 0), mix(0, "a")] == [
        8147104208329303767, 313702574736366215, 3395948882924712079, 5380506664959059125,
    ]  # fmt: skip
    seen = {mix(seed, word, step) for seed in range(10) for word in ("x", "y") for step in range(100)}
    assert len(seen) == 2000
    assert 0 <= mix(-1, -5, "z") < 2**63
    first, again = (torch.rand(4, generator=dice(3, "augment", 7)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, torch.rand(4, generator=dice(3, "augment", 8)))


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 2**40), st.integers(0, 5))
def test_shuffled_epoch_has_every_sample_at_most_once(n: int, batch: int, seed: int, epoch: int) -> None:
    sampler = Shuffled(n, batch, seed)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    flat = [i for b in batches for i in b]
    assert len(batches) == len(sampler) == max(n // batch, 1)
    assert {len(b) for b in batches} == {min(n, batch)}
    assert len(set(flat)) == len(flat) > n - batch
    assert set(flat) <= set(range(n))
    assert n >= batch or sorted(flat) == list(range(n))


@pytest.mark.parametrize(
    "make",
    [
        lambda **place: Shuffled(97, 12, 5, **place),
        lambda **place: Repeated(97, 12, 5, **place),
        lambda **place: Weighted(sample_weights(LABELS, 10), 12, 5, **place),
    ],
)
def test_ranks_share_the_joint_batch_and_any_step_resumes(make: Callable[..., Shuffled | Weighted]) -> None:
    alone = make()
    batches = [alone.batch(step) for step in range(3 * alone.steps_per_epoch)]
    for world in (2, 3, 4):
        ranks = [make(rank=rank, world=world) for rank in range(world)]
        for step in (0, 7, alone.steps_per_epoch, 17):
            parts = [r.batch(step) for r in ranks]
            spread = isinstance(alone, Repeated)  # copies go to different processes
            assert torch.equal(torch.stack(parts, 1).flatten() if spread else torch.cat(parts), batches[step])
    resumed = make()
    torch.manual_seed(0)
    for step in (20, 3, 11, 20):  # in any order, at once
        assert torch.equal(resumed.batch(step), batches[step])
    resumed.set_epoch(2)
    assert list(resumed) == [b.tolist() for b in batches[2 * alone.steps_per_epoch :]]
    assert not torch.equal(batches[0], batches[alone.steps_per_epoch])
    assert batches[0].dtype == torch.int64


def test_trap_13_weighted_sampling_in_two_processes_keeps_its_class_mix() -> None:
    weights = sample_weights(LABELS, 10)
    ranks = [Weighted(weights, 64, 0, rank=r, world=2) for r in range(2)]
    drawn = [torch.cat([rank.batch(step) for step in range(400)]) for rank in ranks]  # 12,800 each
    for indices in drawn:
        shares = torch.bincount(LABELS[indices], minlength=10) / len(indices)
        assert (shares - 0.1).abs().max() < 5 * (0.1 * 0.9 / len(indices)) ** 0.5
        head = torch.bincount(indices, minlength=len(LABELS))[: COUNTS[0]].double()
        assert head.std() < 1.2 * head.mean().sqrt()  # uniform within a class: Poisson spread
    same = (drawn[0] == drawn[1]).double().mean()
    assert same < 2 * (weights**2).sum()  # no more coincidences than chance gives


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_powers_give_the_promised_class_shares(power: float) -> None:
    weights = sample_weights(LABELS.tolist(), 10, power)
    shares = torch.zeros(10, dtype=torch.float64).scatter_add(0, LABELS, weights)
    promised = torch.tensor(COUNTS).double() ** (1 - power)
    torch.testing.assert_close(shares, promised / promised.sum())
    sampler = Weighted(weights, 256, 1)
    drawn = LABELS[torch.cat([sampler.batch(step) for step in range(80)])]
    seen = torch.bincount(drawn, minlength=10) / len(drawn)
    assert (seen - shares).abs().max() < 5 * (0.25 / len(drawn)) ** 0.5


def test_trap_09_a_class_without_samples_gives_no_nan() -> None:
    assert sample_weights([0, 0, 2], 4).tolist() == [0.25, 0.25, 0.5]


@given(st.lists(st.sampled_from([0.0, 1e-12, 1.0, 1e12]), min_size=1, max_size=30), st.integers(0, 99))
def test_weight_zero_is_never_drawn(weights: list[float], step: int) -> None:
    if sum(weights) == 0:
        with pytest.raises(ValueError, match="not all 0"):
            Weighted(weights, 4, 0)
        return
    drawn = Weighted(weights, 50, 0).batch(step)
    assert (torch.tensor(weights)[drawn] > 0).all()


def test_repeated_augmentation_as_published() -> None:
    """Spec 05: 12,406 images on 2 processes give 48 batches of 128; 115,846 on 4 give 28,928 samples each."""
    ranks = [Repeated(12_406, 256, 0, rank=r, world=2) for r in range(2)]
    assert [(len(r), sum(map(len, r))) for r in ranks] == [(48, 6144)] * 2
    assert sum(len(b) for b in Repeated(115_846, 256, 0, rank=1, world=4)) == 28_928
    times = Counter(i for r in ranks for batch in r for i in batch)
    assert set(times.values()) == {3}
    assert len(times) == 12_288 // 3
    first = [set(r.batch(0).tolist()) for r in ranks]
    assert len(first[0] & first[1]) > 80  # the copies of an image are spread: of 86, nearly all meet both processes


def test_as_batch_sampler() -> None:
    data = TensorDataset(torch.arange(20))
    sampler = Shuffled(20, 6, seed=1)
    loader = DataLoader(data, batch_sampler=sampler)
    assert len(loader) == 3
    assert [x.tolist() for (x,) in loader] == [sampler.batch(step).tolist() for step in range(3)]
    assert len(Weighted([1.0] * 20, 6, 0, steps_per_epoch=9)) == 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shuffled(100, 9, 0, world=2), "9 does not divide among 2 processes; use a batch of 8"),
        (lambda: Shuffled(7, 16, 0, world=2), "7 does not divide among 2 processes; use a batch of 6"),
        (lambda: Shuffled(100, 8, 0, rank=2, world=2), "rank 2 is not in 0..1"),
        (lambda: Shuffled(0, 8, 0), "must be at least 1"),
        (lambda: Weighted([1.0], 0, 0), "must be at least 1"),
        (lambda: Weighted([1.0, -1.0], 2, 0), "weights must be finite, at least 0"),
        (lambda: Weighted([float("nan")], 2, 0), "weights must be finite"),
        (lambda: Weighted([], 2, 0), "weights"),
        (lambda: sample_weights([0, 3], 3), "0..2"),
    ],
)
def test_bad_arguments(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_rule_of_each_sampler_literally() -> None:
    """Joint batches from the dice of (seed, purpose, epoch or step): who changes them changes every run."""
    shuffled = Shuffled(10, 4, seed=5)
    order = torch.randperm(10, generator=dice(5, "shuffled", 1))
    assert [shuffled.joint(step).tolist() for step in (2, 3)] == [order[:4].tolist(), order[4:8].tolist()]
    shuffled.set_epoch(1)
    assert list(shuffled) == [order[:4].tolist(), order[4:8].tolist()]
    assert len(shuffled) == 2
    assert Shuffled(3, 4, seed=0).size == 3
    copies = Repeated(10, 4, seed=5, repeats=3)
    assert copies.order(1).tolist() == order.repeat_interleave(3)[:10].tolist()
    assert Repeated(10, 4, seed=5).repeats == 3
    halves = [Repeated(10, 4, seed=5, rank=r, world=2).batch(2).tolist() for r in (0, 1)]
    assert halves == [copies.joint(2)[0::2].tolist(), copies.joint(2)[1::2].tolist()]
    parts = [Shuffled(10, 4, seed=5, rank=r, world=2).batch(2).tolist() for r in (0, 1)]
    assert parts == [order[:2].tolist(), order[2:4].tolist()]
    weighted = Weighted([1.0, 0.0, 2.0, 1.0], 6, seed=5)
    draw = torch.rand(6, dtype=torch.float64, generator=dice(5, "weighted", 7))
    assert weighted.joint(7).tolist() == [0 if d < 0.25 else 2 if d < 0.75 else 3 for d in draw.tolist()]
    assert repeated(10, 4, 5, 2).seed == mix(5, "repeated")
    assert repeated(10, 4, 5, 2).repeats == 2


def test_epochs_of_weighted_draws_are_as_long_as_the_data_unless_stated() -> None:
    assert [Weighted([1.0] * 10, batch, 0).steps_per_epoch for batch in (3, 10, 11)] == [3, 1, 1]
    assert Weighted([1.0] * 10, 3, 0, steps_per_epoch=7).steps_per_epoch == 7
    with pytest.raises(ValueError, match="at least 1"):
        Weighted([1.0], 1, 0, steps_per_epoch=0)
    with pytest.raises(ValueError, match="at least 1"):
        Weighted([1.0], 0, 0)
    with pytest.raises(ValueError, match=r"use a batch of 6"):
        Weighted([1.0], 7, 0, world=3)
    with pytest.raises(ValueError, match=r"use a batch of 3"):
        Weighted([1.0], 1, 0, world=3)


def test_weights_go_by_a_power_of_the_count() -> None:
    labels = [0, 0, 0, 0, 1]
    assert sample_weights(labels, 2).tolist() == pytest.approx([1 / 8] * 4 + [1 / 2])
    assert sample_weights(labels, 2, 0.0).tolist() == pytest.approx([1 / 5] * 5)
    assert sample_weights(labels, 3, 0.5).tolist() == pytest.approx([1 / 6] * 4 + [1 / 3])
