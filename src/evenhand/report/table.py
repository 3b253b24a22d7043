"""A table of cells and its three forms: Markdown, HTML, terminal."""

from __future__ import annotations

import html
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

    def __str__(self) -> str:
        return f"{self.text} {self.spread}" if self.spread else self.text


@dataclass(frozen=True)
class Table:
    """Rows under named columns; the columns in ``numbers`` are aligned right."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: range = range(0)

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
            f'<th scope="col"{" class=num" if i in self.numbers else ""}>{_heading(c)}</th>'
            for i, c in enumerate(self.columns)
        )
        body = "\n".join("<tr>" + "".join(cell(i, v) for i, v in enumerate(row)) + "</tr>" for row in self.rows)
        dense = " class=dense" if len(wide) > 8 else ""  # spreads go below their means
        return (
            f'<div class="scroll" tabindex="0"><table{dense}><caption>{html.escape(self.caption)}</caption>'
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
        out = RichTable(caption=Text("; ".join(said)), box=SIMPLE_HEAD, collapse_padding=True)
        kept = [i for i in range(len(self.columns)) if i not in same]
        for i in kept:
            justify: Literal["left", "right"] = "right" if i in self.numbers else "left"
            short = i == 0 and all(len(row[0].text) <= 24 for row in self.rows)
            out.add_column(Text(self.columns[i]), justify=justify, overflow="fold", no_wrap=short)
        for row in self.rows:
            out.add_row(*(Text(str(row[i]), style="bold" if row[i].best else "") for i in kept))
        return out


def _heading(text: str) -> str:
    return re.sub(r" ([↑↓])", r"&nbsp;\1", html.escape(text))  # an arrow stays with its name
