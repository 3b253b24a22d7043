"""Where two sets of points overlap: precision, recall, density and coverage by nearest neighbours, tile by tile.

And how many different things a set shows: its effective number of patterns.

A set's manifold is the union of open balls around its points, each reaching to the point's k-th nearest neighbour in
the same set. Distances are float64, held for one tile of ``block`` x ``block`` pairs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenhand.given import as_tensor

ROUNDING = 1e-12  # of products, relative to the squares
UNSURE = 1 << 22  # numbers looked at again at a time
FEWEST = 10  # rows whose patterns are worth counting


class Scores(NamedTuple):
    """All four, from one pass over the distances."""

    precision: Tensor
    recall: Tensor
    density: Tensor
    coverage: Tensor


def precision_recall(real_features: Any, fake_features: Any, k: int = 3, *, block: int = 1024) -> tuple[Tensor, Tensor]:
    """Share of fakes inside the reals' manifold, and share of reals inside the fakes' manifold.

    A generator that draws few things well has a high precision and a low recall. Memory beyond the features does not
    depend on N and M: several float64 tiles of ``block`` x ``block`` and of ``block`` x d; 100 MB by default, d = 256.
    """
    scores = manifold_scores(real_features, fake_features, k, block)
    return scores.precision, scores.recall


def density_coverage(real_features: Any, fake_features: Any, k: int = 5, *, block: int = 1024) -> tuple[Tensor, Tensor]:
    """Mean number of reals' balls around a fake over k (may exceed 1), and share of reals' balls holding a fake.

    Only the reals' manifold is used, so stray fakes do not inflate it. Memory as ``precision_recall``.
    """
    scores = manifold_scores(real_features, fake_features, k, block)
    return scores.density, scores.coverage


def manifold_scores(real: Any, fake: Any, k: int, block: int = 1024) -> Scores:
    """What ``precision_recall`` and ``density_coverage`` say, for the work of one of them."""
    real, fake = as_features(real, "real_features"), as_features(fake, "fake_features")
    same_dimensions(real, fake)
    if k < 1 or min(len(real), len(fake)) <= k:
        raise ValueError(f"k is {k} for {len(real)} real and {len(fake)} fake samples; it must be 1 to N - 1")
    centre = mean_row(real, block)  # near the origin, products keep the digits of small distances
    real_reach, fake_reach = (_reach(x, k, block, centre) for x in (real, fake))
    around = torch.zeros(len(fake), dtype=torch.float64, device=fake.device)  # real balls around each fake
    reached = torch.zeros(len(real), dtype=torch.bool, device=real.device)  # by some fake ball
    covered = torch.zeros_like(reached)  # ball holds some fake
    for i, x in _blocks(real, block, centre):
        for j, y in _blocks(fake, block, centre):
            tile, slack = _squared_distances(x, y), ROUNDING * _squares(x, y)
            inside = _below(real_reach[i, None], tile, slack, real[i], fake[j])
            around[j] += inside.sum(0)
            covered[i] |= inside.any(1)
            reached[i] |= _below(fake_reach[j], tile, slack, real[i], fake[j]).any(1)
    precision, recall, coverage = ((x > 0).double().mean() for x in (around, reached, covered))
    return Scores(precision, recall, around.mean() / k, coverage)


def effective_number(x: Tensor, width: float | Tensor) -> Tensor:
    """How many different rows (N, d) there are: 1 if all are alike, N if none resembles another.

    ``exp(-sum_i l_i log l_i)`` over the eigenvalues of ``exp(-|x_i - x_j|^2 / (2 width^2)) / N``, the Vendi score
    (Friedman and Dieng 2023). Memory and time: N x N float64 and its eigenvalues.
    """
    x = as_features(x, "x").double()
    alike = (_squared_distances(x, x) / (-2 * width**2)).exp() / len(x)
    values = torch.linalg.eigvalsh(alike).clamp(min=0)
    return (-torch.xlogy(values, values).sum()).exp()


def pattern_share(real: Tensor, fake: Tensor, *, fewest: int = FEWEST, most: int = 100) -> float | None:
    """Effective number of patterns among fakes over that among as many reals; None below ``fewest`` of either.

    The width is the median distance of the reals. About 1 for a set as varied as the reals; with 50 images or more,
    below 0.5 for copies of one to three, however far these lie apart: their spread would not show it.
    """
    n = min(len(real), len(fake), most)
    if n < fewest:
        return None
    some = torch.Generator().manual_seed(0)
    ours, theirs = (x[torch.randperm(len(x), generator=some)[:n].to(x.device)] for x in (real, fake))
    width = torch.pdist(ours.double()).median()
    return float(effective_number(theirs, width) / effective_number(ours, width)) if width > 0 else None


def _reach(x: Tensor, k: int, block: int, centre: Tensor) -> Tensor:
    """(N,) squared distance of each row to its k-th nearest other row."""
    reach = []
    for i, rows in _blocks(x, block, centre):
        nearest = torch.full((len(rows), k), torch.inf, dtype=torch.float64, device=x.device)
        who = torch.zeros(len(rows), k, dtype=torch.int64, device=x.device)
        for j, columns in _blocks(x, block, centre):
            tile = _squared_distances(rows, columns)
            if i == j:
                tile.fill_diagonal_(torch.inf)
            near = tile.topk(min(k, len(columns)), largest=False)
            nearest, chosen = torch.cat([nearest, near.values], 1).topk(k, largest=False)
            who = torch.cat([who, near.indices + j.start], 1).gather(1, chosen)
        reach.append(_exact(x[i], x[who[:, -1]]))
    return torch.cat(reach)


def _below(reach: Tensor, tile: Tensor, slack: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """(N, M) whether rows of a and b are nearer than ``reach``; where rounding could decide, from the rows."""
    inside = tile < reach
    unsure = ((tile - reach).abs() <= slack).nonzero()
    for pairs in unsure.split(max(1, UNSURE // a.shape[1])):
        rows, columns = pairs.T
        inside[rows, columns] = _exact(a[rows], b[columns]) < reach.expand_as(tile)[rows, columns]
    return inside


def _exact(a: Tensor, b: Tensor) -> Tensor:
    """(N,) ``|a - b|^2`` row by row: on a grid without any rounding, so that ties are ties."""
    return (a.double() - b.double()).square().sum(1)


def _blocks(x: Tensor, block: int, centre: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, len(x), block):
        part = slice(start, start + block)
        yield part, x[part].double() - centre


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """(N, M) ``|x - y|^2``; what rounding leaves of equal rows is 0, so that equal points tie."""
    squared = _squares(x, y)
    rounding = ROUNDING * squared
    squared.addmm_(x, y.T, alpha=-2)
    return squared.masked_fill_(squared < rounding, 0.0)


def _squares(x: Tensor, y: Tensor) -> Tensor:
    return x.square().sum(1)[:, None] + y.square().sum(1)


def as_features(x: Any, name: str) -> Tensor:
    """Checked to be a finite (N, d) matrix."""
    x = as_tensor(x).detach()
    if x.ndim != 2 or not x.numel():
        raise ValueError(f"{name} has shape {tuple(x.shape)}: expected (N, d), N >= 1")
    x = x if x.is_floating_point() else x.double()
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name} must be finite numbers; check the feature network")
    return x


def same_dimensions(a: Tensor, b: Tensor) -> None:
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"features have {a.shape[1]} and {b.shape[1]} dimensions: use the same extractor for both")


def mean_row(x: Tensor, block: int) -> Tensor:
    """(d,) in float64, by blocks of rows."""
    return sum((part.double().sum(0) for part in x.split(block)), x.new_zeros((), dtype=torch.float64)) / len(x)
