"""Self-training watched: multipliers, recall and coverage of each class with its floor, pseudo-labels kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from evenhand.report.charts.plots import plot_curves
from evenhand.report.charts.svg import INK
from evenhand.report.curves import REPEATED, class_figure, class_lines, run_lines
from evenhand.report.markup import joined, parts
from evenhand.report.records import Line, RunGroup, RunRecord, by_count

ENDS = 5  # classes drawn from either end of the tail
FLOOR = "floor"
WATCHED = ("kept", "multiplier", "coverage_multiplier")  # what makes a run one of these
TRACES = {
    "multiplier": "Multipliers, of classes or of head and tail: where validation is unhappy, the gain grows.",
    "coverage_multiplier": "Multipliers of coverage floors: 0 where the floor is met.",
    "recall": "Recall on validation.",
    "coverage": "Coverage on validation: the share of all samples predicted as the class.",
    "kept": "Share of the unlabelled samples with this pseudo-label that were learnt from, over about 100 steps.",
}


def section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """Nothing unless a run is one of self-training."""
    watched = [g for g in groups if any(_traced(r, key) for r in g.records for key in WATCHED)]
    lines = run_lines(watched, "train", "kept")
    caption = f"Share of unlabelled samples learnt from. {REPEATED}"
    share = parts.figure(plot_curves({"share kept": lines}, colours, "step"), caption) if lines else Markup()
    return share + joined(_trace(watched, prefix, said) for prefix, said in TRACES.items())


def _trace(groups: Sequence[RunGroup], prefix: str, said: str) -> Markup:
    """The largest and the rarest classes, and the floor below their coverage."""
    panels: dict[str, list[Line]] = {}
    floors = few = False
    for group in groups:
        names = list(dict.fromkeys(name for r in group.records for name in _traced(r, prefix)))
        lines = class_lines(group, prefix, _chosen(group, names))
        if lines and prefix == "coverage" and (floor := _floor(group)):
            steps = lines[0][1]
            lines.append((FLOOR, [steps[0], steps[-1]], [floor, floor]))
            floors = True
        panels[group.name], few = lines, few or len(names) > 2 * ENDS
    said += " Dark: the floor asked for." * floors
    said += f" The {ENDS} largest and the {ENDS} rarest classes." * few
    return class_figure(panels, said, {FLOOR: INK})


def _traced(record: RunRecord, prefix: str) -> list[str]:
    """What has a trace, in the order it was logged."""
    rows = (row for row in record.log if row["kind"] == "val")
    return list(dict.fromkeys(key.partition(":")[2] for row in rows for key in row if key.startswith(f"{prefix}:")))


def _chosen(group: RunGroup, names: list[str]) -> list[str]:
    ranked = [group.classes[0][k] for k in by_count(group.classes)]
    listed = [name for name in ranked if name in set(names)] or names
    return listed if len(listed) <= 2 * ENDS else listed[:ENDS] + listed[-ENDS:]


def _floor(group: RunGroup) -> float | None:
    """The coverage a recipe asks of every class, if it does."""
    method, classes = group.records[0].method, group.classes[0]
    asked = f"{method.get('objective', '')} {method.get('floors', '')}"
    if "coverage" not in asked or not classes:
        return None
    return float(method.get("floor") or 0.95 / len(classes))
