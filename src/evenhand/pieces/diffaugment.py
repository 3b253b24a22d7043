"""DiffAugment: the same random changes for real and generated images, differentiable, so that few images go further.

Used on everything the discriminator sees, in its own step and in the generator's. Images are float (N, C, H, W) in
[-1, 1]; every image gets its own draw, all drawn from a CPU ``generator`` so that devices agree.

>>> generator = torch.Generator().manual_seed(0)
>>> diffaugment(torch.rand(4, 3, 32, 32), generator).shape
torch.Size([4, 3, 32, 32])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

POLICY = ("colour", "translation", "cutout")


def diffaugment(x: Tensor, generator: torch.Generator, policy: Sequence[str] = POLICY) -> Tensor:
    """Apply the named changes in the given order."""
    if x.ndim != 4 or not x.is_floating_point():
        raise ValueError(f"x of shape {tuple(x.shape)} and type {x.dtype}: expected float images (N, C, H, W)")
    for name in policy:
        if name not in CHANGES:
            raise ValueError(f"policy holds '{name}': choose from {', '.join(CHANGES)}")
        x = CHANGES[name](x, generator)
    return x


def colour(x: Tensor, generator: torch.Generator) -> Tensor:
    """Brightness +-0.5, saturation x 0..2 about each pixel's mean, contrast x 0.5..1.5 about the image's mean."""
    brightness, saturation, contrast = torch.rand(3, len(x), 1, 1, 1, generator=generator).to(x)
    x = x + (brightness - 0.5)
    grey = x.mean(1, keepdim=True)
    x = grey + (x - grey) * (2 * saturation)
    level = x.mean((1, 2, 3), keepdim=True)
    return level + (x - level) * (contrast + 0.5)


def translation(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift by whole pixels, up to an eighth of each side; zeros come in."""
    n, c, h, w = x.shape
    down, across = (torch.randint(-(s // 8), s // 8 + 1, (n, 1), generator=generator) for s in (h, w))
    row, column = (
        (torch.arange(s) + 1 - shift).clamp_(0, s + 1) for s, shift in ((h, down), (w, across))
    )  # (N, H), (N, W): where pixels come from in an image with a frame of zeros
    index = (row[:, :, None] * (w + 2) + column[:, None, :]).view(n, 1, h * w).to(x.device)
    framed = F.pad(x, (1, 1, 1, 1)).flatten(2)
    return framed.gather(2, index.expand(n, c, h * w)).view(n, c, h, w)


def cutout(x: Tensor, generator: torch.Generator) -> Tensor:
    """Zero a box of half the sides, centred anywhere in the image, so partly outside at times."""
    n, _, h, w = x.shape
    rows, columns = (_span(n, s, generator) for s in (h, w))
    box = (rows[:, None, :, None] & columns[:, None, None, :]).to(x.device)
    return x.masked_fill(box, 0.0)


def _span(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Half of ``side`` positions around a uniform centre, (count, side) bool."""
    length = side // 2
    start = torch.randint(side + 1 - length % 2, (count, 1), generator=generator) - length // 2
    position = torch.arange(side)
    return (position >= start) & (position < start + length)


CHANGES = {"colour": colour, "translation": translation, "cutout": cutout}
