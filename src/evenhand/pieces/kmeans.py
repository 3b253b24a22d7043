"""Weighted k-means: the samples nearest to the centres of a pool's clusters, for CLUE and for a cold start."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.pieces.pool import draw

BLOCK = 4096  # samples compared with all centres at a time


def central_samples(
    features: Tensor, weights: Tensor, clusters: int, *, generator: torch.Generator, iterations: int = 50
) -> list[int]:
    """``clusters`` distinct indices: the sample nearest to each centre of features (N, d), heaviest cluster first.

    Seeded by k-means++ and moved by ``iterations`` of Lloyd's at most, both with ``weights`` (N,) >= 0; if all are 0
    they count alike. A sample already taken by a heavier cluster leaves the next nearest. Memory is O(N + clusters d).
    """
    if not clusters:
        return []
    x = features - features.mean(0)  # distances lose fewer digits near the origin
    weights = (weights / weights.max() if weights.any() else torch.ones_like(weights)).to(x)
    centres, assigned = _seeds(x, weights, clusters, generator), None
    for _ in range(iterations):
        nearest = torch.cat(
            [_squares(part, centres, part.square().sum(1)).argmin(1) for part in x.split(BLOCK)]
        )  # (N,)
        if assigned is not None and torch.equal(nearest, assigned):
            break
        assigned = nearest
        mass = x.new_zeros(clusters).index_add_(0, nearest, weights)
        total = torch.zeros_like(centres)
        for part, where, w in zip(x.split(BLOCK), nearest.split(BLOCK), weights.split(BLOCK), strict=True):
            total.index_add_(0, where, part * w[:, None])
        mean = total / mass.clamp_min(torch.finfo(x.dtype).tiny)[:, None]
        centres = torch.where(mass[:, None] > 0, mean, centres)  # empty ones stay
    picks: list[int] = []
    own, free = x.square().sum(1), x.new_zeros(len(x))
    for centre in mass.sort(descending=True, stable=True).indices:
        picks.append(int((_squares(x, centres[centre : centre + 1], own)[:, 0] + free).argmin()))
        free[picks[-1]] = torch.inf
    return picks


def _seeds(x: Tensor, weights: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """(clusters, d) k-means++: each next one drawn in proportion to weight times squared distance to those before."""
    chosen, own = [draw(weights, generator)], x.square().sum(1)
    distance = _squares(x, x[chosen], own)[:, 0]
    while len(chosen) < clusters:
        odds = weights * distance
        odds[chosen] = 0
        left = odds if odds.any() else torch.ones_like(odds).index_fill(0, torch.tensor(chosen).to(x.device), 0)
        chosen.append(draw(left, generator))
        distance = torch.minimum(distance, _squares(x, x[chosen[-1:]], own)[:, 0])
    return x[chosen]


def _squares(x: Tensor, centres: Tensor, own: Tensor) -> Tensor:
    """(N, k) squared distances; ``own`` (N,) are the squared norms of x, taken once."""
    return (own[:, None] - x @ (2 * centres).T + centres.square().sum(1)).clamp_min_(0)
