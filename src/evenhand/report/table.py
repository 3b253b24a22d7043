"""A table of cells, for Markdown and the terminal; ``markup.parts.table`` makes HTML of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evenhand.report.records import NOT_RUN

if TYPE_CHECKING:
    from rich.table import Table as RichTable

UNDEFINED = "undefined"


@dataclass(frozen=True)
class Cell:
    text: str
    spread: str = ""
    title: str = ""
    best: bool = False
    alarm: bool = False
    link: str = ""  # the id of what the page opens
    span: tuple[float, float, float] | None = None  # from, at, to, in per cent: drawn by the page
    doubtful: bool = False

    @property
    def missing(self) -> bool:
        return self.text in (NOT_RUN, UNDEFINED)

    def __str__(self) -> str:
        return f"{self.text} {self.spread}" if self.spread else self.text


@dataclass(frozen=True)
class Table:
    """Rows under named columns; the columns in ``numbers`` are aligned right.

    The page lets its reader sort and filter the rows of a ``browsed`` table.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: range = range(0)
    browsed: bool = False

    def turned(self) -> Table:
        """Columns as rows: for few rows of many numbers."""
        cells = zip(*self.rows, strict=True)
        names = (self.columns[0], *(str(cell) for cell in next(cells)))
        rows = tuple((Cell(column), *row) for column, row in zip(self.columns[1:], cells, strict=True))
        return Table(self.caption, names, rows, range(1, len(names)))

    def to_markdown(self) -> str:
        """A pipe table, best cells in bold."""

        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(re.sub(r"\s+", " ", c).replace("|", "\\|") for c in cells) + " |"

        rules = ("--:" if i in self.numbers else ":--" for i in range(len(self.columns)))
        rule = "|" + "|".join(rules) + "|"
        body = [line(f"**{cell}**" if cell.best else str(cell) for cell in row) for row in self.rows]
        return "\n".join([line(self.columns), rule, *body]) + "\n"

    @property
    def spread(self) -> set[int]:
        """Columns in which a number has a spread."""
        return {i for row in self.rows for i, cell in enumerate(row) if cell.spread}

    def to_rich(self) -> RichTable:
        """The same table for the terminal; where all rows say the same in words, the caption says it once."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        words = [i for i in range(1, len(self.columns)) if i not in self.numbers]
        same = [i for i in words if len({str(row[i]) for row in self.rows}) == 1]
        said = [self.caption, *(f"{self.columns[i]}: {self.rows[0][i]}" for i in same)]
        out = RichTable(caption=Text("; ".join(said)), box=SIMPLE_HEAD, collapse_padding=True)
        kept = [i for i in range(len(self.columns)) if i not in same]
        for i in kept:
            justify: Literal["left", "right"] = "right" if i in self.numbers else "left"
            short = i == 0 and all(len(row[0].text) <= 24 for row in self.rows)
            out.add_column(Text(self.columns[i]), justify=justify, overflow="fold", no_wrap=short)
        for row in self.rows:
            out.add_row(*(Text(str(row[i]), style="bold" if row[i].best else "") for i in kept))
        return out
