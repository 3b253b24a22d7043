"""What training a StyleGAN needs beside its losses: how fast the average forgets, path lengths, how twins agree."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.pieces.twins import cross_correlation


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


def agreement(first: Tensor, second: Tensor) -> dict[str, Tensor]:
    """How alike twins are, and how much dimensions repeat each other: mean diagonal and off-diagonal energy."""
    c = cross_correlation(first, second)
    diagonal = c.diagonal()
    return {"twins_diagonal": diagonal.mean(), "twins_energy": c.square().sum() - diagonal.square().sum()}
