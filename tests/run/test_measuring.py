"""What a measurement writes: numbers in JSON, matrices beside it, calibration that never saw the test split."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from evenhand.data.sources.files import Files
from evenhand.errors import UserError
from evenhand.measure.calibration import expected_calibration_error, fit_temperature
from evenhand.measure.classification import predict_all
from evenhand.run import checkpoint, open_run
from evenhand.run.measuring import _kept_score, measure, measure_open
from evenhand.run.recipe import validate
from evenhand.run.training import train
from evenhand.tasks.classify import CLASSIFY
from helpers import tree


def recipe(folder: Path, **run: Any) -> Any:
    data = {"set": "shapes", "n_max": 20, "imbalance": 4, "val_per_class": 5, "test_per_class": 6, "groups": "9/1"}
    net = {"name": "small-cnn", "width": 4}
    method = {"name": "classifier", "batch": 16, "net": net, "optim": {"lr": 0.05, "schedule": "constant"}}
    table = {"folder": str(folder), "epochs": 4, "progress": False, "threads": 1, **run}
    return validate({"data": data, "method": method, "run": table}, "test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(recipe(tmp_path_factory.mktemp("measured") / "run"))


def test_the_matrix_lies_beside_the_numbers(folder: Path) -> None:
    table = json.loads((folder / "measure.json").read_text())
    assert "confusion" not in table
    counts = np.load(folder / "confusion.npz")["confusion"]
    assert counts.sum(1).tolist() == [6] * 10
    assert (counts.diagonal() / 6).tolist() == pytest.approx(table["recall"])
    assert (counts.sum(0) / 60).tolist() == pytest.approx(table["coverage"])
    assert not list(folder.glob(".*.part"))


def test_temperature_is_fitted_on_validation_and_applied_to_the_test(folder: Path) -> None:
    run = open_run(folder)
    method: Any = run.method
    streams = run.data().streams
    logits = {name: predict_all(method.predict, streams[name]) for name in ("val", "test")}
    labels = {name: streams[name].labels for name in ("val", "test")}
    fitted = fit_temperature(logits["val"], labels["val"])
    probs = (logits["test"] / fitted).softmax(1)
    found = json.loads((folder / "measure.json").read_text())
    assert found["temperature"]["value"] == pytest.approx(fitted, rel=1e-5)
    assert found["temperature"]["value"] != pytest.approx(fit_temperature(logits["test"], labels["test"]), rel=1e-3)
    assert found["temperature"]["ece"] == pytest.approx(expected_calibration_error(probs, labels["test"]), abs=1e-5)
    scaled = cross_entropy(logits["test"] / fitted, labels["test"])
    assert found["temperature"]["loss"] == pytest.approx(float(scaled), rel=1e-4)
    assert found["ece"] == pytest.approx(
        expected_calibration_error(logits["test"].softmax(1), labels["test"]), abs=1e-5
    )


def test_measuring_validation_leaves_the_test_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(CLASSIFY, "finish", lambda _method, data, *_, **__: seen.extend(data.streams) or {})
    before = (folder / "measure.json").read_text(), (folder / "confusion.npz").read_bytes()
    measure(folder, split="val")
    assert "val" in seen
    assert "test" not in seen
    assert np.load(folder / "confusion-val.npz")["confusion"].sum() == 50
    assert ((folder / "measure.json").read_text(), (folder / "confusion.npz").read_bytes()) == before


@pytest.mark.parametrize("metric", ["min_head_tail_recall", "min_head_tail_coverage", "coverage_violation", "macro_f1",
                                    "micro_f1", "top5", "min_coverage", "head", "tail"])  # fmt: skip
def test_its_numbers_can_be_selected(tmp_path: Path, metric: str) -> None:
    chosen = train(recipe(tmp_path / "run", steps=6, eval_every=0.2, select=f"val:{metric}"))
    rows = [json.loads(line) for line in (chosen / "log.jsonl").read_text().splitlines()]
    scores = {row["step"]: CLASSIFY.metric(metric).better(row[metric]) for row in rows if row["kind"] == "val"}
    found = open_run(chosen)
    assert found.checkpoint == "best.pt"
    assert scores[found.step] == max(scores.values())
    group = metric in ("head", "tail")
    assert CLASSIFY.metric(metric).path == (("group_recall", metric) if group else (metric,))
    measured = json.loads((chosen / "measure.json").read_text())
    assert metric in (measured["group_recall"] if group else measured)


def test_a_scaled_error_is_not_to_be_selected_by(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'ece_scaled' is measured once, at the end of a run"):
        train(recipe(tmp_path / "run", steps=1, select="val:ece_scaled"))
    assert not (tmp_path / "run" / "last.pt").exists()  # refused before training


def test_files_are_decoded_by_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation during training and the test at the end, where run.workers says so; the numbers are the same."""
    sizes = {"train": 20, "val": 40, "test": 40}
    names = [f"{split}/{k}/{i:03d}.png" for split, size in sizes.items() for k in "ab" for i in range(size)]
    photos = tree(tmp_path / "photos", *names, side=12)
    monkeypatch.setattr(Files, "held", lambda self, *_: self)
    fetch = Files.fetch
    here: list[int] = []

    def noted(self: Files, rows: Tensor, chance: torch.Generator | None = None) -> Any:
        if multiprocessing.parent_process() is None:
            here.append(len(rows))
        return fetch(self, rows, chance)

    monkeypatch.setattr(Files, "fetch", noted)
    found = {}
    for workers in (0, 2):
        here.clear()
        data = {"set": str(photos)}
        method = {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 2}}
        run = {"folder": str(tmp_path / f"run{workers}"), "steps": 2, "progress": False, "workers": workers}
        done = train(validate({"data": data, "method": method, "run": run}, "test"))
        assert (80 in here) == (workers == 0)
        found[workers] = json.loads((done / "measure.json").read_text())
    assert found[0] == found[2]


def test_measuring_other_rules_checkpoints_puts_the_runs_own_weights_back(tmp_path: Path) -> None:
    made = train(recipe(tmp_path / "run", epochs=2, eval_every=1, select_also=["val:loss"]))
    other = checkpoint.load(made / "best-val-loss.pt")
    for value in other["method"]["net"].values():
        value.zero_()
    checkpoint.save(made / "best-val-loss.pt", other)
    run = open_run(made)
    images = run.data().streams["test"].fetch(torch.arange(4))
    before = run.method.predict(images)
    table = measure_open(run, run.data(), split="test")
    assert table["also"]["val:loss"]["mean_recall"] == pytest.approx(0.1)  # one answer for all
    assert torch.equal(run.method.predict(images), before)


def test_batches_are_as_large_as_the_recipe_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the table, in what is fitted beside it, and for the checkpoints of other rules."""
    made = train(recipe(tmp_path / "run", steps=2, eval_batch=7, select_also=["val:loss"]))
    run = open_run(made)
    method: Any = run.method
    sizes: list[int] = []
    predict = method.predict
    monkeypatch.setattr(method, "predict", lambda x: sizes.append(len(x)) or predict(x))
    told: list[int] = []
    monkeypatch.setattr(CLASSIFY, "finish", lambda *_, batch: told.append(batch) or {})
    monkeypatch.setattr(CLASSIFY, "temperature", lambda *_, batch: told.append(batch))
    measure_open(run, run.data(), split="test")
    assert told == [7, 7]
    assert max(sizes) == 7
    told.clear()
    measure_open(run, run.data(), split="val")
    assert told == [7]  # a temperature is for what a run is measured on in the end


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ({"split": "test", "checkpoint": "last.pt", "step": 4, "classifier_score": 9, "x": 1}, {"classifier_score": 9}),
        ({"split": "test", "checkpoint": "last.pt", "step": 4}, {}),
        ({"split": "test", "checkpoint": "last.pt", "step": 5, "classifier_score": 9}, {}),
        ({"split": "test", "checkpoint": "best.pt", "step": 4, "classifier_score": 9}, {}),
        ([1], {}),
    ],
)
def test_a_score_that_takes_long_survives_for_its_own_checkpoint(tmp_path: Path, before: Any, kept: Any) -> None:
    table = {"split": "test", "checkpoint": "last.pt", "step": 4}
    assert _kept_score(tmp_path / "measure.json", table) == {}
    (tmp_path / "measure.json").write_text(json.dumps(before))
    assert _kept_score(tmp_path / "measure.json", table) == kept
