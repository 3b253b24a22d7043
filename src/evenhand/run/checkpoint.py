"""Checkpoints that are whole or absent: written beside, flushed, renamed; read with ``weights_only``."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenhand.errors import UserError

PART = ".part"


def sweep(folder: Path) -> None:
    """Remove what killed writes left behind."""
    for part in folder.glob(f".*{PART}"):
        part.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` so that a reader sees the old file or the new one, never a part."""
    with _Replacing(path) as temporary:
        temporary.write_bytes(data)


def save(path: Path, content: dict[str, Any]) -> None:
    """Save tensors and plain values; a full disk leaves the previous checkpoint in place."""
    with _Replacing(path) as temporary:
        torch.save(content, temporary)


class _Replacing:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.", suffix=PART)
        os.close(handle)
        self.temporary = Path(name)
        return self.temporary

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                with self.temporary.open("rb") as written:
                    os.fsync(written.fileno())
                os.chmod(self.temporary, 0o644)
                os.replace(self.temporary, self.path)
        finally:
            with suppress(FileNotFoundError):
                self.temporary.unlink()
        if _is_full_disk(error):
            raise UserError(
                f"could not write {self.path}: disk full? The previous file is kept; free space and use --resume"
            ) from error


def _is_full_disk(error: BaseException | None) -> bool:
    if isinstance(error, RuntimeError):  # torch's zip writer: "iostream error", "unexpected pos 7 vs 5"
        return any(word in str(error) for word in ("write", "iostream", " pos "))
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU without executing anything in it."""
    if not path.exists():
        raise UserError(f"no checkpoint at {path}: train first, or give the run's folder")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} is not a checkpoint of ours or is damaged ({type(error).__name__}); use another"
        ) from error
    if not isinstance(content, dict) or "method" not in content:
        raise UserError(f"{path} is not a checkpoint of ours: it has no 'method' entry")
    return content


def is_finite(state: Any) -> bool:
    """Whether every floating-point tensor in a nested state is finite."""
    return all(bool(torch.isfinite(t).all()) for t in _tensors(state) if t.is_floating_point())


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _tensors(value)
