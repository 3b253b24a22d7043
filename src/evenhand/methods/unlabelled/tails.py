"""Two meanings of a tail: an objective's, and that of the tables."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from evenhand.data.prepared import Data


def warn_of_another_tail(groups: Sequence[Sequence[int]] | None, data: Data) -> None:
    """What tables call the worse of head and tail, and selection goes by, are the groups of the data."""
    theirs = [sorted(data.groups.get(name, [])) for name in ("head", "tail")]
    if groups is None or [sorted(group) for group in groups] == theirs:
        return
    K, few = len(data.classes), len(groups[1])
    warnings.warn(
        f"the objective's tail are the rarest {few} of {K} classes (method.tail) and its head all others, those of the "
        f"tables are other classes (data.groups = '{data.facts.groups_rule}'): set data.groups = '{K - few}/{few}' to "
        "see what is aimed at",
        stacklevel=3,
    )
