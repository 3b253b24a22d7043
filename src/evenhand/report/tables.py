"""Groups of runs as tables: every number keeps its name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from evenhand.report.records import NOT_RUN, RunGroup, RunRecord, by_count, group_runs
from evenhand.report.repeats import comparable, per_seed
from evenhand.report.table import UNDEFINED, Cell, Table
from evenhand.report.tested import compare
from evenhand.tasks.metric import Metric


def number_cell(values: Sequence[tuple[str, float]], digits: int = 1) -> Cell:
    """Mean of named values, with the sample standard deviation when there are at least two."""
    if not values:
        return Cell(NOT_RUN)
    numbers = [v for _, v in values]
    if not all(map(math.isfinite, numbers)):
        return Cell(UNDEFINED)
    spread = f"± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return Cell(f"{fmean(numbers):.{digits}f}", spread, ", ".join(f"{name}: {v:.{digits + 1}f}" for name, v in values))


def said(group: RunGroup, metric: Metric) -> str:
    """``61.7 ± 2.4 %``; empty if there is no such number."""
    cell = number_cell(group.values(metric), metric.digits)
    return "" if cell.missing else f"{cell} {metric.unit}".rstrip()


def headline(record: RunRecord) -> str:
    """``mean recall 61.7 %, tail recall 35.0 %``"""
    alone = RunGroup(record.name, (record,))
    return ", ".join(f"{m.name} {text}" for m in (record.task.headline, record.task.tail) if (text := said(alone, m)))


def selection(group: RunGroup) -> Cell:
    """How the checkpoint was chosen; choosing on the test split is said in words."""
    if group.oracle:
        return Cell("test split (oracle)", alarm=True, title=group.measure["select"])
    return Cell(group.measure.get("select", NOT_RUN))


def _mark_best(column: list[Cell], groups: Sequence[RunGroup], higher_is_better: bool) -> list[Cell]:
    """Mark the best mean, ties included; a group selected on the test split does not compete."""
    means = {
        i: float(cell.text)
        for i, (cell, group) in enumerate(zip(column, groups, strict=True))
        if not cell.missing and not group.oracle
    }
    measured = [g for g in groups if g.measured]
    if len(means) < 2 or not all(compare(measured[0], g) for g in measured):
        return column
    best = max(means.values()) if higher_is_better else min(means.values())
    return [replace(cell, best=means.get(i) == best) for i, cell in enumerate(column)]


def also_metrics(groups: Sequence[RunGroup]) -> list[Metric]:
    """What the checkpoints of other rules score: a column for each, by the metric it names, else by the first."""
    found = []
    for rule in dict.fromkeys(rule for g in groups for also in g.parts("also") for rule in also):
        numbers = {key for g in groups for also in g.parts("also") for key in also.get(rule, ())}
        kind, _, name = rule.partition(":")
        known = {m.key: m for m in groups[0].task.metrics if m.path == (m.key,) and m.key in numbers}
        if not known:
            continue
        first = next(iter(known.values()))
        metric = first if kind == "label-free" else known.get(name, first)
        by = "oracle" if kind == "oracle" else name if kind == "label-free" else rule
        found.append(replace(metric, path=("also", rule, metric.key), name=f"{metric.name} by {by}"))
    return found


def aims(groups: Sequence[RunGroup]) -> set[str]:
    """Keys of the numbers that a recipe trains for (``method.objective``) or selects by (``run.select``)."""
    found: set[str] = set()
    for group in groups:
        recipe, objective = group.records[0].recipe or {}, str(group.records[0].method.get("objective", ""))
        found |= {objective.replace("-", "_"), str(recipe.get("run", {}).get("select", "")).partition(":")[2]}
        found.update(group.task.aims.get(objective, ()))
    return found


def summary_of(groups: Sequence[RunGroup]) -> Table:
    """One row per group, which are of one task; a number that a recipe aims at is a column, too."""
    task, aimed = groups[0].task, aims(groups)
    known = [m for m in task.metrics if m.shown or m.key in aimed]
    shown = [m for m in known if any(g.values(m) for g in groups)] or [task.headline]
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

    The runs are of one task: see ``by_task``.
    """
    return summary_of(group_runs(records))


def runs_table(records: Iterable[RunRecord]) -> Table:
    """One row per run, seeds apart."""
    return summary_of([RunGroup(r.name, (r,)) for r in records])


def per_class_table(records: Iterable[RunRecord]) -> Table:
    """The task's numbers of each class, most frequent class first.

    The runs are of one task; those that have not the first one's classes are left out.
    """
    groups = [g for g in group_runs(records) if g.measured]
    if not groups:
        return Table(f"Each class: {NOT_RUN}", ("class", "group", "training samples"), ())
    task, (classes, counts, named) = groups[0].task, groups[0].classes
    groups = [g for g in groups if g.classes[0] == classes]
    member = {index: name for name, members in named.items() for index in members}
    found = [m for m in task.per_class if any(g.parts(m.path[0]) for g in groups)]
    pairs = [(group, metric) for group in groups for metric in found]
    rows = tuple(
        (Cell(classes[k]), Cell(member.get(k, "")), Cell(f"{counts[k]:,}"), *(_of_class(g, m, k) for g, m in pairs))
        for k in by_count(groups[0].classes)
    )
    columns = ("class", "group", "training samples", *(f"{g.name} {m.label}" for g, m in pairs))
    told = task.sections()
    caption = [f"{told.classes}, most training samples first", *told.remarks]
    caption += [told.doubt] if any(cell.text.endswith("*") for row in rows for cell in row[3:]) else []
    return Table("; ".join(caption), columns, rows, range(2, len(columns)), browsed=True)


def failures_table(lost: Sequence[RunRecord]) -> Table:
    """Runs that failed, with what their logs say."""
    rows = tuple((Cell(r.name), Cell(r.label), Cell(r.failure)) for r in lost)
    return Table("Not in the plots; their groups say how many were measured", ("run", "seed", "why"), rows)


def _of_class(group: RunGroup, metric: Metric, k: int) -> Cell:
    cell = number_cell(per_seed((r.label, r.of_class(metric, k)) for r in group.measured), metric.digits)
    doubtful = not cell.missing and any(r.doubtful(metric, k) for r in group.measured)
    return replace(cell, text=f"{cell.text}*") if doubtful else cell


def notes(groups: Sequence[RunGroup]) -> list[str]:
    """What the numbers depend on; the groups are of one task."""
    measured = [group for group in groups if group.measured]
    rules = sorted({g.measure["groups_rule"] for g in measured if "groups_rule" in g.measure})
    return groups[0].task.sections().notes(measured) + [f"Head, mid and tail: {'; '.join(rules)}."] * bool(rules)


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
