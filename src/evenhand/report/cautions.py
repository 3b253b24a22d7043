"""What a report of generators warns of: judges that differ, classes collapsed, about to, or hardly drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean, median

from evenhand.report.records import RunGroup

ALARM = 0.5  # of the patterns of real images, unless the recipe says otherwise
EXPLODED = 2.0  # times the median class's spectral norm
RARE = 0.1  # of an even share: below, a class is hardly drawn


def cautions(groups: Sequence[RunGroup]) -> list[str]:
    return judged_apart(groups) + [said for group in groups for said in troubles(group)]


def judged_apart(groups: Sequence[RunGroup]) -> list[str]:
    """One line if the runs' features come from different weights, none if they agree or do not say."""
    users: dict[str, list[str]] = {}
    for record in (r for g in groups for r in g.measured):
        if digest := (record.measure or {}).get("features_digest"):
            users.setdefault(digest, []).append(record.name)
    if len(users) < 2:
        return []
    who = "; ".join(f"{digest[:8]} {_few(names, 3)}" for digest, names in users.items())
    return [
        f"Not all generators were judged by the same network ({who}): part of the differences is its. Train one "
        "annotator, name its folder in needs.annotator, and train again."
    ]


def troubles(group: RunGroup) -> list[str]:
    """Classes that look collapsed, are about to, or are hardly drawn, by name and with how many seeds agree."""
    alike: dict[int, list[float]] = {}
    wild: dict[int, list[float]] = {}
    absent: dict[int, list[float]] = {}

    def note(found: dict[int, list[float]], values: Sequence[float | None], low: float, high: float = inf) -> None:
        for k, value in enumerate(values):
            if value is not None and (value < low or value > high):
                found.setdefault(k, []).append(value)

    even = 1 / max(1, len(group.classes[0]))
    for record in group.measured:
        measure = record.measure or {}
        norms = [max(of_class) for of_class in zip(*measure.get("sigma_gain") or (), strict=True)]
        note(alike, measure.get("patterns") or (), (record.method.get("measure") or {}).get("alarm", ALARM))
        note(wild, norms, -inf, EXPLODED * median(norms or [0]))
        note(absent, measure.get("class_shares") or (), RARE * even)
    told = []
    if alike:
        told.append(
            f"images of {_named(group, alike, '.2f')} are much alike: in brackets, their effective number of patterns "
            "over that of as many real ones. Collapse?"
        )
    if wild:
        names = _named(group, wild, ".2f")
        told.append(f"the spectral norm of {names} is over twice the median class's. Collapse ahead?")
    if absent:
        told.append(f"hardly draws {_named(group, absent, '.1%')}; even shares would be {100 * even:.2g}\u00a0%.")
    return [f"{group.name}: {said}" for said in told]


def _named(group: RunGroup, classes: Mapping[int, Sequence[float]], form: str) -> str:
    seeds, told = len(group.measured), []
    for k, values in sorted(classes.items(), key=lambda item: (-len(item[1]), fmean(item[1]))):
        often = f", {len(values)} of {seeds} seeds" if seeds > 1 else ""
        mean = f"{fmean(values):{form}}".replace("%", "\u00a0%")
        told.append(f"‘{group.classes[0][k]}’ ({mean}{often})")
    return _few(told, 5)


def _few(names: Sequence[str], most: int) -> str:
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])
