"""``picks.csv`` with ``picks.json`` beside it: which samples to label, and why (docs/labelling.md)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from evenhand import atomic
from evenhand.data.sources.paths import existing, read_text
from evenhand.errors import UserError, did_you_mean

GUESSES = 3


@dataclass(frozen=True)
class PickRow:
    """One sample; numbers are None, and guesses empty, where no model says them."""

    name: str
    rank: int
    path: str = ""
    text: str = ""
    label: str = ""
    uncertainty: float | None = None
    diversity: float | None = None
    representativeness: float | None = None
    guesses: tuple[tuple[str, float], ...] = ()  # classes and confidences, likeliest first


NUMBERS = ("uncertainty", "diversity", "representativeness")
PLAIN = tuple(field.name for field in fields(PickRow) if field.name != "guesses")
COLUMNS = (*PLAIN, *(f"{word}{i}" for i in range(1, GUESSES + 1) for word in ("guess", "confidence")))


def write_picks(path: Path, rows: Sequence[PickRow], facts: dict[str, Any]) -> None:
    """The table, and what it is about beside it; the table comes last, so that it is never without."""
    out = io.StringIO()
    table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    table.writeheader()
    for row in rows:
        cells = {key: value for key, value in asdict(row).items() if key != "guesses"}
        cells |= {key: "" if cells[key] is None else f"{cells[key]:.6f}" for key in NUMBERS}
        for i, (name, confidence) in enumerate(row.guesses[:GUESSES], 1):
            cells |= {f"guess{i}": name, f"confidence{i}": f"{confidence:.4f}"}
        table.writerow(cells)
    atomic.write_json(path.with_suffix(".json"), facts)
    atomic.write(path, out.getvalue())


def read_picks(path: str | Path) -> list[PickRow]:
    path = existing(path)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    if "name" not in (reader.fieldnames or ()):
        raise UserError(f"'{path}' has no column 'name'; {did_you_mean('name', reader.fieldnames or ())}")
    rows: list[PickRow] = []
    seen: set[str] = set()
    for row in reader:
        where = f"'{path}' line {reader.line_num}"
        name = (row.get("name") or "").strip()
        if not name or name in seen:
            raise UserError(f"{where}: {f'{name!r} stands there twice' if name else 'no name'}; select again")
        seen.add(name)
        try:
            guesses = [
                (row[f"guess{i}"], float(row[f"confidence{i}"] or "nan"))
                for i in range(1, GUESSES + 1)
                if row.get(f"guess{i}")
            ]
            numbers = [float(row[key]) if row.get(key) else None for key in NUMBERS]
            rank = int(row.get("rank") or len(rows) + 1)
        except (ValueError, TypeError) as error:
            raise UserError(f"{where} cannot be read ({error}); select again") from error
        words = [row.get(key) or "" for key in ("path", "text", "label")]
        rows.append(PickRow(name, rank, *words, *numbers, tuple(guesses)))  # type: ignore[arg-type, call-arg]
    return rows


def read_facts(path: str | Path) -> dict[str, Any]:
    """``picks.json`` beside picks.csv; empty if there is none."""
    beside = Path(path).with_suffix(".json")
    if not beside.is_file():
        return {}
    try:
        found = json.loads(beside.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"'{beside}' cannot be read ({error}); remove it, or select again") from error
    return found if isinstance(found, dict) else {}


def missing_files(rows: Sequence[PickRow]) -> list[str]:
    """Picks whose files are gone."""
    return [row.name for row in rows if row.path and not Path(row.path).is_file()]
