"""Spectra of runs: of the whole network that is judged, whatever of it is frozen, on random training samples."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from evenhand.cli import runs
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.randomness import dice
from evenhand.run import curvature, open_run
from evenhand.run.curvature import of_all_classes, of_run, study
from evenhand.run.opening import OpenRun
from evenhand.run.recipe import validate
from evenhand.run.training import train
from evenhand.tasks.classify import CLASSIFY
from evenhand.tasks.detect import DETECT
from evenhand.tasks.generate import GENERATE

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


def toy(scale: float = 3.0) -> tuple[Any, Any]:
    """A run and its data by hand: six vectors of two classes, a linear network whose logits are scaled."""
    net = torch.nn.Linear(2, 2).requires_grad_(False)
    method = SimpleNamespace(
        task=CLASSIFY, network=lambda: net, logit_scale=scale, data=SimpleNamespace(see=lambda x: x + 1)
    )
    x = torch.arange(12.0).view(6, 2)
    stream = Stream(Memory(x), torch.tensor([0, 1, 0, 1, 1, 1]), ("a", "b"), "labelled")
    return SimpleNamespace(method=method, folder=Path("run")), SimpleNamespace(labelled=stream)


def test_spectra_are_of_the_scaled_loss_on_the_samples_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(
        curvature, "class_spectra", lambda *given, **how: told.append((given, how)) or {given[3][0]: "s"}
    )
    monkeypatch.setattr(curvature, "sample_spectrum", lambda *given, **how: told.append((given, how)) or "whole")
    run, data = toy()
    assert of_run(run, data, steps=5, probes=2, max_samples=3) == {"a": "s", "b": "s"}
    assert of_run(run, data, ["b"], max_samples=9) == {"b": "s"}
    assert of_all_classes(run, data, steps=6, probes=4, max_samples=5) == "whole"
    sizes = [len(given[1]) for given, _ in told]
    assert sizes == [2, 3, 4, 5]
    assert [(how["steps"], how["probes"]) for _, how in told] == [(5, 2), (5, 2), (64, 1), (6, 4)]
    for (net, x, y, *label), how in told:
        assert all(p.requires_grad for p in net.parameters())
        assert not any(p.requires_grad for p in run.method.network().parameters())
        rows = ((x[:, 0] - 1) / 2).long()
        assert torch.equal(y, data.labelled.labels[rows])
        assert not label or set(y.tolist()) == set(label[0])
        assert how.get("max_samples") is None
        logits = torch.randn(len(y), 2, generator=how["generator"])
        torch.testing.assert_close(how["loss"](logits, y), torch.nn.functional.cross_entropy(3 * logits, y))


def test_the_samples_and_probes_of_a_class_are_the_same_for_every_run() -> None:
    rows = torch.arange(100, 120)
    chosen = torch.randperm(20, generator=dice(0, "hessian", "rows", 7))[:4]
    assert torch.equal(curvature._some(rows, 4, 7), rows[chosen])
    assert sorted(curvature._some(rows, 50).tolist()) == rows.tolist()


def test_the_command_and_the_functions_have_the_same_defaults() -> None:
    numbers = {"steps": 64, "probes": 1, "max_samples": 512}
    for function, more in ((study, {"whole": False, "every_checkpoint": False}), (of_run, {}), (of_all_classes, {})):
        known = inspect.signature(function).parameters
        assert {key: known[key].default for key in (*numbers, *more)} == numbers | more
    command = inspect.signature(runs.hessian).parameters
    assert {key: command[key].default for key in numbers} == numbers


def test_more_probes_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    curvature._print([], 3)
    assert capsys.readouterr().out.endswith("trace: an estimate from 3 random probes; --probes sets how many\n")
    with pytest.raises(UserError, match="leave out --class"):
        study(Path("run"), whole=True, classes=["a"])


@pytest.mark.parametrize("task", [DETECT, GENERATE])
def test_a_run_of_another_task_is_refused_whatever_its_samples_have_for_labels(task: Any) -> None:
    run, data = toy()
    run.method.task, data.labelled = task, data.labelled.unlabelled()
    for spectra in (of_run, of_all_classes):
        with pytest.raises(UserError, match=rf"a classifier's loss; run is a run of task {task.name}"):
            spectra(run, data)
