"""A GAN's steps against specs 01 (2, 3.2, 3.3) and 02 (2, 3.2, 3.3), written out: no loss, player, optimiser of ours.

Only the draws are shared: noise and labels are overheard, DiffAugment (``tests/pieces``) has the step's dice. Each case
sets its options off their defaults, so that one which is ignored, swapped or given to the other player shows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.data.loader import Batch
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods.generate.gan import GAN, ClassBalancing, GroupSpectral
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier
from evenhand.nets.conditional import ConditionalBatchNorm2d
from evenhand.pieces.diffaugment import diffaugment
from evenhand.pieces.spectral import conditional_parameters
from evenhand.randomness import dice
from helpers import batches, seeded

pytestmark = pytest.mark.filterwarnings("ignore:one training image")

CPU = torch.device("cpu")
SEED, STEPS = 5, 3
ADAM_G = {"lr": 0.01, "beta1": 0.3, "beta2": 0.7, "eps": 1e-3}
ADAM_D = {"lr": 0.02, "beta1": 0.6, "beta2": 0.8, "eps": 2e-3}
AVERAGE = {"ema": 0.75, "ema_start": 1, "ema_warm": False}
BASE: dict[str, Any] = {"batch": 6, "optim_g": ADAM_G, "optim_d": ADAM_D, "loss": "hinge", **AVERAGE}
ACGAN = {"condition": "acgan"}
AUGMENTED = {"diffaugment": ["translation", "colour"]}
NORMAL = [[0.4, 0.5, 0.6], [0.2, 0.3, 0.4]]  # of what the judge sees
SHARP = 8.0  # factor of its cosines
BALANCE = {"trade_off": 6.0, "cycle": 2, "forget": 0.3, "weight": 0.7, "floor": 0.6}
GSR = {"strength": 5.0, "alpha": 0.7, "form": "mean", "rule": "gsr", "iterations": 1000}
GROUPED = {"net": {"name": "sngan", "width": 4}, "condition": "projection"}

CASES: dict[str, dict[str, Any]] = {
    "hinge": {},
    "relativistic": {"loss": "relativistic"},
    "non-saturating": {"loss": "non-saturating"},
    "least-squares": {"loss": "least-squares"},
    "generator": {"condition": "generator"},
    "projection": {"condition": "projection", "loss": "relativistic"},
    "acgan": ACGAN,
    "acgan-relativistic": ACGAN | {"loss": "relativistic"},
    "d-steps": {"d_steps": 3, "condition": "projection", "loss": "non-saturating"},
    "lecam": {"lecam": 2.0, "lecam_start": 1},
    "lecam-d-steps": {"lecam": 2.0, "lecam_start": 0, "d_steps": 2, "loss": "least-squares"},
    "r1": {"r1": 0.7, "r1_every": 2},
    "r1-projection": {"r1": 0.7, "r1_every": 2, "condition": "projection", **AUGMENTED},
    "diffaugment": AUGMENTED,
    "diffaugment-relativistic": AUGMENTED | {"loss": "relativistic", "d_steps": 2},
    "clip": {"optim_g": ADAM_G | {"clip": 0.01}, "optim_d": ADAM_D | {"clip": 0.02}},
    "no-average": {"ema": 0.0},
    "warm-average": {"ema_warm": True},
    "sngan": {"net": {"name": "sngan", "slope": 0.2, "skip": "activated"}, "condition": "projection"},
    "biggan": {"net": {"name": "biggan", "width": 4}, "condition": "projection"},
    "balance": {"balance": BALANCE, "loss": "relativistic"},
    "balance-mean-one": {"balance": BALANCE | {"form": "mean-one"}, **AUGMENTED},
    "balance-entropy": {"balance": BALANCE | {"rule": "entropy"}},
    "balance-classify": {"balance": BALANCE | {"rule": "classify", "trade_off": 2.0}, "condition": "generator"},
    "gsr": {"gsr": GSR, **GROUPED},
    "gsrip": {"gsr": GSR | {"rule": "gsrip"}, **GROUPED},
    "balance-gsrip": {"gsr": GSR | {"rule": "gsrip", "form": "sum"}, "balance": BALANCE, **GROUPED},
}


@pytest.fixture(scope="module")
def data() -> Data:
    shapes = DataSettings(set="shapes", n_max=12, imbalance=10, val_per_class=2, augment=["flip"], normalise=NORMAL)
    return prepare_data(shapes)


@pytest.fixture(scope="module")
def judge(data: Data) -> LongTailClassifier:
    net: Any = {"name": "small-cnn", "width": 2}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = LongTailClassifier(ClassifierSettings(net=net, loss="ldam", scale=SHARP), data, seed=0, device=CPU)
        made.net.eval()
        return made


def build(data: Data, judge: LongTailClassifier, cls: Any = GAN, **options: Any) -> Any:
    needs = {"classifier": judge} if "balance" in options else {}
    net = {"width": 2, **options.pop("net", {})}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        table = cls.table(**{**BASE, "net": net, **options})
        return cls(table, data, seed=SEED, device=CPU, annotator=judge, **needs)


class Adam:
    """Algorithm 1 of its paper, after clipping by the norm of all gradients together."""

    def __init__(self, net: nn.Module, *, lr: float, beta1: float, beta2: float, eps: float, clip: float | None = None):
        self.weights, self.clip = list(net.parameters()), clip
        self.lr, self.betas, self.eps, self.t = lr, (beta1, beta2), eps, 0
        self.moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in self.weights]

    @torch.no_grad()
    def step(self, loss: Tensor) -> None:
        with torch.enable_grad():
            slopes = torch.autograd.grad(loss, self.weights, allow_unused=True)
        found = [torch.zeros_like(w) if g is None else g for w, g in zip(self.weights, slopes, strict=True)]
        norm = torch.sqrt(sum((g.square().sum() for g in found), torch.zeros(())))
        factor = 1.0 if self.clip is None else min(1.0, self.clip / float(norm))
        self.t += 1
        for weight, slope, (m, v) in zip(self.weights, found, self.moments, strict=True):
            g = factor * slope
            m.copy_(self.betas[0] * m + (1 - self.betas[0]) * g)
            v.copy_(self.betas[1] * v + (1 - self.betas[1]) * g * g)
            first, second = m / (1 - self.betas[0] ** self.t), v / (1 - self.betas[1] ** self.t)
            weight -= self.lr * first / (second.sqrt() + self.eps)


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def telling(kind: str, real: Tensor, fake: Tensor) -> Tensor:
    zero = torch.zeros(())
    each = {
        "hinge": lambda r, f: torch.maximum(zero, 1 - r) + torch.maximum(zero, 1 + f),
        "relativistic": lambda r, f: -torch.log(sigmoid(r - f)),
        "non-saturating": lambda r, f: -torch.log(sigmoid(r)) - torch.log(1 - sigmoid(f)),
        "least-squares": lambda r, f: 0.5 * (r - 1) ** 2 + 0.5 * f**2,
    }[kind](real, fake)
    return each.sum() / len(each)


def fooling(kind: str, fake: Tensor, real: Tensor | None) -> Tensor:
    each = {
        "hinge": lambda f, _: -f,
        "relativistic": lambda f, r: -torch.log(sigmoid(f - r)),
        "non-saturating": lambda f, _: -torch.log(sigmoid(f)),
        "least-squares": lambda f, _: 0.5 * (f - 1) ** 2,
    }[kind](fake, real)
    return each.sum() / len(each)


def wrong(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy."""
    p = torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)
    return -torch.stack([torch.log(row[k]) for row, k in zip(p, labels, strict=True)]).mean()


def spectral(tables: list[Tensor], counts: list[int], rule: str, form: str, alpha: float) -> Tensor:
    """Spec 02, 2 (step 6) and 3.3, by SVD, of the gains and biases of all layers, (K, 16) each."""
    weights, total = torch.tensor([(1 - alpha) / (1 - alpha**n) for n in counts]), torch.zeros(())
    for table in tables:
        matrices = table.view(-1, 4, 4)
        if rule == "gsrip":
            matrices = matrices @ matrices.mT - torch.eye(4)
        total = total + (weights * torch.linalg.svdvals(matrices)[:, 0] ** 2).sum()
    layers = len(tables) // 2
    return total / (weights.sum() * layers) if form == "mean" else total


class Written:
    """The whole training of one case."""

    def __init__(
        self, gan: GAN, drawn: Iterator[tuple[Tensor, Tensor | None]], options: dict[str, Any], judge: nn.Module
    ) -> None:
        self.G, self.D = copy.deepcopy(gan.generator.net), copy.deepcopy(gan.discriminator.net)
        self.average, self.drawn = copy.deepcopy(self.G), drawn
        defaults = {"condition": "none", "d_steps": 1, "lecam": 0.0, "r1": 0.0, "diffaugment": []}
        self.o: dict[str, Any] = defaults | BASE | options
        self.adam_g, self.adam_d = Adam(self.G, **self.o["optim_g"]), Adam(self.D, **self.o["optim_d"])
        self.means: list[float] | None = None
        self.calls = 0
        self.judge, self.counts = judge, gan.data.counts
        self.lately, self.cycle = torch.ones(10), torch.zeros(10)  # spec 01, 2: N and c

    def judged(self, images: Tensor, labels: Tensor | None) -> Any:
        images = diffaugment(images, self.shake, self.o["diffaugment"])
        return self.D(images, labels if self.o["condition"] == "projection" else None)

    def lecam(self, real: Tensor, fake: Tensor) -> Tensor:
        now = [float(real.detach().mean()), float(fake.detach().mean())]
        self.means = now if self.means is None else [0.99 * a + 0.01 * b for a, b in zip(self.means, now, strict=True)]
        self.calls += 1
        if self.calls <= self.o["lecam_start"]:
            return torch.zeros(())
        of_real, of_fake = self.means
        above = torch.stack([torch.clamp(r - of_fake, min=0) ** 2 for r in real]).mean()
        return above + torch.stack([torch.clamp(of_real - f, min=0) ** 2 for f in fake]).mean()

    def balance(self, t: int, fakes: Tensor, asked: Tensor | None) -> Tensor:
        o = {"rule": "balance", "form": "share"} | self.o["balance"]
        mean, std = torch.tensor(NORMAL).view(2, 3, 1, 1)
        logits = SHARP * self.judge(((fakes + 1) / 2 - mean) / std)
        if o["rule"] == "classify":
            assert asked is not None
            return wrong(logits, asked)
        p = (torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)).mean(0)
        share = self.lately / self.lately.sum() if o["rule"] == "balance" else torch.full((10,), 0.1)
        weights = 1 / (10 * share) if o["form"] == "share" else 10 / share / (1 / share).sum()
        for row in logits:
            self.cycle[row.argmax()] += 1
        if (t + 1) % o["cycle"] == 0:
            lately = (1 - o["forget"]) * self.lately + o["weight"] * self.cycle
            self.lately = torch.maximum(lately, o["floor"] * lately.mean())
            self.cycle = torch.zeros(10)
        return (weights * p * torch.log(p)).sum()

    def gsr(self) -> Tensor:
        norms = [module for module in self.G.modules() if isinstance(module, ConditionalBatchNorm2d)]
        tables = [table.weight for norm in norms for table in (norm.gain, norm.bias)]
        return spectral(tables, self.counts, *(self.o["gsr"][key] for key in ("rule", "form", "alpha")))

    def step(self, t: int, batch: Batch) -> tuple[Tensor, Tensor]:
        o, n = self.o, self.o["d_steps"]
        self.shake = dice(SEED, "shake", t, 0)
        for turn in range(n):
            x, y = batch.x[turn::n], batch.y[turn::n]
            z, asked = next(self.drawn)
            fakes = self.G(z, asked).detach()
            score, logits = self.judged(torch.cat([x, fakes]), torch.cat([y, y if asked is None else asked]))
            real, fake = score[: len(x)], score[len(x) :]
            loss_d = telling(o["loss"], real, fake)
            if o["condition"] == "acgan":
                loss_d = loss_d + wrong(logits[: len(x)], y) + wrong(logits[len(x) :], asked)
            if o["lecam"]:
                loss_d = loss_d + o["lecam"] * self.lecam(real, fake)
            if o["r1"] and t % o["r1_every"] == 0:  # every k steps, k times as much (spec 03, 2)
                leaf = x.clone().requires_grad_()
                (slope,) = torch.autograd.grad(self.judged(leaf, y).score.sum(), leaf, create_graph=True)
                squares = torch.stack([image.square().sum() for image in slope])
                loss_d = loss_d + o["r1_every"] * o["r1"] * 0.5 * squares.mean()
            self.adam_d.step(loss_d)
        z, asked = next(self.drawn)
        fakes = self.G(z, asked)
        score, logits = self.judged(fakes, asked)
        of_real = None
        if o["loss"] == "relativistic":
            with torch.no_grad():
                of_real = self.judged(x, y).score
        loss_g = fooling(o["loss"], score, of_real)
        if o["condition"] == "acgan":
            loss_g = loss_g + wrong(logits, asked)
        if "balance" in o:
            loss_g = loss_g + o["balance"]["trade_off"] * self.balance(t, fakes, asked)
        if "gsr" in o:
            loss_g = loss_g + o["gsr"]["strength"] * self.gsr()
        self.adam_g.step(loss_g)
        share = o["ema"] if t >= o["ema_start"] else 0.0
        if o["ema_warm"]:
            share = min(share, (t + 2) / (t + 11))
        with torch.no_grad():
            for mean, weight in zip(self.average.parameters(), self.G.parameters(), strict=True):
                mean.copy_(share * mean + (1 - share) * weight)
        return loss_d.detach(), loss_g.detach()


@pytest.mark.parametrize("case", CASES)
def test_steps_are_the_equations(case: str, data: Data, judge: LongTailClassifier) -> None:
    """Each step starts from our weights: noise in float32 that flips a ReLU would lead elsewhere by the third."""
    options = CASES[case]
    gan = build(data, judge, **options)
    drawn: list[Any] = []
    gan.generator.net.register_forward_pre_hook(lambda _, given: drawn.append((*given, None)[:2]))
    twin = copy.deepcopy(gan)
    nets = [gan.generator.net, gan.discriminator.net]
    nets += [gan.generator.average] if {**BASE, **options}["ema"] else []
    steps = batches(gan, data, STEPS)
    said, came_to = [], []
    for t, batch in enumerate(steps):
        gan.schedule(Progress(t, 4, STEPS))
        said.append(gan.update(batch))
        came_to.append([copy.deepcopy(net.state_dict()) for net in nets])
    for net in (twin.generator.net, twin.discriminator.net):
        net._forward_pre_hooks.clear()
    assert len(drawn) == STEPS * (options.get("d_steps", 1) + 1)
    assert all((labels is None) == ("condition" not in options) for _, labels in drawn)
    written = Written(twin, iter(drawn), options, judge.net)
    for t, batch in enumerate(steps):
        loss_d, loss_g = written.step(t, batch["labelled"])
        torch.testing.assert_close(said[t]["discriminator"], loss_d, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(said[t]["generator"], loss_g, rtol=1e-4, atol=1e-5)
        for theirs, ours in zip((written.G, written.D, written.average), came_to[t], strict=False):
            for name, b in theirs.named_parameters():
                torch.testing.assert_close(
                    ours[name], b.detach(), rtol=1e-3, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}"
                )
            theirs.load_state_dict(ours)


@pytest.mark.parametrize(
    ("condition", "told", "embeds", "classifies"),
    [
        ("none", False, False, False),
        ("generator", True, False, False),
        ("projection", True, True, False),
        ("acgan", True, False, True),
    ],
)
def test_who_knows_the_class(
    condition: str, told: bool, embeds: bool, classifies: bool, data: Data, judge: LongTailClassifier
) -> None:
    gan = build(data, judge, condition=condition)
    assert (gan.generator.net.num_classes == 10) is told
    head = gan.discriminator.net.head
    assert ((head.embed is not None), (head.classify is not None)) == (embeds, classifies)
    assert gan.labelled is (embeds or classifies)


@pytest.mark.parametrize("condition", ["none", "projection"])
def test_samples_are_the_averages(condition: str, data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge, condition=condition, ema=0.5, ema_start=0)
    for t, batch in enumerate(batches(gan, data, 2)):
        gan.schedule(Progress(t, 4, 100))
        gan.update(batch)
    before = gan.sample(8, chance=seeded())
    traces, details = gan.traces(), gan.details()
    with torch.no_grad():
        for weight in gan.generator.net.parameters():
            weight.add_(torch.randn(weight.shape, generator=seeded(1)))
    assert torch.equal(gan.sample(8, chance=seeded()), before)
    assert (gan.traces(), gan.details()) == (traces, details)
    with torch.no_grad():
        for weight in gan.generator.average.parameters():
            weight.add_(torch.randn(weight.shape, generator=seeded(1)))
    assert not torch.equal(gan.sample(8, chance=seeded()), before)


def test_without_an_average_samples_are_the_generators(data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge, ema=0.0)
    before = gan.sample(8, chance=seeded())
    with torch.no_grad():
        for weight in gan.generator.net.parameters():
            weight.add_(torch.randn(weight.shape, generator=seeded(1)))
    assert not torch.equal(gan.sample(8, chance=seeded()), before)


# options of the terms


def test_classify_asks_for_the_label_asked_for(data: Data, judge: LongTailClassifier) -> None:
    """ACGAN with a trained classifier (spec 01, 3.2): ``0.5 CE(C(G(z, y)), y)``."""
    gan = build(data, judge, ClassBalancing, condition="generator", balance={"rule": "classify"})
    assert gan.terms["balance"].strength == 0.5
    fakes = torch.rand(5, 3, 32, 32, generator=seeded()) * 2 - 1
    asked = torch.tensor([3, 1, 4, 1, 5])
    torch.testing.assert_close(gan.terms["balance"](fakes, asked), wrong(gan.terms["balance"].classify(fakes), asked))


@pytest.mark.parametrize("rule", ["gsr", "gsrip"])
@pytest.mark.parametrize("form", ["mean", "sum"])
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_gsr_is_the_equation(rule: str, form: str, alpha: float, data: Data, judge: LongTailClassifier) -> None:
    options = {"gsr": {"rule": rule, "form": form, "alpha": alpha}, "net": {"name": "sngan", "width": 4}}
    gan = build(data, judge, GroupSpectral, **options)
    gains, biases = conditional_parameters(gan.generator.net)
    total = spectral([*gains, *biases], data.counts, rule, form, alpha)
    found = gan.terms["gsr"](torch.empty(0), None)
    torch.testing.assert_close(found, total, rtol=1e-3, atol=0.0)
