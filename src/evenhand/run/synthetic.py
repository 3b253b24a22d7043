"""Does synthetic data help? One classifier on real images, with the usual remedies, and with what generators draw.

All rows take as many steps with the same network, seeds and real test split. ``usual`` is augmentation with
re-weighting by logit adjustment: what generated images must add to, to be worth their generator. Every training is an
ordinary run whose recipe names the drawn images as ``data.added``, so whatever was killed goes on when the command is
repeated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from evenhand import atomic, locks
from evenhand.errors import UserError
from evenhand.measure.features import Extractor, embed
from evenhand.measure.judging import annotated, same_classes
from evenhand.methods.protocol import Drawer
from evenhand.randomness import dice
from evenhand.run.filling import Labeller, Rule, fill
from evenhand.run.folder import read_model, told_streams
from evenhand.run.opening import OpenRun, open_run
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.reproduce import is_done, train_all
from evenhand.run.synthetic_table import AUGMENTED, BASE, REWEIGHTED, USUAL, Row, conclude, drawn_file, of_drawn
from evenhand.run.tables import differences, flatten, parse_override
from evenhand.tasks.classify import CLASSIFY
from evenhand.tasks.generate import GENERATE

OWN = ("data.augment", "data.normalise")  # all else of the data is the generators'


def synthetic(
    runs: Sequence[str | Path],
    *,
    recipe: str = "synthetic",
    seeds: int = 3,
    first_seed: int = 0,
    labels: Rule = "asked",
    annotator: str | Path | None = None,
    per_class: int | None = None,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    jobs: int = 1,
) -> Path:
    """Train and compare all rows; returns the folder with ``table.md``, ``synthetic.json`` and ``report.html``.

    runs: finished generators, all of the same data.
    labels: of drawn images, those asked for, or for all generators the ``annotator``'s (by default their own).
    per_class: fill each class up to so many images; by default to the largest class's.
    """
    overrides, folder = list(overrides), Path(out or "runs/synthetic")
    plain = _plain(recipe, overrides)
    generators = _opened(runs)
    first = next(iter(generators.values()))
    counts = first.model.facts.counts
    most = per_class or max(counts)
    wanted = [max(0, most - count) for count in counts]
    if not any(wanted):
        raise UserError(f"every class has {most} images or more: there is nothing to fill up; raise --per-class")
    labeller, by = _labeller(labels, annotator, generators)
    plan = {
        "generators": {name: [run.model.digest, run.checkpoint, run.step] for name, run in generators.items()},
        "labels": labels, "labeller": by, "filled up to": most, "classifier": plain.essence(),
    }  # fmt: skip
    rows = [BASE, AUGMENTED, REWEIGHTED, USUAL]
    rows += [row for name in generators for row in (Row(name, drawn=name), Row(f"{name}, usual", True, True, name))]
    with locks.held(folder, wait=False, other="--out"):
        _begin(folder, plan)
        chosen = range(first_seed, first_seed + seeds)
        for name, run in generators.items():
            for seed in chosen:
                _draw(folder, name, run, wanted, labels, labeller, seed)
        length = plain.run.steps or math.ceil(plain.run.epochs * math.ceil(sum(counts) / plain.method.batch))
        recipes = {
            (row, seed): _recipe(plain, first.recipe, row, seed, folder, length) for seed in chosen for row in rows
        }
        train_all([r for r in recipes.values() if not is_done(Path(r.run.folder), r)], jobs)
        remarks = of_drawn(folder, generators, chosen, counts, plan)
        conclude(folder, rows, {(row, seed): Path(r.run.folder) for (row, seed), r in recipes.items()}, remarks, plan)
    return folder


def _opened(runs: Sequence[str | Path]) -> dict[str, OpenRun]:
    """Generators by their folder's name: finished, and all of the same real images."""
    found: dict[str, OpenRun] = {}
    streams: dict[str, dict[str, str]] = {}
    for place in map(Path, runs):
        run = open_run(place)
        if run.method.task is not GENERATE:
            raise UserError(f"{place} draws no images; give runs of generators")
        if not (place / "measure.json").is_file():
            raise UserError(f"{place} is not finished: train it to its end first")
        if place.name in found or place.name in {row.name for row in (BASE, AUGMENTED, REWEIGHTED, USUAL)}:
            raise UserError(f"two rows would be called '{place.name}': rename that folder")
        known = told_streams(place)
        streams[place.name] = {name: known[name].digest for name in ("labelled", "test") if name in known}
        if "test" not in streams[place.name]:
            raise UserError(f"{place} has no test split to compare on: give its data one, or data.test_share")
        found[place.name] = run
    for name, digests in streams.items():
        if digests != streams[next(iter(found))]:
            raise UserError(f"{name} was trained or tested on other data than {next(iter(found))}: compare those alike")
    return found


def _plain(name: str, overrides: list[str]) -> Recipe:
    """The classifier: plain, so that a row alone says what is different; and counting steps, not epochs."""
    for key in (parse_override(text)[0] for text in overrides):
        if key.startswith("data.") and key not in OWN:
            raise UserError(f"--set {key}: the data are the generators', only {' and '.join(OWN)} are the classifier's")
    recipe = load_recipe(name, overrides)
    s: Any = recipe.method
    if s.name != "classifier" or recipe.needs:
        raise UserError(f"recipe '{name}' is no plain classifier: give one with method.name = 'classifier'")
    if (s.loss, s.weighting, s.sampling) != ("ce", "none", "instance"):
        raise UserError(f"recipe '{name}' re-weights by itself: set method.loss = 'ce', without weighting or sampling")
    if s.optim.warmup or (s.optim.schedule == "steps" and any(when >= 1 for when in s.optim.milestones)):
        raise UserError(f"recipe '{name}' schedules by epochs, which added images lengthen: no warmup, milestones < 1")
    if not recipe.data.augment:
        raise UserError(f"recipe '{name}' has no augmentation to compare with: set data.augment")
    return recipe


def _labeller(
    rule: Rule, annotator: str | Path | None, generators: dict[str, OpenRun]
) -> tuple[Labeller | None, dict[str, Any] | None]:
    """Who names drawn images, and what is known of it: the annotator given, or the one that all generators have."""
    places = [Path(annotator)] if annotator else [run.folder / "needs" / "annotator" for run in generators.values()]
    if not all((place / "model.json").is_file() for place in places):
        if annotator:
            read_model(Path(annotator))  # says what is wrong with it
        return None, None
    judges: list[Extractor] = []
    for place in places:
        by: Any = open_run(place).method
        if by.task is not CLASSIFY:
            raise UserError(f"--annotator {place} is no classifier")
        same_classes(by.data, next(iter(generators.values())).method.data, "annotator")
        judges.append(annotated(by))
    digests = {judge.digest() for judge in judges}
    if len(digests) > 1:
        if rule == "annotator":
            raise UserError("the generators have different annotators: give one for all as --annotator")
        return None, None
    seen = sum(read_model(places[0]).facts.counts)
    return lambda images: _classes(judges[0], images), {"digest": digests.pop(), "trained on": seen}


def _classes(judge: Extractor, images: Any) -> Any:
    logits = embed(judge, images).logits
    assert logits is not None  # a classifier's
    return logits.argmax(1)


def _begin(folder: Path, plan: dict[str, Any]) -> None:
    """Refuse to go on with another experiment's folder; more seeds may come."""
    path = folder / "plan.json"
    plan = json.loads(json.dumps(plan))
    if path.is_file() and (before := json.loads(path.read_text())) != plan:
        keys = ", ".join(differences(flatten(before), flatten(plan))[:5])
        raise UserError(f"{folder} holds another comparison, which differs in {keys}: choose another --out")
    atomic.write_json(path, plan)


def _draw(
    folder: Path, name: str, run: OpenRun, wanted: list[int], rule: Rule, labeller: Labeller | None, seed: int
) -> None:
    path = drawn_file(folder, name, seed)
    told = path.with_suffix(".json")
    if path.is_file() and told.is_file():
        return
    Console(stderr=True).print(f"[dim]drawing[/] {sum(wanted):,} images by {name}, seed {seed}", highlight=False)
    found = fill(cast(Drawer, run.method), wanted, rule, labeller, dice(seed, "synthetic"))
    found.write(path, run.model.facts.classes)
    has = found.labels.bincount(minlength=len(wanted)).tolist()
    atomic.write_json(told, {"drawn": has, "wanted": wanted, "tried": found.tried, "agreement": found.agreement})


def _recipe(plain: Recipe, generator: Recipe, row: Row, seed: int, folder: Path, steps: int) -> Recipe:
    """The generators' data, the classifier's method, and what the row changes of them."""
    data = {
        "augment": plain.data.augment if row.augmented else [], "normalise": plain.data.normalise, "whole": True,
        "added": str(drawn_file(folder, row.drawn, seed)) if row.drawn else "",
    }  # fmt: skip
    place = folder / f"{row.name.replace(', ', '-')}-{seed}"
    run = {"folder": str(place), "seed": seed, "steps": steps, "resume": True}
    return plain.model_copy(update={
        "about": f"evenhand synthetic: {row.name}", "expect": {}, "smoke": {}, "variants": {},
        "data": generator.data.model_copy(update=data),
        "method": plain.method.model_copy(update={"loss": "la"} if row.reweighted else {}),
        "run": plain.run.model_copy(update=run),
    })  # fmt: skip
