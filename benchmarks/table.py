"""Evidence: rows of recipes over seeds, as benchmarks/tables/NAME.toml declares them.

    python benchmarks/table.py selmix-fashion                     # trains what is missing, prints the table
    python benchmarks/table.py selmix-fashion --jobs 2
    python benchmarks/table.py selmix-fashion --rows base "min recall" --seeds 1 2
    python benchmarks/table.py selmix-fashion --print             # what is there, nothing is trained

A row is a recipe and its variant, and what is set besides: ``["csst-fashion:csl", "data.groups=9/1"]``; ``all_set`` is
set in every row. With ``@first`` behind the name it is the run that this recipe needs by that name. Seed s trains with
seed s on split s; all tables of a seed share what they need. Numbers of finished runs are kept in
results/kept/NAME.jsonl, each under a digest of its recipe and of all that this needs: a table grows from session to
session, and what has changed is trained anew.
Rows listed under ``[trained_in]`` are another table's runs, tested on this one's data: they never saw a target.
Generators may be measured by further features (``by``) and by a classifier trained on what they draw (``cas``).
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from evenhand import locks
from evenhand.measure.judging import Features
from evenhand.process import keep_freed, workers
from evenhand.run.measuring import measure, measure_by
from evenhand.run.needs import needed_recipe
from evenhand.run.opening import open_run, read_data
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.samples import classifier_score
from evenhand.run.training import train

HERE = Path(__file__).parent
Numbers = dict[str, float]


class Column(NamedTuple):
    """A number of a run, and how it is shown; a plain key is a share, shown in %."""

    key: str
    scale: float = 100.0
    digits: int = 1


class More(NamedTuple):
    """What is measured of a run besides its test."""

    splits: tuple[str, ...] = ()
    features: tuple[Features, ...] = ()  # of a generator
    cas: str = ""  # the recipe of a classifier that learns from what a generator draws


NOTHING = More()


@dataclass
class Table:
    """What a file declares: metrics by their titles, rows by theirs, and what is measured beside the test."""

    name: str
    columns: dict[str, str | dict[str, Any]]
    rows: dict[str, str | list[str]]
    seeds: list[int]
    also: tuple[str, ...] = ()
    by: tuple[Features, ...] = ()
    cas: str = ""
    trained_in: dict[str, str] = field(default_factory=dict)
    all_set: list[str] = field(default_factory=list)  # in every row, before its own

    @property
    def shown(self) -> dict[str, Column]:
        return {title: Column(c) if isinstance(c, str) else Column(**c) for title, c in self.columns.items()}

    @property
    def more(self) -> More:
        return More(tuple(self.also), tuple(self.by), self.cas)

    @classmethod
    def read(cls, name: str) -> Table:
        return cls(name, **tomllib.loads((HERE / "tables" / f"{name}.toml").read_text()))

    def recipe(self, row: str, seed: int, out: Path) -> Recipe:
        asked = self.rows[row]
        name, *more = [asked] if isinstance(asked, str) else asked
        name, _, need = name.partition("@")
        folder = out / str(seed) / f"{self.name}-{''.join(c if c.isalnum() else '-' for c in row)}"
        place = [f"run.seed={seed}", f"data.split_seed={seed}", f"run.folder={json.dumps(str(folder))}"]
        here = [*place, "run.threads=1", "run.progress=false", "run.resume=true"]
        recipe = load_recipe(name, [*here, *self.all_set, *more])
        if need:
            return needed_recipe(need, recipe.needs[need], recipe)
        return recipe.changed({"run.folder": f"{folder}-{whole_digest(recipe)[:8]}"})  # what has changed has another

    def trained(self, row: str, seed: int, out: Path) -> Recipe:
        """The recipe whose run is tested: the row's own, or the row of this name in another table."""
        other = self.trained_in.get(row)
        return (Table.read(other) if other else self).recipe(row, seed, out)

    @property
    def ledger(self) -> Path:
        return HERE / "results" / "kept" / f"{self.name}.jsonl"

    def kept(self) -> dict[str, Numbers]:
        """Numbers by the digest of what was trained, for whichever table."""
        lines = (line for file in self.ledger.parent.glob("*.jsonl") for line in file.read_text().splitlines())
        return {record["digest"]: record["numbers"] for record in map(json.loads, lines)}

    def keep(self, row: str, seed: int, digest: str, numbers: Numbers) -> None:
        record = {"row": row, "seed": seed, "date": str(datetime.date.today()), "digest": digest, "numbers": numbers}
        self.ledger.parent.mkdir(exist_ok=True)
        with self.ledger.open("a") as file:
            file.write(json.dumps(record) + "\n")


def whole_digest(recipe: Recipe) -> str:
    """Of a recipe and of all that it needs, and that needs."""
    parts = [recipe.digest()]
    parts += [whole_digest(needed_recipe(name, need, recipe)) for name, need in sorted(recipe.needs.items())]
    return parts[0] if len(parts) == 1 else sha256(" ".join(parts).encode()).hexdigest()[:16]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _numbers(table: dict[str, Any], prefix: str = "") -> Numbers:
    """What was measured of a run; of lists, such as what is of single classes, the mean."""
    found: Numbers = {}
    for key, value in _flat(table).items():
        if isinstance(value, float):
            found[prefix + key] = round(value, 6)
        elif isinstance(value, list) and value and all(isinstance(item, float) for item in value):
            found[f"{prefix}{key}.mean"] = round(statistics.fmean(value), 6)
    return found


def numbers_of(folder: Path, more: More) -> Numbers:
    """Of the test, and of other splits and features under their names."""
    files = {"": "measure.json"} | {f"{name}.": f"measure-{name}.json" for name in (*more.splits, *more.features)}
    tables = {prefix: json.loads((folder / file).read_text()) for prefix, file in files.items()}
    return {key: value for prefix, table in tables.items() for key, value in _numbers(table, prefix).items()}


def tested(folder: Path, recipe: Recipe, more: More) -> Numbers:
    """The same numbers of a run on the data of another recipe; nothing is written into its folder."""
    opened = open_run(folder)
    streams, task = read_data(recipe, opened.model).streams, opened.method.task
    splits = {"": "test"} | {f"{split}.": split for split in more.splits}
    tables = {
        prefix: task.table(opened.method, streams[split], batch=recipe.run.eval_batch)
        for prefix, split in splits.items()
    }
    return {key: value for prefix, table in tables.items() for key, value in _numbers(table, prefix).items()}


def run(recipe: Recipe, more: More = NOTHING, trained: Recipe | None = None) -> Numbers:
    """Numbers of a recipe's run, or of another recipe's on its data; what is not there is trained."""
    keep_freed()
    trained = trained or recipe
    folder = Path(trained.run.folder)
    with locks.held(folder.with_name(f"{folder.name}.need"), wait=True):  # another table may be training it
        if not (folder / "measure.json").is_file():
            train(trained)
    if trained.digest() != recipe.digest():
        return tested(folder, recipe, more)
    for split in more.splits:
        if not (folder / f"measure-{split}.json").is_file():
            measure(folder, split=split)
    for features in more.features:
        if not (folder / f"measure-{features}.json").is_file():
            measure_by(folder, features)
    if more.cas and "classifier_score" not in json.loads((folder / "measure.json").read_text()):
        classifier_score(folder, recipe=more.cas)
    return numbers_of(folder, more)


def run_all(asked: dict[Any, tuple[Any, ...]], jobs: int) -> Iterator[tuple[Any, Numbers]]:
    if jobs == 1:
        yield from ((key, run(*what)) for key, what in asked.items())
        return
    with workers(jobs) as pool:
        waiting = {pool.submit(run, *what): key for key, what in asked.items()}
        yield from ((waiting[done], done.result()) for done in as_completed(waiting))


def fill(table: Table, rows: list[str], seeds: list[int], out: Path, jobs: int) -> None:
    """Train what is not kept: first what several rows share, then the rows."""
    kept = table.kept()
    recipes = {(row, seed): table.recipe(row, seed, out) for seed in seeds for row in rows}
    recipes = {key: recipe for key, recipe in recipes.items() if whole_digest(recipe) not in kept}
    shared = {
        (other := needed_recipe(name, need, recipe)).run.folder: other
        for recipe in recipes.values()
        for name, need in recipe.needs.items()
    }
    shared = {folder: other for folder, other in shared.items() if not (Path(folder) / "measure.json").is_file()}
    for number, _ in enumerate(run_all({folder: (other,) for folder, other in shared.items()}, jobs), 1):
        print(f"{number} of {len(shared)} that several rows need", file=sys.stderr, flush=True)
    asked = {key: (recipe, table.more, table.trained(*key, out)) for key, recipe in recipes.items()}
    for number, ((row, seed), numbers) in enumerate(run_all(asked, jobs), 1):
        table.keep(row, seed, whole_digest(recipes[row, seed]), numbers)
        print(f"{number} of {len(recipes)}: {row}, seed {seed}", file=sys.stderr, flush=True)


def spread(values: list[float], digits: int = 1) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def paired(gaps: list[float], digits: int = 1) -> str:
    if len(gaps) < 2:
        return "".join(f"{gap:+.{digits}f}" for gap in gaps) or "not run"
    return f"{statistics.mean(gaps):+.{digits}f} ± {statistics.stdev(gaps) / math.sqrt(len(gaps)):.{digits}f}"


def text(table: Table, rows: list[str], seeds: list[int], against: str) -> str:
    """Mean ± standard deviation; then differences, paired within seeds, ± standard error."""
    kept, out = table.kept(), Path("runs/tables")
    found = {
        row: {s: kept[digest] for s in seeds if (digest := whole_digest(table.recipe(row, s, out))) in kept}
        for row in rows
    }

    def values(row: str, column: Column) -> dict[int, float]:
        known = {seed: numbers[column.key] for seed, numbers in found[row].items() if column.key in numbers}
        return {seed: column.scale * number for seed, number in known.items()}

    head = ["| row | seeds | " + " | ".join(table.columns) + " |", "|:--|--:|" + "--:|" * len(table.columns)]
    lines = [*head]
    for row in rows:
        cells = [spread([*v.values()], c.digits) if (v := values(row, c)) else "–" for c in table.shown.values()]
        lines.append(
            f"| {row} | {len(found[row])} | " + " | ".join(cells) + " |" if found[row] else f"| {row} | not run |"
        )
    if against in rows:
        lines += [f"\nDifference to {against}, paired within seeds, ± standard error:\n", *head]
        for row in [row for row in rows if row != against and found[row]]:
            pairs = [(values(row, column), values(against, column)) for column in table.shown.values()]
            gaps = [[mine[s] - other[s] for s in mine if s in other] for mine, other in pairs]
            cells = [
                paired(some, column.digits) if some else "–"
                for some, column in zip(gaps, table.shown.values(), strict=True)
            ]
            lines.append(f"| {row} | {max(map(len, gaps))} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    known = sorted(file.stem for file in (HERE / "tables").glob("*.toml"))
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("table", choices=known)
    ask.add_argument("--rows", nargs="+", help="only these")
    ask.add_argument("--seeds", type=int, nargs="+", help="only these")
    ask.add_argument("--against", help="the row that others are compared with; the first, if nothing is said")
    ask.add_argument("--jobs", type=int, default=1, help="runs at a time; on a CPU, one for each core")
    ask.add_argument("--print", action="store_true", dest="only_print", help="what is kept, without training")
    ask.add_argument("--out", type=Path, default=Path("runs/tables"))
    given = ask.parse_args()
    table = Table.read(given.table)
    rows, seeds = given.rows or [*table.rows], given.seeds or table.seeds
    unknown = [row for row in [*rows, *([given.against] if given.against else [])] if row not in table.rows]
    if unknown:
        sys.exit(f"no row {', '.join(map(repr, unknown))} in {given.table}: it has {', '.join(map(repr, table.rows))}")
    if not given.only_print:
        fill(table, rows, seeds, given.out, given.jobs)
    print(f"{datetime.date.today()}, seeds {', '.join(map(str, seeds))}, each with its own split\n")
    print(text(table, rows, seeds, given.against or rows[0]))


if __name__ == "__main__":
    main()
