"""Checkpoints that are whole or absent, carry their format, and are read with ``weights_only``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenhand import atomic
from evenhand.errors import UserError

FORMAT = 2  # of checkpoints and run folders; raised when an older one can no longer be read as it is
TRAINING = ("optimizer", "scaler")  # parts of a state that only further training needs


def save(path: Path, content: dict[str, Any]) -> None:
    """Save tensors and plain values; a full disk leaves the previous checkpoint in place."""
    with atomic.replacing(path, "free space and use --resume") as part:
        torch.save({"format": FORMAT, **content}, part)


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
    check_format(content.get("format", 1), path)
    return content


def check_format(found: Any, path: Path) -> None:
    """Refuse what another version wrote, with what to do."""
    if found == FORMAT:
        return
    if isinstance(found, int) and found > FORMAT:
        raise UserError(f"{path} is of format {found}, newer than this evenhand reads ({FORMAT}): upgrade evenhand")
    raise UserError(f"{path} was written by an older evenhand (format {found}): train it again into a new run.folder")


def for_use(state: Any) -> Any:
    """A state without what only further training needs."""
    if isinstance(state, dict):
        return {key: None if key in TRAINING else for_use(value) for key, value in state.items()}
    return state


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
