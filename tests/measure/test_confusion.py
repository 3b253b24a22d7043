"""Metrics of the confusion matrix: hand-made numbers, gradients, and properties over random matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.measure.confusion import (
    absent_classes,
    accuracy,
    confusion_matrix,
    coverages,
    f_beta,
    f_scores,
    g_mean,
    group_mean_recall,
    h_mean,
    mean_recall,
    min_recall,
    precisions,
    q_mean,
    recalls,
)

Metric = Callable[[Tensor], Tensor]


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    K = draw(st.integers(2, 6))
    pairs = draw(st.lists(st.tuples(st.integers(0, K - 1), st.integers(0, K - 1)), min_size=1, max_size=60))
    predicted, target = torch.tensor(pairs).unbind(1)
    return predicted, target, K


def test_a_small_matrix_by_hand() -> None:
    C = confusion_matrix([0, 0, 1, 2, 2, 2], np.array([0, 1, 1, 2, 2, 0]), 3)
    assert C.dtype == torch.float64
    torch.testing.assert_close(C * 6, torch.tensor([[1, 0, 1], [1, 1, 0], [0, 0, 2.0]], dtype=torch.float64))
    assert recalls(C).tolist() == pytest.approx([0.5, 0.5, 1.0])
    assert precisions(C).tolist() == pytest.approx([0.5, 1.0, 2 / 3])
    assert coverages(C).tolist() == pytest.approx([1 / 3, 1 / 6, 1 / 2])
    assert accuracy(C).item() == pytest.approx(4 / 6)
    assert group_mean_recall(C, [[0], [1, 2]]).tolist() == pytest.approx([0.5, 0.75])


def test_means_of_recalls_one_and_a_half() -> None:
    C = torch.tensor([[0.5, 0.0], [0.25, 0.25]])
    values = [metric(C).item() for metric in (mean_recall, g_mean, h_mean, min_recall)]
    assert values == pytest.approx([0.75, 0.70711, 0.66667, 0.5], abs=1e-5)


def test_trap_08_accuracy_is_not_the_class_mean() -> None:
    target = torch.tensor([0] * 90 + [1] * 10)
    C = confusion_matrix(torch.zeros_like(target), target, 2)
    assert accuracy(C).item() == pytest.approx(0.9)
    assert mean_recall(C).item() == pytest.approx(0.5)


def test_trap_09_an_absent_class_counts_as_zero_and_is_named() -> None:
    C = confusion_matrix([0, 0, 1], [0, 0, 1], 4).requires_grad_()
    assert absent_classes(C) == [2, 3]
    assert recalls(C).tolist() == [1, 1, 0, 0]
    assert precisions(C).tolist() == [1, 1, 0, 0]
    assert mean_recall(C).item() == 0.5
    for metric in (mean_recall, min_recall, g_mean, h_mean):
        value = metric(C)
        assert value.isfinite()
        assert torch.autograd.grad(value, C)[0].isfinite().all()
    assert [metric(C).item() for metric in (min_recall, g_mean, h_mean)] == [0, 0, 0]


@pytest.mark.parametrize("metric", [g_mean, h_mean])
def test_at_a_zero_recall_the_gradient_points_at_that_class(metric: Metric) -> None:
    C = torch.tensor([[0.5, 0.0], [0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    gradient = torch.autograd.grad(metric(C), C)[0]
    assert gradient[1, 1] > 1
    assert gradient[1, 1] > 10 * gradient[0].abs().max()


@pytest.mark.parametrize("metric", [mean_recall, min_recall, g_mean, h_mean, recalls, precisions, coverages])
def test_gradients_match_finite_differences(metric: Metric) -> None:
    C = torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    assert torch.autograd.gradcheck(metric, ((C / C.sum()).requires_grad_(),))


def test_recall_gradients_of_the_paper() -> None:
    """d G-mean / d r_i = GM / (K r_i) and d H-mean / d r_i = HM^2 / (K r_i^2), through C_ii = r_i / K."""
    r = torch.tensor([0.9, 0.5, 0.2], dtype=torch.float64, requires_grad=True)
    C = torch.diag(r / 3)
    C = C + torch.diag((1 - r) / 3).roll(1, 1)
    for metric, power in ((g_mean, 1), (h_mean, 2)):
        value = metric(C)
        expected = value.detach() ** power / (3 * r.detach() ** power)
        torch.testing.assert_close(torch.autograd.grad(value, r, retain_graph=True)[0], expected)


@settings(max_examples=80, deadline=None)
@given(labelled())
def test_bounds_and_order_of_the_means(data: tuple[Tensor, Tensor, int]) -> None:
    C = confusion_matrix(*data)
    assert math.isclose(C.sum().item(), 1, abs_tol=1e-12)
    assert math.isclose(coverages(C).sum().item(), 1, abs_tol=1e-12)
    for values in (recalls(C), precisions(C), coverages(C)):
        assert ((values >= 0) & (values <= 1 + 1e-12)).all()
    ordered = [metric(C).item() for metric in (min_recall, h_mean, g_mean, mean_recall)]
    assert all(a <= b + 1e-12 for a, b in pairwise(ordered))
    assert min_recall(C) > 0 or (h_mean(C) == 0 and g_mean(C) == 0)


@settings(max_examples=60, deadline=None)
@given(labelled(), st.randoms(use_true_random=False))
def test_renaming_classes_permutes_and_order_of_samples_does_not_matter(
    data: tuple[Tensor, Tensor, int], random: Random
) -> None:
    predicted, target, K = data
    C = confusion_matrix(predicted, target, K)
    names = list(range(K))
    random.shuffle(names)
    new = torch.tensor(names)
    renamed = confusion_matrix(new[predicted].flip(0), new[target].flip(0), K)
    torch.testing.assert_close(renamed[new][:, new], C)
    torch.testing.assert_close(recalls(renamed)[new], recalls(C))
    for metric in (accuracy, mean_recall, min_recall, g_mean, h_mean):
        torch.testing.assert_close(metric(renamed), metric(C))


@settings(max_examples=30, deadline=None)
@given(labelled())
def test_recall_does_not_depend_on_the_class_mix(data: tuple[Tensor, Tensor, int]) -> None:
    predicted, target, K = data
    twice = target == target[0]
    more = confusion_matrix(torch.cat([predicted, predicted[twice]]), torch.cat([target, target[twice]]), K)
    torch.testing.assert_close(recalls(more), recalls(confusion_matrix(predicted, target, K)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: confusion_matrix([0, 3], [0, 1], 3), "predicted holds 3"),
        (lambda: confusion_matrix([0, 1], [0, -1], 3), "target holds -1"),
        (lambda: confusion_matrix([], [], 3), "N >= 1"),
        (lambda: confusion_matrix([0, 1], [0], 3), r"predicted \(2,\) and target \(1,\)"),
        (lambda: confusion_matrix([0.1, 0.9], [0, 1], 2), "predicted has type torch.float32"),
        (lambda: recalls(torch.zeros(2, 3)), r"C of shape \(2, 3\)"),
        (lambda: group_mean_recall(torch.eye(2) / 2, [[0], []]), r"groups\[1\] is empty"),
        (lambda: group_mean_recall(torch.eye(2) / 2, [[2]]), r"groups\[0\] holds class 2"),
        (lambda: group_mean_recall(torch.eye(2) / 2, [0, 1]), r"groups=\[0, 1\]: list the class indices of each"),  # type: ignore[list-item]
        (lambda: group_mean_recall(torch.eye(2) / 2, {"head": [0]}), "list the class indices of each"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_named(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_f_beta_weighs_recall_beta_times_as_much_as_precision(beta: float) -> None:
    C = torch.tensor([[30, 6, 4], [2, 18, 10], [9, 1, 20]], dtype=torch.float64) / 100
    found = []
    for k in range(3):
        recall, precision = C[k, k] / C[k].sum(), C[k, k] / C[:, k].sum()
        found.append((1 + beta * beta) * precision * recall / (beta * beta * precision + recall))
    torch.testing.assert_close(f_scores(C, beta), torch.stack(found))
    torch.testing.assert_close(f_beta(C, beta), torch.stack(found).mean())


def test_q_mean_is_one_less_the_root_of_the_mean_squared_miss() -> None:
    C = torch.tensor([[3, 1], [2, 2]], dtype=torch.float64) / 8  # recalls 3/4 and 1/2
    assert float(q_mean(C)) == pytest.approx(1 - math.sqrt((1 / 16 + 1 / 4) / 2), abs=1e-6)
