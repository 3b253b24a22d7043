from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from evenhand.measure.two_sample import simple_features, told_apart


def test_sets_are_told_apart_as_often_as_they_can_be() -> None:
    """Two normal sets whose means differ by 2 deviations in one of five numbers: the best guess is right in Phi(1)."""
    chance = torch.Generator().manual_seed(0)
    one, other = torch.randn(3000, 5, generator=chance), torch.randn(1000, 5, generator=chance)
    other[:, 2] += 2
    assert told_apart(one, other) == pytest.approx(0.8413, abs=0.015)
    assert told_apart(one, torch.randn(1000, 5, generator=chance)) == pytest.approx(0.5, abs=0.03)


def test_where_the_numbers_lie_does_not_matter() -> None:
    chance = torch.Generator().manual_seed(0)
    one, other = (torch.randn(400, 2, generator=chance, dtype=torch.float64) for _ in range(2))
    other[:, 1] += 2
    assert told_apart(one + 1e9, other + 1e9) == pytest.approx(told_apart(one, other), abs=0.01)


def test_stripes_across_and_down_differ_in_sharpness_alone() -> None:
    """Columns after 48 of the mosaic and 3 of the spread: mean step from row to row, and from column to column."""
    stripes = np.zeros((2, 8, 8, 3), np.float32)
    stripes[0, ::2], stripes[1, :, ::2] = 255, 255
    across, down = simple_features(stripes, [(20, 10)] * 2)
    assert (across[51:53].tolist(), down[51:53].tolist()) == ([1, 0], [0, 1])
    torch.testing.assert_close(across[:51], down[:51])
    assert across[53:].tolist() == pytest.approx([math.log(20), math.log(10)])


def test_the_fit_is_ridge_regression_fold_by_fold_literally() -> None:
    """Every fourth row of either set is guessed by what the others fit; both sets weigh the same."""
    chance = torch.Generator().manual_seed(0)
    for folds, ridge in ((4, 1.0), (3, 50.0), (2, 0.1)):
        one, other = torch.randn(31, 3, generator=chance) + 1, torch.randn(17, 3, generator=chance) * 2 + 1.7
        rows = np.concatenate([one.numpy(), other.numpy()]).astype(float)
        sign = np.array([1.0] * 31 + [-1.0] * 17)
        weight = np.array([0.5 / 31] * 31 + [0.5 / 17] * 17)
        fold = np.array([*(i % folds for i in range(31)), *(i % folds for i in range(17))])
        right = 0.0
        for held in range(folds):
            fit = fold != held
            z = (rows - rows[fit].mean(0)) / rows[fit].std(0, ddof=1)
            z = np.concatenate([z, np.ones((48, 1))], 1)
            gram = (z[fit] * weight[fit, None]).T @ z[fit] + ridge / fit.sum() * np.eye(4)
            w = np.linalg.solve(gram, (z[fit] * weight[fit, None]).T @ sign[fit])
            right += (weight * (z @ w * sign > 0))[~fit].sum()
        assert told_apart(one, other, folds=folds, ridge=ridge) == pytest.approx(right)
    assert told_apart(one, other) == told_apart(one, other, folds=4, ridge=1.0)


@pytest.mark.parametrize("ridge", [30.0, 300.0])
def test_a_strong_ridge_minds_neither_place_nor_unit(ridge: float) -> None:
    chance = torch.Generator().manual_seed(1)
    one, other = torch.randn(41, 2, generator=chance), torch.randn(90, 2, generator=chance) + 0.8
    guessed = told_apart(one, other, ridge=ridge)
    assert told_apart(one * 7 + 40, other * 7 + 40, ridge=ridge) == pytest.approx(guessed)
    constant = torch.cat([one, torch.ones(41, 1)], 1), torch.cat([other, torch.ones(90, 1)], 1)
    assert told_apart(*constant, ridge=ridge) == pytest.approx(guessed)


def test_simple_features_are_colours_spread_sharpness_and_shape() -> None:
    small = np.zeros((1, 8, 8, 3), np.float32)
    small[0, :2, :2, 0] = 255  # the first of 4 x 4 tiles, red
    found = simple_features(small, [(8, 4)])[0]
    assert found.shape == (48 + 3 + 2 + 2,)
    assert found[:48].nonzero().flatten().tolist() == [0]
    assert found[0] == 1
    assert found[48:51].tolist() == pytest.approx([math.sqrt(4 * 60 / 64 / 63), 0, 0])
    assert found[51:53].tolist() == pytest.approx([2 / (3 * 56), 2 / (3 * 56)])
