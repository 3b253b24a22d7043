"""A progress bar for what takes long, on a terminal and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

Item = TypeVar("Item")
QUIET = 0.5  # seconds before a bar is drawn


def shown(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items one by one, with a bar once it takes longer than half a second."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield from items
        return
    began, bar = time.monotonic(), Progress(console=err, transient=True)
    task = bar.add_task(what, total=len(items))
    try:
        for item in items:
            if not bar.live.is_started and time.monotonic() - began > QUIET:
                bar.start()
            yield item
            bar.advance(task)
    finally:
        bar.stop()
