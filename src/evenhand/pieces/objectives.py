"""What cost-sensitive training aims at: each objective turns validation confusion matrices into a gain.

An objective has ``start(num_classes)`` -> multipliers, ``update(duals, C)`` -> new multipliers and ``gain(duals, C)``.
It keeps no state: the multipliers are a plain tensor that the method owns, saves and hands back.

>>> worst_group = AnyMetric(lambda C: group_mean_recall(C, [[0, 1], [2]]), priors=[0.6, 0.3, 0.1])
>>> C = torch.tensor([[0.3, 0.0, 0.0], [0.1, 0.2, 0.0], [0.3, 0.0, 0.1]])
>>> duals = worst_group.update(worst_group.start(3), C)
>>> gain = worst_group.gain(duals, C)

Metrics are larger for better matrices and written in torch operations, such as ::

    def f_beta(C, beta=2.0):
        right, asked, given = C.diagonal(), C.sum(1), C.sum(0)
        return ((1 + beta**2) * right / (beta**2 * asked + given).clamp_min(1e-9)).mean()

    def q_mean(C):
        return 1 - ((1 - recalls(C)).square().mean() + 1e-9).sqrt()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from evenhand.measure.confusion import coverages, group_mean_recall, recalls
from evenhand.pieces.cost_sensitive import update_coverage_duals, update_min_recall_duals
from evenhand.pieces.gain import Gain, Groups, checked_gain, class_priors, membership
from evenhand.pieces.losses import PerClass
from evenhand.pieces.slope import metric_slope


class Objective(Protocol):
    def start(self, num_classes: int) -> Tensor: ...
    def update(self, duals: Tensor, C: Tensor) -> Tensor: ...
    def gain(self, duals: Tensor, C: Tensor) -> Tensor | Gain: ...


@dataclass(frozen=True)
class FixedGain:
    """Nothing moves: a cost matrix of the user's, ``Gain(1 / priors)`` (logit adjustment), ``Gain(ones)`` (ERM)."""

    matrix: Tensor | Gain

    def __post_init__(self) -> None:
        checked_gain(self.matrix, self.matrix if isinstance(self.matrix, Tensor) else self.matrix.own)

    def start(self, num_classes: int) -> Tensor:
        return torch.empty(0)

    def update(self, duals: Tensor, C: Tensor) -> Tensor:
        return duals

    def gain(self, duals: Tensor, C: Tensor) -> Tensor | Gain:
        return self.matrix


@dataclass(frozen=True)
class MinRecall:
    """The worst recall, or with groups (head, tail) the worst of their mean recalls; exponentiated gradient."""

    priors: PerClass
    step: float = 0.25
    groups: Groups | None = None

    def start(self, num_classes: int) -> Tensor:
        return _even(num_classes if self.groups is None else len(self.groups))

    def update(self, duals: Tensor, C: Tensor) -> Tensor:
        seen = recalls(C) if self.groups is None else group_mean_recall(C, self.groups)
        return update_min_recall_duals(duals, seen, self.step)

    def gain(self, duals: Tensor, C: Tensor) -> Gain:
        return Gain.min_recall(duals, self.priors, self.groups)


@dataclass(frozen=True)
class Coverage:
    """Mean recall while every class's coverage, or every group's mean coverage, reaches ``floor`` (default 0.95/K)."""

    priors: PerClass
    step: float = 0.25
    floor: float | PerClass | None = None
    groups: Groups | None = None
    balanced: bool = False

    def __post_init__(self) -> None:
        sizes = torch.ones(len(self.priors)) if self.groups is None else torch.tensor([len(g) for g in self.groups])
        if (total := float((torch.as_tensor(self._floor()) * sizes).sum())) > 1 + 1e-5:
            raise ValueError(f"floor={self.floor} asks for a total coverage of {total:.4g}: lower it to a sum below 1")

    def start(self, num_classes: int) -> Tensor:
        return torch.full_like(_even(num_classes if self.groups is None else len(self.groups)), 1 / num_classes)

    def update(self, duals: Tensor, C: Tensor) -> Tensor:
        seen = coverages(C) if self.groups is None else membership(self.groups, len(C)).to(C) @ coverages(C)
        return update_coverage_duals(duals, seen, self.step, self._floor())

    def gain(self, duals: Tensor, C: Tensor) -> Gain:
        return Gain.coverage(duals, self.priors, self.groups, balanced=self.balanced)

    def _floor(self) -> float | PerClass:
        return 0.95 / len(self.priors) if self.floor is None else self.floor


@dataclass(frozen=True)
class AnyMetric:
    """A function of the confusion matrix: one number to maximise, or several (m,) of which the worst counts.

    Several share multipliers as in :class:`MinRecall`; the gain is the derivative of their weighted sum.
    """

    metric: Callable[[Tensor], Tensor]
    priors: PerClass
    step: float = 0.25

    def start(self, num_classes: int) -> Tensor:
        chance = _even(num_classes)
        return _even(len(torch.atleast_1d(self.metric(torch.outer(chance, chance)))))

    def update(self, duals: Tensor, C: Tensor) -> Tensor:
        return update_min_recall_duals(duals, torch.atleast_1d(self.metric(C)), self.step)

    def gain(self, duals: Tensor, C: Tensor) -> Tensor:
        return linearised_gain(lambda C: (duals.to(C) * self.metric(C)).sum(), C, self.priors)


def linearised_gain(
    metric: Callable[[Tensor], Tensor], confusion: Tensor, priors: PerClass, *, share: float = 0.01
) -> Tensor:
    """(K, K) derivative of ``metric`` at ``confusion``, as a gain under the training mix.

    With P the derivative and v the class shares in ``confusion``, ``G_ij = P_ij v_i / prior_i`` less the row's least
    entry, which changes no decision: mean recall gives ``diag(1 / (K prior))``. For a ratio of linear functions
    this is Dinkelbach's gain. So that every class stays worth learning, each earns on the diagonal at least
    ``share`` of what it would if mean recall paid the same total; where nothing is left to gain, mean recall pays.
    """
    prior = class_priors(priors).to(confusion)
    if confusion.shape != (len(prior), len(prior)):
        raise ValueError(f"confusion of shape {tuple(confusion.shape)}: expected (K, K) for {len(prior)} priors")
    slope = metric_slope(metric, confusion)
    gain = slope * (confusion.sum(1) / prior)[:, None]
    gain = gain - gain.amin(1, keepdim=True)
    mean_recall = 1 / (len(prior) * prior)  # (K,) its diagonal, which pays a perfect classifier 1
    if not gain.any():
        return torch.diag(mean_recall)
    total = (gain.diagonal() * prior).sum()
    if not total > 0:
        raise ValueError(f"metric={metric!r} rewards no class predicted right: larger must be better, negate a cost")
    return gain + torch.diag((share * total * mean_recall - gain.diagonal()).clamp_min(0))


def _even(parts: int) -> Tensor:
    return torch.full((parts,), 1 / parts, dtype=torch.float64)
