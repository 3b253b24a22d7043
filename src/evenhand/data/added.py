"""More training samples than the data bring, such as a generator's: ``data.added``."""

from __future__ import annotations

import torch

from evenhand.data.reading import read_set
from evenhand.data.settings import DataSettings
from evenhand.data.sources.source import Source
from evenhand.data.stream import Stream
from evenhand.errors import UserError, did_you_mean


def read_added(settings: DataSettings, train: Stream, *, whole: bool) -> Stream:
    """The training part of what ``data.added`` names, in the classes and the shape of ``train``."""
    said = f"data.added = '{settings.added}'"
    added = read_set(settings.model_copy(update={"set": settings.added, "root": None, "size": None}), whole=whole)[
        "train"
    ]
    if added.labels is None or added.kind != train.kind:
        raise UserError(f"{said} has {added.kind}, labelled {train.kind} are needed: name such, or leave it out")
    if odd := next((name for name in added.classes if name not in train.classes), None):
        raise UserError(f"{said} has a class '{odd}' that the data lack; {did_you_mean(odd, train.classes)}")
    number = torch.tensor([train.classes.index(name) for name in added.classes])
    return Stream(shaped_like(added.samples, train, said), number[added.labels], train.classes, "added")


def shaped_like(samples: Source, train: Stream, said: str) -> Source:
    """The samples in the size and colour of ``train``; ``said`` is how they are named to a user."""
    if train.kind == "texts":
        return samples
    shape = train.fetch(torch.tensor([0])).shape[1:]
    samples = samples.framed(shape[-1], shape[0]) if shape[1:] == shape[-1:] * 2 else samples
    if (has := samples.fetch(torch.tensor([0])).shape[1:]) != shape:  # type: ignore[union-attr]
        raise UserError(f"{said} has samples of shape {tuple(has)}, the data {tuple(shape)}: make them alike")
    return samples
