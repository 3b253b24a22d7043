"""``evenhand predict``: what a finished model says of new samples."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from evenhand.run.predicting import Objects, Ranking

SAMPLES, SCENES = 64, 8  # at a time
PLACES = ("predicted", "second", "third")


def predict(
    run: Annotated[Path, typer.Argument(help="A run's folder, wherever it has been moved to.")],
    paths: Annotated[
        list[Path],
        typer.Argument(help="Images, folders of them, a .csv or .txt of paths or texts, .npz arrays, a COCO file."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV, or COCO results (.json), to write. Default: the terminal.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Classes told of each sample, likeliest first [2].")] = None,
    min_score: Annotated[
        float | None, typer.Option(min=0, max=1, help="Of objects that are told [0.5; 0 in COCO results].")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples at a time [64; 8 with boxes].")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ... Default: the one it was trained on.")] = None,
) -> None:
    """Classes and confidences of new images, texts or rows, or the objects in images, as CSV.

    What cannot be read is listed at the end.
    """
    from rich.console import Console
    from rich.progress import Progress

    from evenhand.errors import UserError
    from evenhand.run.predicting import Locator, load

    model = load(run, device=device)
    boxes, results = isinstance(model, Locator), out is not None and out.suffix.lower() == ".json"
    for name, given, fits in (("--top", top, not boxes), ("--min-score", min_score, boxes)):
        if given is not None and not fits:
            raise UserError(f"{name} has no effect on a run of task {model.method.task.name}: leave it out")
    if results and not boxes:
        raise UserError(f"COCO results are boxes, and {run} tells classes: give --out a name that ends in .csv")
    source = model.inputs.files(paths)
    if not len(source):
        raise UserError(f"nothing to predict in {', '.join(map(str, paths))}; give images or a folder with some")
    unreadable: list[str] = []
    err = Console(stderr=True)
    with _table(out) as file, Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("predicting", total=len(source))

        def counted(rows: Iterable[Any]) -> Iterator[Any]:
            for done, row in enumerate(rows, 1):
                bar.update(task, completed=done + len(unreadable))
                yield row

        if isinstance(model, Locator):
            least = min_score if min_score is not None else 0.0 if results else 0.5
            found = model.rows(source, batch=batch or SCENES, min_score=least, unreadable=unreadable)
            written, objects = _write_objects(file, counted(found), paths if results else (), model.classes)
            told = f"{objects} objects of score {least:g} or more in {written} images"
        else:
            ranked = model.stream(source, batch=batch or SAMPLES, top=top or 2, unreadable=unreadable)
            written = _write(file, counted(ranked), top or 2)
            told = f"{written} predicted; {model.calibration}"
        if not written:
            raise UserError(f"none of {len(source)} inputs could be read; the first: {unreadable[0]}")
    print(f"evenhand: {told}", file=sys.stderr)
    if unreadable:
        print(f"evenhand: {len(unreadable)} of {len(source)} inputs could not be read:", file=sys.stderr)
        print(*(f"  {told}" for told in unreadable), sep="\n", file=sys.stderr)


def _write_objects(
    file: IO[str], found: Iterable[tuple[int, Objects]], numbered: Sequence[Path], classes: Sequence[str]
) -> tuple[int, int]:
    """A table, or COCO results of the images that ``numbered`` names; returns how many images and objects."""
    from evenhand.run.results import Numbering, write_results, write_table

    return write_results(file, found, Numbering.of(numbered, classes)) if numbered else write_table(file, found)


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
