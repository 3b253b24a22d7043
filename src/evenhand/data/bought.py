"""Labels that people gave in data of one domain: to samples of a pool (``data.pool``), or of the unlabelled part.

They train beside the data's own, as ``data.added`` does: the held-out parts stay the same, so that runs with and
without them can be compared.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from evenhand.data.added import shaped_like
from evenhand.data.labels import NONE, agreed, check_classes, know, read_answers
from evenhand.data.pool import read_pool
from evenhand.data.reading import columns_of
from evenhand.data.settings import DataSettings
from evenhand.data.sources.paths import few
from evenhand.data.sources.source import Memory
from evenhand.data.sources.tables import Table
from evenhand.data.stream import Stream, Streams, join
from evenhand.errors import UserError


def with_pool(parts: Streams, settings: DataSettings, *, whole: bool) -> Streams:
    """The parts with those samples of ``data.pool`` as "added" to which ``data.labels`` gives a class."""
    bought = _read(settings, parts["train"], whole=whole)
    return {**parts, "added": join([parts["added"], bought], "added") if "added" in parts else bought}


def known(streams: Streams, settings: DataSettings) -> Streams:
    """The streams once ``data.labels`` are known: without a pool, their samples leave "unlabelled" for "added"."""
    if settings.pool:
        _refuse_twice(streams, settings.labels)
        return streams
    if "unlabelled" not in streams:
        raise UserError(
            "data.labels is of samples that the data lack: name their folder in data.pool, or the domain to adapt to "
            "in data.target"
        )
    return know(streams, settings.labels, pool="unlabelled", known="added")


def _read(settings: DataSettings, train: Stream, *, whole: bool) -> Stream:
    where, said = settings.labels, f"data.pool = '{settings.pool}'"
    if not where:
        raise UserError(f"{said} is a pool without labels: name those given to it in data.labels, or leave it out")
    labels = agreed(read_answers(where), where)
    check_classes(labels, train.classes, where)
    columns, frame = columns_of(settings), train.samples.frame
    if isinstance(train.samples, Table):
        columns = replace(columns, features=train.samples.columns)
    pool = read_pool(
        Path(settings.pool), size=frame.side if frame else 224, mode="L" if settings.grey else "RGB",
        frame=frame.how if frame else "crop", whole=whole, columns=columns, skip_unreadable=settings.skip_unreadable,
    )  # fmt: skip
    if pool.source.kind != train.kind:
        raise UserError(f"{said} has {pool.source.kind}, but the data are {train.kind}: name the pool of '{where}'")
    names = pool.names
    if unknown := labels.keys() - set(names):
        raise UserError(
            f"'{where}' labels samples that {said} does not have: {few(unknown)}; names there look like '{names[0]}'"
        )
    rows = [row for row, name in enumerate(names) if labels.get(name, NONE) != NONE]
    if not rows:
        raise UserError(f"'{where}' gives no sample of {said} a class: label some, or leave both out")
    samples = shaped_like(pool.pick(rows).source, train, said)
    if isinstance(train.samples, Memory) and samples.decodes:  # decoded once, as the others are
        files = [path for row in range(len(rows)) if (path := samples.path(row)) is not None]
        images = cast(Tensor, samples.fetch(torch.arange(len(rows))))
        samples = Memory(images, [names[row] for row in rows], frame=samples.frame, files=files)
    return Stream(samples, torch.tensor([train.classes.index(labels[names[row]]) for row in rows]), train.classes)


def _refuse_twice(streams: Streams, where: str) -> None:
    """A sample must not be trained on twice, nor be tested on after it was trained on."""
    added = _files(streams["added"])
    for name in ("labelled", "val", "test"):
        if name in streams and (both := added & _files(streams[name])):
            raise UserError(f"'{where}' labels '{min(both)}', which the data have as {name}: take its row out")


def _files(stream: Stream) -> set[Path]:
    looked_at = stream.samples.origin or stream.samples
    return {Path(path).resolve() for row in range(len(stream)) if (path := looked_at.path(row)) is not None}
