"""The section on experts: the heads of a distilled transformer alone and together, and how far apart they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from pydantic import BaseModel

from evenhand.report.charts.plots import plot_curves
from evenhand.report.curves import REPEATED, run_lines
from evenhand.report.markup import parts
from evenhand.report.records import RunGroup
from evenhand.report.table import Cell, Table
from evenhand.report.tables import number_cell
from evenhand.tasks.classify import CLASSIFY, EXPERTS

NUMBERS = ("mean_recall", "head", "mid", "tail")
CURVES = {"cosine": "cosine of CLS and DIST", "teacher_accuracy": "teacher right on training views"}


class Expert(BaseModel):
    """What measure.json has of one head; a group without classes in the split has no number."""

    mean_recall: float
    head: float | None = None
    mid: float | None = None
    tail: float | None = None


def section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """A row for each head and their average; nothing unless a run has two heads."""
    groups = [group for group in groups if group.parts("experts")]
    if not groups:
        return Markup()
    rows = tuple(row for group in groups for row in _rows(group))
    labels = [CLASSIFY.metric(key).label for key in NUMBERS]
    caption = "CLS learns the labels, DIST the teacher; the average of their logits is what the run predicts"
    table = Table(caption, ("run", "head", *labels), rows, range(2, 2 + len(NUMBERS)))
    panels = {title: lines for key, title in CURVES.items() if (lines := run_lines(groups, "train", key, "epoch"))}
    curves = parts.figure(plot_curves(panels, colours, "epoch"), REPEATED) if panels else Markup()
    more = parts.note("Attention, ranks of tokens and the teacher's entropy: evenhand attention RUN.")
    return parts.table(table) + curves + more


def _rows(group: RunGroup) -> list[tuple[Cell, ...]]:
    found = []
    for name, prefix in (*((expert.upper(), f"{expert}_") for expert in EXPERTS), ("average", "")):
        metrics = [CLASSIFY.metric(f"{prefix}{key}") for key in NUMBERS]
        cells = (number_cell(group.values(metric), metric.digits) for metric in metrics)
        found.append((Cell(group.name), Cell(name), *cells))
    return found
