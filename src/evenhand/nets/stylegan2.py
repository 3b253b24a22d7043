"""StyleGAN2 with classes: a mapping network of noise and label, a synthesis network of styles, a critic by projection.

Names of parameters and buffers are those of the released stylegan2-ada-pytorch networks, so that converted files load.

>>> generator = Generator(32, 3, num_classes=10, base=512, widest=16, latent=8, style=8)
>>> ws = generator.mapping(torch.randn(4, 8), torch.tensor([0, 3, 3, 9]), truncation=0.7)
>>> generator.synthesis(ws, noise="none").shape
torch.Size([4, 3, 32, 32])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from evenhand.nets.stylegan2_layers import LOWEST, Conv, Linear, Mapping, widths_of
from evenhand.nets.stylegan2_ops import GAIN, activated, binomial, minibatch_std, modulated_conv2d, upsample

Noise = Literal["constant", "random", "none"]
NOISES = ("constant", "random", "none")


class StyleMapping(Mapping):
    """The generator's: one style for every layer, (N, layers, width), and their running mean for truncation."""

    w_avg: Tensor

    def __init__(self, latent: int, num_classes: int, width: int, layers: int, *, copies: int) -> None:
        super().__init__(latent, num_classes, width, layers)
        self.copies = copies
        self.register_buffer("w_avg", torch.zeros(width))

    def forward(self, z: Tensor, labels: Any = None, truncation: float = 1.0) -> Tensor:
        w = self.styles(z, labels)
        if truncation != 1:
            w = self.w_avg.to(w.dtype).lerp(w, truncation)
        return w[:, None].repeat(1, self.copies, 1)

    @torch.no_grad()
    def track(self, ws: Tensor, decay: float = 0.995) -> None:
        """Let the running mean follow these styles (neither mixed nor truncated); nothing else changes it."""
        self.w_avg.lerp_(ws[:, 0].mean(0).to(self.w_avg.dtype), 1 - decay)


class SynthesisLayer(nn.Module):
    """Modulated convolution, noise of learned strength, leaky ReLU; ``up`` doubles the side."""

    resample_filter: Tensor
    noise_const: Tensor

    def __init__(self, inputs: int, outputs: int, style: int, side: int, *, up: bool = False) -> None:
        super().__init__()
        self.up = up
        self.affine = Linear(style, inputs, bias=1)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.noise_strength = nn.Parameter(torch.zeros(()))
        self.register_buffer("noise_const", torch.randn(side, side))
        self.register_buffer("resample_filter", binomial())

    def forward(self, x: Tensor, w: Tensor, noise: Noise, chance: torch.Generator | None) -> Tensor:
        up = self.resample_filter if self.up else None
        x = modulated_conv2d(x, self.weight, self.affine(w), gain=GAIN, up=up)
        shift = self.bias[:, None, None] * GAIN  # (C, 1, 1)
        if noise == "constant":
            shift = shift + self.noise_const * (self.noise_strength * GAIN)  # (C, H, W)
        elif noise == "random":
            device = chance.device if chance is not None else x.device
            drawn = torch.randn(len(x), 1, *x.shape[2:], generator=chance, device=device).to(x)
            x = x + drawn * (self.noise_strength * GAIN)
        return activated(x + shift)


class ToRGB(nn.Module):
    """Modulated 1x1 convolution to the image's channels, not demodulated; equalised through the styles."""

    def __init__(self, inputs: int, channels: int, style: int) -> None:
        super().__init__()
        self.affine = Linear(style, inputs, bias=1)
        self.weight = nn.Parameter(torch.randn(channels, inputs, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.scale = 1 / math.sqrt(inputs)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        y = modulated_conv2d(x, self.weight, self.affine(w) * self.scale, demodulate=False)
        return y + self.bias[:, None, None]


class SynthesisBlock(nn.Module):
    """Two layers at one resolution, the first of which doubles the side, and what they add to the image.

    The lowest block has one layer, on a learned constant. ToRGB's style is that of the next block's first layer.
    """

    resample_filter: Tensor

    def __init__(self, inputs: int, outputs: int, style: int, side: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("resample_filter", binomial())
        self.lowest = inputs == 0
        if self.lowest:
            self.const = nn.Parameter(torch.randn(outputs, side, side))
        else:
            self.conv0 = SynthesisLayer(inputs, outputs, style, side, up=True)
        self.conv1 = SynthesisLayer(outputs, outputs, style, side)
        self.torgb = ToRGB(outputs, channels, style)

    def forward(
        self, x: Tensor | None, image: Tensor | None, ws: Sequence[Tensor], noise: Noise, chance: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        *_, w, last = ws
        x = self.conv0(x, ws[0], noise, chance) if x is not None else self.const.expand(len(w), -1, -1, -1)
        x = self.conv1(x, w, noise, chance)
        drawn = self.torgb(x, last)
        return x, drawn if image is None else upsample(image, self.resample_filter) + drawn


class Synthesis(nn.ModuleDict):
    """Blocks b4, b8, ... up to the image's side; each adds to the image of the last, doubled."""

    def __init__(self, size: int, channels: int, style: int, widths: dict[int, int]) -> None:
        super().__init__()
        for side, width in sorted(widths.items()):
            self[f"b{side}"] = SynthesisBlock(widths.get(side // 2, 0), width, style, side, channels)
        self.layers = 2 * len(widths)  # styles: two for each block, the last of them ToRGB's

    def forward(self, ws: Tensor, noise: Noise = "constant", *, chance: torch.Generator | None = None) -> Tensor:
        """noise: the same for every image, drawn afresh (from ``chance``, or torch's own source), or none."""
        if noise not in NOISES:
            raise ValueError(f"noise {noise!r} is unknown; use one of {', '.join(NOISES)}")
        if ws.ndim != 3 or ws.shape[1] != self.layers:
            raise ValueError(f"ws has shape {tuple(ws.shape)}; give (N, {self.layers}, style), a style for each layer")
        styles = ws.to(next(self.parameters()).dtype).unbind(1)
        x = image = None
        for number, block in enumerate(self.values()):
            x, image = block(x, image, styles[max(0, 2 * number - 1) : 2 * number + 2], noise, chance)
        return cast(Tensor, image)


class Generator(nn.Module):
    """``widest`` bounds the channels ``base // side`` of a resolution; ``num_classes`` 0: no classes."""

    mapping_kind = StyleMapping

    def __init__(
        self, size: int, channels: int, num_classes: int, *, latent: int = 512, style: int = 512, base: int = 32768,
        widest: int = 512, mapping_layers: int = 8,
    ) -> None:  # fmt: skip
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels={channels}: images have 1 (grey) or 3")
        if latent < 1 or style < 1:
            raise ValueError(f"latent={latent} and style={style}: noise and styles have at least one dimension")
        self.latent, self.num_classes, widths = latent, num_classes, widths_of(size, base, widest)
        self.synthesis = Synthesis(size, channels, style, widths)
        self.mapping = self.mapping_kind(latent, num_classes, style, mapping_layers, copies=self.synthesis.layers)

    def forward(
        self, z: Tensor, labels: Any = None, *, truncation: float = 1.0, noise: Noise = "constant",
        chance: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        return self.synthesis(self.mapping(z, labels, truncation), noise, chance=chance)


class LabelMapping(Mapping):
    """The critic's: a label's vector, (N, width)."""

    def forward(self, labels: Any, count: int | None = None) -> Tensor:
        return self.styles(None, labels, count)


class DiscriminatorBlock(nn.Module):
    """Two convolutions, the second of which halves the side, beside a linear way; the first block reads the image."""

    resample_filter: Tensor

    def __init__(self, channels: int, inputs: int, outputs: int, *, residual: bool) -> None:
        super().__init__()
        self.register_buffer("resample_filter", binomial())
        self.fromrgb = Conv(channels, inputs, 1) if channels else None
        self.conv0 = Conv(inputs, inputs, 3)
        self.conv1 = Conv(inputs, outputs, 3, down=True)
        self.skip = Conv(inputs, outputs, 1, active=False, bias=False, down=True) if residual else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.fromrgb(x) if self.fromrgb is not None else x
        if self.skip is None:
            return self.conv1(self.conv0(x))
        half = math.sqrt(0.5)  # the sum of two ways has the variance of one
        return self.skip(x, half) + self.conv1(self.conv0(x), half)


class DiscriminatorEpilogue(nn.Module):
    """At the lowest resolution: how much a group varies, a convolution, two linear layers."""

    def __init__(self, width: int, outputs: int, group: int) -> None:
        super().__init__()
        self.group = group
        self.conv = Conv(width + 1, width, 3)
        self.fc = Linear(width * LOWEST**2, width, active=True)
        self.out = Linear(width, outputs)

    def features(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(minibatch_std(x, self.group)).flatten(1))  # (N, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.features(x))


class Discriminator(nn.Module):
    """Scores (N,): how real an image is for its label, by the product of its features with the label's vector.

    group: of the minibatch standard deviation; residual: False leaves out the blocks' linear ways ("orig").
    contrast: size of features that are compared with a class's instead; scores are then of the image alone.
    """

    def __init__(
        self, size: int, channels: int, num_classes: int, *, base: int = 32768, widest: int = 512, group: int = 4,
        residual: bool = True, contrast: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if group < 1:
            raise ValueError(f"group is {group}; it must be at least 1, which turns the deviation off")
        if channels < 1:
            raise ValueError(f"channels={channels}: images have 1 (grey) or 3")
        widths = widths_of(size, base, widest)
        self.shape, self.num_classes = (channels, size, size), num_classes
        self.names = [f"b{side}" for side in sorted(widths, reverse=True) if side > LOWEST]
        for name, (upper, lower) in zip(self.names, pairwise(sorted(widths, reverse=True)), strict=True):
            read = channels if upper == size else 0
            self.add_module(name, DiscriminatorBlock(read, widths[upper], widths[lower], residual=residual))
        vector = widths[LOWEST]
        self.projects = bool(num_classes and not contrast)
        self.b4 = DiscriminatorEpilogue(vector, vector if self.projects else 1, group)
        if num_classes:
            self.mapping = LabelMapping(0, num_classes, contrast or vector, 1 if contrast else 8)
        if contrast:
            self.embed = Linear(vector, contrast)

    def forward(self, images: Tensor, labels: Any = None) -> Tensor:
        x = self.b4(self._lowest(images))
        return (x * self.mapping(labels, len(x))).sum(1) / math.sqrt(x.shape[1]) if self.projects else x[:, 0]

    def contrast(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (N,), unit features of the images (N, contrast), and unit vectors of their labels."""
        x = self.b4.features(self._lowest(images))
        return self.b4.out(x)[:, 0], normalize(self.embed(x)), normalize(self.mapping(labels, len(x)))

    def _lowest(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.shape:
            raise ValueError(f"images are {tuple(images.shape[1:])}; this network takes {self.shape}: resize them")
        if not len(images):
            raise ValueError("images are none: a critic compares the images of a batch, give at least one")
        x = images.to(next(self.parameters()).dtype)
        for name in self.names:
            x = self.get_submodule(name)(x)
        return x
