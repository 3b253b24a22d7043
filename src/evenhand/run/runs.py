"""From a recipe to a measured run, and from a run's folder back to its method."""

from __future__ import annotations

import copy
import inspect
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evenhand import __version__, parallel
from evenhand.data.prepared import Data, build_data
from evenhand.errors import UserError, did_you_mean, users_mistake
from evenhand.methods import method_class
from evenhand.methods.common import Net
from evenhand.methods.protocol import Method
from evenhand.nets import reads_text
from evenhand.randomness import mix
from evenhand.run import checkpoint
from evenhand.run.adaptation import picture_domains
from evenhand.run.loop import fit
from evenhand.run.recipe import Recipe, load_recipe, smoke_recipe
from evenhand.run.selection import rules_of
from evenhand.run.sheet import write_sheet


@dataclass(frozen=True)
class OpenRun:
    """A finished or paused run: its recipe, its data and its method with the chosen weights."""

    folder: Path
    recipe: Recipe
    data: Data
    method: Method
    checkpoint: str
    step: int
    epoch: float


def train(recipe: Recipe, *, smoke: bool = False) -> Path:
    """Train a recipe, after the runs it needs, and measure it on the test split; returns the run's folder.

    ``smoke`` cuts the needed runs down as their own [smoke] tables say.
    """
    device = parallel.local_device(recipe.run.device)
    parallel.start(device)
    folder = Path(recipe.run.folder)
    data = build_data(recipe.data, _words(folder) if (folder / "last.pt").exists() else None)
    method = build_method(recipe, data, device, smoke=smoke)
    if parallel.is_writer():
        _describe(folder, recipe, data)
    fit(method, data.streams, recipe.run, digest=recipe.digest())
    if is_complete(folder) and final_split(data) in data.streams:
        measure(folder, split=final_split(data))
    return folder


def final_split(data: Data) -> str:
    """What a run is measured on in the end: the test, or the validation where a target has no labels at all."""
    return "test" if "test" in data.streams else "val"


def build_method(recipe: Recipe, data: Data, device: torch.device, *, smoke: bool = False) -> Method:
    """The recipe's method with fresh weights; what it needs is trained first unless it is there already."""
    settings: Any = recipe.method
    check_needs(recipe)
    net = getattr(settings, "net", None)
    if isinstance(net, Net) and reads_text(net.name) != (data.vocabulary is not None):
        kind, other = ("texts", "text-transformer") if data.vocabulary is not None else ("images", "resnet32")
        raise UserError(f"method.net.name = '{net.name}' does not read {kind}; choose another, such as '{other}'")
    if recipe.needs:
        check_method(recipe, data)
    needs = {name: _needed(name, target, recipe, device, smoke=smoke).method for name, target in recipe.needs.items()}
    with (
        users_mistake("[method]"),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
    ):
        torch.manual_seed(mix(recipe.run.seed, "weights"))
        method: Method = method_class(settings.name)(settings, data, seed=recipe.run.seed, device=device, **needs)
    return method


def check_method(recipe: Recipe, data: Data) -> None:
    """What a method that needs other networks can say of its settings before they are trained."""
    settings: Any = recipe.method
    check = getattr(method_class(settings.name), "check", None)
    if check is not None:
        with users_mistake("[method]"):
            check(settings, data, recipe.needs.keys())


def check_needs(recipe: Recipe) -> None:
    """Refuse a [needs] entry that the method does not take, or that is neither a recipe nor a run."""
    settings: Any = recipe.method
    known = inspect.signature(method_class(settings.name)).parameters.keys() - {"settings", "data", "seed", "device"}
    for name, target in recipe.needs.items():
        if name not in known:
            takes = did_you_mean(name, known) if known else "it needs none"
            raise UserError(f"method '{settings.name}' does not need '{name}' ({takes}): remove needs.{name}")
        load_recipe(target)


def is_complete(folder: Path) -> bool:
    """Whether the run reached its last step."""
    content = checkpoint.load(folder / "last.pt")
    return bool(content["step"] == content["total"])


def open_run(folder: str | Path, *, name: str | None = None, device: str | None = None) -> OpenRun:
    """Load a run as its selection rule says, or a named checkpoint of it such as ``epoch-0010.pt``.

    The device is by default the one it was trained on, or the best there is where that is not to be had.
    """
    folder = Path(folder)
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run: it has no recipe.toml; give the folder that train printed")
    recipe = load_recipe(folder / "recipe.toml")
    name = name or ("last.pt" if recipe.run.select == "last" else "best.pt")
    content = checkpoint.load(folder / name)
    if content["digest"] != recipe.digest():
        raise UserError(f"{folder / name} belongs to another recipe than {folder / 'recipe.toml'}: restore that file")
    data = build_data(recipe.data, _words(folder))
    method = build_method(recipe, data, _place(device or recipe.run.device, fall_back=device is None))
    method.load_state(content["method"])
    return OpenRun(folder, recipe, data, method, name, int(content["step"]), float(content["epoch"]))


def _place(device: str, *, fall_back: bool) -> torch.device:
    try:
        return parallel.local_device(device)
    except UserError:
        if not fall_back:
            raise
        return parallel.local_device("auto")


def measure(folder: str | Path, *, split: str = "test") -> dict[str, Any]:
    """Measure a run on a split and write ``measure.json``: the only place that opens the test split unasked."""
    run = open_run(folder)
    if split not in run.data.streams:
        raise UserError(f"this run has no '{split}' split; it has: {', '.join(run.data.streams)}")
    result = run.method.examine(run.data.streams[split], run.data.groups, batch=run.recipe.run.eval_batch)
    table: dict[str, Any] = {
        "split": split,
        "checkpoint": run.checkpoint,
        "step": run.step,
        "select": run.recipe.run.select,
        "classes": list(run.data.classes),
        "train_counts": run.data.counts,
        "groups_rule": f"{run.data.groups_rule}, by training count",
        **result,
    }
    if run.recipe.run.select_also:
        table["also"] = _measure_also(run, split)
    if "target" in run.data.streams:
        table["adaptation"] = picture_domains(run.method, run.data, batch=run.recipe.run.eval_batch)
    if parallel.is_writer():
        name = "measure.json" if split == final_split(run.data) else f"measure-{split}.json"
        table |= _kept_score(run.folder / name, table)
        checkpoint.write_atomically(run.folder / name, json.dumps(table, indent=1).encode())
    if split == "test" and hasattr(run.method, "sample"):
        write_sheet(run.folder / "sheet.png", run.method, run.data.streams[split], run.data.counts)
    return table


def _kept_score(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    """The classifier-accuracy score of the same checkpoint, which takes long, survives a new measurement."""
    before = json.loads(path.read_text()) if path.is_file() else {}
    same = all(before.get(key) == table[key] for key in ("split", "checkpoint", "step"))
    return {key: before[key] for key in ("classifier_score",) if same and key in before}


def _measure_also(run: OpenRun, split: str) -> dict[str, dict[str, Any]]:
    """The numbers of the checkpoints that other rules would have chosen; the run's own weights are put back."""
    settings, stream, own = run.recipe.run, run.data.streams[split], copy.deepcopy(run.method.state())
    found: dict[str, dict[str, Any]] = {}
    for rule in rules_of("last", settings.select_also):
        content = checkpoint.load(run.folder / rule.file)
        run.method.load_state(content["method"])
        numbers = run.method.judge(stream, batch=settings.eval_batch)
        labels = {"chosen_with_target_labels": rule.kind == "oracle"}
        found[rule.text] = {**numbers, **labels, "checkpoint": rule.file, "step": int(content["step"])}
    run.method.load_state(own)
    return found


def _needed(name: str, target: str, recipe: Recipe, device: torch.device, *, smoke: bool) -> OpenRun:
    """The run behind a [needs] entry: a run's folder, or a recipe trained on this recipe's data with its own views.

    An annotator judges, so it learns from all there is of every class.
    """
    if (Path(target) / "recipe.toml").is_file():
        return open_run(target, device=str(device))
    other = smoke_recipe(target) if smoke else load_recipe(target)
    folder = Path(recipe.run.folder)
    run = recipe.run.model_copy(
        update={
            "folder": str(folder.with_name(f"{folder.name}-needs-{target.replace(':', '-').replace('/', '-')}")),
            "resume": True,
            **{key: getattr(other.run, key) for key in ("epochs", "steps", "eval_every", "select", "select_also")},
        }
    )
    whole = {"imbalance": 1.0, "n_max": None} if name == "annotator" else {}
    data = recipe.data.model_copy(update={"augment": other.data.augment, **whole})
    if not (Path(run.folder) / "measure.json").exists():
        train(other.model_copy(update={"run": run, "data": data}), smoke=smoke)
    opened = open_run(run.folder, device=str(device))
    if opened.recipe.data != data or opened.recipe.run.seed != run.seed:
        raise UserError(f"{run.folder} was trained on other data or with another seed: remove it, or rename this run")
    return opened


def _words(folder: Path) -> list[str] | None:
    """The words that the network of a run on texts has learned by number."""
    kept = folder / "vocabulary.txt"
    return kept.read_text(encoding="utf-8").split("\n") if kept.exists() else None


def _describe(folder: Path, recipe: Recipe, data: Data) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "last.pt").exists():
        return  # fit resumes or refuses this folder: leave what describes it
    streams = {
        name: {
            "samples": len(stream),
            "classes": list(stream.classes),
            "counts": None if stream.labels is None else stream.counts,
            "digest": stream.digest(),
        }
        for name, stream in data.streams.items()
    }
    environment = {
        "evenhand": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "processes": parallel.world(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    checkpoint.write_atomically(folder / "recipe.toml", recipe.toml().encode())
    if data.vocabulary is not None and data.vocabulary.words:
        checkpoint.write_atomically(folder / "vocabulary.txt", "\n".join(data.vocabulary.words).encode())
    checkpoint.write_atomically(folder / "streams.json", json.dumps(streams, indent=1).encode())
    checkpoint.write_atomically(folder / "environment.json", json.dumps(environment, indent=1).encode())
