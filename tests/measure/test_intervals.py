"""Wilson's interval against published values and its own definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand.measure.intervals import NORMAL_95, wilson


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [
        (2, 2, 0.3424, 1.0),
        (0, 10, 0.0, 0.2775),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
    ],
)  # the last two: Newcombe (1998), table I
def test_known_values(hits: int, count: int, low: float, high: float) -> None:
    assert wilson(hits / count, count) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 5000), st.floats(0, 1))
def test_ends_are_where_the_share_is_as_far_off_as_chance_allows(count: int, share: float) -> None:
    """Each end p solves |share - p| = z sqrt(p(1 - p)/n), unless it is 0 or 1."""
    low, high = wilson(share, count)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1
    for end in (low, high):
        assert abs(share - end) == pytest.approx(NORMAL_95 * (end * (1 - end) / count) ** 0.5, abs=1e-6)


@pytest.mark.parametrize(("share", "count"), [(0.5, 0), (-0.1, 5), (1.1, 5)])
def test_what_is_no_share_is_refused(share: float, count: int) -> None:
    with pytest.raises(ValueError, match=f"share={share}, count={count}"):
        wilson(share, count)
