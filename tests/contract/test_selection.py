"""The checkpoint that is kept as best is the one whose logged number is best (trap 5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenhand.errors import UserError
from evenhand.run import checkpoint
from evenhand.run.opening import open_run
from evenhand.run.recipe import validate
from evenhand.run.training import fit_recipe

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")


def run(folder: Path, select: str, **options: Any) -> tuple[Path, list[dict[str, Any]]]:
    recipe = validate(
        {
            "data": {"set": "shapes", "n_max": 12, "imbalance": 5, "val_per_class": 5},
            "method": {
                "name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 4},
                "optim": {"lr": 0.5, "schedule": "constant"},
            },
            "run": {"folder": str(folder), "epochs": 6, "progress": False, "select": select, **options},
        },
        "selection",
    )  # fmt: skip
    fit_recipe(recipe)
    return folder, [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("select", "sign"),
    [("val:mean_recall", 1), ("val:accuracy", 1), ("val:loss", -1), ("val:ece", -1), ("oracle:mean_recall", 1)],
)
def test_trap_05_best_is_best(select: str, sign: int, tmp_path: Path) -> None:
    rule, _, metric = select.partition(":")
    folder, log = run(tmp_path / "run", select)
    judged = [row for row in log if row["kind"] == {"val": "val", "oracle": "test"}[rule]]
    assert len(judged) == 6
    best = max(judged, key=lambda row: sign * row[metric])  # the first of equals
    assert checkpoint.load(folder / "best.pt")["step"] == best["step"]
    chosen = open_run(folder)
    assert (chosen.checkpoint, chosen.step) == ("best.pt", best["step"])
    stream = chosen.data().streams["val" if rule == "val" else "test"]
    again = chosen.method.task.score(chosen.method, stream, batch=512)
    assert again[metric] == pytest.approx(best[metric], abs=1e-6)


def test_trap_05_a_pause_does_not_forget_the_best(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", "val:loss")
    run(tmp_path / "paused", "val:loss", stop_after=9)
    paused, _ = run(tmp_path / "paused", "val:loss", resume=True)
    for name in ("best.pt", "last.pt"):
        a, b = checkpoint.load(whole / name), checkpoint.load(paused / name)
        assert (a["step"], a["best"]) == (b["step"], b["best"])


def test_the_test_split_is_opened_under_oracle_only(tmp_path: Path) -> None:
    for select, kinds in (("last", {"train", "val"}), ("oracle:accuracy", {"train", "val", "test"})):
        _, log = run(tmp_path / select.replace(":", "-"), select)
        assert {row["kind"] for row in log} == kinds


def test_unknown_metric_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"run\.select = 'val:recal': 'recal' is no number of task classify; did you mean 'min_recall'"
    ):
        run(tmp_path / "run", "val:recal")
