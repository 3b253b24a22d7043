"""Run folders read into records, and records that differ only in their seed put together."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenhand.errors import UserError
from evenhand.report.metrics import Metric

NOT_RUN = "not run"
# What the scores of a generator depend on, besides the generator.
JUDGED_BY = ("features", "resize", "dimensions", "reference", "real_count", "fake_count", "k")


@dataclass(frozen=True)
class RunRecord:
    """What one run folder holds; a part that is not there is None or empty."""

    name: str
    folder: Path
    recipe: dict[str, Any] | None
    recipe_text: str
    log: tuple[dict[str, Any], ...]
    measure: dict[str, Any] | None
    streams: dict[str, Any]
    environment: dict[str, Any]

    @property
    def seed(self) -> Any:
        recipe = self.recipe or {}
        return recipe.get("seed", (recipe.get("run") or {}).get("seed"))

    @property
    def label(self) -> str:
        return self.name if self.seed is None else f"seed {self.seed}"

    def value(self, metric: Metric) -> float | None:
        """The measured number in the metric's scale; None if not run, NaN if undefined (no samples)."""
        found: Any = self.measure
        for key in metric.path:
            if not isinstance(found, dict) or key not in found:
                return None
            found = found[key]
        return math.nan if found is None else metric.scale * float(found)

    def of_class(self, metric: Metric, index: int) -> float | None:
        """One class's number in the metric's scale; None if not run, NaN if undefined (no samples)."""
        values = (self.measure or {}).get(metric.path[0])
        if not values:
            return None
        value = values[index]["value"] if isinstance(values[index], dict) else values[index]
        return math.nan if value is None else metric.scale * float(value)

    @property
    def draws(self) -> bool:
        """Whether it is the run of a generator."""
        return "fid" in (self.measure or {}) or "optim_g" in ((self.recipe or {}).get("method") or {})


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed."""

    name: str
    records: tuple[RunRecord, ...]

    @property
    def measured(self) -> tuple[RunRecord, ...]:
        return tuple(r for r in self.records if r.measure is not None)

    @property
    def measure(self) -> dict[str, Any]:
        """The first measured run's file: class names, groups and selection are the same in all of them."""
        return (self.measured[0].measure or {}) if self.measured else {}

    @property
    def task(self) -> str:
        """Numbers are comparable between groups of one task: the same split of the same classes, judged alike."""
        return json.dumps([self.measure.get(key) for key in ("split", "classes", *(JUDGED_BY if self.draws else ()))])

    @property
    def draws(self) -> bool:
        return any(r.draws for r in self.records)

    @property
    def oracle(self) -> bool:
        return str(self.measure.get("select", "")).startswith("oracle")

    @property
    def size(self) -> str:
        """``3 seeds``; ``2 of 3 seeds`` if one was not measured; ``runs`` if a seed repeats or is unknown."""
        seeds = [r.seed for r in self.records]
        noun = "seed" if None not in seeds and len({*map(str, seeds)}) == len(seeds) else "run"
        total, done = len(self.records), len(self.measured)
        count = f"{done} of {total}" if 0 < done < total else str(total)
        return f"{count} {noun}{'s' if total > 1 else ''}"

    def parts(self, key: str) -> list[Any]:
        """One part of measure.json, from every run that has it."""
        return [r.measure[key] for r in self.records if r.measure and r.measure.get(key)]

    def values(self, metric: Metric) -> list[tuple[str, float]]:
        """(which run, value) of every run that measured it."""
        return [(r.label, v) for r in self.records if (v := r.value(metric)) is not None]


def _parsed(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8")) if path.exists() else None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}); write it again or remove the run") from error


def _json_object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {type(found).__name__}")
    return found


def _json_lines(text: str) -> tuple[dict[str, Any], ...]:
    lines = text.split("\n")
    # The text after the last newline is a row still being written by a live (or killed) run.
    return tuple(_json_object(line) for line in lines[:-1] if line.strip())


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
    known = ("recipe.toml", "log.jsonl", "measure.json", "streams.json")
    if not any((folder / name).is_file() for name in known):
        raise UserError(f"{folder} is no run folder (it has no {' or '.join(known)}); give one that train wrote")
    measure = _parsed(folder / "measure.json", _json_object)
    if measure is not None:
        size = len(measure.get("classes", ()))
        for key in ("train_counts", "recall", "confusion", "class_fid", "class_shares", "diversity", "patterns"):
            value = measure.get(key)  # a generator's recall is one number
            if isinstance(value, list) and (length := len(value)) not in (0, size):
                raise UserError(f"{folder}/measure.json: {key} has {length} entries, not {size}; measure it again")
    return RunRecord(
        name=folder.resolve().name,
        folder=folder,
        recipe=_parsed(folder / "recipe.toml", tomllib.loads),
        recipe_text=_parsed(folder / "recipe.toml", str) or "",
        log=_parsed(folder / "log.jsonl", _json_lines) or (),
        measure=measure,
        streams=_parsed(folder / "streams.json", _json_object) or {},
        environment=_parsed(folder / "environment.json", _json_object) or {},
    )


# What may differ between repetitions of one experiment: the seed, and what cannot change the result. A seed
# elsewhere (data.seed, the split) makes other data and hence another experiment.
REPETITION = {
    "name", "about", "expect", "smoke", "variants", "seed", "folder", "device", "threads", "workers",
    "tensorboard", "progress", "resume", "stop_after",
}  # fmt: skip


def comparable(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe without what may differ between repetitions, at its top and in its [run] table."""
    kept = {key: value for key, value in recipe.items() if key not in REPETITION}
    if isinstance(kept.get("run"), dict):
        kept["run"] = {key: value for key, value in kept["run"].items() if key not in REPETITION}
    return kept


def _group_name(records: Sequence[RunRecord]) -> str:
    """The folders' name without the seed: ``ce`` for ``ce-0`` and ``ce-1``, or for ``ce/seed0``."""
    parent = records[0].folder.resolve().parent.name
    bare = [re.sub(rf"(^|[-_. ]+)(seed|s)?[-_=]?{re.escape(str(r.seed))}$", "", r.name) for r in records]
    if len(set(bare)) == 1:
        return bare[0] or parent
    prefix = os.path.commonprefix(bare)  # noqa: RUF071  (of letters, not of path parts)
    return prefix if prefix in bare else re.sub(r"[-_. ][^-_. ]*$", "", prefix) or parent


def group_runs(records: Iterable[RunRecord]) -> list[RunGroup]:
    """Runs with one recipe (apart from the seed), measured in one way, in the order given."""
    by_recipe: dict[str, list[RunRecord]] = {}
    for record in records:
        recipe = {"unknown": str(record.folder)} if record.recipe is None else comparable(record.recipe)
        by_recipe.setdefault(json.dumps(recipe, sort_keys=True, default=str), []).append(record)
    bundles: list[list[RunRecord]] = []
    for same in by_recipe.values():
        ways: dict[str, list[RunRecord]] = {}
        for record in sorted(same, key=lambda r: r.measure is None):
            measure = record.measure or {}
            way = str([measure.get(k) for k in ("split", "select", "checkpoint", "classes")])
            # An unmeasured run belongs to its recipe's first measured group, as "not run".
            ways.setdefault(way if record.measure else next(iter(ways), way), []).append(record)
        bundles += [[r for r in same if r in bundle] for bundle in ways.values()]
    names = [_group_name(bundle) for bundle in bundles]
    for tell in (lambda r: r.name, lambda r: str(r.folder)):  # names in common give way to what tells apart
        names = [tell(b[0]) if names.count(n) > 1 else n for n, b in zip(names, bundles, strict=True)]
    return [RunGroup(name, tuple(bundle)) for name, bundle in zip(names, bundles, strict=True)]


def class_order(counts: Sequence[int], groups: Mapping[str, Sequence[int]]) -> list[int]:
    """Class indices from most to least training samples; ties stay within their group."""
    rank = {index: place for place, members in enumerate(groups.values()) for index in members}
    return sorted(range(len(counts)), key=lambda k: (-counts[k], rank.get(k, 0), k))
