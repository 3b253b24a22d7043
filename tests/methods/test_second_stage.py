"""Second stages: what each rule may change, and what stays to the bit."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.data.loader import Loader
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier
from evenhand.methods.recognise.second_stage import SecondStage, SecondStageSettings
from evenhand.pieces import losses
from evenhand.randomness import mix

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(set="shapes", n_max=12, imbalance=10, augment=[]))


def first_stage(data: Data, **settings: Any) -> LongTailClassifier:
    tree = {"net": {"name": "small-cnn", "width": 4}, "optim": {"ema": 0.5}, "batch": 16, **settings}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(0, "weights"))
        method = LongTailClassifier(ClassifierSettings.model_validate(tree), data, seed=0, device=CPU)
    train(method, data, 2)
    return method


@pytest.fixture(scope="module")
def first(data: Data) -> LongTailClassifier:
    return first_stage(data)


@pytest.fixture(scope="module")
def cosine(data: Data) -> LongTailClassifier:
    return first_stage(data, loss="ldam")


def make(data: Data, first: LongTailClassifier, rule: str, **settings: Any) -> SecondStage:
    tree = {"rule": rule, "batch": 16, **settings}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(0, "weights"))
        return SecondStage(SecondStageSettings.model_validate(tree), data, seed=0, device=CPU, first=first)


def train(method: Any, data: Data, steps: int) -> list[float]:
    feed = method.feeds(data.streams)["labelled"]
    loader = Loader(data.streams["labelled"], feed, seed=0, device=CPU)
    reported = []
    for step, batch in enumerate(loader.iterate(0, steps)):
        method.schedule(Progress(step, 2, 10))
        reported.append(float(method.update({"labelled": batch})["loss"]))
    return reported


def snapshot(method: SecondStage) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in method.net.state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.fixture(scope="module")
def images(data: Data) -> Tensor:
    return data.streams["test"].fetch(torch.arange(0, 600, 37))


@pytest.mark.parametrize("rule", ["crt", "lws", "tau-norm"])
def test_only_the_head_learns(data: Data, first: LongTailClassifier, rule: str) -> None:
    method = make(data, first, rule)
    before = snapshot(method)
    train(method, data, 3)
    expected = {"crt": {"fc.weight", "fc.bias"}, "lws": {"fc.scale"}, "tau-norm": set()}[rule]
    assert changed(before, snapshot(method)) == expected


def test_mislas_trains_classifier_and_scales_and_shifts_statistics(data: Data, first: LongTailClassifier) -> None:
    method = make(data, first, "mislas")
    before = snapshot(method)
    train(method, data, 3)
    moved = changed(before, snapshot(method))
    statistics = {name for name in before if "running" in name or "tracked" in name}
    assert moved == statistics | {"fc.scale", "fc.inner.weight", "fc.inner.bias"}


@pytest.mark.parametrize("rule", ["crt", "lws", "tau-norm", "mislas"])
def test_the_first_stage_is_left_alone(data: Data, first: LongTailClassifier, rule: str) -> None:
    before = copy.deepcopy(first.state())
    method = make(data, first, rule)
    train(method, data, 2)
    after = first.state()
    for part in ("net", "average"):
        assert changed(before[part], after[part]) == set()
    assert all(p.requires_grad for p in first.net.parameters())


def test_features_are_those_that_were_judged(data: Data, first: LongTailClassifier, images: Tensor) -> None:
    """The moving average where the first stage has one."""
    method = make(data, first, "crt")
    x = data.eval_view(images, torch.Generator())
    assert first.player.average is not None
    expected = first.player.average.eval().features(x)
    torch.testing.assert_close(method.net.eval().features(x), expected)


@pytest.mark.parametrize("rule", ["lws", "mislas"])
@pytest.mark.parametrize("stage", ["first", "cosine"])
def test_scales_start_at_the_first_stages_answer(
    data: Data, images: Tensor, rule: str, stage: str, request: pytest.FixtureRequest
) -> None:
    first = request.getfixturevalue(stage)
    torch.testing.assert_close(make(data, first, rule).predict(images), first.predict(images))


def test_scales_multiply_the_logits(data: Data, first: LongTailClassifier, images: Tensor) -> None:
    method = make(data, first, "lws")
    train(method, data, 5)
    scale = method.net.state_dict()["fc.scale"]
    assert not torch.equal(scale, torch.ones(10))
    torch.testing.assert_close(method.predict(images), first.predict(images) * scale)


@pytest.mark.parametrize("stage", ["first", "cosine"])
@pytest.mark.parametrize("tau", [0.0, 0.7, 1.0])
def test_tau_norm_divides_by_the_norm_to_the_power_tau(
    data: Data, images: Tensor, stage: str, tau: float, request: pytest.FixtureRequest
) -> None:
    first = request.getfixturevalue(stage)
    method = make(data, first, "tau-norm", tau=tau)
    train(method, data, 2)
    net = first.player.judged()
    weight = net.head.weight.detach()
    features = net.features(data.eval_view(images, torch.Generator())).detach()
    expected = torch.stack([features @ w / w.square().sum().sqrt() ** tau for w in weight], 1)
    torch.testing.assert_close(method.predict(images), expected, rtol=1e-4, atol=1e-5)


def test_crt_replaces_a_cosine_head_by_a_linear_one(data: Data, cosine: LongTailClassifier, images: Tensor) -> None:
    method = make(data, cosine, "crt")
    assert isinstance(method.net.head, nn.Linear)
    features = method.net.eval().features(data.eval_view(images, torch.Generator()))
    torch.testing.assert_close(method.predict(images), method.net.head(features).detach())


@pytest.mark.parametrize("stage", ["first", "cosine"])
@pytest.mark.parametrize("rule", ["crt", "lws", "mislas"])
def test_losses_are_those_of_the_balanced_batch(
    data: Data, rule: str, stage: str, request: pytest.FixtureRequest
) -> None:
    method = make(data, request.getfixturevalue(stage), rule, smooth_head=0.4, smooth_tail=0.1)
    feed = method.feeds(data.streams)["labelled"]
    (batch,) = Loader(data.streams["labelled"], feed, seed=0, device=CPU).iterate(0, 1)
    net = copy.deepcopy(method.net).train(rule == "mislas")
    scale = 30.0 if stage == "cosine" and rule != "crt" else 1.0
    logits = scale * net(batch.x)
    expected = (
        losses.label_aware_smoothing_loss(logits, batch.y, data.counts, head=0.4, tail=0.1)
        if rule == "mislas"
        else nn.functional.cross_entropy(logits, batch.y)
    )
    assert train(method, data, 1)[0] == pytest.approx(expected.item(), rel=1e-5)


def test_classes_are_drawn_evenly(data: Data, first: LongTailClassifier) -> None:
    feed = make(data, first, "crt").feeds(data.streams)["labelled"]
    labels = data.streams["labelled"].labels
    assert labels is not None
    assert feed.weights is not None
    mass = torch.zeros(10).double().index_add(0, labels, feed.weights.double())
    torch.testing.assert_close(mass / mass.sum(), torch.full((10,), 0.1).double())


def test_samples_are_seen_as_the_first_stage_saw_them(first: LongTailClassifier) -> None:
    other = prepare_data(DataSettings(set="shapes", n_max=12, imbalance=10, normalise=[[0.1] * 3, [2.0] * 3]))
    method = make(other, first, "crt")
    assert method.data.eval_view is first.data.eval_view
    feed = method.feeds(other.streams)["labelled"]
    assert (feed.stream, feed.batch, feed.views) == ("labelled", 16, (first.data.train_view,))


def test_the_learning_rate_follows_its_schedule(data: Data, first: LongTailClassifier) -> None:
    """By default a cosine from 0.05, epoch by epoch."""
    method = make(data, first, "crt")
    for step, epoch in ((0, 0), (4, 2), (5, 2), (9, 4)):
        method.schedule(Progress(step, 2, 10))
        (group,) = method.player.optimizer.param_groups
        assert group["lr"] == pytest.approx(0.05 * 0.5 * (1 + math.cos(math.pi * epoch / 5)))


def test_a_step_is_sgd_on_the_head(data: Data, first: LongTailClassifier) -> None:
    """w <- w - lr (gradient of the mean cross-entropy + decay w), at the first step of momentum."""
    method = make(data, first, "crt", optim={"lr": 0.3, "schedule": "constant", "weight_decay": 0.01})
    feed = method.feeds(data.streams)["labelled"]
    (batch,) = Loader(data.streams["labelled"], feed, seed=0, device=CPU).iterate(0, 1)
    net = copy.deepcopy(method.net).eval()
    w, features = net.head.weight.detach().clone(), net.features(batch.x).detach()
    error = net.head(features).softmax(1).detach() - nn.functional.one_hot(batch.y, 10)
    train(method, data, 1)
    wanted = w - 0.3 * (error.T @ features / len(features) + 0.01 * w)
    torch.testing.assert_close(method.net.head.weight.detach(), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stage", ["first", "cosine"])
@pytest.mark.parametrize("rule", ["lws", "mislas"])
def test_a_step_of_the_scales_is_sgd_on_their_loss(
    data: Data, rule: str, stage: str, request: pytest.FixtureRequest
) -> None:
    """Logits s (W f + b), or 30 s cos(W, f); MiSLAS has soft labels, a share off the true class, and learns W and b."""
    optim = {"lr": 0.3, "schedule": "constant", "weight_decay": 0.01}
    method = make(data, request.getfixturevalue(stage), rule, smooth_head=0.4, smooth_tail=0.1, optim=optim)
    with torch.no_grad():
        method.net.state_dict()["fc.scale"].copy_(torch.linspace(0.5, 1.5, 10))
    feed = method.feeds(data.streams)["labelled"]
    (batch,) = Loader(data.streams["labelled"], feed, seed=0, device=CPU).iterate(0, 1)
    net = copy.deepcopy(method.net).train(rule == "mislas")
    f = net.features(batch.x).detach()  # in training, MiSLAS shifts the statistics
    wanted = snapshot(method) | {name: value.clone() for name, value in net.state_dict().items()}
    moving = {name: wanted[name].requires_grad_() for name in wanted if name.startswith("fc.")}
    s, W = moving["fc.scale"], moving["fc.inner.weight"]
    if stage == "cosine":
        z = 30 * s * (f @ W.T) / (f.square().sum(1).sqrt()[:, None] * W.square().sum(1).sqrt())
    else:
        z = s * (f @ W.T + moving["fc.inner.bias"])
    n = torch.tensor(data.counts)
    share = 0.1 + 0.3 * torch.sin(math.pi / 2 * (n - n.min()) / (n.max() - n.min()))
    off = share[batch.y][:, None] if rule == "mislas" else torch.zeros(len(f), 1)
    true = nn.functional.one_hot(batch.y, 10)
    labels = (1 - off) * true + off / 9 * (1 - true)
    loss = -(labels * torch.log(torch.exp(z) / torch.exp(z).sum(1, keepdim=True))).sum(1).mean()
    names = [*moving] if rule == "mislas" else ["fc.scale"]
    for name, slope in zip(names, torch.autograd.grad(loss, [moving[name] for name in names]), strict=True):
        wanted[name] = moving[name] - 0.3 * (slope + 0.01 * moving[name])
    assert train(method, data, 1)[0] == pytest.approx(loss.item(), rel=1e-5)
    wanted = {name: value.detach() for name, value in wanted.items()}
    torch.testing.assert_close(snapshot(method), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("rule", "size"), [("crt", 170), ("lws", 10), ("mislas", 180), ("tau-norm", 170)])
def test_what_may_learn(data: Data, first: LongTailClassifier, rule: str, size: int) -> None:
    """Ten classes of sixteen features: a linear layer of 170 numbers, ten scales."""
    assert make(data, first, rule).size() == size


def test_other_counts_are_refused(data: Data, first: LongTailClassifier) -> None:
    counts = [*data.counts[:-1], data.counts[-1] + 1]
    other = replace(data, facts=data.facts.model_copy(update={"counts": counts}))
    with pytest.raises(UserError, match="the first run was trained on other class counts"):
        make(other, first, "crt")


def test_training_lowers_the_loss(data: Data, first: LongTailClassifier) -> None:
    reported = train(make(data, first, "crt", optim={"lr": 0.5, "schedule": "constant"}), data, 60)
    assert sum(reported[-20:]) < 0.9 * sum(reported[:20])


def test_state_restores_the_head(data: Data, first: LongTailClassifier, images: Tensor) -> None:
    for rule in ("crt", "lws", "tau-norm", "mislas"):
        method, other = make(data, first, rule), make(data, first, rule)
        train(method, data, 3)
        other.load_state(copy.deepcopy(method.state()))
        assert torch.equal(other.predict(images), method.predict(images))


@pytest.mark.parametrize("optim", [{"name": "sam", "rho": 1.0}, {"name": "lpf-sgd", "lpf_gamma": 0.5}], ids=str)
def test_optimiser_settings_are_obeyed_or_refused(data: Data, first: LongTailClassifier, optim: dict[str, Any]) -> None:
    """A table that is accepted must not be ignored."""
    try:
        method = make(data, first, "crt", optim={"lr": 0.05, **optim})
    except ValueError:
        return
    plain = make(data, first, "crt", optim={"lr": 0.05})
    for each in (method, plain):
        train(each, data, 3)
    assert changed(snapshot(plain), snapshot(method))


def test_a_first_run_is_needed(data: Data) -> None:
    with pytest.raises(UserError, match=r"set needs\.first to a recipe or a run's folder"):
        SecondStage(SecondStageSettings(), data, seed=0, device=CPU)


def test_other_classes_are_refused(data: Data, first: LongTailClassifier) -> None:
    few = copy.copy(first)
    few.player = copy.deepcopy(first.player)
    few.player.average = None
    with torch.random.fork_rng(devices=[]):
        few.player.net.head = nn.Linear(16, 7)
    with pytest.raises(UserError, match="the first run knows 7 classes, the data have 10"):
        make(data, few, "crt")


def test_a_head_of_several_layers_is_refused_in_one_line(data: Data, first: LongTailClassifier) -> None:
    """MDD's, say: there is no one weight to replace, scale or normalise."""
    deep = copy.deepcopy(first)
    assert deep.player.average is not None
    deep.player.average.head = nn.Sequential(deep.net.head, nn.ReLU())
    for rule in ("crt", "lws", "tau-norm", "mislas"):
        with pytest.raises(UserError, match="ends in several layers, as MDD does") as raised:
            make(data, deep, rule)
        assert "\n" not in str(raised.value)


def test_data_of_two_domains_are_refused_in_one_line(data: Data, first: LongTailClassifier) -> None:
    adapting = {"source": data.streams["labelled"], "target": data.streams["test"].unlabelled()}
    for method in (first, make(data, first, "crt")):
        with pytest.raises(
            UserError, match=r"needs a stream 'labelled'; the data give: source, target; .* data\.target"
        ):
            method.feeds(adapting)
