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
from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from evenhand.given import as_tensor
from evenhand.nets.grouping import (
    State,
    class_spectral_norms,
    group_normalised,
    group_spectral_norm,
    grouped,
    near_square,
    spectral_norm,
    widened,
)
from evenhand.pieces.losses import PerClass

__all__ = [
    "Conditional", "State", "class_spectral_norms", "conditional_parameters", "group_normalised", "group_spectral_norm",
    "gsr_loss", "gsrip_loss", "inverse_effective_number", "near_square",
]  # fmt: skip


@runtime_checkable
class Conditional(Protocol):
    """A layer with parameters of its own for every class."""

    def class_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Residual gain e (the layer multiplies by 1 + e) and bias of all classes, (K, d) each, with gradients.

        StyleGAN2's is its class embedding, and there is no bias.
        """


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
        matrices = widened(grouped(table))  # (K, n_g, n_c)
        with torch.autocast(matrices.device.type, enabled=False):
            gram = matrices @ matrices.mT
        squares.append(spectral_norm(gram - torch.eye(gram.shape[1]).to(gram)).square())
    return _weighted(torch.stack(squares), len(gains), counts, alpha, form)


def conditional_parameters(generator: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Residual gains and biases, a (K, d) tensor per layer, of all ``Conditional`` modules, in their order."""
    pairs = [module.class_parameters() for module in generator.modules() if isinstance(module, Conditional)]
    if not pairs:
        name = type(generator).__name__
        raise ValueError(f"{name} has no conditional BatchNorm of ours: give gsr_loss lists of (K, d) tensors instead")
    gains, biases = zip(*pairs, strict=True)
    return list(gains), [bias for bias in biases if bias is not None]


def inverse_effective_number(counts: PerClass, alpha: float = 0.99) -> Tensor:
    """gSR's class weights ``(1 - alpha) / (1 - alpha^n)``, (K,): 1 at n = 1, falling to 1 - alpha."""
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha={alpha} is outside [0, 1): use 0 for equal weights, 0.99 for the paper's")
    n = as_tensor(counts, dtype=torch.float64)
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
