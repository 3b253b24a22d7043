"""Every class of a classifier with what its numbers rest on: how many samples, and the interval that allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenhand.measure.intervals import wilson
from evenhand.report.reading import AGAIN, read_square
from evenhand.report.records import RunGroup, RunRecord, by_count
from evenhand.report.table import Cell, Table
from evenhand.report.tables import number_cell

FEW = 10  # samples below which a share says little
LISTED = 1000  # classes in a table
INTERVAL = "95 % interval"
Values = tuple[tuple[str, float], ...]  # (which run, per cent)


@dataclass(frozen=True)
class ClassScore:
    """One class over the seeds of a group; ``samples`` of the split and ``taken`` for the class are the fewest."""

    samples: int
    taken: int
    recall: Values
    precision: Values
    f1: Values

    def span(self, of: str) -> tuple[float, float, float] | None:
        """Wilson's interval around the mean, in per cent: low, mean, high. Seeds share their test: n is that of one."""
        values, count = (self.recall, self.samples) if of == "recall" else (self.precision, self.taken)
        if not values or not count:
            return None
        mean = sum(v for _, v in values) / len(values)
        low, high = wilson(min(1.0, mean / 100), count)
        return 100 * low, mean, 100 * high


def counts_of(record: RunRecord) -> np.ndarray | None:
    """The confusion matrix (K, K), rows the truth, of the split that the record tells of; None without its file."""
    measure = record.measure or {}
    own = record.folder / f"confusion-{measure.get('split')}.npz"  # of a split that is not the final one
    path = own if own.exists() else record.folder / "confusion.npz"
    return read_square(path, "confusion", len(measure.get("classes", ())), AGAIN)


def class_scores(group: RunGroup) -> list[ClassScore]:
    """By class index; empty if no run has its matrix."""
    found = []
    for record in group.measured:
        if (counts := counts_of(record)) is not None:
            found.append((record.label, counts.diagonal().tolist(), counts.sum(1).tolist(), counts.sum(0).tolist()))
    if not found:
        return []
    return [_score([(name, h[k], n[k], t[k]) for name, h, n, t in found]) for k in range(len(group.classes[0]))]


def _score(numbers: Sequence[tuple[str, int, int, int]]) -> ClassScore:
    """Of (which run, hits, samples, taken for it)."""
    return ClassScore(
        min(n for *_, n, _ in numbers),
        min((taken for *_, taken in numbers if taken), default=0),
        tuple((label, 100 * hits / n) for label, hits, n, _ in numbers if n),
        tuple((label, 100 * hits / taken) for label, hits, _, taken in numbers if taken),
        tuple((label, 200 * hits / (n + taken)) for label, hits, n, taken in numbers if n),
    )


def score_table(group: RunGroup, *, wide: bool = True, most: int = LISTED) -> Table:
    """Recall, precision and F1 of each class, most training samples first; empty rows if nothing was counted.

    Of more than ``most`` classes, those of lowest recall.
    """
    classes, trained, named = group.classes
    member = {index: name for name, members in named.items() for index in members}
    scores, split = class_scores(group), group.measure.get("split", "test")
    columns = ["class", "group", "training", split, "recall (%)", INTERVAL, "taken for it", "precision (%)", INTERVAL,
               "F1 (%)"]  # fmt: skip
    rows, order = [], by_count(group.classes) if scores else []
    lowest = sorted(order, key=lambda k: (scores[k].span("recall") or (0, 101))[1])[:most]
    for k in order if len(order) <= most else lowest:
        s = scores[k]
        row = [
            Cell(classes[k]), Cell(member.get(k, "")), Cell(f"{trained[k]:,}"), _count(s.samples),
            _share(s.recall, "no sample"), _interval(s, "recall"), _count(s.taken),
            _share(s.precision, "never said"), _interval(s, "precision"), _share(s.f1, "no sample"),
        ]  # fmt: skip
        rows.append(tuple(row if wide else row[:6] + row[7:8] + row[9:]))
    some = f"the {most:,} of {len(order):,} classes with the lowest recall"
    which = "most training samples first" if len(order) <= most else some
    caption = (
        f"{group.name}: {which}; n is the {split} split's, intervals are Wilson's"
        f"{', of the mean over seeds for one seed’s n' if len(group.measured) > 1 else ''}"
    )
    columns = columns if wide else columns[:6] + columns[7:8] + columns[9:]
    columns[3] = f"n ({split})"
    return Table(caption, tuple(columns), tuple(rows), range(2, len(columns)), browsed=True)


def _count(n: int) -> Cell:
    few = f"only {n}: its share may be far off" if n < FEW else ""
    return Cell(f"{n:,}", title=few, doubtful=n < FEW)


def _share(values: Values, otherwise: str) -> Cell:
    return number_cell(values) if values else Cell("–", title=otherwise)


def _interval(score: ClassScore, of: str) -> Cell:
    span = score.span(of)
    if span is None:
        return Cell("–")
    count = score.samples if of == "recall" else score.taken
    return Cell(f"{span[0]:.0f}–{span[2]:.0f}", span=span, doubtful=count < FEW)


def with_counts(table: Table, groups: Sequence[RunGroup]) -> Table:
    """The table of several groups' recalls with the split's n beside the training samples."""
    scores = next((found for g in groups if (found := class_scores(g))), [])
    if not scores:
        return table
    order = by_count(groups[0].classes)
    rows = tuple((*row[:3], _count(scores[k].samples), *row[3:]) for k, row in zip(order, table.rows, strict=True))
    split = groups[0].measure.get("split", "test")
    columns = (*table.columns[:3], f"n ({split})", *table.columns[3:])
    return replace(table, columns=columns, rows=rows, numbers=range(2, len(columns)))
