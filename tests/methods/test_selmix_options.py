"""SelMix's table and diary: what each setting becomes, which multipliers are logged, which matrices are kept."""

from __future__ import annotations

import copy
import math
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.measure.confusion import confusion_matrix, g_mean, h_mean, mean_recall
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier
from evenhand.methods.unlabelled.selmix import SelMix
from evenhand.methods.unlabelled.selmix_table import (
    SelMixSettings,
    aim_of,
    check_validation,
    multipliers_by_name,
    wants_unlabelled,
    warn_of_few,
)
from evenhand.methods.unlabelled.selmix_watch import Diary
from evenhand.pieces.selmix import pair_distribution, pair_gain
from evenhand.pieces.selmix_aim import Aim
from evenhand.pieces.selmix_objectives import smoothed
from evenhand.randomness import mix

pytestmark = [
    pytest.mark.usefixtures("global_randomness_untouched"),
    pytest.mark.filterwarnings("ignore:validation has . samples of a class"),
]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data() -> Data:
    set_ = {"set": "shapes", "n_max": 12, "imbalance": 10, "augment": [], "val_per_class": 3, "unlabelled_max": 16}
    return prepare_data(DataSettings(**set_))


@pytest.fixture(scope="module")
def first(data: Data) -> LongTailClassifier:
    tree = {"net": {"name": "small-cnn", "width": 4}, "batch": 16}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(0, "weights"))
        return LongTailClassifier(ClassifierSettings.model_validate(tree), data, seed=0, device=CPU)


def make(data: Data, first: Any, seed: int = 0, **settings: Any) -> SelMix:
    tree = {"batch": 8, "fidelity": 0, **settings}
    return SelMix(SelMixSettings.model_validate(tree), data, seed=seed, device=CPU, first=first)


def classes(*counts: int) -> Any:
    return SimpleNamespace(classes=tuple(f"c{k}" for k in range(len(counts))), counts=list(counts))


# the aim


def test_every_number_of_the_table_reaches_the_aim() -> None:
    table = {"sharpness": 3.0, "floor": 0.02, "cap": 7.0, "tolerance": 0.4, "memory": True, "step": 11.0}
    ten = classes(3, 40, 7, 20, 5, 30, 9, 11, 13, 2)
    aim = aim_of(SelMixSettings(objective="min-head-tail-recall", floors="coverage", tail=0.3, **table), ten)
    assert {key: getattr(aim, key) for key in table} == table
    head_tail = [[1, 5, 3, 8, 7, 6, 2], [4, 0, 9]]  # the most frequent first
    assert (aim.metric, aim.groups, aim.cover, aim.cover_groups) == (None, head_tail, True, None)
    aim = aim_of(SelMixSettings(objective="min-recall", floors="head-tail-coverage", tail=0.3), ten)
    assert (aim.metric, aim.groups, aim.cover, aim.cover_groups) == (None, None, True, head_tail)
    for name, metric in (("mean-recall", mean_recall), ("g-mean", g_mean), ("h-mean", h_mean)):
        aim = aim_of(SelMixSettings(objective=name), ten)
        assert (aim.metric, aim.groups, aim.cover, aim.cover_groups) == (metric, None, False, None)


@pytest.mark.parametrize(
    ("tail", "cut"), [(0.1, 9), (0.01, 9), (1e-12, 9), (0.25, 7), (0.3, 7), (0.8, 2), (0.95, 1), (0.999, 1)]
)
def test_head_and_tail_have_a_class_at_least(tail: float, cut: int) -> None:
    """As many rare classes as ``tail`` of all, rounded up; 0.8 of ten are eight, though 1 - 0.8 is less than 0.2."""
    aim = aim_of(SelMixSettings(objective="min-head-tail-recall", tail=tail), classes(*range(20, 10, -1)))
    assert aim.groups == [[*range(cut)], [*range(cut, 10)]]


def test_a_metric_of_ones_own_is_found_where_one_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console script does not look there by itself."""
    (tmp_path / "own_psi.py").write_text("def psi(C):\n    return C[1, 1]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    aim = aim_of(SelMixSettings(objective="own_psi:psi"), classes(2, 1))
    assert aim.metric is not None
    assert float(aim.metric(torch.tensor([[0.5, 0.1], [0.1, 0.3]]))) == pytest.approx(0.3)
    aim_of(SelMixSettings(objective="own_psi:psi"), classes(2, 1))
    assert sys.path.count("") == 1
    with pytest.raises(UserError, match="objective = 'own_psi:phi' cannot be imported"):
        aim_of(SelMixSettings(objective="own_psi:phi"), classes(2, 1))


# multipliers in the log


def numbered(*sizes: int) -> Any:
    return {key: torch.arange(float(n)) for key, n in zip(("recall", "coverage"), sizes, strict=True)}


def test_of_many_classes_the_ten_largest_and_the_ten_rarest_are_logged() -> None:
    """Counts rise, so that the last class is the largest."""
    found = multipliers_by_name(numbered(25, 0), Aim(), classes(*range(1, 26)))
    assert found == {f"multiplier:c{k}": float(k) for k in [*range(24, 14, -1), *range(10)]}
    assert len(multipliers_by_name(numbered(21, 0), Aim(), classes(*range(21)))) == 20
    found = multipliers_by_name(numbered(0, 3), Aim(), classes(1, 1, 1))
    assert found == {f"coverage_multiplier:c{k}": float(k) for k in range(3)}


@pytest.mark.parametrize("counts", [(1, 1, 1), (1, 2)])  # of two classes the largest is not the first
def test_multipliers_of_groups_are_heads_and_tails_however_many_classes(counts: tuple[int, ...]) -> None:
    groups = [[*range(1, len(counts))], [0]]
    found = multipliers_by_name(numbered(2, 2), Aim(groups=groups, cover_groups=groups), classes(*counts))
    names = ("multiplier:head", "multiplier:tail", "coverage_multiplier:head", "coverage_multiplier:tail")
    assert found == dict(zip(names, (0.0, 1.0, 0.0, 1.0), strict=True))


def test_two_multipliers_without_groups_are_those_of_two_classes() -> None:
    assert multipliers_by_name(numbered(2, 0), Aim(), classes(1, 1)) == {"multiplier:c0": 0.0, "multiplier:c1": 1.0}
    assert multipliers_by_name(numbered(0, 0), Aim(), classes(1, 1)) == {}


# what the data must have


def test_an_empty_stream_of_unlabelled_samples_is_none(data: Data) -> None:
    empty = {**data.streams, "unlabelled": data.streams["unlabelled"].subset(torch.arange(0))}
    for partners, with_some, with_none in (("auto", True, False), ("labelled", False, False)):
        s = SelMixSettings(partners=partners)  # type: ignore[arg-type]
        assert (wants_unlabelled(s, data.streams), wants_unlabelled(s, empty)) == (with_some, with_none)
    s = SelMixSettings(partners="unlabelled")
    assert wants_unlabelled(s, data.streams)
    with pytest.raises(UserError, match="partners = 'unlabelled' but the data have none"):
        wants_unlabelled(s, empty)


def test_fewer_than_ten_samples_of_a_class_are_told_and_fewer_than_two_refused() -> None:
    def val(*counts: int) -> Any:
        return {"val": SimpleNamespace(counts=list(counts), classes=tuple("abcdefgh"[: len(counts)]))}

    with pytest.warns(UserWarning, match="validation has 9 samples of a class: a recall moves in steps of 1/9"):
        warn_of_few(val(30, 9, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_few(val(30, 10, 12))
    check_validation(val(2, 3))
    with pytest.raises(UserError, match="fewer than 2 samples of b, d, e, f, g: every class"):
        check_validation(val(2, 1, 3, 0, 1, 1, 1, 1))


# before and between looks


def test_before_the_first_look_all_pairs_and_all_samples_are_alike(data: Data, first: LongTailClassifier) -> None:
    method = make(data, first)
    assert method.distribution.tolist() == [[pytest.approx(0.01)] * 10] * 10
    assert (method.stopped, method.traces(), len(method.pseudo)) == (-1, {}, 0)
    feeds = method.feeds(data.streams)
    N, M = len(data.streams["labelled"]), len(data.streams["unlabelled"])
    found = {key: (feed.stream, feed.batch, feed.views, feed.weights.tolist()) for key, feed in feeds.items()}  # type: ignore[union-attr]
    view = (data.train_view,)
    assert found == {"labelled": ("labelled", 8, view, [1.0] * N), "unlabelled": ("unlabelled", 8, view, [1.0] * M)}


def test_pairs_follow_the_seed_and_have_the_batch_asked_for(data: Data, first: LongTailClassifier) -> None:
    rows = []
    for seed in (0, 0, 1):
        method = make(data, first, seed=seed)
        feeds = method.refresh(Progress(0, 2, 40), data.streams)
        assert feeds is not None
        assert [(feed.batch, feed.views) for feed in feeds.values()] == [(8, (data.train_view,))] * 2
        rows.append([feed.picks.batch(0).tolist() for feed in feeds.values()])  # type: ignore[union-attr]
    assert [len(side) for side in rows[0]] == [8, 8]
    assert rows[0] == rows[1] != rows[2]
    alone = make(data, first, partners="labelled").feeds(data.streams)["labelled"]
    assert (alone.batch, alone.views, len(alone.picks.batch(0))) == (16, (data.train_view,), 16)  # type: ignore[union-attr]


def test_hedge_weighs_past_gains_by_the_scale_of_its_bound(data: Data, first: LongTailClassifier) -> None:
    """softmax(s sum of gains in 0..1 so far), s = log(1 + 2 sqrt(log K / T)), T looks: of 110 steps, three by fifty."""
    method = make(data, first, policy="hedge")
    method.refresh(Progress(0, 2, 110), data.streams)
    gain = torch.from_numpy(method.details()["pair_gain"][0]).double()  # counts fall, so that the order is the classes'
    method.refresh(Progress(50, 2, 110), data.streams)
    scale = math.log(1 + 2 * math.sqrt(math.log(10) / 3))
    wanted = (scale * (1 + gain / gain.abs().max()) / 2).flatten().softmax(0).view(10, 10)
    torch.testing.assert_close(method.distribution.double(), wanted, rtol=1e-4, atol=1e-7)


def test_a_head_without_bias_has_gains_without_one(data: Data, first: LongTailClassifier) -> None:
    other = copy.deepcopy(first)
    head = other.player.judged().head
    head.bias = None  # type: ignore[assignment]
    method = make(data, other, fidelity=2)
    method.refresh(Progress(0, 2, 40), data.streams)
    val = data.streams["val"]
    assert val.labels is not None
    y, x = val.labels, other.embed(val.fetch(torch.arange(len(val))))
    C = smoothed(confusion_matrix((x @ head.weight.T).argmax(1), y, 10), len(y), 1.0)
    Z = torch.stack([x[y == k].double().mean(0) for k in range(10)])
    wanted = pair_distribution(pair_gain(mean_recall, C, Z, head.weight, keep=0.8), 10.0, relative=True, floor=1e-3)
    torch.testing.assert_close(method.distribution, wanted.float(), rtol=1e-4, atol=1e-7)
    assert method.details()["pair_fidelity"].shape == (1, 2, 3)


def test_it_looks_no_more_once_it_has_stopped(data: Data, first: LongTailClassifier) -> None:
    method = make(data, first)
    assert method.refresh(Progress(0, 2, 100), data.streams) is not None
    method.stopped = 0
    assert method.refresh(Progress(50, 2, 100), data.streams) is None
    assert method.details()["selmix"]["steps"] == [0]
    assert method.details()["selmix"]["stopped"] == 0


def test_the_learning_rate_is_a_cosine_by_step_and_the_backbones_a_tenth(data: Data, first: LongTailClassifier) -> None:
    method = make(data, first)
    for step in (0, 10, 35):
        method.schedule(Progress(step, 8, 40))
        rates = sorted({group["lr"] for group in method.player.optimizer.param_groups})
        lr = 3e-4 * 0.5 * (1 + math.cos(math.pi * step / 40))
        assert rates == [pytest.approx(0.1 * lr), pytest.approx(lr)]


def test_the_seed_and_the_step_draw_what_is_kept(data: Data, first: LongTailClassifier) -> None:
    drawn = []
    for seed, step in ((0, 0), (1, 0), (0, 1)):
        method = make(data, first, seed=seed, least_kept=0.9)
        method.schedule(Progress(step, 2, 40))
        drawn.append(method._kept(500))
        assert 0.9 <= float(drawn[-1].min()) < 0.902
        assert 0.998 < float(drawn[-1].max()) <= 1
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_other_classes_or_their_order_are_refused(data: Data, first: LongTailClassifier) -> None:
    names = (data.classes[1], data.classes[0], *data.classes[2:])
    other = replace(data, facts=data.facts.model_copy(update={"classes": names}))
    with pytest.raises(UserError, match="the first run knows other classes than the data"):
        make(other, first)


# the diary


def test_matrices_have_fifty_rows_at_most() -> None:
    for count, rows in ((3, 3), (50, 50), (51, 50), (120, 50)):
        diary = Diary([1] * count)
        diary.show(0, torch.ones(count, count), torch.full((count, count), count**-2.0), torch.empty(0, 3))
        kept = diary.details()
        assert kept["pair_gain"].shape == kept["pair_distribution"].shape == (1, rows, rows)
        assert kept["pair_gain"] == pytest.approx(1.0)
        assert float(kept["pair_distribution"].sum()) == pytest.approx(1.0, rel=1e-4)


def test_rows_go_from_the_most_frequent_class_to_the_rarest() -> None:
    diary = Diary([5, 9, 7])
    gain = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]])
    diary.show(0, gain, gain, torch.empty(0, 3))
    assert diary.details()["pair_gain"][0].tolist() == [[4.0, 5.0, 3.0], [7.0, 8.0, 6.0], [1.0, 2.0, 0.0]]


@pytest.mark.parametrize(
    ("turns", "shown"), [(1, [0]), (2, [0, 1]), (5, [0, 1, 2, 3, 4]), (9, [0, 2, 4, 6, 8]), (41, [0, 10, 20, 30, 40])]
)
def test_the_first_the_last_and_three_looks_between_are_shown(turns: int, shown: list[int]) -> None:
    assert [turn for turn in range(turns) if Diary.wanted(turn, turns)] == shown


def test_a_last_cycle_that_is_cut_short_counts_as_a_look(data: Data, first: LongTailClassifier) -> None:
    """Nine steps by two: five looks, all of them shown."""
    method = make(data, first, cycle=2)
    for step in range(9):
        method.refresh(Progress(step, 2, 9), data.streams)
    assert method.details()["selmix"]["shown"] == [0, 2, 4, 6, 8]
    assert method.details()["pair_fidelity"].shape == (5, 0, 3)  # none was asked for


def test_the_diary_notes_the_largest_gain_and_the_entropy() -> None:
    diary = Diary([2, 1])
    P = torch.tensor([[0.5, 0.25], [0.25, 0.0]])
    diary.note(30, torch.tensor([[0.1, -4.0], [3.0, 0.2]]), P)
    diary.note(60, torch.tensor([[0.1, -4.0], [0.0, 0.2]]), torch.full((2, 2), 0.25))
    series = diary.details()["selmix"]
    assert series["steps"] == [30, 60]
    assert series["largest"] == pytest.approx([3.0, 0.2])
    half = 0.5 * math.log(2) + 0.5 * math.log(4)
    assert series["entropy"][0] / series["entropy"][1] == pytest.approx(half / math.log(4), rel=1e-4)
    again = Diary([2, 1])
    again.load_state(diary.state())
    assert again.details()["selmix"] == series
