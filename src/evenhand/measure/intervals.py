"""How far a share may be off when it was counted on few samples; without torch, for reports."""

from __future__ import annotations

from math import sqrt

NORMAL_95 = 1.959964


def wilson(share: float, count: float, z: float = NORMAL_95) -> tuple[float, float]:
    """The interval of Wilson (1927) for a ``share`` of ``count`` samples: honest at 0 and 1, and for few.

    ``(p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n)``

    >>> [round(end, 3) for end in wilson(1.0, 2)]
    [0.342, 1.0]
    """
    if not (count > 0 and 0 <= share <= 1):
        raise ValueError(f"share={share}, count={count}: give a share from 0 to 1 of at least one sample")
    middle = share + z * z / (2 * count)
    half = z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
