"""What is a repetition of one experiment, and what is the same one twice."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, TypeVar

from evenhand.errors import UserError
from evenhand.settings import WITHOUT_EFFECT


def comparable(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe without what may differ between repetitions of one experiment: the seed, and what changes no result.

    The split stays: it is another experiment's, unless it goes with the seed (see ``by_split``).
    """
    kept = {key: value for key, value in recipe.items() if key not in ("name", "seed", *WITHOUT_EFFECT["recipe"])}
    if "run" in kept:
        kept["run"] = {key: value for key, value in kept["run"].items() if key not in ("seed", *WITHOUT_EFFECT["run"])}
    return kept


def but_for_the_split(recipe: dict[str, Any]) -> dict[str, Any]:
    kept = comparable(recipe)
    data = kept.get("data")
    if isinstance(data, dict):
        kept["data"] = {key: value for key, value in data.items() if key != "split_seed"}
    return kept


class Seeded(Protocol):
    """What was repeated with other seeds."""

    @property
    def folder(self) -> Path: ...

    @property
    def seed(self) -> Any: ...

    @property
    def split_seed(self) -> Any: ...


Repeated = TypeVar("Repeated", bound=Seeded)


def by_split(alike: list[Repeated]) -> list[list[Repeated]]:
    """Records of one recipe: those of a split that several seeds share, and those whose seeds split the data anew."""
    shared = {str(r.split_seed) for r in alike if r.split_seed is None or r.split_seed != r.seed}
    parts: dict[str | None, list[Repeated]] = {}
    for record in alike:
        split = str(record.split_seed)
        parts.setdefault(split if split in shared else None, []).append(record)
    return list(parts.values())


def per_seed(values: Iterable[tuple[str, float | None]]) -> list[tuple[str, float]]:
    """One value for each label: a seed that was run twice, or whose folder was copied, is no second one."""
    found: dict[str, list[float]] = {}
    for label, value in values:
        if value is not None:
            found.setdefault(label, []).append(value)
    return [(label, fmean(same)) for label, same in found.items()]


def once_each(same: Iterable[Repeated]) -> list[Repeated]:
    """Repetitions in the order of their seeds; one that is there twice would count as two."""
    found = sorted(same, key=lambda one: one.seed)
    for one, other in pairwise(found):
        if one.seed == other.seed:
            raise UserError(
                f"{one.folder} and {other.folder} are one experiment with seed {one.seed}; name one of them"
            )
    return found
