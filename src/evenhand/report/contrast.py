"""Rows of an experiment against one of them, seed by seed: means, standard errors, and what they do and do not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from evenhand.report.table import Cell, Table
from evenhand.tasks.metric import Metric

BySeed = Mapping[int, float]
Values = Mapping[str, BySeed]  # of one row, by the metric's key
ENOUGH = 2  # standard errors that a difference must exceed to be one


class Estimate(NamedTuple):
    """A mean over seeds with its standard error, which one seed does not have."""

    mean: float
    error: float | None

    @property
    def clear(self) -> bool:
        return self.error is not None and abs(self.mean) > ENOUGH * self.error

    def cell(self, digits: int, *, signed: bool = False) -> Cell:
        spread = "" if self.error is None else f"± {self.error:.{digits}f}"
        text = f"{self.mean:+.{digits}f}" if signed else f"{self.mean:.{digits}f}"
        return Cell(text, spread, alarm=signed and self.clear and self.mean < 0)

    def __str__(self) -> str:
        return str(self.cell(1, signed=True))


def estimate(values: Sequence[float]) -> Estimate:
    return Estimate(fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None)


def difference(of: BySeed, against: BySeed) -> Estimate:
    """Paired: a seed's luck that both rows share falls out."""
    return estimate([of[seed] - against[seed] for seed in sorted(of)])


def contrasts(rows: Mapping[str, Values], metrics: Sequence[Metric], against: str) -> tuple[Table, Table]:
    """The rows, and each row's difference from the one they stand ``against``."""
    columns, numbers = tuple(m.label for m in metrics), range(1, len(metrics) + 1)
    plain = tuple(
        (Cell(name), *(estimate([*row[m.key].values()]).cell(m.digits) for m in metrics)) for name, row in rows.items()
    )
    apart = tuple(
        (Cell(name), *(difference(row[m.key], rows[against][m.key]).cell(m.digits, signed=True) for m in metrics))
        for name, row in rows.items()
        if name != against
    )
    count = len(rows[against][metrics[0].key])
    over = f"mean ± standard error over {count} seeds" if count > 1 else "one seed"
    return (
        Table(f"Trained on: {over}", ("trained on", *columns), plain, numbers),
        Table(f"Less '{against}', points, seed by seed: {over}", (f"less '{against}'", *columns), apart, numbers),
    )


def verb(found: Estimate, seeds: int) -> str:
    """What a difference says of the thing added."""
    if found.error is None:
        return "is not judged by one seed"
    if found.clear:
        return "helps" if found.mean > 0 else "hurts"
    return f"makes no difference that {seeds} seeds can show"
