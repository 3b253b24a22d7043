"""Many runs as one experiment: every variant of a recipe over several seeds, a table, a report."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

from rich.console import Console

from evenhand import atomic
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError, did_you_mean, repeatable
from evenhand.process import keep_freed, workers
from evenhand.report.page import write_report
from evenhand.report.reading import load_run
from evenhand.report.records import by_task, group_runs
from evenhand.report.tables import summary_table
from evenhand.report.terminal import print_tables
from evenhand.report.verdict import task_cautions
from evenhand.run.folder import told_streams
from evenhand.run.opening import read_data
from evenhand.run.recipe import Expected, Recipe, load_recipe
from evenhand.run.tables import differences, named, parse_override
from evenhand.run.training import train
from evenhand.tasks import task_named

DEMO = ("ce", "ce-drw", "ce-drw-sam")
SMALL = 20_000  # training samples below which the luck of the split is as large as that of the seed


def reproduce(
    name: str,
    *,
    seeds: int = 3,
    first_seed: int = 0,
    variants: Sequence[str] | None = None,
    overrides: Iterable[str] = (),
    out: Path | None = None,
    jobs: int = 1,
    splits: bool | None = None,
) -> Path:
    """Train what is missing, compare with [expect], write ``table.md`` and ``report.html``; returns the folder.

    Runs that are complete are kept and paused ones go on, so the command can be repeated until it is done. With
    ``splits`` every seed also splits the data anew (data.split_seed), so that the spread has both in it; by default
    where the data are few.
    """
    overrides = list(overrides)
    name, _, chosen = name.partition(":") if not Path(name).exists() else (name, "", "")
    known = list(load_recipe(name).variants)
    wanted = list(variants or ([chosen] if chosen else known or [""]))
    for variant in wanted:
        if variant and variant not in known:
            raise UserError(f"recipe '{name}' has no variant '{variant}'; {did_you_mean(variant, known)}")
    folder = out or Path("runs") / f"reproduce-{Path(name).stem}"
    written = {variant: load_recipe(f"{name}:{variant}" if variant else name) for variant in wanted}
    asked = [load_recipe(f"{name}:{variant}" if variant else name, overrides) for variant in wanted]
    splits = _varied(splits, asked, overrides)
    recipes = {
        folder / f"{variant or Path(name).stem}-{seed}": _recipe(name, variant, seed, overrides, folder, splits=splits)
        for seed in range(first_seed, first_seed + seeds)
        for variant in wanted
    }
    train_all([recipe for path, recipe in recipes.items() if not is_done(path, recipe)], jobs)
    runs = sorted(recipes, key=lambda path: wanted.index(path.name.rpartition("-")[0]) if wanted != [""] else 0)
    _conclude(folder, runs, recipes, {variant or Path(name).stem: recipe for variant, recipe in written.items()})
    return folder


def demo(out: Path, overrides: Iterable[str] = ()) -> Path:
    """Plain training, re-weighting, and re-weighting with flat minima on long-tailed Fashion-MNIST."""
    say = Console()
    say.print("[bold]Fashion-MNIST, made long-tailed (imbalance 100): can rare classes be recognised too?[/]")
    return reproduce("fashion-lt", seeds=1, variants=DEMO, overrides=overrides, out=out, splits=False)


def _recipe(name: str, variant: str, seed: int, overrides: list[str], folder: Path, *, splits: bool) -> Recipe:
    run = folder / f"{variant or Path(name).stem}-{seed}"
    place = [f"run.seed={seed}", f"run.folder={json.dumps(str(run))}", "run.resume=true"]
    place += [f"data.split_seed={seed}"] * splits
    return load_recipe(f"{name}:{variant}" if variant else name, [*overrides, *place])


def _varied(splits: bool | None, recipes: list[Recipe], overrides: list[str]) -> bool:
    """Whether every seed has a split of its own; where nothing is said, if the data are few and all else can follow."""
    if splits is False:
        return False
    against = _one_split(recipes, overrides)
    if splits and against:
        raise UserError(f"--splits: {against}")
    return not against and (splits or len(read_data(recipes[0]).labelled) < SMALL)


def _one_split(recipes: list[Recipe], overrides: list[str]) -> str:
    """Why the split cannot follow the seed; empty if it can."""
    given = {key for text in overrides for key, _ in named(*parse_override(text))}
    for recipe in recipes:
        if "data.split_seed" in given or recipe.data.split_seed != DataSettings.model_fields["split_seed"].default:
            return "data.split_seed is set, to one split for all seeds; leave it out, in a copy of the recipe"
        for name, need in recipe.needs.items():
            if Path(need.recipe).is_dir():  # it may have been trained on what another split tests
                return f"needs.{name} is one run for all seeds, of one split; use --no-splits"
    return ""


def is_done(folder: Path, recipe: Recipe) -> bool:
    """Whether a run of this very recipe is measured in this folder; another one's is refused."""
    if not (folder / "measure.json").exists():
        return False
    if load_recipe(folder / "recipe.toml").digest() != recipe.digest():
        keys = ", ".join(differences(load_recipe(folder / "recipe.toml").essence(), recipe.essence())[:5])
        raise UserError(
            f"{folder} holds a run of another recipe, which differs in {keys}: remove it, or choose another --out"
        )
    return True


def train_all(recipes: list[Recipe], jobs: int) -> None:
    """Train them, some at a time; whoever interrupts it learns how to go on."""
    keep_freed()
    with repeatable():
        _train_all(recipes, jobs)


def _train_all(recipes: list[Recipe], jobs: int) -> None:
    say = Console(stderr=True)
    if jobs == 1:
        for number, recipe in enumerate(recipes, 1):
            say.print(f"[dim]{number}/{len(recipes)}[/] {Path(recipe.run.folder).name}", highlight=False)
            train(recipe)
            if not (Path(recipe.run.folder) / "measure.json").exists():
                raise UserError(f"{recipe.run.folder} is paused: repeat the command to go on")
        return
    with workers(jobs) as pool:
        quiet = [r.model_copy(update={"run": r.run.model_copy(update={"progress": False})}) for r in recipes]
        waiting = [pool.submit(train, recipe) for recipe in quiet]
        for number, finished in enumerate(as_completed(waiting), 1):
            say.print(f"[dim]{number}/{len(recipes)}[/] {finished.result().name}", highlight=False)


def _conclude(folder: Path, runs: list[Path], recipes: dict[Path, Recipe], written: dict[str, Recipe]) -> None:
    records = [load_run(run) for run in runs]
    say = Console()
    print_tables(records)
    verdicts = _compare(recipes, written)
    for line in verdicts:
        say.print(line, highlight=False)
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    head = (
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"seeds {sorted({r.run.seed for r in recipes.values()})}, {_split_said(recipes)}\n\n    {command}\n\n"
    )
    tables = "\n".join(summary_table(same).to_markdown() for same in by_task(records).values())
    remarks = verdicts + task_cautions(group_runs(records))
    text = head + tables + "\n" + "".join(f"\n- {line}" for line in remarks) + "\n" * bool(remarks)
    atomic.write(folder / "table.md", text)
    page = write_report(runs, folder / "report.html")
    say.print(f"table: {folder / 'table.md'}\nreport: {page}", highlight=False)


def _split_said(recipes: dict[Path, Recipe]) -> str:
    """What the spread of the table has in it."""
    used = {recipe.data.split_seed for recipe in recipes.values()}
    if len(used) == 1:
        return f"one split of the data (data.split_seed {used.pop()})"
    if len({_digests(path) for path in recipes}) == 1:
        return "one split of the data, which is given"
    return "each with its own split of the data (data.split_seed)"


def _digests(run: Path) -> str:
    """Of all that a run trained and was tested on."""
    return json.dumps({name: stream.digest for name, stream in told_streams(run).items()}, sort_keys=True)


def _compare(recipes: dict[Path, Recipe], written: dict[str, Recipe]) -> list[str]:
    """One line for each expected number: the mean over seeds beside it; and one where there is nothing to compare."""
    by_variant: dict[str, list[Path]] = {}
    for path in recipes:
        by_variant.setdefault(path.name.rpartition("-")[0], []).append(path)
    lines = []
    for variant, paths in by_variant.items():
        recipe, as_written = recipes[paths[0]], written[variant]
        if as_written.expect.keys() - recipe.expect.keys():
            seeds = {"run.seed", "data.split_seed"}
            keys = [key for key in differences(as_written.essence(), recipe.essence()) if key not in seeds]
            lines.append(f"{variant}: its expected numbers are left out, they were made without {', '.join(keys)}")
        measured = [json.loads((path / "measure.json").read_text()) for path in paths]
        for metric, expected in recipe.expect.items():
            mean = statistics.fmean(_number(table, metric) for table in measured)
            fewer = max(1.0, len(expected.seeds) / len(paths))  # a mean over fewer seeds may lie further off
            slack = expected.tolerance * math.sqrt(fewer)
            agrees = "agrees" if abs(mean - expected.value) <= slack else "DIFFERS"
            lines.append(
                f"{variant}: {metric} {mean:.3f}, expected {expected.value:.3f} ± {slack:.3f} "
                f"({_origin(expected)}): {_other_split(expected, as_written, recipes, paths) or agrees}"
            )
    return lines


def _origin(expected: Expected) -> str:
    seeds = [f"seeds {', '.join(map(str, expected.seeds))}"] * bool(expected.seeds)
    return ", ".join([expected.source, *seeds, *[expected.date] * bool(expected.date)])


def _other_split(expected: Expected, written: Recipe, recipes: dict[Path, Recipe], paths: list[Path]) -> str:
    """Why a number of ours does not compare with these runs; empty if it does. Authors have splits of their own."""
    if expected.source == "authors":
        return ""
    one = all(recipes[path].data.split_seed == written.data.split_seed for path in paths)
    if expected.splits and one and len(paths) > 1:
        return "not compared, it is over several splits; use --splits"
    if expected.paired and sorted(recipes[path].run.seed for path in paths) != sorted(expected.seeds):
        own = f"--first-seed {min(expected.seeds)} --seeds {len(expected.seeds)}"
        return f"not compared, it holds for its own splits alone; use {own}"
    given = len(paths) > 1 and len({_digests(path) for path in paths}) == 1  # no seed changes it
    return "" if expected.splits or one or given else "not compared, it is of one split; use --no-splits"


def _number(measured: dict[str, Any], key: str) -> float:
    """A number of measure.json as it stands there, by its metric's key or by its own."""
    known = {metric.key: metric.path for metric in task_named(measured["task"]).metrics}
    found: Any = measured
    for part in known.get(key, (key,)):
        found = found.get(part) if isinstance(found, dict) else None
    if not isinstance(found, float):
        raise UserError(f"[expect] names '{key}', which was not measured in this run; {did_you_mean(key, known)}")
    return found
