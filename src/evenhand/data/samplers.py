"""Which samples meet in which step: batches derived only from (seed, step), never from what came before.

Every sampler speaks of the joint batch of all processes: ``batch(step)`` gives this rank's slice of it, so
two processes see exactly what one would, and resuming at a step needs no stored position. Each is also a
``batch_sampler`` for a ``DataLoader`` (one epoch per iteration; call ``set_epoch`` before each).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from evenhand import parallel
from evenhand.given import as_tensor
from evenhand.randomness import dice, mix

Labels = Sequence[int] | np.ndarray | Tensor


def sample_weights(labels: Labels, num_classes: int, power: float = 1.0) -> Tensor:
    """Sampling probability of each sample, proportional to n_y ** -power -> (N,) float64, sums to 1.

    ``power`` 1 draws every class equally often, 0.5 in proportion to the root of its count, 0 as it is.
    """
    y = as_tensor(labels, dtype=torch.int64)
    if len(y) == 0 or int(y.min()) < 0 or int(y.max()) >= num_classes:
        raise ValueError(f"labels must be non-empty and lie in 0..{num_classes - 1}; renumber them")
    w = torch.bincount(y, minlength=num_classes).double()[y].pow(-power)
    return w / w.sum()


class _Steps(Sampler[list[int]], ABC):
    """What the samplers share: the rank's slice of a joint batch, and iteration over one epoch."""

    def __init__(self, size: int, steps_per_epoch: int, rank: int, world: int) -> None:
        if size < 1 or steps_per_epoch < 1:
            raise ValueError(f"batch size {size} and steps per epoch {steps_per_epoch} must be at least 1")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} is not in 0..{world - 1}")
        if size % world:
            raise ValueError(
                f"a joint batch of {size} does not divide among {world} processes; "
                f"use a batch of {max(size // world, 1) * world} or another number of processes"
            )
        self.steps_per_epoch, self.epoch = steps_per_epoch, 0
        self._mine = slice(size // world * rank, size // world * (rank + 1))

    @abstractmethod
    def joint(self, step: int) -> Tensor:
        """Indices of all processes at a global step."""

    def batch(self, step: int) -> Tensor:
        """This rank's indices at a global step."""
        return self.joint(step)[self._mine]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * self.steps_per_epoch
        for step in range(first, first + self.steps_per_epoch):
            yield self.batch(step).tolist()


class Shuffled(_Steps):
    """Each epoch a fresh permutation of ``n`` samples, cut into joint batches of ``batch``.

    The ragged last batch is dropped (other samples miss out in each epoch); if ``n < batch``, the whole set
    is one batch.

    >>> Shuffled(10, 4, seed=0).steps_per_epoch
    2
    """

    def __init__(self, n: int, batch: int, seed: int, *, rank: int = 0, world: int = 1) -> None:
        self.n, self.size, self.seed = n, min(n, batch), seed
        super().__init__(self.size, n // max(self.size, 1), rank, world)
        self._drawn: tuple[int, Tensor] | None = None

    def order(self, epoch: int) -> Tensor:
        """All positions of an epoch, before they are cut into batches."""
        return torch.randperm(self.n, generator=dice(self.seed, "shuffled", epoch))

    def joint(self, step: int) -> Tensor:
        epoch, at = divmod(step, self.steps_per_epoch)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self.order(epoch)
        return self._drawn[1][at * self.size : (at + 1) * self.size]


class Repeated(Shuffled):
    """Repeated augmentation: each sample stands ``repeats`` times in a row, to be augmented differently.

    An epoch keeps the length of ``Shuffled``'s, so it shows about ``n / repeats`` distinct samples. Several processes
    share the copies of a sample, as in DeiT: rank r takes every position r, r + world, r + 2 world of a joint batch.
    """

    def __init__(self, n: int, batch: int, seed: int, *, repeats: int = 3, rank: int = 0, world: int = 1) -> None:
        if repeats < 1:
            raise ValueError(f"repeats is {repeats}; give at least 1, such as 3")
        super().__init__(n, batch, seed, rank=rank, world=world)
        self.repeats, self._mine = repeats, slice(rank, None, world)

    def order(self, epoch: int) -> Tensor:
        return super().order(epoch).repeat_interleave(self.repeats)[: self.n]


def repeated(n: int, batch: int, seed: int, repeats: int) -> Repeated:
    """Repeated augmentation for this process."""
    place = {"rank": parallel.rank(), "world": parallel.world()}
    return Repeated(n, batch, mix(seed, "repeated"), repeats=repeats, **place)


class Weighted(_Steps):
    """Draws with replacement, sample ``i`` with probability ``weights[i] / sum(weights)``.

    An epoch is ``len(weights) // batch`` steps unless stated.

    >>> balanced = Weighted(sample_weights([0, 0, 0, 1], 2), batch=4, seed=0)
    """

    def __init__(
        self,
        weights: Sequence[float] | np.ndarray | Tensor,
        batch: int,
        seed: int,
        *,
        rank: int = 0,
        world: int = 1,
        steps_per_epoch: int | None = None,
    ) -> None:
        w = as_tensor(weights, dtype=torch.float64).flatten()
        if not len(w) or not torch.isfinite(w).all() or (w < 0).any() or not w.sum() > 0:
            raise ValueError("weights must be finite, at least 0 and not all 0; check class counts")
        self.size, self.seed = batch, seed
        if steps_per_epoch is None:
            steps_per_epoch = max(len(w) // max(batch, 1), 1)
        super().__init__(batch, steps_per_epoch, rank, world)
        total = w.cumsum(0)
        self._upto = total / total[-1]  # ends at exactly 1, so a draw in [0, 1) never meets a weight of 0

    def joint(self, step: int) -> Tensor:
        draw = torch.rand(self.size, dtype=torch.float64, generator=dice(self.seed, "weighted", step))
        return torch.searchsorted(self._upto, draw, right=True)
