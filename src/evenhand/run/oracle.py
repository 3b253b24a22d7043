"""Who knows the labels of a pool, answers when asked, and writes down every question."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Sequence
from pathlib import Path

from evenhand.data.domains import read_truth
from evenhand.data.labels import Answer, named
from evenhand.data.settings import DataSettings
from evenhand.data.stream import Stream
from evenhand.errors import UserError


class Oracle:
    """Labels of a stream by name; ``log`` gets a line for each question before it is answered.

    A name that was asked before, also by an earlier process, is answered from the log and costs nothing.
    """

    def __init__(self, truth: Stream, log: Path) -> None:
        assert truth.labels is not None
        self.size, self.classes = len(truth), truth.classes
        self._truth = dict(zip(named(truth), truth.labels.tolist(), strict=True))
        if len(self._truth) < len(truth):
            raise UserError(f"{len(truth) - len(self._truth)} samples of the target share a name: names must differ")
        self._log = log
        self.asked = _read(log)

    @classmethod
    def of(cls, settings: DataSettings, log: Path) -> Oracle:
        """Of a recipe's target."""
        return cls(read_truth(settings), log)

    def ask(self, names: Sequence[str], round_: int) -> list[Answer]:
        new = [name for name in names if name not in self.asked]
        if unknown := [name for name in new if name not in self._truth]:
            raise UserError(f"the oracle does not know '{unknown[0]}': it is not in the pool")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        lines = {name: {"round": round_, "name": name, "label": self._label(name), "time": now} for name in new}
        if lines:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines.values())
                file.flush()
                os.fsync(file.fileno())
        self.asked |= lines
        return [
            Answer(name, str(self.asked[name]["label"]), "oracle", str(self.asked[name]["time"])) for name in names
        ]  # fmt: skip

    def _label(self, name: str) -> str:
        return self.classes[self._truth[name]]


def _read(log: Path) -> dict[str, dict[str, object]]:
    """What was asked; a line that a killed process left unfinished is taken away."""
    if not log.exists():
        return {}
    text = log.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        with log.open("r+", encoding="utf-8") as file:
            file.truncate(len(whole.encode()))
    try:
        return {line["name"]: line for line in map(json.loads, whole.splitlines())}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{log} cannot be read ({error}); restore it, or begin in another run.folder") from error
