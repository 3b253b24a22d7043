"""ABC, CoSSL and DASO: each step's loss from its equations, by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods import method_class
from evenhand.methods.protocol import Progress
from evenhand.randomness import dice, mix
from helpers import batches

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")
AT = Progress(3, 2, 5)  # three fifths of the way


@pytest.fixture(scope="module")
def data() -> Data:
    set_ = {"set": "shapes", "n_max": 12, "imbalance": 10, "augment": [], "val_per_class": 2, "unlabelled_max": 24}
    return prepare_data(DataSettings(**set_))


def make(name: str, data: Data, **settings: Any) -> Any:
    cls = method_class(name)
    tree = {"name": name, "batch": 8, "unlabelled_ratio": 2, "net": {"name": "small-cnn", "width": 4},
            "threshold": 0.12,
            "optim": {"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "schedule": "constant"},
            **settings}  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(0, "weights"))
        method = cls(cls.table.model_validate(tree), data, seed=0, device=torch.device("cpu"))
    method.schedule(AT)
    return method


def seen(method: Any, batch: Any) -> tuple[Any, list[Tensor]]:
    """A copy of the network in train mode, and features of the three views in one pass."""
    net = copy.deepcopy(method.net).train()
    parts = [batch["labelled"].x, *batch["unlabelled"].views]
    return net, list(net.features(torch.cat(parts)).split([len(p) for p in parts]))


def fixmatch_losses(head: Any, features: list[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    first, weak, strong = (head(f) for f in features)
    probs = weak.softmax(1).detach()
    kept = probs.amax(1) >= 0.12
    assert kept.any()
    return cross_entropy(first, y), (kept * cross_entropy(strong, probs.argmax(1), reduction="none")).mean()


def check_step(method: Any, batch: Any, net: Any, loss: Tensor) -> None:
    """The loss logged, and every weight one plain SGD step further."""
    named = dict(net.named_parameters())
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    said = method.update(batch)
    assert float(said["loss"]) == pytest.approx(loss.item(), rel=1e-5)
    for (name, p), g in zip(named.items(), gradients, strict=True):
        wanted = p.detach() if g is None else p.detach() - 0.1 * g
        torch.testing.assert_close(method.net.get_parameter(name).detach(), wanted, rtol=1e-4, atol=1e-6, msg=name)


def test_abc_masks_frequent_classes_in_the_second_head(data: Data) -> None:
    method = make("abc", data, unlabelled_weight=0.7)
    (batch,) = batches(method, data)
    net, features = seen(method, batch)
    y = batch["labelled"].y
    labelled, consistency = fixmatch_losses(net.plain, features, y)
    first, weak, strong = (net.head(f) for f in features)
    prior = torch.tensor(data.counts).float()
    keep = 1 - 0.6 * (1 - prior.min() / prior)  # (K,)
    probs = weak.softmax(1).detach()
    guess = probs.argmax(1)
    draws = [torch.rand(n, generator=dice(0, "abc", which, 3)) for n, which in ((8, "labelled"), (16, "unlabelled"))]
    masks = [draws[0] < keep[y], (draws[1] < keep[guess]) & (probs.amax(1) >= 0.12)]
    assert not masks[0].all()
    balanced = (masks[0] * cross_entropy(first, y, reduction="none")).mean()
    agreeing = (masks[1] * cross_entropy(strong, guess, reduction="none")).mean()
    check_step(method, batch, net, labelled + balanced + 0.7 * (consistency + agreeing))


def test_abc_logs_its_terms(data: Data) -> None:
    """Both heads' labelled losses, both heads' consistency, and of the second head's labelled loss what was left."""
    method = make("abc", data, unlabelled_weight=0.7, loss="la")
    (batch,) = batches(method, data)
    net, features = seen(method, batch)
    y = batch["labelled"].y
    _, consistency = fixmatch_losses(net.plain, features, y)
    counts = torch.tensor(data.counts).float()
    labelled = cross_entropy(net.plain(features[0]) + (counts / counts.sum()).log(), y)
    keep = 1 - 0.6 * (1 - counts.min() / counts)
    first, weak, strong = (net.head(f).detach() for f in features)
    probs = weak.softmax(1)
    guess = probs.argmax(1)
    mask = torch.rand(8, generator=dice(0, "abc", "labelled", 3)) < keep[y]
    sure = (torch.rand(16, generator=dice(0, "abc", "unlabelled", 3)) < keep[guess]) & (probs.amax(1) >= 0.12)
    balanced = (mask * cross_entropy(first, y, reduction="none")).mean()
    agreeing = (sure * cross_entropy(strong, guess, reduction="none")).mean()
    said = {key: float(value) for key, value in method.update(batch).items()}
    kept = float((net.plain(features[1]).softmax(1).amax(1) >= 0.12).float().mean())
    terms = (labelled + balanced, consistency + agreeing, balanced)
    wanted = dict(zip(("labelled_loss", "consistency_loss", "balanced_loss"), (t.item() for t in terms), strict=True))
    whole = wanted["labelled_loss"] + 0.7 * wanted["consistency_loss"]
    assert said == pytest.approx(wanted | {"kept": kept, "loss": whole}, rel=1e-4)


def test_abc_masks_nothing_at_first_and_most_at_the_end(data: Data) -> None:
    method = make("abc", data)
    everyone = torch.arange(10).repeat(4000)
    for at, wanted in (
        (Progress(0, 2, 5), [1.0] * 10),
        (Progress(5, 2, 5), [min(data.counts) / n for n in data.counts]),
    ):
        method.schedule(at)
        share = method.drawn(everyone, "labelled").view(-1, 10).float().mean(0)
        assert share.tolist() == pytest.approx(wanted, abs=0.035)


def test_the_second_head_predicts(data: Data) -> None:
    for name in ("abc", "cossl"):
        method = make(name, data, optim={"ema": None})
        x = data.streams["test"].fetch(torch.arange(12))
        net = method.net.eval()
        torch.testing.assert_close(method.predict(x), net.head(net.features(data.see(x))).detach())
        assert not torch.equal(net.head.weight, net.plain.weight)


def test_cossl_trains_its_classifier_on_enhanced_features_alone(data: Data) -> None:
    """Class-balanced features of the averaged encoder, of rare classes mixed with unlabelled ones; constants."""
    method = make("cossl", data, least_kept=0.3)
    (batch,) = batches(method, data)
    net, features = seen(method, batch)
    labelled, consistency = fixmatch_losses(net.plain, features, batch["labelled"].y)
    encoder = copy.deepcopy(method.player.average).eval()
    y = batch["balanced"].y
    own, others = (encoder.features(batch[name].x).detach() for name in ("balanced", "unlabelled"))
    chance, keep, partner = torch.rand(3, 8, generator=dice(0, "cossl", 3))
    counts = torch.tensor(data.counts).float()
    rare = chance < (counts.max() - counts[y]) / counts.max()
    assert rare.any()
    rows = []
    for n in range(8):
        b = 0.3 + 0.7 * keep[n] if rare[n] else torch.tensor(1.0)
        rows.append(b * own[n] + (1 - b) * others[int(partner[n] * len(others))])
    check_step(method, batch, net, labelled + consistency + cross_entropy(net.head(torch.stack(rows)), y))
    shares = torch.bincount(torch.cat([b["balanced"].y for b in batches(method, data, 60)]), minlength=10) / 480
    assert float(shares.min()) > 0.05  # each class a tenth, though counts go from 12 to 1


def test_cossl_takes_features_of_the_average_and_draws_by_step_and_seed(data: Data) -> None:
    """Once the average differs from the network that learns, which other than in eval mode sees neither side."""
    method = make("cossl", data)
    for p in method.player.average.parameters():
        p.data = p.data + 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
    (batch,) = batches(method, data)
    y = batch["balanced"].y
    with torch.no_grad():
        encoder, head = copy.deepcopy(method.player.average).eval(), copy.deepcopy(method.net.head)
        own, others = (encoder.features(batch[name].x) for name in ("balanced", "unlabelled"))
        wanted = cross_entropy(head(method.enhanced(own, y, others)), y)
    assert float(method.update(batch)["classifier_loss"]) == pytest.approx(float(wanted), rel=1e-4)
    mixes = []
    for step, seed in ((3, 0), (4, 0), (3, 1)):
        method.schedule(Progress(step, 2, 5))
        method.seed = seed
        mixes.append(method.enhanced(own, y, others))
    assert not torch.equal(mixes[0], mixes[1])
    assert not torch.equal(mixes[0], mixes[2])


def test_cossl_mixes_the_rarest_most_and_the_largest_never(data: Data) -> None:
    """A class of n is mixed with probability 1 - n / largest; what is kept is uniform from 0.2 to 1."""
    method = make("cossl", data, least_kept=0.2)
    y = torch.arange(10).repeat(2000)
    kept = method.enhanced(torch.ones(len(y), 1), y, torch.zeros(3, 1))[:, 0].view(-1, 10)  # the share itself
    assert (kept < 1).float().mean(0).tolist() == pytest.approx([1 - n / 12 for n in data.counts], abs=0.04)
    mixed = kept[kept < 1]
    assert (float(mixed.min()), float(mixed.mean())) == (pytest.approx(0.2, abs=0.01), pytest.approx(0.6, abs=0.01))
    partners = method.enhanced(torch.zeros(len(y), 1), y, torch.tensor([[1.0], [10.0], [100.0]])) / (
        1 - method.enhanced(torch.ones(len(y), 1), y, torch.zeros(3, 1))
    ).clamp_min(1e-9)
    drawn = [float((partners.round() == value).float().mean()) for value in (1, 10, 100)]
    assert drawn == pytest.approx([sum(drawn) / 3] * 3, abs=0.02)  # each alike


def test_cossls_balanced_feed(data: Data) -> None:
    feed = make("cossl", data).feeds(data.streams)["balanced"]
    assert (feed.stream, feed.batch, feed.views) == ("labelled", 8, (data.train_view,))
    labels = data.streams["labelled"].labels
    mass = torch.zeros(10).double().index_add(0, labels, feed.weights.double())  # type: ignore[arg-type, union-attr]
    torch.testing.assert_close(mass / mass.sum(), torch.full((10,), 0.1).double())


def test_daso_begins_with_even_shares_and_no_means(data: Data) -> None:
    method = make("daso", data)
    assert method.shares.tolist() == [pytest.approx(0.1)] * 10
    assert not method.means.any()
    said = method.update(batches(method, data)[0])
    assert {"loss", "labelled_loss", "consistency_loss", "kept", "alignment_loss"} == said.keys()


def test_daso_blends_pseudo_labels_and_aligns(data: Data) -> None:
    method = make("daso", data, alignment=0.4, proto_temperature=0.5, dist_temperature=0.6, momentum=0.9)
    (batch,) = batches(method, data)
    chance = torch.Generator().manual_seed(0)
    method.means = torch.rand(10, method.net.num_features, generator=chance)
    method.means[4] = 0.0  # not seen yet
    method.shares = torch.rand(10, generator=chance).softmax(0)
    net, (own, near, far) = seen(method, batch)
    y = batch["labelled"].y
    means = method.means.clone()
    for k in y.unique().tolist():
        fresh = own[y == k].mean(0).detach()
        means[k] = fresh if k == 4 else 0.9 * means[k] + 0.1 * fresh
    probs = net.head(near).softmax(1).detach()
    guess = probs.argmax(1)
    shares = 0.99 * method.shares + 0.01 * torch.bincount(guess, minlength=10) / len(guess)
    v = (shares ** (1 / 0.6) / (shares ** (1 / 0.6)).max())[guess][:, None]
    q = (normalize(near.detach()) @ normalize(means).T / 0.5).softmax(1)
    blended = (1 - v) * probs + v * q
    kept = blended.amax(1) >= 0.12
    consistency = (kept * cross_entropy(net.head(far), blended.argmax(1), reduction="none")).mean()
    similar = (normalize(far) @ normalize(means).T / 0.5).log_softmax(1)
    aligned = -(q * similar).sum(1).mean()
    assert (blended.argmax(1) != guess).any() or (blended - probs).abs().max() > 0.01
    loss = cross_entropy(net.head(own), y) + 0.4 * aligned + consistency
    check_step(method, batch, net, loss)
    torch.testing.assert_close(method.means, means, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(method.shares, shares)


def test_a_class_seen_first_takes_its_mean(data: Data) -> None:
    method = make("daso", data)
    features = torch.tensor([[1.0] * method.net.num_features, [3.0] * method.net.num_features])
    method.follow(features, torch.tensor([2, 2]))
    assert method.means[2].tolist() == [2.0] * method.net.num_features
    assert not method.means[0].any()


def test_options_that_would_be_ignored_are_refused() -> None:
    for name, settings, said in (
        ("abc", {"one_pass": False}, "a second head learns beside FixMatch"),
        ("cossl", {"unlabelled_weight": 0.0}, "a second head learns beside FixMatch"),
        ("daso", {"align": True}, "DASO makes its own hard pseudo-labels"),
        ("daso", {"consistency": "uda"}, "DASO makes its own hard pseudo-labels"),
        ("daso", {"thresholds": "flexmatch"}, "DASO makes its own hard pseudo-labels"),
        ("daso", {"refine": "labelled"}, "DASO makes its own hard pseudo-labels"),
        ("daso", {"one_pass": False}, "DASO makes its own hard pseudo-labels"),
        ("daso", {"unlabelled_weight": 0.0}, "DASO makes its own hard pseudo-labels"),
    ):
        with pytest.raises(ValueError, match=said):
            method_class(name).table.model_validate({"name": name, **settings})
