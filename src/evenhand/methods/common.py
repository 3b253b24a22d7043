"""Tables and builders that several methods share: the network, the optimiser, the player."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from evenhand.data.sets.catalogue import obtain_weights
from evenhand.errors import UserError, did_you_mean
from evenhand.methods.protocol import Progress
from evenhand.nets import NETS, PRETRAINED, TIMM, HeadedNet, HeadKind, build_net
from evenhand.nets.vit import LayerScale
from evenhand.nets.weights import load_backbone
from evenhand.pieces import schedules
from evenhand.pieces.perturbed import LPFSGD, PGD
from evenhand.pieces.player import Player, Precision
from evenhand.pieces.sam import SAM, relative_radius
from evenhand.settings import Settings
from evenhand.tokens import HF

Schedule = Literal["constant", "steps", "cosine", "fixmatch", "inverse", "inverse-progress"]
Spared = Literal["norms", "biases", "tokens", "positions"]
WEIGHTS = f"to start from: file, or {', '.join(PRETRAINED)}; timm: pretrained; '': none"
FEW = 3  # epochs below which a cosine by whole epochs would hardly fall
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, LayerScale)


class Started(Settings, ABC):
    """A table of networks that may start from a file of weights."""

    @abstractmethod
    def as_trained(self) -> Self:
        """The same networks without the weights they started from: a run has its own, and those may be gone."""


class Net(Started):
    """A network by name."""

    name: str = Field("resnet32", description="see evenhand list nets")
    width: int | None = Field(None, gt=0, description="channels of the first stage; default: the net's own")
    depth: int | None = Field(None, gt=0, description="blocks of a transformer; default: the net's own")
    heads: int | None = Field(None, gt=0, description="of a vision transformer's attention; default: the net's own")
    patch: int | None = Field(None, gt=0, description="side of its patches in pixels; default: the net's own")
    size: int | None = Field(None, gt=0, description="side of the images its positions are learned for")
    drop_path: float | None = Field(None, ge=0, lt=1, description="share of samples that skip its last block")
    layer_scale: float | None = Field(None, gt=0, description="start of factors on what its blocks add; default: none")
    stem_stride: int | None = Field(None, ge=1, le=2, description="2 halves the resolution at once, for small trials")
    weights: str | None = Field(None, description=WEIGHTS)

    def check(self) -> None:
        """Refuse a network or weights that do not exist, before anything is read or built."""
        if not self.name.startswith((HF, TIMM)) and self.name not in NETS:
            raise UserError(f"net '{self.name}' is unknown; {did_you_mean(self.name, NETS)}")
        if not self.weights or Path(self.weights).is_file():
            return
        known = [*PRETRAINED, *["pretrained"] * self.name.startswith(TIMM)]
        if self.weights not in known:
            there = f"there are: {', '.join(known)}"
            raise UserError(f"net.weights = '{self.weights}' is neither a file nor weights we know; {there}")
        if self.weights in PRETRAINED and self.name not in (self.weights, PRETRAINED[self.weights]):
            raise UserError(f"net.weights = '{self.weights}' are of that net: set net.name to it, not '{self.name}'")

    def variant(self) -> str:
        """The network to build: weights fetched by name may be of a published variant, which is built then."""
        if self.weights and self.weights in PRETRAINED and not Path(self.weights).is_file():
            return PRETRAINED[self.weights]
        return self.name

    def as_trained(self) -> Self:
        return self.model_copy(update={"name": self.variant(), "weights": None})

    def build(self, num_classes: int, inputs: int, head: HeadKind = "linear", *, distilled: bool = False) -> HeadedNet:
        """``inputs``: image channels, length of vectors, or words; ``distilled``: a vision transformer of two heads."""
        self.check()
        fetched = self.name.startswith(TIMM) and self.weights == "pretrained"
        net = build_net(
            self.variant(), num_classes=num_classes, inputs=inputs, head=head, width=self.width, depth=self.depth,
            heads=self.heads, patch=self.patch, size=self.size, drop_path=self.drop_path,
            layer_scale=self.layer_scale, distilled=distilled or None, stem_stride=self.stem_stride,
            pretrained=fetched or None,
        )  # fmt: skip
        if self.weights and not fetched:
            file = self.weights if Path(self.weights).is_file() else obtain_weights(self.weights)
            load_backbone(net, file)
        return net


class Optim(Settings):
    """An optimiser, its learning rate over time and, for SAM, its radius over time."""

    name: Literal["sgd", "sam", "pgd", "lpf-sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.1, gt=0, description="base learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="of SGD")
    nesterov: bool = False
    betas: list[float] = Field([0.9, 0.999], min_length=2, max_length=2, description="of Adam's two running means")
    eps: float = Field(1e-8, gt=0, description="of Adam, added to the root it divides by")
    weight_decay: float = Field(2e-4, ge=0)
    no_decay: list[Spared] = Field([], description="spared by weight decay: norms, biases, tokens, positions")
    schedule: Schedule = Field("steps", description="of the learning rate")
    schedule_by: Literal["epoch", "step"] = Field(
        "epoch", description="when warm-up and cosine move; cosine in less than 3 epochs: by step"
    )
    warmup: int = Field(0, ge=0, description="epochs of linear warm-up")
    warmup_lr: float = Field(0.0, ge=0, description="learning rate that warm-up rises from")
    min_lr: float = Field(0.0, ge=0, description="learning rate that cosine ends at")
    inverse_alpha: float | None = Field(
        None, gt=0, description="inverse: (1 + alpha t)^-power, default 0.001 by step, 10 by progress"
    )
    inverse_power: float = Field(0.75, gt=0, description="and its power")
    milestones: list[float] = Field([0.8, 0.9], description="epochs, or shares of the run when below 1")
    factors: list[float] = Field([1.0, 1e-2, 1e-4], description="learning-rate factor before, between, after")
    rho: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        0.05, description="SAM radius; auto (classifier): the largest that validation bears"
    )
    rho_relative: bool = Field(False, description="rho is a share of the weight norm (0.01: one per cent)")
    rho_milestones: list[float] = Field([], description="when the radius changes, like milestones")
    rho_values: list[float] = Field([], description="radius before, between and after the rho_milestones")
    rho_last: float | None = Field(None, ge=0, description="linear radius: from rho to rho_last over the run")
    freeze_bn: bool = Field(True, description="SAM's second pass leaves BatchNorm statistics alone")
    sigma: float = Field(1e-4, ge=0, description="PGD noise on the gradient (standard deviation)")
    lpf_gamma: float = Field(1e-3, ge=0, description="LPF-SGD noise relative to the filter norm")
    lpf_parts: int = Field(8, gt=0, description="LPF-SGD perturbations per batch")
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    clip_apart: bool = Field(False, description="each part of the network by its own norm, not all by one")
    ema: float | None = Field(
        None, ge=0, lt=1, description="decay of the averaged weights used for evaluation; 0: none"
    )
    ema_warm: bool = Field(True, description="at most (1 + t) / (10 + t) at step t; false: the papers' form")
    accumulate: int = Field(1, gt=0, description="parts a batch is computed in, to save memory")
    precision: Precision = Field("float32", description="autocast type: float32, bfloat16, float16")
    channels_last: bool = Field(True, description="memory layout; faster convolutions nearly everywhere")

    @model_validator(mode="after")
    def _lists_fit(self) -> Optim:
        if self.schedule == "steps" and len(self.factors) != len(self.milestones) + 1:
            raise ValueError(f"factors needs {len(self.milestones) + 1} entries for {len(self.milestones)} milestones")
        if self.rho_values and len(self.rho_values) != len(self.rho_milestones) + 1:
            raise ValueError(f"rho_values needs {len(self.rho_milestones) + 1} entries")
        if self.rho == "auto" and (self.rho_values or self.rho_last is not None):
            raise ValueError("rho = 'auto' finds one radius for the whole run: leave out rho_values and rho_last")
        if max(self.warmup_lr, self.min_lr) > self.lr:
            raise ValueError(f"warmup_lr = {self.warmup_lr} and min_lr = {self.min_lr} must not exceed lr = {self.lr}")
        return self

    def player(self, net: nn.Module, *, seed: int, groups: list[dict[str, Any]] | None = None) -> Player:
        """The network under this optimiser; ``groups`` divide its parameters, each with an ``lr_factor``."""
        if self.channels_last:
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return Player(
            net, self._optimizer(net, seed, groups), clip=self.clip, clip_apart=self.clip_apart, ema=self.ema or None,
            ema_warm=self.ema_warm, precision=self.precision, freeze_bn=self.freeze_bn,
        )  # fmt: skip

    def _optimizer(
        self, net: nn.Module, seed: int, groups: list[dict[str, Any]] | None = None
    ) -> torch.optim.Optimizer:
        groups = groups or [{"params": [p for p in net.parameters() if p.requires_grad]}]
        groups = [{"part": i, **group} for i, group in enumerate(groups)]  # what clip_apart keeps apart
        if self.no_decay:
            groups = [half for group in groups for half in _divided(group, _spared(net, self.no_decay))]
        if self.name in ("adam", "adamw"):
            kind = torch.optim.AdamW if self.name == "adamw" else torch.optim.Adam
            how: Any = {"betas": tuple(self.betas), "eps": self.eps, "fused": True}
            return kind(groups, lr=self.lr, weight_decay=self.weight_decay, **how)
        base = torch.optim.SGD(
            groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay,
            # A scaler that skips the first fused step leaves uninitialised memory as momentum (torch 2.13).
            fused=self.precision != "float16",
        )  # fmt: skip
        if self.name == "sam":
            return SAM(base, 0.0 if self.rho == "auto" else self.rho)
        noise = torch.Generator(next(net.parameters()).device).manual_seed(seed)
        if self.name == "pgd":
            return PGD(base, self.sigma, noise)
        if self.name == "lpf-sgd":
            return LPFSGD(base, self.lpf_gamma, self.lpf_parts, noise)
        return base

    def apply(self, player: Player, at: Progress, found: float | None = None) -> None:
        """Set learning rate and radius for the step at hand; ``found`` is the radius that ``auto`` has found."""
        lr = self.lr * self.factor(at)
        for group in player.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_factor", 1.0)
        if isinstance(player.optimizer, SAM):
            rho = self.radius(at, found)
            player.optimizer.rho = relative_radius(player.parameters, rho) if self.rho_relative else rho

    @property
    def times(self) -> dict[str, list[float]]:
        """When its learning rate and radius change, by key."""
        radius = self.rho_milestones if self.name == "sam" and self.rho_values else []
        return {
            "method.optim.milestones": self.milestones if self.schedule == "steps" else [],
            "method.optim.rho_milestones": radius,
        }

    def factor(self, at: Progress) -> float:
        """Learning rate over its base value."""
        by_step, start = self.schedule_by == "step", self.warmup_lr / self.lr
        epoch = at.time if by_step else at.epoch
        if epoch < self.warmup:
            if by_step:
                return schedules.smooth_warmup(epoch, self.warmup, start)
            return schedules.warmup(at.epoch, self.warmup, start)
        match self.schedule:
            case "steps":
                return schedules.steps(at.time, at.epochs, self.milestones, self.factors)
            case "cosine":  # counts from the start of the run: warm-up covers its first part
                return schedules.cosine(at.time if at.epochs < FEW else epoch, at.epochs, self.min_lr / self.lr)
            case "fixmatch":
                return schedules.fixmatch_cosine(at.fraction)
            case "inverse":
                return schedules.inverse_decay(at.step, self.inverse_alpha or 1e-3, self.inverse_power)
            case "inverse-progress":
                return schedules.inverse_decay(at.fraction, self.inverse_alpha or 10.0, self.inverse_power)
            case "constant":
                return 1.0

    def radius(self, at: Progress, found: float | None = None) -> float:
        """SAM's radius: constant, stepped or linear, or the one ``found``."""
        if self.rho == "auto":
            if found is None:
                raise ValueError("rho = 'auto' is searched by the classifier alone: give a number")
            return found
        if self.rho_values:
            return schedules.steps(at.time, at.epochs, self.rho_milestones, self.rho_values)
        if self.rho_last is not None:
            return schedules.linear(at.fraction, self.rho, self.rho_last)
        return self.rho


def warn_of_late(at: Progress, times: Mapping[str, Sequence[float]]) -> None:
    """At the first step, of times in epochs at which a run cut short has ended: nothing ever changes there."""
    if at.step:
        return
    beyond = {key: [f"{when:g}" for when in whens if when >= max(1.0, at.epochs)] for key, whens in times.items()}
    late = [f"{key} = {', '.join(whens)}" for key, whens in beyond.items() if whens]
    if late:
        warnings.warn(
            f"the run ends after {at.epochs:g} epochs, before {', '.join(late)}, which will change nothing: shares of "
            "the run, below 1, follow its length",
            stacklevel=3,
        )


def _spared(net: nn.Module, kinds: Sequence[Spared]) -> set[nn.Parameter]:
    """The parameters of these kinds."""
    found = set()
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            traits: dict[Spared, bool] = {
                "norms": isinstance(module, NORMS),
                "biases": name.endswith("bias"),
                "tokens": name.endswith("_token"),
                "positions": name in ("pos_embed", "positions"),
            }
            if any(traits[kind] for kind in kinds):
                found.add(parameter)
    return found


def _divided(group: dict[str, Any], spared: set[nn.Parameter]) -> list[dict[str, Any]]:
    """The group in two: parameters to decay, and the others."""
    decayed, kept = ([p for p in group["params"] if (p in spared) == which] for which in (False, True))
    halves = [{**group, "params": decayed}, {**group, "params": kept, "weight_decay": 0.0}]
    return [half for half in halves if half["params"]]
