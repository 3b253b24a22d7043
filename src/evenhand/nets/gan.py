"""Generators and discriminators of specs 01 and 02: SNDCGAN and the residual SNGAN (BigGAN: ``nets/biggan.py``).

``generator(z, y)`` draws images (N, C, H, W) in [-1, 1] from noise (N, latent) and, if it is conditional, labels (N,).
``discriminator(x, y)`` gives a ``Verdict``. Any side is possible: after each doubling the image is cropped to what
the next one needs (28: 4, 7, 14, 28). Discriminators are spectrally normalised throughout, generators on demand.

>>> draw = ResGenerator(size=28, channels=1, num_classes=10, width=8)
>>> draw(torch.randn(4, draw.latent), torch.tensor([0, 1, 2, 3])).shape
torch.Size([4, 1, 28, 28])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.nets.conditional import ConditionalBatchNorm2d, orthogonal, spectral

HeadKind = Literal["none", "projection", "acgan"]
SkipKind = Literal["raw", "activated"]
Wrap = Callable[[nn.Module], nn.Module]
Norm = Callable[[int], nn.Module]


class Verdict(NamedTuple):
    """What a discriminator says of N images."""

    score: Tensor  # (N,), raw: high for real
    logits: Tensor | None  # (N, K) class logits of an ACGAN


def batchnorm(num_classes: int | None, *, spectral_tables: bool = False, grouped: bool = False) -> Norm:
    """How a generator makes its BatchNorm layers: conditional ones, or plain ones without classes."""
    if num_classes is None:
        return nn.BatchNorm2d
    return partial(ConditionalBatchNorm2d, num_classes=num_classes, spectral_tables=spectral_tables, grouped=grouped)


class DCGenerator(nn.Module):
    """SNDCGAN: a linear layer and three transposed convolutions, 8c to c channels."""

    def __init__(
        self, *, size: int, channels: int = 3, num_classes: int | None = None, width: int = 64, latent: int = 128,
        slope: float = 0.1, spectral_weights: bool = False, grouped: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        wrap, norm = _wrap(spectral_weights), batchnorm(num_classes, spectral_tables=spectral_weights, grouped=grouped)
        self.latent, self.num_classes, self.slope = latent, num_classes, slope
        self.sides = sides(size, 3)
        self.fc = wrap(nn.Linear(latent, 8 * width * self.sides[0] ** 2))
        steps = list(pairwise(width * factor for factor in (8, 4, 2, 1)))
        self.ups = nn.ModuleList(wrap(nn.ConvTranspose2d(i, o, 4, 2, 1)) for i, o in steps)
        self.norms = nn.ModuleList(norm(o) for _, o in steps)
        self.out = wrap(nn.Conv2d(width, channels, 3, 1, 1))

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        x = self.fc(z).view(len(z), -1, self.sides[0], self.sides[0])
        for up, norm, side in zip(self.ups, self.norms, self.sides[1:], strict=True):
            x = F.leaky_relu_(normed(norm, up(x)[..., :side, :side], y), self.slope)
        return torch.tanh(self.out(x))


class DCDiscriminator(nn.Module):
    """SNDCGAN: seven convolutions, c to 8c channels, then the sum over places."""

    def __init__(
        self, *, channels: int = 3, num_classes: int | None = None, head: HeadKind = "none", width: int = 64,
        slope: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.slope = slope
        c = width
        plan = [(channels, c, 3), (c, c, 4), (c, 2 * c, 3), (2 * c, 2 * c, 4), (2 * c, 4 * c, 3), (4 * c, 4 * c, 4),
                (4 * c, 8 * c, 3)]  # fmt: skip
        wrap = _wrap(True)
        self.layers = nn.ModuleList(wrap(nn.Conv2d(i, o, k, stride=k - 2, padding=1)) for i, o, k in plan)
        self.head = Head(8 * c, num_classes, head)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Verdict:
        for layer in self.layers:
            x = F.leaky_relu_(layer(x), self.slope)
        return self.head(x.sum((2, 3)), y)


class ResGenerator(nn.Module):
    """SNGAN, in spec 01 SNResGAN: a linear layer and residual blocks that double the side, from about 4 pixels."""

    def __init__(
        self, *, size: int, channels: int = 3, num_classes: int | None = None, width: int = 64, latent: int = 128,
        slope: float = 0.0, spectral_weights: bool = False, grouped: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        wrap, norm = _wrap(spectral_weights), batchnorm(num_classes, spectral_tables=spectral_weights, grouped=grouped)
        self.latent, self.num_classes, self.slope = latent, num_classes, slope
        plan = [width * factor for factor in generator_plan(size)]
        self.sides = sides(size, len(plan) - 1)
        self.fc = wrap(nn.Linear(latent, plan[0] * self.sides[0] ** 2))
        self.blocks = nn.ModuleList(UpBlock(i, o, norm, wrap, slope) for i, o in pairwise(plan))
        self.bn = nn.BatchNorm2d(plan[-1])
        self.out = wrap(nn.Conv2d(plan[-1], channels, 3, 1, 1))

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        x = self.fc(z).view(len(z), -1, self.sides[0], self.sides[0])
        for block, side in zip(self.blocks, self.sides[1:], strict=True):
            x = block(x, y, side)
        return torch.tanh(self.out(F.leaky_relu_(self.bn(x), self.slope)))


class ResDiscriminator(nn.Module):
    """SNGAN: residual blocks, the first ones halving the side, then the sum over places; ``skip``: see `DownBlock`."""

    def __init__(
        self, *, size: int, channels: int = 3, num_classes: int | None = None, head: HeadKind = "none",
        width: int = 64, slope: float = 0.0, skip: SkipKind = "raw",
    ) -> None:  # fmt: skip
        super().__init__()
        self.slope = slope
        factors, downs = discriminator_plan(size)
        plan = pairwise([channels, *(width * factor for factor in factors)])
        self.blocks = nn.ModuleList(
            DownBlock(i, o, slope, down=number < downs, first=number == 0, adds=skip)
            for number, (i, o) in enumerate(plan)
        )
        self.head = Head(width * factors[-1], num_classes, head)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Verdict:
        for block in self.blocks:
            x = block(x)
        return self.head(F.leaky_relu(x, self.slope).sum((2, 3)), y)


class UpBlock(nn.Module):
    """norm-act-double-conv-norm-act-conv beside a 1 x 1 convolution; ``condition`` is what its norms take."""

    def __init__(self, inputs: int, outputs: int, norm: Norm, wrap: Wrap, slope: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(inputs), norm(outputs)
        self.conv1 = wrap(nn.Conv2d(inputs, outputs, 3, 1, 1))
        self.conv2 = wrap(nn.Conv2d(outputs, outputs, 3, 1, 1))
        self.skip = wrap(nn.Conv2d(inputs, outputs, 1))
        self.slope = slope

    def forward(self, x: Tensor, condition: Tensor | None, side: int) -> Tensor:
        h = F.leaky_relu_(normed(self.norm1, x, condition), self.slope)
        h = self.conv1(_doubled(h, side))
        h = F.leaky_relu_(normed(self.norm2, h, condition), self.slope)
        return self.conv2(h) + _doubled(self.skip(x), side)  # a 1 x 1 convolution costs less before doubling


class DownBlock(nn.Module):
    """act-conv-act-conv-[halve] beside a 1 x 1 convolution where the shape changes; the first block has raw input.

    ``adds="activated"``: the skip begins after the first act, which the released code applies in place.
    """

    def __init__(
        self, inputs: int, outputs: int, slope: float, *, down: bool, first: bool, adds: SkipKind = "raw"
    ) -> None:
        super().__init__()
        wrap = _wrap(True)
        self.conv1 = wrap(nn.Conv2d(inputs, outputs, 3, 1, 1))
        self.conv2 = wrap(nn.Conv2d(outputs, outputs, 3, 1, 1))
        self.skip = wrap(nn.Conv2d(inputs, outputs, 1)) if down or inputs != outputs else None
        self.slope, self.down, self.first, self.adds = slope, down, first, adds

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.first else F.leaky_relu(x, self.slope)
        if self.adds == "activated":
            x = h
        h = self.conv2(F.leaky_relu_(self.conv1(h), self.slope))
        if self.down:
            h, x = F.avg_pool2d(h, 2), F.avg_pool2d(x, 2)
        return h + (x if self.skip is None else self.skip(x))


class Head(nn.Module):
    """``w h + b``, plus ``<E_y, h>`` for a projection, beside class logits for an ACGAN; spectrally normalised."""

    def __init__(self, width: int, num_classes: int | None, kind: HeadKind) -> None:
        super().__init__()
        if kind != "none" and num_classes is None:
            raise ValueError(f"head '{kind}' needs num_classes; give it, or use head 'none'")
        wrap, classes = _wrap(True), num_classes or 0
        self.score = wrap(nn.Linear(width, 1))
        self.embed = wrap(nn.Embedding(classes, width)) if kind == "projection" else None
        self.classify = wrap(nn.Linear(width, classes)) if kind == "acgan" else None

    def forward(self, h: Tensor, y: Tensor | None) -> Verdict:
        score = self.score(h)[:, 0]
        if self.embed is not None:
            if y is None:
                raise ValueError("y is None; a projection discriminator needs labels")
            score = score + (self.embed(y) * h).sum(1)
        return Verdict(score, None if self.classify is None else self.classify(h))


def sides(size: int, doublings: int) -> list[int]:
    """Sides of the image from the first layer to the last, at most doubling: 28, 3 -> [4, 7, 14, 28]."""
    return [math.ceil(size / 2**left) for left in range(doublings, -1, -1)]


def generator_plan(size: int) -> list[int]:
    """Channels over the width before the first and after each block."""
    doublings = max(1, math.ceil(math.log2(size / 4)))
    if doublings > 5:
        raise ValueError(f"size {size}: these networks draw at most 128 pixels; make the images smaller")
    return [[4] * (doublings + 1), [16, 8, 4, 2, 1], [16, 16, 8, 4, 2, 1]][max(0, doublings - 3)]


def discriminator_plan(size: int) -> tuple[list[int], int]:
    """Channels over the width after each block, and how many blocks halve the side."""
    doublings = len(generator_plan(size)) - 1
    return [([2] * 4, 2), ([1, 2, 4, 8, 16], 4), ([1, 2, 4, 8, 16, 16], 5)][max(0, doublings - 3)]


def normed(norm: nn.Module, x: Tensor, condition: Tensor | None) -> Tensor:
    """A plain BatchNorm takes no condition, a conditional one must have it."""
    return norm(x) if condition is None else norm(x, condition)


def _doubled(x: Tensor, side: int) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")[..., :side, :side]


def _wrap(spectrally: bool) -> Wrap:
    return (lambda layer: spectral(orthogonal(layer))) if spectrally else orthogonal
