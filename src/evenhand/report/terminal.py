"""The report's tables for a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console

from evenhand.report.records import RunRecord, apart, by_task, group_runs
from evenhand.report.tables import notes, per_class_table, summary_of
from evenhand.report.verdict import advice, task_cautions

ACROSS = 7  # numbers that fit on a line
WIDE = 200  # columns where nobody's window ends them


def console() -> Console:
    """For tables: in a file or a pipe they are as wide as they are, unless COLUMNS says otherwise."""
    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=WIDE)


def print_tables(records: Sequence[RunRecord]) -> None:
    """Per class and in sum, one task after another, with what the scores depend on."""
    say = console()
    for task, runs in by_task(records).items():
        groups, lost = apart(group_runs(runs))
        table, each = summary_of(groups), task.sections().each_class
        if each is not None:
            say.print(each(groups).to_rich())
        elif len(groups) == 1 or len(task.per_class) == 1:  # else it is too wide: the page has it
            say.print(per_class_table(runs).to_rich())
        turn = ACROSS < len(table.numbers) > len(groups)
        say.print((table.turned() if turn else table).to_rich())
        failed = [f"{record.name} failed or did not end: {record.failure}." for record in lost]
        tips = [f"What to try next: {line}" for line in advice(groups)]
        for line in failed + notes(groups) + task_cautions(groups) + tips:
            say.print(line, markup=False, highlight=False)
