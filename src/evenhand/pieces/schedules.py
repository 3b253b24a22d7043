"""Learning-rate factors and radii as functions of time; epochs count from 0, and may be fractions where they are float.

A milestone is an epoch, or a share of the run when below 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def milestone(when: float, epochs: float) -> float:
    """The epoch, or part of one, that a milestone stands for; a hair early, so that rounding never delays it."""
    return (when * epochs if when < 1 else when) - 1e-9


def warmup(epoch: int, length: int, start: float = 0.0) -> float:
    """A step up after each whole epoch, the last to 1: from 0, 1/length, 2/length, ..., 1 (spec 04, 2.4)."""
    return linear(min(1.0, (epoch + 1) / length), start, 1.0) if length else 1.0


def smooth_warmup(epoch: float, length: float, start: float = 0.0) -> float:
    """A straight line from ``start`` at 0 to 1 after ``length`` (spec 05)."""
    return linear(min(1.0, epoch / length), start, 1.0) if length else 1.0


def steps(epoch: float, epochs: float, milestones: Sequence[float], values: Sequence[float]) -> float:
    """The value of the last milestone passed; ``values`` has one more entry than ``milestones``."""
    if len(values) != len(milestones) + 1:
        raise ValueError(f"{len(milestones)} milestones need {len(milestones) + 1} values, got {list(values)}")
    return values[sum(epoch >= milestone(m, epochs) for m in milestones)]


def cosine(epoch: float, epochs: float, floor: float = 0.0) -> float:
    """From 1 at the start to ``floor`` after ``epochs``."""
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))


def fixmatch_cosine(fraction: float) -> float:
    """cos(7 pi t / 16): slow decay to about 0.2 (spec 06)."""
    return math.cos(7.0 * math.pi * fraction / 16.0)


def inverse_decay(time: float, alpha: float = 1e-3, power: float = 0.75) -> float:
    """(1 + alpha t)^(-power) of domain-adversarial training: t in steps (spec 09), or in [0, 1] with alpha 10 (08)."""
    return float((1.0 + alpha * time) ** -power)


def linear(fraction: float, first: float, last: float) -> float:
    return first + (last - first) * fraction
