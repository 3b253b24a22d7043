"""ABC, CoSSL, CReST and DASO: each step's loss from its equations, by hand, over every form of FixMatch they take."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods import method_class
from evenhand.methods.protocol import Progress
from evenhand.methods.unlabelled import fixmatch
from evenhand.randomness import dice, mix
from helpers import batches, seeded

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")
AT = Progress(3, 2, 5)  # three fifths of the way
PLAIN = {"loss": "ce", "consistency": "fixmatch", "align": False, "thresholds": "fixed", "refine": "none"}
FORMS = [
    dict(zip(PLAIN, (loss, consistency, align, *rule), strict=True))
    for loss, consistency, align, rule in itertools.product(
        ("ce", "la"), ("fixmatch", "uda"), (False, True),
        (("fixed", "none"), ("flexmatch", "none"), ("fixed", "labelled"), ("fixed", "estimated")),
    )
]  # fmt: skip
in_every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())))
SHARES = torch.tensor([0.19, 0.17, 0.15, 0.13, 0.11, 0.09, 0.07, 0.05, 0.03, 0.01])  # of the unlabelled samples
RECALLS = 0.7 * torch.eye(10) + 0.3 * torch.eye(10).roll(1, 1)  # RECALLS^T SHARES are predicted of them


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


def midway(name: str, data: Data, form: dict[str, Any], patch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """A method whose memories are full and whose heads take sides; DARP begins at this very step."""
    patch.setattr(fixmatch, "evaluate", lambda *_: SimpleNamespace(confusion=20 * RECALLS))
    guessed = torch.repeat_interleave(torch.arange(10), (1000 * RECALLS.T @ SHARES).round().long())
    patch.setattr(fixmatch, "predict_all", lambda *_: one_hot(guessed, 10).float())
    common = {"threshold": 0.7, "unlabelled_weight": 0.7, "temperature": 0.6, "refine_start": 1.5, "refine_every": 1}
    method = make(name, data, **{**common, **form, **settings})
    method.feeds(data.streams)
    chance, M = seeded(1), len(data.streams["unlabelled"])
    for head in {method.net.head, getattr(method.net, "plain", method.net.head)}:
        head.weight.data *= 12
    method.predicted = torch.randn(10, generator=chance).softmax(0)
    if form["thresholds"] == "flexmatch":
        last = torch.arange(M) % 15 - 1
        method.flex.last = torch.where(last < 10, last, last - 10)  # four classes twice as often as others, or as none
    if form["refine"] != "none":
        method.guesses = (2 * torch.randn(M, 10, generator=chance)).softmax(1)
    method.refresh(AT, data.streams)
    return method


def fixmatch_by_hand(
    method: Any, form: dict[str, Any], logits: list[Tensor], batch: Any, data: Data, flat: float = 1.0
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Labelled loss, consistency and memories after the step; aligned to ``priors^flat``."""
    (first, weak, strong), rows, s = logits, batch["unlabelled"].indices.tolist(), method.settings
    priors = torch.tensor(data.counts) / sum(data.counts)
    labelled = cross_entropy(first + (priors.log() if form["loss"] == "la" else 0), batch["labelled"].y)
    p, tau, after = weak.softmax(1).detach(), torch.full((10,), s.threshold), {}
    if form["align"]:
        after["predicted"] = 0.99 * method.predicted + 0.01 * p.mean(0)
        p = p * priors**flat / after["predicted"]
        p = p / p.sum(1, keepdim=True)
    if form["thresholds"] == "flexmatch":
        sigma = torch.tensor([float((method.flex.last == k).sum()) for k in range(-1, 10)])
        beta = sigma[1:] / sigma.max()
        tau = tau * beta / (2 - beta)
        after["last"] = method.flex.last.clone()
        for row, of_one in zip(rows, p, strict=True):
            if of_one.max() >= s.threshold:
                after["last"][row] = of_one.argmax()
    if form["refine"] != "none":
        after["guesses"], refined = method.guesses.clone(), method.guesses.double()
        for row, of_one in zip(rows, p, strict=True):
            after["guesses"][row] = of_one
        for _ in range(300):
            refined = refined * ((SHARES if form["refine"] == "estimated" else priors) / refined.mean(0))
            refined = refined / refined.sum(1, keepdim=True)
        p = refined[rows].float()
    kept = p.amax(1) >= tau[p.argmax(1)]
    soft = p ** (1 / s.temperature) / (p ** (1 / s.temperature)).sum(1, keepdim=True)
    target = soft if form["consistency"] == "uda" else one_hot(p.argmax(1), 10).float()
    consistency = (kept * (torch.xlogy(target, target) - target * strong.log_softmax(1)).sum(1)).mean()
    assert 0 < kept.sum() < len(kept)
    return labelled, consistency, after


def fixmatch_step(*given: Any, flat: float = 1.0) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The same, once it is sure that each option of the form changes something."""
    method, form, *rest = given
    found = fixmatch_by_hand(method, form, *rest, flat=flat)
    for key in PLAIN:
        if form[key] != PLAIN[key]:
            ignored = fixmatch_by_hand(method, {**form, key: PLAIN[key]}, *rest, flat=flat)
            losses = any(abs(a.item() - b.item()) > 1e-3 for a, b in zip(found[:2], ignored[:2], strict=True))
            memories = [k for k, value in found[2].items() if k not in ignored[2] or (value != ignored[2][k]).any()]
            assert losses or (key == "align" and memories)  # what DARP is refining learns of it later
    return found


def check_step(method: Any, batch: Any, net: Any, loss: Tensor, after: dict[str, Tensor] | None = None) -> None:
    """The loss logged, every weight one plain SGD step further, and what is remembered."""
    named = dict(net.named_parameters())
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    said = method.update(batch)
    assert float(said["loss"]) == pytest.approx(loss.item(), rel=1e-5)
    for (name, p), g in zip(named.items(), gradients, strict=True):
        wanted = p.detach() if g is None else p.detach() - 0.1 * g
        torch.testing.assert_close(method.net.get_parameter(name).detach(), wanted, rtol=1e-4, atol=1e-6, msg=name)
    for key, memory in (after or {}).items():
        found = method.flex.last if key == "last" else getattr(method, key)
        torch.testing.assert_close(found, memory, msg=key)


@in_every_form
def test_fixmatch_learns_in_every_form(data: Data, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    method = midway("fixmatch", data, form, monkeypatch)
    (batch,) = batches(method, data)
    net, features = seen(method, batch)
    labelled, consistency, after = fixmatch_step(method, form, [net.head(f) for f in features], batch, data)
    check_step(method, batch, net, labelled + 0.7 * consistency, after)


@in_every_form
def test_crest_learns_what_it_took_over(data: Data, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Second generation of three: aligned to priors^0.75; labelled samples and added ones count alike."""
    settings = {"generations": 3, "refine_start": 0.5}  # of a generation, whose second and last step this is
    method = midway("crest", data, form, monkeypatch, **settings)
    N, M = sum(data.counts), len(data.streams["unlabelled"])
    method.added = torch.arange(M) % 11 - 1
    (batch,) = batches(method, data)
    net, features = seen(method, batch)
    logits = [net.head(f) for f in features]
    labelled, consistency, after = fixmatch_step(method, form, logits, batch, data, flat=0.75)
    shift = (torch.tensor(data.counts) / N).log() if form["loss"] == "la" else 0
    joined = cross_entropy(logits[1] + shift, batch["unlabelled"].indices % 11 - 1, ignore_index=-1, reduction="sum")
    union = (N * labelled + M * joined / 16) / (N + sum(row % 11 > 0 for row in range(M)))
    check_step(method, batch, net, union + 0.7 * consistency, after)


@in_every_form
def test_abc_masks_frequent_classes_in_the_second_head(
    data: Data, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form is that of the first head; the second has hard pseudo-labels of its own."""
    method = midway("abc", data, form, monkeypatch)
    (batch,) = batches(method, data)
    net, features = seen(method, batch)
    y = batch["labelled"].y
    labelled, consistency, after = fixmatch_step(method, form, [net.plain(f) for f in features], batch, data)
    first, weak, strong = (net.head(f) for f in features)
    prior = torch.tensor(data.counts).float()
    keep = 1 - 0.6 * (1 - prior.min() / prior)  # (K,)
    probs = weak.softmax(1).detach()
    guess = probs.argmax(1)
    draws = [torch.rand(n, generator=dice(0, "abc", which, 3)) for n, which in ((8, "labelled"), (16, "unlabelled"))]
    masks = [draws[0] < keep[y], (draws[1] < keep[guess]) & (probs.amax(1) >= 0.7)]
    assert not masks[0].all()
    assert 0 < masks[1].sum() < (probs.amax(1) >= 0.7).sum() < 16
    balanced = (masks[0] * cross_entropy(first, y, reduction="none")).mean()
    agreeing = (masks[1] * cross_entropy(strong, guess, reduction="none")).mean()
    check_step(method, batch, net, labelled + balanced + 0.7 * (consistency + agreeing), after)


def test_abc_logs_its_terms(data: Data) -> None:
    """Both heads' labelled losses, both heads' consistency, and of the second head's labelled loss what was left."""
    method = make("abc", data, unlabelled_weight=0.7, loss="la", threshold=0.13)
    (batch,) = batches(method, data)
    net, features = seen(method, batch)
    y = batch["labelled"].y
    form = {**PLAIN, "loss": "la"}
    labelled, consistency, _ = fixmatch_by_hand(method, form, [net.plain(f) for f in features], batch, data)
    counts = torch.tensor(data.counts).float()
    keep = 1 - 0.6 * (1 - counts.min() / counts)
    first, weak, strong = (net.head(f).detach() for f in features)
    probs = weak.softmax(1)
    guess = probs.argmax(1)
    mask = torch.rand(8, generator=dice(0, "abc", "labelled", 3)) < keep[y]
    sure = (torch.rand(16, generator=dice(0, "abc", "unlabelled", 3)) < keep[guess]) & (probs.amax(1) >= 0.13)
    balanced = (mask * cross_entropy(first, y, reduction="none")).mean()
    agreeing = (sure * cross_entropy(strong, guess, reduction="none")).mean()
    said = {key: float(value) for key, value in method.update(batch).items()}
    kept = float((net.plain(features[1]).softmax(1).amax(1) >= 0.13).float().mean())
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


@in_every_form
def test_cossl_trains_its_classifier_on_enhanced_features_alone(
    data: Data, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class-balanced features of the averaged encoder, of rare classes mixed with unlabelled ones; constants."""
    method = midway("cossl", data, form, monkeypatch, least_kept=0.3)
    (batch,) = batches(method, data)
    net, features = seen(method, batch)
    labelled, consistency, after = fixmatch_step(method, form, [net.plain(f) for f in features], batch, data)
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
    enhanced = cross_entropy(net.head(torch.stack(rows)), y)
    check_step(method, batch, net, labelled + 0.7 * consistency + enhanced, after)


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
    method = make("cossl", data)
    shares = torch.bincount(torch.cat([b["balanced"].y for b in batches(method, data, 60)]), minlength=10) / 480
    assert float(shares.min()) > 0.05  # each class a tenth, though counts go from 12 to 1
    feed = method.feeds(data.streams)["balanced"]
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


@pytest.mark.parametrize("loss", ["ce", "la"])
def test_daso_blends_pseudo_labels_and_aligns(data: Data, loss: str) -> None:
    settings = {"alignment": 0.4, "proto_temperature": 0.5, "dist_temperature": 0.6, "momentum": 0.9}
    method = make("daso", data, loss=loss, unlabelled_weight=0.7, **settings)
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
    shift = (torch.tensor(data.counts) / sum(data.counts)).log() if loss == "la" else 0
    check_step(method, batch, net, cross_entropy(net.head(own) + shift, y) + 0.4 * aligned + 0.7 * consistency)
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
