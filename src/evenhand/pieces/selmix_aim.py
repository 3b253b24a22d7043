"""What SelMix climbs: a metric of the confusion matrix, perhaps under coverage floors, with multipliers that follow C.

Without memory the multipliers are the closed forms of the present C; with it, worst recall follows exponentiated
gradient (``lambda <- lambda exp(-sharpness recall)``, normalised) and coverage projected gradient, capped.

>>> from evenhand.measure.confusion import mean_recall
>>> aim = Aim(mean_recall, cover=True)
>>> C = torch.tensor([[0.5, 0.0], [0.45, 0.05]])
>>> duals = aim.follow(C, aim.start(2))
>>> [round(v, 1) for v in duals["coverage"].tolist()]                     # class 1 is predicted too seldom
[0.0, 100.0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.measure.confusion import coverages, recalls
from evenhand.pieces.cost_sensitive import update_coverage_duals, update_min_recall_duals
from evenhand.pieces.gain import Groups, membership
from evenhand.pieces.selmix_objectives import coverage_duals, soft_min_duals, soft_min_recall, under_coverage

Metric = Callable[[Tensor], Tensor]
Duals = dict[str, Tensor]  # "recall" and "coverage", one number for each class or group; empty where there are none


@dataclass(frozen=True)
class Aim:
    """``metric`` None is the worst recall, of classes or of ``groups``; ``cover`` asks for coverage of each.

    floor: least coverage, default 0.95/K. The other numbers are those of ``soft_min_duals`` and ``coverage_duals``;
    ``step`` is that of the coverage multipliers with memory.
    """

    metric: Metric | None = None
    groups: Groups | None = None
    cover: bool = False
    cover_groups: Groups | None = None
    sharpness: float = 40.0
    floor: float | None = None
    cap: float = 100.0
    tolerance: float = 0.01
    memory: bool = False
    step: float = 100.0

    def start(self, classes: int) -> Duals:
        """Worst recall: all alike; coverage: 0."""
        worst = 0 if self.metric is not None else classes if self.groups is None else len(self.groups)
        cover = 0 if not self.cover else classes if self.cover_groups is None else len(self.cover_groups)
        return {"recall": torch.full((worst,), 1 / max(worst, 1)), "coverage": torch.zeros(cover)}

    def follow(self, C: Tensor, duals: Duals) -> Duals:
        """The multipliers after a look at C."""
        worst, cover = duals["recall"], duals["coverage"]
        if len(worst):
            values = _means(recalls(C), self.groups)
            worst = update_min_recall_duals(worst.to(C), values, self.sharpness) if self.memory else soft_min_duals(
                values, self.sharpness
            )  # fmt: skip
        if len(cover):
            seen, least = _means(coverages(C), self.cover_groups), self._least(C)
            if self.memory:
                cover = update_coverage_duals(cover.to(C), seen, self.step, least).clamp_max(self.cap)
            else:
                cover = coverage_duals(seen, least, self.cap, self.tolerance)
        return {"recall": worst, "coverage": cover}

    def at(self, duals: Duals) -> Metric:
        """The objective as a function of C, its multipliers held."""

        def plain(C: Tensor) -> Tensor:
            if self.metric is not None:
                return self.metric(C)
            return soft_min_recall(C, groups=self.groups, duals=duals["recall"])

        if not self.cover:
            return plain
        return lambda C: under_coverage(
            plain, floor=self._least(C), groups=self.cover_groups, duals=duals["coverage"]
        )(C)  # fmt: skip

    def _least(self, C: Tensor) -> float:
        return 0.95 / len(C) if self.floor is None else self.floor


def _means(values: Tensor, groups: Groups | None) -> Tensor:
    return values if groups is None else membership(groups, len(values)).to(values) @ values
