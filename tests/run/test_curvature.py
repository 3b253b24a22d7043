"""Spectra of runs: of the whole network that is judged, whatever of it is frozen, on random training samples."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from evenhand.run import open_run
from evenhand.run.curvature import of_all_classes, of_run, study
from evenhand.run.opening import OpenRun
from evenhand.run.recipe import validate
from evenhand.run.training import train

SHAPES = {"set": "shapes", "n_max": 8, "imbalance": 4, "test_per_class": 2, "val_per_class": 2, "unlabelled_max": 8}
NET = {"name": "small-cnn", "width": 2}
CSST = {"name": "csst", "batch": 4, "net": NET, "feedback_every": 1, "optim": {"ema": 0.9}}
SECOND = {"name": "second-stage", "rule": "crt", "batch": 8}


def trained(folder: Path, method: dict[str, Any], data: dict[str, Any] = SHAPES, **needs: str) -> OpenRun:
    run = {"folder": str(folder), "steps": 2, "progress": False}
    return open_run(train(validate({"data": data, "method": method, "run": run, "needs": needs}, "test")))


def literal(run: OpenRun, rows: torch.Tensor, scale: float = 1) -> tuple[float, float]:
    """Loss and gradient norm of the judged network over all of its weights."""
    method: Any = run.method
    stream = run.data().labelled
    assert stream.labels is not None
    net = copy.deepcopy(method.network()).requires_grad_(True)
    loss = cross_entropy(scale * net(method.data.see(stream.fetch(rows))), stream.labels[rows])
    loss.backward()
    return loss.item(), float(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).norm())


def rows_of(run: OpenRun, label: int) -> torch.Tensor:
    labels = run.data().labelled.labels
    assert labels is not None
    return (labels == label).nonzero()[:, 0]


def check(run: OpenRun, label: int = 0, scale: float = 1) -> None:
    name = run.method.data.classes[label]
    found = of_run(run, run.data(), [name], steps=2)[name]
    assert (found.loss, found.gradient_norm) == pytest.approx(literal(run, rows_of(run, label), scale), rel=1e-4)


@pytest.mark.parametrize("method", [{"name": "classifier", "batch": 8, "net": NET, "optim": {"ema": 0.9}}, CSST])
def test_a_run_with_an_average(tmp_path: Path, method: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", method)
    check(run)
    study(run.folder, whole=True, steps=2)
    assert "trace: an estimate from one random probe" in capsys.readouterr().out
    judged: Any = run.method
    assert not any(p.requires_grad for p in judged.network().parameters())


def test_ldams_logits_are_cosines_and_scaled_as_in_training(tmp_path: Path) -> None:
    check(trained(tmp_path / "run", {"name": "classifier", "batch": 8, "net": NET, "loss": "ldam"}), scale=30)


def test_a_second_stage_on_csst_counts_the_frozen_weights_too(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", CSST)
    check(trained(tmp_path / "run", SECOND, first=str(first.folder)))


@pytest.mark.filterwarnings("ignore:drawn images of class", "ignore:one training image")
def test_csst_is_the_classifier_of_a_generator(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", CSST)
    method = {"name": "class-balancing-gan", "batch": 6, "net": {"name": "sndcgan", "width": 2}, "ema_start": 1}
    method |= {"measure": {"judge_samples": 60, "samples": 40}}
    needs = {"classifier": str(first.folder), "annotator": str(first.folder)}
    assert trained(tmp_path / "run", method, SHAPES | {"augment": []}, **needs).step == 2


@pytest.mark.parametrize("net", ["text-mean", "text-transformer"])
def test_texts(tmp_path: Path, net: str) -> None:
    method = {"name": "classifier", "batch": 8, "net": {"name": net, "width": 32}}
    check(trained(tmp_path / "run", method, {"set": "phrases", "text": {"length": 8}}))


def test_of_a_large_class_some_samples_at_random_and_always_the_same(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", {"name": "classifier", "batch": 8, "net": NET})
    data, name = run.data(), run.method.data.classes[0]
    one, other = (of_run(run, data, [name], steps=2, max_samples=4)[name] for _ in range(2))
    assert one.samples == 4
    assert one.loss == other.loss != pytest.approx(literal(run, rows_of(run, 0)[:4])[0], rel=1e-4)
    assert of_all_classes(run, data, steps=2, max_samples=4).samples == 4
