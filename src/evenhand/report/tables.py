"""Groups of runs as tables (Markdown, HTML, terminal): every number keeps its name."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from evenhand.report.metrics import (
    CLASS_DIVERSITY,
    CLASS_FID,
    CLASS_RECALL,
    CLASS_SHARE,
    DRAWN_METRICS,
    FID,
    MEAN_RECALL,
    METRICS,
    Metric,
)
from evenhand.report.records import NOT_RUN, RunGroup, RunRecord, class_order, comparable, group_runs, load_run

if TYPE_CHECKING:
    from rich.table import Table as RichTable

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

UNDEFINED = "undefined"


@dataclass(frozen=True)
class Cell:
    text: str
    spread: str = ""
    title: str = ""
    best: bool = False
    alarm: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.spread}" if self.spread else self.text


@dataclass(frozen=True)
class Table:
    """Rows under named columns; the columns in ``numbers`` are aligned right."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: range = range(0)

    def to_markdown(self) -> str:
        """A pipe table, best cells in bold."""

        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(re.sub(r"\s+", " ", c).replace("|", "\\|") for c in cells) + " |"

        rules = ("--:" if i in self.numbers else ":--" for i in range(len(self.columns)))
        rule = "|" + "|".join(rules) + "|"
        body = [line(f"**{cell}**" if cell.best else str(cell) for cell in row) for row in self.rows]
        return "\n".join([line(self.columns), rule, *body]) + "\n"

    def to_html(self, swatches: dict[str, str] | None = None) -> str:
        """An accessible table; ``swatches`` gives rows of these names a coloured mark, as in the plots."""
        # A column with spreads gives every number room for one, so that decimals stay in line.
        wide = {i for row in self.rows for i, value in enumerate(row) if value.spread}

        def cell(index: int, value: Cell) -> str:
            text = html.escape(value.text)
            if index == 0:
                colour = (swatches or {}).get(value.text)
                mark = f'<i class="swatch" style="background:{colour}"></i>' if colour else ""
                return f'<th scope="row" title="{text}">{mark}{text}</th>'
            missing = value.text in (NOT_RUN, UNDEFINED)
            marks = (("num", index in self.numbers), ("best", value.best), ("none", missing))
            classes = " ".join(name for name, on in marks if on)
            title = f' title="{html.escape(value.title)}"' if value.spread or value.alarm else ""
            text = f'<b class="badge">{text}</b>' if value.alarm else text
            if index in wide and not missing:
                text += f' <span class="sd">{html.escape(value.spread)}</span>'
            return f'<td class="{classes}"{title}>{text}</td>'

        head = "".join(
            f'<th scope="col"{" class=num" if i in self.numbers else ""}>{html.escape(c)}</th>'
            for i, c in enumerate(self.columns)
        )
        body = "\n".join("<tr>" + "".join(cell(i, v) for i, v in enumerate(row)) + "</tr>" for row in self.rows)
        return (
            f'<div class="scroll" tabindex="0"><table><caption>{html.escape(self.caption)}</caption>'
            f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
        )

    def to_rich(self) -> RichTable:
        """The same table for the terminal; where all rows say the same in words, the caption says it once."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        words = [i for i in range(1, len(self.columns)) if i not in self.numbers]
        same = [i for i in words if len({str(row[i]) for row in self.rows}) == 1]
        said = [self.caption, *(f"{self.columns[i]}: {self.rows[0][i]}" for i in same)]
        out = RichTable(caption=Text("; ".join(said)), box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        kept = [i for i in range(len(self.columns)) if i not in same]
        for i in kept:
            justify: Literal["left", "right"] = "right" if i in self.numbers else "left"
            longest = max((len(row[0].text) for row in self.rows), default=0) if i == 0 else 0
            out.add_column(Text(self.columns[i]), justify=justify, overflow="fold", min_width=min(longest, 24))
        for row in self.rows:
            out.add_row(*(Text(str(row[i]), style="bold" if row[i].best else "") for i in kept))
        return out


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


def _summary(groups: Sequence[RunGroup]) -> Table:
    known, least = (DRAWN_METRICS, FID) if any(g.draws for g in groups) else (METRICS, MEAN_RECALL)
    shown = [m for m in known if any(g.values(m) for g in groups)] or [least]
    columns = [[Cell(g.name) for g in groups]]
    for metric in shown:
        cells = [number_cell(group.values(metric), metric.digits) for group in groups]
        columns.append(_mark_best(cells, groups, metric.higher_is_better))
    columns += [[Cell(g.size) for g in groups], [selection(g) for g in groups]]
    repeated = any(len(g.records) > 1 for g in groups)
    caption = "Mean ± sample standard deviation over seeds" if repeated else "One run each"
    if any(cell.best for column in columns for cell in column):
        caption += "; best in bold"
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
    metrics = [CLASS_FID, CLASS_SHARE, CLASS_DIVERSITY] if draws else [CLASS_RECALL]
    rows = []
    for k in class_order(counts, named):
        cells = [Cell(str(first["classes"][k])), Cell(member.get(k, "")), Cell(f"{counts[k]:,}")]
        cells += [_of_class(group, metric, k) for group in groups for metric in metrics]
        rows.append(tuple(cells))
    columns = ("class", "group", "training samples", *(f"{g.name} {m.label}" for g in groups for m in metrics))
    caption = "Recall per class, most training samples first"
    if draws:
        caption = "How each class is drawn, most training samples first; diversity: spread of drawn over real features"
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
