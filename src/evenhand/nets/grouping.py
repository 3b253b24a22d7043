"""Largest singular values of vectors written as near-square matrices: what gSN divides by and gSR penalises.

Computed in float32 at least, also under autocast.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

State = dict[str, Tensor]  # power-iteration vectors, kept by the caller between calls


def near_square(width: int) -> tuple[int, int]:
    """The factors (n_g, n_c) of ``width`` closest to a square, n_g <= n_c: 256 -> (16, 16), 384 -> (16, 24)."""
    rows = next(r for r in range(math.isqrt(width), 0, -1) if width % r == 0)
    if rows == 1 and width > 3:
        warnings.warn(f"{width} channels cannot be grouped: the norm of the whole vector is taken", stacklevel=2)
    return rows, width // rows


def group_spectral_norm(
    weights: Tensor, groups: int | tuple[int, int] | None = None, *, iterations: int = 4, state: State | None = None
) -> Tensor:
    """Largest singular value of each row of ``weights`` as an (n_g, n_c) matrix, (K, d) -> (K,).

    ``groups`` is n_g or (n_g, n_c). The left singular vectors are kept in ``state``, a dict for each tensor, and
    refined by ``iterations`` rounds of power iteration per call; without them, or without ``state``, the start is
    exact (eigenvectors of the smaller Gram matrix). The gradient is that of sigma, ``u v^T``.
    """
    return spectral_norm(grouped(weights, groups), iterations, state)


def class_spectral_norms(tables: Sequence[Tensor], *, iterations: int = 4, state: State | None = None) -> Tensor:
    """``group_spectral_norm`` of several (K, d) tables, d may differ, at once: (tables, K).

    Tables of one width share the products; every table and class has its own vector in ``state``.
    """
    if not tables:
        raise ValueError("tables is empty: give at least one (K, d) tensor")
    places: dict[int, list[int]] = {}
    for i, table in enumerate(tables):
        if table.ndim != 2 or len(table) != len(tables[0]):
            raise ValueError(f"table {i} has shape {tuple(table.shape)}: expected (K, d) with K={len(tables[0])}")
        places.setdefault(table.shape[1], []).append(i)
    norms: dict[int, Tensor] = {}
    for width, members in places.items():
        stacked = torch.cat([tables[i] for i in members])  # (M K, d)
        sigma = spectral_norm(grouped(stacked), iterations, state, f"left.{width}")
        norms.update(zip(members, sigma.view(len(members), -1), strict=True))
    return torch.stack([norms[i] for i in range(len(tables))])


def group_normalised(
    weights: Tensor, groups: int | tuple[int, int] | None = None, *, iterations: int = 4, state: State | None = None
) -> Tensor:
    """The baseline gSN: each class's vector divided by its ``group_spectral_norm``, (K, d), for the forward pass."""
    sigma = group_spectral_norm(weights, groups, iterations=iterations, state=state)
    return weights / sigma.clamp_min(1e-6).to(weights)[:, None]


def grouped(weights: Tensor, groups: int | tuple[int, int] | None = None) -> Tensor:
    """(K, d) -> (K, n_g, n_c), near square unless told."""
    if weights.ndim != 2 or weights.shape[1] == 0:
        raise ValueError(f"weights of shape {tuple(weights.shape)}: expected (K, d), a row per class")
    width = weights.shape[1]
    if groups is None:
        groups = near_square(width)
    elif isinstance(groups, int):
        groups = (groups, width // max(groups, 1))
    if groups[0] < 1 or groups[0] * groups[1] != width:
        raise ValueError(f"groups={groups} do not hold {width} channels: choose factors of it")
    return weights.reshape(-1, *groups)


def spectral_norm(matrices: Tensor, iterations: int = 4, state: State | None = None, key: str = "left") -> Tensor:
    """(M, n, m) -> (M,); ``state[key]`` keeps the left vectors (M, n)."""
    if iterations < 1:
        raise ValueError(f"iterations={iterations}: power iteration takes at least 1")
    matrices = widened(matrices)
    with torch.no_grad(), torch.autocast(matrices.device.type, enabled=False):
        fixed = matrices.detach()
        u = _exact(fixed) if state is None or key not in state else _warm(state[key], fixed)
        v = fixed.new_full(fixed.shape[::2], fixed.shape[2] ** -0.5)
        for _ in range(iterations):
            v = _unit((u[:, None] @ fixed)[:, 0], otherwise=v)
            u = _unit((fixed @ v[:, :, None])[:, :, 0], otherwise=u)
        if state is not None:
            state[key] = u
    return (matrices * (u[:, :, None] * v[:, None])).sum((1, 2))


def _warm(left: Tensor, matrices: Tensor) -> Tensor:
    """The former vectors, turned slightly towards the longest row: orthogonal to the new largest they would stay."""
    if left.shape != matrices.shape[:2]:
        raise ValueError(f"state holds {tuple(left.shape)} vectors for {tuple(matrices.shape)}: one state per network")
    longest = matrices.square().sum(2).argmax(1, keepdim=True)  # (M, 1)
    return left.to(matrices, copy=True).scatter_add_(1, longest, matrices.new_full(longest.shape, 1e-3))


def _exact(matrices: Tensor) -> Tensor:
    """Left singular vectors of the largest singular values."""
    if matrices.shape[1] > matrices.shape[2]:
        uniform = matrices.new_full(matrices.shape[:2], matrices.shape[1] ** -0.5)
        return _unit((matrices @ _exact(matrices.mT)[:, :, None])[:, :, 0], otherwise=uniform)
    # A diverged network shall report nan in the end instead of failing here.
    return torch.linalg.eigh(torch.nan_to_num(matrices @ matrices.mT)).eigenvectors[:, :, -1]


def _unit(x: Tensor, *, otherwise: Tensor) -> Tensor:
    """Rows scaled to length 1; a row without direction (0, inf, nan) keeps its former one, lest it stay lost."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return torch.where((length > 0) & length.isfinite(), x / length, otherwise)


def widened(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
