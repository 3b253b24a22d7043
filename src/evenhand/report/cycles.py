"""The report on labels bought in rounds: accuracy against labels, what was chosen, best and last; reads files only."""

from __future__ import annotations

import base64
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from markupsafe import Markup
from pydantic import BaseModel

from evenhand import atomic
from evenhand.errors import UserError
from evenhand.report import markup
from evenhand.report.charts.active import plot_bought, plot_chosen, plot_labels
from evenhand.report.charts.svg import colour
from evenhand.report.markup import joined, parts
from evenhand.report.reading import read
from evenhand.report.records import NOT_RUN
from evenhand.report.repeats import but_for_the_split, by_split, comparable, once_each
from evenhand.report.table import Cell, Table

AGAIN = "repeat evenhand cycles"
NUMBERS = {
    "spacing": "spacing (0: all alike)", "coverage": "coverage of the pool", "entropy": "entropy",
    "uncertainty": "uncertainty", "classes": "classes predicted", "vap_and_entropy": "VAP with entropy (correlation)",
    "seconds": "seconds to choose",
}  # fmt: skip
OPENED = 2


class Cycle(BaseModel):
    labels: int
    accuracy: float
    bought: list[int]
    also: dict[str, float]
    batch: dict[str, float] | None


class Told(BaseModel):
    """``cycles.json``"""

    by: str
    seed: int
    classes: list[str]
    count: int
    select: str
    cycles: list[Cycle]


@dataclass(frozen=True)
class Group:
    """Experiments that differ only in their seed."""

    name: str
    told: tuple[dict[str, Any], ...]
    folders: tuple[Path, ...]
    recipe: dict[str, Any]

    @property
    def labels(self) -> list[int]:
        """Rounds that all seeds have reached."""
        return [row["labels"] for row in min((t["cycles"] for t in self.told), key=len)]

    def accuracies(self, cycle: int, rule: str = "") -> list[float]:
        """In %, of every seed: the last checkpoint's, or what another rule would choose."""
        rows = [told["cycles"][cycle] for told in self.told]
        return [
            100 * (row["also"][rule] if rule else row["accuracy"]) for row in rows if not rule or rule in row["also"]
        ]

    def mean_over_cycles(self, seed: int) -> float | None:
        """Area under the curve: mean accuracy in % over the rounds after labels were bought."""
        for told in self.told:
            if told["seed"] == seed and len(told["cycles"]) == told["count"] + 1:
                return fmean(100 * row["accuracy"] for row in told["cycles"][1:])
        return None

    @property
    def seeds(self) -> list[int]:
        return [told["seed"] for told in self.told]


def is_experiment(folder: Path) -> bool:
    return (folder / "cycles.json").is_file()


def write_cycles_report(folders: Sequence[Path], out: Path) -> Path:
    """One page of several experiments."""
    groups = group_experiments(folders)
    colours = {group.name: colour(i) for i, group in enumerate(groups)}
    curves = {g.name: (g.labels, *_curve(g)) for g in groups}
    sections = [
        ("accuracy", "Accuracy against labels", parts.figure(
            plot_labels(curves, colours), "Last checkpoint of each cycle; bands are one standard error over seeds."
        ) + parts.table(accuracy_table(groups), colours)),
        ("differences", "Against random", parts.table(difference_table(groups), colours)),
        ("best", "Best and last", parts.table(rule_table(groups), colours)
         + parts.note("Last: nothing selected. Label-free rules see no label of the target. The best on test is chosen "
                      "with test labels, as the authors report it: optimistic, and no part of any comparison.")),
        ("batches", "The batches", parts.table(batch_table(groups), colours)),
        ("bought", "What was bought", _bought(groups, colours)),
        ("chosen", "What was chosen", joined(
            parts.fold(f"{g.name}, seed {g.seeds[0]}", _chosen(g), i < OPENED) for i, g in enumerate(groups))),
    ]  # fmt: skip
    script, script_hash = markup.script("page.js")
    page = markup.render(
        "page.html", script=script, script_hash=script_hash, advice="", title=", ".join(g.name for g in groups),
        verdict=verdict(groups), cautions=Markup(""),
        sections=sections,
    )  # fmt: skip
    atomic.write(out, page, "choose another place")
    return out


class Experiment(NamedTuple):
    """One folder of cycles."""

    folder: Path
    told: dict[str, Any]
    recipe: dict[str, Any]
    seed: int
    split_seed: int | None


def group_experiments(folders: Sequence[Path]) -> list[Group]:
    found: dict[str, list[Experiment]] = {}
    for folder in folders:
        told = read(folder / "cycles.json", Told, AGAIN)
        recipe = read(folder / "cycles.toml", dict[str, Any], AGAIN, tomllib.loads)
        if told is None or recipe is None or not told["cycles"]:
            raise UserError(f"{folder} holds no cycles: {AGAIN}")
        key = json.dumps(but_for_the_split(recipe), sort_keys=True, default=str)
        split_seed = recipe.get("data", {}).get("split_seed")
        found.setdefault(key, []).append(Experiment(folder, told, recipe, told["seed"], split_seed))
    groups = []
    for same in (once_each(part) for alike in found.values() for part in by_split(alike)):
        first, place = same[0], same[0].folder.resolve()
        stem = re.sub(rf"[-_]?(seed)?{first.seed}$", "", place.name) or place.parent.name
        groups.append(Group(stem, tuple(e.told for e in same), tuple(e.folder for e in same), first.recipe))
    names = [g.name for g in groups]
    return [g if names.count(g.name) == 1 else replace(g, name=str(g.folders[0])) for g in groups]


def with_error(values: Sequence[float], digits: int = 1) -> Cell:
    """Mean ± standard error."""
    if not values:
        return Cell(NOT_RUN)
    error = f"± {stdev(values) / math.sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return Cell(f"{fmean(values):.{digits}f}", error, ", ".join(f"{v:.2f}" for v in values))


def _curve(group: Group) -> tuple[list[float], list[float]]:
    points = [group.accuracies(cycle) for cycle in range(len(group.labels))]
    return [fmean(p) for p in points], [
        stdev(p) / math.sqrt(len(p)) if len(p) > 1 else math.nan for p in points
    ]  # fmt: skip


def accuracy_table(groups: Sequence[Group]) -> Table:
    longest = max(groups, key=lambda g: len(g.labels)).labels
    rows = tuple(
        (
            Cell(g.name), Cell(str(len(g.told))),
            *(with_error(g.accuracies(c)) if c < len(g.labels) else Cell(NOT_RUN) for c in range(len(longest))),
            with_error([v for s in g.seeds if (v := g.mean_over_cycles(s)) is not None]),
        )
        for g in groups
    )  # fmt: skip
    columns = ("experiment", "seeds", *(f"{n} labels" for n in longest), "mean of rounds")
    caption = "Accuracy on the target's test in %, last checkpoint: mean ± standard error over seeds"
    return Table(caption, columns, rows, range(1, len(columns)))


def rule_table(groups: Sequence[Group]) -> Table:
    """After the last round: the last checkpoint beside what other rules would have chosen."""
    rules = list(dict.fromkeys(rule for g in groups for t in g.told for row in t["cycles"] for rule in row["also"]))
    rows = tuple(
        (
            Cell(g.name), Cell(g.told[0]["select"]), with_error(g.accuracies(len(g.labels) - 1)),
            *(with_error(g.accuracies(len(g.labels) - 1, rule)) for rule in rules),
        )
        for g in groups
    )  # fmt: skip
    names = (f"best on test ({r})" if r.startswith("oracle") else f"by {r}" for r in rules)
    columns = ("experiment", "selected by", "last or selected", *names)
    return Table("Accuracy in % after the last round, by checkpoint", columns, rows, range(2, len(columns)))


def difference_table(groups: Sequence[Group]) -> Table:
    """Each selector minus random under the same training, seed by seed, in the mean of rounds."""
    rows = []
    for g in groups:
        base = next((o for o in groups if o.told[0]["by"] == "random" and _training(o) == _training(g)), None)
        if base is None or base is g:
            continue
        pairs = [(g.mean_over_cycles(s), base.mean_over_cycles(s)) for s in g.seeds if s in base.seeds]
        gains = [a - b for a, b in pairs if a is not None and b is not None]
        above = f"{sum(d > 0 for d in gains)} of {len(gains)}" if gains else NOT_RUN
        rows.append((Cell(g.name), Cell(base.name), with_error(gains, 2), Cell(above)))
    caption = "Difference to random in the mean of rounds, points of accuracy: mean ± standard error, paired by seed"
    if not rows:
        caption += f": {NOT_RUN} (no experiment with cycles.by = random beside one of the same training)"
    return Table(caption, ("experiment", "against", "difference", "seeds above"), tuple(rows), range(2, 4))


def _training(group: Group) -> str:
    """All of the recipe but what chooses; the split, too, unless it goes with the seed."""
    split = group.recipe.get("data", {}).get("split_seed")
    recipe = but_for_the_split(group.recipe) if split == group.seeds[0] else comparable(group.recipe)
    kept = {key: value for key, value in recipe.items() if key != "cycles"}
    spent = {key: group.recipe.get("cycles", {}).get(key) for key in ("count", "budget")}
    return json.dumps([kept, spent], sort_keys=True, default=str)


def batch_table(groups: Sequence[Group]) -> Table:
    """Numbers of the batches, mean over rounds, then over seeds; classes bought in all."""
    found = []
    for g in groups:
        cells = []
        for key in NUMBERS:
            seeds = [[row["batch"][key] for row in t["cycles"] if row["batch"] and key in row["batch"]] for t in g.told]
            cells.append(with_error([fmean(values) for values in seeds if values], 1 if key == "classes" else 3))
        bought = [float(sum(n > 0 for n in t["cycles"][-1]["bought"])) for t in g.told]
        found.append((Cell(g.name), *cells, with_error(bought)))
    columns = ("experiment", *NUMBERS.values(), "classes bought in all")
    caption = (
        "Batches: mean over rounds ± standard error over seeds; spacing is the divergence to the nearest other pick"
    )
    return Table(caption, columns, tuple(found), range(1, len(columns)))


def verdict(groups: Sequence[Group]) -> str:
    scored = {g.name: [v for s in g.seeds if (v := g.mean_over_cycles(s)) is not None] for g in groups}
    ranked = sorted((name for name in scored if scored[name]), key=lambda name: -fmean(scored[name]))
    if not ranked:
        return "Nothing to compare yet: no experiment is complete."
    best, size = ranked[0], len(scored[ranked[0]])
    text = f"Mean accuracy over the rounds: {best} {with_error(scored[best])} % ({size} seed{'s' * (size > 1)})"
    if len(ranked) == 1:
        return f"{text}."
    text += f", then {ranked[1]} {with_error(scored[ranked[1]])} %."
    few = min(len(scored[name]) for name in ranked[:2]) < 3
    return text + (" With so few seeds, chance cannot be told from merit." if few else "")


def _bought(groups: Sequence[Group], colours: dict[str, str]) -> Markup:
    text = Markup()
    for classes in dict.fromkeys(tuple(g.told[0]["classes"]) for g in groups):
        same = [g for g in groups if tuple(g.told[0]["classes"]) == classes]
        counts = {
            g.name: [fmean(t["cycles"][-1]["bought"][k] for t in g.told) for k in range(len(classes))] for g in same
        }  # fmt: skip
        text += parts.figure(plot_bought(counts, classes, colours), "Labels of each class after the last round.")
    return text


def _chosen(group: Group) -> Markup:
    """Of the first seed: each round's picks among the features, and as images where they are."""
    folder, rounds, images = group.folders[0], [], Markup()
    for number in range(1, len(group.labels)):
        batch = read(folder / f"batch-{number}.json", dict[str, Any], AGAIN) or {}
        if batch.get("points"):
            rounds.append(batch["points"])
        sheet = folder / f"picks-{number}.png"
        if sheet.is_file():
            data = base64.b64encode(sheet.read_bytes()).decode()
            images += parts.contact_sheet(data, f"picks of round {number}", f"Round {number}, in the order of picks.")
    caption = "Features along their two directions of largest variance; red squares: picked."
    drawn = parts.figure(plot_chosen(rounds), caption) if rounds else parts.missing()
    return drawn + images
