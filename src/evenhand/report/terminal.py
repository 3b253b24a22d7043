"""The report's tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from evenhand.report.generators import basis, judged_apart
from evenhand.report.records import RunRecord, group_runs
from evenhand.report.tables import by_kind, per_class_table, summary_table


def print_tables(records: Sequence[RunRecord]) -> None:
    """Per class and in sum, classifiers and generators apart, with what the scores depend on."""
    say = Console()
    for kind in by_kind(records):
        groups = group_runs(kind)
        draws, table = kind[0].draws, summary_table(kind)
        if len(groups) == 1 or not draws:  # several generators' classes are too wide: the page has them
            say.print(per_class_table(kind).to_rich())
        narrow = len(groups) <= 3 and any(" by " in column for column in table.columns[1:-1])
        say.print((table.turned() if draws or narrow else table).to_rich())
        generators = [g for g in groups if g.draws]
        for line in basis(generators) + judged_apart(generators):
            say.print(line, markup=False, highlight=False)
