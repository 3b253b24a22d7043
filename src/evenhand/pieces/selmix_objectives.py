"""What SelMix can aim at beside the plain metrics: soft worst recalls, coverage floors, and a C without zeros.

Each is a function of the confusion matrix C (K, K) for :func:`evenhand.pieces.selmix.pair_gain`, as are
``mean_recall``, ``g_mean`` and ``h_mean`` of ``evenhand.measure.confusion``. The multipliers follow from C in closed
form and are constants to the derivative. For multipliers with memory give ``duals``, made by ``cost_sensitive``'s
``update_min_recall_duals(duals, recalls, step=sharpness)`` and ``update_coverage_duals``.

>>> from evenhand.measure.confusion import h_mean
>>> C = smoothed(torch.tensor([[0.5, 0.0], [0.5, 0.0]]), samples=20)           # class 1 is never found
>>> round(float(soft_min_recall(C, sharpness=40.0)), 4)
0.0833
>>> careful = under_coverage(h_mean, floor=0.95 / 2)                          # H-mean, each class predicted enough
>>> round(float(careful(C)), 4)
-0.3863
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evenhand.measure.confusion import coverages, recalls
from evenhand.pieces.gain import Groups, membership
from evenhand.pieces.losses import PerClass


def soft_min_recall(
    C: Tensor, *, sharpness: float = 40.0, groups: Groups | None = None, duals: PerClass | None = None
) -> Tensor:
    """``sum_i lambda_i recall_i`` with lambda from :func:`soft_min_duals`; of mean recalls with groups (head, tail).

    Classes without samples are left out. Sharpness 0 gives the mean, infinity the worst; the paper takes 20 to 100.
    """
    there = C.detach().sum(1) > 0
    means = torch.eye(len(C)).to(C) if groups is None else membership(groups, len(C)).to(C)  # (G, K)
    means = means * there
    judged = means.any(1)
    values = (means[judged] / means[judged].sum(1, keepdim=True)) @ recalls(C)
    if duals is None:
        return (soft_min_duals(values, sharpness) * values).sum()
    return (_one_each("duals", duals, means[:, 0])[judged] * values).sum()


def under_coverage(
    metric: Callable[[Tensor], Tensor],
    *,
    floor: float | PerClass | None = None,
    groups: Groups | None = None,
    cap: float = 100.0,
    tolerance: float = 0.01,
    duals: PerClass | None = None,
) -> Callable[[Tensor], Tensor]:
    """``(metric(C) + sum_j lambda_j (coverage_j - floor_j)) / (1 + max lambda)``, as a function of C.

    Each class's coverage, or the mean over each group's classes, is to reach ``floor`` (default 0.95/K); lambda from
    :func:`coverage_duals`. Without the divisor a violated floor would saturate the softmax over gains.
    """

    def constrained(C: Tensor) -> Tensor:
        seen = coverages(C) if groups is None else membership(groups, len(C)).to(C) @ coverages(C)
        least = _one_each("floor", 0.95 / len(C) if floor is None else floor, seen)
        given = coverage_duals(seen, least, cap, tolerance) if duals is None else _one_each("duals", duals, seen)
        return (metric(C) + (given * (seen - least)).sum()) / (1 + given.max())

    return constrained


def soft_min_duals(values: Tensor, sharpness: float) -> Tensor:
    """``exp(-sharpness value_i)``, normalised to sum 1: the worst has most; constants."""
    return (-sharpness * torch.as_tensor(values).detach()).softmax(0)


def coverage_duals(coverages: Tensor, floor: float | Tensor, cap: float = 100.0, tolerance: float = 0.01) -> Tensor:
    """``max(0, cap (1 - exp((coverage_j - floor_j) / tolerance)))``: 0 where met, near ``cap`` far below; constants."""
    excess = torch.as_tensor(coverages).detach() - floor
    return (-cap * torch.expm1(excess.clamp_max(0) / tolerance)).clamp_min(0)


def smoothed(confusion: Tensor, samples: int, count: float = 1.0) -> Tensor:
    """C as if each class had ``count`` more samples found and ``count`` more missed (spread evenly); priors stay.

    samples: how many C was counted from. At recall 0 no logit moves the metric, so C as it is gives a class that is
    never found no say. Recalls become (n_ii + count) / (n_i + 2 count), whatever K is.
    """
    if not (samples > 0 and count >= 0):
        raise ValueError(f"samples={samples}, count={count}: expected samples above 0 and a count of at least 0")
    classes = len(confusion)
    more = torch.full_like(confusion, count / max(classes - 1, 1)).fill_diagonal_(count)
    prior = confusion.sum(1, keepdim=True)
    rows = confusion * samples + more
    return prior * rows / rows.sum(1, keepdim=True)


def _one_each(name: str, given: float | PerClass, values: Tensor) -> Tensor:
    found = torch.as_tensor(given).detach().to(values)
    if found.ndim and found.shape != values.shape:
        raise ValueError(f"{name} of shape {tuple(found.shape)}: expected ({len(values)},), one per class or group")
    return found.expand_as(values)
