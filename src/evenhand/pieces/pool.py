"""What all selectors share: what they refuse, and how they rank. A selector returns indices in the order of its picks.

Equal scores go by the lowest index first, so that a selection can be repeated.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from evenhand.given import numbers

TINY = 1e-38  # stands for a probability of exactly 0 in logarithms: no softmax in float32 gives a smaller normal number


def highest(scores: Tensor, budget: int) -> list[int]:
    """Indices of the ``budget`` highest of ``scores`` (N,), best first."""
    return scores.sort(descending=True, stable=True).indices[:budget].tolist()


def entropy(probs: Tensor) -> Tensor:
    """(N,) ``-sum p ln p``; rows that are permutations of each other are equal to the last bit."""
    return -torch.xlogy(probs, probs).sort(1).values.sum(1).clamp_max(0)


def draw(weights: Tensor, generator: torch.Generator) -> int:
    """An index in proportion to ``weights`` (N,), none of them negative, at least one positive."""
    ends = weights.double().cumsum(0)
    aim = torch.rand((), generator=generator, device=generator.device, dtype=torch.float64).to(ends.device) * ends[-1]
    found = int(torch.searchsorted(ends, aim, right=True))
    return min(found, int(weights.nonzero()[-1]))  # rounding may carry the aim to the very end


def check_budget(budget: int, pool: int) -> int:
    try:
        count = operator.index(budget)
    except TypeError:
        raise ValueError(f"budget={budget!r} is not a whole number: give the number of samples to pick") from None
    if not 0 <= count <= pool:
        raise ValueError(f"budget={budget}: choose between 0 and the {pool} samples of the pool")
    return count


def check_probs(probs: Any) -> Tensor:
    """(N, K) in float64, rows that sum to 1 but for rounding."""
    p = check_matrix("probs", probs).double()
    if p.shape[1] < 2 or (p < 0).any() or ((p.sum(1) - 1).abs() > 0.02).any():
        found = f"shape {tuple(p.shape)}, {float(p.min()):.3g} to {float(p.max()):.3g}" if p.numel() else "no classes"
        raise ValueError(f"probs ({found}) are not probabilities of 2 or more classes: take logits.softmax(1)")
    return p


def check_matrix(name: str, x: Any, rows: int | None = None, columns: int | None = None) -> Tensor:
    """(N, d), at least float32, without gradient."""
    x = numbers(x)
    if x.ndim != 2 or (rows is not None and len(x) != rows) or (columns is not None and x.shape[1] != columns):
        want = f"({'N' if rows is None else rows}, {'d' if columns is None else columns})"
        raise ValueError(f"{name} of shape {tuple(x.shape)}: expected {want}, one row for each sample of the pool")
    return _finite(name, x)


def check_scores(name: str, scores: Any, rows: int | None = None) -> Tensor:
    """(N,), at least float32, without gradient."""
    scores = numbers(scores)
    if scores.ndim != 1 or (rows is not None and len(scores) != rows):
        want = "(N,)" if rows is None else f"({rows},)"
        raise ValueError(f"{name} of shape {tuple(scores.shape)}: expected {want}, one score for each sample")
    return _finite(name, scores)


def _finite(name: str, x: Tensor) -> Tensor:
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    bad = ~x.isfinite().flatten(1).all(1) if x.ndim > 1 else ~x.isfinite()
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(f"{name}: {int(bad.sum())} rows are not finite, first row {row}: leave them out of the pool")
    return x
