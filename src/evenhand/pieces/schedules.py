"""Learning-rate factors and radii as functions of time; epochs count from 0, and all but warm-up step per epoch.

A milestone is an epoch, or a share of the run when below 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def milestone(when: float, epochs: float) -> int:
    """The epoch a milestone stands for."""
    return round(when * epochs) if when < 1 else math.ceil(when)


def warmup(epoch: int, length: int) -> float:
    """1/length, 2/length, ..., 1: the share of the learning rate in the first epochs (spec 04, 2.4)."""
    return min(1.0, (epoch + 1) / length) if length else 1.0


def steps(epoch: int, epochs: float, milestones: Sequence[float], values: Sequence[float]) -> float:
    """The value of the last milestone passed; ``values`` has one more entry than ``milestones``."""
    if len(values) != len(milestones) + 1:
        raise ValueError(f"{len(milestones)} milestones need {len(milestones) + 1} values, got {list(values)}")
    return values[sum(epoch >= milestone(m, epochs) for m in milestones)]


def cosine(epoch: float, epochs: float) -> float:
    """From 1 at the start to 0 after ``epochs``."""
    return 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))


def fixmatch_cosine(fraction: float) -> float:
    """cos(7 pi t / 16): slow decay to about 0.2 (spec 06)."""
    return math.cos(7.0 * math.pi * fraction / 16.0)


def inverse_decay(step: int, gamma: float = 1e-3, power: float = 0.75) -> float:
    """(1 + gamma i)^(-power), the domain-adversarial schedule (specs 08, 09)."""
    return float((1.0 + gamma * step) ** -power)


def linear(fraction: float, first: float, last: float) -> float:
    return first + (last - first) * fraction
