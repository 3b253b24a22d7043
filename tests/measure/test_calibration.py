"""Calibration against a literal loop over bins, and its extremes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.measure.calibration import binned, expected_calibration_error, fit_temperature, reliability


def literal(probs: Tensor, target: Tensor, bins: int) -> float:
    error = 0.0
    for b in range(bins):
        inside = [
            (max(row), row.index(max(row)) == y)
            for row, y in zip(probs.double().tolist(), target.tolist(), strict=True)
            if b / bins < max(row) <= (b + 1) / bins
        ]
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            right = sum(r for _, r in inside) / len(inside)
            error += len(inside) / len(target) * abs(right - confidence)
    return error


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(2, 5), st.integers(1, 20), st.integers(0, 10**6))
def test_parity_with_the_definition(n: int, classes: int, bins: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    probs = (3 * torch.randn(n, classes, generator=g, dtype=torch.float64)).softmax(1)
    target = torch.randint(classes, (n,), generator=g)
    error = expected_calibration_error(probs, target, bins)
    assert error == pytest.approx(literal(probs, target, bins), abs=1e-12)
    assert 0 <= error <= 1
    assert reliability(probs, target, bins).count.sum() == n


def test_edges_belong_to_the_lower_bin_and_certainty_to_the_last() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]])
    r = reliability(probs, torch.tensor([0, 1, 0]), bins=4)
    assert r.count.tolist() == [0, 1, 1, 1]
    assert r.confidence.tolist() == [0, 0.5, 0.75, 1.0]
    assert r.accuracy.tolist() == [0, 1, 0, 1]


def test_extremes() -> None:
    certain = torch.eye(3)
    assert expected_calibration_error(certain, torch.tensor([0, 1, 2])) == 0
    assert expected_calibration_error(certain, torch.tensor([1, 2, 0])) == 1
    assert expected_calibration_error(torch.full((4, 2), 0.5), torch.tensor([0, 0, 1, 1])) == 0
    assert expected_calibration_error(torch.full((1, 2), 0.5).bfloat16(), torch.tensor([1])) == 0.5


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="softmax"):
        expected_calibration_error(torch.tensor([[3.0, -1.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="bins=0"):
        expected_calibration_error(torch.eye(2), torch.tensor([0, 1]), bins=0)
    with pytest.raises(ValueError, match=r"target \(1,\)"):
        reliability(torch.eye(2), torch.tensor([0]))
    with pytest.raises(ValueError, match="softmax"):
        reliability(torch.tensor([[float("nan"), 0.5]]), torch.tensor([0]))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.floats(0.05, 20), st.integers(0, 10**6))
def test_temperature_is_the_least_cross_entropy_of_a_fine_grid(classes: int, scale: float, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(200, classes, generator=g, dtype=torch.float64)
    target = torch.where(
        torch.rand(200, generator=g) < 0.3, torch.randint(classes, (200,), generator=g), logits.argmax(1)
    )
    grid = torch.logspace(-2, 2, 401, dtype=torch.float64)
    losses = torch.stack([torch.nn.functional.cross_entropy(logits / t, target) for t in grid])
    found = fit_temperature(logits.float(), target)
    assert torch.nn.functional.cross_entropy(logits / found, target) <= losses.min() + 1e-6
    assert fit_temperature(5 * logits, target) == pytest.approx(min(5 * found, 100), rel=1e-4)


def test_temperature_by_hand_and_at_its_bounds() -> None:
    """Three of four right at equal logits: softmax must say 3/4, so 2 / T = log 3."""
    logits = torch.tensor([[2.0, 0.0]] * 4)
    assert fit_temperature(logits, torch.tensor([0, 0, 0, 1])) == pytest.approx(2 / math.log(3))
    assert fit_temperature(logits, torch.tensor([0, 0, 0, 0])) == pytest.approx(0.01, rel=1e-3)
    assert fit_temperature(logits, torch.tensor([1, 1, 1, 1])) == pytest.approx(100, rel=1e-3)
    assert fit_temperature(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])) == 1.0  # any T is as good
    with pytest.raises(ValueError, match="expected"):
        fit_temperature(logits, torch.tensor([0]))


def test_fifteen_bins_unless_stated() -> None:
    probs, target = torch.tensor([[0.9, 0.1], [0.65, 0.35]]), torch.tensor([0, 1])
    for found in (reliability(probs, target), binned(probs.amax(1), torch.tensor([True, False]))):
        assert len(found.count) == 15
        assert found.count.nonzero().flatten().tolist() == [9, 13]
        assert found.accuracy[[9, 13]].tolist() == [0, 1]
    assert expected_calibration_error(probs, target) == pytest.approx((0.1 + 0.65) / 2)


def test_rows_may_miss_one_by_a_twentieth() -> None:
    loose = torch.tensor([[0.96, 0.0], [1.04, 0.0]], dtype=torch.float64)
    assert reliability(loose, torch.tensor([0, 0])).count.sum() == 2
    for bad in ([[0.94, 0.0]], [[1.06, 0.0]], [[1.01, -0.01]]):
        with pytest.raises(ValueError, match="softmax"):
            reliability(torch.tensor(bad), torch.tensor([0]))
    for probs, target in ((torch.zeros(0, 2), torch.zeros(0)), (torch.eye(2)[0], torch.zeros(2))):
        with pytest.raises(ValueError, match="expected"):
            reliability(probs, target.long())


@pytest.mark.parametrize("within", [(0.5, 2.0), (0.01, 100.0), (5.0, 9.0)])
def test_temperatures_stay_within_their_bounds(within: tuple[float, float]) -> None:
    logits = torch.tensor([[2.0, 0.0]] * 4)
    best = fit_temperature(logits, torch.tensor([0, 0, 0, 1]), within=within)
    assert best == pytest.approx(min(max(2 / math.log(3), within[0]), within[1]))
    assert fit_temperature(logits, torch.tensor([0, 0, 0, 0]), within=within) == within[0]
    assert fit_temperature(logits, torch.tensor([1, 1, 1, 0]), within=within) == within[1]
    steep = 500 * torch.tensor([[1.0, 0.0]] * 99 + [[0.0, 1.0]])
    assert fit_temperature(steep, torch.zeros(100, dtype=torch.int64), within=(0.01, 1e4)) == pytest.approx(
        500 / math.log(99)
    )
