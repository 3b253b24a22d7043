"""Rows of delimited text: which column holds what, cells by name, and the split each row belongs to."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from evenhand.data.sources.paths import SPLITS, natural
from evenhand.errors import UserError, did_you_mean

TABLES = (".csv", ".tsv")
Row = tuple[str, dict[str, str]]  # where it stands, and its cells


@dataclass(frozen=True)
class Columns:
    """The names a user's table has for label and text, and the columns that are numbers to learn from."""

    label: str = "label"
    text: str = "text"
    features: tuple[str, ...] = field(default=())  # none named: all that are left
    bare: bool = False  # a table or an archive may come without labels, as those to be labelled do

    def check(self, kind: str, path: str) -> None:
        """Refuse names of columns where there are none."""
        for key, value, default in (("label", self.label, "label"), ("text", self.text, "text")):
            if value != default and kind not in (*TABLES, ".jsonl"):
                raise UserError(f"data.{key}_column = '{value}' is of a table, but '{path}' is none; leave it out")
        if self.features and kind not in TABLES:
            raise UserError(f"data.columns are of a .csv or .tsv, but '{path}' is none; leave them out")
        if self.features and self.text != "text":
            raise UserError("data.text_column is of texts, data.columns are of numbers; leave one of them out")

    def renamed(self, given: Iterable[str], where: str) -> list[str]:
        """A header in our words: her label is ``label``, her text ``text``; others of these names step aside."""
        given = list(given)
        if self.bare and self.label not in given:
            return [*replace(self, label="label", bare=False).renamed(given, where), "label"]  # of which no row has one
        ours = {self.label: "label", self.text: "text"} if self.text in given else {self.label: "label"}
        for key, name in (("label", self.label), ("text", self.text)):
            if name not in (key, *given):
                raise UserError(f"{where} has no column '{name}' (data.{key}_column); {did_you_mean(name, given)}")
        return [ours.get(name, f"{name} (another)" if name in ours.values() else name) for name in given]


def header_of(path: Path, content: str) -> list[str]:
    """The names of a table's columns, as they stand."""
    return [name.strip() for name in next(_reader(path, content), [])]


def rows_of(path: Path, content: str, columns: Columns, *, quote: str) -> Iterator[Row]:
    """Each row with where it stands and its cells, under our names for her columns."""
    csv.field_size_limit(max(csv.field_size_limit(), len(content) + 1))  # the default refuses long texts
    reader = _reader(path, content)
    names = columns.renamed([name.strip() for name in next(reader, [])], f"'{path}'")
    try:
        for cells in reader:
            where = f"'{path}' line {reader.line_num}"
            if not cells:
                continue
            if len(cells) > len(names):
                sign = {",": "commas", ";": "semicolons", "\t": "tabs"}[reader.dialect.delimiter]
                raise UserError(f"{where} has more cells than the header; quote {quote} that contain {sign}")
            cells += [""] * (len(names) - len(cells))
            row = {name: cell.strip() for name, cell in zip(names, cells, strict=True) if name}
            if not row.get("split", "all"):
                raise UserError(f"{where} has no split; fill it in")
            yield where, row
    except csv.Error as error:
        raise UserError(
            f"'{path}' line {reader.line_num + 1} is not CSV ({error}); quote {quote} and save again"
        ) from error


def by_split(rows: Iterable[Row], what: str) -> tuple[dict[str, list[Row]], tuple[str, ...]]:
    """Rows of each split, "all" where none is named and "unlabelled" without label; and the classes trained on."""
    parts: dict[str, list[Row]] = {}
    for where, row in rows:
        split = row.get("split", "all")
        if split not in (*SPLITS, "all"):
            raise UserError(f"{where}: split '{split}' is unknown; {did_you_mean(split, SPLITS)}")
        if not row["label"] and split in ("val", "test"):
            raise UserError(f"{where} is in split '{split}' but has no label; fill it in")
        parts.setdefault(split if row["label"] else "unlabelled", []).append((where, row))
    known = {row["label"] for split in ("train", "all") for _, row in parts.get(split, [])}
    for split in ("val", "test"):
        for where, row in parts.get(split, []):
            if row["label"] not in known:
                raise UserError(f"{where}: no training {what} has label '{row['label']}'; {_few(row['label'], known)}")
    return parts, tuple(sorted(known, key=natural))


def name_of(path: Path, where: str) -> str:
    """A sample's name: ``reviews.csv:3``."""
    return f"{path.name}:{where.rpartition(' ')[2]}"


def _reader(path: Path, content: str) -> csv._reader:  # type: ignore[name-defined]
    """Split at tabs in a .tsv, else at commas, or at what the header has instead of them."""
    header = content.partition("\n")[0]
    sign = "\t" if path.suffix.lower() == ".tsv" else next((s for s in ",;\t" if s in header), ",")
    return csv.reader(io.StringIO(content, newline=""), delimiter=sign, skipinitialspace=sign != "\t")


def _few(wrong: str, known: Iterable[str]) -> str:
    hint = did_you_mean(wrong, known)
    return hint if len(hint) < 200 else "correct it, or add training samples of that label"
