"""A run's folder is a model: what is written into it so that it opens anywhere, without its data or its needs.

``recipe.toml`` is everything the run depends on, ``model.json`` what its use needs to know of the data, ``*.pt`` the
weights, ``needs/`` the models it was built on; ``backbone.*`` the frozen network whose features it learned from;
``streams.json`` and ``environment.json`` tell where it comes from.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, TypeAdapter, ValidationError

from evenhand import __version__, atomic, parallel
from evenhand.data.facts import Facts
from evenhand.data.sources.files import PROBED
from evenhand.data.stream import Streams
from evenhand.errors import UserError
from evenhand.run.checkpoint import FORMAT, check_format
from evenhand.run.recipe import Recipe, digest
from evenhand.settings import Settings

COLDEST = 0.011  # about where fit_temperature stops if nothing is wrong on validation: it then knows no best one


class Model(Settings):
    """``model.json``."""

    format: int = FORMAT
    task: str
    digest: str
    facts: Facts
    temperature: float | None = None  # that confidences are divided by, fitted on validation; None: there was none


def describe(folder: Path, recipe: Recipe, model: Model, streams: Streams) -> None:
    """Write everything but the weights."""
    environment = {
        "evenhand": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "processes": parallel.world(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    atomic.write(folder / "recipe.toml", recipe.toml())
    atomic.write(folder / "model.json", model.model_dump_json(indent=1))
    atomic.write_json(folder / "streams.json", {name: _told(stream) for name, stream in streams.items()})
    atomic.write_json(folder / "environment.json", environment)


def _told(stream: Any) -> dict[str, Any]:
    return {
        "samples": len(stream),
        "classes": list(stream.classes),
        "counts": None if stream.target is None else stream.counts,
        "digest": stream.digest(),
        "dated": stream.digest(dated=True) if stream.samples.stored > PROBED else "",
    }


def read_model(folder: Path) -> Model:
    """``model.json`` of a run, of this format."""
    path = folder / "model.json"
    if not path.is_file():
        if (folder / "recipe.toml").is_file():
            check_format(1, folder)
        raise UserError(f"{folder} is not a run: it has no model.json; give the folder that train printed")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        check_format(tree.get("format", 1), folder)
        model = Model.model_validate(tree)
        model.facts.check()
    except (ValidationError, ValueError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}); restore it, or train again") from error
    if digest(_written(folder / "recipe.toml")) != model.digest:
        raise UserError(f"{folder / 'recipe.toml'} is not the recipe that this run was trained with: restore that file")
    return model


def keep_temperature(folder: Path, value: float | None) -> None:
    """The temperature of the chosen checkpoint into ``model.json``; one without mistakes on validation has none."""
    model = read_model(folder)
    useful = None if value is None or value <= COLDEST else value
    if model.temperature != useful:
        atomic.write(folder / "model.json", model.model_copy(update={"temperature": useful}).model_dump_json(indent=1))


def _written(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it") from error


class Told(BaseModel):
    """What ``streams.json`` tells of a stream."""

    samples: int
    digest: str
    dated: str = ""  # of more files than contents are compared of; older runs do not tell it


def told_streams(folder: Path) -> dict[str, Told]:
    """``streams.json`` of a run; empty where it has none."""
    path = folder / "streams.json"
    try:
        return TypeAdapter(dict[str, Told]).validate_json(path.read_bytes()) if path.is_file() else {}
    except ValidationError as error:
        raise UserError(f"{path} is not as training wrote it ({error.errors()[0]['msg']}); restore it") from error


def check_streams(folder: Path, streams: Streams) -> None:
    """Refuse to go on with other data than the run began with."""
    before = told_streams(folder)
    if not before:
        raise UserError(f"{folder} has no streams.json, so its data cannot be compared: restore it, or train anew")
    for name in [*before, *(name for name in streams if name not in before)]:
        was, now = before.get(name), streams.get(name)
        if was is None or now is None or was.digest != now.digest():
            counts = f"had {was.samples if was else 0} samples, has {len(now) if now else 0}"
            raise UserError(
                f"the data have changed since {folder} began: '{name}' {counts}, or their contents or labels differ; "
                "restore them, or train anew into another run.folder"
            )
        if was.dated and was.dated != now.digest(dated=True):
            warnings.warn(
                f"files of '{name}' have other dates than when {folder} began; of {now.samples.stored:,} the contents "
                f"of at most {PROBED:,} were compared, and are the same",
                stacklevel=2,
            )
