"""What is to be labelled: the rows of picks.csv, and the image or text behind each of them.

Only files inside the pool's folder are ever opened, whatever a table from elsewhere may say; images are decoded, made
smaller and encoded anew, so that no byte of a file itself is sent.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenhand.data.sources.paths import read_text
from evenhand.errors import UserError

LONGEST_SIDE = 1600  # of an image as it is shown
MOST_PIXELS = 100_000_000
GUESSES = 3


@dataclass(frozen=True)
class Pick:
    rank: int
    name: str
    text: str
    file: Path | None
    label: str
    guesses: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Picks:
    rows: tuple[Pick, ...]
    classes: tuple[str, ...]
    pool: Path | None

    @property
    def gone(self) -> list[str]:
        """Names of the picks whose files are not there."""
        return [row.name for row in self.rows if row.file is not None and not row.file.is_file()]


def read_picks(path: Path, pool: Path | None = None) -> Picks:
    """``picks.csv`` with what ``picks.json`` beside it says of the pool and its classes."""
    if not path.is_file():
        raise UserError(f"no file '{path}'; write it with: evenhand select RUN --pool DIR --budget 100")
    about = _about(path.with_suffix(".json"))
    pool = pool or (Path(about["pool"]) if isinstance(about.get("pool"), str) and about["pool"] else None)
    rows = [_pick(row, path, number, pool) for number, row in enumerate(_table(path), 2)]
    if not rows:
        raise UserError(f"'{path}' has no rows: there is nothing to label")
    seen: set[str] = set()
    for row in rows:
        if not row.text and row.file is None:
            raise UserError(f"'{row.name}' has neither a text nor a file; name the pool's folder with --pool")
        if row.name in seen:
            raise UserError(f"'{path}': '{row.name}' stands there twice; delete one of the rows")
        seen.add(row.name)
    classes = about.get("classes") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise UserError(f"'{path.with_suffix('.json')}': classes must be a list of names; select again")
    return Picks(tuple(sorted(rows, key=lambda row: row.rank)), tuple(classes), pool)


def shown(pick: Pick, pool: Path | None) -> bytes:
    """The pick's image as a new PNG (if small) or JPEG; anything but a sound image of the pool is refused."""
    from PIL import Image, ImageOps

    if pick.file is None:
        raise UserError(f"'{pick.name}' has no image")
    if pool is None or not pick.file.resolve().is_relative_to(pool.resolve()):
        raise UserError(f"'{pick.name}' is not inside the pool; name its folder with --pool")
    if not pick.file.is_file():
        raise UserError(f"the file of '{pick.name}' is gone")
    try:
        with Image.open(pick.file) as image:
            if image.width * image.height > MOST_PIXELS:
                raise UserError(f"'{pick.name}' has {image.width} x {image.height} pixels: too many to show")
            image.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))  # lets JPEG decode at a smaller scale
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except UserError:
        raise
    except Exception as error:  # a damaged or hostile file raises nearly anything
        raise UserError(f"'{pick.name}' cannot be read as an image") from error
    upright.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    kept = io.BytesIO()
    small = max(upright.size) <= 256
    upright.save(kept, "PNG" if small else "JPEG", **({} if small else {"quality": 90}))
    return kept.getvalue()


def _about(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"'{path}' is damaged; delete it and name the pool with --pool, or select again") from error
    return about if isinstance(about, dict) else {}


def _table(path: Path) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
    if "name" not in (rows.fieldnames or ()):
        raise UserError(f"'{path}' has no column 'name'; it has {', '.join(rows.fieldnames or ['nothing'])}")
    return [{key: value or "" for key, value in row.items() if key is not None} for row in rows]


def _pick(row: dict[str, str], path: Path, number: int, pool: Path | None) -> Pick:
    try:
        rank = int(row.get("rank") or number - 1)
        told = [(row.get(f"guess{k}", ""), row.get(f"confidence{k}", "")) for k in range(1, GUESSES + 1)]
        guesses = tuple((guess, float(confidence or "nan")) for guess, confidence in told if guess)
    except ValueError as error:
        raise UserError(f"'{path}' line {number}: {error}") from error
    if not row["name"]:
        raise UserError(f"'{path}' line {number} has no name")
    text = row.get("text", "")
    return Pick(rank, row["name"], text, None if text else _file(row, pool), row.get("label", ""), guesses)


def _file(row: dict[str, str], pool: Path | None) -> Path | None:
    """By its name inside the pool, so that both may have been moved; else by its path."""
    inside = None if pool is None else pool / row["name"]
    if inside is not None and inside.is_file():
        return inside
    return Path(row["path"]) if row.get("path") else inside
