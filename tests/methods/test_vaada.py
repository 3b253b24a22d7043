"""VAADA, VADA and MME: each step against the equations of spec 08 (2.6, section 3), with the mistakes it must not make.

A mistake, such as an option ignored or a label not flipped, must lie further from the equations than the tolerance.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods.adapt.adversarial import DomainAdversarial
from evenhand.methods.adapt.labelled import Mixed, TargetFirst
from evenhand.methods.adapt.mme import MME, MMESettings
from evenhand.methods.adapt.vaada import VAADA
from evenhand.methods.protocol import Progress
from evenhand.pieces.schedules import inverse_decay
from evenhand.randomness import dice, mix
from helpers import batches

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

LABELS = Path(__file__).parents[1] / "contract" / "labels.csv"
FIRST, STEPS, TOTAL = 3, 2, 20
CLOSE, APART = 1e-6, 20.0
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(
        DataSettings(
            set="shapes", target="shapes-negative", n_max=12, imbalance=10, augment=[], labels=str(LABELS)
        )
    )  # fmt: skip


def build(cls: Any, data: Data, **tree: Any) -> Any:
    small = {"batch": 16, "net": {"name": "small-cnn", "width": 4}, "bottleneck": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(0, "weights"))
        return cls(cls.table.model_validate({**small, **tree}), data, seed=0, device=CPU)


@dataclass(frozen=True)
class Symbols:
    """Values of the equations; below the line, mistakes."""

    domain: float = 0.5
    labelled: float = 0.7
    target: float = 0.4
    epsilon: float = 2.0
    xi: float | None = None
    lr: float = 0.05
    momentum: float = 0.9
    decay: float = 0.01
    clip: float = 0.3
    backbone: float = 1.0
    inverse: bool = False
    adam: bool = False
    ema: float = 0.0

    together: bool = False  # features and classifier clipped by one norm
    stale: bool = False  # the discriminator of before its step fools nobody
    flipped: bool = True
    joint: bool = False  # one BatchNorm pass over labelled and unlabelled rows
    moving: bool = False  # VAT moves the running statistics

    def tree(self) -> dict[str, Any]:
        return {
            "hidden": 16, "domain_weight": self.domain, "labelled_vat": self.labelled, "target_weight": self.target,
            "vat": {"epsilon": self.epsilon, "xi": self.xi}, "backbone_factor": self.backbone,
            "optim": {
                "name": "adam" if self.adam else "sgd", "lr": self.lr, "momentum": self.momentum,
                "weight_decay": self.decay, "clip": self.clip,
                **({"schedule": "inverse-progress"} if self.inverse else {}),
                **({"ema": self.ema, "ema_warm": False} if self.ema else {}),
            },
        }  # fmt: skip


class Literal:
    """Section 2.6, in its order."""

    def __init__(self, s: Symbols, method: Any) -> None:
        self.s, self.net, self.D = s, copy.deepcopy(method.net), copy.deepcopy(method.critic.net)
        self.f = list(self.net.head.parameters())
        self.g = [p for p in self.net.parameters() if all(p is not q for q in self.f)]
        self.backbone = list(self.net.backbone.parameters())
        self.memory: dict[Any, list[Tensor]] = {}
        self.count: dict[Any, int] = {}
        self.average = copy.deepcopy(self.net)

    def step(self, x: Tensor, y: Tensor, u: Tensor, at: int) -> None:
        s = self.s
        if s.joint:
            fl, fu = self.net.features(torch.cat([x, u])).split([len(x), len(u)])
        else:
            fl, fu = self.net.features(x), self.net.features(u)
        before = copy.deepcopy(self.D)
        self.move([list(self.D.parameters())], self.domains(self.D, fl.detach(), fu.detach(), 0, 1), at)
        rival = before if s.stale else self.D
        domain = self.domains(rival, fl, fu, 1, 0) if s.flipped else self.domains(rival, fl, fu, 0, 1)
        h = self.net.head(fu).softmax(1)
        loss = -self.net.head(fl).log_softmax(1)[torch.arange(len(y)), y].mean() + s.domain * domain
        loss = loss + s.labelled * self.steady(x, "labelled", at)
        loss = loss + s.target * (self.steady(u, "target", at) - (h * h.log()).sum(1).mean())
        self.move([[*self.g, *self.f]] if s.together else [self.g, self.f], loss, at)
        with torch.no_grad():
            for mean, p in zip(self.average.parameters(), self.net.parameters(), strict=True):
                mean += (1 - s.ema) * (p - mean)
            for mean, p in zip(self.average.buffers(), self.net.buffers(), strict=True):
                mean.copy_(p)

    @staticmethod
    def domains(D: nn.Module, fl: Tensor, fu: Tensor, ours: int, theirs: int) -> Tensor:
        return -D(fl).log_softmax(1)[:, ours].mean() - D(fu).log_softmax(1)[:, theirs].mean()

    def steady(self, x: Tensor, purpose: str, at: int) -> Tensor:
        """h(x) and r are constants; statistics are the batch's, and their running means stay."""
        kept = [b.clone() for b in self.net.buffers()]
        p = self.net(x).softmax(1).detach()
        start = torch.randn(x.shape, generator=dice(0, "vat", purpose, at)).to(x)
        d = torch.stack([each / each.norm() for each in start])
        short = ((self.s.xi or 1e-3 * math.sqrt(x[0].numel())) * d).requires_grad_()
        (slope,) = torch.autograd.grad((p * (p.log() - self.net(x + short).log_softmax(1))).sum(), short)
        r = torch.stack([self.s.epsilon * each / each.norm() for each in slope])
        loss = (p * (p.log() - self.net(x + r).log_softmax(1))).sum(1).mean()
        if not self.s.moving:
            for b, old in zip(self.net.buffers(), kept, strict=True):
                b.data.copy_(old)
        return loss

    def move(self, parts: list[list[Any]], loss: Tensor, at: int) -> None:
        s = self.s
        lr = s.lr * (1 + 10 * at / TOTAL) ** -0.75 if s.inverse else s.lr
        every = [p for part in parts for p in part]
        slopes = dict(zip(every, torch.autograd.grad(loss, every), strict=True))
        for part in parts:
            norm = torch.cat([slopes[p].flatten() for p in part]).norm()
            for p in part:
                gradient = slopes[p] * min(1.0, s.clip / float(norm)) if s.clip else slopes[p]
                own = s.backbone if any(p is q for q in self.backbone) else 1.0
                gradient = gradient + s.decay * p.detach()
                with torch.no_grad():
                    p -= lr * own * (self.adam(p, gradient) if s.adam else self.velocity(p, gradient))

    def velocity(self, p: Any, gradient: Tensor) -> Tensor:
        (v,) = self.memory.setdefault(p, [torch.zeros_like(p)])
        v.mul_(self.s.momentum).add_(gradient)
        return v

    def adam(self, p: Any, gradient: Tensor) -> Tensor:
        m, v = self.memory.setdefault(p, [torch.zeros_like(p), torch.zeros_like(p)])
        t = self.count[p] = self.count.get(p, 0) + 1
        m.mul_(0.9).add_(0.1 * gradient)
        v.mul_(0.999).add_(0.001 * gradient**2)
        return (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)

    def reached(self) -> list[Tensor]:
        nets = (self.net, self.D, *([self.average] if self.s.ema else []))
        return [t.detach().double() for net in nets for t in (*net.parameters(), *net.buffers())]


def taken(s: Symbols, method: Any, drawn: list[Any]) -> list[Tensor]:
    literal = Literal(s, method)
    for at, (x, y, u) in enumerate(drawn, FIRST):
        literal.step(x, y, u, at)
    return literal.reached()


def largest(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


CASES: dict[str, tuple[Symbols, list[dict[str, Any]]]] = {
    "vaada": (Symbols(), [
        {"domain": 0.0}, {"labelled": 0.0}, {"target": 0.0}, {"domain": 1.0}, {"labelled": 1.0}, {"target": 1.0},
        {"epsilon": 5.0}, {"momentum": 0.0}, {"decay": 0.0}, {"clip": 0.0}, {"clip": 1.0}, {"together": True},
        {"stale": True}, {"flipped": False}, {"joint": True}, {"moving": True},
    ]),
    "no clipping": (Symbols(clip=0.0), [{"clip": 0.1}, {"clip": 0.2}]),
    "slow backbone": (Symbols(backbone=0.1), [{"backbone": 1.0}]),
    "dann decay": (Symbols(inverse=True), [{"inverse": False}]),
    "no domain": (Symbols(domain=0.0), [{"domain": 0.1}]),
    "no vat": (Symbols(labelled=0.0), [{"labelled": 0.1}]),
    "far probe": (Symbols(xi=3.0), [{"xi": None}]),
    "no target": (Symbols(target=0.0), [{"target": 0.1}]),
    "vada": (Symbols(adam=True, lr=0.003, ema=0.7, clip=0.0, decay=0.0), [
        {"adam": False}, {"ema": 0.5}, {"clip": 0.3, "decay": 0.01}
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_equations(data: Data, name: str) -> None:
    symbols, mistakes = CASES[name]
    method = build(VAADA, data, **symbols.tree())
    for net in (method.net, method.critic.net, *([method.player.average] if symbols.ema else [])):
        net.double()
    steps = batches(method, data, STEPS)
    drawn = [(b["source"].x.double(), b["source"].y, b["target"].x.double()) for b in steps]
    expected = taken(symbols, method, drawn)
    wrong = {str(m): largest(expected, taken(replace(symbols, **m), method, drawn)) for m in mistakes}
    for at, batch in enumerate(steps, FIRST):
        method.schedule(Progress(at, 2, TOTAL))
        for part in batch.values():
            object.__setattr__(part, "views", tuple(v.double() for v in part.views))
        method.update(batch)
    nets = (method.net, method.critic.net, *([method.player.average] if symbols.ema else []))
    found = largest([t.detach().double() for net in nets for t in (*net.parameters(), *net.buffers())], expected)
    close = 10 * CLOSE if symbols.adam else CLOSE  # Adam divides by its own small numbers
    assert found < close, f"{found:.1e} from the equations; mistakes: {wrong}"
    assert min(wrong.values()) > APART * max(close, found), f"a mistake would pass: {wrong}"


def test_ema_is_what_is_judged(data: Data) -> None:
    method = build(VAADA, data, hidden=16, optim={"ema": 0.9})
    assert method.network() is method.player.average
    assert build(VAADA, data, hidden=16).network() is not None


def test_gradients_are_clipped_each_by_its_own_norm(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """10a.15: norms of g, f and D are at most the limit, directions unchanged."""
    seen: dict[str, list[Tensor]] = {}
    for limit in (0.0, 1e-3):
        method = build(VAADA, data, hidden=16, optim={"clip": limit, "momentum": 0.0, "weight_decay": 0.0, "lr": 1.0})
        parts = {
            "g": [p for p in method.net.parameters() if p not in set(method.net.head.parameters())],
            "f": list(method.net.head.parameters()), "D": list(method.critic.net.parameters()),
        }  # fmt: skip
        before = {key: torch.cat([p.detach().flatten().clone() for p in own]) for key, own in parts.items()}
        method.schedule(Progress(0, 2, TOTAL))
        if limit:
            monkeypatch.setattr(method, "_tell_apart", lambda *_: {})  # D is looked at below
        method.update(batches(method, data, 1)[0])
        for key, own in parts.items():
            seen.setdefault(key, []).append(before[key] - torch.cat([p.detach().flatten() for p in own]))
    assert seen["g"][1].norm() == pytest.approx(1e-3, rel=1e-3)
    assert seen["f"][1].norm() == pytest.approx(1e-3, rel=1e-3)
    assert not seen["D"][1].any()  # unchanged by the step of g and f
    assert seen["D"][0].any()
    assert F.cosine_similarity(seen["f"][0], seen["f"][1], 0) > 0.99


def test_schedules_of_the_paper(data: Data) -> None:
    """10a.14: 0.01, 0.0026085, 0.0016556 at p = 0, 1/2, 1; by default constant."""
    method = build(VAADA, data, hidden=16, optim={"schedule": "inverse-progress"})
    for step, lr in ((0, 0.01), (10, 0.0026085), (20, 0.0016556)):
        method.schedule(Progress(step, 2, 20))
        for player in (method.player, method.critic):
            assert all(group["lr"] == pytest.approx(lr, rel=1e-4) for group in player.optimizer.param_groups)
    constant = build(VAADA, data, hidden=16)
    constant.schedule(Progress(15, 2, 20))
    assert {group["lr"] for group in constant.player.optimizer.param_groups} == {0.01}
    assert inverse_decay(1.0, 10.0) == pytest.approx(0.16556, rel=1e-4)


def test_architecture_of_the_paper(data: Data) -> None:
    method = build(VAADA, data, bottleneck=256, hidden=1024)
    assert [type(m).__name__ for m in method.net.bottleneck] == ["Linear"]  # no activation
    kinds = [type(m).__name__ for m in method.critic.net]
    assert kinds == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert [m.weight.shape for m in method.critic.net if isinstance(m, nn.Linear)] == [
        (1024, 256),
        (1024, 1024),
        (2, 1024),
    ]
    assert type(method).table.model_fields["batch"].default == 16


def test_tell_is_the_logit_of_source(data: Data) -> None:
    method = build(VAADA, data, hidden=16)
    raw = data.streams["test"].fetch(torch.arange(8))
    logits = method.critic.net(method.embed(raw))
    torch.testing.assert_close(method.tell(raw), logits[:, 0].log_softmax(0) * 0 + (logits[:, 0] - logits[:, 1]))
    shown = logits.softmax(1)
    torch.testing.assert_close(method.tell(raw).exp(), shown[:, 0] / shown[:, 1], rtol=1e-4, atol=1e-5)


# labelled target among the source


def test_labelled_target_counts_as_source_in_every_method(data: Data) -> None:
    known, source = data.streams["target_labelled"], data.streams["source"]
    for cls, more in ((VAADA, {"hidden": 16}), (MME, {}), (DomainAdversarial, {"discriminator": {"hidden": 16}})):
        feed = build(cls, data, **more).feeds(data.streams)["source"]
        assert len(feed.stream) == len(known) + len(source)
        assert feed.stream.samples.name(0) == known.samples.name(0)
        ignoring = build(cls, data, target_labels=False, **more).feeds(data.streams)["source"]
        assert ignoring.stream == "source" or len(ignoring.stream) == len(source)
    alone = build(DomainAdversarial, data, adversary="none", discriminator={"hidden": 16})
    assert set(alone.feeds(data.streams)) == {"source"}  # fine-tuning: labelled samples of both, and nothing else
    assert len(alone.feeds(data.streams)["source"].stream) == len(known) + len(source)


def test_an_epoch_takes_the_labelled_target_first_and_ends_with_the_shorter() -> None:
    """min(ceil(Dt/b) + ceil(Ds/b), ceil(Du/b)); each batch of one domain; a pass shows every sample."""
    picks = TargetFirst(10, 37, 1000, 8, seed=0, rank=0, world=1)
    assert picks.steps_per_epoch == 2 + 5
    epoch = [picks.batch(step) for step in range(7)]
    assert all(len(b) == 8 for b in epoch)
    assert all((b < 10).all() for b in epoch[:2])
    assert all((b >= 10).all() for b in epoch[2:])
    assert set(torch.cat(epoch).tolist()) == set(range(47))
    assert not torch.equal(picks.batch(0), picks.batch(7))
    assert TargetFirst(10, 37, 20, 8, seed=0, rank=0, world=1).steps_per_epoch == 3
    halves = [TargetFirst(10, 37, 1000, 8, seed=0, rank=rank, world=2).batch(3) for rank in range(2)]
    assert torch.equal(torch.cat(halves), epoch[3])


def test_a_stated_share_of_every_batch() -> None:
    picks = Mixed(10, 37, 8, 0.25, seed=0, rank=0, world=1)
    shown = [picks.batch(step) for step in range(30)]
    assert all(int((b < 10).sum()) == 2 for b in shown)
    assert set(torch.cat(shown).tolist()) == set(range(47))
    assert int((Mixed(10, 37, 8, 0.01, seed=0, rank=0, world=1).batch(0) < 10).sum()) == 1
    assert int((Mixed(10, 37, 8, 0.99, seed=0, rank=0, world=1).batch(0) < 10).sum()) == 7  # one of the others is left


def test_large_images_are_framed_in_their_centre(data: Data) -> None:
    assert all(feed.whole for feed in build(VAADA, data, hidden=16).feeds(data.streams).values())
    assert not any(feed.whole for feed in build(VAADA, data, hidden=16, centre=False).feeds(data.streams).values())
    assert not any(feed.whole for feed in build(MME, data).feeds(data.streams).values())


# MME


@pytest.mark.parametrize("mistake", [{}, {"weight": 0.0}, {"reversal": -1.0}, {"reversal": 0.0}, {"temperature": 0.1}])
def test_mme_is_a_fight_over_the_entropy(data: Data, mistake: dict[str, float]) -> None:
    """The classifier ascends H, the features descend it, from cosines over the temperature."""
    right = {"weight": 0.3, "reversal": 1.0, "temperature": 0.2}
    how = right | mistake
    method = build(
        MME, data, entropy_weight=0.3, temperature=0.2, backbone_factor=0.5,
        optim={"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "schedule": "constant"},
    )  # fmt: skip
    method.net.double()
    net = copy.deepcopy(method.net)
    batch = batches(method, data, 1)[0]
    for part in batch.values():
        object.__setattr__(part, "views", tuple(v.double() for v in part.views))

    def cosines(f: Tensor) -> Tensor:
        W = net.head.weight
        return (f @ W.T) / (f.norm(dim=1, keepdim=True) * W.norm(dim=1)) / how["temperature"]

    fl, fu = net.features(batch["source"].x), net.features(batch["target"].x)
    p = cosines(fu).softmax(1)
    entropy = -(p * p.log()).sum(1).mean()
    task = -cosines(fl).log_softmax(1)[torch.arange(16), batch["source"].y].mean()
    head = set(net.head.parameters())
    for q in net.parameters():
        a, b = (torch.autograd.grad(loss, q, retain_graph=True)[0] for loss in (task, entropy))
        sign = -1.0 if q in head else how["reversal"]
        lr = 0.05 if q in set(net.backbone.parameters()) else 0.1
        q.data -= lr * (a + sign * how["weight"] * b)
    method.schedule(Progress(0, 2, TOTAL))
    method.update(batch)
    far = largest([p.detach() for p in net.parameters()], [p.detach() for p in method.net.parameters()])
    assert (far < 1e-7) == (how == right), far


def test_mme_predicts_with_its_temperature(data: Data) -> None:
    method = build(MME, data)
    raw = data.streams["test"].fetch(torch.arange(4))
    torch.testing.assert_close(method.predict(raw), 20 * method.network()(data.see(raw)))


def test_mme_slows_a_backbone_that_comes_with_weights(data: Data) -> None:
    assert [group["lr_factor"] for group in build(MME, data).player.optimizer.param_groups] == [1.0, 1.0]
    assert MME.table(net={"name": "resnet50", "weights": "resnet50"}).backbone_rate == 0.1
    assert MME.table(net={"name": "resnet50", "weights": "resnet50"}, backbone_factor=0.5).backbone_rate == 0.5


def test_mme_has_its_papers_values_where_nothing_is_said() -> None:
    table = MMESettings()
    assert (table.batch, table.temperature, table.entropy_weight, table.bottleneck) == (24, 0.05, 0.1, 256)
    assert (table.optim.weight_decay, table.optim.inverse_alpha, table.optim.inverse_power) == (5e-4, 1e-4, 0.75)
