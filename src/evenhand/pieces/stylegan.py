"""What a StyleGAN needs beside its losses: its average, path lengths, how twins agree, frames, truncation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from evenhand import parallel
from evenhand.pieces.twins import cross_correlation

PATH_DECAY = 0.01  # by which the mean path length moves
CENTRE = 1000  # latents whose mean is a class's typical one


def average_decay(batch: int, step: int, kimg: float, rampup: float) -> float:
    """``0.5^(batch / h)``: of the averaged generator, half of which is younger than ``h`` images."""
    images = 1000 * kimg
    if rampup:
        images = min(images, rampup * batch * step)
    return float(0.5 ** (batch / max(images, 1e-8)))


def path_lengths(images: Tensor, ws: Tensor, probe: Tensor) -> Tensor:
    """(N,) lengths of ``d <images, probe> / d ws``, root mean square over layers."""
    (slope,) = torch.autograd.grad((images * probe).sum(), ws, create_graph=True)
    return slope.square().sum(2).mean(1).sqrt()


def path_penalty(lengths: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(length - a)^2`` with the running mean a, over processes, that these lengths move; and that mean."""
    moved = mean.lerp(parallel.total(lengths.mean()) / parallel.world(), PATH_DECAY)
    return (lengths - moved).square().mean(), moved.detach()


def agreement(first: Tensor, second: Tensor) -> dict[str, Tensor]:
    """How alike twins are, and how much dimensions repeat each other: mean diagonal and off-diagonal energy."""
    c = cross_correlation(first, second)
    diagonal = c.diagonal()
    return {"twins_diagonal": diagonal.mean(), "twins_energy": c.square().sum() - diagonal.square().sum()}


def in_frame(images: Tensor, side: int) -> Tensor:
    """Images (N, C, H, W) of -1 ... 1 in the middle of black squares."""
    high, wide = images.shape[-2:]
    left, top = (side - wide) // 2, (side - high) // 2
    return pad(images, (left, side - wide - left, top, side - high - top), value=-1.0)


def out_of_frame(images: Tensor, size: int) -> Tensor:
    """The middle of images (N, C, S, S), ``size`` pixels a side."""
    first = (images.shape[-1] - size) // 2
    return images[..., first : first + size, first : first + size]


@torch.no_grad()
def embedding_sizes(net: Any) -> Tensor:
    """(K,) root mean squares of the class embeddings, which the noise's standard deviations can be compared with."""
    table, _ = net.mapping.embed.class_parameters()
    return cast(Tensor, table.square().mean(1).sqrt())


def truncated(net: Any, truncation: float) -> Callable[[Tensor, Tensor | None], Tensor]:
    """A generator whose styles stay near their class's mean: ``w_y + truncation (w - w_y)``; at 0 one image of each.

    The released networks have one mean for all classes, ``w_avg``: at 0 they would draw every class the same.
    """
    probe = torch.randn(CENTRE, net.latent, generator=torch.Generator().manual_seed(0))

    def centre(label: Tensor | None, like: Tensor) -> Tensor:  # (layers, d)
        mean: Tensor = net.mapping(probe.to(like), None if label is None else label.expand(CENTRE)).mean(0)
        return mean

    def draw(z: Tensor, labels: Tensor | None = None) -> Tensor:
        if labels is None:
            centres = centre(None, z)
        else:
            kinds, which = labels.unique(return_inverse=True)
            centres = torch.stack([centre(label, z) for label in kinds])[which]  # (N, layers, d)
        images: Tensor = net.synthesis(centres.lerp(net.mapping(z, labels), truncation))
        return images

    return draw
