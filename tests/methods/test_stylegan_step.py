"""StyleGAN2's and NoisyTwins' steps against spec 03 (2.2 to 2.4, 3.3), written out: no loss or optimiser of ours.

Random numbers are drawn anew from the step's dice, in the order of the step, so that one more or fewer shows.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.data.loader import Batch
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods.generate.stylegan import NoisyTwins, StyleGAN2
from evenhand.methods.generate.transitional import Transition, TransitionalGAN
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier
from evenhand.pieces.ada_changes import augmented
from evenhand.pieces.diffaugment import diffaugment
from evenhand.randomness import dice
from helpers import batches

pytestmark = pytest.mark.filterwarnings("ignore:one training image")

CPU = torch.device("cpu")
SEED, STEPS, BATCH, LATENT = 5, 3, 4, 6
ADAM_G = {"lr": 0.01, "beta1": 0.3, "beta2": 0.7, "eps": 1e-2}
ADAM_D = {"lr": 0.02, "beta1": 0.6, "beta2": 0.8, "eps": 2e-2}
NET = {"base": 64, "widest": 6, "latent": LATENT, "style": 6, "mapping_layers": 2, "group": 2}
BASE: dict[str, Any] = {
    "batch": BATCH, "optim_g": ADAM_G, "optim_d": ADAM_D, "net": NET, "ema_kimg": 0.01, "mixing": 0.0, "r1": 0.0,
    "path": 0.0,
}  # fmt: skip
TWINS = {"sigma": 0.4, "alpha": 0.9, "strength": 0.3, "off_diagonal": 0.2, "start": 1}
CONTRAST = {"strength": 0.7, "size": 5, "margin": 0.4, "temperature": 0.3}
TRANSITION = {"start": 0.002, "end": 0.010}  # thousand images, of which the steps begin with 0, 4 and 8
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "unconditional": {"condition": "none", "mixing": 1.0},
    "net": {"net": NET | {"residual": False, "noise": "none", "group": 4}},
    "mixing": {"mixing": 0.6},
    "r1": {"r1": 3.0, "r1_every": 2, "diffaugment": ["colour"]},
    "path": {"path": 5.0, "path_every": 2, "mixing": 1.0},
    "path-late": {"path": 5.0, "path_every": 1, "path_start": 2},
    "average": {"ema_kimg": 0.02, "ema_rampup": 0.7},
    "lecam": {"lecam": 2.0, "lecam_start": 1, "diffaugment": ["translation", "cutout"]},
    "ada": {"ada": {"target": 0.1, "kimg": 0.2, "every": 2, "p": 0.3}, "r1": 1.0, "r1_every": 2},
    "ada, fixed": {"ada": {"target": 0.1, "kimg": 0.0, "every": 1, "p": 0.6}},
    "gsr": {"gsr": {"strength": 2.0, "alpha": 0.9, "form": "sum"}},
    "noisy-twins": {"twins": TWINS, "mixing": 1.0, "r1": 1.0, "r1_every": 2, "path": 1.0, "path_every": 2},
    "noise": {"twins": TWINS | {"strength": 0.0}},
    "twins": {"twins": TWINS | {"sigma": 0.0, "start": 0}},
    "vicreg": {"twins": TWINS | {"kind": "vicreg"}},
    "simclr": {"twins": TWINS | {"kind": "simclr", "temperature": 0.3}},
    "d2d-ce": {"condition": "d2d-ce", "contrast": CONTRAST, "r1": 1.0, "r1_every": 2, "diffaugment": ["colour"]},
    "2c": {"condition": "2c", "contrast": CONTRAST},
    "d2d-ce, noisy twins": {"condition": "d2d-ce", "contrast": CONTRAST, "twins": TWINS},
    "transitional": {"transition": TRANSITION, "r1": 1.0, "r1_every": 2, "diffaugment": ["colour"]},
    "transitional, noisy twins": {
        "transition": TRANSITION, "twins": TWINS, "mixing": 1.0, "path": 1.0, "path_every": 2, "lecam": 2.0,
        "ada": {"target": 0.1, "kimg": 0.2, "every": 2, "p": 0.3},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(set="shapes", n_max=12, imbalance=10, val_per_class=2, augment=["flip"]))


def judge_of(data: Data) -> LongTailClassifier:
    net: Any = {"name": "small-cnn", "width": 2}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = LongTailClassifier(ClassifierSettings(net=net), data, seed=0, device=CPU)
        made.net.eval()
        return made


@pytest.fixture(scope="module")
def judge(data: Data) -> LongTailClassifier:
    return judge_of(data)


def unframed(data: Data) -> tuple[Data, dict[str, Batch]]:
    """The same images, 28 pixels a side, and a batch of them."""
    (batch,) = batches(build(data, judge_of(data)), data)
    cut = replace(batch["labelled"], views=(batch["labelled"].x[..., 2:30, 2:30],))
    return replace(data, facts=data.facts.model_copy(update={"size": (28, 28)})), {"labelled": cut}


def build(data: Data, judge: LongTailClassifier, cls: Any = StyleGAN2, **options: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return cls(cls.table(**{**BASE, **options}), data, seed=SEED, device=CPU, annotator=judge)


def run(gan: Any, steps: list[dict[str, Batch]]) -> list[dict[str, Tensor]]:
    said = []
    for t, batch in enumerate(steps):
        gan.schedule(Progress(t, 4, STEPS))
        said.append(gan.update(batch))
    return said


class Adam:
    """Algorithm 1 of its paper with lazy regularisation's constants."""

    def __init__(self, net: nn.Module, every: int, *, lr: float, beta1: float, beta2: float, eps: float) -> None:
        q = every / (every + 1)
        self.weights = list(net.parameters())
        self.lr, self.betas, self.eps, self.t = lr * q, (beta1**q, beta2**q), eps, 0
        self.moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in self.weights]

    @torch.no_grad()
    def step(self, loss: Tensor) -> None:
        with torch.enable_grad():
            slopes = torch.autograd.grad(loss, self.weights, allow_unused=True)
        self.t += 1
        for weight, slope, (m, v) in zip(self.weights, slopes, self.moments, strict=True):
            g = torch.zeros_like(weight) if slope is None else slope
            m.copy_(self.betas[0] * m + (1 - self.betas[0]) * g)
            v.copy_(self.betas[1] * v + (1 - self.betas[1]) * g * g)
            first, second = m / (1 - self.betas[0] ** self.t), v / (1 - self.betas[1] ** self.t)
            weight -= self.lr * first / (second.sqrt() + self.eps)


def softplus(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


class Written:
    """The whole training of one case."""

    def __init__(self, gan: Any, counts: list[int], options: dict[str, Any]) -> None:
        self.G, self.D = copy.deepcopy(gan.generator.net), copy.deepcopy(gan.discriminator.net)
        self.average, self.counts = copy.deepcopy(self.G), counts
        defaults = {"condition": "projection", "transition": None, "lecam": 0.0, "lecam_start": 1, "diffaugment": [],
                    "ada": None, "gsr": None, "twins": None,
                    "r1_every": 16, "path_every": 4, "path_start": 0, "ema_rampup": 0.05}  # fmt: skip
        self.o: dict[str, Any] = defaults | BASE | options
        self.adam_g = Adam(self.G, self.o["path_every"], **ADAM_G)
        self.adam_d = Adam(self.D, self.o["r1_every"], **ADAM_D)
        self.means, self.calls, self.path_mean = [0.0, 0.0], 0, torch.zeros(())
        self.p, self.signs = self.o["ada"]["p"] if self.o["ada"] else 0.0, []
        self.hiss: list[torch.Generator] = []
        if self.o["twins"] and self.o["twins"]["sigma"]:
            for player, net in enumerate((self.G, self.D)):
                net.mapping.embed._forward_hooks.clear()
                net.mapping.embed.register_forward_hook(
                    lambda _, given, out, player=player: self.noised(player, given[0], out)
                )

    def noised(self, player: int, labels: Tensor, embedded: Tensor) -> Tensor:
        alpha, sigma = self.o["twins"]["alpha"], self.o["twins"]["sigma"]
        inverse = [(1 - alpha) / (1 - alpha**n) for n in self.counts]
        total = sum(inverse)
        deviations = torch.tensor([sigma * len(inverse) * inverse[int(y)] / total for y in labels])
        return embedded + deviations[:, None] * torch.randn(embedded.shape, generator=self.hiss[player])

    def draw(self, count: int) -> tuple[Tensor, Tensor | None]:
        z = torch.randn(count, LATENT, generator=self.chance)
        if self.o["transition"]:  # as often as the data have them
            shares = torch.tensor(self.counts, dtype=torch.float64) / max(self.counts)
            return z, torch.multinomial(shares, count, replacement=True, generator=self.chance)
        return z, torch.randint(10, (count,), generator=self.chance) if self.o["condition"] != "none" else None

    def styles(self, count: int, twins: bool = False) -> tuple[Tensor, Tensor | None]:
        z, y = self.draw(count // 2 if twins else count)
        if twins:
            assert y is not None
            z, y = z.repeat(2, 1), y.repeat(2)
        ws = self.G.mapping(z, y)
        if self.o["mixing"] and float(torch.rand((), generator=self.chance)) < self.o["mixing"]:
            cut = int(torch.randint(1, 8, (), generator=self.chance))
            fresh = [self.draw(count // 2)[0], self.draw(count // 2)[0]] if twins else [self.draw(count)[0]]
            other = self.G.mapping(torch.cat(fresh), y)
            ws = torch.stack([(ws if layer < cut else other)[:, layer] for layer in range(8)], 1)
        return ws, y

    def images(self, ws: Tensor) -> Tensor:
        return self.G.synthesis(ws, self.o["net"].get("noise", "random"), chance=self.grain)

    def augmented(self, images: Tensor) -> Tensor:
        images = diffaugment(images, self.shake, self.o["diffaugment"])
        return augmented(images, self.p, self.shake) if self.o["ada"] else images

    def judged(self, images: Tensor, labels: Tensor | None) -> Tensor:
        if self.o["condition"] in ("d2d-ce", "2c"):
            return self.contrasted(images, None)[0]
        if self.o["transition"]:
            return self.scored_twice(images, labels)[0]
        return self.D(self.augmented(images), labels if self.o["condition"] != "none" else None)

    def contrasted(self, images: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Scores of the images alone and, of images with labels, the weighted loss, one image and pair at a time."""
        x, D, o = self.augmented(images), self.D, self.o["contrast"]
        for name in ("b32", "b16", "b8"):
            x = getattr(D, name)(x)
        x = D.b4.features(x)
        scores = D.b4.out(x)[:, 0]
        if labels is None:
            return scores, None
        unit = [v / v.norm() for v in D.embed(x)]
        proxy = [v / v.norm() for v in D.mapping(labels)]
        terms = []
        for i, y in enumerate(labels):
            others = [j for j in range(len(labels)) if j != i]
            if self.o["condition"] == "2c":
                own = torch.exp(unit[i] @ proxy[i] / o["temperature"])
                near = {j: torch.exp(unit[i] @ unit[j] / o["temperature"]) for j in others}
                same = sum(near[j] for j in others if labels[j] == y)
                terms.append(-torch.log((own + same) / (own + sum(near.values()))))
            else:
                own = torch.exp(torch.clamp(unit[i] @ proxy[i] - o["margin"], max=0) / o["temperature"])
                far = [
                    torch.exp(torch.clamp(unit[i] @ unit[j] - (1 - o["margin"]), min=0) / o["temperature"])
                    for j in others
                    if labels[j] != y
                ]
                terms.append(-torch.log(own / (own + sum(far))))
        return scores, o["strength"] * torch.stack(terms).mean()

    def scored_twice(self, images: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of the image alone, and for its label, one image at a time."""
        x, D = self.augmented(images), self.D
        for name in ("b32", "b16", "b8"):
            x = getattr(D, name)(x)
        x, vectors = D.b4.features(x), D.mapping(labels)
        alone = [(D.b4.out_uc.weight[0] @ f) / math.sqrt(len(f)) + D.b4.out_uc.bias[0] for f in x]
        of_class = [(D.b4.out_c.weight @ f) / math.sqrt(len(f)) + D.b4.out_c.bias for f in x]
        return torch.stack(alone), torch.stack(
            [c @ v / math.sqrt(len(v)) for c, v in zip(of_class, vectors, strict=True)]
        )

    def twins_loss(self, w: Tensor) -> Tensor:
        half, kind = len(w) // 2, self.o["twins"].get("kind", "barlow")
        if kind == "vicreg":
            loss = 25 * ((w[:half] - w[half:]) ** 2).sum() / half
            for x in (w[:half], w[half:]):
                cov = torch.cov(x.T)
                std = torch.sqrt(cov.diag() + 1e-4)
                loss = (
                    loss + 25 * torch.clamp(1 - std, min=0).mean() + (cov**2 - cov.diag().diag() ** 2).sum() / len(cov)
                )
            return loss
        if kind == "simclr":
            u = w / w.norm(dim=1, keepdim=True)
            e = torch.exp(u @ u.T / self.o["twins"]["temperature"])
            own = [-torch.log(e[i, (i + half) % len(w)] / (e[i].sum() - e[i, i])) for i in range(len(w))]
            return torch.stack(own).mean()
        a, b = ((x - x.mean(0)) / torch.sqrt(x.var(0, correction=0) + 1e-5) for x in (w[:half], w[half:]))
        c = a.T @ b / half
        loss = torch.zeros(())
        for j in range(len(c)):
            for k in range(len(c)):
                loss = loss + ((1 - c[j, j]) ** 2 if j == k else self.o["twins"]["off_diagonal"] * c[j, k] ** 2)
        return loss

    def gsr(self) -> Tensor:
        loss, (embed, s) = torch.zeros(()), (self.G.mapping.embed, self.o["gsr"])
        for k, n in enumerate(self.counts):
            c = embed.weight[:, k] / math.sqrt(10) + embed.bias
            loss = loss + (1 - s["alpha"]) / (1 - s["alpha"] ** n) * torch.linalg.svdvals(c.view(2, 3))[0] ** 2
        return loss

    def lecam(self, real: Tensor, fake: Tensor) -> Tensor:
        now = (float(real.detach().mean()), float(fake.detach().mean()))
        self.means = [0.99 * a + 0.01 * b for a, b in zip(self.means, now, strict=True)]
        self.calls += 1
        if self.calls <= self.o["lecam_start"]:
            return torch.zeros(())
        above, below = torch.clamp(real - self.means[1], min=0), torch.clamp(self.means[0] - fake, min=0)
        return (above**2).mean() + (below**2).mean()

    def step(self, t: int, batch: Batch) -> dict[str, Tensor]:
        o, x, y, said = self.o, batch.x, batch.y, {}
        self.chance, self.shake, self.grain = (
            dice(SEED, "noise", t), dice(SEED, "shake", t, 0), dice(SEED, "grain", t, 0),
        )  # fmt: skip
        self.hiss = [dice(SEED, "embedding", player, t, 0) for player in (0, 1)]
        T = 0.0
        if o["transition"]:
            T = (0.0, 0.25, 0.75)[t]  # (4 t - 2) / (10 - 2), between 0 and 1
            self.G.mapping.transition.fill_(T)
            self.average.mapping.transition.fill_(T)

        twins = bool(o["twins"] and o["twins"]["strength"])
        ws, asked = self.styles(BATCH, twins)
        contrasts = o["condition"] in ("d2d-ce", "2c")
        if contrasts:
            score, contrast = self.contrasted(self.images(ws), asked)
            assert contrast is not None
            loss = softplus(-score).mean() + contrast
        elif o["transition"]:
            score, of_class = self.scored_twice(self.images(ws), asked)
            loss = softplus(-score).mean() + T * softplus(-of_class).mean()
        else:
            loss = softplus(-self.judged(self.images(ws), asked)).mean()
        if twins and t >= o["twins"]["start"]:
            loss = loss + o["twins"]["strength"] * self.twins_loss(ws[:, 0])
        if o["gsr"]:
            loss = loss + o["gsr"]["strength"] * self.gsr()
        self.adam_g.step(loss)
        said["generator"] = loss.detach()
        if o["path"] and t % o["path_every"] == 0 and t >= o["path_start"]:
            ws, _ = self.styles(BATCH // 2)
            images = self.images(ws)
            probe = torch.randn(images.shape, generator=self.chance) / math.sqrt(32 * 32)
            (slope,) = torch.autograd.grad((images * probe).sum(), ws, create_graph=True)
            lengths = torch.stack([torch.sqrt((g**2).sum(1).mean()) for g in slope])
            mean = self.path_mean + 0.01 * (lengths.mean() - self.path_mean)
            self.path_mean = mean.detach()
            said["path"] = (o["path"] * o["path_every"] * ((lengths - mean) ** 2).mean()).detach()
            self.adam_g.step(o["path"] * o["path_every"] * ((lengths - mean) ** 2).mean())
        span = 1000 * o["ema_kimg"]
        if o["ema_rampup"]:
            span = min(span, o["ema_rampup"] * BATCH * t)
        kept = 0.5 ** (BATCH / max(span, 1e-8))
        with torch.no_grad():
            for mean, weight in zip(self.average.parameters(), self.G.parameters(), strict=True):
                mean.copy_(kept * mean + (1 - kept) * weight)
            self.average.mapping.w_avg.copy_(self.G.mapping.w_avg)

        with torch.no_grad():
            ws, asked = self.styles(BATCH)
            w_avg = self.G.mapping.w_avg
            w_avg.copy_(0.998 * w_avg + 0.002 * ws[:, 0].mean(0))
            fakes = self.images(ws)
        if o["transition"]:
            (real, real_class), (fake, fake_class) = self.scored_twice(x, y), self.scored_twice(fakes, asked)
            more = T * (softplus(-real_class).mean() + softplus(fake_class).mean())
        else:
            real, contrast = self.contrasted(x, y) if contrasts else (self.judged(x, y), None)
            fake = self.judged(fakes, asked)
            more = torch.zeros(()) if contrast is None else contrast
        self.signs += torch.sign(real).tolist()
        loss = softplus(-real).mean() + softplus(fake).mean() + more
        if o["lecam"]:
            loss = loss + o["lecam"] * self.lecam(real, fake)
        self.adam_d.step(loss)
        said["discriminator"] = loss.detach()
        if o["r1"] and t % o["r1_every"] == 0:
            leaf = x.clone().requires_grad_()
            again = self.judged(leaf, y)
            self.signs += torch.sign(again).tolist()
            (slope,) = torch.autograd.grad(again.sum(), leaf, create_graph=True)
            penalty = o["r1_every"] * o["r1"] / 2 * torch.stack([g.square().sum() for g in slope]).mean()
            said["r1"] = penalty.detach()
            self.adam_d.step(penalty)
        if o["ada"]:
            if o["ada"]["kimg"] and t % o["ada"]["every"] == o["ada"]["every"] - 1:
                up = sum(self.signs) / len(self.signs) > o["ada"]["target"]
                self.p += (1 if up else -1) * len(self.signs) / (1000 * o["ada"]["kimg"])
                self.p, self.signs = min(1.0, max(0.0, self.p)), []
            said["ada"] = torch.tensor(self.p)
        return said


@pytest.mark.parametrize("case", CASES)
def test_steps_are_the_equations(case: str, data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge, TransitionalGAN if "transition" in CASES[case] else StyleGAN2, **CASES[case])
    written = Written(copy.deepcopy(gan), data.counts, CASES[case])
    steps = batches(gan, data, STEPS)
    for t, (batch, said) in enumerate(zip(steps, run(gan, steps), strict=True)):
        expected = written.step(t, batch["labelled"])
        assert ("path" in said, "r1" in said) == ("path" in expected, "r1" in expected)
        for name, value in expected.items():
            torch.testing.assert_close(said[name], value, rtol=2e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    pairs = [
        (gan.generator.net, written.G),
        (gan.discriminator.net, written.D),
        (gan.generator.average, written.average),
    ]
    for ours, theirs in pairs:
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=5e-4, msg=lambda m, name=name: f"{name}: {m}")
    for net, theirs in ((gan.generator.net, written.G), (gan.generator.average, written.average)):
        torch.testing.assert_close(net.mapping.w_avg, theirs.mapping.w_avg)


def test_steps_of_framed_images_are_the_equations(data: Data) -> None:
    small, batch = unframed(data)
    options = {"r1": 3.0, "r1_every": 1, "path": 1.0, "path_every": 1}
    gan = build(small, judge_of(small), pad=True, **options)
    written, x = Written(copy.deepcopy(gan), small.counts, options), batch["labelled"].x
    black = torch.full((len(x), 3, 32, 32), -1.0)
    for i in range(28):
        for j in range(28):
            black[:, :, i + 2, j + 2] = x[:, :, i, j]
    expected = written.step(0, replace(batch["labelled"], views=(black,)))
    (said,) = run(gan, [batch])
    for name, value in expected.items():
        torch.testing.assert_close(said[name], value, rtol=2e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    for ours, theirs in ((gan.generator.net, written.G), (gan.discriminator.net, written.D)):
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=5e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_the_transition_grows_between_its_marks() -> None:
    transition = Transition()
    assert (transition.start, transition.end) == (2000, 4000)  # spec 03, 3, in thousands of images
    assert [transition.share(1000 * k) for k in (0, 2000, 2500, 4000, 9000)] == [0, 0, 0.25, 1, 1]
    assert [Transition(start=5, end=5).share(k) for k in (4999, 5000)] == [0, 1]
    with pytest.raises(ValueError, match="ends at 1 thousand images, before it starts at 2"):
        Transition(start=2, end=1)


def test_the_transition_counts_images_of_which_there_may_be_fewer_than_a_batch(
    data: Data, judge: LongTailClassifier
) -> None:
    images = sum(data.counts)
    gan = build(data, judge, TransitionalGAN, batch=2 * images, transition={"start": 0, "end": 0.01 * images})
    gan.schedule(Progress(4, 4, 10))
    assert float(gan.discriminator.net.transition) == pytest.approx(0.4)
    assert gan.traces()["transition"] == pytest.approx(0.4)


def test_defaults_are_the_papers() -> None:
    """Spec 03, 3.1, 6 and 10a.9; the average's ramp is CIFAR's, so that short runs draw by what they learned."""
    s = NoisyTwins.table()
    assert s.model_dump(exclude={"measure", "name"}) == {
        "batch": 128, "condition": "projection", "pad": False, "mixing": 0.9, "r1": 0.01, "r1_every": 16, "path": 2.0,
        "path_every": 4, "path_start": 0, "ema_kimg": 20.0, "ema_rampup": 0.05, "diffaugment": [], "ada": None,
        "lecam": 0.0, "lecam_start": 1, "gsr": None,
        "contrast": {"strength": 0.25, "size": 512, "margin": 0.98, "temperature": 0.25},
        "net": {"base": 16384, "widest": 512, "latent": 512, "style": 512, "mapping_layers": 8, "residual": True,
                "group": 8, "noise": "random", "weights_g": "", "weights_d": ""},
        "optim_g": {"lr": 2.5e-3, "beta1": 0.0, "beta2": 0.99, "eps": 1e-8, "clip": None, "precision": "float32"},
        "optim_d": {"lr": 2.5e-3, "beta1": 0.0, "beta2": 0.99, "eps": 1e-8, "clip": None, "precision": "float32"},
        "twins": {"sigma": 0.75, "alpha": 0.99, "strength": 0.01, "kind": "barlow", "off_diagonal": 0.05,
                  "temperature": 0.5, "start": 0},
    }  # fmt: skip
    assert StyleGAN2.table().twins is None
    net = nn.Linear(1, 1)
    for optim, every, lr, beta2 in ((s.optim_g, 4, 0.002, 0.991992), (s.optim_d, 16, 0.0023529, 0.990585)):
        (group,) = optim.lazy_player(net, every).optimizer.param_groups
        assert (group["lr"], *group["betas"]) == pytest.approx((lr, 0.0, beta2), rel=1e-4)
