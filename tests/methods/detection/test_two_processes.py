"""Detectors in two gloo processes with half of the scenes each equal one process with all of them.

Run as a script this file is one of the two processes. Dropout of the regions' domain classifier and the strong view of
the mean teacher's target are drawn by each process for itself, as everywhere, so they are left out here.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from evenhand import parallel
from evenhand.data.target import Found
from evenhand.nets.detection.folded import FoldedConv
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
    "da-faster-whole": {"name": "da-faster", "hidden": 8, "reversal": 1.0},
    "mean-teacher": {"name": "mean-teacher", "views": "weak", "threshold": 0.3, "start": 0.0},
    "detector-empty": {"name": "detector"},
    "da-faster-empty": {"name": "da-faster", "hidden": 8, "smooth": "classification", "rho": 0.05, "reversal": 1.0},
    "mean-teacher-empty": {"name": "mean-teacher", "views": "weak", "threshold": 0.3, "start": 0.0},
}  # fmt: skip


def run(name: str, folder: Path) -> dict[str, Any]:
    net = {"short_side": 64, "long_side": 64, "anchors": [16, 24], "proposals": 20, "regions": 32, "head": 8}
    tree = {
        "method": {"batch": 4, "net": net, "optim": {"lr": 0.01}, **CASES[name]},
        "data": {"set": "shape-scenes", "source": ["plain"], "target": "negative", "augment": [], "strong": []},
        "run": {"folder": str(folder), "steps": 1, "log_every": 1, "progress": False, "eval_every": 100},
    }
    recipe = validate(tree, name)
    data = read_data(recipe)
    method: Any = prepare_method(recipe, data, CPU)
    uneven(method, empty=name.endswith("-empty"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "dropout", lambda x, *_: x)
        fit(method, data.streams, recipe.run, digest=recipe.digest())
    return {"state": method.state(), "scores": method.task.score(method, data.streams["test"])}


def second(number: int) -> list[bool]:
    """Of this process's images, which are in the second half of the joint batch: the second process has only such."""
    return [place >= 2 for place in range(parallel.rank() * number, (parallel.rank() + 1) * number)]


def uneven(method: Any, *, empty: bool) -> None:
    """Few regions in images of the second half, no box if ``empty``; maps and domain classifiers that say something."""
    propose, labelled, nothing = method.propose, method.labelled, torch.zeros(0, dtype=torch.int64)

    def few(*given: Any) -> list[Any]:
        found = propose(*given)
        return [boxes[:3] if late else boxes for boxes, late in zip(found, second(len(found)), strict=True)]

    def bare(batch: Any) -> tuple[list[Any], list[Found]]:
        images, objects = labelled(batch)
        kept = [
            found.pick(nothing) if late else found for found, late in zip(objects, second(len(images)), strict=True)
        ]
        return images, kept

    for net in filter(None, (method.net, method.player.average)):
        for part in net.modules():
            if isinstance(part, FoldedConv):  # maps of a random MobileNetV2 are all but zero
                part.norm[0].weight.fill_(part.groups**0.5)
    method.propose = few
    if empty:
        method.labelled = bare
    if hasattr(method, "adversary"):
        chance = torch.Generator().manual_seed(0)
        for p in method.adversary.net.parameters():
            p.data.normal_(std=0.3, generator=chance)


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
        away = (first.double() - mine.double()).norm()  # kinks of ReLU make single numbers jump, once by 1.1 %
        assert away < 0.03 * mine.double().norm().clamp_min(1e-3)
    assert found[0]["scores"] == found[1]["scores"] == pytest.approx(alone["scores"], abs=1e-3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
