"""Every option of domain-adversarial methods against a step written from the equations of spec 09, sections 2.3 to 2.7.

Each case also says what a step without the option would be (``mistaken``): it must lie further from the equations than
the tolerance by a factor, so that an option which is ignored, doubled or reversed cannot pass.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.data.loader import Batch
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods.adapt.adversarial import DomainAdversarial
from evenhand.methods.adapt.sdat import SDAT
from evenhand.methods.adapt.sdat_ablations import SDATAblation
from evenhand.methods.protocol import Progress
from evenhand.randomness import dice, mix
from helpers import batches

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

FIRST, STEPS = 3, 3  # the reversal has begun to grow
CLOSE, APART = 2e-5, 20.0


@dataclass(frozen=True)
class Optimiser:
    """SGD, Adam or AdamW in the symbols of their papers."""

    name: str = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)

    def tree(self) -> dict[str, Any]:
        return {**vars(self), "betas": list(self.betas)}


@dataclass(frozen=True)
class Symbols:
    """What the equations of a case have for values."""

    adversary: str = "cdan"
    trade_off: float = 1.0
    margin: float = 4.0
    entropy: bool = False
    map_size: int = 0
    high: float = 1.0
    mcc: float = 0.0
    temperature: float = 2.5
    smoothing: float = 0.0
    vat: float = 0.0
    epsilon: float = 15.0
    xi: float | None = None
    smooth: str = "none"
    adv_at: str = "perturbed"
    rho: float = 0.0
    rho_adversary: float = 0.0
    rho_relative: bool = False
    backbone_factor: float = 1.0
    optim: Optimiser = field(default_factory=Optimiser)
    optim_d: Optimiser | None = None

    def method(self, data: Data) -> Any:
        keys = ("adversary", "trade_off", "margin", "entropy", "map_size", "mcc", "temperature", "smoothing")
        tree: dict[str, Any] = {
            **{key: getattr(self, key) for key in (*keys, "backbone_factor")},
            "batch": 16, "net": {"name": "small-cnn", "width": 4}, "bottleneck": 8, "discriminator": {"hidden": 16},
            "head_hidden": 16 if self.adversary == "mdd" else 0, "reversal": {"steps": 4, "high": self.high},
            "vat": {"weight": self.vat, "epsilon": self.epsilon, "xi": self.xi}, "optim": self.optim.tree(),
            **({} if self.optim_d is None else {"optim_d": self.optim_d.tree()}),
        }  # fmt: skip
        cls: Any = DomainAdversarial
        if self.smooth != "none":
            cls = SDAT if self.smooth == "sdat" else SDATAblation
            tree |= {"rho": self.rho, "rho_relative": self.rho_relative}
        if cls is SDATAblation:
            tree |= {"smooth": self.smooth, "adv_at": self.adv_at, "rho_adversary": self.rho_adversary}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(0, "weights"))
            method = cls(cls.table.model_validate(tree), data, seed=0, device=torch.device("cpu"))
        for net in (method.net, *([method.adversary.net] if method.adversary is not None else [])):
            net.to(self.type)
            for module in net.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        return method

    @property
    def type(self) -> torch.dtype:
        """Double, or Adam makes steps of rounding noise and VAT follows it; the randomised map is single."""
        return torch.float32 if self.map_size else torch.float64

    @property
    def gamma(self) -> float:
        """Of the learning rate's decay: MDD has its own."""
        return 2e-4 if self.adversary == "mdd" else 1e-3


class Literal:
    """One iteration of section 2.3 with loops over parameters, from a method's first weights."""

    def __init__(self, symbols: Symbols, method: Any) -> None:
        self.s = symbols
        self.net, self.rival = copy.deepcopy(method.net), nn.Module()
        self.theta: list[Any] = list(self.net.parameters())
        self.phi: list[Any] = []
        if method.adversary is not None:
            self.rival = copy.deepcopy(method.adversary.net)
            self.phi = list(self.rival.parameters())
        self.matrices = copy.deepcopy(method.map)
        backbone = set(self.net.backbone.parameters())
        self.factors = [symbols.backbone_factor if p in backbone else 1.0 for p in self.theta] + [1.0] * len(self.phi)
        self.first = [torch.zeros_like(p) for p in self.weights]  # momentum, or Adam's mean of gradients
        self.second = [torch.zeros_like(p) for p in self.weights]  # Adam's mean of squares
        self.count = 0

    @property
    def weights(self) -> list[Any]:
        return [*self.theta, *self.phi]

    # section 2.5

    def task(self, x: Tensor, y: Tensor, z: Tensor, step: int) -> Tensor:
        s, n, K = self.s, len(y), z.shape[1]
        wanted = torch.full((n, K), s.smoothing / (K - 1), dtype=z.dtype)
        wanted[torch.arange(n), y] = 1 - s.smoothing
        loss = -(wanted * z[:n].log_softmax(1)).sum(1).mean()
        if s.mcc:
            loss = loss + s.mcc * self.confusion(z[n:])
        if s.vat:
            loss = loss + s.vat * self.divergence(x[:n], step)
        return loss

    def confusion(self, z: Tensor) -> Tensor:
        P = (z / self.s.temperature).softmax(1)
        w = 1 + torch.exp((P * torch.log(P + 1e-5)).sum(1)).detach()
        C = P.T @ torch.diag(len(P) * w / w.sum()) @ P
        C = C / C.sum(1, keepdim=True)
        return (C.sum() - C.trace()) / len(C)

    def divergence(self, x: Tensor, step: int) -> Tensor:
        """KL(h(x) || h(x + r)), r = epsilon times the direction of its gradient near 0."""
        p = self.net(x).softmax(1).detach()
        start = torch.randn(x.shape, generator=dice(0, "vat", step, 0)).to(x)
        d = torch.stack([each / each.norm() for each in start])
        short = ((self.s.xi or 1e-3 * math.sqrt(x[0].numel())) * d).requires_grad_()
        (g,) = torch.autograd.grad((p * (p.log() - self.net(x + short).log_softmax(1))).sum(), short)
        r = torch.stack([self.s.epsilon * each / each.norm() for each in g])
        return (p * (p.log() - self.net(x + r).log_softmax(1))).sum(1).mean()

    def adversarial(self, f: Tensor, z: Tensor, n: int) -> Tensor:
        """What the adversary minimises."""
        s = self.s
        if s.adversary == "none":
            return torch.zeros(())
        if s.adversary == "mdd":
            own, other = z.argmax(1), self.rival(f).softmax(1)
            chosen = other[torch.arange(len(own)), own]
            return -s.margin * chosen[:n].log().mean() - (1 - chosen[n:]).log().mean()
        g = z.softmax(1).detach()
        shown = f
        if s.adversary == "cdan" and s.map_size:
            R_f, R_g = self.matrices.features_matrix, self.matrices.probs_matrix
            shown = torch.stack([(R_f.T @ a) * (R_g.T @ b) for a, b in zip(f, g, strict=True)]) / s.map_size**0.5
        elif s.adversary == "cdan":
            shown = torch.stack([torch.outer(b, a).flatten() for a, b in zip(f, g, strict=True)])
        D = torch.sigmoid(self.rival(shown))
        bce = -torch.cat([D[:n].log(), (1 - D[n:]).log()])
        if s.entropy:
            w = 1 + torch.exp((g * torch.log(g + 1e-5)).sum(1))
            bce = bce * len(w) * w / w.sum()
        return bce.mean()

    def losses(self, x: Tensor, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        f = self.net.features(x)
        z = self.net.head(f)
        return self.task(x, y, z, step), self.adversarial(f, z, len(y))

    # sections 2.3, 2.4, 2.6 and 2.7

    def step(self, x: Tensor, y: Tensor, step: int) -> None:
        s, t = self.s, self.s.trade_off
        reversal = s.high * (2 / (1 + math.exp(-step / 4)) - 1)
        task, adv = self.losses(x, y, step)
        to_task, pull, to_adv = slopes(task, self.theta), slopes(adv, self.theta), slopes(adv, self.phi)
        moved: list[tuple[Any, Tensor]] = []
        if s.smooth in ("sdat", "task", "both"):
            moved += zip(self.theta, scaled(to_task, self.radius(s.rho, self.theta)), strict=True)
        if s.smooth in ("adversary", "both"):
            moved += zip(self.phi, scaled(to_adv, self.radius(s.rho_adversary, self.phi)), strict=True)
        if s.smooth == "all":
            whole = [a - reversal * t * b for a, b in zip(to_task, pull, strict=True)] + [t * b for b in to_adv]
            moved += zip(self.weights, scaled(whole, self.radius(s.rho, self.weights)), strict=True)
        statistics = [b.clone() for b in (*self.net.buffers(), *self.rival.buffers())]
        kept = [p.detach().clone() for p, _ in moved]
        with torch.no_grad():
            for p, e in moved:
                p += e
        task, adv = self.losses(x, y, step)
        into_theta = slopes(task, self.theta)
        if s.adv_at == "perturbed":
            pull, to_adv = slopes(adv, self.theta), slopes(adv, self.phi)
        total = [a - reversal * t * b for a, b in zip(into_theta, pull, strict=True)] + [t * b for b in to_adv]
        with torch.no_grad():
            for (p, _), k in zip(moved, kept, strict=True):
                p.copy_(k)
            for buffer, before in zip((*self.net.buffers(), *self.rival.buffers()), statistics, strict=True):
                buffer.copy_(before)
            self.descend(total, step)

    def radius(self, rho: float, params: Sequence[Tensor]) -> float:
        return rho * length([p.detach() for p in params]) if self.s.rho_relative else rho

    def descend(self, gradients: list[Tensor], step: int) -> None:
        self.count += 1
        players = [self.s.optim] * len(self.theta) + [self.s.optim_d or self.s.optim] * len(self.phi)
        everything = zip(self.weights, gradients, self.first, self.second, players, self.factors, strict=True)
        for p, g, m, v, o, factor in everything:
            lr = o.lr * factor * (1 + self.s.gamma * step) ** -0.75
            if o.name == "adamw":
                p -= lr * o.weight_decay * p
            else:
                g = g + o.weight_decay * p
            if o.name == "sgd":
                m.copy_(o.momentum * m + g)
                p -= lr * (g + o.momentum * m if o.nesterov else m)
                continue
            one, two = o.betas
            m.copy_(one * m + (1 - one) * g)
            v.copy_(two * v + (1 - two) * g**2)
            p -= lr * (m / (1 - one**self.count)) / ((v / (1 - two**self.count)).sqrt() + 1e-8)


def slopes(loss: Tensor, params: list[Any]) -> list[Tensor]:
    if not params or not loss.requires_grad:
        return [torch.zeros_like(p) for p in params]
    found = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)]


def length(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def scaled(gradients: list[Tensor], rho: float) -> list[Tensor]:
    return [rho * g / (length(gradients) + 1e-12) for g in gradients]


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(set="shapes", target="shapes-negative", n_max=12, imbalance=10, augment=[]))


def taken(symbols: Symbols, method: Any, drawn: list[dict[str, Batch]]) -> list[Tensor]:
    """Weights of both players after the steps of the equations."""
    literal = Literal(symbols, method)
    for step, batch in enumerate(drawn, FIRST):
        literal.step(torch.cat([part.x for part in batch.values()]), batch["source"].y, step)
    return [p.detach() for p in literal.weights]


def largest(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


ADAM = Optimiser("adam", lr=0.003, betas=(0.7, 0.9), weight_decay=0.05)
PLAIN = Optimiser(lr=0.05, momentum=0.5, nesterov=False, weight_decay=0.05)
BOTH = {"smooth": "both", "rho": 0.2, "rho_adversary": 0.6}

Case = tuple[dict[str, Any], list[dict[str, Any]]]
CASES: dict[str, Case] = {
    # the adversary, and its gradient reversed; 0: features detached, -1: not reversed
    "source-only": ({"adversary": "none"}, []),
    "dann": ({"adversary": "dann"}, [{"high": 0.0}, {"high": -1.0}]),
    "cdan": ({"adversary": "cdan"}, [{"high": 0.0}, {"high": -1.0}]),
    "mdd": ({"adversary": "mdd", "high": 0.5}, [{"high": 0.0}, {"high": -0.5}, {"high": 1.0}]),
    "mdd-margin": ({"adversary": "mdd", "margin": 1.5}, [{"margin": 4.0}]),
    "entropy": ({"entropy": True}, [{"entropy": False}]),
    "map_size": ({"map_size": 12}, []),
    "map_size-entropy": ({"map_size": 12, "entropy": True}, [{"entropy": False}]),
    "reversal.high": ({"high": 0.3}, [{"high": 1.0}]),
    **{
        f"trade_off-{adversary}": (
            {"adversary": adversary, "trade_off": 0.4, "high": 0.5}, [{"trade_off": 1.0}, {"trade_off": 0.16}]
        )
        for adversary in ("dann", "cdan", "mdd")
    },
    # the rest of the task
    "mcc": ({"mcc": 0.6}, [{"mcc": 0.0}, {"mcc": 1.0}]),
    "mcc-alone": ({"adversary": "none", "mcc": 0.6}, [{"mcc": 0.0}]),
    "temperature": ({"mcc": 1.0, "temperature": 1.2}, [{"temperature": 2.5}, {"temperature": 1.0}]),
    "smoothing": ({"smoothing": 0.2}, [{"smoothing": 0.0}, {"smoothing": 0.18}]),
    "vat": ({"vat": 0.5, "epsilon": 2.0}, [{"vat": 0.0}, {"vat": 1.0}, {"epsilon": 15.0}]),
    "vat-xi": ({"vat": 0.5, "epsilon": 2.0, "xi": 3.0}, [{"xi": None}]),
    # where the gradients are taken
    "sdat": ({"smooth": "sdat", "rho": 0.3}, [{"rho": 0.0}, {"rho": 0.02}]),
    "sdat-dann": ({"smooth": "sdat", "rho": 0.3, "adversary": "dann"}, [{"rho": 0.0}, {"smooth": "all"}]),
    "sdat-mdd": ({"smooth": "sdat", "rho": 0.3, "adversary": "mdd"}, [{"rho": 0.0}, {"high": 0.0}]),
    "sdat-trade_off": (
        {"smooth": "sdat", "rho": 0.3, "trade_off": 0.4}, [{"trade_off": 1.0}, {"trade_off": 0.16}]
    ),
    "sdat-mcc": ({"smooth": "sdat", "rho": 0.3, "mcc": 0.7}, [{"mcc": 0.0}, {"mcc": 1.0}, {"rho": 0.0}]),
    "both-mcc": ({**BOTH, "mcc": 0.7}, [{"mcc": 0.0}, {"smooth": "task"}]),
    "sdat-vat-smoothing": (
        {"smooth": "sdat", "rho": 0.3, "vat": 0.5, "epsilon": 2.0, "smoothing": 0.2}, [{"vat": 0.0}, {"smoothing": 0.0}]
    ),
    "task": ({"smooth": "task", "rho": 0.3}, [{"rho": 0.0}, {"smooth": "all"}]),
    "adversary": (
        {"smooth": "adversary", "rho": 0.2, "rho_adversary": 0.6}, [{"rho_adversary": 0.2}, {"rho_adversary": 0.0}]
    ),
    "both": (BOTH, [{"rho_adversary": 0.2}, {"rho": 0.6}, {"smooth": "task"}, {"smooth": "adversary"}]),
    "all": (
        {"smooth": "all", "rho": 0.3, "rho_adversary": 0.9, "trade_off": 0.4},
        [{"rho": 0.9}, {"smooth": "task"}, {"smooth": "both"}, {"trade_off": 1.0}],
    ),
    "adv_at": ({"smooth": "task", "rho": 0.3, "adv_at": "clean", "trade_off": 0.4}, [
        {"adv_at": "perturbed"}, {"trade_off": 1.0}, {"trade_off": 0.16}
    ]),
    "rho_relative": ({"smooth": "sdat", "rho": 0.05, "rho_relative": True}, [{"rho_relative": False}]),
    "rho_relative-both": (
        {"smooth": "both", "rho": 0.02, "rho_adversary": 0.06, "rho_relative": True},
        [{"rho_relative": False}, {"rho_adversary": 0.02}],
    ),
    # optimisers
    "backbone_factor": ({"backbone_factor": 0.3}, [{"backbone_factor": 1.0}, {"backbone_factor": 0.1}]),
    "optim_d": ({"optim_d": replace(PLAIN, lr=0.2)}, [{"optim_d": None}, {"optim_d": PLAIN}]),
    "sgd": ({"optim": PLAIN}, [
        {"optim": replace(PLAIN, momentum=0.9)}, {"optim": replace(PLAIN, nesterov=True)},
        {"optim": replace(PLAIN, weight_decay=1e-3)},
    ]),
    "nesterov": ({"optim": replace(PLAIN, nesterov=True)}, [{"optim": PLAIN}]),
    **{
        name: ({"optim": replace(ADAM, name=name)}, [
            {"optim": replace(ADAM, name=name, betas=(0.9, 0.9))},
            {"optim": replace(ADAM, name=name, betas=(0.7, 0.999))},
            {"optim": replace(ADAM, name=name, weight_decay=0.0)},
        ])
        for name in ("adam", "adamw")
    },
    "sdat-adam": (
        {"optim": ADAM, "smooth": "sdat", "rho": 0.3}, [{"optim": replace(ADAM, betas=(0.7, 0.999))}, {"rho": 0.0}]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_step_with_the_option_is_the_equations(data: Data, name: str) -> None:
    given, mistakes = CASES[name]
    symbols = Symbols(**given)
    method = symbols.method(data)
    drawn = [
        {key: replace(part, views=tuple(view.to(symbols.type) for view in part.views)) for key, part in batch.items()}
        for batch in batches(method, data, STEPS)
    ]
    expected = taken(symbols, method, drawn)
    wrong = [largest(expected, taken(replace(symbols, **mistake), method, drawn)) for mistake in mistakes]
    before = [p.detach().clone() for p in weights(method)]
    for step, batch in enumerate(drawn, FIRST):
        method.schedule(Progress(step, 2, 20))
        method.update(batch)
    found = largest([p.detach() for p in weights(method)], expected)
    assert found < CLOSE, f"{found:.1e} from the equations; the mistakes: {wrong}"
    assert min(wrong, default=1.0) > APART * max(CLOSE, found), f"a mistake would pass: {wrong}"
    assert largest(before, expected) > 100 * CLOSE


def weights(method: Any) -> list[Any]:
    return [*method.net.parameters(), *(method.adversary.net.parameters() if method.adversary is not None else ())]
