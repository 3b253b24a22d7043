"""How large a radius SAM may have: as large as the labelled data at hand bear.

The best radius differs by an order of magnitude between networks, and where it is needed most, in another domain, there
are no labels to tune it by. The rule needs none: raise it until held-out accuracy on the *source* falls.

    rho = pick_rho(lambda rho: accuracy_after_a_short_training(rho), [0.01 * 2**i for i in range(6)])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise


def pick_rho(
    score: Callable[[float], float], radii: Iterable[float], *, tolerance: float = 0.02, chance: float = 0.0
) -> float:
    """The last of the rising ``radii`` before ``score`` falls more than ``tolerance`` below ``score(0)``.

    ``score(rho)`` is higher for better: accuracy on held-out labelled data after training with that radius. Larger
    radii are not tried after the first failure; 0 if already the first fails. A score that is not finite fails, and so
    does one that has lost half of what ``score(0)`` has above ``chance``: trainings too short to learn much would
    otherwise bear anything. A wider ``tolerance``, such as the noise of a small validation set, has picked radii that
    ruin the longer training.
    """
    rising = list(radii)
    if not rising or rising[0] <= 0 or any(b <= a for a, b in pairwise(rising)):
        raise ValueError(f"radii={rising}: give positive numbers in rising order, e.g. 0.01, 0.02, 0.05, 0.1")
    if not tolerance >= 0:
        raise ValueError(f"tolerance={tolerance}: must be at least 0, a share of the score such as 0.02")
    plain, chosen = score(0.0), 0.0
    least = max(plain - tolerance, (plain + chance) / 2)
    for rho in rising:
        found = score(rho)
        if not (math.isfinite(found) and found >= least and found > chance):
            break
        chosen = rho
    return chosen
