"""Samples that are vectors: a user's own features, or what a frozen network makes of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenhand.data.views.view import View


class Standardise(View):
    """``(x - mean) / std`` of vectors (N, d): their only view, in training and evaluation."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(f"{len(mean)} means, {len(std)} deviations, least {min(std)}: one of each, std above 0")
        self.mean, self.std = torch.tensor(mean), torch.tensor(std)

    def __call__(self, x: Tensor, chance: torch.Generator | None = None) -> Tensor:
        if x.dtype != torch.float32 or x.shape[1:] != self.mean.shape:
            raise ValueError(f"vectors are {x.dtype} {tuple(x.shape)}; this view takes float32 (N, {len(self.mean)})")
        return (x - self.mean.to(x.device)) / self.std.to(x.device)

    def normalised_as(self, other: Standardise) -> Standardise:
        return other


def vector_stats(samples: Tensor) -> tuple[list[float], list[float]]:
    """Mean and deviation of each of d numbers; 1 for one that never changes."""
    std, mean = torch.std_mean(samples.double(), 0, correction=0)
    return mean.tolist(), torch.where(std > 1e-6 * mean.abs().clamp_min(1e-6), std, 1.0).tolist()
