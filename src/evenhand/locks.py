"""One process at a time: a lock that ends with its holder, however that ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenhand import parallel
from evenhand.errors import UserError

_mine: set[tuple[Path, int]] = set()  # folders that a thread of this process holds


@contextmanager
def held(folder: Path, *, wait: bool, other: str = "run.folder", again: bool = False) -> Iterator[None]:
    """Hold the lock beside ``folder`` for all processes of a run; another holder is waited for, or named.

    again: a thread that holds it goes on, as `fit` does within `train`.
    """
    place = Path(os.path.realpath(folder))  # one folder has one lock, whatever links lead to it
    own = (place, threading.get_ident())
    if not parallel.is_writer() or (again and own in _mine):
        yield
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = place.with_name(f".{place.name}.lock").open("a+")
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror}); choose another {other}") from error
    with lock as file:
        if not _take(file.fileno(), wait):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise UserError(f"{folder} is in use by process {holder}: wait for it, or choose another {other}")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _mine.add(own)
        try:
            yield
        finally:
            _mine.discard(own)


def _take(handle: int, wait: bool) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows has no such lock: runs there are not guarded
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
