"""Two gloo processes with half the batch each train what one process trains with the joint batch.

Run as a script this file is one of the two processes. Process 1 gets folders of its own, so that whatever it wrote
would be found there.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.prepared import prepare_data
from evenhand.run import checkpoint, opening
from evenhand.run.recipe import validate
from evenhand.run.training import fit_recipe, train

STEPS = 4  # two an epoch: re-weighting starts in the middle
CPU = torch.device("cpu")
Tree = dict[str, Any]


def classifier(optim: Tree | None = None, **method: Any) -> Tree:
    tree = {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 4}, **method}
    return {"method": {**tree, "optim": {"lr": 0.05, **(optim or {})}}}


FIRST = classifier()
CASES: dict[str, Tree] = {
    "sgd-drw": classifier(weighting="drw", drw_start=1),
    "sam-drw": classifier({"name": "sam", "rho": 0.1}, weighting="drw", drw_start=1),
    "sam-ldam-resnet": classifier(
        {"name": "sam", "rho": 0.01, "rho_relative": True}, loss="ldam", weighting="drw", drw_start=1,
        net={"name": "resnet8", "width": 4, "stem_stride": 2},
    ),
    "sam-auto": classifier(
        {"name": "sam", "rho": "auto", "rho_relative": True}, loss="la",
        auto={"steps": 3, "shares": [0.01, 1e30], "tolerance": 1.0},  # the last one diverges
    ),
    "accumulate": classifier({"accumulate": 2}, weighting="drw", drw_start=1),
    "sam-accumulate": classifier({"name": "sam", "accumulate": 2}, weighting="always"),
    "balanced-clip-ema": classifier({"clip": 0.5, "ema": 0.8}, sampling="class-balanced"),
    "focal-adamw": classifier({"name": "adamw", "lr": 1e-3}, loss="focal", weighting="always"),
    "ib": classifier(loss="ib", ib_start=1, ib_scale=10.0),
    "vs-pgd": classifier({"name": "pgd", "sigma": 0.01}, loss="vs"),
    "la-lpf": classifier({"name": "lpf-sgd", "lpf_gamma": 0.01, "lpf_parts": 2}, loss="la"),
    "crt": {"method": {"name": "second-stage", "rule": "crt", "batch": 16}},
    "mislas": {"method": {"name": "second-stage", "rule": "mislas", "batch": 16}},
    "selmix": {
        "method": {"name": "selmix", "batch": 8, "cycle": 2, "objective": "min-recall", "optim": {"lr": 0.05}},
        "data": {"unlabelled_max": 24},
    },
    "selmix-labelled": {"method": {"name": "selmix", "batch": 8, "cycle": 2, "optim": {"lr": 0.05}}},
    "deit-lt": {
        "method": {
            "name": "deit-lt", "batch": 16, "net": {"name": "vit-tiny", "width": 8, "depth": 1, "heads": 2},
            "drw_start": 1, "mix": False, "optim": {"lr": 1e-4, "warmup": 1, "accumulate": 2},
        },
    },
}  # fmt: skip


def recipe(name: str, folder: Path, first: Path, **run: Any) -> Any:
    case = copy.deepcopy(CASES.get(name, FIRST))
    tree = {
        **case,
        "data": {
            "set": "shapes",
            "n_max": 12,
            "imbalance": 10,
            "val_per_class": 2,
            "augment": [],
            **case.get("data", {}),
        },
        "run": {"folder": str(folder), "steps": STEPS, "log_every": 1, "progress": False, **run},
    }
    need = {"second-stage": "first", "selmix": "first", "deit-lt": "teacher"}.get(case["method"]["name"])
    if need is not None:
        tree["needs"] = {need: str(first)}
    return validate(tree, name)


def run(name: str, folder: Path, first: Path, **options: Any) -> Tree:
    chosen = recipe(name, folder, first, **options)
    _, data, method = fit_recipe(chosen)
    table = method.task.table(method, data.streams["test"], batch=64)
    scalars = {key: value for key, value in table.items() if isinstance(value, float)}
    return {"state": method.state(), "scalars": scalars, "recall": table["recall"]}


def main(folder: Path, first: Path) -> None:
    torch.set_num_threads(1)
    parallel.start(CPU)
    read: Tree = {}

    def once(settings: Any, *_: Any, **__: Any) -> Any:
        key = settings.model_dump_json()
        return read[key] if key in read else read.setdefault(key, prepare_data(settings))

    opening.prepare_data = once
    own = folder / str(parallel.rank())
    for name in CASES:
        found = run(name, own / name, first)
        torch.save(found, folder / f"{name}-{parallel.rank()}.pt")
    common = folder / "resumed"
    run("sam-drw", common, first, stop_after=3)
    run("sam-drw", common, first, resume=True)
    train(recipe("first", folder / "trained", first))
    parallel.stop()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a second stage starts from, trained by one process."""
    folder = tmp_path_factory.mktemp("two") / "first"
    return train(recipe("first", folder, folder))


@pytest.fixture(scope="module")
def both(two_processes: Any, first: Path) -> Path:
    folder: Path = two_processes(__file__, first)
    return folder


def assert_close(found: Any, expected: Any, where: str = "") -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(found[key], value, f"{where}/{key}")
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=lambda text: f"{where}: {text}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5), where


@pytest.mark.parametrize("name", CASES)
def test_trap_01_two_processes_train_what_one_trains(name: str, both: Path, first: Path, tmp_path: Path) -> None:
    """Weights, BatchNorm statistics, momentum and moving averages, within 1e-5; and both processes alike."""
    alone = run(name, tmp_path / name, first)
    found = [torch.load(both / f"{name}-{rank}.pt", weights_only=True) for rank in range(2)]
    assert_close(found[0]["state"], alone["state"])
    for x, y in zip(*(checkpoint._tensors(f["state"]) for f in found), strict=True):
        assert torch.equal(x, y)
    assert found[0]["scalars"] == found[1]["scalars"] == pytest.approx(alone["scalars"], rel=1e-4, abs=1e-5)
    assert found[0]["recall"] == found[1]["recall"] == alone["recall"]
    assert losses(both / "0" / name) == pytest.approx(losses(tmp_path / name), rel=1e-5)


def losses(folder: Path) -> list[float]:
    written = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [row["loss"] for row in written if row["kind"] == "train"]


@pytest.mark.parametrize("name", CASES)
def test_only_the_first_process_writes(name: str, both: Path) -> None:
    assert (both / "0" / name / "last.pt").exists()
    assert (both / "0" / name / "log.jsonl").exists()
    assert list((both / "1" / name).iterdir()) == []


def test_a_pause_under_two_processes_changes_nothing(both: Path) -> None:
    whole, resumed = (checkpoint.load(both / part / "last.pt") for part in ("0/sam-drw", "resumed"))
    for x, y in zip(checkpoint._tensors(whole), checkpoint._tensors(resumed), strict=True):
        assert torch.equal(x, y)
    assert whole["step"] == resumed["step"] == STEPS


def test_a_whole_training_under_two_processes_is_measured_alike(both: Path, first: Path) -> None:
    two, one = (json.loads((folder / "measure.json").read_text()) for folder in (both / "trained", first))
    assert two["samples"] == one["samples"]
    counts = [np.load(folder / "confusion.npz")["confusion"] for folder in (both / "trained", first)]
    assert np.array_equal(*counts)
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
