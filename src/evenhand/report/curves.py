"""Lines of the log: of whole runs, and of single classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from evenhand.report.charts.plots import plot_curves
from evenhand.report.charts.svg import colour
from evenhand.report.markup import parts
from evenhand.report.records import Line, RunGroup

REPEATED = "One line per run; runs of one colour differ in their seed."


def run_lines(groups: Sequence[RunGroup], kind: str, key: str, over: str = "step") -> list[Line]:
    """A line for each run that logged it, named as its group."""
    return [line for g in groups for r in g.records if (line := r.curve(g.name, kind, key, over))]


def class_lines(group: RunGroup, prefix: str, names: Iterable[str]) -> list[Line]:
    """A line for each class and run on the validation split: the log's ``recall:shirt``."""
    curves = (r.curve(name, "val", f"{prefix}:{name}") for name in names for r in group.records)
    return [line for line in curves if line]


def class_figure(lines: Mapping[str, list[Line]], caption: str, colours: Mapping[str, str] | None = None) -> Markup:
    """A panel per group of runs, a colour per class; nothing if there are no lines."""
    panels = {group: own for group, own in lines.items() if own}
    if not panels:
        return Markup()
    names = dict.fromkeys(line[0] for own in panels.values() for line in own)
    tints = {name: colour(i) for i, name in enumerate(names)} | dict(colours or {})
    return parts.figure(plot_curves(panels, tints, "step", alike=True), caption)
