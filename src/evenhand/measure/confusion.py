"""The confusion matrix C (K, K) and what is read from it: rows are the truth, entries sum to 1.

All values are differentiable in C, so a metric is also an objective. A class absent from the targets has
recall 0 and a class never predicted precision 0, never nan; ``absent_classes`` lets a report say so.

>>> C = confusion_matrix(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]), 2)
>>> recalls(C).tolist(), coverages(C).tolist()
([1.0, 0.6666666666666666], [0.5, 0.5])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenhand.given import as_tensor

ZERO_RECALL_FLOOR = 1e-7


def confusion_matrix(predicted: Any, target: Any, num_classes: int) -> Tensor:
    """(K, K) float64: share of samples of class i (row) predicted as j (column), from (N,) class indices."""
    predicted, target = as_tensor(predicted), as_tensor(target)
    if predicted.ndim != 1 or predicted.shape != target.shape or not len(target):
        shapes = f"predicted {tuple(predicted.shape)} and target {tuple(target.shape)}"
        raise ValueError(f"{shapes}: expected equal shapes (N,), N >= 1; take argmax(1) of scores first")
    for name, labels in (("predicted", predicted), ("target", target)):
        if labels.is_floating_point():
            raise ValueError(f"{name} has type {labels.dtype}: expected integer class indices")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise ValueError(f"{name} holds {wrong}: expected 0..{num_classes - 1}, check num_classes")
    pairs = target.long() * num_classes + predicted.long().to(target.device)
    counts = torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)
    return counts.double() / len(target)


def recalls(C: Tensor) -> Tensor:
    """(K,) ``C_ii / sum_j C_ij``; 0 for a class absent from the targets."""
    C = _square(C)
    return _ratio(C.diagonal(), C.sum(1))


def precisions(C: Tensor) -> Tensor:
    """(K,) ``C_jj / sum_i C_ij``; 0 for a class never predicted."""
    C = _square(C)
    return _ratio(C.diagonal(), C.sum(0))


def coverages(C: Tensor) -> Tensor:
    """(K,) share of all samples predicted as each class; sums to 1."""
    return _square(C).sum(0)


def absent_classes(C: Tensor) -> list[int]:
    """Classes without a single target, whose recall counts as 0."""
    return [int(i) for i in (_square(C).sum(1) == 0).nonzero()]


def accuracy(C: Tensor) -> Tensor:
    """Share of samples predicted right; equal to ``mean_recall`` only where the targets are balanced."""
    return _square(C).diagonal().sum()


def mean_recall(C: Tensor) -> Tensor:
    return recalls(C).mean()


def min_recall(C: Tensor) -> Tensor:
    return recalls(C).amin()


def g_mean(C: Tensor) -> Tensor:
    """Geometric mean of the recalls, 0 if one of them is."""
    return _zero_with_gradient(recalls(C), lambda r: r.log().mean().exp())


def h_mean(C: Tensor) -> Tensor:
    """Harmonic mean of the recalls, 0 if one of them is."""
    return _zero_with_gradient(recalls(C), lambda r: 1 / (1 / r).mean())


def q_mean(C: Tensor) -> Tensor:
    """``1 - sqrt(mean (1 - recall)^2)``: the quadratic mean of the misses, turned round."""
    misses = (1 - recalls(C)).square().mean()
    return 1 - (misses + ZERO_RECALL_FLOOR).sqrt()  # the root's slope at 0 is infinite


def f_beta(C: Tensor, beta: float = 1.0) -> Tensor:
    """Mean over classes of ``(1 + beta^2) P R / (beta^2 P + R)``; above 1, beta weighs recall R over precision P."""
    return f_scores(C, beta).mean()


def f_scores(C: Tensor, beta: float = 1.0) -> Tensor:
    """(K,) the same of each class; 0 for one that is neither there nor predicted."""
    C = _square(C)
    return _ratio((1 + beta**2) * C.diagonal(), beta**2 * C.sum(1) + C.sum(0))


def group_mean_recall(C: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """(G,) mean recall over the classes of each group, such as ``[[0, 1, 2], [3, 4, 5, 6], [7, 8, 9]]``."""
    r = recalls(C)
    try:
        groups = [[int(c) for c in group] for group in groups]
    except (TypeError, ValueError) as error:
        raise ValueError(f"groups={groups!r}: list the class indices of each, such as [[0, 1, 2], [3, 4]]") from error
    if not groups:
        raise ValueError("groups is empty: list at least one group of class indices")
    for number, group in enumerate(groups):
        wrong = [c for c in group if not 0 <= c < len(r)]
        if wrong or not len(group):
            fault = f"holds class {wrong[0]}, outside 0..{len(r) - 1}" if wrong else "is empty"
            raise ValueError(f"groups[{number}] {fault}: list at least one class index per group")
    return torch.stack([r[group].mean() for group in groups])


def _square(C: Any) -> Tensor:
    C = as_tensor(C)
    if C.ndim != 2 or C.shape[0] != C.shape[1]:
        raise ValueError(f"C of shape {tuple(C.shape)}: expected (K, K), as confusion_matrix returns")
    return C


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part / torch.where(whole > 0, whole, 1.0)  # where the whole is 0 so is the part


def _zero_with_gradient(r: Tensor, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """``mean(r)``; where a recall is 0 so is the value, with the gradient taken at ``ZERO_RECALL_FLOOR``.

    There the true derivative is infinite; this one is finite and still points at the class with no recall.
    """
    value = mean(torch.where(r > 0, r, r + ZERO_RECALL_FLOOR))
    return torch.where((r > 0).all(), value, value - value.detach())
