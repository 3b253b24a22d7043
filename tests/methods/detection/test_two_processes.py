"""Detectors in two gloo processes with half of the scenes each equal one process with all of them.

Run as a script this file is one of the two processes. Dropout of the regions' domain classifier differs between
processes, as everywhere, so that term is left out here.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand import parallel
from evenhand.run import checkpoint
from evenhand.run.loop import fit
from evenhand.run.opening import read_data
from evenhand.run.recipe import validate
from evenhand.run.training import prepare_method

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="detection needs torchvision")
CPU = torch.device("cpu")
CASES: dict[str, dict[str, Any]] = {
    "detector": {"name": "detector"},
    "da-faster-sdat": {"name": "da-faster", "hidden": 8, "smooth": "all", "rho": 0.05, "instance": False,
                       "consistency": False},
}  # fmt: skip


def run(name: str, folder: Path) -> dict[str, Any]:
    net = {"short_side": 64, "long_side": 64, "anchors": [16, 24], "proposals": 20, "regions": 8, "head": 8}
    tree = {
        "method": {"batch": 4, "net": net, "optim": {"lr": 0.02}, **CASES[name]},
        "data": {"set": "shape-scenes", "source": ["plain"], "target": "negative", "augment": []},
        "run": {"folder": str(folder), "steps": 2, "log_every": 1, "progress": False, "eval_every": 100},
    }
    recipe = validate(tree, name)
    data = read_data(recipe)
    method = prepare_method(recipe, data, CPU)
    fit(method, data.streams, recipe.run, digest=recipe.digest())
    return {"state": method.state(), "scores": method.task.score(method, data.streams["test"])}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    parallel.start(CPU)
    for name in CASES:
        torch.save(run(name, folder / str(parallel.rank()) / name), folder / f"{name}-{parallel.rank()}.pt")
    parallel.stop()


@pytest.fixture(scope="module")
def both(two_processes: Any) -> Path:
    folder: Path = two_processes(__file__)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_trap_01_two_processes_detect_as_one(name: str, both: Path, tmp_path: Path) -> None:
    alone = run(name, tmp_path)
    found = [torch.load(both / f"{name}-{rank}.pt", weights_only=True) for rank in range(2)]
    parts = [checkpoint._tensors(one["state"]) for one in (alone, *found)]
    for mine, first, second in zip(*parts, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, mine, rtol=1e-3, atol=1e-5)
    assert found[0]["scores"] == found[1]["scores"] == pytest.approx(alone["scores"], abs=1e-3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
