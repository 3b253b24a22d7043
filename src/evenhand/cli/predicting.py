"""``evenhand predict``: what a finished model says of new samples."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from evenhand.run.predicting import Ranking

PLACES = ("predicted", "second", "third")


def predict(
    run: Annotated[Path, typer.Argument(help="A run's folder, wherever it has been moved to.")],
    paths: Annotated[
        list[Path], typer.Argument(help="Images, folders of them, a .csv or .txt of paths or texts, .npz arrays.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV to write. Default: the terminal.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes told of each sample, likeliest first.")] = 2,
    batch: Annotated[int, typer.Option(min=1, help="Samples at a time.")] = 64,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ... Default: the one it was trained on.")] = None,
) -> None:
    """Classes and confidences of new images, texts or rows, as CSV; what cannot be read is listed at the end."""
    from rich.console import Console
    from rich.progress import Progress

    from evenhand.errors import UserError
    from evenhand.run.predicting import load

    model = load(run, device=device)
    source = model.inputs.files(paths)
    if not len(source):
        raise UserError(f"nothing to predict in {', '.join(map(str, paths))}; give images or a folder with some")
    unreadable: list[str] = []
    err = Console(stderr=True)
    with _table(out) as file, Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("predicting", total=len(source))
        rows = model.stream(source, batch=batch, top=top, unreadable=unreadable)
        written = _write(file, _counted(rows, lambda done: bar.update(task, completed=done + len(unreadable))), top)
        if not written:
            raise UserError(f"none of {len(source)} inputs could be read; the first: {unreadable[0]}")
    print(f"evenhand: {written} predicted; {model.calibration}", file=sys.stderr)
    if unreadable:
        print(f"evenhand: {len(unreadable)} of {len(source)} inputs could not be read:", file=sys.stderr)
        print(*(f"  {told}" for told in unreadable), sep="\n", file=sys.stderr)


def _write(file: IO[str], rows: Iterable[Ranking], top: int) -> int:
    """``name, predicted, confidence, second, second_confidence, ...``; returns how many rows there are."""
    import csv

    out = csv.writer(file, lineterminator="\n")
    count = 0
    for name, labels, confidences in rows:
        if not count:
            places = [*PLACES, *(f"rank{at}" for at in range(4, 1 + top))][: len(labels)]
            heads = [(place, "confidence" if at == 0 else f"{place}_confidence") for at, place in enumerate(places)]
            out.writerow(["name", *(word for pair in heads for word in pair)])
        told = zip(labels, confidences, strict=True)
        out.writerow([name, *(word for label, sure in told for word in (label, f"{sure:.4f}"))])
        count += 1
    return count


def _counted(rows: Iterable[Ranking], tell: Any) -> Iterator[Ranking]:
    for done, row in enumerate(rows, 1):
        tell(done)
        yield row


@contextmanager
def _table(out: Path | None) -> Iterator[IO[str]]:
    """The file, there as a whole or not at all; or the terminal."""
    from evenhand import atomic

    with nullcontext() if out is None else atomic.replacing(out) as part:
        if part is None:
            yield sys.stdout
            return
        with open(part, "w", encoding="utf-8", newline="") as file:
            yield file
