"""Views of scenes: what moves the image moves its boxes; floats in 0..1 come out, images of any size.

Each step takes one uint8 image (C, H, W) and its objects, None where they are hidden, and draws from a CPU generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from evenhand.data.target import Found
from evenhand.data.views.images import colour_jitter, gaussian_blur, grayscale
from evenhand.data.views.view import View
from evenhand.errors import did_you_mean

Step = Callable[[Tensor, Found | None, Generator], tuple[Tensor, Found | None]]
GREY = 117  # about the mean of photographs: nothing, once a detector has normalised it
LEAST_VISIBLE = 0.3  # share of an object's area below which a crop loses it


def flip(x: Tensor, y: Found | None, chance: Generator) -> tuple[Tensor, Found | None]:
    if torch.rand((), generator=chance) < 0.5:
        return x, y
    if y is not None:
        left, top, right, bottom = y.boxes.unbind(1)
        y = y._replace(boxes=torch.stack([x.shape[2] - right, top, x.shape[2] - left, bottom], 1))
    return x.flip(2), y


def scale(
    x: Tensor, y: Found | None, chance: Generator, low: float = 0.7, high: float = 1.3
) -> tuple[Tensor, Found | None]:
    """Larger or smaller in a frame of the same size, for detectors resize what they are given: what sticks out is cut
    off, and where it leaves room there is grey."""
    factor = low + (high - low) * float(torch.rand((), generator=chance))
    frame = x.shape[1:]
    tall, wide = (max(1, round(side * factor)) for side in frame)
    by = torch.tensor([wide / frame[1], tall / frame[0]] * 2, device=x.device)
    resized = F.interpolate(x[None].float(), (tall, wide), mode="bilinear", antialias=True)[0]
    x, y = resized.round().clamp(0, 255).byte(), None if y is None else y._replace(boxes=y.boxes * by)
    top, left = (int(torch.randint(abs(room) + 1, (), generator=chance)) for room in (frame[0] - tall, frame[1] - wide))
    if factor >= 1:
        return _window(x, y, top, left, *frame)
    canvas = x.new_full((len(x), *frame), GREY)
    canvas[:, top : top + tall, left : left + wide] = x
    return canvas, None if y is None else y._replace(boxes=y.boxes + y.boxes.new_tensor([left, top, left, top]))


def crop(x: Tensor, y: Found | None, chance: Generator, least: float = 0.6) -> tuple[Tensor, Found | None]:
    """A window of at least ``least`` of each side; objects that it shows too little of are lost."""
    tall, wide = (
        max(1, round(side * (least + (1 - least) * float(torch.rand((), generator=chance))))) for side in x.shape[1:]
    )
    top, left = (int(torch.randint(room + 1, (), generator=chance)) for room in (x.shape[1] - tall, x.shape[2] - wide))
    return _window(x, y, top, left, tall, wide)


def _window(x: Tensor, y: Found | None, top: int, left: int, tall: int, wide: int) -> tuple[Tensor, Found | None]:
    x = x[:, top : top + tall, left : left + wide]
    if y is None:
        return x, None
    moved = y.boxes - y.boxes.new_tensor([left, top, left, top])
    cut = moved.clamp(min=0).minimum(moved.new_tensor([wide, tall, wide, tall]))
    area, seen = ((b[:, 2:] - b[:, :2]).clamp(min=0).prod(1) for b in (moved, cut))
    return x, y._replace(boxes=cut).pick(seen >= LEAST_VISIBLE * area)


def _colours(step: Callable[..., Tensor]) -> Step:
    return lambda x, y, chance: (step(x[None], chance)[0], y)


STEPS: dict[str, Step] = {
    "flip": flip,
    "scale": scale,
    "crop": crop,
    "jitter": _colours(colour_jitter),
    "grayscale": _colours(grayscale),
    "blur": _colours(gaussian_blur),
}
STRONG = ("scale", "crop", "flip", "jitter", "grayscale", "blur")


class BoxView(View):
    """Steps in order on each image by itself."""

    reframes = True

    def __init__(self, names: Sequence[str] = ()) -> None:
        for name in names:
            if name not in STEPS:
                raise ValueError(f"no augmentation step '{name}' for scenes with boxes; {did_you_mean(name, STEPS)}")
        self.steps = [STEPS[name] for name in names]

    def __call__(self, x: Any, chance: Generator | None = None) -> list[Tensor]:
        hidden = [None] * len(x)
        return self._seen(x, hidden, chance)[0]

    def see(self, x: Any, y: Any, chance: Generator) -> tuple[list[Tensor], Any]:
        images, objects = self._seen(x, y if y is not None else [None] * len(x), chance)
        return images, None if y is None else objects

    def _seen(self, x: Any, y: Sequence[Any], chance: Generator | None) -> tuple[list[Tensor], list[Any]]:
        images, objects = [], []
        for image, found in zip(x, y, strict=True):
            for step in self.steps:
                assert chance is not None
                image, found = step(image, found, chance)
            images.append(image.float() / 255)
            objects.append(found)
        return images, objects
