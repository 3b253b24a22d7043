"""A method that lives outside the package: named in a recipe, it trains, resumes, is measured and opened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import evenhand
from evenhand.errors import UserError
from evenhand.run.recipe import load_recipe

MODULE = '''
"""Nearest class mean on raw pixels."""
from typing import Any
import torch
from evenhand.data.loader import Feed
from evenhand.methods.protocol import Recogniser
from evenhand.settings import Settings


class Table(Settings):
    name: str = "my_means:NearestMean"
    batch: int = 8
    power: float = 2.0


class NearestMean(Recogniser):
    table = Table

    def __init__(self, settings, data, *, seed, device):
        self.settings, self.data, self.seed = settings, data, seed
        self.sums = torch.zeros(len(data.classes), data.inputs * data.facts.size[0] ** 2)
        self.seen = torch.zeros(len(data.classes))

    def feeds(self, streams):
        return {"labelled": Feed("labelled", self.settings.batch, (self.data.train_view,))}

    def schedule(self, at):
        pass

    def update(self, batch):
        x, y = batch["labelled"].x.flatten(1), batch["labelled"].y
        self.sums.index_add_(0, y, x)
        self.seen += torch.bincount(y, minlength=len(self.seen))
        return {"classes_seen": (self.seen > 0).float().mean()}

    def predict(self, x):
        return -torch.cdist(self.data.see(x).flatten(1), self.sums / self.seen.clamp_min(1)[:, None])

    def state(self):
        return {"sums": self.sums, "seen": self.seen}

    def load_state(self, state):
        self.sums.copy_(state["sums"])
        self.seen.copy_(state["seen"])
'''
RECIPE = """
[data]
set = "shapes"
n_max = 8
augment = []
[method]
name = "my_means:NearestMean"
power = 1.5
[run]
steps = 3
progress = false
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "my_means.py").write_text(MODULE)
    (tmp_path / "mine.toml").write_text(RECIPE)
    return tmp_path


def evenhand_in(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as it is typed: a script, which does not look for modules where one works."""
    code = "import sys; sys.path.pop(0); from evenhand.cli import main; main()"
    here = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(evenhand.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=place, env={**os.environ, **here}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_it_trains_is_measured_and_gets_its_report(place: Path) -> None:
    done = evenhand_in(place, "train", "mine.toml", "--set", "run.folder=run")
    assert done.returncode == 0, done.stderr
    found = json.loads((place / "run" / "measure.json").read_text())
    assert (found["task"], len(found["recall"])) == ("classify", 10)
    assert json.loads((place / "run" / "model.json").read_text())["task"] == "classify"
    report = evenhand_in(place, "report", "run", "-o", "page.html")
    assert report.returncode == 0, report.stderr
    assert "mean recall" in (place / "page.html").read_text()
    again = evenhand_in(place, "measure", "run")
    assert again.returncode == 0, again.stderr


def test_it_resumes(place: Path) -> None:
    evenhand_in(place, "train", "mine.toml", "--set", "run.folder=whole")
    evenhand_in(place, "train", "mine.toml", "--set", "run.folder=run", "--set", "run.stop_after=1")
    done = evenhand_in(place, "train", "mine.toml", "--set", "run.folder=run", "--resume")
    assert done.returncode == 0, done.stderr
    one, other = (json.loads((place / name / "measure.json").read_text()) for name in ("whole", "run"))
    assert one == other


def test_its_table_is_checked(place: Path) -> None:
    done = evenhand_in(place, "train", "mine.toml", "--set", "method.powr=2")
    assert done.returncode == 2
    assert "unknown key 'powr' in [method]; did you mean 'power'?" in done.stderr


@pytest.mark.parametrize("name", ["nowhere:Mine", "json:Mine"])
def test_what_is_not_there_is_one_line(place: Path, name: str) -> None:
    with pytest.raises(
        UserError, match=rf"method\.name = '{name}' cannot be imported \(.*is its module here\?"
    ) as caught:
        load_recipe(place / "mine.toml", [f"method.name={name}"])
    assert len(str(caught.value).splitlines()) == 1
