"""Many runs as one experiment: every variant of a recipe over several seeds, a table, a report."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from evenhand import atomic
from evenhand.errors import UserError, did_you_mean
from evenhand.report.page import write_report
from evenhand.report.reading import load_run
from evenhand.report.records import by_task, group_runs
from evenhand.report.tables import summary_table
from evenhand.report.terminal import print_tables
from evenhand.report.verdict import task_cautions
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.training import train
from evenhand.tasks import task_named

DEMO = ("ce", "ce-drw", "ce-drw-sam")


def reproduce(
    name: str,
    *,
    seeds: int = 3,
    first_seed: int = 0,
    variants: Sequence[str] | None = None,
    overrides: Iterable[str] = (),
    out: Path | None = None,
    jobs: int = 1,
) -> Path:
    """Train what is missing, compare with [expect], write ``table.md`` and ``report.html``; returns the folder.

    Runs that are complete are kept and paused ones go on, so the command can be repeated until it is done.
    """
    name, _, chosen = name.partition(":") if not Path(name).exists() else (name, "", "")
    known = list(load_recipe(name).variants)
    wanted = list(variants or ([chosen] if chosen else known or [""]))
    for variant in wanted:
        if variant and variant not in known:
            raise UserError(f"recipe '{name}' has no variant '{variant}'; {did_you_mean(variant, known)}")
    folder = out or Path("runs") / f"reproduce-{Path(name).stem}"
    recipes = {
        folder / f"{variant or Path(name).stem}-{seed}": _recipe(name, variant, seed, overrides, folder)
        for seed in range(first_seed, first_seed + seeds)
        for variant in wanted
    }
    train_all([recipe for path, recipe in recipes.items() if not _done(path, recipe)], jobs)
    runs = sorted(recipes, key=lambda path: wanted.index(path.name.rpartition("-")[0]) if wanted != [""] else 0)
    _conclude(folder, runs, recipes)
    return folder


def demo(out: Path, overrides: Iterable[str] = ()) -> Path:
    """Plain training, re-weighting, and re-weighting with flat minima on long-tailed Fashion-MNIST."""
    say = Console()
    say.print("[bold]Fashion-MNIST, made long-tailed (imbalance 100): can rare classes be recognised too?[/]")
    return reproduce("fashion-lt", seeds=1, variants=DEMO, overrides=overrides, out=out)


def _recipe(name: str, variant: str, seed: int, overrides: Iterable[str], folder: Path) -> Recipe:
    run = folder / f"{variant or Path(name).stem}-{seed}"
    place = [f"run.seed={seed}", f"run.folder={json.dumps(str(run))}", "run.resume=true"]
    return load_recipe(f"{name}:{variant}" if variant else name, [*overrides, *place])


def _done(folder: Path, recipe: Recipe) -> bool:
    if not (folder / "measure.json").exists():
        return False
    if load_recipe(folder / "recipe.toml").digest() != recipe.digest():
        raise UserError(f"{folder} holds a run of another recipe: remove it, or choose another --out")
    return True


def train_all(recipes: list[Recipe], jobs: int) -> None:
    say = Console(stderr=True)
    if jobs == 1:
        for number, recipe in enumerate(recipes, 1):
            say.print(f"[dim]{number}/{len(recipes)}[/] {Path(recipe.run.folder).name}", highlight=False)
            train(recipe)
            if not (Path(recipe.run.folder) / "measure.json").exists():
                raise UserError(f"{recipe.run.folder} is paused: repeat the command to go on")
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        quiet = [r.model_copy(update={"run": r.run.model_copy(update={"progress": False})}) for r in recipes]
        waiting = [pool.submit(train, recipe) for recipe in quiet]
        for number, finished in enumerate(as_completed(waiting), 1):
            say.print(f"[dim]{number}/{len(recipes)}[/] {finished.result().name}", highlight=False)


def _conclude(folder: Path, runs: list[Path], recipes: dict[Path, Recipe]) -> None:
    records = [load_run(run) for run in runs]
    say = Console()
    print_tables(records)
    verdicts = _compare(recipes)
    for line in verdicts:
        say.print(line, highlight=False)
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    head = (
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"seeds {sorted({r.run.seed for r in recipes.values()})}\n\n    {command}\n\n"
    )
    tables = "\n".join(summary_table(same).to_markdown() for same in by_task(records).values())
    remarks = verdicts + task_cautions(group_runs(records))
    text = head + tables + "\n" + "".join(f"\n- {line}" for line in remarks) + "\n" * bool(remarks)
    atomic.write(folder / "table.md", text)
    page = write_report(runs, folder / "report.html")
    say.print(f"table: {folder / 'table.md'}\nreport: {page}", highlight=False)


def _compare(recipes: dict[Path, Recipe]) -> list[str]:
    """One line for each expected number: the mean over seeds beside it."""
    by_variant: dict[str, list[Path]] = {}
    for path in recipes:
        by_variant.setdefault(path.name.rpartition("-")[0], []).append(path)
    lines = []
    for variant, paths in by_variant.items():
        measured = [json.loads((path / "measure.json").read_text()) for path in paths]
        for metric, expected in recipes[paths[0]].expect.items():
            mean = statistics.fmean(_number(table, metric) for table in measured)
            agrees = abs(mean - expected.value) <= expected.tolerance
            lines.append(
                f"{variant}: {metric} {mean:.3f}, expected {expected.value:.3f} ± {expected.tolerance:.3f} "
                f"({expected.source}): {'agrees' if agrees else 'DIFFERS'}"
            )
    return lines


def _number(measured: dict[str, Any], key: str) -> float:
    """A number of measure.json by its metric's key, as it stands there."""
    metric, found = task_named(measured["task"]).metric(key), measured
    for part in metric.path:
        found = found.get(part) if isinstance(found, dict) else None  # type: ignore[assignment]
    if not isinstance(found, float):
        raise UserError(f"[expect] names '{key}', which was not measured in this run")
    return found
