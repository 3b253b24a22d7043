"""Which two samples meet: a pair of classes by chance, then a sample of each, derived only from (seed, step).

>>> P = torch.tensor([[0.0, 1.0], [0.0, 0.0]])                 # always label 0, mixed with class 1
>>> pairs = ClassPairs(P, labels=[0, 0, 1], partners=[1, 0, 1, 1], batch=4, seed=0)
>>> rows, partners = pairs.batch(7).unbind(1)                  # of the labelled and of the unlabelled data
>>> sorted({*rows.tolist()} | {0, 1}), 1 in partners
([0, 1], False)
"""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.data.samplers import Labels, Weighted
from evenhand.given import as_tensor
from evenhand.randomness import dice


class ClassPairs(Weighted):
    """Index pairs (batch, 2): classes (i, j) with probability ``distribution[i, j]``, then a sample of each at random.

    labels (N,): the class of each sample of the first stream. partners (M,): that of the second, such as the current
    pseudo-labels; -1 stands for none. Pairs with an empty class are left out and the others share their probability;
    where none of the others has any, all pairs that can be drawn are alike. An epoch is ``N // batch`` steps unless
    stated.
    """

    def __init__(
        self,
        distribution: Tensor,
        labels: Labels,
        partners: Labels,
        batch: int,
        seed: int,
        *,
        rank: int = 0,
        world: int = 1,
        steps_per_epoch: int | None = None,
    ) -> None:
        P = as_tensor(distribution, dtype=torch.float64).cpu()
        if P.ndim != 2 or P.shape[0] != P.shape[1]:
            raise ValueError(f"distribution of shape {tuple(P.shape)}: expected (K, K), one probability per class pair")
        if not P.isfinite().all() or (P < 0).any():
            raise ValueError("distribution must be finite and at least 0; check the gain it was made of")
        self._pools = [_Pools(name, given, len(P)) for name, given in (("labels", labels), ("partners", partners))]
        there = torch.outer(*(pools.counts > 0 for pools in self._pools))
        P = P * there if (P * there).any() else there
        if steps_per_epoch is None:
            steps_per_epoch = max(len(labels) // max(batch, 1), 1)
        super().__init__(P, batch, seed, rank=rank, world=world, steps_per_epoch=steps_per_epoch)
        self.classes = len(P)

    def joint(self, step: int) -> Tensor:
        pair = super().joint(step)  # (B,) the pair's number in the flat distribution
        draw = torch.rand(2, self.size, dtype=torch.float64, generator=dice(self.seed, "pairs", step))
        first, second = self._pools
        return torch.stack([first.pick(pair // self.classes, draw[0]), second.pick(pair % self.classes, draw[1])], 1)

    def side(self, which: int) -> Side:
        """The first (0) or second (1) samples alone, as the ``picks`` of a feed; both sides agree on the pairs."""
        return Side(self, which)

    def both(self) -> Both:
        """All first samples, then all second ones, where both are of one stream, as the ``picks`` of one feed."""
        return Both(self)


class Side:
    def __init__(self, pairs: ClassPairs, which: int) -> None:
        if which not in (0, 1):
            raise ValueError(f"side {which}: a pair has sides 0 and 1")
        self.pairs, self.which, self.steps_per_epoch = pairs, which, pairs.steps_per_epoch

    def batch(self, step: int) -> Tensor:
        return self.pairs.batch(step)[:, self.which]


class Both:
    def __init__(self, pairs: ClassPairs) -> None:
        self.pairs, self.steps_per_epoch = pairs, pairs.steps_per_epoch

    def batch(self, step: int) -> Tensor:
        return self.pairs.batch(step).T.flatten()


class _Pools:
    """Samples sorted by class, so that one of a class is an offset away."""

    def __init__(self, name: str, labels: Labels, num_classes: int) -> None:
        y = as_tensor(labels, dtype=torch.int64).cpu()
        if not (y >= 0).any() or int(y.min()) < -1 or int(y.max()) >= num_classes:
            raise ValueError(f"{name} must lie in 0..{num_classes - 1}, or be -1 for none, and not all be -1")
        self.counts = torch.bincount(y + 1, minlength=num_classes + 1)
        self._first = self.counts.cumsum(0)[:-1]  # where each class starts, behind those of none
        self.counts = self.counts[1:]
        self._order = y.argsort(stable=True)

    def pick(self, classes: Tensor, draw: Tensor) -> Tensor:
        return self._order[self._first[classes] + (draw * self.counts[classes]).long()]
