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
