"""Adaptation by two gloo processes with half of both batches each equals one process with the joint batches.

Run as a script this file is one of the two processes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand import parallel
from evenhand.data.prepared import prepare_data
from evenhand.errors import UserError
from evenhand.run import checkpoint
from evenhand.run.loop import fit
from evenhand.run.recipe import validate
from evenhand.run.training import prepare_method

CPU = torch.device("cpu")
CASES: dict[str, dict[str, Any]] = {
    "source-only": {"name": "domain-adversarial", "adversary": "none"},
    "dann": {"name": "domain-adversarial", "adversary": "dann"},
    "cdan-entropy": {"name": "domain-adversarial", "entropy": True, "map_size": 12},
    "cdan-mcc-sdat": {"name": "sdat", "mcc": 1.0, "rho": 0.1},
    "sdat-clean": {"name": "sdat-ablation", "rho": 0.1, "adv_at": "clean"},
    "sdat-both": {"name": "sdat-ablation", "rho": 0.1, "rho_adversary": 0.1, "smooth": "both"},
    "sdat-all": {"name": "sdat-ablation", "rho": 0.1, "smooth": "all"},
    "dann-labels": {"name": "domain-adversarial", "adversary": "dann", "labels": True},
    "vaada": {"name": "vaada", "labels": True},
    "vaada-mixed": {"name": "vaada", "labels": True, "target_share": 0.25},
    "mme": {"name": "mme", "labels": True},
    "swad": {"name": "domain-adversarial", "average_every": 2, "average_start": 0.0},
}


LABELS = Path(__file__).parents[1] / "contract" / "labels.csv"
ADVERSARIAL = {"discriminator": {"hidden": 16}, "reversal": {"steps": 2}}
# Finite differences of VAT in float32 magnify rounding: small changes of inputs, large steps between them.
OWN: dict[str, dict[str, Any]] = {
    "vaada": {"hidden": 16, "vat": {"epsilon": 0.5, "xi": 1.0}, "optim": {"lr": 0.01}},
    "mme": {},
}


def run(name: str, folder: Path) -> dict[str, Any]:
    case = dict(CASES[name])
    labels = {"labels": str(LABELS)} if case.pop("labels", False) else {}
    tree = {
        "method": {
            "batch": 16, "net": {"name": "small-cnn", "width": 4}, "bottleneck": 8, "optim": {"lr": 0.05},
            **OWN.get(case["name"], ADVERSARIAL), **case,
        },
        "data": {"set": "shapes", "target": "shapes-negative", "n_max": 12, "imbalance": 10, "augment": [], **labels},
        "run": {"folder": str(folder), "steps": 4, "log_every": 1, "progress": False},
    }  # fmt: skip
    recipe = validate(tree, name)
    data = prepare_data(recipe.data)
    method = prepare_method(recipe, data, CPU)
    fit(method, data.streams, recipe.run, digest=recipe.digest())
    return method.state()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    parallel.start(CPU)
    for name in CASES:
        torch.save(run(name, folder / str(parallel.rank()) / name), folder / f"{name}-{parallel.rank()}.pt")
    try:
        CASES["odd"] = {"name": "sdat", "batch": 15}
        run("odd", folder / "odd")
    except UserError as error:
        (folder / f"odd-{parallel.rank()}").write_text(str(error))
    parallel.stop()


@pytest.fixture(scope="module")
def both(two_processes: Any) -> Path:
    folder: Path = two_processes(__file__)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_trap_01_two_processes_adapt_as_one(name: str, both: Path, tmp_path: Path) -> None:
    """Both players' weights, BatchNorm statistics and momentum; and what is logged."""
    alone = checkpoint._tensors(run(name, tmp_path))
    found = [checkpoint._tensors(torch.load(both / f"{name}-{rank}.pt", weights_only=True)) for rank in range(2)]
    for mine, first, second in zip(alone, *found, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, mine, rtol=1e-4, atol=1e-5)
    written = [(folder / "log.jsonl").read_text().splitlines() for folder in (both / "0" / name, tmp_path)]
    for one, two in zip(*([json.loads(line) for line in lines] for lines in written), strict=True):
        assert {k: v for k, v in one.items() if k != "images_per_second"} == pytest.approx(
            {k: v for k, v in two.items() if k != "images_per_second"}, abs=1e-4
        )


def test_a_batch_that_cannot_be_shared_alike_is_refused(both: Path) -> None:
    assert "batch = 15 cannot be shared by 2 processes alike" in (both / "odd-0").read_text()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
