"""The [method] tables of GANs: networks, optimisers, and the terms that papers add to the generator's loss."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from evenhand.data.prepared import Data
from evenhand.errors import UserError
from evenhand.measure.judging import Measure
from evenhand.methods.generate.class_balancing import BalanceSettings, check_balance
from evenhand.methods.generate.gsr import SpectralSettings
from evenhand.nets.biggan import BigGenerator, big_discriminator
from evenhand.nets.gan import DCDiscriminator, DCGenerator, HeadKind, ResDiscriminator, ResGenerator, SkipKind
from evenhand.pieces.gan_losses import Adversarial
from evenhand.pieces.player import Player, Precision
from evenhand.settings import Settings

Condition = Literal["none", "generator", "projection", "acgan"]


class Nets(Settings):
    """A pair of networks by name."""

    name: Literal["sndcgan", "sngan", "biggan"] = Field("sndcgan", description="sngan is spec 01's SNResGAN, too")
    width: int | None = Field(None, gt=0, description="base channels; default 64, biggan 96")
    latent: int | None = Field(None, gt=0, description="size of the noise; default 128, biggan 20 for each part")
    slope: float | None = Field(None, ge=0, description="of leaky ReLUs; default 0.1 for sndcgan, else 0: plain ReLU")
    spectral_generator: bool = Field(False, description="spectral normalisation in the generator, too (biggan: always)")
    skip: SkipKind = Field("raw", description="what residual discriminators add; activated: as the released code does")
    group_normalised: bool = Field(False, description="gSN: class parameters divided by their group spectral norm")

    def build(self, size: int, channels: int, num_classes: int, condition: Condition) -> tuple[nn.Module, nn.Module]:
        head: HeadKind = "none" if condition == "generator" else condition
        given = {"width": self.width, "slope": self.slope}
        common: dict[str, Any] = {"channels": channels} | {k: v for k, v in given.items() if v is not None}
        more = {"latent": self.latent} if self.latent is not None else {}
        if self.name == "biggan":
            if condition == "none" or self.slope is not None:
                raise UserError("net 'biggan' has plain ReLUs and a condition: set condition, leave slope out")
            draws: nn.Module = BigGenerator(
                size=size, num_classes=num_classes, grouped=self.group_normalised, **common, **more
            )
            return draws, big_discriminator(size=size, num_classes=num_classes, head=head, skip=self.skip, **common)
        draws = (DCGenerator if self.name == "sndcgan" else ResGenerator)(
            size=size, num_classes=None if condition == "none" else num_classes, grouped=self.group_normalised,
            spectral_weights=self.spectral_generator, **common, **more,
        )  # fmt: skip
        if self.name == "sndcgan":
            if self.skip != "raw":
                raise UserError("net 'sndcgan' has no residual blocks: leave skip out, or choose sngan or biggan")
            return draws, DCDiscriminator(num_classes=num_classes, head=head, **common)
        return draws, ResDiscriminator(size=size, num_classes=num_classes, head=head, skip=self.skip, **common)


class Adam(Settings):
    """The optimiser of one player."""

    lr: float = Field(2e-4, gt=0)
    beta1: float = Field(0.5, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-6, gt=0)
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    precision: Precision = Field("float32", description="autocast type: float32, bfloat16, float16")

    def player(self, net: nn.Module, ema: float | None = None, *, ema_warm: bool = False, pace: float = 1.0) -> Player:
        """pace q: steps of lr q with betas^q, so that 1 / q of them go as far as one."""
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        betas = self.beta1**pace, self.beta2**pace
        adam = torch.optim.Adam(net.parameters(), self.lr * pace, betas, self.eps, fused=True)
        return Player(net, adam, clip=self.clip, ema=ema, ema_warm=ema_warm, precision=self.precision)


class GANTable(Settings):
    """What all GANs have in common; terms stack."""

    batch: int = Field(64, gt=0, description="real images of a discriminator step, over all processes")
    net: Nets = Nets()
    condition: Condition = Field("none", description="who knows the class: nobody, the generator alone, or both")
    loss: Adversarial = "hinge"
    optim_g: Adam = Adam()
    optim_d: Adam = Adam()
    d_steps: int = Field(1, gt=0, description="discriminator steps before each generator step")
    ema: float = Field(0.9999, ge=0, lt=1, description="decay of the averaged generator, which draws; 0: none")
    ema_start: int = Field(1000, ge=0, description="step from which on it averages; before, it follows")
    ema_warm: bool = Field(True, description="at most (1 + t) / (10 + t) at step t; false: the papers' form")
    diffaugment: list[Literal["colour", "translation", "cutout"]] = Field([], description="of all that is judged")
    lecam: float = Field(0.0, ge=0, description="weight of LeCam regularisation; 0: off")
    lecam_start: int = Field(1000, ge=0, description="discriminator steps before it")
    r1: float = Field(0.0, ge=0, description="weight of the R1 gradient penalty; 0: off")
    r1_every: int = Field(16, gt=0, description="steps between R1 penalties, which count so much more")
    balance: BalanceSettings | None = Field(None, description="table: a classifier asks for classes drawn too rarely")
    gsr: SpectralSettings | None = Field(None, description="table: a brake on the parameters of each class")
    measure: Measure = Measure()

    @model_validator(mode="after")
    def _conditional(self) -> GANTable:
        asked = self.balance and (self.balance.rule == "classify" or self.balance.labels == "inverse")
        if self.condition == "none" and (asked or (self.gsr and self.gsr.strength)):
            what = "gSR acts on class parameters" if not asked else "this balance asks the generator for classes"
            raise ValueError(f"{what}: set condition to generator, projection or acgan")
        return self


class GANSettings(GANTable):
    """[method] of a plain GAN; with ``net.group_normalised`` it is gSN, a baseline of gSR."""

    name: Literal["gan"] = "gan"


class ClassBalancingSettings(GANTable):
    """[method] of the class-balancing GAN as in the paper; the classifier is named in [needs] as ``classifier``."""

    name: Literal["class-balancing-gan"] = "class-balancing-gan"
    loss: Adversarial = "relativistic"
    ema_start: int = Field(20_000, ge=0, description="step from which on it averages; before, it follows")
    balance: BalanceSettings = BalanceSettings()


class GSRSettings(GANTable):
    """[method] of gSR as in the paper."""

    name: Literal["gsr-gan"] = "gsr-gan"
    net: Nets = Nets(name="sngan")
    condition: Condition = Field("projection", description="who knows the class: the generator alone, or both")
    gsr: SpectralSettings = SpectralSettings()


def check_gan(settings: GANTable, data: Data, given: Collection[str]) -> None:
    """Refuse what cannot work, before what is ``given`` in [needs] is trained for it."""
    check_drawing(settings, data, given)
    with torch.device("meta"):
        settings.net.build(data.facts.size[0], data.inputs, len(data.classes), settings.condition)


def check_drawing(settings: Any, data: Data, given: Collection[str]) -> None:
    """What holds for any network."""
    size = data.facts.size
    if data.facts.kind != "images":
        raise UserError("generators draw images, but the samples are texts or vectors; choose another data.set")
    if size[0] != size[1]:
        raise UserError(f"images are {size[0]} x {size[1]}, generators draw squares: crop them, or set data.size")
    if settings.measure.features == "annotator" and "annotator" not in given:
        raise UserError(
            "a generator is judged by an annotator: set needs.annotator to a classifier's recipe or run, "
            "or method.measure.features = 'inception' or 'mobilenet_v2'"
        )
    if settings.balance:
        check_balance(settings.balance, data.counts, settings.batch, classified="classifier" in given)
    elif "classifier" in given:
        raise UserError("needs.classifier is for the balance term: add [method.balance], or leave it out")
