"""Two processes with half the batch each self-train what one process does with the joint batch.

All of it in float64. In float32 the processes sum BatchNorm's statistics in another order, activations differ by up to
1e-5, and one that lies nearer to 0 than that may pass a ReLU in one run and not in the other: at seed 0 a
pre-activation of -6e-8 against 3e-8 changes first-layer gradients by 1e-4 to 1e-3. Float64 makes such a hit unlikely
and leaves 1e-10 as the tolerance, which no wrong mean or statistic passes.

Run as a script this file is one of the two processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.prepared import Data, prepare_data
from evenhand.pieces.pseudo import FlexThresholds
from evenhand.randomness import dice
from evenhand.run import checkpoint
from evenhand.run.loop import fit
from evenhand.run.recipe import validate
from evenhand.run.training import prepare_method

DATA = {
    "set": "shapes", "n_max": 12, "imbalance": 10, "val_per_class": 2, "unlabelled_max": 24,
    "augment": [], "strong": [],
}  # fmt: skip
COMMON: dict[str, Any] = {
    "batch": 8, "unlabelled_ratio": 2, "net": {"name": "small-cnn", "width": 4}, "optim": {"lr": 0.05, "ema": 0.9},
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "flexmatch": {"name": "fixmatch", "thresholds": "flexmatch", "threshold": 0.3},
    "darp-uda": {
        "name": "fixmatch", "threshold": 0.2, "consistency": "uda", "align": True, "refine": "estimated",
        "refine_start": 1, "one_pass": False,
    },
    "crest": {"name": "crest", "threshold": 0.2, "generations": 2},
    "csst": {"name": "csst", "feedback_every": 1, "threshold": 1.5},
    "csst-coverage": {
        "name": "csst", "objective": "coverage", "consistency": "uda", "feedback_every": 2, "threshold": 1.0,
    },
}  # fmt: skip
CASES = [(name, seed) for name in METHODS for seed in range(3 if name in ("flexmatch", "crest", "csst") else 1)]


@contextmanager
def float64() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


@cache
def built() -> Data:
    return prepare_data(validate({"data": DATA, "method": METHODS["csst"]}, "data").data)


def run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    settings = {"folder": str(folder), "steps": 4, "progress": False, "threads": 1, "seed": seed}
    recipe = validate({"data": DATA, "method": {**COMMON, **METHODS[name]}, "run": settings}, name)
    with float64():
        data = built()
        method = prepare_method(recipe, data, torch.device("cpu"))
        fit(method, data.streams, recipe.run)
        return {"state": method.state(), "judged": method.task.score(method, data.streams["val"], batch=64)}


def flex() -> list[Tensor]:
    """What FlexMatch remembers after each of five steps that draw samples twice, also across processes."""
    thresholds = FlexThresholds(10, 3, 0.5)
    mine = slice(8 * parallel.rank() // parallel.world(), 8 * (parallel.rank() + 1) // parallel.world())
    found = []
    for step in range(5):
        chance = dice(0, "flex", step)
        probs, indices = (2 * torch.randn(8, 3, generator=chance)).softmax(1), torch.randint(10, (8,), generator=chance)
        thresholds.mask(probs[mine], indices[mine])
        found += [thresholds.last.clone(), thresholds.thresholds()]
    return found


def main(folder: Path) -> None:
    parallel.start(torch.device("cpu"))
    rank = parallel.rank()
    for name, seed in CASES:
        torch.save(run(name, seed, folder / f"{name}-{seed}-run-{rank}"), folder / f"{name}-{seed}-{rank}.pt")
    torch.save(flex(), folder / f"flex-{rank}.pt")
    parallel.stop()


@pytest.fixture(scope="module")
def both(two_processes: Any) -> Path:
    folder: Path = two_processes(__file__)
    return folder


def loaded(both: Path, name: str) -> list[Any]:
    return [torch.load(both / f"{name}-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_trap_01_two_processes_train_what_one_trains(name: str, seed: int, both: Path, tmp_path: Path) -> None:
    """Weights, moving averages, multipliers, what was remembered of unlabelled samples; and both processes alike."""
    alone = run(name, seed, tmp_path / "alone")
    first, second = loaded(both, f"{name}-{seed}")
    state = [list(checkpoint._tensors(found["state"])) for found in (alone, first, second)]
    assert all(x.dtype != torch.float32 for x in state[0])
    torch.testing.assert_close(state[1], state[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(state[2], state[1], rtol=0, atol=0)
    assert first["judged"] == second["judged"] == pytest.approx(alone["judged"], abs=1e-10)
    assert list((both / f"{name}-{seed}-run-1").iterdir()) == []


def test_thresholds_of_flexmatch_are_those_of_one_process_after_every_step(both: Path) -> None:
    alone = flex()
    assert len(alone[-1].unique()) > 1
    for found in loaded(both, "flex"):
        torch.testing.assert_close(found, alone, rtol=0, atol=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
