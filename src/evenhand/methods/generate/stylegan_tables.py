"""The [method] tables of StyleGAN2 and NoisyTwins, with the papers' defaults, and what cannot work with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.prepared import Data
from evenhand.errors import UserError
from evenhand.measure.judging import Measure
from evenhand.methods.common import Started
from evenhand.methods.generate.gsr import SpectralSettings
from evenhand.methods.generate.tables import Adam, check_drawing
from evenhand.nets.stylegan2 import Discriminator, Generator
from evenhand.nets.weights import load_weights
from evenhand.pieces.ada import ADA
from evenhand.pieces.class_contrast import conditional_contrast_loss, d2d_ce_loss
from evenhand.pieces.gan_losses import Adversarial
from evenhand.pieces.player import Player
from evenhand.pieces.twin_losses import simclr_loss, vicreg_loss
from evenhand.pieces.twins import EmbeddingNoise, noise_scale, twins_loss
from evenhand.settings import Settings


class StyleNets(Started):
    """StyleGAN2's pair of networks."""

    base: int = Field(16384, gt=0, description="channels at a side are base / side ...")
    widest: int = Field(512, gt=0, description="... and at most this many")
    latent: int = Field(512, gt=0, description="size of the noise z")
    style: int = Field(512, gt=0, description="size of the styles w and of the generator's class embedding")
    mapping_layers: int = Field(8, gt=0, description="of the generator's mapping network; the discriminator's has 8")
    residual: bool = Field(True, description="linear ways beside the discriminator's blocks; false: 'orig'")
    group: int = Field(8, gt=0, description="images in a minibatch standard deviation, within a process; 1: off")
    noise: Literal["random", "none"] = Field("random", description="of training, added to the synthesis layers")
    weights_g: str = Field("", description="file the generator starts from: names as in stylegan2-ada-pytorch")
    weights_d: str = Field("", description="file the discriminator starts from; '': none")

    def build(
        self, draws: Callable[..., nn.Module], tells: Callable[..., nn.Module], size: int, channels: int, classes: int
    ) -> tuple[nn.Module, nn.Module]:
        """The pair of these kinds; ``classes`` 0: unconditional."""
        of_both = {"base": self.base, "widest": self.widest}
        of_g = {"latent": self.latent, "style": self.style, "mapping_layers": self.mapping_layers}
        of_d = {"group": self.group, "residual": self.residual}
        pair = draws(size, channels, classes, **of_both, **of_g), tells(size, channels, classes, **of_both, **of_d)
        for key, net in zip(("weights_g", "weights_d"), pair, strict=True):
            if file := getattr(self, key):
                try:
                    load_weights(net, file)
                except UserError as error:
                    raise UserError(f"method.net.{key}: {error}") from error
        return pair

    def as_trained(self) -> Self:
        return self.model_copy(update={"weights_g": "", "weights_d": ""})


class LazyAdam(Adam):
    """The optimiser of one player, before it is rescaled for the steps that its regulariser takes in between."""

    lr: float = Field(2.5e-3, gt=0)
    beta1: float = Field(0.0, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)

    def lazy_player(self, net: nn.Module, every: int, ema: float | None = None) -> Player:
        """lr q and betas^q with ``q = every / (every + 1)``: as far in ``every + 1`` steps as else in ``every``."""
        return self.player(net, ema, pace=every / (every + 1))


class TwinsSettings(Settings):
    """[method.twins]: NoisyTwins on StyleGAN2."""

    sigma: float = Field(0.75, ge=0, description="mean std of the noise on class embeddings; 0: twins alone")
    alpha: float = Field(0.99, ge=0, lt=1, description="of the effective number: rare classes get more; 0: all alike")
    strength: float = Field(0.01, ge=0, description="weight of the twins' loss; 0: noise alone, and no twins")
    kind: Literal["barlow", "vicreg", "simclr"] = Field("barlow", description="the paper's loss, or in its place")
    off_diagonal: float = Field(0.05, ge=0, description="barlow: weight of correlations between dimensions of w")
    temperature: float = Field(0.5, gt=0, description="simclr: of the cosines")
    start: int = Field(0, ge=0, description="step from which on the loss counts; twins are drawn from the first")

    def noises(self, nets: Sequence[Any], counts: Sequence[int]) -> list[EmbeddingNoise]:
        """Of the players' class embeddings, if there is noise; whoever trains gives each a generator at every step."""
        scale = noise_scale(counts, self.sigma, self.alpha)
        return [EmbeddingNoise(net.mapping.embed, scale, torch.Generator()) for net in nets] if self.sigma else []

    def loss(self, first: Tensor, second: Tensor) -> Tensor:
        """Of the twins' styles (N, d)."""
        match self.kind:
            case "barlow":
                return twins_loss(first, second, off_diagonal=self.off_diagonal)
            case "vicreg":
                return vicreg_loss(first, second)
            case "simclr":
                return simclr_loss(first, second, temperature=self.temperature)


class ContrastSettings(Settings):
    """[method.contrast]: of the conditions d2d-ce and 2c, with ReACGAN's values."""

    strength: float = Field(0.25, gt=0, description="weight of the loss: on reals for the critic, on fakes for G")
    size: int = Field(512, gt=0, description="of the features that are compared")
    margin: float = Field(0.98, ge=0, le=1, description="d2d-ce: cosine from which on a class is near enough")
    temperature: float = Field(0.25, gt=0, description="of the cosines")

    def loss(self, condition: str, features: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
        if condition == "2c":
            return conditional_contrast_loss(features, proxies, labels, temperature=self.temperature)
        return d2d_ce_loss(features, proxies, labels, margin=self.margin, temperature=self.temperature)


class ADASettings(Settings):
    """[method.ada]: adaptive augmentation of all that is judged."""

    target: float = Field(0.6, ge=-1, le=1, description="mean sign of real images' scores that is aimed at")
    kimg: float = Field(500.0, ge=0, description="thousand images in which it can go from 0 to 1; 0: it stays at p")
    every: int = Field(4, gt=0, description="steps between adjustments")
    p: float = Field(0.0, ge=0, le=1, description="the probability to begin with; with kimg = 0 no ADA at 0")

    def build(self) -> ADA | None:
        return ADA(self.target, self.kimg, self.p) if self.kimg or self.p else None


class StyleTable(Settings):
    """What StyleGAN2 has with and without NoisyTwins."""

    loss: ClassVar[Adversarial] = "non-saturating"
    d_steps: ClassVar[int] = 1
    balance: ClassVar[None] = None

    batch: int = Field(128, gt=0, description="images of a step of either player, over all processes")
    net: StyleNets = StyleNets()
    condition: Literal["none", "projection", "d2d-ce", "2c"] = Field(
        "projection", description="how the critic knows classes: not at all, by projection, or by contrast of features"
    )
    contrast: ContrastSettings = ContrastSettings()
    pad: bool = Field(False, description="black frame up to the next power of two, cropped from what is drawn")
    optim_g: LazyAdam = LazyAdam()
    optim_d: LazyAdam = LazyAdam()
    mixing: float = Field(0.9, ge=0, le=1, description="chance that a batch's later layers get other styles")
    r1: float = Field(0.01, ge=0, description="weight of the R1 gradient penalty; 0: off")
    r1_every: int = Field(16, gt=0, description="steps between R1 steps, which count so much more")
    path: float = Field(2.0, ge=0, description="weight of path-length regularisation; 0: off, 4: as NoisyTwins ran it")
    path_every: int = Field(4, gt=0, description="steps between path-length steps, which count so much more")
    path_start: int = Field(0, ge=0, description="step from which on it is taken")
    ema_kimg: float = Field(20.0, ge=0, description="thousand images in which the averaged generator forgets half")
    ema_rampup: float = Field(0.05, ge=0, description="at most this share of the images seen so far; 0: no such bound")
    diffaugment: list[Literal["colour", "translation", "cutout"]] = Field([], description="of all that is judged")
    ada: ADASettings | None = Field(None, description="table: adaptive augmentation of all that is judged")
    lecam: float = Field(0.0, ge=0, description="weight of LeCam regularisation; 0: off")
    lecam_start: int = Field(1, ge=0, description="discriminator steps before it")
    gsr: SpectralSettings | None = Field(None, description="table: a brake on the generator's class embeddings")
    twins: TwinsSettings | None = Field(None, description="table: NoisyTwins")
    measure: Measure = Measure()

    @model_validator(mode="after")
    def _conditional(self) -> Self:
        noisy, braked = self.twins and (self.twins.sigma or self.twins.strength), self.gsr and self.gsr.strength
        if self.condition == "none" and (noisy or braked):
            what = "NoisyTwins acts" if noisy else "gSR acts"
            raise ValueError(f"{what} on class embeddings: set condition to projection")
        if "float16" in (self.optim_g.precision, self.optim_d.precision):
            raise ValueError("float16 overflows where styles scale convolutions: set precision to bfloat16 or float32")
        return self

    @property
    def contrasts(self) -> bool:
        return self.condition in ("d2d-ce", "2c")

    def build(self, size: int, channels: int, num_classes: int) -> tuple[nn.Module, nn.Module]:
        """Generator and discriminator."""
        tells = partial(Discriminator, contrast=self.contrast.size * self.contrasts)
        return self.net.build(Generator, tells, size, channels, 0 if self.condition == "none" else num_classes)


class StyleGANSettings(StyleTable):
    """[method] of StyleGAN2, the baseline."""

    name: Literal["stylegan2"] = "stylegan2"


class NoisyTwinsSettings(StyleTable):
    """[method] of NoisyTwins, with noise and loss as on CIFAR-10-LT."""

    name: Literal["noisy-twins"] = "noisy-twins"
    twins: TwinsSettings = TwinsSettings()


def side_of(size: int, pad: bool) -> int:
    """The side that StyleGAN2 draws for images of this one."""
    return max(8, 1 << (size - 1).bit_length()) if pad else size


def check_style(settings: StyleTable, data: Data, given: Collection[str]) -> None:
    """Refuse what cannot work, before what is ``given`` in [needs] is trained for it."""
    size, classes = data.facts.size[0] if data.facts.size else 0, len(data.classes)
    if data.facts.kind == "images" and (size < 8 or size & (size - 1)) and not settings.pad:
        raise UserError(
            f"images are {size} pixels a side, StyleGAN2 draws 8, 16, 32, ...: set method.pad = true, which frames "
            f"them to {side_of(size, True)}, or of files data.size = {side_of(size, True)}"
        )
    if classes < 2 and settings.condition != "none":
        raise UserError(f"{classes} class leaves nothing to condition on: set {_of_one_class(settings)}")
    pairs, images = 2 * parallel.world(), sum(data.counts)
    if settings.twins and settings.twins.strength and (settings.batch % pairs or settings.batch < 4):
        whose = f" in each of {pairs // 2} processes" if pairs > 2 else ""
        usable = max(2 * pairs, settings.batch // pairs * pairs)
        raise UserError(f"method.batch = {settings.batch} cannot be halved into twins{whose}: use {usable}")
    if settings.twins and settings.twins.strength and images < 2 * pairs:
        raise UserError(
            f"{images} training images are no batch of twins, which takes {2 * pairs}: add images, or set "
            "method.twins.strength = 0"
        )
    bounds = settings.net
    side = side_of(size, settings.pad)
    if data.facts.kind == "images" and bounds.base < side:
        raise UserError(f"method.net.base = {bounds.base} leaves no channels at {side} pixels: use at least {side}")
    check_drawing(settings, data, given)
    if bounds.weights_g or bounds.weights_d:
        settings.build(side, data.inputs, classes)


def _of_one_class(settings: StyleTable) -> str:
    """All that must be changed to draw images of one class."""
    changes = ["method.condition = 'none'"]
    changes += ["method.name = 'stylegan2' without [method.twins]"] * bool(settings.twins)
    changes += ["method.gsr.strength = 0"] * bool(settings.gsr and settings.gsr.strength)
    if settings.measure.features == "annotator":  # which one class would teach nothing
        changes.append("method.measure.features = 'mobilenet_v2' without needs.annotator")
    return ", ".join(changes)


def check_sizes(found: dict[str, Tensor], own: dict[str, Tensor], whose: str) -> None:
    """Refuse weights of a network of other layers or sizes, in one line."""
    told = [f"layers: {name} is in the checkpoint alone" for name in found if name not in own]
    told += [f"layers: {name} is not in the checkpoint" for name in own if name not in found]
    told += [
        f"sizes: {name} is {tuple(found[name].shape)}, here {tuple(value.shape)}"
        for name, value in own.items()
        if name in found and found[name].shape != value.shape
    ]
    if told:
        raise UserError(
            f"the checkpoint's {whose} has other {told[0]}; open it with the [method.net] and data.size that it was "
            "trained with"
        )
