"""Texts as samples: a source of strings, and its readers for CSV and JSON lines.

A row has ``text`` and ``label``, and may have ``split`` (train, val, test, unlabelled) and ``back_translation``, the
same text translated to another language and back. A row without a label is unlabelled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.data.sources.paths import encodable
from evenhand.data.sources.rows import Columns, Row, by_split, header_of, name_of, rows_of
from evenhand.data.sources.source import Kind, Source
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError, did_you_mean

OPTIONAL = ("split", "back_translation")
PLAIN = Columns()


class Texts(Source):
    """Strings, and perhaps their back-translations ("" where there is none)."""

    kind: Kind = "texts"
    decodes = False

    def __init__(
        self, texts: Sequence[str], translations: Sequence[str] | None = None, names: Sequence[str] | None = None
    ) -> None:
        self.texts, self.translations = texts, translations
        self.names = range(len(texts)) if names is None else names

    def __len__(self) -> int:
        return len(self.texts)

    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> Tensor:
        """Code points, int64 (N, longest), padded with 0: what a text is before a vocabulary is chosen."""
        coded = [torch.tensor([ord(c) for c in self.texts[i]], dtype=torch.int64) for i in rows.tolist()]
        return torch.nn.utils.rnn.pad_sequence(coded, batch_first=True)

    def name(self, row: int) -> str:
        return str(self.names[row])

    def text(self, row: int) -> str:
        return self.texts[row]

    def pick(self, rows: Tensor) -> Texts:
        places, other = rows.tolist(), self.translations
        translations = None if other is None else [other[i] for i in places]
        return Texts([self.texts[i] for i in places], translations, [self.name(i) for i in places])

    def identity(self, *, dated: bool = False) -> Iterable[bytes]:
        for text in [*self.texts, *(self.translations or ())]:
            yield text.encode() + b"\0"


def pack(texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Strings as tensors, to be stored: UTF-8 bytes (B,) and where each text ends (N,)."""
    encoded = [text.encode() for text in texts]
    whole = np.frombuffer(bytearray(b"".join(encoded)), np.uint8)
    return torch.from_numpy(whole), torch.tensor([len(e) for e in encoded], dtype=torch.int64).cumsum(0)


def unpack(content: Tensor, ends: Tensor) -> list[str]:
    """The strings that ``pack`` has packed."""
    whole, stops = content.numpy().tobytes(), ends.tolist()
    return [whole[start:stop].decode() for start, stop in zip([0, *stops], stops, strict=False)]


def read_texts(path: Path, content: str, columns: Columns = PLAIN) -> Streams:
    """Streams by split, or "all" (and "unlabelled") without one; classes in natural order of the labels."""
    rows = list(
        _json_lines(path, content, columns) if path.suffix.lower() == ".jsonl" else _csv_lines(path, content, columns)
    )
    if not rows:
        raise UserError(f"'{path}' has no rows; add lines with text and label")
    for where, row in rows:
        if not row["text"]:
            raise UserError(f"{where} has no text; fill it in or remove the line")
    parts, classes = by_split(rows, "text")
    number = {name: k for k, name in enumerate(classes)}
    translated = any(row.get("back_translation") for _, row in rows)
    streams = {}
    for split, lines in parts.items():
        source = Texts(
            [row["text"] for _, row in lines],
            [row.get("back_translation", "") for _, row in lines] if translated else None,
            [name_of(path, where) for where, _ in lines],
        )
        labels = None if split == "unlabelled" else torch.tensor([number[row["label"]] for _, row in lines])
        streams[split] = Stream(source, labels, classes, split)
    return streams


def is_table_of_texts(path: Path, content: str, columns: Columns = PLAIN) -> bool:
    """Whether a table's header names texts rather than image files."""
    header = header_of(path, content)
    return columns.text != "text" or ("text" in header and "path" not in header)


def _csv_lines(path: Path, content: str, columns: Columns) -> Iterator[Row]:
    _check_columns(columns.renamed(header_of(path, content), f"'{path}'"), f"'{path}'")
    yield from rows_of(path, content, columns, quote="texts")


def _json_lines(path: Path, content: str, columns: Columns) -> Iterator[Row]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        where = f"'{path}' line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{where} is not JSON ({error.msg}); write one object in each line") from error
        if not isinstance(row, Mapping):
            raise UserError(f"{where} is a {type(row).__name__}; write an object with text and label")
        there = [*row, *({columns.label} - row.keys())]  # no label: unlabelled
        row = dict(zip(columns.renamed(there, where), [*row.values(), None], strict=False))
        _check_columns(row, where)
        yield where, {key: _cell(row.get(key), key, where) for key in ("text", "label", *OPTIONAL) if _there(row, key)}


def _there(row: Mapping[str, Any], key: str) -> bool:
    return key in ("text", "label") or row.get(key) is not None


def _cell(value: Any, key: str, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str if key != "label" else str | int):
        raise UserError(f"{where}: {key} is {value!r}; write a string")
    return encodable(str(value)).strip()


def _check_columns(columns: Iterable[str], where: str) -> None:
    columns = list(columns)
    for column in ("text", "label"):
        if column not in columns:
            raise UserError(f"{where} has no column '{column}'; {did_you_mean(column, columns)}")
    missing = [column for column in OPTIONAL if column not in columns]
    for column in columns:  # a misspelt one would silently be left out
        hint = did_you_mean(column, missing)
        if column not in ("text", "label") and hint.startswith("did"):
            raise UserError(f"{where} has an unknown column '{column}'; {hint}")
