"""Checkpoints that are whole or absent, carry their format, and are read with ``weights_only``."""

from __future__ import annotations

import shlex
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evenhand import atomic, parallel
from evenhand.errors import UserError, beyond_memory

if TYPE_CHECKING:
    from evenhand.methods.protocol import Method

FORMAT = 2  # of checkpoints and run folders; raised when an older one can no longer be read as it is
Kind = type | tuple[type, ...]
ENTRIES: dict[str, Kind] = {  # of every checkpoint
    "step": int, "total": int, "epoch": (int, float), "digest": (str, type(None)), "method": dict,
}  # fmt: skip
GOING_ON: dict[str, Kind] = {"best": (int, float), "best_also": dict, "measured": dict}  # to train it further
TRAINING = ("optimizer", "scaler")  # parts of a state that only further training needs


def save(path: Path, content: dict[str, Any]) -> None:
    """Save tensors and plain values; a full disk leaves the previous checkpoint in place."""
    with atomic.replacing(path, "free space and use --resume") as part:
        torch.save({"format": FORMAT, **content}, part)


def load(path: Path, *, going_on: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU without executing anything in it; ``going_on``: to train it further."""
    if not path.exists():
        raise UserError(f"no checkpoint at {path}: train first, or give the run's folder")
    try:
        content = _read(path)
    except Exception as error:
        kind = type(error).__name__
        raise UserError(f"{path} is not a checkpoint of ours or is damaged ({kind}); {_way_on(path)}") from error
    if not isinstance(content, dict) or "method" not in content:
        raise UserError(f"{path} is not a checkpoint of ours: it has no 'method' entry")
    check_format(content.get("format", 1), path)
    for key, needed in {**ENTRIES, **(GOING_ON if going_on else {})}.items():
        wrong = "has no" if key not in content else "" if isinstance(content[key], needed) else "has another kind of"
        if wrong:
            raise UserError(f"{path} is not as a training wrote it: it {wrong} '{key}' entry; {_way_on(path)}")
    return content


def restore(method: Method, content: dict[str, Any], path: Path) -> None:
    """Put a checkpoint's state into a method; a state of another shape is one line."""
    try:
        method.load_state(content["method"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if beyond_memory(error) or (isinstance(error, AttributeError) and not _is_plain(error.obj)):
            raise  # not the checkpoint's fault: a full device, or a slip in a method's own code
        said = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise UserError(f"{path} does not fit its recipe ({said[:200]}); {_way_on(path)}") from error


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold it."""
    return value is None or isinstance(value, bool | int | float | str | list | tuple | dict | Tensor)


def _read(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:  # torch writes checksums of what it saves, but does not compare them
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} is not what was written")
    return torch.load(path, map_location="cpu", weights_only=True)


def _way_on(path: Path) -> str:
    """What to do without this checkpoint: the latest whole one beside it takes its place."""
    if not (whole := _whole(path)):
        return "no other checkpoint beside it is whole: restore it, or train again into another run.folder"
    step, other = max(whole)
    command = shlex.join(["cp", str(other), str(path)]) + (", then --resume" if path.name == "last.pt" else "")
    return f"{other.name} beside it is whole (step {step}): to go on from that one, {command}"


def _whole(path: Path, pattern: str = "*.pt") -> list[tuple[int, Path]]:
    """The whole checkpoints beside this one, with their steps."""
    found = []
    for other in path.parent.glob(pattern):
        try:
            content = _read(other) if other != path else {}
            if content["method"] and content["format"] == FORMAT:
                found.append((int(content["step"]), other))
        except Exception:  # damaged too, or another's: it is no way on
            continue
    return found


def take_up(folder: Path) -> None:
    """Before a run goes on: where ``last.pt`` is gone, the latest checkpoint kept takes its place, with a word.

    A best one does not: it is written before what is kept at the same step, which would be passed over.
    """
    path = folder / "last.pt"
    if parallel.is_writer() and not path.exists():
        if whole := _whole(path, "epoch-*.pt"):
            step, other = max(whole)
            warnings.warn(f"{path} is gone: the run goes on from {other.name} beside it (step {step})", stacklevel=2)
            with atomic.replacing(path) as part:
                shutil.copyfile(other, part)
        elif any(folder.glob("*.pt")):
            warnings.warn(f"{path} is gone: training begins anew", stacklevel=2)
    parallel.barrier()


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
