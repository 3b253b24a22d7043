"""What is to be labelled: the rows of picks.csv, and the image or text behind each of them.

Only files inside the pool's folder are ever opened, whatever a table from elsewhere may say; images are decoded, made
smaller and encoded anew, so that no byte of a file itself is sent.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from evenhand.data.picks import PickRow, read_facts
from evenhand.data.picks import read_picks as read_table
from evenhand.errors import UserError

LONGEST_SIDE = 1600  # of an image as it is shown
MOST_PIXELS = 100_000_000


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
    pool: Path | None  # the folder whose images may be shown

    @property
    def gone(self) -> list[str]:
        """Names of the picks whose files are not there."""
        return [row.name for row in self.rows if row.file is not None and not row.file.is_file()]

    @property
    def outside(self) -> list[str]:
        """Names of the picks whose files are not of the pool, and so are not shown."""
        return [row.name for row in self.rows if row.file is not None and not _inside(row.file, self.pool)]


def read_picks(path: Path, pool: Path | None = None) -> Picks:
    """``picks.csv`` with what ``picks.json`` beside it says of the pool and its classes."""
    if not path.is_file():
        raise UserError(f"no file '{path}'; write it with: evenhand select RUN --pool DIR --budget 100")
    about = read_facts(path)
    if about.get("kind") == "vectors":
        table = f"evenhand labels export {path} to-fill-in.csv"
        raise UserError(f"'{path}' picks vectors, which no page can show: label them in a table, {table}")
    pool = pool or next((Path(about[key]) for key in ("folder", "pool") if _told(about.get(key))), None)
    rows = [
        Pick(row.rank, row.name, row.text, None if row.text else _file(row, pool), row.label, row.guesses)
        for row in read_table(path)
    ]
    if not rows:
        raise UserError(f"'{path}' has no rows: there is nothing to label")
    bare = next((row.name for row in rows if not row.text and row.file is None), None)
    if bare is not None:
        raise UserError(f"'{bare}' has neither a text nor a file; name the pool's folder with --pool")
    classes = about.get("classes") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise UserError(f"'{path.with_suffix('.json')}': classes must be a list of names; select again")
    return Picks(tuple(sorted(rows, key=lambda row: row.rank)), tuple(classes), pool)


def shown(pick: Pick, pool: Path | None) -> bytes:
    """The pick's image as a new PNG (if small) or JPEG; anything but a sound image of the pool is refused."""
    from PIL import Image, ImageOps

    from evenhand.data.sources.files import convert

    if pick.file is None:
        raise UserError(f"'{pick.name}' has no image")
    if not _inside(pick.file, pool):
        raise UserError(f"'{pick.name}' is not inside the pool; name its folder with --pool")
    if not pick.file.is_file():
        raise UserError(f"the file of '{pick.name}' is gone")
    try:
        with Image.open(pick.file) as image:
            if image.width * image.height > MOST_PIXELS:
                raise UserError(f"'{pick.name}' has {image.width} x {image.height} pixels: too many to show")
            image.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))  # lets JPEG decode at a smaller scale
            upright = convert(ImageOps.exif_transpose(image), "RGB")
    except UserError:
        raise
    except Exception as error:  # a damaged or hostile file raises nearly anything
        raise UserError(f"'{pick.name}' cannot be read as an image") from error
    upright.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    kept = io.BytesIO()
    small = max(upright.size) <= 256
    upright.save(kept, "PNG" if small else "JPEG", **({} if small else {"quality": 90}))
    return kept.getvalue()


def _told(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _inside(file: Path, pool: Path | None) -> bool:
    return pool is not None and file.resolve().is_relative_to(pool.resolve())


def _file(row: PickRow, pool: Path | None) -> Path | None:
    """By its name inside the pool, so that both may have been moved; else by its path."""
    inside = None if pool is None else pool / row.name
    if inside is not None and inside.is_file():
        return inside
    return Path(row.path) if row.path else inside
