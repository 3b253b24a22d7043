"""BigGAN: a shared class embedding, noise for every block, self-attention, spectral normalisation throughout."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.nets.conditional import SharedBatchNorm2d, orthogonal, spectral
from evenhand.nets.gan import HeadKind, ResDiscriminator, SkipKind, UpBlock, Wrap, generator_plan, sides

EMBEDDING = 128


class SelfAttention(nn.Module):
    """``x + s * attention(x)`` over places, keys and values pooled to half the side; s starts at 0."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner, values = max(1, channels // 8), max(1, channels // 2)
        self.query, self.key = (_conv1(channels, inner) for _ in range(2))
        self.value, self.back = _conv1(channels, values), _conv1(values, channels)
        self.strength = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).flatten(2)  # (N, c, HW)
        key, value = (F.max_pool2d(conv(x), 2).flatten(2) for conv in (self.key, self.value))  # (N, c, HW / 4)
        weights = (query.mT @ key).softmax(2)  # (N, HW, HW / 4)
        seen = (value @ weights.mT).unflatten(2, x.shape[2:])
        return x + self.strength * self.back(seen)


class BigGenerator(nn.Module):
    """Noise in equal parts: the first to the linear layer, part j after the class's embedding to block j's norms."""

    def __init__(
        self, *, size: int, num_classes: int, channels: int = 3, width: int = 96, latent: int | None = None,
        grouped: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        plan = [width * factor for factor in generator_plan(size)]
        blocks = len(plan) - 1
        self.latent, self.num_classes = latent or 20 * (blocks + 1), num_classes
        noise, rest = divmod(self.latent, blocks + 1)
        if rest:
            raise ValueError(f"latent {self.latent} does not divide into {blocks + 1} parts; use a multiple of them")
        self.sides = sides(size, blocks)
        self.shared = orthogonal(nn.Embedding(num_classes, EMBEDDING))
        norm = partial(SharedBatchNorm2d, shared=self.shared, noise=noise, grouped=grouped)
        wrap: Wrap = lambda layer: spectral(orthogonal(layer))  # noqa: E731
        self.fc = wrap(nn.Linear(noise, plan[0] * self.sides[0] ** 2))
        self.blocks = nn.ModuleList(UpBlock(i, o, norm, wrap, 0.0) for i, o in pairwise(plan))
        self.attended = min(blocks, 2 if blocks <= 3 else 3)  # blocks before the attention
        self.attention = SelfAttention(plan[self.attended])
        self.bn = nn.BatchNorm2d(plan[-1])
        self.out = wrap(nn.Conv2d(plan[-1], channels, 3, 1, 1))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        first, *parts = z.chunk(len(self.sides), 1)
        embedded = self.shared(y)  # (N, e)
        x = self.fc(first).view(len(z), -1, self.sides[0], self.sides[0])
        for number, (block, part) in enumerate(zip(self.blocks, parts, strict=True), 1):
            x = block(x, torch.cat([embedded, part], 1), self.sides[number])
            if number == self.attended:
                x = self.attention(x)
        return torch.tanh(self.out(F.relu_(self.bn(x))))


def big_discriminator(
    *, size: int, num_classes: int | None, channels: int = 3, head: HeadKind = "projection", width: int = 96,
    skip: SkipKind = "raw",
) -> ResDiscriminator:  # fmt: skip
    """SNGAN's with self-attention after the first block."""
    net = ResDiscriminator(size=size, channels=channels, num_classes=num_classes, head=head, width=width, skip=skip)
    net.blocks.insert(1, SelfAttention(net.blocks[0].conv2.out_channels))  # type: ignore[arg-type,union-attr]
    return net


def _conv1(inputs: int, outputs: int) -> nn.Module:
    return spectral(orthogonal(nn.Conv2d(inputs, outputs, 1, bias=False)))
