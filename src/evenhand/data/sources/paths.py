"""Files and folders as they lie on disk: in natural order, hidden ones left out, errors that say what is there."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from evenhand.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = ("train", "val", "test", "unlabelled")


def natural(name: str) -> tuple[list[str | int], str]:
    """Sorting key that puts ``2`` before ``10``, the same on every file system."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d+)", name))], name


def existing(path: str | Path) -> Path:
    """The path, or an error that says how far it exists."""
    path = Path(path)
    if not path.exists():
        parent = next((p for p in path.absolute().parents if p.exists()), path)
        raise UserError(f"'{path}' does not exist; the nearest folder that does is '{parent}'")
    return path


def folders_in(folder: Path) -> list[Path]:
    """Visible folders directly inside, in natural order."""
    inside = [p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__"))]
    _check_names(inside, folder)
    return sorted(inside, key=lambda p: natural(p.name))


def images_in(folder: Path, *, any_name: bool = False) -> list[Path]:
    """Visible image files at any depth, in natural order of their names relative to ``folder``.

    ``any_name``: also of names that no file of ours can hold; see ``printable``.
    """
    found = []
    for place, inside, files in os.walk(folder, followlinks=True):
        inside[:] = [name for name in inside if not name.startswith((".", "__"))]
        found += [Path(place, f) for f in files if f.lower().endswith(SUFFIXES) and not f.startswith(".")]
    if not any_name:
        _check_names(found, folder)
    return sorted(found, key=lambda path: natural(path.relative_to(folder).as_posix()))


def _check_names(paths: Iterable[Path], folder: Path) -> None:
    """Names of samples and classes are written as UTF-8; an old archive's may be in another code."""
    for path in paths:
        try:
            str(path.relative_to(folder)).encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the name of '{printable(str(path))}' is not UTF-8: rename it") from error


def printable(name: str) -> str:
    """The name, bytes that are not UTF-8 being written out, as in ``ph\\xff.png``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def other_files(folder: Path) -> dict[str, int]:
    """Visible files that are no images, by extension."""
    found = ((p, p.relative_to(folder).parts) for p in folder.rglob("*") if p.is_file())
    files = (p for p, parts in found if not any(part.startswith(".") for part in parts))
    return dict(Counter(p.suffix.lower() or "no extension" for p in files if p.suffix.lower() not in SUFFIXES))


def read_text(path: Path) -> str:
    """A file's text, with or without byte order mark."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"'{path}' is not UTF-8 text (line {line}: {error.reason}); save it as UTF-8") from error


def encodable(text: str) -> str:
    """Half of a pair of code units, as JSON has where an emoji was cut in two, becomes a question mark."""
    return text.encode(errors="replace").decode()


def few(names: Iterable[str]) -> str:
    """Five names at most, and how many more."""
    ordered = sorted(names, key=natural)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def relative_names(paths: Iterable[Path], root: Path) -> list[str]:
    """Paths from ``root`` on, where they lie below it."""
    return [(path.relative_to(root) if path.is_relative_to(root) else path).as_posix() for path in paths]
