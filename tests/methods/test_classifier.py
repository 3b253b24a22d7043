"""The long-tail classifier: its step against a literal transcription of spec 04, and what each setting changes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.data.loader import Batch, Loader
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.methods.common import Optim
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier, sampling_weights
from evenhand.pieces import losses
from evenhand.pieces.mixing import mixup
from evenhand.randomness import dice, mix

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

CPU = torch.device("cpu")
EPOCHS, PER_EPOCH = 10, 2


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(set="shapes", n_max=12, imbalance=10, augment=[]))


def make(data: Data, optim: dict[str, Any] | None = None, seed: int = 0, **settings: Any) -> LongTailClassifier:
    tree = {
        "batch": 16, "net": {"name": "small-cnn", "width": 4}, **settings,
        "optim": {"lr": 0.1, "schedule": "constant", **(optim or {})},
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(seed, "weights"))
        return LongTailClassifier(ClassifierSettings.model_validate(tree), data, seed=seed, device=CPU)


def at(epoch: int, step: int = 0) -> Progress:
    return Progress(epoch * PER_EPOCH + step, PER_EPOCH, EPOCHS * PER_EPOCH)


def batches(method: LongTailClassifier, data: Data, count: int = 1) -> list[Batch]:
    feed = method.feeds(data.streams)["labelled"]
    return list(Loader(data.streams["labelled"], feed, seed=0, device=CPU).iterate(0, count))


def without_batchnorm(method: LongTailClassifier) -> LongTailClassifier:
    """BatchNorm stays in eval mode, so that parts of a batch do not influence each other."""
    for module in method.net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval().train = lambda _=True, m=module: m  # type: ignore[method-assign]
    return method


def weights_of(method: LongTailClassifier) -> Tensor:
    return torch.cat([p.detach().flatten() for p in method.net.parameters()])


# the step


@pytest.mark.parametrize("freeze", [True, False])
def test_steps_equal_the_literal_algorithm(data: Data, freeze: bool) -> None:
    """Spec 04, 2.1 with the weighted mean of 2.2: SAM, momentum, weight decay, before and after DRW starts."""
    rho, lr, momentum, decay, start = 0.2, 0.1, 0.9, 2e-4, 1
    method = make(data, {"name": "sam", "rho": rho, "freeze_bn": freeze}, weighting="drw", drw_start=start)
    net = copy.deepcopy(method.net)
    params = list(net.parameters())
    velocity = [torch.zeros_like(p) for p in params]
    n = torch.tensor(data.counts).double()
    balanced = (1 - 0.9999) / (1 - 0.9999**n)
    balanced = (balanced / balanced.sum() * len(n)).float()

    def gradient(x: Tensor, y: Tensor, w: Tensor) -> list[Tensor]:
        picked = net(x).log_softmax(1)[torch.arange(len(y)), y]
        loss = -(w[y] * picked).sum() / w[y].sum()
        return list(torch.autograd.grad(loss, params))

    for step, batch in enumerate(batches(method, data, 4)):
        method.schedule(at(0, step))
        method.update({"labelled": batch})
        w = balanced if step // PER_EPOCH >= start else torch.ones(10)
        first = gradient(batch.x, batch.y, w)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in first))
        statistics = copy.deepcopy(list(net.buffers()))
        with torch.no_grad():
            kept = [p.clone() for p in params]
            for p, g in zip(params, first, strict=True):
                p += rho * g / (norm + 1e-12)
        second = gradient(batch.x, batch.y, w)
        with torch.no_grad():
            for p, k, v, g in zip(params, kept, velocity, second, strict=True):
                v.mul_(momentum).add_(g + decay * k)
                p.copy_(k - lr * v)
            if freeze:
                for buffer, before in zip(net.buffers(), statistics, strict=True):
                    buffer.copy_(before)
    for (name, mine), theirs in zip(method.net.state_dict().items(), net.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


LOSSES: dict[str, dict[str, Any]] = {
    "ce": {}, "focal": {"focal_gamma": 2.0}, "ldam": {"max_margin": 0.3, "scale": 20.0},
    "vs": {"vs_gamma": 0.2, "vs_tau": 1.1}, "la": {"la_tau": 0.7}, "ib": {"ib_start": 3, "ib_scale": 10.0},
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("weighting", ["none", "always"])
def test_the_reported_loss_is_the_named_one(data: Data, name: str, weighting: str) -> None:
    method = make(data, loss=name, weighting=weighting, **LOSSES[name])
    (batch,) = batches(method, data)
    method.schedule(at(3))
    net = copy.deepcopy(method.net).train()
    features = net.features(batch.x)
    logits, y, n = net.head(features), batch.y, torch.tensor(data.counts).float()
    w = losses.class_balanced_weights(n) if weighting == "always" else torch.ones(10)
    expected = {
        "ce": lambda: nn.functional.cross_entropy(logits, y, w),
        "focal": lambda: losses.focal_loss(logits, y, gamma=2.0, weight=w),
        "ldam": lambda: losses.ldam_loss(logits, y, n, max_margin=0.3, scale=20.0, weight=w),
        "vs": lambda: losses.vs_loss(logits, y, n, gamma=0.2, tau=1.1, weight=w),
        "la": lambda: losses.logit_adjusted_loss(logits, y, n, tau=0.7, weight=w),
        "ib": lambda: losses.influence_balanced_loss(logits, y, features, n, scale=10.0),
    }[name]()
    found = method.update({"labelled": batch})["loss"]
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


def test_weights_that_hold_always_hold_from_the_first_step(data: Data) -> None:
    balanced = losses.class_balanced_weights(torch.tensor(data.counts).float())
    for weighting, expected in (("always", balanced), ("drw", torch.ones(10))):
        method = make(data, weighting=weighting)
        method.schedule(at(0))
        torch.testing.assert_close(method.weights.float(), expected.float())


@pytest.mark.parametrize("parts", [2, 3, 20])  # the last: more than images
@pytest.mark.parametrize("settings", [*({"loss": name, **LOSSES[name]} for name in LOSSES), {"mixup": 1.0}], ids=str)
def test_accumulation_is_the_whole_batch(data: Data, settings: dict[str, Any], parts: int) -> None:
    """Exactly the weighted mean over the batch, also where the parts are uneven in size and in class weights."""
    found = []
    for accumulate in (1, parts):
        method = without_batchnorm(make(data, {"accumulate": accumulate}, weighting="always", **settings))
        steps = batches(method, data, 2)
        reported = []
        for step, batch in enumerate(steps):
            method.schedule(at(4, step))
            reported.append(method.update({"labelled": batch})["loss"])
        found.append((torch.stack(reported), weights_of(method)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=2e-6)


def test_accumulation_under_sam_climbs_along_the_whole_gradient(data: Data) -> None:
    found = []
    for accumulate in (1, 3):
        optim = {"name": "sam", "rho": 0.5, "accumulate": accumulate}
        method = without_batchnorm(make(data, optim, weighting="always"))
        (batch,) = batches(method, data)
        method.schedule(at(0))
        method.update({"labelled": batch})
        found.append(weights_of(method))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=2e-6)


def test_lpf_without_noise_is_accumulation(data: Data) -> None:
    quiet = make(data, {"name": "lpf-sgd", "lpf_gamma": 0.0, "lpf_parts": 4})
    plain = make(data, {"accumulate": 4})
    noisy = make(data, {"name": "lpf-sgd", "lpf_gamma": 0.1, "lpf_parts": 4})
    for method in (quiet, plain, noisy):
        method.schedule(at(0))
        method.update({"labelled": batches(method, data)[0]})
    torch.testing.assert_close(weights_of(quiet), weights_of(plain))
    assert not torch.allclose(weights_of(noisy), weights_of(plain), atol=1e-5)


def test_trap_01_batchnorm_moves_once_a_step(data: Data) -> None:
    for freeze, moves in ((True, 3), (False, 6)):
        method = make(data, {"name": "sam", "freeze_bn": freeze})
        for step, batch in enumerate(batches(method, data, 3)):
            method.schedule(at(0, step))
            method.update({"labelled": batch})
        counters = [b for name, b in method.net.named_buffers() if name.endswith("num_batches_tracked")]
        assert [int(c) for c in counters] == [moves] * 4


# time


def test_deferred_weights_start_with_their_epoch(data: Data) -> None:
    for start in (8, 0.8):
        method = make(data, weighting="drw", drw_start=start)
        method.schedule(at(7, PER_EPOCH - 1))
        assert torch.equal(method.weights, torch.ones(10))
        method.schedule(at(8))
        torch.testing.assert_close(method.weights, losses.class_balanced_weights(data.counts))
        method.schedule(at(2))  # weights follow the step at hand, not the last one seen
        assert torch.equal(method.weights, torch.ones(10))


def test_influence_replaces_cross_entropy_at_its_epoch(data: Data) -> None:
    method = make(data, loss="ib", ib_start=0.5)
    seen = []
    for epoch in (0, 4, 5, 9):
        method.schedule(at(epoch))
        seen.append(method.influence)
    assert seen == [False, False, True, True]


def test_learning_rate_and_radius_are_set(data: Data) -> None:
    radius = {"rho_milestones": [5], "rho_values": [0.1, 0.3]}
    method = make(data, {"name": "sam", "lr": 0.4, "schedule": "steps", **radius})
    for epoch, lr, rho in ((0, 0.4, 0.1), (5, 0.4, 0.3), (8, 0.004, 0.3), (9, 4e-5, 0.3)):
        method.schedule(at(epoch))
        assert method.player.optimizer.param_groups[0]["lr"] == pytest.approx(lr)
        assert method.player.optimizer.rho == rho  # type: ignore[attr-defined]


def test_shares_of_the_run_hold_in_a_run_of_half_an_epoch(data: Data) -> None:
    """Ten steps, of which twenty are an epoch: what begins at 0.5 begins with the sixth."""
    late = {"rho_milestones": [0.5], "rho_values": [0.1, 0.3]}
    method = make(data, {"name": "sam", **late}, weighting="drw", drw_start=0.5)
    other = make(data, loss="ib", ib_start=0.5)
    for step in range(10):
        now = Progress(step, 20, 10)
        method.schedule(now)
        other.schedule(now)
        found = len(method.weights.unique()) > 1, method.player.optimizer.rho, other.influence  # type: ignore[attr-defined]
        assert found == ((True, 0.3, True) if step >= 5 else (False, 0.1, False))


def test_times_after_the_end_of_a_shortened_run_are_told_of(data: Data, recwarn: pytest.WarningsRecorder) -> None:
    steps = {"schedule": "steps", "milestones": [0.5, 10, 20], "factors": [1, 0.1, 0.01, 0.001]}
    late = make(data, {"name": "sam", "rho_milestones": [9, 12], "rho_values": [0.1, 0.2, 0.3], **steps}, drw_start=160)
    late.schedule(at(0))
    told = "10 epochs, before method.optim.milestones = 10, 20, method.optim.rho_milestones = 12, which"
    assert told in str(recwarn.pop().message)
    other = make(data, drw_start=160, ib_start=10, loss="ib", weighting="drw")
    other.schedule(at(0))
    assert "before method.drw_start = 160, method.ib_start = 10, which" in str(recwarn.pop().message)
    other.schedule(at(0, 1))  # once
    for start in (9, 0.99):
        make(data, {"milestones": [40]}, drw_start=start, weighting="drw").schedule(at(0))
    assert not recwarn.list


# mixing, sampling, predicting


def test_mixup_is_a_function_of_seed_and_step(data: Data) -> None:
    def loss(seed: int, step: int) -> float:
        method = make(data, mixup=1.0)
        method.seed = seed
        method.schedule(at(0, step))
        return float(method.update({"labelled": batches(method, data)[0]})["loss"])

    assert loss(0, 0) == loss(0, 0)
    assert len({loss(0, 0), loss(0, 1), loss(1, 0)}) == 3


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_mixed_labels_are_weighted_by_both_their_classes(data: Data, alpha: float) -> None:
    """-sum_ik t_ik w_k log p_ik / sum_ik t_ik w_k, image by image."""
    method = make(data, mixup=alpha, weighting="always")
    (batch,) = batches(method, data)
    method.schedule(at(0, 1))
    x, target = mixup(batch.x, batch.y, alpha, dice(0, "mixup", 1, 0), 10)
    assert float(target.amax(1).min()) < 0.95
    raw = [(1 - 0.9999) / (1 - 0.9999**n) for n in data.counts]
    w = [10 * r / sum(raw) for r in raw]
    with torch.no_grad():
        logp = copy.deepcopy(method.net).train()(x).log_softmax(1)
    cells = [(i, k, float(target[i, k])) for i in range(len(x)) for k in range(10)]
    expected = -sum(t * w[k] * float(logp[i, k]) for i, k, t in cells) / sum(t * w[k] for _, k, t in cells)
    assert float(method.update({"labelled": batch})["loss"]) == pytest.approx(expected, rel=1e-4)


def test_mixup_needs_cross_entropy() -> None:
    with pytest.raises(ValueError, match="mixup needs loss = 'ce', got 'ldam'"):
        ClassifierSettings(mixup=0.5, loss="ldam")


def test_sampling_rules_give_each_class_its_share() -> None:
    counts = [100, 25, 4]
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    n = torch.tensor(counts).double()
    effective = n * losses.class_balanced_weights(counts, 0.9)
    shares = {
        "square-root": n.sqrt() / n.sqrt().sum(),
        "class-balanced": torch.full((3,), 1 / 3).double(),
        "effective-number": effective / effective.sum(),
    }
    assert sampling_weights("instance", labels, counts, 0.9) is None
    for rule, expected in shares.items():
        weights = sampling_weights(rule, labels, counts, 0.9)  # type: ignore[arg-type]
        assert weights is not None
        mass = torch.zeros(3).double().index_add(0, labels, weights.double())
        torch.testing.assert_close(mass / mass.sum(), expected, rtol=1e-5, atol=1e-6)


def test_the_feed_is_the_training_view_of_the_labelled_stream(data: Data) -> None:
    feed = make(data).feeds(data.streams)["labelled"]
    assert (feed.stream, feed.batch, feed.views, feed.weights) == ("labelled", 16, (data.train_view,), None)
    assert make(data, sampling="class-balanced").feeds(data.streams)["labelled"].weights is not None


def test_beta_reaches_weights_and_sampling(data: Data) -> None:
    """A class of n weighs (1 - beta) / (1 - beta^n): all together as many as there are classes, or a chance each."""
    raw = [0.5 / (1 - 0.5**n) for n in data.counts]
    method = make(data, weighting="always", beta=0.5)
    method.schedule(at(0))
    assert method.weights.tolist() == pytest.approx([10 * r / sum(raw) for r in raw], rel=1e-5)
    feed = make(data, sampling="effective-number", beta=0.5).feeds(data.streams)["labelled"]
    chances = [raw[k] for k in data.streams["labelled"].labels.tolist()]  # type: ignore[union-attr]
    assert feed.weights is not None
    assert (feed.weights / feed.weights.sum()).tolist() == pytest.approx([c / sum(chances) for c in chances], rel=1e-4)


def test_the_rarest_are_drawn_as_often_as_their_rule_says(data: Data) -> None:
    """square-root: a class of n is drawn with sqrt(n), so each of its samples with 1 / sqrt(n)."""
    feed = make(data, sampling="square-root").feeds(data.streams)["labelled"]
    chances = [data.counts[k] ** -0.5 for k in data.streams["labelled"].labels.tolist()]  # type: ignore[union-attr]
    assert feed.weights is not None
    assert feed.weights.tolist() == pytest.approx([c / sum(chances) for c in chances], rel=1e-5)


def test_a_searched_radius_needs_validation_before_anything_is_trained(data: Data) -> None:
    """These data have none."""
    searched = ClassifierSettings.model_validate({"optim": {"name": "sam", "rho": "auto"}})
    with pytest.raises(UserError, match="needs a validation split"):
        LongTailClassifier.check(searched, data, ())
    LongTailClassifier.check(ClassifierSettings.model_validate({"optim": {"name": "sam"}}), data, ())


def test_a_given_radius_is_not_searched(data: Data) -> None:
    method = make(data, {"name": "sam", "rho": 0.2})
    method.refresh(at(0), data.streams)  # a search would miss validation
    assert method.rho is None


def test_repeated_views_follow_the_seed(data: Data) -> None:
    picks = [make(data, repeats=2, seed=seed).feeds(data.streams)["labelled"].picks for seed in (0, 0, 1)]
    one, again, other = (each.batch(0).tolist() for each in picks)  # type: ignore[union-attr]
    assert (len(one), one == again, one == other) == (16, True, False)


def test_repeated_views_stand_in_a_batch(data: Data) -> None:
    (batch,) = batches(make(data, repeats=2), data)
    rows = batch.indices.tolist()
    assert all(rows.count(row) == 2 for row in rows)
    (plain,) = batches(make(data), data)
    assert len(set(plain.indices.tolist())) == 16
    with pytest.raises(ValueError, match="repeats needs sampling = 'instance', got 'class-balanced'"):
        make(data, repeats=2, sampling="class-balanced")


def test_ldam_predicts_scaled_cosines(data: Data) -> None:
    method = make(data, loss="ldam", scale=20.0)
    images = data.streams["test"].fetch(torch.arange(0, 600, 100))
    logits = method.predict(images)
    assert logits.abs().max() <= 20.0
    cosines = method.net.eval()(data.eval_view(images, torch.Generator()))
    torch.testing.assert_close(logits, 20 * cosines.detach())
    assert make(data).logit_scale == 1.0


def test_vs_and_la_predict_plain_logits(data: Data) -> None:
    images = data.streams["test"].fetch(torch.arange(6))
    plain = make(data).predict(images)
    for loss in ("vs", "la"):
        assert torch.equal(make(data, loss=loss).predict(images), plain)


def test_the_average_predicts_where_there_is_one(data: Data) -> None:
    averaged, plain = make(data, {"ema": 0.99}), make(data)
    images = data.streams["test"].fetch(torch.arange(6))
    first = averaged.predict(images)
    for method in (averaged, plain):
        for step, batch in enumerate(batches(method, data, 3)):
            method.schedule(at(0, step))
            method.update({"labelled": batch})
    torch.testing.assert_close(weights_of(averaged), weights_of(plain))
    assert not torch.equal(averaged.predict(images), plain.predict(images))
    assert averaged.player.average is not None
    assert not torch.equal(averaged.predict(images), first)


def test_seeds_change_the_noise_of_perturbed_optimisers(data: Data) -> None:
    found = []
    for seed in (0, 0, 1):
        method = make(data, {"name": "pgd", "sigma": 0.1})
        method.player = method.settings.optim.player(method.net, seed=seed)
        method.schedule(at(0))
        method.update({"labelled": batches(method, data)[0]})
        found.append(weights_of(method))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_sgd_is_not_fused_where_a_scaler_may_skip_its_first_step() -> None:
    """Momentum would be uninitialised memory; see Optim.build."""
    net = torch.nn.ParameterList([torch.zeros(2)])
    fused = {p: Optim(precision=p).player(net, seed=0).optimizer.defaults["fused"] for p in ("float32", "float16")}
    assert fused == {"float32": True, "float16": False}
