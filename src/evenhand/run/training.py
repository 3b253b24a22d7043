"""From a recipe to a measured run."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import Any

import torch

from evenhand import locks, parallel
from evenhand.data.prepared import Data
from evenhand.errors import UserError, fits_memory, users_mistake
from evenhand.measure.frozen import keep_backbone
from evenhand.methods import method_class
from evenhand.methods.protocol import Method
from evenhand.run import checkpoint
from evenhand.run.folder import Model, check_streams, describe, read_model
from evenhand.run.loop import fit
from evenhand.run.measuring import final_split, measure_open
from evenhand.run.needs import obtain_needs
from evenhand.run.opening import OpenRun, build_method, check_needs, chosen, read_data
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.tables import differences


def train(recipe: Recipe, *, smoke: bool = False, data: Data | None = None) -> Path:
    """Train a recipe, after the runs it needs, and measure it on the test split; returns the run's folder.

    ``smoke`` cuts the needed runs down as their own [smoke] tables say. ``data`` are those of a program, in place of
    the ones that the recipe names.
    """
    folder = Path(recipe.run.folder)
    if folder.is_file():
        raise UserError(f"run.folder = '{folder}' is a file; name a folder")
    parallel.start(parallel.local_device(recipe.run.device), recipe.run.batchnorm)
    with locks.held(folder, wait=False):
        model, data, method = fit_recipe(recipe, smoke=smoke, data=data)
        if is_complete(folder) and final_split(data) in data.streams:
            content = checkpoint.load(folder / chosen(recipe))
            checkpoint.restore(method, content, folder / chosen(recipe))
            step, epoch = int(content["step"]), float(content["epoch"])
            run = OpenRun(folder, recipe, model, method, chosen(recipe), step, epoch)
            measure_open(run, data, split=final_split(data))
    return folder


def fit_recipe(recipe: Recipe, *, smoke: bool = False, data: Data | None = None) -> tuple[Model, Data, Method]:
    """Data and method of a recipe, fitted into the run's folder, which then opens as a model."""
    model = _earlier(recipe)
    if model is None and not smoke:
        check_start(recipe)
    data = read_data(recipe, model) if data is None else data
    method = prepare_method(recipe, data, parallel.local_device(recipe.run.device), smoke=smoke)
    if model is not None:
        check_streams(Path(recipe.run.folder), data.streams)
    else:
        _tell_absent(data)
        model = Model(task=method.task.name, digest=recipe.digest(), facts=data.facts)
        if parallel.is_writer():
            describe(Path(recipe.run.folder), recipe, model, data.streams)
            if recipe.data.embed:
                keep_backbone(recipe.data.embed, Path(recipe.run.folder))
    with fits_memory("training"):
        fit(method, data.streams, recipe.run, digest=model.digest)
    return model, data, method


def prepare_method(recipe: Recipe, data: Data, device: torch.device, *, smoke: bool = False) -> Method:
    """The recipe's method with fresh weights; what it needs is trained first unless it is there already."""
    check_needs(recipe)
    if recipe.needs:
        check_method(recipe, data)
    return build_method(recipe, data, device, obtain_needs(recipe, data.streams, device, smoke=smoke))


def check_start(recipe: Recipe) -> None:
    """What a method can say of its settings before any data are read."""
    method_class(recipe.method.name).check_start(recipe.method)


def check_method(recipe: Recipe, data: Data) -> None:
    """What a method that needs other networks can say of its settings before they are trained."""
    settings: Any = recipe.method
    with users_mistake("[method]"):
        method_class(settings.name).check(settings, data, recipe.needs.keys())


def _tell_absent(data: Data) -> None:
    """Of classes that no validation sample has: a run is watched, and may be chosen, without them."""
    val = data.streams.get("val")
    if val is None or val.target is None:
        return
    absent = [name for name, count in zip(val.classes, val.counts, strict=True) if not count]
    if absent:
        named = ", ".join(absent[:5]) + (f" and {len(absent) - 5} more" if len(absent) > 5 else "")
        warnings.warn(f"validation has no {named}: what is measured there is of the other classes", stacklevel=2)


def is_complete(folder: Path) -> bool:
    """Whether the run reached its last step."""
    content = checkpoint.load(folder / "last.pt")
    return bool(content["step"] == content["total"])


def _earlier(recipe: Recipe) -> Model | None:
    """The model that a paused run of this very recipe has described; None where training begins.

    Recipes are compared as they resolve today, so that a new option or another default parts no run from its recipe.
    """
    folder = Path(recipe.run.folder)
    if recipe.run.resume:
        checkpoint.take_up(folder)
    if not (folder / "last.pt").exists():
        return None
    if not recipe.run.resume:
        raise UserError(f"{folder} already holds a run: add --resume, or choose another run.folder")
    model, kept = read_model(folder), load_recipe(folder / "recipe.toml")
    if kept.digest() != recipe.digest():
        keys = ", ".join(differences(kept.essence(), recipe.essence())[:5])
        raise UserError(
            f"{folder} belongs to another recipe, which differs in {keys}: choose another run.folder, or go on with "
            f"{shlex.join(['evenhand', 'train', str(folder), '--resume'])}"
        )
    return model
