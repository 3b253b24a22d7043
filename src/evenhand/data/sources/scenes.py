"""Scenes: whole images of any size, with the objects in them."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenhand.data.sources.files import load_image, marks
from evenhand.data.sources.paths import few
from evenhand.data.sources.source import Kind, Source
from evenhand.data.stream import Stream
from evenhand.data.target import Boxes, Found
from evenhand.errors import UserError


class Scenes(Source):
    """Image files, decoded as they are; a fetch is a list of uint8 (C, H, W)."""

    kind: Kind = "scenes"

    def __init__(self, paths: Iterable[str | Path], *, mode: str = "RGB", names: Sequence[str] | None = None) -> None:
        self.paths, self.mode = [os.fspath(path) for path in paths], mode
        self.names = self.paths if names is None else list(names)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def stored(self) -> int:
        return len(self.paths)

    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> list[Tensor]:
        images = [np.array(load_image(self.paths[row], self.mode)) for row in rows.tolist()]
        return [torch.from_numpy(np.atleast_3d(image)).permute(2, 0, 1).contiguous() for image in images]

    def name(self, row: int) -> str:
        return self.names[row]

    def path(self, row: int) -> str | None:
        return self.paths[row]

    def identity(self, *, dated: bool = False) -> Iterable[bytes]:
        yield self.mode.encode()
        for name, mark in zip(self.names, marks(self.paths, "the annotations", dated=dated), strict=True):
            yield f"{name}\0{mark}".encode()


class Held(Source):
    """Images in memory that need not be of one size: uint8 (C, H, W) each."""

    kind: Kind = "scenes"
    decodes = False

    def __init__(self, images: Sequence[Tensor], names: Sequence[str]) -> None:
        self.images, self.names = images, names

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> list[Tensor]:
        return [self.images[row] for row in rows.tolist()]

    def name(self, row: int) -> str:
        return self.names[row]

    def identity(self, *, dated: bool = False) -> Iterable[bytes]:
        return (image.numpy().tobytes() for image in self.images)


class Annotated(NamedTuple):
    """One image as an annotation file describes it: corners in pixels, names of classes, and which are optional."""

    path: Path
    width: int
    height: int
    boxes: list[list[float]]
    labels: list[str]
    optional: list[bool]


def scenes_stream(rows: Sequence[Annotated], classes: Sequence[str], name: str, mode: str, root: Path) -> Stream:
    """Rows with all their files there and their boxes inside, as a stream; the first faults are named."""
    gone = [str(row.path) for row in rows if not row.path.is_file()]
    if gone:
        raise UserError(f"{name}: {len(gone)} of {len(rows)} images are missing: {few(gone)}; correct data.root")
    number = {label: index for index, label in enumerate(classes)}
    clipped, objects = [], []
    for row in rows:
        boxes = torch.tensor(row.boxes, dtype=torch.float32).reshape(-1, 4)
        limit = torch.tensor([row.width, row.height] * 2)
        inside = boxes.clamp(min=0).minimum(limit)
        empty = ~(boxes.isfinite().all(1) & ((inside[:, 2:] - inside[:, :2]) > 0).all(1))
        if empty.any():
            at = int(empty.nonzero()[0])
            what = f"box {row.boxes[at]} of '{row.labels[at]}' in '{row.path}' ({row.width} x {row.height})"
            raise UserError(f"{name}: {what} has no area inside the image; correct or remove it")
        if not torch.equal(inside, boxes):
            clipped.append(str(row.path))
        labels = torch.tensor([number[label] for label in row.labels], dtype=torch.int64)
        optional = torch.tensor(row.optional, dtype=torch.bool) if any(row.optional) else None
        objects.append(Found(inside, labels, optional))
    if clipped:
        warnings.warn(f"{name}: boxes stick out of {len(clipped)} images and are cut: {few(clipped)}", stacklevel=2)
    paths = [row.path for row in rows]
    names = [os.path.relpath(path, root).replace(os.sep, "/") for path in paths]
    return Stream(Scenes(paths, mode=mode, names=names), Boxes(objects), tuple(classes), name)


class Listed(NamedTuple):
    """One split as its files describe it, before any image is looked at; each fault is a line with its remedy."""

    rows: list[Annotated]
    classes: tuple[str, ...]
    root: Path
    name: str
    faults: tuple[str, ...] = ()
    labelled: bool = True

    def stream(self, mode: str) -> Stream:
        if self.faults:
            raise UserError(self.faults[0])
        if self.labelled:
            return scenes_stream(self.rows, self.classes, self.name, mode, self.root)
        files = [row.path for row in self.rows]
        names = [file.relative_to(self.root).as_posix() for file in files]
        return Stream(Scenes(files, mode=mode, names=names), None, (), self.name)


def known_classes(rows: Iterable[Annotated]) -> tuple[str, ...]:
    return tuple(sorted({label for row in rows for label in row.labels}))


def without_boxes(boxes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Classes that splits list and no image shows; ``boxes``: how many there are of each class, by split."""
    return [name for name, count in _total(boxes).items() if not count]


def agreed_classes(boxes: Mapping[str, Mapping[str, int]], *, shared: bool) -> tuple[str, ...]:
    """The classes of the first split, which is trained on; what another lacks or has besides must be told to be left
    out (``shared``).
    """
    shown = _total(boxes)
    found = {split: [name for name in counts if shown[name]] for split, counts in boxes.items()}
    first = next(iter(found.values()))
    kept = tuple(name for name in first if all(name in names for names in found.values()))
    if odd := {name for names in found.values() for name in names} - {*kept}:
        lacking = [split for split, names in found.items() if odd - {*names}]
        if not shared:
            told = f"not every split has {few(odd)} (missing in {few(lacking)})"
            raise UserError(f"{told}: add it there, or set data.classes = 'intersection' to leave it out")
        if not kept:
            raise UserError("the domains share no class; correct the names")
    if not kept:
        raise UserError("no image has a box to learn from; annotate some")
    return kept


def _total(boxes: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    whole: Counter[str] = Counter()
    for counts in boxes.values():
        whole.update(counts)
    return whole


def only_classes(stream: Stream, classes: Sequence[str]) -> Stream:
    """The stream in terms of ``classes``: objects of others are left out."""
    if stream.target is None or stream.classes == tuple(classes):
        return Stream(stream.samples, stream.target, tuple(classes), stream.name)
    number = torch.tensor([classes.index(name) if name in classes else -1 for name in stream.classes])
    kept = []
    objects: Any = stream.target.objects
    for found in objects:
        new = number[found.labels]
        part = Found(found.boxes, new, found.optional).pick(new >= 0)
        kept.append(part)
    return Stream(stream.samples, Boxes(kept), tuple(classes), stream.name)
