"""GANs step by step: who moves when, what is counted, what is saved, what is refused."""

from __future__ import annotations

import copy
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from evenhand.data.loader import Batch, Loader
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.measure import judging
from evenhand.measure.features import Embedded, Extractor, from_module
from evenhand.measure.generative import inception_score
from evenhand.measure.judging import Judge, Measure, spread
from evenhand.methods.generate.gan import GAN, ClassBalancing, GroupSpectral
from evenhand.methods.generate.tables import ClassBalancingSettings, GANSettings, GSRSettings
from evenhand.methods.protocol import Drawer, Progress
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier
from evenhand.pieces.balance import balance_loss, mean_prediction
from evenhand.pieces.gan_losses import discriminator_loss, r1_penalty
from evenhand.pieces.spectral import class_spectral_norms, conditional_parameters, gsr_loss
from evenhand.run.opening import read_data
from evenhand.run.recipe import validate
from evenhand.run.training import train
from evenhand.tasks.generate import GENERATE
from helpers import batches, seeded

pytestmark = pytest.mark.filterwarnings("ignore:drawn images of class", "ignore:one training image")

CPU = torch.device("cpu")
MEASURE = {"judge_samples": 60, "samples": 40}
SMALL: dict[str, Any] = {"batch": 6, "measure": MEASURE, "ema_start": 1, "lecam_start": 1}


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(set="shapes", n_max=12, imbalance=10, val_per_class=4, augment=["flip"]))


@pytest.fixture(scope="module")
def annotator(data: Data) -> LongTailClassifier:
    """Untrained: the steps do not care."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = {"name": "small-cnn", "width": 4}
        made = LongTailClassifier(ClassifierSettings(net=net), data, seed=0, device=CPU)  # type: ignore[arg-type]
        for _ in range(3):  # running statistics that are not the initial ones
            made.net.train()(torch.randn(16, 3, 32, 32))
        made.net.eval()
        return made


@pytest.fixture
def make(data: Data, annotator: LongTailClassifier) -> Any:
    def make(name: str = "gan", net: dict[str, Any] | None = None, **more: Any) -> Any:
        cls: Any = {"gan": GAN, "cb": ClassBalancing, "gsr": GroupSpectral}[name]
        needs = {"classifier": annotator} if name == "cb" or "balance" in more else {}
        net = {"width": 2, **({"name": "sngan"} if name == "gsr" else {}), **(net or {})}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            table = cls.table(**{**SMALL, "net": net, **more})
            return cls(table, data, seed=0, device=CPU, annotator=annotator, **needs)

    return make


def advance(method: Any, steps: list[dict[str, Batch]], start: int = 0) -> list[dict[str, float]]:
    said = []
    for step, batch in enumerate(steps, start):
        method.schedule(Progress(step, 4, 100))
        said.append({key: float(value) for key, value in method.update(batch).items()})
    return said


def weights(net: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.named_parameters()}


def moved(net: Any, before: dict[str, Tensor]) -> bool:
    return any(not torch.equal(value, before[name]) for name, value in net.named_parameters())


CASES: dict[str, dict[str, Any]] = {
    "gan": {},
    "gan-cgan": {"condition": "projection", "loss": "relativistic"},
    "gan-acgan": {"condition": "acgan", "loss": "non-saturating"},
    "gan-help": {"condition": "projection", "d_steps": 2, "diffaugment": ["colour", "translation", "cutout"],
                 "lecam": 0.3, "r1": 0.1, "r1_every": 2, "loss": "least-squares"},
    "cb": {"balance": {"cycle": 2}},
    "cb-drawn": {"condition": "generator", "net": {"name": "sngan", "spectral_generator": True},
                 "balance": {"labels": "inverse", "cycle": 1, "forget": 0.005, "weight": 0.005}},
    "gsr": {},
    "gsr-biggan": {"net": {"name": "biggan", "width": 4}, "ema": 0.0},
    "gsr-balance": {"balance": {"cycle": 2}},
    "gan-both": {"condition": "generator", "gsr": {"rule": "gsrip"}, "balance": {"rule": "classify"}},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_resumes_bit_for_bit(case: str, make: Any, data: Data) -> None:
    """Both optimisers, averages, spectral vectors, LeCam and frequencies: all of it is in ``state``."""
    whole, paused, resumed = (make(case.split("-")[0], **CASES[case]) for _ in range(3))
    assert isinstance(whole, Drawer)
    steps = batches(whole, data, 3)
    said = advance(whole, steps)
    assert all(math.isfinite(value) for row in said for value in row.values())
    advance(paused, steps[:2])
    advance(resumed, steps[2:], start=7)  # something to be overwritten
    state = copy.deepcopy(paused.state())
    resumed.load_state(state)
    assert advance(resumed, steps[2:], start=2) == said[2:]
    same(resumed.state(), whole.state())


def same(a: Any, b: Any, where: str = "") -> None:
    if isinstance(a, Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}/{i}")
    else:
        assert a == b, where


# the two halves


def test_each_player_moves_in_its_own_half_only(make: Any, data: Data) -> None:
    gan = make(condition="projection", net={"name": "sngan"})
    gan.schedule(Progress(0, 4, 100))
    batch = batches(gan, data, 1)[0]["labelled"]
    g, d = gan.generator.net, gan.discriminator.net
    before_g, before_d = weights(g), weights(d)
    gan.improve(gan.discriminator, gan.telling_loss(batch.x, batch.y)[0])
    assert moved(d, before_d)
    assert not moved(g, before_g)
    assert all(p.grad is None for p in g.parameters())
    before_d = weights(d)
    fakes, asked = gan.generate(6)
    gan.improve(gan.generator, gan.fooling_loss(fakes, asked, batch.x, batch.y))
    assert moved(g, before_g)
    assert not moved(d, before_d)
    assert all(p.grad is None for p in d.parameters())


@pytest.mark.parametrize("d_steps", [1, 3])
def test_relativistic_generator_step_reuses_the_last_real_batch(d_steps: int, make: Any, data: Data) -> None:
    gan = make(loss="relativistic", d_steps=d_steps, batch=4)
    batch = batches(gan, data, 1)[0]
    seen: list[Tensor] = []
    gan.discriminator.net.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    advance(gan, [batch])
    x = batch["labelled"].x
    assert len(x) == 4 * d_steps
    assert len(seen) == d_steps + 2
    for turn in range(d_steps):
        assert torch.equal(seen[turn][:4], x[turn::d_steps])
    assert torch.equal(seen[-1], x[d_steps - 1 :: d_steps])
    assert not torch.equal(seen[-2], seen[d_steps - 1][4:])  # new fakes in the generator's step


def test_discriminator_loss_is_of_a_joint_pass(make: Any, data: Data) -> None:
    gan = make()
    batch = batches(gan, data, 1)[0]["labelled"]
    gan.schedule(Progress(0, 4, 100))
    twin = copy.deepcopy(gan)
    with torch.no_grad():
        fakes, _ = twin.generate(6)
        tell = twin.discriminator.net
        score = tell(torch.cat([batch.x, fakes])).score
        expected = discriminator_loss(score[:6], score[6:], "hinge")
    loss, said = gan.telling_loss(batch.x, batch.y)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(said["real"] - said["fake"], score[:6].mean() - score[6:].mean())


def test_reals_come_in_the_range_of_tanh(make: Any, data: Data) -> None:
    x = batches(make(), data, 1)[0]["labelled"].x
    assert x.min() >= -1
    assert x.max() <= 1
    assert x.min() < -0.9


def test_average_follows_then_averages(make: Any, data: Data) -> None:
    gan = make(ema=0.75, ema_start=2, ema_warm=False)
    steps = batches(gan, data, 4)
    advance(gan, steps[:2])
    same(gan.generator.average.state_dict(), gan.generator.net.state_dict())
    before = weights(gan.generator.net)
    advance(gan, steps[2:3], start=2)
    for name, value in gan.generator.average.named_parameters():
        expected = 0.75 * before[name] + 0.25 * dict(gan.generator.net.named_parameters())[name]
        torch.testing.assert_close(value, expected)


def test_lecam_joins_after_its_start(make: Any, data: Data) -> None:
    gans = [make(lecam=value, lecam_start=1) for value in (0.0, 10.0)]
    steps = batches(gans[0], data, 2)
    plain, with_lecam = (advance(gan, steps) for gan in gans)
    assert plain[0] == with_lecam[0]
    assert plain[1] != with_lecam[1]
    assert gans[1].state()["lecam"]["calls"] == 2


def test_r1_is_taken_every_so_often(make: Any, data: Data) -> None:
    gans = [make(r1=value, r1_every=2) for value in (0.0, 1.0)]
    steps = batches(gans[0], data, 1)
    assert advance(gans[0], steps, start=0) != advance(gans[1], steps, start=0)
    gans = [make(r1=value, r1_every=2) for value in (0.0, 1.0)]
    assert advance(gans[0], steps, start=1) == advance(gans[1], steps, start=1)


class GeneratorFirst(GAN):
    """StyleGAN2's order: the generator, then the discriminator, then R1 in a step of its own."""

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        real, labels = next(self.parts(batch["labelled"]))
        fakes, asked = self.generate(len(real))
        said = {"generator": self.improve(self.generator, self.fooling_loss(fakes, asked, real, labels))}
        loss, scores = self.telling_loss(real, labels)
        said["discriminator"] = self.improve(self.discriminator, loss)
        if self.step % self.settings.r1_every == 0:
            said["r1"] = self.improve(self.discriminator, self.regularise(real, labels))
        return said | scores


def test_another_order_composes_the_same_parts(data: Data, annotator: LongTailClassifier) -> None:
    table = GANSettings(**SMALL, net={"width": 2}, r1=0.1, r1_every=2)  # type: ignore[arg-type]
    gan = GeneratorFirst(table, data, seed=0, device=CPU, annotator=annotator)
    steps = batches(gan, data, 2)
    stepped: list[Any] = []
    for player in (gan.generator, gan.discriminator):
        player.optimizer.register_step_post_hook(lambda optimiser, *_: stepped.append(optimiser))
    said = advance(gan, steps)
    g, d = gan.generator.optimizer, gan.discriminator.optimizer
    assert stepped == [g, d, d, g, d]
    assert "r1" in said[0]
    assert "r1" not in said[1]
    before, x = weights(gan.generator.net), steps[0]["labelled"].x
    expected = 0.2 * r1_penalty(lambda x: gan.discriminator.net(x).score, x)
    torch.testing.assert_close(gan.regularise(x, steps[0]["labelled"].y), expected)
    assert not moved(gan.generator.net, before)


# drawing


def test_sampling_is_deterministic_and_of_each_image_alone(make: Any, data: Data) -> None:
    gan = make(condition="projection", net={"name": "sngan"})
    advance(gan, batches(gan, data, 2))
    before = copy.deepcopy(gan.state())
    labels = torch.arange(9) % 3

    images = gan.sample(9, labels, chance=seeded(5))
    assert images.shape == (9, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert torch.equal(images, gan.sample(9, labels, chance=seeded(5)))
    in_parts = gan.sample(9, labels, chance=seeded(5), batch=2)
    assert (images.int() - in_parts.int()).abs().max() <= 1
    assert not torch.equal(images, gan.sample(9, (labels + 1) % 3, chance=seeded(5)))
    same(gan.state(), before)


def test_unconditional_generator_refuses_labels(make: Any) -> None:
    with pytest.raises(UserError, match="unconditional"):
        make().sample(2, torch.tensor([0, 1]), chance=seeded())


# the class-balancing GAN


def test_only_generator_steps_are_counted(make: Any, data: Data) -> None:
    method = make("cb", balance={"cycle": 3}, d_steps=2)
    seen = method.terms["balance"].seen
    steps = batches(method, data, 4)
    advance(method, steps[:2])
    assert seen.counts.sum() == 12  # two batches of 6; the discriminator's fakes do not count
    GENERATE.score(method, data.streams["val"], batch=32)
    assert seen.counts.sum() == 12
    assert torch.equal(seen.distribution, torch.full((10,), 0.1))
    counted = seen.counts.clone()
    advance(method, steps[2:3], start=2)
    assert seen.counts.sum() == 0  # refreshed after the third step
    assert seen.frequency.sum() == pytest.approx(0.5 * 10 + 18, rel=0.02)
    assert (seen.frequency >= 0.5 + counted - 1e-6).all()


@pytest.mark.parametrize(("form", "factor"), [("share", 0.1), ("mean-one", 1.0)])
def test_terms_are_the_papers_and_stack(form: Any, factor: float, make: Any, data: Data) -> None:
    """fooling + trade_off * balance + strength * gSR, all on the same fakes."""
    method = make("gsr", gsr={"strength": 7.0}, balance={"form": form, "trade_off": 3.0})
    method.schedule(Progress(0, 4, 100))
    method.terms["balance"].seen.frequency = torch.arange(1.0, 11.0)
    twin = copy.deepcopy(method)
    (batch,) = batches(method, data, 1)
    said = method.update(batch)
    real, labels = batch["labelled"].x, batch["labelled"].y
    twin.improve(twin.discriminator, twin.telling_loss(real, labels)[0])
    fakes, asked = twin.generate(6)
    fooling = twin.fooling_loss(fakes, asked, real, labels)
    shares = mean_prediction(twin.terms["balance"].classify(fakes))
    balance = factor * balance_loss(shares, torch.arange(1.0, 11.0), normalise=form)
    gains, biases = conditional_parameters(twin.generator.net)
    penalty = gsr_loss(gains, biases, data.counts, alpha=0.99, form="mean")
    torch.testing.assert_close(said["balance"], balance.detach())
    torch.testing.assert_close(said["gsr"], penalty.detach())
    torch.testing.assert_close(said["generator"], (fooling + 3 * balance + 7 * penalty).detach())
    assert method.state()["terms"].keys() == {"balance", "gsr"}
    assert method.state()["terms"]["balance"]["counts"].sum() == 6
    assert method.state()["terms"]["gsr"]


def test_classifier_is_frozen_but_lets_gradients_through(make: Any, data: Data) -> None:
    method = make("cb", balance={"cycle": 1})
    term = method.terms["balance"]
    before = copy.deepcopy(term.classifier.state_dict())
    advance(method, batches(method, data, 2))
    same(term.classifier.state_dict(), before)
    assert all(p.grad is None for p in term.classifier.parameters())
    fakes = torch.zeros(2, 3, 32, 32, requires_grad=True)
    (slope,) = torch.autograd.grad(term.classify(fakes).log_softmax(1)[:, 0].sum(), fakes)
    assert slope.abs().sum() > 0


def test_classifier_sees_fakes_as_it_saw_photographs(make: Any, data: Data, annotator: LongTailClassifier) -> None:
    term = make("cb").terms["balance"]
    images = data.streams["test"].fetch(torch.arange(0, 600, 60))
    signed = images.float() / 127.5 - 1
    torch.testing.assert_close(term.classify(signed), annotator.predict(images), rtol=1e-3, atol=1e-4)


def test_no_trade_off_is_the_plain_gan(make: Any, data: Data) -> None:
    plain, none = make("gan", loss="relativistic"), make("cb", balance={"trade_off": 0.0})
    steps = batches(plain, data, 2)
    assert advance(plain, steps) == advance(none, steps)


def test_entropy_rule_has_equal_frequencies(make: Any, data: Data) -> None:
    methods = [make("cb", balance={"rule": rule}) for rule in ("entropy", "balance")]
    steps = batches(methods[0], data, 1)
    for method in methods:
        method.terms["balance"].seen.frequency = torch.arange(1.0, 11.0)
    entropy, balance = (advance(method, steps)[0]["balance"] for method in methods)
    assert entropy != balance
    assert -math.log(10) <= entropy <= 0


def test_labels_are_asked_for_by_inverse_frequency(make: Any) -> None:
    method = make("cb", condition="generator", balance={"labels": "inverse"})
    method.terms["balance"].seen.frequency = torch.tensor([1e-6, *[1.0] * 9])
    method.schedule(Progress(0, 4, 100))
    _, asked = method.generate(50, method.frequencies())
    assert (asked == 0).float().mean() > 0.9
    _, even = method.generate(50)
    assert (even == 0).float().mean() < 0.5
    assert not method.labelled  # the discriminator does not know them: the annotator names what was drawn


def test_more_classes_than_the_batch(make: Any, data: Data) -> None:
    method = make("cb", batch=3, balance={"cycle": 1, "forget": 0.05, "weight": 0.05})
    said = advance(method, batches(method, data, 3))
    assert all(math.isfinite(value) for row in said for value in row.values())
    assert method.terms["balance"].seen.distribution.min() > 0
    with pytest.raises(UserError, match=r"10 classes from the last 6 images .* lower method.balance.forget"):
        make("cb", batch=3, balance={"cycle": 1, "forget": 0.5})


# gSR


def test_penalty_is_gsr_loss_of_all_classes(make: Any, data: Data) -> None:
    method = make("gsr")
    penalty = method.terms["gsr"]
    fakes, asked = torch.empty(0), torch.empty(0)  # it acts on the parameters alone
    gains, biases = conditional_parameters(method.generator.net)
    expected = gsr_loss(gains, biases, data.counts, alpha=0.99, form="mean")
    torch.testing.assert_close(penalty(fakes, asked), expected)
    penalty(fakes, asked).backward()
    for name, parameter in method.generator.net.named_parameters():
        conditional = ".gain." in name or (".bias." in name and "norm" in name)
        assert (parameter.grad is not None) == conditional, name
        if conditional:
            assert (parameter.grad.abs().sum(1) > 0).all()  # absent classes, too
    assert all(p.grad is None for p in method.discriminator.net.parameters())


def test_penalty_lowers_the_spectral_norms(make: Any, data: Data) -> None:
    plain, braked = (make("gsr", gsr={"strength": value}, optim_g={"lr": 0.01}) for value in (0.0, 50.0))
    steps = batches(plain, data, 3)
    for method in (plain, braked):
        advance(method, steps)
    means = [
        class_spectral_norms([*gains, *biases]).mean()
        for gains, biases in (conditional_parameters(m.generator.net) for m in (plain, braked))
    ]
    assert means[1] < means[0]


def test_no_strength_is_the_plain_gan(make: Any, data: Data) -> None:
    plain, none = make("gan", condition="projection", net={"name": "sngan"}), make("gsr", gsr={"strength": 0.0})
    steps = batches(plain, data, 2)
    assert advance(plain, steps) == advance(none, steps)


def test_penalty_does_not_refine_biggans_spectral_estimates(make: Any) -> None:
    method = make("gsr", net={"name": "biggan", "width": 4})
    before = copy.deepcopy(method.generator.net.state_dict())
    method.terms["gsr"](torch.empty(0), None)
    same(method.generator.net.state_dict(), before)


def test_trap_02_gain_and_bias_have_vectors_of_their_own(make: Any, data: Data) -> None:
    method = make("gsr", net={"width": 8})
    advance(method, batches(method, data, 1))
    gains, biases = conditional_parameters(method.generator.net)
    (left,) = method.terms["gsr"].vectors.values()  # all layers are 32 channels wide
    assert left.shape == (2 * len(gains) * 10, 4)
    exact = torch.stack([torch.linalg.svdvals(t.detach().view(10, 4, 8))[:, 0] for t in (*gains, *biases)])
    found = class_spectral_norms([*gains, *biases], state=dict(method.terms["gsr"].vectors))
    torch.testing.assert_close(found, exact, rtol=0.02, atol=0)


# judging


def test_judge_and_examine_say_what_they_should(make: Any, data: Data) -> None:
    method = make("gsr")
    found = GENERATE.score(method, data.streams["val"], batch=32)
    assert {"fid", "label_kl", "diversity", "sigma_max", "sigma:slope", "diversity:slope"} <= found.keys()
    assert "collapsed" not in found  # four held-out images of a class are too few to tell
    table = GENERATE.table(method, data.streams["test"], batch=64)
    for key in ("fid", "kid", "precision", "recall", "density", "coverage", "label_kl", "features", "reference"):
        assert table[key] is not None, key
    assert len(table["class_fid"]) == len(table["class_shares"]) == len(table["diversity"]) == 10
    assert table["real_count"] == 600
    assert table["features_digest"] == method.judge.extractor.digest()
    assert table["fake_count"] == table["samples"] == 40
    assert table["group_fid"].keys() == data.groups.keys()
    assert sum(table["group_shares"].values()) == pytest.approx(1)
    tail = [table["class_agreement"][k] for k in data.groups["tail"]]
    assert table["group_agreement"].keys() == data.groups.keys()
    assert table["group_agreement"]["tail"] == pytest.approx(sum(tail) / len(tail))
    assert "group_z_sensitivity" not in table
    assert len(table["sigma_gain"]) == 6
    assert "frequency" in GENERATE.table(make("cb"), data.streams["test"], batch=64)


def test_mirrored_training_images_are_copies_if_training_flips(
    make: Any, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, turned = make("gsr"), data.streams["labelled"].fetch(torch.arange(30)).flip(3)
    monkeypatch.setattr(method, "exhibit", lambda *_: (turned, None))
    still = replace(data, train_view=data.eval_view)
    near = [GENERATE.finish(method, of, tmp_path)["copying"]["near"] for of in (data, still)]
    assert near[0] == 1 > near[1]


def test_trap_09_a_class_without_samples_or_with_one(make: Any, data: Data) -> None:
    val = data.streams["val"]
    assert val.labels is not None
    kept = torch.cat([torch.where(val.labels > 0)[0], torch.where(val.labels == 0)[0][:1]])
    found = GENERATE.score(make(condition="projection"), val.subset(kept), batch=32)
    assert all(math.isfinite(value) for value in found.values())
    assert "diversity:disc" not in found


def test_a_collapsed_class_is_named(data: Data, annotator: LongTailClassifier) -> None:
    judge = Judge(Measure(), data, annotator, CPU)
    test = data.streams["test"]
    assert test.labels is not None
    images, labels = test.fetch(torch.arange(len(test))), test.labels
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "drawn images of class")
        found = judge.scalars(images, labels, test, batch=64)
    assert found["collapsed"] == 0
    assert found["fid"] == pytest.approx(0, abs=1e-6)
    assert found["diversity"] == pytest.approx(1)
    images[labels == 7] = images[labels == 7][:1]
    with pytest.warns(UserWarning, match="'stripes'"):
        found = judge.scalars(images, labels, test, batch=64)
    assert found["collapsed"] == 1
    assert found["diversity:stripes"] == 0
    with pytest.warns(UserWarning, match="'stripes'"):
        table = judge.table(images, labels, test, data.groups, batch=64)
    assert table["patterns"][7] < 0.5 <= min(value for k, value in enumerate(table["patterns"]) if k != 7)


def test_a_collapse_of_most_classes_is_no_new_normal(data: Data, annotator: LongTailClassifier) -> None:
    """Each class is compared with its own real images: the median sinks along with the collapsed ones."""
    judge = Judge(Measure(), data, annotator, CPU)
    test = data.streams["test"]
    assert test.labels is not None
    images, labels = test.fetch(torch.arange(len(test))), test.labels
    for k in range(7):
        mine = torch.where(labels == k)[0]
        images[mine] = images[mine[torch.arange(len(mine)) % 2]]
    with pytest.warns(UserWarning, match="much alike") as caught:
        found = judge.scalars(images, labels, test, batch=64)
    assert found["collapsed"] == 7
    assert found["patterns_min"] < 0.5
    (alike,) = (str(one.message) for one in caught if "much alike" in str(one.message))
    assert "2 more" in alike


def test_without_held_out_images_a_collapsed_class_is_named_too(make: Any, data: Data) -> None:
    """Beside training images, of which each class has some; nothing is said of a distance to them."""
    streams = {"labelled": data.streams["test"]}  # sixty of each class
    method = make(condition="projection")
    images, labels = streams["labelled"].fetch(torch.arange(600)), streams["labelled"].labels
    assert labels is not None
    method.exhibit = lambda *_: (images, labels)
    method.judge.label = lambda *_, **__: pytest.fail("embedded twice")
    images[labels == 7] = images[labels == 7][:1]
    with pytest.warns(UserWarning, match="much alike") as caught:
        (said,) = GENERATE.watch(method, streams, batch=64).values()
    assert any("'stripes'" in str(one.message) for one in caught)
    assert said["collapsed"] == 1
    assert said["diversity:stripes"] == 0 < said["diversity"]
    assert "fid" not in said
    assert {"label_kl", "sigma_max", "share:stripes"} <= said.keys()
    assert GENERATE.watch(method, {**streams, "val": streams["labelled"]}, batch=64) == {}


@pytest.mark.parametrize("held_out", [True, False])
@pytest.mark.parametrize("judged", ["annotator", "inception", "inception alone", "mobilenet_v2", "mobilenet_v2 alone"])
@pytest.mark.parametrize("condition", ["projection", "none"])
def test_a_collapsed_class_is_named_wherever_somebody_names_classes(
    condition: str, judged: str, held_out: bool, data: Data, annotator: LongTailClassifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By any judge's features, with validation or without; where nobody does, a warning before the first step."""
    for name in ("mobilenet", "fid_inception"):
        monkeypatch.setattr(judging, name, lambda *_, **__: from_module(nn.Flatten(), "pixels", size=4))
    features, alone = judged.removesuffix(" alone"), judged.endswith("alone")
    settings: dict[str, Any] = {"measure": {"features": features, "judge_samples": 600}, "condition": condition}
    table = GANSettings(**{**SMALL, "net": {"name": "sngan", "width": 2}, **settings})
    gan = GAN(table, data, seed=0, device=CPU, annotator=None if alone else annotator)
    labels = data.streams["test"].labels
    assert labels is not None
    images = data.streams["test"].fetch(torch.arange(600))
    images[labels == 7] = images[labels == 7][:1]
    monkeypatch.setattr(gan, "exhibit", lambda *_: (images, labels if gan.labelled else None))
    if not alone:
        truth = nn.functional.one_hot(labels, 10).float()
        monkeypatch.setattr(annotator.net.head, "forward", lambda x: truth[: len(x)])
    streams = {"labelled": data.streams["test"]} | ({"val": data.streams["test"]} if held_out else {})
    silent = alone and condition == "none"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2):
            gan.refresh(Progress(step, 2, 2), streams)
        before = [str(one.message) for one in caught]
        found = GENERATE.score(gan, streams["val"], batch=600) if held_out else {}
        for watched in GENERATE.watch(gan, streams, batch=600).values():
            found |= watched
    said = [str(one.message) for one in caught if "much alike" in str(one.message)]
    assert [text.partition(",")[0] for text in before] == ["no collapse alarm"] * silent
    assert ("collapsed" in found, len(said)) == (not silent, not silent)
    assert silent or "'stripes' (" in said[0]
    assert ("fid" in found) == held_out
    assert ("label_kl" in found) == (not alone)


def test_training_images_to_compare_with_are_some_of_each_class(
    data: Data, annotator: LongTailClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "PEERS", 4)
    judge, test = Judge(Measure(), data, annotator, CPU), data.streams["test"]
    some = judge._few_seen(test)
    assert some.counts == [4] * 10
    assert judge._few_seen(test) is some
    first = torch.cat([torch.where(test.labels == k)[0][:4] for k in range(10)])
    assert not torch.equal(some.fetch(torch.arange(40)), test.fetch(first))


@pytest.mark.parametrize(("count", "named"), [(200, True), (190, False)])
def test_a_class_hardly_drawn_is_named_once_enough_are(
    data: Data, annotator: LongTailClassifier, count: int, named: bool
) -> None:
    """An even share of twenty images or more of which a class has under a tenth."""
    judge, labels = Judge(Measure(), data, annotator, CPU), torch.arange(count) % 9  # never the tenth
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert judge._share_scalars(labels)["share:slope"] == 0
    told = "class 'slope' (0.00) is hardly drawn: in brackets its share in per cent, where an even one were 10"
    assert [str(one.message) for one in caught] == [told] * named
    labels[:3] = 9  # over a tenth of an even share of twenty
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judge._share_scalars(labels)


def test_an_exploding_spectral_norm_is_named(make: Any, data: Data) -> None:
    gan = make(condition="projection", net={"name": "sngan"}, ema=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gan.traces()
    with torch.no_grad():
        conditional_parameters(gan.generator.net)[0][0][9].mul_(20)
    with pytest.warns(UserWarning, match=f"spectral norm of class '{data.classes[9]}'"):
        gan.traces()


def test_traces_and_details_need_no_streams(make: Any) -> None:
    method = make("gsr", balance={})
    method.data = replace(method.data, streams={})
    assert {"sigma_max", "sigma:slope", "frequency:slope"} <= method.traces().keys()
    assert method.details().keys() == {"sigma_gain", "sigma_bias", "frequency"}
    assert make().traces() == make().details() == {}


def test_nothing_is_loaded_before_something_is_judged(
    data: Data, annotator: LongTailClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("Inception was asked for")

    monkeypatch.setattr("evenhand.measure.judging.fid_inception", refused)
    table = GANSettings(**{**SMALL, "net": {"width": 2}, "measure": {"features": "inception"}})
    for given in (annotator, None):
        gan = GAN(table, data, seed=0, device=CPU, annotator=given)
        assert len(gan.sample(3, chance=seeded())) == 3
    with pytest.raises(AssertionError, match="asked for"):
        GENERATE.score(gan, data.streams["val"])


@pytest.mark.parametrize("with_logits", [True, False])
@pytest.mark.parametrize("annotated", [True, False])
def test_only_inceptions_own_classes_give_the_inception_score(
    annotated: bool, with_logits: bool, data: Data, annotator: LongTailClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without its last layer has no logits; the annotator's score goes by the annotator's name."""
    test = data.streams["test"]
    images = test.fetch(torch.arange(40))

    def run(x: Tensor) -> Embedded:
        small = x.float().flatten(1)[:, :6]
        return Embedded(small, 5 * small / 255 if with_logits else None)

    monkeypatch.setattr(
        "evenhand.measure.judging.fid_inception", lambda *_, **__: Extractor("Inception", "none", nn.Flatten(), run)
    )
    by = annotator if annotated else None
    table = Judge(Measure(features="inception"), data, by, CPU).table(images, None, test, data.groups, batch=16)
    expected = {}
    if with_logits:
        expected["inception_score"] = float(inception_score(run(images).logits.double().softmax(1))[0])  # type: ignore[union-attr]
    if annotated:
        expected["annotator_score"] = float(inception_score(annotator.predict(images).double().softmax(1))[0])
        assert table["class_shares"] == pytest.approx(
            (annotator.predict(images).argmax(1).bincount(minlength=10) / 40).tolist()
        )
    assert {key: value for key, value in table.items() if key.endswith("_score")} == pytest.approx(expected)
    own = Judge(Measure(), data, annotator, CPU).table(images, None, test, data.groups, batch=16)
    assert "inception_score" not in own
    assert "annotator_score" in own


def test_spread_is_the_root_mean_square_distance() -> None:
    x = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = [(x[i] - x[j]).square().sum() for i in range(9) for j in range(9) if i != j]
    torch.testing.assert_close(spread(x), torch.stack(pairs).mean().sqrt())


# what is refused, before training


def with_facts(data: Data, **changes: Any) -> Data:
    return replace(data, facts=data.facts.model_copy(update=changes))


def other(annotator: LongTailClassifier, **changes: Any) -> Any:
    made = copy.copy(annotator)
    made.data = with_facts(annotator.data, **changes)
    return made


def test_a_classifier_of_other_data_is_refused(data: Data, annotator: LongTailClassifier) -> None:
    table = ClassBalancingSettings(**SMALL)
    for changes, word in (
        ({"classes": (*data.classes[:-1], "moon")}, "classes"),
        ({"inputs": 1}, "channels"),
        ({"size": [28, 28]}, "image size"),
    ):
        with pytest.raises(UserError, match=f"needs.classifier .* other {word}"):
            ClassBalancing(table, data, seed=0, device=CPU, annotator=annotator, classifier=other(annotator, **changes))
        with pytest.raises(UserError, match=f"needs.annotator .* other {word}"):
            GAN(GANSettings(**SMALL), data, seed=0, device=CPU, annotator=other(annotator, **changes))


def test_what_is_missing_is_named(data: Data, annotator: LongTailClassifier) -> None:
    common: dict[str, Any] = {"seed": 0, "device": CPU}
    with pytest.raises(UserError, match="needs a classifier"):
        ClassBalancing(ClassBalancingSettings(**SMALL), data, **common, annotator=annotator)
    with pytest.raises(UserError, match="annotator"):
        GAN(GANSettings(**SMALL), data, **common)
    with pytest.raises(UserError, match=r"add \[method.balance\]"):
        GAN(GANSettings(**SMALL), data, **common, annotator=annotator, classifier=annotator)
    for balance in ({"rule": "classify"}, {"labels": "inverse"}):
        with pytest.raises(ValueError, match="asks the generator for classes: set condition to generator"):
            ClassBalancingSettings(balance=balance)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="set condition to generator"):
        GSRSettings(condition="none")
    with pytest.raises(UserError, match="biggan"):
        GAN(GANSettings(**SMALL, net={"name": "biggan"}), data, **common, annotator=annotator)
    with pytest.raises(UserError, match="squares"):
        GAN(GANSettings(**SMALL), with_facts(data, size=[32, 16]), **common, annotator=annotator)


def test_risky_settings_warn(make: Any) -> None:
    with pytest.warns(UserWarning, match="oscillate"):
        make("cb", balance={"forget": 0.9})


@pytest.mark.parametrize(("form", "trade_off", "said"), [("share", 10.0, 1), ("share", 0.5, 0), ("mean-one", 10.0, 0)])
def test_a_trade_off_of_the_other_form_warns(
    form: str, trade_off: float, said: int, annotator: LongTailClassifier
) -> None:
    uneven = prepare_data(DataSettings(set="shapes", n_max=50, imbalance=50, augment=[]))
    balance = {"form": form, "trade_off": trade_off}
    table = ClassBalancingSettings(**SMALL, net={"width": 2}, balance=balance)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ClassBalancing(table, uneven, seed=0, device=CPU, annotator=annotator, classifier=annotator)
    assert sum("meant for 'mean-one'" in str(w.message) for w in caught) == said


def folder_of_images(root: Path, counts: dict[str, int]) -> Path:
    """Images of mixed sizes and modes, by class."""
    kinds = [("RGB", (20, 30)), ("L", (16, 16)), ("RGBA", (33, 21)), ("P", (64, 64))]
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            mode, size = kinds[i % len(kinds)]
            Image.new(mode, size, i).save(root / name / f"{i}.png")
    return root


def refused(tmp_path: Path, data: dict[str, Any], **method: Any) -> str:
    """What ``train`` says of a generator's recipe, and that nothing was trained before."""
    first = {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 2}}
    run = {"steps": 1, "progress": False, "threads": 1}
    shapes = {"set": "shapes", "n_max": 4, "augment": []}
    judge = train(validate({"data": shapes, "method": first, "run": {**run, "folder": str(tmp_path / "a")}}, "a"))
    table = {"name": "class-balancing-gan", "net": {"width": 2}, **SMALL, **method}
    needs = {"annotator": str(judge), "classifier": str(judge)}
    tree = {"data": data, "method": table, "needs": needs, "run": {**run, "folder": str(tmp_path / "g")}}
    with pytest.raises(UserError) as caught:
        train(validate(tree, "g"))
    assert not list((tmp_path / "g").glob("*.pt"))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_bad_input_stops_before_training(tmp_path: Path) -> None:
    pets = folder_of_images(tmp_path / "pets", {"cat": 9, "dog": 9, "lynx": 5})
    assert "other classes" in refused(tmp_path / "2", {"set": str(pets), "size": 32})
    assert "noise" in refused(tmp_path / "3", {"set": "shapes", "n_max": 4}, batch=2, balance={"cycle": 1})


@pytest.mark.parametrize("side", [64, 128])
def test_images_are_fed_and_judged_whole(side: int, tmp_path: Path) -> None:
    """A classifier's margin would cut the frame off, and a random crop while decoding would move it."""
    for name in ("cat", "dog"):
        for i in range(10):
            image = Image.new("RGB", (side, side), (255, 255, 255))
            image.paste((40 * (name == "dog"), 0, i), (2, 2, side - 2, side - 2))
            (tmp_path / name).mkdir(exist_ok=True)
            image.save(tmp_path / name / f"{i}.png")
    tree = {"data": {"set": str(tmp_path), "size": side, "augment": []}, "method": {"name": "gan", "net": {"width": 2}}}
    data = read_data(validate(tree, "frame"))
    table = GANSettings(**{**SMALL, "net": {"width": 2}, "measure": {"features": "inception"}})
    gan = GAN(table, data, seed=0, device=CPU)
    fed = batches(gan, data, 1)[0]["labelled"].x
    held_out = data.streams["test"].fetch(torch.arange(len(data.streams["test"])))
    for images in (fed, held_out.float() / 127.5 - 1):
        assert images.shape[2:] == (side, side)
        frame = torch.ones(side, side, dtype=torch.bool)
        frame[2:-2, 2:-2] = False
        assert (images[:, :, frame] == 1).all()
        assert (images[:, :, ~frame] < -0.5).all()


def test_mixed_sizes_and_modes_become_one(tmp_path: Path) -> None:
    pets = folder_of_images(tmp_path / "pets", {"cat": 8, "dog": 8, "lynx": 8})
    for grey, channels in ((False, 3), (True, 1)):
        made = prepare_data(DataSettings(set=str(pets), size=32, grey=grey))
        gan = GAN(GANSettings(**SMALL, net={"width": 2}), made, seed=0, device=CPU, annotator=judge_of(made))
        batch = batches(gan, made, 1)[0]["labelled"]
        assert batch.x.shape == (6, channels, 32, 32)
        assert all(math.isfinite(value) for value in advance(gan, [{"labelled": batch}])[0].values())


def judge_of(data: Data) -> LongTailClassifier:
    net = {"name": "small-cnn", "width": 2}
    return LongTailClassifier(ClassifierSettings(net=net), data, seed=0, device=CPU)  # type: ignore[arg-type]


def test_a_class_with_one_image_is_told(data: Data, make: Any) -> None:
    lone = [name for name, count in zip(data.classes, data.counts, strict=True) if count == 1]
    with pytest.warns(UserWarning, match=f"one training image of class {', '.join(lone)}"):
        make()


@pytest.mark.parametrize(
    ("facts", "settings", "says"),
    [
        ({"size": [], "kind": "vectors"}, {}, "the samples are texts or vectors"),
        ({"size": [8, 9]}, {}, "images are 8 x 9, generators draw squares"),
        ({"size": [32, 32]}, {"trade_off": 0.5}, "needs a classifier"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(
    data: Data, facts: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    table = ClassBalancingSettings(**{**SMALL, "net": {"width": 2}, "balance": settings})
    with pytest.raises(UserError, match=says):
        ClassBalancing.check(table, with_facts(data, **facts), ["annotator"])


def test_a_classifier_of_few_labels_serves(tmp_path: Path) -> None:
    """Semi-supervised: other counts and another profile than the generator's data, the same classes."""
    run = {"steps": 2, "progress": False, "threads": 1}
    first = {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 2}}
    few = {"set": "shapes", "n_max": 3, "imbalance": 1, "val_per_class": 2, "augment": ["flip"]}
    folder = train(validate({"data": few, "method": first, "run": {**run, "folder": str(tmp_path / "few")}}, "few"))
    data = {"set": "shapes", "n_max": 20, "imbalance": 10, "val_per_class": 2, "augment": []}
    method = {"name": "class-balancing-gan", "net": {"width": 2}, **SMALL, "balance": {"cycle": 2}}
    tree = {"data": data, "method": method, "needs": {"annotator": str(folder), "classifier": str(folder)}}
    made = train(validate({**tree, "run": {**run, "folder": str(tmp_path / "g")}}, "g"))
    assert len(json.loads((made / "measure.json").read_text())["frequency"]) == 10


def test_a_class_with_one_image_and_few_images(make: Any, data: Data) -> None:
    one = data.streams["labelled"].subset(torch.tensor([0, 1, 2]))
    gan = make(d_steps=3)
    feeds = gan.feeds({"labelled": one})
    batch = next(Loader(one, feeds["labelled"], seed=0, device=CPU).iterate(0, 1))
    assert all(math.isfinite(value) for value in advance(gan, [{"labelled": batch}])[0].values())
    with pytest.raises(UserError, match="d_steps"):
        make(d_steps=4).feeds({"labelled": one})
