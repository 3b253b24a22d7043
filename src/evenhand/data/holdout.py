"""Samples held out by the rule of ``splits``, with copies on one side and the rarest classes left to training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.data.copies import copies
from evenhand.data.sources.paths import few
from evenhand.data.splits import class_orders
from evenhand.data.stream import Stream
from evenhand.errors import UserError


@dataclass(frozen=True)
class Whole:
    """Samples to be parted, and which of them are copies of each other."""

    stream: Stream
    groups: Tensor

    @classmethod
    def of(cls, stream: Stream) -> Whole:
        return cls(stream, copies(stream))

    def parted(self, held: Tensor, split: str) -> tuple[Whole, Stream]:
        rest = (~held).nonzero()[:, 0]
        return Whole(self.stream.subset(rest, "train"), self.groups[rest]), self.stream.subset(
            held.nonzero()[:, 0], split
        )


def hold_out_share(whole: Whole, share: float, seed: int, split: str, least: int = 2) -> tuple[Whole, Stream]:
    """Training without a share of every class, at least one sample of each, and that share.

    Classes of fewer than ``least`` samples, copies counted once, train and are left out of the other part.
    """
    train, labels = whole.stream, whole.stream.labels
    assert labels is not None
    different = [len(whole.groups[labels == k].unique()) for k in range(len(train.classes))]
    rare = [name for name, n in zip(train.classes, different, strict=True) if n < least]
    if len(rare) == len(train.classes):
        told = f"every class has fewer than {least} different samples"
        raise UserError(f"{told}: too few to hold out a {split} split; add some, or bring a {split} split")
    enough = zip(different, train.counts, strict=True)
    wanted = [0 if n < least else max(1, round(share * count)) for n, count in enough]
    held, short = held_rows(labels, wanted, seed, whole.groups, "subset", least=1)
    if not held.any():
        raise UserError(f"the classes are copies of few samples: none can be held out; bring a {split} split")
    left_out = {*rare, *(train.classes[k] for k in short)}
    if left_out:
        why = f"fewer than {least} samples that are no copies (data.min_per_class)"
        warnings.warn(
            f"these classes train and are left out of the {split} split, having {why}: {few(left_out)}", stacklevel=2
        )
    return whole.parted(held, split)


def hold_out_count(whole: Whole, per_class: int, seed: int, split: str) -> tuple[Whole, Stream]:
    """Training without ``per_class`` samples of every class, and those."""
    train = whole.stream
    assert train.labels is not None
    counts = [per_class] * len(train.classes)
    held, short = held_rows(train.labels, counts, seed, whole.groups, "holdout", least=per_class)
    for k in short:
        raise UserError(
            f"class '{train.classes[k]}' has {train.counts[k]} samples: too few to hold out {per_class} as {split} "
            "(copies on one side) and train on one; lower data.val_per_class, or use data.val_share"
        )
    return whole.parted(held, split)


def held_rows(
    labels: Tensor, counts: Sequence[int], seed: int, groups: Tensor, purpose: str, *, least: int
) -> tuple[Tensor, list[int]]:
    """(N,) True for what is held out, and the classes of which fewer than ``least`` (if any were wanted) are.

    Each class is walked in its stated order and gives whole groups of copies while they fit; one sample at least stays.
    Copies with several labels stay in training.
    """
    mixed = _mixed(labels, groups)
    held, short = torch.zeros(len(labels), dtype=torch.bool), []
    for k, order in enumerate(class_orders(labels, len(counts), seed, purpose)):
        members: dict[int, list[int]] = {}
        for row in order.tolist():
            members.setdefault(int(groups[row]), []).append(row)
        room = min(counts[k], len(order) - 1)
        taken: list[int] = []
        for group, rows in members.items():
            if len(taken) + len(rows) <= room and group not in mixed:
                taken += rows
        held[taken] = True
        if counts[k] and len(taken) < least:
            short.append(k)
    return held, short


def _mixed(labels: Tensor, groups: Tensor) -> set[int]:
    """Groups whose members have several labels."""
    pairs = torch.stack([groups, labels], 1).unique(dim=0)
    found, times = pairs[:, 0].unique(return_counts=True)
    return set(found[times > 1].tolist())
