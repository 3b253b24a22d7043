from __future__ import annotations

import json
import math
import multiprocessing
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.data.sources.files import Files
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.measure.calibration import expected_calibration_error, reliability
from evenhand.measure.classification import Evaluation, evaluate, predict_all
from evenhand.tasks.classify import CLASSIFY
from helpers import tree

GROUPS = {"head": [0], "tail": [1, 2]}


def judged(pairs: list[tuple[int, int]], classes: int = 3, sure: float = 2.0) -> Evaluation:
    """An evaluation of (truth, prediction) pairs, each predicted with the same logit."""
    truth, predicted = torch.tensor(pairs).T
    return Evaluation.of(sure * torch.eye(classes)[predicted], truth)


# class 0: 3 of 4 right; class 1: 1 of 2; class 2: 0 of 1, taken for class 0
PAIRS = [(0, 0), (0, 0), (0, 0), (0, 1), (1, 1), (1, 0), (2, 0)]


def test_scalars_by_hand() -> None:
    found = judged(PAIRS).scalars()
    chosen, other = math.exp(2) / (math.exp(2) + 2), 1 / (math.exp(2) + 2)  # probabilities behind the logits
    expected = {
        "accuracy": 4 / 7,
        "top5": 1.0,
        "mean_recall": (3 / 4 + 1 / 2 + 0) / 3,
        "min_recall": 0.0,
        "g_mean": 0.0,
        "h_mean": 0.0,
        "macro_f1": (2 * 3 / (4 + 5) + 2 * 1 / (2 + 2) + 0) / 3,
        "micro_f1": 4 / 7,
        "min_coverage": 0.0,
        "coverage_violation": 0.95 / 3,
        "ece": abs(4 / 7 - chosen),
        "loss": -(4 * math.log(chosen) + 3 * math.log(other)) / 7,
    }
    assert found == pytest.approx(expected, abs=1e-6)


def test_means_by_hand_where_no_recall_is_zero() -> None:
    found = judged([(0, 0), (0, 0), (0, 1), (0, 1), (1, 1)], classes=2).scalars()
    assert found["g_mean"] == pytest.approx(math.sqrt(1 / 2 * 1))
    assert found["h_mean"] == pytest.approx(2 / (2 + 1))
    assert found["min_coverage"] == pytest.approx(2 / 5)
    assert found["coverage_violation"] == pytest.approx(0.95 / 2 - 2 / 5)
    assert judged([(0, 0), (1, 1)], classes=2).scalars()["coverage_violation"] == 0


def test_the_worse_of_head_and_tail_by_hand() -> None:
    """Head 0 (recall 3/4, coverage 5/7), tail 1 and 2 (1/4 and 1/7); mid has no say, nor a class that is not there."""
    found = judged(PAIRS).scalars(GROUPS)
    assert found["min_head_tail_recall"] == pytest.approx(1 / 4)
    assert found["min_head_tail_coverage"] == pytest.approx(1 / 7)
    turned = judged(PAIRS).scalars({"head": [2], "mid": [1], "tail": [0]})
    assert turned["min_head_tail_recall"] == turned["min_head_tail_coverage"] == 0
    assert judged(PAIRS).scalars({"head": [0], "mid": [2], "tail": [1]})["min_head_tail_recall"] == pytest.approx(1 / 2)
    absent = judged([(0, 0), (0, 1), (1, 1)]).scalars(GROUPS)
    assert absent["min_head_tail_recall"] == pytest.approx(1 / 2)
    assert absent["min_head_tail_coverage"] == pytest.approx(1 / 3)
    assert judged([(0, 0), (0, 1), (1, 1)]).scalars()["min_coverage"] == pytest.approx(1 / 3)
    assert "min_head_tail_recall" not in judged(PAIRS).scalars({"all": [0, 1, 2]})


def test_top5_and_macro_f1_by_hand() -> None:
    """The truth ranks 1st, 5th, 6th and 7th of seven."""
    logits = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]]).expand(4, 7)
    found = Evaluation.of(logits, torch.tensor([0, 4, 5, 6])).scalars()
    assert found["top5"] == pytest.approx(2 / 4)
    assert found["macro_f1"] == pytest.approx((2 * 1 / (1 + 4)) / 4)  # over the four classes that are there


def test_every_scalar_is_a_metric_with_its_direction() -> None:
    better_low = {"ece", "loss", "coverage_violation"}
    for name in judged(PAIRS).scalars(GROUPS):
        assert CLASSIFY.metric(name).higher_is_better == (name not in better_low)


def test_table_by_hand() -> None:
    table = judged(PAIRS).table(GROUPS)
    assert table["confusion"].tolist() == [[3, 1, 0], [1, 1, 0], [1, 0, 0]]
    assert np.issubdtype(table["confusion"].dtype, np.integer)
    assert table["recall"] == pytest.approx([3 / 4, 1 / 2, 0])
    assert table["precision"] == pytest.approx([3 / 5, 1 / 2, 0])
    assert table["coverage"] == pytest.approx([5 / 7, 2 / 7, 0])
    assert table["groups"] == GROUPS
    assert table["group_recall"] == pytest.approx({"head": 3 / 4, "tail": 1 / 4})
    assert table["samples"] == 7
    bins = table["reliability"]
    assert sum(bins["count"]) == 7
    assert bins["accuracy"][bins["count"].index(7)] == pytest.approx(4 / 7)
    assert {k: table[k] for k in judged(PAIRS).scalars(GROUPS)} == judged(PAIRS).scalars(GROUPS)


def test_table_is_plain_json_but_for_the_matrix() -> None:
    table = judged(PAIRS).table(GROUPS)
    del table["confusion"]
    assert json.loads(json.dumps(table, allow_nan=False)) == table


def test_trap_08_accuracy_and_class_mean_are_two_numbers_with_two_names() -> None:
    unbalanced = judged([(0, 0)] * 98 + [(1, 0)] * 2, classes=2).scalars()
    assert unbalanced["accuracy"] == pytest.approx(0.98)
    assert unbalanced["mean_recall"] == pytest.approx(0.5)
    balanced = judged([(0, 0)] * 50 + [(1, 0)] * 50, classes=2).scalars()
    assert balanced["accuracy"] == pytest.approx(balanced["mean_recall"]) == pytest.approx(0.5)


def numbers(tree: object) -> list[float]:
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [float(tree)] if isinstance(tree, (int, float)) else [n for part in inside for n in numbers(part)]


@pytest.mark.parametrize("pairs", [[(0, 0), (1, 1)], [(0, 2)], [(1, 1)], [(2, 0), (2, 0)]])
def test_trap_09_a_class_missing_from_the_test_split_gives_no_nan(pairs: list[tuple[int, int]]) -> None:
    table = judged(pairs).table(GROUPS)
    assert all(math.isfinite(n) for n in numbers(table))
    present = {truth for truth, _ in pairs}
    assert [k for k in range(3) if table["recall"][k] is None] == table["absent"] == sorted({0, 1, 2} - present)


def test_a_perfect_classifier_is_perfect_whatever_classes_the_split_has() -> None:
    """An absent class is named, and has no say in mean, worst, tail, G- and H-mean."""
    table = judged([(0, 0), (0, 0), (1, 1)]).table({"head": [0], "mid": [1], "tail": [2], "rest": [1, 2]})
    assert [table[name] for name in ("mean_recall", "min_recall", "g_mean", "h_mean")] == [1.0] * 4
    assert table["group_recall"] == {"head": 1.0, "mid": 1.0, "tail": None, "rest": 1.0}
    assert table["absent"] == [2]
    half = judged([(0, 0), (0, 2), (1, 1)]).scalars()
    assert half["mean_recall"] == pytest.approx(0.75)
    assert half["min_recall"] == pytest.approx(0.5)
    assert half["g_mean"] == pytest.approx(0.5**0.5)
    assert half["h_mean"] == pytest.approx(2 / 3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40), st.floats(0, 1000))
def test_numbers_keep_their_bounds(pairs: list[tuple[int, int]], sure: float) -> None:
    table = judged(pairs, classes=5, sure=sure).table({"all": [0, 1, 2, 3, 4]})
    slack = 1e-9
    assert all(math.isfinite(n) for n in numbers(table))
    means = [table[name] for name in ("min_recall", "h_mean", "g_mean", "mean_recall")]
    assert all(low <= high + slack for low, high in pairwise(means))
    assert table["group_recall"]["all"] == pytest.approx(table["mean_recall"])
    assert 0 <= table["ece"] <= 1 + slack
    assert sum(table["coverage"]) == pytest.approx(1)


def labelled(count: int) -> Stream:
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Stream(Memory(images), torch.arange(count) % 3, ("a", "b", "c"), "test")


@pytest.mark.parametrize("batch", [1, 4, 7, 100])
def test_evaluate_reads_the_stream_once_in_order(batch: int) -> None:
    sizes: list[int] = []

    def predict(x: Tensor) -> Tensor:
        assert x.dtype == torch.uint8
        assert not torch.is_grad_enabled()
        sizes.append(len(x))
        return torch.eye(3, dtype=torch.bfloat16)[x[:, 0, 0, 0].long() % 3]

    found = evaluate(predict, labelled(7), batch=batch)
    assert found.confidence.dtype == found.surprise.dtype == torch.float32
    assert found.predicted.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert found.target.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert found.scalars()["accuracy"] == pytest.approx(1)
    assert sum(sizes) == 7
    assert max(sizes) <= batch


def test_evaluate_holds_only_a_batch_of_logits() -> None:
    held: list[weakref.ref[Tensor]] = []

    def predict(x: Tensor) -> Tensor:
        assert sum(logits() is not None for logits in held) <= 1
        logits = torch.zeros(len(x), 1000)
        held.append(weakref.ref(logits))
        return logits

    found = evaluate(predict, labelled(20), batch=2)
    assert len(held) == 10
    assert all(value.numel() == 20 for value in vars(found).values() if isinstance(value, Tensor))
    assert found.confusion.shape == (1000, 1000)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 99))
def test_numbers_are_those_of_the_logits(samples: int, classes: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=random)
    target = torch.randint(classes, (samples,), generator=random)
    found = Evaluation.of(logits, target)
    bins = reliability(logits.softmax(1), target)
    for name, value in vars(bins).items():
        torch.testing.assert_close(getattr(found.reliability, name), value)
    assert found.scalars()["ece"] == pytest.approx(expected_calibration_error(logits.softmax(1), target))
    assert found.scalars()["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, target)), rel=1e-5)
    better = (logits > logits.gather(1, target[:, None])).sum(1)
    assert torch.equal(found.in_top5, better < 5)
    assert torch.equal(found.predicted == target, better == 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_stop(bad: float) -> None:
    logits = torch.zeros(7, 3)
    logits[5, 0] = bad  # not the truth, which is class 2
    for look in (evaluate, predict_all):
        with pytest.raises(UserError, match="predictions on 'test' are not finite"):
            look(lambda x: logits[x[:, 0, 0, 0].long()], labelled(7), batch=2)


def test_evaluate_needs_labels() -> None:
    with pytest.raises(ValueError, match="'test' has no labels"):
        evaluate(lambda x: x, labelled(3).unlabelled())


@pytest.mark.usefixtures("global_randomness_untouched")
@pytest.mark.parametrize("batch", [7, 64, 512])
def test_loader_processes_change_neither_order_nor_numbers(tmp_path: Path, batch: int) -> None:
    names = [f"{i:03d}.png" for i in range(150)]
    tree(tmp_path, *names, side=8)
    files = Files([tmp_path / name for name in names], size=8)
    alone = Stream(files, torch.arange(150) % 3, ("a", "b", "c"), "val")
    sizes: list[int] = []

    def predict(x: Tensor) -> Tensor:
        assert multiprocessing.parent_process() is None
        sizes.append(len(x))
        return x.float().mean((2, 3))

    expected = predict_all(predict, alone, batch=batch)
    before, sizes[:] = list(sizes), []
    helped = replace(alone, workers=2)
    assert torch.equal(predict_all(predict, helped, batch=batch), expected)
    assert sizes == before
    assert helped.subset(torch.tensor([3, 1])).workers == 2
    assert evaluate(predict, helped, batch=batch).scalars() == evaluate(predict, alone, batch=batch).scalars()


class Broken(Files):
    """Which process fetched, and what it says of a bad file."""

    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> Tensor:
        raise UserError(f"bad file, in a process of its own: {multiprocessing.parent_process() is not None}")


def test_a_bad_file_is_one_line_from_a_loader_process_too(tmp_path: Path) -> None:
    tree(tmp_path, "0.png")
    stream = Stream(Broken([tmp_path / "0.png"] * 100, size=16), torch.zeros(100).long(), ("a",), "val", workers=1)
    with pytest.raises(UserError) as caught:
        predict_all(lambda x: x, stream)
    assert str(caught.value) == "bad file, in a process of its own: True"
    with pytest.raises(UserError, match="False"):
        predict_all(lambda x: x, replace(stream, workers=0))
