"""The Fréchet distance between Gaussians, and between sets of features as if they were Gaussian (FID)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from evenhand.given import as_tensor
from evenhand.measure.manifold import as_features, mean_row, same_dimensions


def frechet_distance(mean_a: Any, cov_a: Any, mean_b: Any, cov_b: Any) -> Tensor:
    """``|m_a - m_b|^2 + tr(A + B - 2 (A B)^(1/2))`` of two Gaussians: means (d,), covariances (d, d).

    The last trace is that of ``(A^(1/2) B A^(1/2))^(1/2)``, the sum of the singular values of
    ``A^(1/2) B^(1/2)``; with roots from symmetric eigen-decompositions it is real and holds for singular
    covariances.
    """
    mean_a, cov_a, mean_b, cov_b = (as_tensor(x).double() for x in (mean_a, cov_a, mean_b, cov_b))
    d = len(mean_a) if mean_a.ndim == 1 else -1
    if (mean_a.shape, cov_a.shape, mean_b.shape, cov_b.shape) != ((d,), (d, d), (d,), (d, d)):
        shapes = ", ".join(str(tuple(x.shape)) for x in (mean_a, cov_a, mean_b, cov_b))
        raise ValueError(f"means and covariances have shapes {shapes}: expected (d,), (d, d), (d,), (d, d)")
    for name, given in (("mean_a", mean_a), ("cov_a", cov_a), ("mean_b", mean_b), ("cov_b", cov_b)):
        if not given.isfinite().all():
            raise ValueError(f"{name} holds nan or inf: check the features it was computed from")
    overlap = torch.linalg.svdvals(_root(cov_a, "cov_a") @ _root(cov_b, "cov_b")).sum()
    return _distance(mean_a - mean_b, cov_a.trace(), cov_b.trace(), overlap)


def fid(features_a: Any, features_b: Any, *, block: int = 1024) -> Tensor:
    """Fréchet distance between two sets of features (N, d), (M, d), with unbiased covariances.

    With centred X (N, d) and Y (M, d), ``tr (A B)^(1/2)`` is the sum of the singular values of
    ``X Y' / sqrt((N - 1) (M - 1))``: exact, and much faster than any d x d root where N or M is below d. A single
    sample has covariance 0. Memory beyond the features: ``block`` rows, and d x d or N x M float64.
    """
    a, b = as_features(features_a, "features_a"), as_features(features_b, "features_b")
    same_dimensions(a, b)
    if min(len(a), len(b)) > a.shape[1]:
        return frechet_distance(*_moments(a, block), *_moments(b, block))
    if len(a) > len(b):
        a, b = b, a
    mean_a, mean_b = (mean_row(x, block) for x in (a, b))
    few = a.double() - mean_a  # (N, d)
    spread_b, products = few.new_zeros(()), []
    for part in b.split(block):
        centred = part.double() - mean_b
        spread_b += centred.square().sum()
        products.append(few @ centred.T)  # (N, block)
    free_a, free_b = (max(1, len(x) - 1) for x in (a, b))
    tall = torch.cat(products, 1).T  # LAPACK is several times slower on the wide one
    overlap = torch.linalg.svdvals(tall).sum() / math.sqrt(free_a * free_b)
    return _distance(mean_a - mean_b, few.square().sum() / free_a, spread_b / free_b, overlap)


def _root(cov: Tensor, name: str) -> Tensor:
    values, vectors = torch.linalg.eigh(cov)
    if (cov - cov.T).abs().max() > 1e-6 * cov.abs().max() or values[0] < -1e-6 * values.abs().max():
        raise ValueError(f"{name} is no covariance: expected a symmetric matrix without negative eigenvalues")
    noise = len(cov) * torch.finfo(cov.dtype).eps * values[-1]  # what rounding makes of 0, harmful once rooted
    return vectors * values.where(values > noise, 0.0).clamp(min=0).sqrt() @ vectors.T


def _distance(shift: Tensor, trace_a: Tensor, trace_b: Tensor, overlap: Tensor) -> Tensor:
    return (shift.square().sum() + trace_a + trace_b - 2 * overlap).clamp(min=0)  # rounding may fall below


def _moments(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    mean = mean_row(x, block)
    cov = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=x.device)
    for part in x.split(block):
        centred = part.double() - mean
        cov.addmm_(centred.T, centred)
    return mean, cov / max(1, len(x) - 1)
