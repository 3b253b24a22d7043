"""A report warns by the numbers that training warns by."""

from __future__ import annotations

from evenhand.measure import alarms
from evenhand.measure.judging import Measure
from evenhand.report import cautions


def test_limits_are_those_of_training() -> None:
    assert (cautions.EXPLODED, cautions.RARE) == (alarms.EXPLODED, alarms.RARE)
    assert Measure().alarm == cautions.ALARM
