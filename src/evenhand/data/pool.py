"""Pools of samples to be labelled, as they lie on disk: images at any depth, tables, arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from evenhand.data.sources import formats
from evenhand.data.sources.files import Files, readable
from evenhand.data.sources.frames import How
from evenhand.data.sources.paths import existing, images_in, relative_names
from evenhand.data.sources.rows import TABLES, Columns
from evenhand.data.sources.source import Source
from evenhand.data.sources.texts import PLAIN
from evenhand.errors import UserError


@dataclass(frozen=True)
class Pool:
    """Samples as they lie there, with the labels they have, if any."""

    source: Source
    labels: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [self.source.name(row) for row in range(len(self.source))]

    def pick(self, rows: Sequence[int]) -> Pool:
        labels = tuple(self.labels[row] for row in rows) if self.labels else ()
        return Pool(self.source.pick(torch.tensor(list(rows), dtype=torch.long)), labels)

    def without(self, names: set[str]) -> Pool:
        """All but these."""
        return self.pick([row for row, name in enumerate(self.names) if name not in names])


def read_pool(
    place: Path,
    *,
    size: int = 224,
    mode: str = "RGB",
    frame: How = "crop",
    whole: bool = False,
    columns: Columns = PLAIN,
    labelled: bool = False,
    skip_unreadable: bool = False,
) -> Pool:
    """A folder of images at any depth (class folders give labels if asked for), a table, ``.npz`` or ``.jsonl``.

    ``columns`` are a table's, whose labels may be missing unless they are asked for.
    """
    if existing(place).is_dir():
        rows: list[tuple[Path, None]] = [(path, None) for path in images_in(place)]
        if not rows:
            raise UserError(f"no images under '{place}'; add some, or give another pool")
        if skip_unreadable:
            rows = readable(rows, mode)
        paths = [path for path, _ in rows]
        names = relative_names(paths, place)
        source = Files(paths, size=size, mode=mode, whole=whole, names=names, frame=frame)
        return Pool(source, tuple(path.parent.name for path in paths) if labelled else ())
    table = place.suffix.lower() in (*TABLES, ".jsonl")
    parts = formats.read(
        place, size=size, mode=mode, frame=frame, whole=whole, skip_unreadable=skip_unreadable, memory=False,
        columns=replace(columns if table else PLAIN, bare=not labelled),
    )  # fmt: skip
    stream = next((parts[key] for key in ("unlabelled", "all", "train") if key in parts), None)
    if stream is None:
        raise UserError(f"'{place}' has none of unlabelled, all or train; it has {', '.join(parts)}")
    if labelled and stream.labels is None:
        raise UserError(f"'{place}' has no labels to doubt; leave out --why suspicious")
    labels = () if stream.labels is None or not labelled else tuple(stream.classes[k] for k in stream.labels.tolist())
    return Pool(stream.samples, labels)
