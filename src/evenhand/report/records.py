"""What run folders hold, and records that differ only in their seed, and the split that goes with it, put together."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from evenhand.report.repeats import but_for_the_split, by_split, per_seed
from evenhand.tasks import Task
from evenhand.tasks.metric import Metric

NOT_RUN = "not run"
ClassData = tuple[list[str], list[int], dict[str, list[int]]]  # names, training counts, groups
Line = tuple[str, list[float], list[float]]  # name, x, y


@dataclass(frozen=True)
class RunRecord:
    """One run folder; a part that is not there is None or empty."""

    name: str
    folder: Path
    task: Task
    recipe: dict[str, Any] | None
    recipe_text: str
    log: tuple[dict[str, Any], ...]
    measure: dict[str, Any] | None
    facts: dict[str, Any]
    streams: dict[str, Any]
    environment: dict[str, Any]

    @property
    def seed(self) -> Any:
        recipe = self.recipe or {}
        return recipe.get("seed", recipe.get("run", {}).get("seed"))

    @property
    def split_seed(self) -> Any:
        """Of the data's split; None if unknown."""
        return (self.recipe or {}).get("data", {}).get("split_seed")

    @property
    def label(self) -> str:
        return self.name if self.seed is None else f"seed {self.seed}"

    @property
    def method(self) -> dict[str, Any]:
        """The recipe's [method]."""
        return (self.recipe or {}).get("method", {})

    def value(self, metric: Metric) -> float | None:
        """The measured number in the metric's scale; None if not run, NaN if undefined (no samples)."""
        found: Any = self.measure
        for key in metric.path:
            if not isinstance(found, dict) or key not in found:
                return None
            found = found[key]
        return scaled(metric, found)

    def of_class(self, metric: Metric, index: int) -> float | None:
        """One class's number in the metric's scale; None if not run, NaN if undefined (no samples)."""
        entry = self._entry(metric, index)
        return None if entry is None else scaled(metric, entry["value"])

    def doubtful(self, metric: Metric, index: int) -> bool:
        """Whether whoever measured the class's number says that it is not to be trusted."""
        return bool((self._entry(metric, index) or {}).get("flag"))

    def _entry(self, metric: Metric, index: int) -> dict[str, Any] | None:
        values = (self.measure or {}).get(metric.path[0])
        if not values:
            return None
        return values[index] if isinstance(values[index], dict) else {"value": values[index]}

    @property
    def failure(self) -> str:
        """Why a run has no place beside the others: it diverged, has not ended, or measured no number; else empty."""
        if self.measure is not None:
            found = self.value(self.task.headline)
            return "" if found is None or finite(found) else f"its {self.task.headline.name} is undefined"
        if not self.log:
            return ""
        last = self.log[-1]
        return str(last.get("reason") or f"not measured; its log ends at step {last['step']:,}")

    def curve(self, name: str, kind: str, key: str, over: str = "step") -> Line | None:
        """A number of the log where it is one, as a line called ``name``."""
        rows = [row for row in self.log if row["kind"] == kind and finite(row.get(key))]
        return (name, [row[over] for row in rows], [row[key] for row in rows]) if rows else None


def scaled(metric: Metric, value: Any) -> float:
    return metric.scale * value if isinstance(value, int | float) else math.nan


def finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed; or in their seed and their split, which then has the same number.

    ``lost`` are those that failed and are told of apart.
    """

    name: str
    records: tuple[RunRecord, ...]
    lost: tuple[RunRecord, ...] = ()

    @property
    def task(self) -> Task:
        return self.records[0].task

    @property
    def measured(self) -> tuple[RunRecord, ...]:
        return tuple(r for r in self.records if r.measure is not None)

    @property
    def measure(self) -> dict[str, Any]:
        """The first measured run's file: class names, groups and selection are the same in all of them."""
        return (self.measured[0].measure or {}) if self.measured else {}

    @property
    def judged(self) -> dict[str, Any]:
        """Numbers compare between groups that agree in these: the same split of the same classes, judged alike."""
        return {key: self.measure.get(key) for key in ("split", "classes", *self.task.judged_by)}

    @property
    def comparable_key(self) -> str:
        return json.dumps([self.task.name, self.judged])

    @property
    def classes(self) -> ClassData:
        """As measured, else as training knew them; empty if unknown."""
        known, counts = (self.measure, "train_counts") if self.measured else (self.records[0].facts, "counts")
        return known.get("classes", []), known.get(counts, []), known.get("groups", {})

    @property
    def oracle(self) -> bool:
        return self.measure.get("select", "").startswith("oracle")

    @property
    def size(self) -> str:
        """``3 seeds``; ``3 seeds and splits`` if each split the data anew; ``2 of 3 seeds`` if one was not measured;
        ``runs`` if a seed repeats or is unknown."""
        every = (*self.records, *self.lost)
        seeds = [r.seed for r in every]
        noun = "seed" if None not in seeds and len({*map(str, seeds)}) == len(seeds) else "run"
        total, done = len(every), len(self.measured)
        count = f"{done} of {total}" if 0 < done < total else str(total)
        varied = len({str(r.split_seed) for r in every}) > 1
        return f"{count} {noun}{'s' if total > 1 else ''}{' and splits' if varied else ''}"

    def parts(self, key: str) -> list[Any]:
        """One part of measure.json, from every run that has it."""
        return [r.measure[key] for r in self.records if r.measure and r.measure.get(key)]

    def values(self, metric: Metric) -> list[tuple[str, float]]:
        """(which run, value) of every seed that measured it."""
        return per_seed((r.label, r.value(metric)) for r in self.records)


Told = TypeVar("Told", RunRecord, RunGroup)


def by_task(told: Iterable[Told]) -> dict[Task, list[Told]]:
    """Runs of different tasks have no number in common; by the tasks' names."""
    found: dict[Task, list[Told]] = {}
    for one in sorted(told, key=lambda one: one.task.name):
        found.setdefault(one.task, []).append(one)
    return found


def _group_name(records: Sequence[RunRecord]) -> str:
    """The folders' name without the seed: ``ce`` for ``ce-0`` and ``ce-1``, or for ``ce/seed0``."""
    parent = records[0].folder.resolve().parent.name
    bare = [re.sub(rf"(^|[-_. ]+)(seed|s)?[-_=]?{re.escape(str(r.seed))}$", "", r.name) for r in records]
    if len(set(bare)) == 1:
        return bare[0] or parent
    prefix = os.path.commonprefix(bare)  # noqa: RUF071  (of letters, not of path parts)
    return prefix if prefix in bare else re.sub(r"[-_. ][^-_. ]*$", "", prefix) or parent


def group_runs(records: Iterable[RunRecord]) -> list[RunGroup]:
    """Runs of one task with one recipe (apart from the seed), measured in one way, in the order given."""
    by_recipe: dict[str, list[RunRecord]] = {}
    for record in records:
        recipe = {"unknown": str(record.folder)} if record.recipe is None else but_for_the_split(record.recipe)
        key = json.dumps([record.task.name, recipe], sort_keys=True, default=str)
        by_recipe.setdefault(key, []).append(record)
    bundles: list[list[RunRecord]] = []
    for same in (part for alike in by_recipe.values() for part in by_split(alike)):
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


def apart(groups: Sequence[RunGroup]) -> tuple[list[RunGroup], list[RunRecord]]:
    """The groups of what can be compared, and the runs that failed; where all did, they are shown nonetheless."""
    lost = [r for g in groups for r in g.records if r.failure]
    if len(lost) == sum(len(g.records) for g in groups):
        return list(groups), lost
    parted = [
        replace(g, records=tuple(r for r in g.records if not r.failure), lost=tuple(r for r in g.records if r.failure))
        for g in groups
    ]
    return [g for g in parted if g.records], lost


def by_count(classes: ClassData) -> list[int]:
    """Class indices from most to least training samples; ties stay within their group."""
    _, counts, groups = classes
    rank = {index: place for place, members in enumerate(groups.values()) for index in members}
    return sorted(range(len(counts)), key=lambda k: (-counts[k], rank.get(k, 0), k))
