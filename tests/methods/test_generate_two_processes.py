"""Two processes with half the batch each train the GAN that one process trains with the joint batch.

Run as a script this file is one of the two processes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evenhand import parallel
from evenhand.run.recipe import validate
from evenhand.run.training import fit_recipe, train

DATA = {"set": "shapes", "n_max": 12, "imbalance": 10, "augment": []}
STEADY = {"lr": 0.01, "eps": 1.0}  # Adam would blow up the rounding of gradients that are 0, as before a BatchNorm
COMMON: dict[str, Any] = {
    "optim_g": STEADY, "optim_d": STEADY, "batch": 8, "net": {"width": 2}, "ema": 0.9, "ema_start": 1,
    "measure": {"judge_samples": 40, "samples": 40},
}  # fmt: skip
STYLE: dict[str, Any] = {  # without what each process draws or groups for itself
    "ema": None, "ema_start": None, "mixing": 0.5, "path_every": 1, "r1_every": 1, "ema_kimg": 0.01,
    "net": {"base": 64, "widest": 6, "latent": 6, "style": 6, "mapping_layers": 2, "group": 1, "noise": "none"},
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "gan": {"name": "gan", "condition": "projection", "d_steps": 2, "lecam": 0.5, "lecam_start": 1, "r1": 0.1},
    "balance": {"name": "class-balancing-gan", "balance": {"cycle": 1}},
    "gsr": {"name": "gsr-gan", "net": {"name": "biggan", "width": 2}},
    "both": {"name": "gsr-gan", "net": {"name": "sngan", "width": 2}, "balance": {"cycle": 1}},
    "style": {**STYLE, "name": "stylegan2", "lecam": 0.5, "gsr": {}},
    "d2d-ce": {**STYLE, "name": "stylegan2", "condition": "d2d-ce", "contrast": {"size": 4, "margin": 0.5}},
    "2c": {**STYLE, "name": "stylegan2", "condition": "2c", "contrast": {"size": 4}},
    "twins": {**STYLE, "name": "noisy-twins", "twins": {"sigma": 0.0, "strength": 1.0}},
    "transitional": {**STYLE, "name": "transitional-gan", "transition": {"start": 0.0, "end": 0.01}},
}

pytestmark = pytest.mark.filterwarnings("ignore:drawn images of class")


def run(name: str, folder: Path, first: Path) -> dict[str, Any]:
    needs = {"annotator": str(first)} | ({"classifier": str(first)} if "balance" in CASES[name] else {})
    settings = {"folder": str(folder), "steps": 2, "progress": False, "threads": 1}
    method = {key: value for key, value in {**COMMON, **CASES[name]}.items() if value is not None}
    recipe = validate({"data": DATA, "method": method, "needs": needs, "run": settings}, name)
    _, data, method = fit_recipe(recipe)
    few = data.streams["test"].subset(torch.arange(0, 600, 15))
    return {"state": method.state(), "judged": method.task.score(method, few, batch=64)}


def main(folder: Path, first: Path) -> None:
    parallel.start(torch.device("cpu"))
    for name in CASES:
        torch.save(run(name, folder / f"{name}-run", first), folder / f"{name}-{parallel.rank()}.pt")
    parallel.stop()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    method = {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 4}}
    settings = {"folder": str(tmp_path_factory.mktemp("first") / "run"), "steps": 4, "progress": False}
    return train(validate({"data": DATA, "method": method, "run": settings}, "first"))


@pytest.fixture(scope="module")
def both(two_processes: Any, first: Path) -> Path:
    folder: Path = two_processes(__file__, first)
    return folder


def rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def close(found: Any, expected: Any, where: str = "") -> None:
    """Root mean squares: rounding may turn a rectifier that stands at 0, and a few numbers with it."""
    if isinstance(expected, Tensor):
        assert rms(found - expected) <= 1e-4 + 1e-3 * rms(expected), where
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            close(found[key], expected[key], f"{where}/{key}")


@pytest.mark.parametrize("name", CASES)
def test_trap_01_two_processes_train_what_one_trains(name: str, both: Path, first: Path, tmp_path: Path) -> None:
    """Weights, statistics, spectral vectors, frequencies, LeCam and moving averages."""
    alone = run(name, tmp_path / name, first)
    found = [torch.load(both / f"{name}-{rank}.pt", weights_only=True) for rank in range(2)]
    close(found[0]["state"], alone["state"])
    assert found[0]["judged"] == found[1]["judged"]
    assert found[0]["judged"]["fid"] == pytest.approx(alone["judged"]["fid"], rel=1e-2, abs=1e-3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
