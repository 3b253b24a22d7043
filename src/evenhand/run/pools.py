"""Pools of samples to choose from: what lies on disk, as it is and as a model or a frozen network sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from evenhand.data.labels import named
from evenhand.data.sources import formats
from evenhand.data.sources.files import Files, load_image, readable
from evenhand.data.sources.paths import existing, images_in, relative_names
from evenhand.data.sources.source import Memory, Source
from evenhand.data.sources.texts import Texts
from evenhand.data.stream import Stream
from evenhand.errors import UserError
from evenhand.measure.frozen import features_of, kept_backbone
from evenhand.run.predicting import Model

PIXELS = 16  # side of the grey images that ``--embed pixels`` compares


@dataclass(frozen=True)
class Pool:
    """Samples as they lie there, with the labels they have, if any."""

    source: Source
    labels: tuple[str, ...] = ()

    def without(self, names: set[str]) -> Pool:
        """All but these."""
        kept = [row for row in range(len(self.source)) if self.source.name(row) not in names]
        labels = tuple(self.labels[row] for row in kept) if self.labels else ()
        return Pool(self.source.pick(torch.tensor(kept, dtype=torch.long)), labels)


def read_pool(
    pool: Path, model: Model | None = None, *, labelled: bool = False, skip_unreadable: bool = False, size: int = 224
) -> Pool:
    """A folder of images at any depth (class folders give labels if asked for), a CSV, ``.npz`` or ``.jsonl``."""
    data = None if model is None else model.run.recipe.data
    mode = "L" if data is not None and (data.grey or (model is not None and model.facts.inputs == 1)) else "RGB"
    if model is not None and model.facts.size:
        size = model.facts.size[-1]
    if existing(pool).is_dir():
        rows: list[tuple[Path, None]] = [(path, None) for path in images_in(pool)]
        if not rows:
            raise UserError(f"no images under '{pool}'; add some, or give another --pool")
        if skip_unreadable:
            rows = readable(rows, mode)
        paths = [path for path, _ in rows]
        source: Source = Files(paths, size=size, mode=mode, names=relative_names(paths, pool))
        if not skip_unreadable:
            _refuse_unreadable(paths, mode)
        return Pool(source, tuple(path.parent.name for path in paths) if labelled else ())
    parts = formats.read(pool, size=size, mode=mode, skip_unreadable=skip_unreadable, memory=False)
    stream = next((parts[key] for key in ("unlabelled", "all", "train") if key in parts), None)
    if stream is None:
        raise UserError(f"'{pool}' has none of unlabelled, all or train; it has {', '.join(parts)}")
    if labelled and stream.labels is None:
        raise UserError(f"'{pool}' has no labels to doubt; leave out --why suspicious")
    labels = () if stream.labels is None or not labelled else tuple(stream.classes[k] for k in stream.labels.tolist())
    return Pool(stream.samples, labels)


def _refuse_unreadable(paths: Sequence[Path], mode: str) -> None:
    bad = []
    for path in paths:
        try:
            load_image(path, mode)
        except UserError:
            bad.append(path.name)
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise UserError(
            f"{len(bad)} files of the pool cannot be read: {', '.join(bad[:3])}{more}; remove them, or add "
            "--skip-unreadable"
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
