"""Groups of runs as tables: every number keeps its name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from evenhand.report.metrics import (
    CLASS_DIVERSITY,
    CLASS_FID,
    CLASS_PATTERNS,
    CLASS_RECALL,
    CLASS_SHARE,
    DRAWN_METRICS,
    FID,
    MEAN_RECALL,
    METRICS,
    Metric,
)
from evenhand.report.records import NOT_RUN, RunGroup, RunRecord, class_order, comparable, group_runs, load_run
from evenhand.report.table import UNDEFINED, Cell, Table

__all__ = [
    "Cell",
    "RunGroup",
    "RunRecord",
    "Table",
    "by_kind",
    "difference_table",
    "group_runs",
    "load_run",
    "per_class_table",
    "runs_table",
    "summary_table",
]


def by_kind(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Classifiers' runs and generators' runs, whose numbers have nothing in common; only the kinds there are."""
    kinds: dict[bool, list[RunRecord]] = {False: [], True: []}
    for record in records:
        kinds[record.draws].append(record)
    return [kind for kind in kinds.values() if kind]


def number_cell(values: Sequence[tuple[str, float]], digits: int = 1) -> Cell:
    """Mean of named values, with the sample standard deviation when there are at least two."""
    if not values:
        return Cell(NOT_RUN)
    numbers = [v for _, v in values]
    if any(math.isnan(v) for v in numbers):
        return Cell(UNDEFINED)
    spread = f"± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return Cell(f"{fmean(numbers):.{digits}f}", spread, ", ".join(f"{name}: {v:.{digits + 1}f}" for name, v in values))


def selection(group: RunGroup) -> Cell:
    """How the checkpoint was chosen; choosing on the test split is said in words."""
    if group.oracle:
        return Cell("test split (oracle)", alarm=True, title=str(group.measure["select"]))
    return Cell(str(group.measure.get("select", NOT_RUN)))


def _mark_best(column: list[Cell], groups: Sequence[RunGroup], higher_is_better: bool) -> list[Cell]:
    """Mark the best mean, ties included; a group selected on the test split does not compete."""
    means = {
        i: float(cell.text)
        for i, (cell, group) in enumerate(zip(column, groups, strict=True))
        if cell.text not in (NOT_RUN, UNDEFINED) and not group.oracle
    }
    if len(means) < 2 or len({g.task for g in groups if g.measured}) > 1:
        return column
    best = max(means.values()) if higher_is_better else min(means.values())
    return [replace(cell, best=means.get(i) == best) for i, cell in enumerate(column)]


def also_metrics(groups: Sequence[RunGroup]) -> list[Metric]:
    """What the checkpoints of other rules score: a column for each rule, by the metric it names, else accuracy."""
    known = {metric.path[0]: metric for metric in METRICS if len(metric.path) == 1}
    rules = dict.fromkeys(rule for g in groups for also in g.parts("also") for rule in also)
    found = []
    for rule in rules:
        kind, _, name = rule.partition(":")
        metric = known.get(name, known["accuracy"]) if kind != "label-free" else known["accuracy"]
        by = "oracle" if kind == "oracle" else name if kind == "label-free" else rule
        found.append(replace(metric, path=("also", rule, metric.path[0]), name=f"{metric.name} by {by}"))
    return found


def _summary(groups: Sequence[RunGroup]) -> Table:
    known, least = (DRAWN_METRICS, FID) if any(g.draws for g in groups) else (METRICS, MEAN_RECALL)
    shown = [m for m in known if any(g.values(m) for g in groups)] or [least]
    columns = [[Cell(g.name) for g in groups]]
    for metric in shown:
        cells = [number_cell(group.values(metric), metric.digits) for group in groups]
        columns.append(_mark_best(cells, groups, metric.higher_is_better))
    also = also_metrics(groups)  # which do not compete
    columns += [[number_cell(group.values(m), m.digits) for group in groups] for m in also]
    shown += also
    columns += [[Cell(g.size) for g in groups], [selection(g) for g in groups]]
    repeated = any(len(g.records) > 1 for g in groups)
    caption = "Mean ± sample standard deviation over seeds" if repeated else "One run each"
    if any(cell.best for column in columns for cell in column):
        caption += "; best in bold"
    if any(metric.path[1].startswith("oracle") for metric in also):
        caption += "; oracle: checkpoint chosen with target labels, shown for comparison"
    names = ("run", *(m.label for m in shown), "repeats", "selected by")
    return Table(caption, names, tuple(zip(*columns, strict=True)), range(1, 1 + len(shown)))


def summary_table(records: Iterable[RunRecord]) -> Table:
    """One row per group of seeds: mean ± sample standard deviation; the best of each column is marked.

    The runs are of one kind: see ``by_kind``.
    """
    return _summary(group_runs(records))


def runs_table(records: Iterable[RunRecord]) -> Table:
    """One row per run, seeds apart."""
    return _summary([RunGroup(r.name, (r,)) for r in records])


def per_class_table(records: Iterable[RunRecord]) -> Table:
    """Recall of each class, or how a generator draws it, most frequent class first.

    The runs are of one kind; those that have not the first one's classes are left out.
    """
    groups = [g for g in group_runs(records) if g.measured]
    first = groups[0].measure if groups else {}
    groups = [g for g in groups if g.measure.get("classes") == first.get("classes")]
    counts, named = first.get("train_counts", []), first.get("groups", {})
    member = {index: name for name, members in named.items() for index in members}
    draws = any(g.draws for g in groups)
    metrics = [CLASS_FID, CLASS_SHARE, CLASS_DIVERSITY, CLASS_PATTERNS] if draws else [CLASS_RECALL]
    rows = []
    for k in class_order(counts, named):
        cells = [Cell(str(first["classes"][k])), Cell(member.get(k, "")), Cell(f"{counts[k]:,}")]
        cells += [_of_class(group, metric, k) for group in groups for metric in metrics]
        rows.append(tuple(cells))
    columns = ("class", "group", "training samples", *(f"{g.name} {m.label}" for g in groups for m in metrics))
    caption = "Recall per class, most training samples first"
    if draws:
        caption = (
            "How each class is drawn, most training samples first; diversity: spread of drawn over real features; "
            "patterns: effective number of different images, drawn over real"
        )
        if any("*" in cell.text for row in rows for cell in row[3:]):
            caption += "; * too few images of the class for a FID to be trusted"
    return Table(caption, columns, tuple(rows), range(2, len(columns)))


def _of_class(group: RunGroup, metric: Metric, k: int) -> Cell:
    values = [(r.label, r.of_class(metric, k)) for r in group.measured]
    cell = number_cell([(label, v) for label, v in values if v is not None], metric.digits)
    few = metric is CLASS_FID and any(scores[k]["flag"] for scores in group.parts("class_fid"))
    return replace(cell, text=f"{cell.text}*") if few and cell.text not in (NOT_RUN, UNDEFINED) else cell


def _flat(recipe: Any, prefix: str = "") -> dict[str, str]:
    if not isinstance(recipe, dict):
        return {prefix: recipe if isinstance(recipe, str) else json.dumps(recipe, default=str)}
    return {k: v for key, sub in recipe.items() for k, v in _flat(sub, f"{prefix}.{key}".lstrip(".")).items()}


def difference_table(records: Iterable[RunRecord]) -> Table:
    """The recipe settings in which the groups differ, and nothing else."""
    groups = group_runs(records)
    flat = [_flat(comparable(g.records[0].recipe or {})) for g in groups]
    keys = [k for k in dict.fromkeys(key for f in flat for key in f) if len({f.get(k) for f in flat}) > 1]
    rows = tuple((Cell(key), *(Cell(f.get(key, "–")) for f in flat)) for key in keys)
    names = ("setting", *(g.name for g in groups))
    return Table("Settings in which the recipes differ", names, rows)
