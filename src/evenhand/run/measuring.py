"""A run measured: the only place that opens the test split unasked."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from evenhand import atomic, parallel
from evenhand.data.prepared import Data
from evenhand.data.stream import decoded_by
from evenhand.errors import UserError
from evenhand.measure.features import Extractor
from evenhand.measure.judging import Features
from evenhand.methods.protocol import Drawer
from evenhand.run import checkpoint
from evenhand.run.folder import keep_temperature
from evenhand.run.opening import OpenRun, open_run
from evenhand.run.selection import rules_of
from evenhand.tasks.generate import GENERATE

FILE = "measure.json"


def final_split(data: Data) -> str:
    """What a run is measured on in the end: the test, or the validation where a target has no labels at all."""
    return "test" if "test" in data.streams else "val"


def measure(folder: str | Path, *, split: str = "test") -> dict[str, Any]:
    """Measure a run on a split and write ``measure.json``."""
    run = open_run(folder)
    return measure_open(run, run.data(), split=split)


def measure_by(folder: str | Path, features: Features | Extractor) -> dict[str, Any]:
    """Measure a generator by other features than its recipe's, and write ``measure-inception.json`` or the like.

    Nothing else of the run changes: distances in a second space tell whether the first was kind to it. An ``Extractor``
    of one's own gives the file its name.
    """
    name = features.name if isinstance(features, Extractor) else features
    run = open_run(folder)
    if run.method.task is not GENERATE:
        raise UserError(f"--features {name} compares images that are drawn, but {folder} draws none: leave it out")
    method, data, batch = cast(Drawer, run.method), run.data(), run.recipe.run.eval_batch
    split, judge = final_split(data), method.judge
    if features == "annotator" and judge.annotator is None:
        raise UserError(f"{folder} has no annotator: choose other --features")
    judge.settings = judge.settings.model_copy(update={"features": name})
    if isinstance(features, Extractor):
        judge.extractor = features
    told = {"task": GENERATE.name, "split": split, "checkpoint": run.checkpoint, "step": run.step}
    table = {**told, **GENERATE.table(method, data.streams[split], batch=batch)}
    if parallel.is_writer():
        file = re.sub(r"[^\w.-]+", "-", f"measure-{name}.json")
        atomic.write_json(run.folder / file, table)
    return table


def measure_open(run: OpenRun, data: Data, *, split: str) -> dict[str, Any]:
    """Measure an opened run on a split of its data; ``confusion.npz``, ``predictions.csv`` and the like lie beside."""
    if split not in data.streams:
        raise UserError(f"this run has no '{split}' split; it has: {', '.join(data.streams)}")
    task, batch = run.method.task, run.recipe.run.eval_batch
    final = split == final_split(data)
    # The test split stays closed where another one is measured.
    opened = {name: stream for name, stream in data.streams.items() if final or name != "test"}
    data = replace(data, streams=decoded_by(opened, run.recipe.run.workers))
    table: dict[str, Any] = {
        "task": task.name,
        "split": split,
        "checkpoint": run.checkpoint,
        "step": run.step,
        "select": run.recipe.run.select,
        "classes": list(data.classes),
        "train_counts": data.counts,
        "groups_rule": f"{data.facts.groups_rule}, by training count",
        **task.table(run.method, data.streams[split], batch=batch),
        **task.finish(run.method, data, run.folder, batch=batch),
    }
    fitted = table.get("temperature", {}).get("value")
    if final and fitted is None:
        fitted = task.temperature(run.method, data.streams, batch=batch)
    if run.recipe.run.select_also:
        table["also"] = _measure_also(run, data, split)
    arrays = {key: table.pop(key) for key, value in list(table.items()) if isinstance(value, np.ndarray)}
    files = {key: table.pop(key) for key, value in list(table.items()) if isinstance(value, bytes)}
    if parallel.is_writer():
        ending = "" if final else f"-{split}"
        for key, content in files.items():
            named = Path(key)
            atomic.write(run.folder / f"{named.stem}{ending}{named.suffix}", content)
        for key, array in arrays.items():
            write_array(run.folder / f"{key}{ending}.npz", key, array)
        path = run.folder / (FILE if final else f"measure{ending}.json")
        table |= _kept_score(path, table)
        atomic.write_json(path, table)
        if final:
            keep_temperature(run.folder, fitted)
    return table


def write_array(path: Path, key: str, array: np.ndarray) -> None:
    """An array beside the JSON, where a matrix of 2,000 classes would be 32 MB."""
    with atomic.replacing(path) as part, part.open("wb") as out:
        np.savez_compressed(out, allow_pickle=False, **{key: array})


def _kept_score(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    """The classifier-accuracy score of the same checkpoint, which takes long, survives a new measurement."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # none yet, or a damaged one, which is replaced
    known = isinstance(before, dict) and all(before.get(key) == table[key] for key in ("split", "checkpoint", "step"))
    return {key: before[key] for key in ("classifier_score",) if known and key in before}


def _measure_also(run: OpenRun, data: Data, split: str) -> dict[str, dict[str, Any]]:
    """The numbers of the checkpoints that other rules would have chosen; the run's own weights are put back."""
    settings, own = run.recipe.run, copy.deepcopy(run.method.state())
    found: dict[str, dict[str, Any]] = {}
    for rule in rules_of("last", settings.select_also):
        content = checkpoint.load(run.folder / rule.file)
        checkpoint.restore(run.method, content, run.folder / rule.file)
        scores = run.method.task.score(run.method, data.streams[split], batch=settings.eval_batch)
        numbers = {key: value for key, value in scores.items() if ":" not in key}
        labels = {"chosen_with_target_labels": rule.kind == "oracle"}
        found[rule.text] = {**numbers, **labels, "checkpoint": rule.file, "step": int(content["step"])}
    run.method.load_state(own)
    return found
