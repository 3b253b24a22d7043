"""The run's diary: JSON lines always, TensorBoard when asked, progress for people."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from evenhand import atomic, parallel
from evenhand.errors import UserError


class Meter:
    """Means of scalars over the steps since the last reading that told them, kept on the device until then."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.steps: Counter[str] = Counter()

    def add(self, scalars: dict[str, Tensor]) -> None:
        for name, value in scalars.items():
            value = torch.as_tensor(value).detach().float()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.steps.update(scalars.keys())

    def read(self) -> dict[str, float]:
        """The means over processes and steps; empties the meter."""
        if not self.steps:
            return {}
        names = sorted(self.sums)
        devices = {value.device for value in self.sums.values()}
        device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))  # what schedules say is the CPU's
        means = parallel.mean(torch.stack([self.sums[n].to(device) / self.steps[n] for n in names])).tolist()
        self.sums, self.steps = {}, Counter()
        return dict(zip(names, means, strict=True))


class Log:
    """Appends rows to ``log.jsonl`` and draws the bar; only the writing process does either."""

    def __init__(self, folder: Path, total_steps: int, *, progress: bool, tensorboard: bool, label: str) -> None:
        self.writer, self.process = parallel.is_writer(), os.getpid()
        self.path = folder / "log.jsonl"
        self.noted: set[str] = set()  # Python's warnings that are in the log
        self.shown: set[str] = set()  # those that were heard since this training began or went on
        self.at: tuple[int, float] | None = None  # step and epoch of the last row, once the log is known to be ours
        self.board = self._open_board(folder) if tensorboard and self.writer else None
        self.bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]} {task.fields[note]}"), TimeElapsedColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), disable=not (progress and self.writer), transient=True,
        )  # fmt: skip
        self.task = self.bar.add_task(label, total=total_steps, rate="", note="")

    @staticmethod
    def _open_board(folder: Path) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError("run.tensorboard needs the extra: pip install 'evenhand[tensorboard]'") from error
        return SummaryWriter(str(folder / "tensorboard"))

    def __enter__(self) -> Log:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if isinstance(error, UserError) and self.at:  # such as divergence: reports tell it from a run that goes on
            with suppress(OSError):  # the disk may be what is full
                self.row("event", *self.at, {"event": "failed", "reason": str(error)})
        if self.board is not None:
            self.board.close()

    def forget_after(self, step: int) -> None:
        """On resume, drop rows that the steps to come will write again, and how it failed."""
        if self.writer and self.path.exists():
            kept = [row for row in _rows(self.path) if row["step"] <= step and row.get("event") != "failed"]
            self.noted = {str(row["warning"]) for row in kept if "warning" in row}
            atomic.write(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self.at = step, 0.0

    def row(self, kind: str, step: int, epoch: float, values: dict[str, Any]) -> None:
        self.at = step, epoch
        if not self.writer:
            return
        with self.path.open("a") as out:
            out.write(json.dumps({"kind": kind, "step": step, "epoch": round(epoch, 4), **values}) + "\n")
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, float):
                    self.board.add_scalar(f"{kind}/{name}", value, step)

    def warn(self, step: int, epoch: float, said: str) -> None:
        """One line for the terminal and the diary."""
        self.row("event", step, epoch, {"event": "warning", "warning": said})
        if self.writer:
            self.bar.console.print(f"warning at step {step}: {said}", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def noting(self, step: int, epoch: float) -> Iterator[None]:
        """Python's warnings given meanwhile become rows, too, each once: also where a run was resumed in between.

        Each is heard, whatever ran in this process before: Python passes over what it has said, but not where
        ``catch_warnings`` was entered since. A loader's process, which inherits this, shows its own and writes none.
        """
        show = warnings.showwarning

        def note(message: Warning | str, *where: Any, **more: Any) -> None:
            said = str(message)
            if said not in self.noted and os.getpid() == self.process:
                self.noted.add(said)
                self.row("event", step, epoch, {"event": "warning", "warning": said})
            if said not in self.shown:
                self.shown.add(said)
                show(message, *where, **more)

        with warnings.catch_warnings():
            warnings.showwarning = note
            yield

    def advance(self, step: int, rate: float, note: str) -> None:
        shown = f"{rate:,.0f} img/s" if math.isfinite(rate) else ""
        self.bar.update(self.task, completed=step, rate=shown, note=note)


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; a kill may leave half a line at its end."""
    remedy = "move it away, and --resume goes on without the rows before"
    try:
        *lines, _half = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a log of ours ({type(error).__name__}): {remedy}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            raise UserError(f"{path} line {number} is not a row of a log ({line[:40]!r}): {remedy}")
        found.append(row)
    return found
