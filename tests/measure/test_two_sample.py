from __future__ import annotations

import pytest
import torch

from evenhand.measure.two_sample import told_apart


def test_sets_are_told_apart_as_often_as_they_can_be() -> None:
    """Two normal sets whose means differ by 2 deviations in one of five numbers: the best guess is right in Phi(1)."""
    chance = torch.Generator().manual_seed(0)
    one, other = torch.randn(3000, 5, generator=chance), torch.randn(1000, 5, generator=chance)
    other[:, 2] += 2
    assert told_apart(one, other) == pytest.approx(0.8413, abs=0.015)
    assert told_apart(one, torch.randn(1000, 5, generator=chance)) == pytest.approx(0.5, abs=0.03)
