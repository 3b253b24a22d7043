"""Pools of samples to choose from, as they lie on disk and as a model or a frozen network sees them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from evenhand.data.labels import named
from evenhand.data.pool import Pool
from evenhand.data.pool import read_pool as read
from evenhand.data.sources.files import Files, load_image
from evenhand.data.sources.paths import few
from evenhand.data.sources.rows import Columns
from evenhand.data.sources.source import Memory, Source
from evenhand.data.sources.texts import Texts
from evenhand.data.stream import Stream
from evenhand.errors import UserError
from evenhand.measure.frozen import features_of, kept_backbone
from evenhand.run.predicting import Model

PIXELS = 16  # side of the grey images that ``--embed pixels`` compares


def read_pool(pool: Path, model: Model | None = None, *, labelled: bool = False, skip_unreadable: bool = False) -> Pool:
    """What lies there, its pictures cut and its columns named as the model's data were."""
    how: dict[str, Any] = {}
    if model is not None:
        data, facts = model.run.recipe.data, model.facts
        how = {
            "mode": model.inputs.mode, "frame": facts.frame or "crop",
            "columns": Columns(data.label_column, data.text_column, facts.columns),
        } | ({"size": facts.size[-1]} if facts.size else {})  # fmt: skip
    found = read(pool, labelled=labelled, skip_unreadable=skip_unreadable, **how)
    if isinstance(found.source, Files) and not skip_unreadable:
        _refuse_unreadable(found.source.paths, found.source.mode)
    return found


def _refuse_unreadable(paths: Sequence[str], mode: str) -> None:
    bad = []
    for path in paths:
        try:
            load_image(path, mode)
        except UserError:
            bad.append(Path(path).name)
    if bad:
        raise UserError(
            f"{len(bad)} files of the pool cannot be read: {few(bad)}; remove them, or add --skip-unreadable"
        )


def as_trained(model: Model, source: Source) -> Source:
    """Samples of a pool as the run's training saw its own."""
    data, facts = model.run.recipe.data, model.facts
    if facts.kind == "tokens":
        if not isinstance(source, Texts):
            raise UserError("this model reads texts: give a CSV with a column text, or a .jsonl, as --pool")
        tokens = cast(Tensor, model.source(list(source.texts)).fetch(torch.arange(len(source))))
        return Memory(tokens, [source.name(row) for row in range(len(source))])
    if source.kind == "images" and data.embed:
        stream = Stream(source.framed(facts.size[-1], 1 if data.grey else 3), None, model.classes, "pool")
        kept = kept_backbone(model.run.folder)
        return Memory(features_of(stream, data.embed, data.embed_size, kept), named(stream))
    if source.kind != facts.kind:
        raise UserError(f"the pool holds {source.kind}, but the model was trained on {facts.kind}")
    return source.framed(facts.size[-1], facts.inputs) if facts.kind == "images" else source


def cold_features(stream: Stream, embed: str) -> Tensor:
    """(N, d) of a frozen network; ``pixels``: small grey images, for want of one; vectors as they are."""
    if stream.kind == "vectors":
        return cast(Tensor, stream.fetch(torch.arange(len(stream))))
    if embed == "pixels":
        small = stream.samples.framed(PIXELS, 1)
        return torch.cat(
            [cast(Tensor, small.fetch(rows)).flatten(1).float() for rows in torch.arange(len(stream)).split(256)]
        )
    return features_of(stream, embed, 224)
