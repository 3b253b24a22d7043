"""A run measured: the only place that opens the test split unasked."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from evenhand import atomic, parallel
from evenhand.data.prepared import Data
from evenhand.errors import UserError
from evenhand.run import checkpoint
from evenhand.run.opening import OpenRun, open_run
from evenhand.run.selection import rules_of

FILE = "measure.json"


def final_split(data: Data) -> str:
    """What a run is measured on in the end: the test, or the validation where a target has no labels at all."""
    return "test" if "test" in data.streams else "val"


def measure(folder: str | Path, *, split: str = "test") -> dict[str, Any]:
    """Measure a run on a split and write ``measure.json``."""
    run = open_run(folder)
    return measure_open(run, run.data(), split=split)


def measure_open(run: OpenRun, data: Data, *, split: str) -> dict[str, Any]:
    """Measure an opened run on a split of its data."""
    if split not in data.streams:
        raise UserError(f"this run has no '{split}' split; it has: {', '.join(data.streams)}")
    task, batch = run.method.task, run.recipe.run.eval_batch
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
    if run.recipe.run.select_also:
        table["also"] = _measure_also(run, data, split)
    if parallel.is_writer():
        name = FILE if split == final_split(data) else f"measure-{split}.json"
        table |= _kept_score(run.folder / name, table)
        atomic.write_json(run.folder / name, table)
    return table


def _kept_score(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    """The classifier-accuracy score of the same checkpoint, which takes long, survives a new measurement."""
    before = json.loads(path.read_text()) if path.is_file() else {}
    same = all(before.get(key) == table[key] for key in ("split", "checkpoint", "step"))
    return {key: before[key] for key in ("classifier_score",) if same and key in before}


def _measure_also(run: OpenRun, data: Data, split: str) -> dict[str, dict[str, Any]]:
    """The numbers of the checkpoints that other rules would have chosen; the run's own weights are put back."""
    settings, own = run.recipe.run, copy.deepcopy(run.method.state())
    found: dict[str, dict[str, Any]] = {}
    for rule in rules_of("last", settings.select_also):
        content = checkpoint.load(run.folder / rule.file)
        run.method.load_state(content["method"])
        scores = run.method.task.score(run.method, data.streams[split], batch=settings.eval_batch)
        numbers = {key: value for key, value in scores.items() if ":" not in key}
        labels = {"chosen_with_target_labels": rule.kind == "oracle"}
        found[rule.text] = {**numbers, **labels, "checkpoint": rule.file, "step": int(content["step"])}
    run.method.load_state(own)
    return found
