"""The section on adaptation: how the domains come together, and what goes wrong."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.measure.shift import adaptation_troubles
from evenhand.report import plots
from evenhand.report.figures import NOTHING, details, figure, finite
from evenhand.report.records import RunGroup
from evenhand.report.svg import WIDTH, colour, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = {
    "domain_accuracy": "domain accuracy (chance 0.5)",
    "a_distance": "A-distance (0 mixed, 2 apart)",
    "target_entropy": "target entropy (nats)",
    "largest_share": "largest class share",
    "infomax": "infomax",
    "density": "neighbourhood density",
}
CLASSES_COLOURED = 10


def adapts(group: RunGroup) -> bool:
    return "adaptation" in group.measure or any("target" in r.streams for r in group.records)


def said(group: RunGroup) -> list[str]:
    """What is wrong with the checkpoints that were measured, each kind once."""
    told: dict[str, str] = {}
    for numbers in group.parts("adaptation"):
        for kind, trouble in adaptation_troubles({k: v for k, v in numbers.items() if finite(v)}).items():
            told.setdefault(kind, f"{group.name}: {trouble}.")
    return list(told.values())


def adaptation_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> str:
    """Curves of every run, then a picture of both domains for each group."""
    panels: dict[str, list[tuple[str, list[float], list[float]]]] = {}
    for key, title in CURVES.items():
        for group, record in ((g, r) for g in groups for r in g.records):
            rows = [row for row in record.log if row.get("kind") == "target" and finite(row.get(key))]
            if rows:
                panels.setdefault(title, []).append((group.name, [r["step"] for r in rows], [r[key] for r in rows]))
    text = NOTHING
    if panels:
        caption = "On unlabelled target images and held-out source images; one line per run."
        text = figure(plots.plot_curves(panels, colours, "step"), caption)
    for i, group in enumerate(groups):
        text += details(group.name, _picture(group) + _curvature(group), opened=i < 2)
    return text


def _picture(group: RunGroup) -> str:
    parts = [part for part in group.parts("adaptation") if "source_points" in part]
    if not parts:
        return '<p class="none">Features of the two domains: not run.</p>'
    caption = f"Features of {html.escape(group.measured[0].name)} along their two directions of largest variance."
    return figure(plot_domains(parts[0], group.measure.get("classes", [])), caption)


def plot_domains(points: Mapping[str, Any], classes: Sequence[str]) -> str:
    """Two panels of the same features: by domain, and by class (the first ten in colour) where labels are known."""

    def paint(canvas: Figure) -> None:
        left, right = canvas.subplots(1, 2, sharex=True, sharey=True)
        for i, (name, mark) in enumerate((("source", "o"), ("target", "^"))):
            part = points[f"{name}_points"]
            xy, labels = np.array(part["xy"], dtype=float), part["labels"]
            left.scatter(*xy.T, s=9, marker=mark, color=colour(i), alpha=0.55, linewidths=0, label=name)
            shades = ["#888888"] * len(xy)
            if labels is not None:
                shades = [colour(k) if k < CLASSES_COLOURED else "#888888" for k in labels]
            right.scatter(*xy.T, s=9, marker=mark, c=shades, alpha=0.55, linewidths=0)
        left.legend(loc="upper right", handletextpad=0.2)
        some = "" if len(classes) <= CLASSES_COLOURED else f", the first {CLASSES_COLOURED} in colour"
        left.set_title("by domain")
        right.set_title(f"by class{some}")
        for axes in (left, right):
            axes.set(xticks=[], yticks=[])

    return draw(WIDTH, 4.2, f"Features of source and target in two dimensions, {len(classes)} classes", paint)


def _curvature(group: RunGroup) -> str:
    """What ``evenhand hessian --whole`` found, if it was run."""
    lines = []
    for record in group.records:
        file = record.folder / "hessian.json"
        rows = json.loads(file.read_text()) if file.is_file() else []
        lines += [
            f"{record.name} ({row['checkpoint']}): λ max {row['maximum']:.3g}, trace {row['trace']:.3g}"
            for row in rows
            if row["class"] == "all classes"
        ]
    told = "; ".join(lines) or "not run (evenhand hessian RUN --whole)"
    return f'<p class="note">Curvature of the task loss: {html.escape(told)}.</p>'
