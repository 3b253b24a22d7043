"""``optim.rho = "auto"`` of the classifier: what it tries, what it picks, and that the step uses what was picked."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.measure.classification import evaluate
from evenhand.methods.common import Optim
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise import classifier
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier
from evenhand.randomness import mix
from evenhand.run.recipe import validate
from evenhand.run.training import fit_recipe
from helpers import batches

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

CPU = torch.device("cpu")
START = Progress(0, 10, 100)


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(set="shapes", n_max=12, imbalance=10, val_per_class=2, augment=[]))


def make(data: Data, optim: dict[str, Any] | None = None, seed: int = 0, **settings: Any) -> LongTailClassifier:
    how = {"name": "sam", "rho": "auto", "lr": 0.1, "schedule": "constant", **(optim or {})}
    tree = {"batch": 16, "net": {"name": "small-cnn", "width": 4}, **settings, "optim": how}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(seed, "weights"))
        return LongTailClassifier(ClassifierSettings.model_validate(tree), data, seed=seed, device=CPU)


def norm_of(tensors: Any) -> float:
    return math.sqrt(sum(float(t.detach().double().square().sum()) for t in tensors))


class Spy:
    """In place of ``evaluate``: what each probe was, and a mean recall that falls with the radius."""

    def __init__(self, fall: float) -> None:
        self.fall, self.seen = fall, []  # type: ignore[var-annotated]

    def __call__(self, predict: Any, stream: Any) -> Any:
        probe: LongTailClassifier = predict.__self__
        steps = next(int(b) for name, b in probe.net.named_buffers() if name.endswith("tracked"))
        rho, lr = probe.settings.optim.rho, probe.player.optimizer.param_groups[0]["lr"]
        self.seen.append((stream.name, rho, steps, lr, float(probe.weights.max()) > 1, evaluate(predict, stream)))
        return SimpleNamespace(scalars=lambda: {"mean_recall": 0.9 - self.fall * float(rho), "accuracy": 0.0})


def test_the_last_radius_that_validation_bears_is_picked(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each probe sees the whole run's schedule, squeezed: learning rate and class weights are the end's."""
    spy = Spy(fall=0.001)
    monkeypatch.setattr(classifier, "evaluate", spy)
    optim = {"schedule": "steps", "milestones": [8], "factors": [1.0, 0.5]}
    auto = {"steps": 5, "shares": [1e-3, 1e-2, 100.0, 200.0], "tolerance": 0.05}
    method, again = (make(data, optim, weighting="drw", drw_start=0.7, auto=auto) for _ in range(2))
    before = copy.deepcopy(method.state())
    for each in (method, again):
        each.feeds(data.streams)
        each.refresh(START, data.streams)
    norm = norm_of(method.net.parameters())
    assert method.rho == again.rho == pytest.approx(0.01 * norm, rel=1e-5)
    tried = [0.0, 1e-3 * norm, 1e-2 * norm, 100 * norm]  # and nothing after the first that fails
    assert [row[:5] for row in spy.seen[:4]] == [("val", pytest.approx(rho), 5, 0.05, True) for rho in tried]
    assert [row[:5] for row in spy.seen[4:]] == [row[:5] for row in spy.seen[:4]]
    for one, two in zip(spy.seen[:4], spy.seen[4:], strict=True):
        assert torch.equal(one[5].surprise, two[5].surprise)
    assert not torch.equal(spy.seen[0][5].surprise, spy.seen[2][5].surprise)  # the radius acts in its probe
    for (key, a), b in zip(before["net"].items(), method.state()["net"].values(), strict=True):
        assert torch.equal(a, b), key


@pytest.mark.parametrize(("tolerance", "picked"), [(0.0, 0.0), (0.15, 0.1), (0.25, 0.2), (0.5, 0.4)])
def test_what_a_radius_may_cost_is_the_tolerance(
    data: Data, monkeypatch: pytest.MonkeyPatch, tolerance: float, picked: float
) -> None:
    """Recall is 0.9 less the radius."""
    monkeypatch.setattr(classifier, "evaluate", Spy(fall=1.0))
    auto = {"steps": 1, "shares": [0.1, 0.2, 0.4], "tolerance": tolerance}
    method = make(data, {"rho_relative": True}, auto=auto)
    method.refresh(START, data.streams)
    assert method.rho == picked


def test_probes_draw_the_same_numbers_whatever_the_radius(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout and the like come from torch's generator, which stands alike after each, and is left as it was."""
    states: list[Tensor] = []

    def noted(*_: Any) -> Any:
        states.append(torch.get_rng_state())
        return SimpleNamespace(scalars=lambda: {"mean_recall": 0.5})

    monkeypatch.setattr(classifier, "evaluate", noted)
    make(data, auto={"steps": 1, "shares": [1e-3, 1e-2]}).refresh(START, data.streams)
    assert len(states) == 3
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])
    assert not torch.equal(states[0], torch.get_rng_state())


def test_a_search_is_no_longer_than_the_run(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(fall=1.0)
    monkeypatch.setattr(classifier, "evaluate", spy)
    method = make(data, auto={"steps": 50, "shares": [1e-3]})
    method.refresh(Progress(0, 2, 3), data.streams)
    assert [row[2] for row in spy.seen] == [3, 3]


@pytest.mark.parametrize("relative", [False, True])
def test_the_step_uses_the_radius_that_was_picked(data: Data, monkeypatch: pytest.MonkeyPatch, relative: bool) -> None:
    """w <- w - lr (g(w + rho g / |g|) + decay w), literally; ``rho_relative``: rho |w|. Both norms are logged."""
    monkeypatch.setattr(classifier, "evaluate", Spy(fall=0.005))
    auto = {"steps": 1, "shares": [0.05, 20.0], "tolerance": 0.01}
    method = make(data, {"rho_relative": relative, "momentum": 0.0}, auto=auto, batch=8)
    (batch,) = batches(method, data)
    net = copy.deepcopy(method.net).train()
    params, x, y = list(net.parameters()), batch["labelled"].x, batch["labelled"].y
    long = norm_of(params)
    assert method.rho is None
    method.refresh(START, data.streams)
    assert method.rho == pytest.approx(0.05 if relative else 0.05 * long, rel=1e-5)
    method.schedule(START)
    said = method.update({"labelled": batch["labelled"]})

    def gradient() -> list[Tensor]:
        loss = -net(x).log_softmax(1)[torch.arange(len(y)), y].mean()
        return list(torch.autograd.grad(loss, params))

    first = gradient()
    with torch.no_grad():
        kept = [p.clone() for p in params]
        for p, g in zip(params, first, strict=True):
            p += 0.05 * long * g / norm_of(first)
    second = gradient()
    for mine, k, g in zip(method.net.parameters(), kept, second, strict=True):
        torch.testing.assert_close(mine.detach(), k - 0.1 * (g + 2e-4 * k), rtol=1e-4, atol=1e-5)
    assert float(said["rho"]) == pytest.approx(method.rho)
    assert float(said["gradient_norm"]) == pytest.approx(norm_of(first), rel=1e-4)
    assert float(said["weight_norm"]) == pytest.approx(long, rel=1e-5)


def test_norms_are_logged_with_a_given_radius_and_not_without_sam(data: Data) -> None:
    said = []
    for optim in ({"rho": 0.1}, {"name": "sgd", "rho": 0.1}):
        method = make(data, optim)
        method.schedule(START)
        said.append(set(method.update(batches(method, data)[0])))
    assert said == [{"loss", "gradient_norm", "weight_norm"}, {"loss"}]


def test_it_is_found_once_and_remembered(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "evaluate", Spy(fall=0.0))
    method = make(data, auto={"steps": 1, "shares": [0.05]})
    method.refresh(START, data.streams)
    resumed = make(data, auto={"steps": 1, "shares": [0.5]})
    resumed.load_state(method.state())
    monkeypatch.setattr(classifier, "find_rho", lambda *_: pytest.fail("searched again"))
    resumed.refresh(Progress(1, 10, 100), data.streams)
    resumed.schedule(Progress(1, 10, 100))
    assert resumed.rho == method.rho == resumed.player.optimizer.rho  # type: ignore[attr-defined]


def test_probes_train_and_a_radius_beyond_all_weights_fails(tmp_path: Path) -> None:
    y = np.arange(80) % 4
    x = np.random.default_rng(0).normal(size=(80, 4)) + 4 * np.eye(4)[y]
    np.savez(tmp_path / "clouds.npz", x=x.astype(np.float32), y=y)
    easy = prepare_data(DataSettings(set=str(tmp_path / "clouds.npz"), val_per_class=5))
    auto = {"steps": 30, "shares": [1e-3, 1000.0], "tolerance": 0.1}
    method = make(easy, {"rho_relative": True}, net={"name": "mlp-bn", "width": 8}, auto=auto)
    method.refresh(START, easy.streams)
    assert method.rho == 1e-3


def test_a_probe_that_diverges_fails(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "evaluate", Spy(fall=0.0))
    auto = {"steps": 3, "shares": [1e-3, 1e30], "tolerance": 1.0}
    method = make(data, {"rho_relative": True}, auto=auto)
    method.refresh(START, data.streams)
    assert method.rho == 1e-3


def test_seeds_change_what_probes_see(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(fall=0.0)
    monkeypatch.setattr(classifier, "evaluate", spy)
    first = make(data, auto={"steps": 2, "shares": [1e-3]})
    other = make(data, auto={"steps": 2, "shares": [1e-3]})
    other.seed = 7  # the same weights, other batches
    for each in (first, other):
        each.refresh(START, data.streams)
    assert not torch.equal(spy.seen[0][5].surprise, spy.seen[2][5].surprise)


def test_no_search_without_sam(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """The radius is SAM's: a variant with SGD ignores it as it does a number."""
    monkeypatch.setattr(classifier, "find_rho", lambda *_: pytest.fail("searched"))
    method = make(data, {"name": "sgd"})
    streams = {name: stream for name, stream in data.streams.items() if name != "val"}
    method.feeds(streams)
    method.refresh(START, streams)
    method.schedule(START)
    assert method.rho is None


def test_refusals(data: Data) -> None:
    streams = {name: stream for name, stream in data.streams.items() if name != "val"}
    with pytest.raises(UserError, match=r"needs a validation split: set data\.val_share") as raised:
        make(data).feeds(streams)
    assert "\n" not in str(raised.value)
    for optim in ({"rho_milestones": [5], "rho_values": [0.1, 0.2]}, {"rho_last": 0.1}):
        with pytest.raises(ValueError, match="leave out rho_values and rho_last"):
            make(data, optim)
    with pytest.raises(ValueError, match="give a number"):
        Optim(name="sam", rho="auto").radius(START)


def test_trainings_that_stay_at_chance_tell_nothing(data: Data) -> None:
    """Of the ten classes none is learnt in three steps; the widest tolerance makes no radius of that."""
    auto = {"steps": 3, "shares": [1e-3, 1e-2], "tolerance": 1.0}
    method = make(data, {"rho_relative": True, "lr": 1e-9}, auto=auto)
    with pytest.warns(
        UserWarning, match=r"3 steps without SAM come to 0\.\d+ where chance is 0\.100.*method\.auto\.st"
    ):
        method.refresh(START, data.streams)
    assert method.rho == 0.0


def test_a_training_that_diverges_without_sam_tells_nothing(data: Data) -> None:
    auto = {"steps": 3, "shares": [1e-3]}
    method = make(data, {"rho_relative": True, "lr": 1e30}, auto=auto)
    with pytest.warns(UserWarning, match="3 steps without SAM come to nan"):
        method.refresh(START, data.streams)
    assert method.rho == 0.0


def test_a_run_logs_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "evaluate", Spy(fall=0.0))
    tree = {
        "data": {"set": "shapes", "n_max": 12, "imbalance": 10, "val_per_class": 2, "augment": []},
        "method": {
            "name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 4},
            "optim": {"name": "sam", "rho": "auto"}, "auto": {"steps": 2, "shares": [1e-3], "tolerance": 1.0},
        },
        "run": {"folder": str(tmp_path / "run"), "steps": 2, "log_every": 1, "progress": False},
    }  # fmt: skip
    _, _, method = fit_recipe(validate(tree, "auto"))
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    rho = method.rho  # type: ignore[attr-defined]
    assert rho > 0
    assert [row["rho"] for row in rows if row["kind"] == "train"] == [pytest.approx(rho)] * 2


@pytest.mark.parametrize("ema", [None, 0.9])
def test_probes_start_from_the_weights_as_they_are(
    data: Data, monkeypatch: pytest.MonkeyPatch, ema: float | None
) -> None:
    """With a learning rate of next to nothing they end there; the average, which is judged, does too."""
    seen: list[Tensor] = []

    def weights(predict: Any, _: Any) -> Any:
        seen.append(torch.cat([p.detach().flatten() for p in predict.__self__.network().parameters()]))
        return SimpleNamespace(scalars=lambda: {"mean_recall": 0.5})

    monkeypatch.setattr(classifier, "evaluate", weights)
    method = make(data, {"lr": 1e-12, "ema": ema}, auto={"steps": 2, "shares": [1e-3]})
    method.refresh(START, data.streams)
    mine = torch.cat([p.detach().flatten() for p in method.net.parameters()])
    assert len(seen) == 2
    for theirs in seen:
        torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-6)
