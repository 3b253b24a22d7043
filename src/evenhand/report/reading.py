"""Run folders read into records. The files may come from anybody: one that is not as it should be is named."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from evenhand.errors import UserError
from evenhand.report.records import RunRecord
from evenhand.tasks import Task, task_named

AGAIN = "measure the run again"


class Row(BaseModel):
    kind: str
    step: float
    epoch: float


class Stream(BaseModel):
    samples: int | None = None
    counts: list[int] | None = None
    digest: str | None = None


class ClassFacts(BaseModel):
    """Names with their training counts, and groups of them."""

    classes: list[str] = []
    counts: list[int] = []
    groups: dict[str, list[int]] = {}

    @model_validator(mode="after")
    def _fit_together(self) -> ClassFacts:
        size = len(self.classes)
        if len(self.counts) != size:
            name = type(self).model_fields["counts"].alias or "counts"
            raise ValueError(f"{name} has {len(self.counts)} entries, not {size}")
        if not all(0 <= k < size for members in self.groups.values() for k in members):
            raise ValueError(f"groups name a class beyond the {size} there are")
        return self


class Model(BaseModel):
    task: str | None = None
    facts: ClassFacts = ClassFacts()


class Measured(ClassFacts):
    counts: list[int] = Field([], alias="train_counts")
    task: str | None = None
    split: str = ""
    select: str = ""
    checkpoint: str = ""
    groups_rule: str = ""
    samples: int | None = None
    also: dict[str, dict[str, float | bool | str | None]] | None = None


class Recipe(BaseModel):
    method: dict[str, Any] = {}
    run: dict[str, Any] = {}


class Judged(BaseModel):
    """A number with what its measurer says against it."""

    value: float | None
    flag: str | None = None


def _number(digits: str) -> int:
    """Longer ones overflow wherever they meet a float."""
    if len(digits) > 300:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


_loads = partial(json.loads, parse_int=_number)


def read(path: Path, kind: Any, remedy: str, parse: Callable[[str], Any] = _loads) -> Any:
    """What a file holds, which must be of that kind; None if there is no file."""
    if not path.exists():
        return None
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); {remedy}") from error
    _check(path, found, kind, remedy)
    return found


def _check(path: Path, found: Any, kind: Any, remedy: str, at: Sequence[str] = ()) -> None:
    try:
        TypeAdapter(kind).validate_python(found, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = " ".join([str(path), ".".join(map(str, (*at, *first["loc"])))]).rstrip()
        said = first["msg"].removeprefix("Value error, ").partition(" or instance")[0].replace("Input", "this")
        raise UserError(f"{where}: {said}; {remedy}") from error


def read_array(path: Path, key: str, remedy: str) -> np.ndarray | None:
    """Numbers from an array file, None if there is none. Others may have written it: nothing pickled in it is run."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            found = file[key]
    except Exception as error:  # a damaged or hostile archive raises nearly anything, memory errors included
        raise UserError(
            f"{path} cannot be read ({next(iter(str(error).splitlines()), type(error).__name__)}); {remedy}"
        ) from error
    if not isinstance(found, np.ndarray) or not np.issubdtype(found.dtype, np.number):
        raise UserError(f"{path}: {key} is not an array of numbers; {remedy}")
    return found


def read_square(path: Path, key: str, size: int, remedy: str) -> np.ndarray | None:
    """Counts (size, size) from an array file; None if there is no file."""
    found = read_array(path, key, remedy)
    if found is None:
        return None
    if found.shape != (size, size) or not np.issubdtype(found.dtype, np.integer) or found.min(initial=0) < 0:
        raise UserError(f"{path}: {key} {found.dtype} {found.shape} is not counts of {size} by {size}; {remedy}")
    return found


def _rows(text: str) -> tuple[Any, ...]:
    lines = text.split("\n")
    # The text after the last newline is a row still being written by a live (or killed) run.
    return tuple(_loads(line) for line in lines[:-1] if line.strip())


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Those that are runs, and the runs directly inside the others."""
    folders: list[Path] = []
    for path in paths:
        inside = sorted(p.parent for p in path.glob("*/recipe.toml"))
        folders += [path] if (path / "recipe.toml").exists() else inside
    if not folders:
        raise UserError(f"no runs in {', '.join(map(str, paths))}: give folders that contain recipe.toml")
    return folders


def load_run(folder: str | Path) -> RunRecord:
    """A run folder as ``fit`` and ``measure`` write it; absent files stay absent, broken ones are errors."""
    folder = Path(folder)
    known = ("recipe.toml", "model.json", "measure.json")
    if not any((folder / name).is_file() for name in known):
        raise UserError(f"{folder} is no run folder (it has no {' or '.join(known)}); give one that train wrote")
    model = read(folder / "model.json", Model, "train it again") or {}
    measure = read(folder / "measure.json", Measured, AGAIN)
    name = (measure or {}).get("task") or model.get("task")
    if name is None:
        raise UserError(f"{folder} is of an older format: no model.json or measure.json says its task; train again")
    task = task_named(name)
    if measure is not None:
        measure = task.sections().mended(measure)
        _check_measure(folder / "measure.json", measure, task)
    recipe = folder / "recipe.toml"
    return RunRecord(
        name=folder.resolve().name,
        folder=folder,
        task=task,
        recipe=read(recipe, Recipe, "restore it", tomllib.loads),
        recipe_text=read(recipe, str, "restore it", str) or "",
        log=read(folder / "log.jsonl", tuple[Row, ...], "remove it", _rows) or (),
        measure=measure,
        facts=model.get("facts", {}),
        streams=read(folder / "streams.json", dict[str, Stream], "remove it") or {},
        environment=read(folder / "environment.json", dict[str, Any], "remove it") or {},
    )


def _check_measure(path: Path, measure: dict[str, Any], task: Task) -> None:
    """What the task measures are numbers, and there is one for each class where it says so."""
    for metric in task.metrics:
        found: Any = measure
        for key in metric.path:
            found = found.get(key) if isinstance(found, dict) else found
        _check(path, found, float | None, AGAIN, metric.path)
    size = len(measure.get("classes", ()))
    for metric in task.per_class:
        values = measure.get(metric.path[0])
        _check(path, values, list[float | Judged | None] | None, AGAIN, metric.path)
        if values and len(values) != size:
            raise UserError(f"{path}: {metric.path[0]} has {len(values)} entries, not {size}; {AGAIN}")
    _check(path, measure, task.sections().parts, AGAIN)
