"""Anybody's map-style ``Dataset`` of (image, label) as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from evenhand.data.sources.arrays import as_images, as_labels, class_names
from evenhand.data.sources.files import convert
from evenhand.data.sources.source import Source, reframed
from evenhand.data.stream import Stream
from evenhand.errors import UserError


class Items(Source):
    """Any map-style torch ``Dataset`` of (image, label): tensor in 0..1 or uint8, PIL image or uint8 array.

    Random transforms inside the dataset keep their own random state, so leave them to evenhand.
    """

    def __init__(self, dataset: Any, shape: tuple[int, int] | None = None) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise UserError(f"{type(dataset).__name__} has no length or no items; give a map-style Dataset")
        self.dataset, self.shape, self.what = dataset, shape, type(dataset).__name__

    def __len__(self) -> int:
        return len(self.dataset)

    def sample(self, index: int) -> tuple[Tensor, Any]:
        """Image (C, H, W) uint8 and label."""
        where = f"{self.what}[{index}]"
        try:
            image, label = self.dataset[index]
        except (TypeError, ValueError, OSError) as error:
            raise UserError(f"{where} does not give (image, label): {error}") from error
        if isinstance(image, Image.Image):
            image = np.array(convert(image, "L" if image.mode in ("1", "L") else "RGB"))
        elif isinstance(image, Tensor):
            if image.is_floating_point():
                if image.numel() and not 0 <= float(image.min()) <= float(image.max()) <= 1:
                    raise UserError(f"{where}: float images must lie in 0..1; leave out Normalize, it comes later")
                image = (image * 255).round().to(torch.uint8)
            image = image.cpu().numpy()
        return as_images(np.asarray(image)[None], where)[0], label

    def fetch(self, rows: Tensor | Sequence[int], chance: torch.Generator | None = None) -> Tensor:
        images = [self.sample(row)[0] for row in torch.as_tensor(rows, dtype=torch.long).tolist()]
        if self.shape is not None:
            images = [reframed(image[None], *self.shape)[0] for image in images]
        shapes = sorted({tuple(image.shape) for image in images})
        if len(shapes) > 1:
            remedy = "add Resize and CenterCrop to its transform"
            raise UserError(f"{self.what}: images of shapes {shapes[0]} and {shapes[1]} in one batch; {remedy}")
        return torch.stack(images)

    def name(self, row: int) -> str:
        samples = getattr(self.dataset, "samples", None)
        return str(samples[row][0]) if samples is not None else f"{self.what}[{row}]"

    def framed(self, side: int, channels: int) -> Items:
        return Items(self.dataset, (side, channels))

    def identity(self, *, dated: bool = False) -> Iterable[bytes]:
        """The stored pixels or file names where the dataset shows them, else only its kind and length."""
        data, samples = getattr(self.dataset, "data", None), getattr(self.dataset, "samples", ())
        yield f"{type(self.dataset).__qualname__} {len(self)} {self.shape}".encode()
        if isinstance(data, Tensor | np.ndarray):
            yield np.asarray(data).tobytes()
        for name, *_ in samples:
            yield Path(name).name.encode()


def from_dataset(dataset: Any, classes: Sequence[str] | None = None, name: str = "") -> Stream:
    """A stream over any torch ``Dataset``; labels from ``.targets`` or ``.labels``, else by one pass."""
    items = Items(dataset)
    known = next((getattr(dataset, key) for key in ("targets", "labels") if hasattr(dataset, key)), None)
    found = [items.sample(index)[1] for index in range(len(items))] if known is None else known
    labels = as_labels(found, f"labels of {items.what}")
    return Stream(items, labels, class_names(classes or getattr(dataset, "classes", None), [labels]), name)
