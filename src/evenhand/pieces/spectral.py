"""Group spectral regularisation (gSR): a brake on the class-conditional parameters of a generator.

A class about to collapse shows in its conditional-BatchNorm parameters: the gain (and bias) vector of d numbers,
written row by row into an (n_g, n_c) matrix, gets a runaway largest singular value. gSR adds its square to the
generator's loss, for all classes at every layer, rare classes weighted more.

    state = {}                              # power-iteration vectors; save it with the checkpoint
    for step in range(steps):
        gains, biases = conditional_parameters(generator)     # or lists of (K, d) tensors of any generator
        (adversarial + strength * gsr_loss(gains, biases, counts, state=state)).backward()

The gain is the residual e of a layer that multiplies by 1 + e: on 1 + e itself the penalty would pull all classes
together. Singular values are computed in float32 at least, also under autocast.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from evenhand.pieces.losses import PerClass

State = dict[str, Tensor]


@runtime_checkable
class Conditional(Protocol):
    """A layer with parameters of its own for every class."""

    def class_parameters(self) -> tuple[Tensor, Tensor]:
        """Residual gain e (the layer multiplies by 1 + e) and bias of all classes, (K, d) each, with gradients."""


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
    return _spectral_norm(_grouped(weights, groups), iterations, state, "left")


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
        sigma = _spectral_norm(_grouped(stacked, None), iterations, state, f"left.{width}")
        norms.update(zip(members, sigma.view(len(members), -1), strict=True))
    return torch.stack([norms[i] for i in range(len(tables))])


def gsr_loss(
    gains: Sequence[Tensor],
    biases: Sequence[Tensor],
    counts: PerClass,
    *,
    alpha: float = 0.99,
    form: Literal["sum", "mean"] = "sum",
    iterations: int = 4,
    state: State | None = None,
) -> Tensor:
    """``sum over layers l and classes y of lambda_y (sigma(gain_ly)^2 + sigma(bias_ly)^2)``.

    ``gains`` and ``biases`` hold one (K, d) tensor per layer; ``biases`` may be empty. ``form="mean"``, that of the
    released code, scales the class weights to mean 1 and takes the mean over layers and classes.
    """
    tables = _tables(gains, biases, counts)
    squares = class_spectral_norms(tables, iterations=iterations, state=state).square()  # (2 L, K)
    return _weighted(squares, len(gains), counts, alpha, form)


def gsrip_loss(
    gains: Sequence[Tensor],
    biases: Sequence[Tensor],
    counts: PerClass,
    *,
    alpha: float = 0.99,
    form: Literal["sum", "mean"] = "sum",
) -> Tensor:
    """The baseline gSRIP: as ``gsr_loss`` with ``sigma(Gram - 1)^2``, zero when the groups are orthonormal.

    The Gram matrix is that of the n_g <= n_c groups; the larger one could never be the identity.
    """
    squares = []
    for table in _tables(gains, biases, counts):
        grouped = _wide(_grouped(table, None))
        with torch.autocast(grouped.device.type, enabled=False):
            gram = grouped @ grouped.mT  # (K, n_g, n_g)
        squares.append(_spectral_norm(gram - torch.eye(gram.shape[1]).to(gram), 4, None, "left").square())
    return _weighted(torch.stack(squares), len(gains), counts, alpha, form)


def group_normalised(
    weights: Tensor, groups: int | tuple[int, int] | None = None, *, iterations: int = 4, state: State | None = None
) -> Tensor:
    """The baseline gSN: each class's vector divided by its ``group_spectral_norm``, (K, d), for the forward pass."""
    sigma = group_spectral_norm(weights, groups, iterations=iterations, state=state)
    return weights / sigma.clamp_min(1e-6).to(weights)[:, None]


def conditional_parameters(generator: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Residual gains and biases, a (K, d) tensor per layer, of all ``Conditional`` modules, in their order."""
    pairs = [module.class_parameters() for module in generator.modules() if isinstance(module, Conditional)]
    if not pairs:
        name = type(generator).__name__
        raise ValueError(f"{name} has no conditional BatchNorm of ours: give gsr_loss lists of (K, d) tensors instead")
    gains, biases = zip(*pairs, strict=True)
    return list(gains), list(biases)


def inverse_effective_number(counts: PerClass, alpha: float = 0.99) -> Tensor:
    """gSR's class weights ``(1 - alpha) / (1 - alpha^n)``, (K,): 1 at n = 1, falling to 1 - alpha."""
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha={alpha} is outside [0, 1): use 0 for equal weights, 0.99 for the paper's")
    n = torch.as_tensor(counts, dtype=torch.float64)
    if n.ndim != 1 or (n.device.type == "cpu" and not (n > 0).all()):
        raise ValueError(f"counts={n.tolist()}: expected one positive number per class")
    return (1 - alpha) / -torch.expm1(n * math.log(alpha)) if alpha else torch.ones_like(n)


def _tables(gains: Sequence[Tensor], biases: Sequence[Tensor], counts: PerClass) -> list[Tensor]:
    if biases and len(biases) != len(gains):
        raise ValueError(f"{len(gains)} gains and {len(biases)} biases: give one of each per layer, or no biases")
    tables = [*gains, *biases]
    for i, table in enumerate(tables):
        if table.ndim != 2 or len(table) != len(counts):
            raise ValueError(f"table {i} has shape {tuple(table.shape)}: expected (K, d) with K={len(counts)} counts")
    return tables


def _weighted(squares: Tensor, layers: int, counts: PerClass, alpha: float, form: str) -> Tensor:
    weights = inverse_effective_number(counts, alpha).to(squares)
    if form == "sum":
        return (weights * squares).sum()
    if form == "mean":
        return (weights / weights.mean() * squares).sum() / (layers * len(weights))
    raise ValueError(f"form='{form}': choose 'sum' or 'mean'")


def _grouped(weights: Tensor, groups: int | tuple[int, int] | None) -> Tensor:
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


def _spectral_norm(matrices: Tensor, iterations: int, state: State | None, key: str) -> Tensor:
    """(M, n, m) -> (M,); ``state[key]`` keeps the left vectors (M, n)."""
    if iterations < 1:
        raise ValueError(f"iterations={iterations}: power iteration takes at least 1")
    matrices = _wide(matrices)
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


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
