"""Tables and builders that several methods share: the network, the optimiser, the player."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from evenhand.data.sets.catalogue import DATASETS, obtain_weights
from evenhand.methods.protocol import Progress
from evenhand.nets import HeadedNet, HeadKind, build_net
from evenhand.nets.timm import PREFIX, TimmNet
from evenhand.nets.weights import load_weights
from evenhand.pieces import schedules
from evenhand.pieces.perturbed import LPFSGD, PGD
from evenhand.pieces.player import Player, Precision
from evenhand.pieces.sam import SAM, relative_radius
from evenhand.settings import Settings


class Net(Settings):
    """A network by name."""

    name: str = Field("resnet32", description="see evenhand list")
    width: int | None = Field(None, gt=0, description="channels of the first stage; default: the net's own")
    depth: int | None = Field(None, gt=0, description="blocks of a transformer; default: the net's own")
    stem_stride: int | None = Field(None, ge=1, le=2, description="2 halves the resolution at once, for small trials")
    weights: str | None = Field(None, description="to start from: file, or mobilenet_v2; timm: pretrained; '': none")

    def build(self, num_classes: int, channels: int, head: HeadKind = "linear") -> HeadedNet:
        fetched = self.name.startswith(PREFIX) and self.weights == "pretrained"
        net = build_net(
            self.name, num_classes=num_classes, channels=channels, head=head, width=self.width,
            depth=self.depth, stem_stride=self.stem_stride, pretrained=fetched or None,
        )  # fmt: skip
        if self.weights and not fetched:
            known = self.weights in DATASETS and not Path(self.weights).exists()
            file = obtain_weights(self.weights) if known else self.weights
            load_weights(net.backbone if isinstance(net, TimmNet) else net, file, skip_head=True)
        return net


class Optim(Settings):
    """An optimiser, its learning rate over time and, for SAM, its radius over time."""

    name: Literal["sgd", "sam", "pgd", "lpf-sgd", "adamw"] = "sgd"
    lr: float = Field(0.1, gt=0, description="base learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="of SGD")
    nesterov: bool = False
    weight_decay: float = Field(2e-4, ge=0)
    decay_norms: bool = Field(True, description="weight decay on normalisation layers too")
    schedule: Literal["constant", "steps", "cosine", "fixmatch", "inverse"] = Field(
        "steps", description="of the learning rate"
    )
    warmup: int = Field(0, ge=0, description="epochs of linear warm-up")
    milestones: list[float] = Field([0.8, 0.9], description="epochs, or shares of the run when below 1")
    factors: list[float] = Field([1.0, 1e-2, 1e-4], description="learning-rate factor before, between, after")
    rho: float = Field(0.05, ge=0, description="SAM radius")
    rho_relative: bool = Field(False, description="rho is a share of the weight norm (0.01: one per cent)")
    rho_milestones: list[float] = Field([], description="when the radius changes, like milestones")
    rho_values: list[float] = Field([], description="radius before, between and after the rho_milestones")
    rho_last: float | None = Field(None, ge=0, description="linear radius: from rho to rho_last over the run")
    freeze_bn: bool = Field(True, description="SAM's second pass leaves BatchNorm statistics alone")
    sigma: float = Field(1e-4, ge=0, description="PGD noise on the gradient (standard deviation)")
    lpf_gamma: float = Field(1e-3, ge=0, description="LPF-SGD noise relative to the filter norm")
    lpf_parts: int = Field(8, gt=0, description="LPF-SGD perturbations per batch")
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of the averaged weights used for evaluation")
    accumulate: int = Field(1, gt=0, description="parts a batch is computed in, to save memory")
    precision: Precision = Field("float32", description="autocast type: float32, bfloat16, float16")
    channels_last: bool = Field(True, description="memory layout; faster convolutions nearly everywhere")

    @model_validator(mode="after")
    def _lists_fit(self) -> Optim:
        if self.schedule == "steps" and len(self.factors) != len(self.milestones) + 1:
            raise ValueError(f"factors needs {len(self.milestones) + 1} entries for {len(self.milestones)} milestones")
        if self.rho_values and len(self.rho_values) != len(self.rho_milestones) + 1:
            raise ValueError(f"rho_values needs {len(self.rho_milestones) + 1} entries")
        return self

    def player(self, net: nn.Module, *, seed: int, groups: list[dict[str, Any]] | None = None) -> Player:
        """The network under this optimiser; ``groups`` divide its parameters, each with an ``lr_factor``."""
        if self.channels_last:
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return Player(
            net, self._optimizer(net, seed, groups), clip=self.clip, ema=self.ema, precision=self.precision,
            freeze_bn=self.freeze_bn,
        )  # fmt: skip

    def _optimizer(
        self, net: nn.Module, seed: int, groups: list[dict[str, Any]] | None = None
    ) -> torch.optim.Optimizer:
        groups = groups or [{"params": [p for p in net.parameters() if p.requires_grad]}]
        if not self.decay_norms:
            groups = [part for group in groups for part in _norms_apart(net, group)]
        if self.name == "adamw":
            return torch.optim.AdamW(groups, lr=self.lr, weight_decay=self.weight_decay, fused=True)
        base = torch.optim.SGD(
            groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay,
            # A scaler that skips the first fused step leaves uninitialised memory as momentum (torch 2.13).
            fused=self.precision != "float16",
        )  # fmt: skip
        if self.name == "sam":
            return SAM(base, self.rho)
        noise = torch.Generator(next(net.parameters()).device).manual_seed(seed)
        if self.name == "pgd":
            return PGD(base, self.sigma, noise)
        if self.name == "lpf-sgd":
            return LPFSGD(base, self.lpf_gamma, self.lpf_parts, noise)
        return base

    def apply(self, player: Player, at: Progress) -> None:
        """Set learning rate and radius for the step at hand."""
        lr = self.lr * self.factor(at)
        for group in player.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_factor", 1.0)
        if isinstance(player.optimizer, SAM):
            rho = self.radius(at)
            player.optimizer.rho = relative_radius(player.parameters, rho) if self.rho_relative else rho

    def factor(self, at: Progress) -> float:
        """Learning rate over its base value."""
        if at.epoch < self.warmup:
            return schedules.warmup(at.epoch, self.warmup)
        match self.schedule:
            case "steps":
                return schedules.steps(at.epoch, at.epochs, self.milestones, self.factors)
            case "cosine":
                return schedules.cosine(at.epoch, at.epochs)
            case "fixmatch":
                return schedules.fixmatch_cosine(at.fraction)
            case "inverse":
                return schedules.inverse_decay(at.step)
            case "constant":
                return 1.0

    def radius(self, at: Progress) -> float:
        """SAM's radius: constant, stepped or linear."""
        if self.rho_values:
            return schedules.steps(at.epoch, at.epochs, self.rho_milestones, self.rho_values)
        if self.rho_last is not None:
            return schedules.linear(at.fraction, self.rho, self.rho_last)
        return self.rho


def _norms_apart(net: nn.Module, group: dict[str, Any]) -> list[dict[str, Any]]:
    """The group in two: parameters to decay, and those of normalisation layers."""
    norms = [m for m in net.modules() if isinstance(m, (_NormBase, nn.LayerNorm, nn.GroupNorm))]
    spared = {id(p) for module in norms for p in module.parameters(recurse=False)}
    decayed = [p for p in group["params"] if id(p) not in spared]
    kept = [p for p in group["params"] if id(p) in spared]
    parts = [{**group, "params": decayed}, {**group, "params": kept, "weight_decay": 0.0}]
    return [part for part in parts if part["params"]]
