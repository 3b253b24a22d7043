"""The one writer: a file is there as a whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenhand.errors import UserError

PART = ".part"


@contextmanager
def replacing(path: Path, remedy: str = "free space or choose another place") -> Iterator[Path]:
    """A file beside ``path`` to write to, flushed and renamed onto it when the block ends well, else removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
        os.close(handle)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); {remedy}") from error
    part = Path(name)
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    except Exception as error:
        if not (isinstance(error, OSError) or _no_room(error)):
            raise
        why = f"disk full? {error}" if _no_room(error) else error
        raise UserError(f"could not write {path} ({why}); the previous file is kept: {remedy}") from error
    finally:
        part.unlink(missing_ok=True)


def write(path: Path, data: bytes | str, remedy: str = "free space or choose another place") -> None:
    try:
        content = data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError as error:  # half a pair of code units, or bytes of a file's name
        around = str(data)[max(0, error.start - 20) : error.end + 20]
        raise UserError(f"cannot write {path}: {around!r} is not UTF-8; rename what has this in its name") from error
    with replacing(path, remedy) as part:
        part.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    write(path, json.dumps(value, indent=1))


def sweep(folder: Path) -> None:
    """Remove what killed writes left behind."""
    for part in folder.glob(f".*{PART}"):
        part.unlink(missing_ok=True)


def _no_room(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    # torch's zip writer says "iostream error" or "unexpected pos 7 vs 5", safetensors "I/O error"
    return any(word in str(error) for word in ("write", "iostream", " pos ", "I/O error", "No space"))
