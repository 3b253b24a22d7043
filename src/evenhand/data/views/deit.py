"""DeiT's augmentation on whole batches: RandAugment of growing strength, one of three, and erasing by noise.

RandAugment is the form "m9, n2, std 0.5, increasing": a larger magnitude is always a stronger change. Each of two draws
of fifteen operations is carried out with odds 1/2, at magnitude N(9, 0.5) of 10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from evenhand.data.views import imageops, policies
from evenhand.data.views.imageops import luma, pick

INCREASING = (
    "autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "solarize-add", "colour", "contrast",
    "brightness", "sharpness", "shear-x", "shear-y", "translate-x", "translate-y",
)  # fmt: skip
_OPS = torch.tensor([policies.NAMES.index(name) for name in INCREASING])
_IDENTITY = policies.NAMES.index("identity")


def strength(name: str, magnitude: Tensor, sign: Tensor) -> Tensor:
    """The value of an operation at ``magnitude`` 0..10; ``sign`` -1 or 1, where it can go two ways."""
    share = magnitude / 10
    match name:
        case "rotate":
            return sign * 30 * share
        case "posterize":  # bits that stay; none would be a black image
            return (4 - (4 * share).floor()).clamp(min=1)
        case "solarize":
            return 256 - (256 * share).floor()
        case "solarize-add":
            return (110 * share).floor()
        case "shear-x" | "shear-y":
            return sign * 0.3 * share
        case "translate-x" | "translate-y":
            return sign * 0.45 * share
        case "colour" | "contrast" | "brightness" | "sharpness":
            return (1 + sign * 0.9 * share).clamp(min=0.1)
        case _:
            return torch.zeros_like(share)


def increasing_augment(
    x: Tensor, generator: Generator, *, fill: Sequence[int], draws: int = 2, magnitude: float = 9.0,
    spread: float = 0.5, odds: float = 0.5,
) -> Tensor:  # fmt: skip
    """``draws`` operations with replacement per sample; warps are bicubic and uncover the colour ``fill``."""
    shape = (draws, len(x))
    choice = torch.randint(len(INCREASING), shape, generator=generator)
    level = (magnitude + spread * torch.randn(shape, generator=generator)).clamp_(0, 10)
    sign = 2 * torch.randint(2, shape, generator=generator) - 1
    lucky = torch.rand(shape, generator=generator) < odds
    value = torch.stack([strength(name, level, sign) for name in INCREASING]).gather(0, choice[None])[0]
    op = torch.where(lucky, _OPS[choice], _IDENTITY)
    for which, v in zip(op, value, strict=True):
        x = policies.apply(x, which, v, fill)
    return x


def three_augment(x: Tensor, generator: Generator) -> Tensor:
    """Each sample grey, solarised at 128, or blurred with sigma in [0.1, 2]: one of the three."""
    which = torch.randint(3, (len(x), 1, 1, 1), generator=generator).to(x.device)
    sigma = (0.1 + 1.9 * torch.rand(len(x), generator=generator)).to(x.device)
    grey = luma(x).to(torch.uint8).expand_as(x)
    solarised = imageops.solarize(x, torch.full((len(x),), 128.0, device=x.device))
    return pick(which == 0, grey, pick(which == 1, solarised, imageops.blur(x, sigma)))


def erase_noise(
    x: Tensor, generator: Generator, *, odds: float = 0.25, scale: tuple[float, float] = (0.02, 1 / 3),
    ratio: tuple[float, float] = (0.3, 1 / 0.3),
) -> Tensor:  # fmt: skip
    """Of normalised images, a box of standard normal noise in a share ``odds``: the first of ten boxes that fits."""
    n, _, h, w = x.shape
    chosen = torch.rand(n, generator=generator) < odds
    area = h * w * (scale[0] + (scale[1] - scale[0]) * torch.rand(n, 10, generator=generator))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * torch.rand(n, 10, generator=generator)).exp()
    height, width = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (height < h) & (width < w)
    first = fits.int().argmax(1, keepdim=True)
    place = torch.rand(2, n, generator=generator)
    noise = torch.randn(x.shape, generator=generator)
    inside = chosen & fits.any(1)
    box = []
    for sides, side, at in ((height, h, place[0]), (width, w, place[1])):
        size = sides.gather(1, first)[:, 0]
        start = (at * (side - size + 1)).floor()
        position = torch.arange(side)
        box.append((position >= start[:, None]) & (position < (start + size)[:, None]))
    mask = inside.view(-1, 1, 1, 1) & box[0][:, None, :, None] & box[1][:, None, None, :]
    return torch.where(mask.to(x.device), noise.to(x), x)
