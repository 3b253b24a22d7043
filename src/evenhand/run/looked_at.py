"""A file for every picked image, so that a person can look at it in our page or another tool."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from PIL import Image
from torch import Tensor

from evenhand import atomic
from evenhand.data.sources.source import Source


def files_to_look_at(source: Source, rows: Sequence[int], out: Path) -> list[str]:
    """The file of each pick; images of arrays and databases have none, and are written into ``<out>-images``."""
    if source.kind != "images":
        return [""] * len(rows)
    folder = out.with_name(f"{out.stem}-images")
    return [source.path(row) or _written(source, row, folder / f"{rank}.png") for rank, row in enumerate(rows, 1)]


def folder_of(files: Sequence[str]) -> Path | None:
    """The smallest folder that holds all of them, wherever links lead."""
    places = [os.path.dirname(os.path.realpath(file)) for file in files if file]
    return Path(os.path.commonpath(places)) if places else None


def _written(source: Source, row: int, file: Path) -> str:
    pixels = cast(Tensor, source.fetch(torch.tensor([row])))[0].permute(1, 2, 0).numpy()
    kept = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(kept, "PNG")
    atomic.write(file, kept.getvalue())
    return str(file)
