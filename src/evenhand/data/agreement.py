"""Domains with the same classes: which these are, and every stream in their terms."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from evenhand.data.sources.classes import shared_classes
from evenhand.data.sources.paths import few
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError


def agree(domains: dict[str, Streams], target: str, intersection: bool) -> tuple[str, ...]:
    """The classes of all domains, in the first one's order; if they differ, their intersection when asked."""
    order = next(iter(domains.values()))
    names = dict.fromkeys(name for part in order.values() for name in part.classes)
    found = {name: _present(parts.values()) for name, parts in domains.items() if name != target}
    known, parts = set().union(*found.values()), domains[target]
    remedy = 'correct their names or set data.classes = "intersection"'
    some = "unlabelled" in parts  # then labelled training images need not show every class
    beyond = _present([parts["train"]]) - known if some and "train" in parts else set()
    if beyond and not intersection:
        raise UserError(f"labels of target '{target}' that no source has: {few(beyond)}; {remedy}")
    seen = _present(part for split, part in parts.items() if not (some and split == "train"))
    if len(seen) == 1 and seen < known and not intersection:
        (only,) = seen
        warnings.warn(f"target '{target}' has images of one class only, '{only}'; add others if any", stacklevel=2)
    elif seen:
        found[target] = seen
    shared = shared_classes(found, intersection=intersection, remedy=remedy, least=2)
    return tuple(name for name in names if name in shared)


def _present(parts: Iterable[Stream]) -> set[str]:
    labelled = [(part.classes, part.labels) for part in parts if part.labels is not None]
    return {classes[k] for classes, labels in labelled for k in labels.unique().tolist()}


def conform(part: Stream, classes: tuple[str, ...], side: int, channels: int) -> Stream:
    """The samples of ``classes``, numbered in their order, in the common frame."""
    labels = part.labels
    if labels is not None:
        number = {name: index for index, name in enumerate(classes)}
        labels = torch.tensor([number.get(name, -1) for name in part.classes])[labels]
        kept = (labels >= 0).nonzero()[:, 0]
        if len(kept) < len(labels):
            part, labels = part.subset(kept), labels[kept]
    return Stream(part.samples.framed(side, channels), labels, classes, part.name)
