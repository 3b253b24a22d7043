"""Drawn shapes: a small set made on the spot, so that smoke runs and tests need no file and no network."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.data.stream import Memory, Stream
from evenhand.randomness import dice

CLASSES = ("disc", "ring", "square", "frame", "cross", "saltire", "bars", "stripes", "checks", "slope")


DOMAINS = ("shapes", "shapes-negative")


def load(name: str = "shapes", per_class: int = 60, size: int = 32) -> dict[str, Stream]:
    """Ten classes of coloured shapes at random place and scale on noise; "train" and "test" differ.

    "shapes-negative" is a domain to adapt to: other drawings, light and dark exchanged.
    """
    return {split: _draw(name, split, per_class, size) for split in ("train", "test")}


def _draw(name: str, split: str, per_class: int, size: int) -> Stream:
    chance = dice(0, name, split)
    labels = torch.arange(len(CLASSES)).repeat_interleave(per_class)
    count = len(labels)
    row, column = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    centre = (torch.rand(count, 2, 1, 1, generator=chance) - 0.5) * 0.6
    scale = 0.45 + 0.3 * torch.rand(count, 1, 1, generator=chance)
    v, u = (row - centre[:, 0]) / scale, (column - centre[:, 1]) / scale  # (N, H, W)
    mask = _mask(u, v, labels)[:, None].float()
    ink, paper = torch.rand(2, count, 3, 1, 1, generator=chance)
    noise = 0.15 * torch.randn(count, 3, size, size, generator=chance)
    images = (mask * ink + (1 - mask) * (0.5 * paper) + noise).clamp(0, 1)
    if name == "shapes-negative":
        images = 1 - images
    return Stream(Memory((images * 255).byte(), [f"{split}/{i}" for i in range(count)]), labels, CLASSES, split)


def _mask(u: Tensor, v: Tensor, labels: Tensor) -> Tensor:
    radius, side = (u.square() + v.square()).sqrt(), torch.maximum(u.abs(), v.abs())
    inside = side < 1
    kinds = [
        radius < 1, (radius < 1) & (radius > 0.6), inside, inside & (side > 0.6),
        inside & (torch.minimum(u.abs(), v.abs()) < 0.3), inside & ((u.abs() - v.abs()).abs() < 0.3),
        inside & (torch.sin(8 * u) > 0), inside & (torch.sin(8 * v) > 0),
        inside & (torch.sin(6 * u) * torch.sin(6 * v) > 0), inside & (u + v > 0),
    ]  # fmt: skip
    return torch.stack(kinds)[labels, torch.arange(len(labels))]
