"""Self-training watched: multipliers, recall and coverage of each class with its floor, pseudo-labels kept."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from evenhand.report import figures, plots
from evenhand.report.records import RunGroup, RunRecord, class_order
from evenhand.report.svg import INK, colour

ENDS = 5  # classes drawn from either end of the tail
FLOOR = "floor"
TRACES = {
    "multiplier": "Multipliers, of classes or of head and tail: where validation is unhappy, the gain grows.",
    "recall": "Recall on validation.",
    "coverage": "Coverage on validation: the share of all samples predicted as the class.",
    "kept": "Share of the unlabelled samples with this pseudo-label that were learnt from, over about 100 steps.",
}


def sections(groups: Sequence[RunGroup]) -> dict[str, str]:
    """A section if any run is one of self-training, else nothing."""
    watched = [g for g in groups if any(_keys(r, "kept") or _keys(r, "multiplier") for r in g.records)]
    if not watched:
        return {}
    share = _overall(watched)
    return {"Self-training": share + "".join(_trace(watched, prefix, said) for prefix, said in TRACES.items())}


def _overall(groups: Sequence[RunGroup]) -> str:
    lines = [
        (g.name, [row["step"] for row in rows], [row["kept"] for row in rows])
        for g in groups for r in g.records
        if (rows := [row for row in r.log if row.get("kind") == "train" and figures.finite(row.get("kept"))])
    ]  # fmt: skip
    if not lines:
        return ""
    tints = {name: colour(i) for i, name in enumerate(dict.fromkeys(line[0] for line in lines))}
    caption = "Share of unlabelled samples learnt from. One line per run; runs of one colour differ in their seed."
    return figures.figure(plots.plot_curves({"share kept": lines}, tints, "step"), caption)


def _trace(groups: Sequence[RunGroup], prefix: str, said: str) -> str:
    """A panel per group of runs, a colour per class: the largest and the rarest."""
    panels: dict[str, list[tuple[str, list[float], list[float]]]] = {}
    for group in groups:
        for record in group.records:
            lines = [_line(record, prefix, name) for name in _chosen(group, _keys(record, prefix))]
            if lines and prefix == "coverage" and (floor := _floor(group)):
                steps = lines[0][1]
                lines.append((FLOOR, [steps[0], steps[-1]], [floor, floor]))
            panels.setdefault(group.name, []).extend(lines)
    panels = {name: lines for name, lines in panels.items() if lines}
    if not panels:
        return ""
    names = dict.fromkeys(line[0] for lines in panels.values() for line in lines if line[0] != FLOOR)
    tints = {name: colour(i) for i, name in enumerate(names)} | {FLOOR: INK}
    few = any(len(_keys(r, prefix)) > 2 * ENDS for g in groups for r in g.records)
    more = f" The {ENDS} largest and the {ENDS} rarest classes." if few else ""
    floors = any(name == FLOOR for lines in panels.values() for name, _, _ in lines)
    said += (" Dark: the floor asked for." if floors else "") + more
    drawing = plots.plot_curves(panels, tints, "step", alike=True)
    return figures.figure(drawing, html.escape(said))


def _keys(record: RunRecord, prefix: str) -> list[str]:
    """What has a trace, in the order it was logged."""
    rows = (row for row in record.log if row.get("kind") == "val")
    return list(dict.fromkeys(key.partition(":")[2] for row in rows for key in row if key.startswith(f"{prefix}:")))


def _chosen(group: RunGroup, names: Iterable[str]) -> list[str]:
    classes, counts = group.measure.get("classes") or [], group.measure.get("train_counts") or []
    ranked = [classes[k] for k in class_order(counts, group.measure.get("groups") or {})]
    listed = [name for name in ranked if name in set(names)] or list(names)
    return listed if len(listed) <= 2 * ENDS else listed[:ENDS] + listed[-ENDS:]


def _line(record: RunRecord, prefix: str, name: str) -> tuple[str, list[float], list[float]]:
    key = f"{prefix}:{name}"
    rows = [row for row in record.log if row.get("kind") == "val" and figures.finite(row.get(key))]
    return name, [row["step"] for row in rows], [row[key] for row in rows]


def _floor(group: RunGroup) -> float | None:
    """The coverage a recipe asks of every class, if it does."""
    method = (group.records[0].recipe or {}).get("method") or {}
    if "coverage" not in str(method.get("objective", "")) or not group.measure.get("classes"):
        return None
    return float(method.get("floor") or 0.95 / len(group.measure["classes"]))
