"""Runs that a run starts from: trained once, kept under a key, and shared by all that need the same."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch

from evenhand import locks, parallel
from evenhand.data.stream import Streams
from evenhand.errors import UserError, repeatable
from evenhand.methods.protocol import Method
from evenhand.run.folder import told_streams
from evenhand.run.opening import OpenRun, copy_model, holds_need, open_run
from evenhand.run.recipe import Need, Recipe, load_recipe
from evenhand.run.tables import flatten

VIEWS = ("augment", "strong", "normalise", "enlarge", "frame")  # how a needed run sees samples: its own affair
HERE = ("device", "threads", "workers", "batchnorm", "tensorboard", "progress")  # of the machine, not of the run
SPLIT = ("split_seed", "test_share", "target_test_share")  # what chooses the samples that training must not see
WHOLE = {"imbalance": 1.0, "n_max": None}


def obtain_needs(recipe: Recipe, streams: Streams, device: torch.device, *, smoke: bool = False) -> dict[str, Method]:
    """What [needs] names, opened; each is copied into the run's folder, which then opens without the original."""
    return {name: _obtain(name, need, recipe, streams, device, smoke=smoke) for name, need in recipe.needs.items()}


def _obtain(name: str, need: Need, recipe: Recipe, streams: Streams, device: torch.device, *, smoke: bool) -> Method:
    own = Path(recipe.run.folder) / "needs" / name
    if not parallel.any_process(not holds_need(recipe, name)):
        return open_run(own, device=str(device)).method
    run = _trained(name, need, recipe, device, smoke=smoke)
    _same_split(name, need, run, recipe, streams)
    if parallel.is_writer() and run.folder.resolve() != own.resolve():  # who names the copy itself has it already
        shutil.rmtree(own, ignore_errors=True)  # a failed attempt may have left another model's files
        copy_model(run, own)
    parallel.barrier()
    return run.method


def _trained(name: str, need: Need, recipe: Recipe, device: torch.device, *, smoke: bool) -> OpenRun:
    """A run's folder as it is; or a recipe trained on this recipe's samples, unless that very run is there already."""
    from evenhand.run.training import train

    if (Path(need.recipe) / "model.json").is_file():
        return open_run(need.recipe, device=str(device))
    other = needed_recipe(name, need, recipe, smoke=smoke)
    folder = Path(other.run.folder)
    with locks.held(folder.with_name(f"{folder.name}.need"), wait=True):
        parallel.barrier()  # the others wait until the writing process holds the lock
        if not (folder / "measure.json").is_file():
            with repeatable():
                train(other, smoke=smoke)
    return open_run(folder, device=str(device))


def _same_split(name: str, need: Need, run: OpenRun, recipe: Recipe, streams: Streams) -> None:
    """Refuse a run that learned from what is held out here: another split of the same data.

    Digests say whether samples are the same, not which: so a split is another one if held-out samples differ and
    so do the settings that choose them. Of other data, or of a run that does not tell its streams, nothing is known.
    """
    theirs, ours, told = run.recipe.data, recipe.data, told_streams(run.folder)
    held = [key for key in ("val", "test") if key in told and key in streams]
    moved = [key for key in SPLIT if getattr(theirs, key) != getattr(ours, key)]
    if Path(theirs.set).name != Path(ours.set).name or not moved:
        return
    if any(told[key].digest != streams[key].digest() for key in held):
        there, here = (", ".join(f"data.{key} = {getattr(data, key)}" for key in moved) for data in (theirs, ours))
        raise UserError(
            f"needs.{name}: {need.recipe} has another split of '{ours.set}' ({there}; here {here}), so it may have "
            f"learned this run's test samples: set {there}, or name its recipe to train it on this split"
        )


def needed_recipe(name: str, need: Need, recipe: Recipe, *, smoke: bool = False) -> Recipe:
    """The needed recipe on this recipe's samples and with its seed, in the folder that its contents name.

    An annotator judges: it learns from all there is of every class, and is the same for all seeds of a split.
    """
    cut = flatten(load_recipe(need.recipe).smoke) if smoke else {}
    data_set = {key: value for key, value in need.set.items() if key.startswith("data.")}
    run_set = {key: value for key, value in need.set.items() if key.startswith("run.")}
    # Set before defaults are filled in, of which some follow from others: a learning rate from adversary = "mdd".
    other = load_recipe(need.recipe, cut | {key: need.set[key] for key in need.set.keys() - data_set.keys()})
    judges = name == "annotator"
    data: Any = {key: getattr(other.data, key) for key in VIEWS} | (WHOLE if judges else {})
    here = {key: getattr(recipe.run, key) for key in HERE} | {"resume": True, "seed": 0 if judges else recipe.run.seed}
    other = other.model_copy(
        update={
            "data": recipe.data.model_copy(update=data),
            "run": other.run.model_copy(update=here),
            "expect": {},  # of its own data
        }
    ).changed(data_set | run_set)
    stem = re.sub(r"[^\w.]+", "-", need.recipe)
    folder = Path(recipe.run.folder).parent / "needs" / f"{stem}-{other.digest()[:8]}"
    return other.model_copy(update={"run": other.run.model_copy(update={"folder": str(folder)})})
