"""The gain matrix G (K, K), dense or in O(K), and the checks it needs: ``G_ij`` rewards predicting j for truth i."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenhand.given import numbers
from evenhand.pieces.losses import PerClass

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Gain:
    """``G = diag(own) + outer(*shared)``: wherever a (K, K) gain is asked for, this may be given instead.

    >>> Gain(torch.tensor([1.0, 2.0]), shared=(torch.ones(2), torch.tensor([0.0, 0.5]))).dense().tolist()
    [[1.0, 0.5], [0.0, 2.5]]
    """

    own: Tensor  # (K,) reward for being right
    shared: tuple[Tensor, Tensor] | None = None  # (K,) factor of the truth, (K,) reward of the prediction

    @classmethod
    def min_recall(cls, duals: PerClass, priors: PerClass, groups: Groups | None = None) -> Gain:
        """``diag(lambda_i / prior_i)``, see :func:`evenhand.pieces.cost_sensitive.min_recall_gain`."""
        prior = class_priors(priors)
        return cls(_per_class(duals, groups, prior) / prior)

    @classmethod
    def coverage(
        cls, duals: PerClass, priors: PerClass, groups: Groups | None = None, *, balanced: bool = False
    ) -> Gain:
        """``[i = j] / (K prior_i) + lambda_j``, see :func:`evenhand.pieces.cost_sensitive.coverage_gain`."""
        prior = class_priors(priors)
        own = 1 / (len(prior) * prior)
        return cls(own, (own if balanced else torch.ones_like(own), _per_class(duals, groups, prior)))

    def dense(self) -> Tensor:
        return torch.diag(self.own) if self.shared is None else torch.diag(self.own) + torch.outer(*self.shared)

    def diagonal(self) -> Tensor:
        return self.own if self.shared is None else self.own + self.shared[0] * self.shared[1]

    def to(self, *args: Any) -> Gain:
        """As ``Tensor.to``: another device, type or both."""
        return self._map(lambda part: part.to(*args))

    def detach(self) -> Gain:
        return self._map(Tensor.detach)

    def _map(self, change: Any) -> Gain:
        return Gain(change(self.own), None if self.shared is None else (change(self.shared[0]), change(self.shared[1])))


def checked_gain(gain: Any, like: Tensor) -> Tensor | Gain:
    """The gain as a constant on the device and in the type of ``like`` (N, K), if it can be learnt for."""
    classes = like.shape[-1]
    gain = gain if isinstance(gain, Gain) else numbers(gain)
    parts = [gain] if isinstance(gain, Tensor) else [gain.own, *(gain.shared or ())]
    wanted = (classes, classes) if isinstance(gain, Tensor) else (classes,)
    for part in parts:
        if part.shape != wanted:
            raise ValueError(f"gain of shape {tuple(part.shape)}: expected {wanted} for {classes} classes")
    gain = gain.detach().to(like.device, like.dtype)
    if like.device.type == "cpu":
        remedy = "add a constant to the whole row, which changes no decision"
        if not (right := gain.diagonal() > 0).all():
            i = int((~right).nonzero()[0])
            raise ValueError(f"gain[{i}, {i}]={gain.diagonal()[i]:g}: the diagonal must be positive, {remedy}")
        # A negative reward would make the loss unbounded below.
        if isinstance(gain, Tensor) and not (fine := gain >= 0).all():
            i, j = (~fine).nonzero()[0].tolist()
            raise ValueError(f"gain[{i}, {j}]={gain[i, j]:g}: must be at least 0, {remedy}")
    return gain


def class_priors(priors: PerClass, name: str = "priors") -> Tensor:
    """(K,) summing to 1, from priors or counts in class order."""
    given = numbers(priors)
    if given.ndim != 1:
        raise ValueError(f"{name} of shape {tuple(given.shape)}: expected (K,), one number per class")
    if given.device.type == "cpu" and not (given > 0).all():
        first = int((~(given > 0)).nonzero()[0])
        raise ValueError(f"{name}[{first}]={given[first]:g}: must be positive, drop or merge the empty class")
    return given / given.sum()


def membership(groups: Groups, num_classes: int) -> Tensor:
    """(G, K) averages over the classes of each group: ``membership(groups, K) @ recalls`` are the group means."""
    rows = torch.zeros(len(groups), num_classes, dtype=torch.float64)
    for number, group in enumerate(groups):
        wrong = [c for c in group if not 0 <= c < num_classes]
        if wrong or not len(group):
            fault = f"holds class {wrong[0]}, outside 0..{num_classes - 1}" if wrong else "is empty"
            raise ValueError(f"groups[{number}] {fault}: list at least one class index per group")
        rows[number, list(group)] = 1 / len(group)
    return rows


def _per_class(duals: PerClass, groups: Groups | None, prior: Tensor) -> Tensor:
    """(K,) each class's share of the multipliers of its groups."""
    given = numbers(duals).to(prior.device)
    wanted = len(prior) if groups is None else len(groups)
    if given.shape != (wanted,):
        unit = "class" if groups is None else "group"
        raise ValueError(f"duals of shape {tuple(given.shape)}: expected ({wanted},), one multiplier per {unit}")
    if given.device.type == "cpu" and not (given >= 0).all():
        first = int((~(given >= 0)).nonzero()[0])
        raise ValueError(f"duals[{first}]={given[first]:g}: a multiplier is at least 0")
    return given if groups is None else given @ membership(groups, len(prior)).to(given)
