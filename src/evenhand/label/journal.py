"""Every answer on the disk before it is acknowledged: a file to which lines are only ever added.

A line that a killed process left half written was never acknowledged, so it is dropped. Any other damage stops with the
line's number: what stands around it is somebody's work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evenhand.errors import UserError

Event = dict[str, Any]


class Journal:
    """One event a line, as JSON; flushed to the disk (fsync) before ``append`` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        whole = _whole_lines(path)
        self.events = list(_parsed(whole, path))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            self._file.truncate(len(whole))
        except OSError as error:
            raise UserError(f"cannot write {path} ({error.strerror}); choose another place with --out") from error

    def append(self, event: Event) -> None:
        """The event is remembered only once it is kept: a full disk loses nothing that was acknowledged."""
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(json.dumps(event, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise UserError(f"could not write {self.path} ({error.strerror}); free space and answer again") from error
        self.events.append(event)

    def close(self) -> None:
        self._file.close()


def _whole_lines(path: Path) -> bytes:
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); choose another place with --out") from error
    return data[: data.rfind(b"\n") + 1]


def _parsed(data: bytes, path: Path) -> Iterator[Event]:
    for number, line in enumerate(data.splitlines(), 1):
        try:
            event = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path} line {number} is damaged; mend or delete that line and start again") from error
        if not isinstance(event, dict):
            raise UserError(f"{path} line {number} is no answer; mend or delete that line and start again")
        yield event
