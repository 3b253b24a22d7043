"""STL-10's binary files: ``train_X.bin`` (N, 3, 96, 96), columns before rows, ``train_y.bin`` with labels 1 to 10.

The unlabelled images alone are 2.8 GB, so they are brought to the wanted size piece by piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evenhand.data.sources.paths import existing, read_text
from evenhand.data.sources.source import Memory, reframed
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError

SIDE = 96
PIECE = 2048  # images held at full size
PARTS = {"train": "train", "test": "test", "unlabelled": "unlabeled"}  # our names and those of the files


def is_stl(folder: Path) -> bool:
    return (folder / "train_X.bin").is_file() and (folder / "train_y.bin").is_file()


def read_stl(folder: Path, classes: Sequence[str] | None = None, *, size: int | None = None) -> Streams:
    """Streams train, test and, if its file is there, unlabelled; images (3, 96, 96) or of ``size``."""
    names = tuple(classes or read_text(existing(folder / "class_names.txt")).split())
    streams = {}
    for part, stem in PARTS.items():
        if part == "unlabelled" and not (folder / f"{stem}_X.bin").is_file():
            continue
        images = _images(folder / f"{stem}_X.bin", size or SIDE)
        labels = None if part == "unlabelled" else _labels(folder / f"{stem}_y.bin", len(images), len(names))
        streams[part] = Stream(Memory(images, [f"{part}/{row}" for row in range(len(images))]), labels, names, part)
    return streams


def _images(path: Path, size: int) -> Tensor:
    whole, image = existing(path).stat().st_size, 3 * SIDE * SIDE
    if not whole or whole % image:
        raise UserError(f"'{path}' has {whole} bytes, not a multiple of {image}; obtain it again")
    stored = np.memmap(path, np.uint8, "r", shape=(whole // image, 3, SIDE, SIDE))
    pieces = (np.ascontiguousarray(stored[at : at + PIECE].swapaxes(2, 3)) for at in range(0, len(stored), PIECE))
    return torch.cat([reframed(torch.from_numpy(piece), size, 3) for piece in pieces])


def _labels(path: Path, count: int, classes: int) -> Tensor:
    found = np.frombuffer(existing(path).read_bytes(), np.uint8)
    if len(found) != count:
        raise UserError(f"'{path}' has {len(found)} labels for {count} images; obtain both files again")
    if found.min(initial=1) < 1 or found.max(initial=1) > classes:
        raise UserError(f"'{path}' holds label {found.max()}: expected 1 to {classes}, as class_names.txt lists them")
    return torch.from_numpy(found.astype(np.int64) - 1)
