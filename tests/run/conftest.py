"""A recipe of seconds, and what `fit` needs of it, built once."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from rich.console import Console

from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods.protocol import Method
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.training import prepare_method

TINY = """
[data]
set = "shapes"
n_max = 8
imbalance = 4
val_per_class = 2
test_per_class = 3

[method]
name = "classifier"
batch = 16
net = { name = "small-cnn", width = 2 }
optim = { lr = 0.05, schedule = "cosine" }

[run]
epochs = 3
log_every = 1
threads = 1
progress = false
"""

Make = Callable[..., Recipe]
Build = Callable[[Recipe], tuple[Method, Data]]


@pytest.fixture(scope="session")
def tiny_text() -> str:
    return TINY


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return file


@pytest.fixture
def tiny(tmp_path: Path, tiny_file: Path) -> Make:
    """``tiny("run.epochs=1", folder="a")``: the recipe with overrides, two steps an epoch."""

    def make(*overrides: str, folder: str = "run") -> Recipe:
        return load_recipe(tiny_file, [f"run.folder={json.dumps(str(tmp_path / folder))}", *overrides])

    return make


@pytest.fixture
def narrow() -> Console:
    """A narrow terminal with colours: a line stays as it was written only if it is neither cut, coloured nor read."""
    return Console(file=io.StringIO(), width=20, force_terminal=True, color_system="truecolor")


@pytest.fixture
def build() -> Build:
    """The recipe's method with fresh weights, and its data."""

    def make(recipe: Recipe) -> tuple[Method, Data]:
        data = _data(recipe.data.model_dump_json())
        return prepare_method(recipe, data, torch.device("cpu")), data

    return make


@cache
def _data(settings: str) -> Data:
    return prepare_data(DataSettings.model_validate_json(settings))
