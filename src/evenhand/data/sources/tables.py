"""Tables of numbers as samples: a row is a vector, its columns are features.

Beside them a ``label`` and perhaps a ``split`` (train, val, test, unlabelled); a row without label is unlabelled.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from evenhand.data.sources.rows import Columns, Row, by_split, header_of, name_of, rows_of
from evenhand.data.sources.source import Memory
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError, did_you_mean

BESIDE = ("label", "split")
NUMBERS = ("id", "index", "row", "number", "nr", "no")  # names of columns that count rows
LARGEST = torch.finfo(torch.float32).max


class Table(Memory):
    """Vectors (N, d) whose numbers have names."""

    def __init__(self, samples: Tensor, names: Sequence[str], columns: tuple[str, ...]) -> None:
        super().__init__(samples, names)
        self.columns = columns

    def pick(self, rows: Tensor) -> Table:
        return Table(self.samples[rows], [self.name(row) for row in rows.tolist()], self.columns)


def is_table_of_numbers(path: Path, content: str, columns: Columns) -> bool:
    """Whether columns are named as numbers, or there are neither paths nor texts but something numeric."""
    header = header_of(path, content)
    if columns.features:
        return True
    if columns.text != "text" or {"path", "text"} & set(header):
        return False
    _, first = next(rows_of(path, content, columns, quote="cells"), ("", {}))
    # Numbers with a decimal comma too: read_table says what is wrong with them.
    return any(_number(cell.replace(",", ".")) is not None for name, cell in first.items() if name not in BESIDE)


def read_table(path: Path, content: str, columns: Columns) -> Streams:
    """Streams of vectors by split, or "all"; classes in natural order of the labels."""
    header = columns.renamed(header_of(path, content), f"'{path}'")
    if "label" not in header:
        hint = did_you_mean("label", header)
        raise UserError(f"'{path}' has no column 'label'; name yours in data.label_column ({hint})")
    if "domain" in header and "domain" not in columns.features:
        raise UserError(f"'{path}' has a column 'domain': save each domain as a table, or name data.columns")
    names = columns.features or tuple(name for name in header if name and name not in BESIDE)
    for name in names:
        if name not in header:
            raise UserError(f"'{path}' has no column '{name}' (data.columns); {did_you_mean(name, header)}")
        if not columns.features and name.lower() in NUMBERS:
            said = f"'{path}': the column '{name}' is learnt from too; if it only counts rows, name data.columns"
            warnings.warn(said, stacklevel=2)
    if not names:
        raise UserError(f"'{path}' has a label but no numbers; add columns of features")
    parts, classes = by_split(rows_of(path, content, columns, quote="cells"), "row")
    if not parts:
        raise UserError(f"'{path}' has a header but no rows; add some")
    number = {name: k for k, name in enumerate(classes)}
    streams = {}
    for split, rows in parts.items():
        labels = None if split == "unlabelled" else torch.tensor([number[row["label"]] for _, row in rows])
        streams[split] = Stream(_vectors(path, rows, names), labels, classes, split)
    return streams


def read_features(path: Path, content: str, names: Sequence[str]) -> Table:
    """The named columns alone, of a table that may have no labels: what a model is to predict."""
    rows = list(rows_of(path, content, Columns(), quote="cells"))
    header = header_of(path, content)
    for name in names:
        if name not in header:
            raise UserError(f"'{path}' has no column '{name}', which the model was trained with; add it")
    return _vectors(path, rows, tuple(names))


def _vectors(path: Path, rows: Sequence[Row], names: tuple[str, ...]) -> Table:
    numbers = torch.tensor([[value_of(row[name], name, where) for name in names] for where, row in rows])
    return Table(numbers.view(len(rows), len(names)).float(), [name_of(path, where) for where, _ in rows], names)


def value_of(cell: str, name: str, where: str, *, remedy: str = "name the columns that are in data.columns") -> float:
    """The number in the column ``name``; what is none is refused with its place."""
    found = _number(cell)
    if found is None:
        if not cell:
            raise UserError(f"{where} has no '{name}': fill it in or remove the line")
        if _number(cell.replace(",", ".")) is not None:
            thousands = re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", cell)
            other = f", or without the comma if that marks thousands, {cell.replace(',', '')}" if thousands else ""
            raise UserError(f"{where}: '{name}' is '{cell}'; write it with a point, {cell.replace(',', '.')}{other}")
        raise UserError(f"{where}: '{name}' is '{cell}', no number; {remedy}")
    if not abs(found) <= LARGEST:  # nan is not, either
        raise UserError(f"{where}: '{name}' is {cell}, not a finite number: fill it in or remove the line")
    return found


def _number(cell: str) -> float | None:
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return None
