"""From a run's folder back to its method, with neither the training data nor the runs it needed."""

from __future__ import annotations

import inspect
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evenhand import atomic, parallel
from evenhand.data.prepared import Data, data_of, prepare_data
from evenhand.data.scenes import prepare_scenes, scenes_of
from evenhand.errors import UserError, did_you_mean, fits_memory, users_mistake
from evenhand.measure.frozen import check_backbone, embed, kept_backbone
from evenhand.methods import method_class
from evenhand.methods.common import Net, Started
from evenhand.methods.protocol import Method
from evenhand.nets import PRETRAINED, reads
from evenhand.randomness import mix
from evenhand.run import checkpoint
from evenhand.run.folder import Model, read_model
from evenhand.run.recipe import Recipe, load_recipe

OF_KIND = {"tokens": ("texts", "text-transformer"), "vectors": ("vectors", "mlp"), "images": ("images", "resnet32")}


@dataclass(frozen=True)
class OpenRun:
    """A finished or paused run: its recipe and its method with the chosen weights."""

    folder: Path
    recipe: Recipe
    model: Model
    method: Method
    checkpoint: str
    step: int
    epoch: float

    def data(self) -> Data:
        """The data it was trained on, read again."""
        return read_data(self.recipe, self.model)


def read_data(recipe: Recipe, model: Model | None = None) -> Data:
    """Streams and views of a recipe; an earlier run's statistics and words stay."""
    net = getattr(recipe.method, "net", None)
    if isinstance(net, Net):
        net.check()  # an unknown network or its weights are told of before any image is decoded
        if net.weights in PRETRAINED and recipe.data.normalise == "data":
            warnings.warn(
                f"the weights '{net.weights}' know images normalised as ImageNet's: set data.normalise = 'imagenet'",
                stacklevel=2,
            )
    if recipe.data.embed:
        check_backbone(recipe.data.embed)
    with parallel.first_on_machine():
        task, facts = method_class(recipe.method.name).task, model.facts if model else None
        if task.boxes:
            return prepare_scenes(recipe.data, facts)
        return prepare_data(recipe.data, facts, whole=task.whole, embed=embed)


def build_method(recipe: Recipe, data: Data, device: torch.device, needs: Mapping[str, Method]) -> Method:
    """The recipe's method with fresh weights."""
    settings: Any = recipe.method
    net = getattr(settings, "net", None)
    if isinstance(net, Net) and data.facts.kind in OF_KIND and reads(net.name) not in ("", data.facts.kind):
        kind, other = OF_KIND[data.facts.kind]
        raise UserError(f"method.net.name = '{net.name}' does not read {kind}; choose another, such as '{other}'")
    with (
        users_mistake("[method]"),
        fits_memory("[method]"),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
    ):
        torch.manual_seed(mix(recipe.run.seed, "weights"))
        method: Method = method_class(settings.name)(settings, data, seed=recipe.run.seed, device=device, **needs)
    return method


def check_needs(recipe: Recipe) -> None:
    """Refuse a [needs] entry that the method does not take, or that is neither a recipe nor a run."""
    settings: Any = recipe.method
    known = inspect.signature(method_class(settings.name)).parameters.keys() - {"settings", "data", "seed", "device"}
    for name, need in recipe.needs.items():
        if name not in known:
            takes = did_you_mean(name, known) if known else "it needs none"
            raise UserError(f"method '{settings.name}' does not need '{name}' ({takes}): remove needs.{name}")
        if not holds_need(recipe, name):
            load_recipe(need.recipe, need.set)


def holds_need(recipe: Recipe, name: str) -> bool:
    """Whether the run's folder has its own copy of a needed model; an attempt that saved nothing may have left one of
    another recipe's.
    """
    folder = Path(recipe.run.folder)
    return (folder / "last.pt").is_file() and (folder / "needs" / name / "last.pt").is_file()


def open_run(folder: str | Path, *, name: str | None = None, device: str | None = None) -> OpenRun:
    """Load a run as its selection rule says, or a named checkpoint of it such as ``epoch-0010.pt``.

    The device is by default the one it was trained on, or the best there is where that is not to be had.
    """
    folder = Path(folder)
    model, recipe = read_model(folder), load_recipe(folder / "recipe.toml")
    name = name or chosen(recipe)
    content = checkpoint.load(folder / name)
    if content["digest"] != model.digest:
        raise UserError(f"{folder / name} belongs to another run than {folder / 'model.json'}: restore that file")
    place = _place(device or recipe.run.device, fall_back=device is None)
    needs = {need: open_run(folder / "needs" / need, device=str(place)).method for need in recipe.needs}
    method = build_method(_as_trained(recipe), _views(recipe, model), place, needs)
    checkpoint.restore(method, content, folder / name)
    return OpenRun(folder, recipe, model, method, name, int(content["step"]), float(content["epoch"]))


def _views(recipe: Recipe, model: Model) -> Data:
    """What a model in use needs of its data."""
    return (scenes_of if model.facts.kind == "scenes" else data_of)(recipe.data, model.facts)


def _as_trained(recipe: Recipe) -> Recipe:
    """Without the weights that networks started from."""
    tables = {key: getattr(recipe.method, key) for key in type(recipe.method).model_fields}
    nets = {key: net.as_trained() for key, net in tables.items() if isinstance(net, Started)}
    return recipe.model_copy(update={"method": recipe.method.model_copy(update=nets)})


def chosen(recipe: Recipe) -> str:
    """The checkpoint that the recipe's rule selects."""
    return "last.pt" if recipe.run.select == "last" else "best.pt"


def copy_model(run: OpenRun, to: Path) -> None:
    """The run as a model alone: one checkpoint, without what only training needs."""
    recipe = run.recipe.model_copy(update={"run": run.recipe.run.model_copy(update={"select": "last"})})
    content = checkpoint.load(run.folder / run.checkpoint)
    for need in run.recipe.needs:
        copy_model(open_run(run.folder / "needs" / need, device="cpu"), to / "needs" / need)
    if (backbone := kept_backbone(run.folder)) is not None:
        with atomic.replacing(to / backbone.name) as part:
            shutil.copyfile(backbone, part)
    named = {"digest": recipe.digest()}
    atomic.write(to / "recipe.toml", recipe.toml())
    atomic.write(to / "model.json", run.model.model_copy(update=named).model_dump_json(indent=1))
    checkpoint.save(to / "last.pt", {**content, **named, "method": checkpoint.for_use(content["method"])})


def _place(device: str, *, fall_back: bool) -> torch.device:
    try:
        return parallel.local_device(device)
    except UserError:
        if not fall_back:
            raise
        return parallel.local_device("auto")
