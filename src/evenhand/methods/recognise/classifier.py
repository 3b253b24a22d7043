"""Long-tailed recognition with re-weighted losses and flat minima (spec 04).

Re-weighting and margins drive the loss of rare classes to zero, but at points where the Hessian of that loss still
has large negative eigenvalues: saddles, which generalise badly. Sharpness-aware minimisation with a radius about ten
times the usual one keeps training away from them. So any loss here runs under any optimiser here; the paper's
method is ``loss`` in {ce, ldam, vs}, ``weighting = "drw"`` (none for vs) and ``optim.name = "sam"``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.samplers import repeated, sample_weights
from evenhand.data.stream import Streams, needed
from evenhand.errors import UserError
from evenhand.measure.classification import evaluate
from evenhand.methods.common import Net, Optim, warn_of_late
from evenhand.methods.probing import Auto, search_rho
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.nets import HeadKind
from evenhand.pieces import losses
from evenhand.pieces.mixing import mixup
from evenhand.pieces.norms import global_norm
from evenhand.pieces.perturbed import LPFSGD
from evenhand.pieces.player import Player
from evenhand.pieces.sam import SAM, relative_radius
from evenhand.pieces.schedules import milestone
from evenhand.randomness import dice
from evenhand.settings import Settings

Sampling = Literal["instance", "square-root", "class-balanced", "effective-number"]


class ClassifierSettings(Settings):
    """[method] of a long-tail classifier."""

    name: Literal["classifier"] = "classifier"
    batch: int = Field(128, gt=0, description="images per step, over all processes")
    net: Net = Net()
    optim: Optim = Optim()
    auto: Auto = Auto()
    loss: Literal["ce", "focal", "ldam", "vs", "la", "ib"] = "ce"
    weighting: Literal["none", "drw", "always"] = Field("none", description="by class: never, late, always")
    drw_start: float = Field(0.8, ge=0, description="epoch at which drw begins, or share of the run when below 1")
    beta: float = Field(0.9999, ge=0, lt=1, description="of the effective number of samples")
    sampling: Sampling = Field("instance", description="how often a class is drawn")
    repeats: int | None = Field(None, gt=0, description="views of an image in a batch, with sampling instance")
    mixup: float = Field(0.0, ge=0, description="Beta(a, a) mixing of images and labels, with loss ce; 0: off")
    max_margin: float = Field(0.5, gt=0, description="of ldam")
    scale: float = Field(30.0, gt=0, description="of ldam's cosine logits")
    vs_gamma: float = Field(0.05, ge=0)
    vs_tau: float = Field(0.75, ge=0)
    la_tau: float = Field(1.0, ge=0)
    focal_gamma: float = Field(1.0, ge=0)
    ib_start: float = Field(0.5, ge=0, description="epoch at which ib replaces ce, or share of the run when below 1")
    ib_scale: float = Field(1000.0, gt=0)

    @model_validator(mode="after")
    def _combinable(self) -> ClassifierSettings:
        if self.mixup and self.loss != "ce":
            raise ValueError(f"mixup needs loss = 'ce', got '{self.loss}': set mixup = 0")
        if self.repeats is not None and self.sampling != "instance":
            raise ValueError(f"repeats needs sampling = 'instance', got '{self.sampling}': leave out repeats")
        return self


class LongTailClassifier(Recogniser):
    """One network, one optimiser, one weighted loss."""

    table = ClassifierSettings
    player: Player

    def __init__(self, settings: ClassifierSettings, data: Data, *, seed: int, device: torch.device) -> None:
        self.settings, self.data, self.seed = settings, data, seed
        head: HeadKind = "cosine" if settings.loss == "ldam" else "linear"
        self.net = settings.net.build(len(data.classes), data.inputs, head).to(device)
        self.player = settings.optim.player(self.net, seed=seed)
        self.counts = torch.tensor(data.counts, dtype=torch.float32, device=device)  # (K,)
        self.priors = self.counts / self.counts.sum()
        self.weights = torch.ones_like(self.counts)
        self.influence = False
        self.rho: float | None = None  # what optim.rho = "auto" has found
        self.logit_scale = settings.scale if settings.loss == "ldam" else 1.0  # of cosine logits
        self.chance = dice(seed)

    @staticmethod
    def check(settings: ClassifierSettings, data: Data, given: Collection[str]) -> None:  # noqa: ARG004
        _need_validation(settings.optim, data.streams)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        s = self.settings
        _need_validation(s.optim, streams)
        labels = needed(streams, "labelled").labels
        assert labels is not None
        weights = sampling_weights(s.sampling, labels, self.data.counts, s.beta)
        picks = None if s.repeats is None else repeated(len(labels), s.batch, self.seed, s.repeats)
        return {"labelled": Feed("labelled", s.batch, (self.data.train_view,), weights, picks)}

    def refresh(self, at: Progress, streams: Streams) -> None:
        if self.rho is None and _searched(self.settings.optim):
            self.rho = find_rho(self, at, streams)

    def schedule(self, at: Progress) -> None:
        s = self.settings
        drw, ib = [s.drw_start] * (s.weighting == "drw"), [s.ib_start] * (s.loss == "ib")
        warn_of_late(at, {"method.drw_start": drw, "method.ib_start": ib} | s.optim.times)
        s.optim.apply(self.player, at, self.rho)
        if s.weighting != "none":
            start = 0 if s.weighting == "always" else milestone(s.drw_start, at.epochs)
            self.weights = losses.deferred_weights(self.counts, at.time, start, s.beta)
        self.chance = dice(self.seed, "mixup", at.step, parallel.rank())
        self.influence = s.loss == "ib" and at.time >= milestone(s.ib_start, at.epochs)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        x, target = batch["labelled"].x, batch["labelled"].y
        if self.settings.mixup:
            x, target = mixup(x, target, self.settings.mixup, self.chance, len(self.counts))
        self.net.train()
        said = {} if self.rho is None else {"rho": torch.tensor(self.rho)}
        optimizer, parts = self.player.optimizer, self.settings.optim.accumulate
        if isinstance(optimizer, LPFSGD):
            loss = self._gradient(x, target, optimizer.parts, optimizer.perturbed)
        else:
            loss = self._gradient(x, target, parts)
        if isinstance(optimizer, SAM):
            with self.player.ascent() as length:
                self._gradient(x, target, parts)
            said |= {"gradient_norm": length, "weight_norm": global_norm(p.detach() for p in self.player.parameters)}
        self.player.step()
        return {"loss": loss, **said}

    def _gradient(
        self, x: Tensor, target: Tensor, parts: int, around: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> Tensor:
        """Add the gradient of the joint weighted mean, part by part, each inside ``around()``."""
        mass = self._mass(target)
        joint = parallel.mean(mass.sum())
        loss = torch.zeros((), device=x.device)
        for i in range(min(parts, len(x))):
            mine = slice(i, None, parts)  # strided, so that several processes share a part as one would
            with around():
                with self.player.autocast():
                    part = self._loss(x[mine], target[mine]) * (mass[mine].sum() / joint)
                self.player.backward(part, last=i == min(parts, len(x)) - 1)
            loss += part.detach()
        return loss

    def _mass(self, target: Tensor) -> Tensor:
        """What each sample weighs in the mean: focal and influence-balanced losses divide by the batch size."""
        if self.settings.loss == "focal" or self.influence:
            return torch.ones(len(target), device=target.device)
        return target @ self.weights if target.is_floating_point() else self.weights[target]

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        s = self.settings
        features = self.net.features(x)  # (N, d)
        logits = self.net.head(features)  # (N, K)
        if self.influence:
            return losses.influence_balanced_loss(logits, target, features, self.counts, scale=s.ib_scale)
        match s.loss:
            case "ldam":
                return losses.ldam_loss(
                    logits, target, self.counts, max_margin=s.max_margin, scale=s.scale, weight=self.weights
                )
            case "vs":
                return losses.vs_loss(logits, target, self.counts, gamma=s.vs_gamma, tau=s.vs_tau, weight=self.weights)
            case "la":
                return losses.logit_adjusted_loss(logits, target, self.priors, tau=s.la_tau, weight=self.weights)
            case "focal":
                return losses.focal_loss(logits, target, gamma=s.focal_gamma, weight=self.weights)
        if target.is_floating_point():
            terms = -(target * self.weights * logits.float().log_softmax(1)).sum(1)  # (N,)
            return terms.sum() / self._mass(target).sum()
        return cross_entropy(logits.float(), target, self.weights)

    def state(self) -> dict[str, Any]:
        return {**self.player.state(), "rho": self.rho}

    def load_state(self, state: dict[str, Any]) -> None:
        self.player.load_state(state)
        self.rho = state.get("rho")  # runs older than the search have none


def _searched(optim: Optim) -> bool:
    return optim.name == "sam" and optim.rho == "auto"


def _need_validation(optim: Optim, streams: Streams) -> None:
    if _searched(optim) and "val" not in streams:
        raise UserError("optim.rho = 'auto' needs a validation split: set data.val_share = 0.1, or give a radius")


def find_rho(method: LongTailClassifier, at: Progress, streams: Streams) -> float:
    """The largest radius that validation's mean recall bears after the whole run's schedule in ``auto.steps`` steps.

    A share of the weight norm with ``rho_relative``, else a length.
    """
    s, total = method.settings, at.total_steps
    auto = s.auto.model_copy(update={"steps": min(s.auto.steps, total)})
    unit = 1.0 if s.optim.rho_relative else float(relative_radius(method.player.parameters, 1.0))

    def probe(rho: float, seed: int) -> LongTailClassifier:
        tree = s.model_copy(update={"optim": s.optim.model_copy(update={"rho": rho})})
        return LongTailClassifier(tree, method.data, seed=seed, device=method.player.device)

    def recall(one: Recogniser) -> float:
        return evaluate(one.predict, streams["val"]).scalars()["mean_recall"]

    def clock(step: int) -> Progress:
        return Progress(step * total // auto.steps, at.steps_per_epoch, total)

    classes = sum(count > 0 for count in needed(streams, "val").counts)
    return search_rho(method, auto, probe, recall, streams, clock, unit, 1 / classes)


def sampling_weights(rule: Sampling, labels: Tensor, counts: list[int], beta: float) -> Tensor | None:
    """How likely each sample is drawn; None draws every sample once an epoch."""
    if rule == "instance":
        return None
    if rule == "effective-number":
        return losses.class_balanced_weights(counts, beta)[labels]
    return sample_weights(labels, len(counts), {"square-root": 0.5, "class-balanced": 1.0}[rule])
