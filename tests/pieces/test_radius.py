"""The radius that held-out source data bear."""

from __future__ import annotations

import pytest

from evenhand.pieces.radius import pick_rho

GRID = [0.01, 0.02, 0.05, 0.1]


def test_the_last_radius_before_the_fall() -> None:
    scores = {0.0: 0.90, 0.01: 0.91, 0.02: 0.895, 0.05: 0.85, 0.1: 0.95}
    assert pick_rho(scores.__getitem__, GRID, tolerance=0.01) == 0.02  # the rise at 0.1 is beyond the fall
    assert pick_rho(scores.__getitem__, GRID, tolerance=0.05) == 0.1
    assert pick_rho(scores.__getitem__, GRID, tolerance=0.0) == 0.01


def test_nothing_is_tried_after_the_first_failure() -> None:
    tried: list[float] = []

    def score(rho: float) -> float:
        tried.append(rho)
        return 1 - rho

    assert pick_rho(score, GRID, tolerance=0.03) == 0.02
    assert tried == [0.0, 0.01, 0.02, 0.05]


def test_half_of_what_was_learnt_must_stay() -> None:
    """Of trainings near chance any radius is within the tolerance."""
    scores = {0.0: 0.020, 0.01: 0.018, 0.02: 0.0121, 0.05: 0.0119, 0.1: 0.02}
    assert pick_rho(scores.__getitem__, GRID, chance=0.004) == 0.02
    assert pick_rho(scores.__getitem__, GRID) == 0.1  # all are above half of 0.020
    assert pick_rho(lambda _: 0.25, GRID, chance=0.25) == 0.0  # nothing was learnt: nothing is told
    assert pick_rho(lambda _: 0.26, GRID, chance=0.25) == 0.1


def test_none_holds() -> None:
    assert pick_rho(lambda rho: float(rho == 0), GRID) == 0.0
    assert pick_rho(lambda rho: 1.0 if rho == 0 else float("nan"), GRID) == 0.0


@pytest.mark.parametrize(("radii", "tolerance"), [([], 0.1), ([0.0, 1.0], 0.1), ([0.2, 0.1], 0.1), (GRID, -1.0)])
def test_bad_arguments(radii: list[float], tolerance: float) -> None:
    with pytest.raises(ValueError, match=r"radii=|tolerance="):
        pick_rho(lambda _: 1.0, radii, tolerance=tolerance)
