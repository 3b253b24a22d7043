"""Several runs at a time give what one at a time gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenhand.run.reproduce import reproduce

RECIPE = """
[data]
set = "shapes"
n_max = 10
[method]
name = "classifier"
batch = 20
net = { name = "small-cnn", width = 4 }
[run]
epochs = 1
threads = 1
progress = false
[variants]
ce = { method.loss = "ce" }
vs = { method.loss = "vs" }
"""


def test_two_jobs_train_what_one_trains(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    one = reproduce(str(recipe), seeds=1, out=tmp_path / "one")
    two = reproduce(str(recipe), seeds=1, out=tmp_path / "two", jobs=2)
    for name in ("ce-0", "vs-0"):
        first, second = (np.load(folder / name / "confusion.npz")["confusion"] for folder in (one, two))
        assert np.array_equal(first, second)
    assert (two / "report.html").exists()


def test_seeds_start_where_asked(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    folder = reproduce(str(recipe), seeds=2, first_seed=3, variants=["ce"], out=tmp_path / "runs")
    assert sorted(path.parent.name for path in folder.glob("*/model.json")) == ["ce-3", "ce-4"]
