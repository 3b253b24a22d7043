"""Which part of a picture a network sees: its middle, the whole with a border around it, or the whole stretched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:  # decoding is asked for later than the data, if at all
    from PIL.Image import Image

How = Literal["crop", "pad", "squash"]
Asked = Literal["auto", "crop", "pad", "squash"]
Box = tuple[float, float, float, float]  # left, top, right, bottom; beyond the picture is border
Range = tuple[float, float]
Interpolation = Literal["bilinear", "bicubic"]

FILL = (124, 116, 104)  # ImageNet's mean colour: a border is nearly 0 once normalised
FILL_GREY = 118
MARGIN = 256 / 224  # the shorter side is scaled to it before the middle is cut out, from 96 pixels on
BOXES: tuple[Range, Range] = (0.08, 1.0), (3 / 4, 4 / 3)  # area and ratio of width to height of random boxes
SQUARE = 1.1  # up to this ratio of the sides a crop loses little; at 1.22 it cost 2 points (results/photographs.md)
ALIKE = 1.1  # ratios of width to height that differ by no more count as one


@dataclass(frozen=True)
class Frame:
    """A square of ``side`` pixels.

    crop: the shorter side is scaled to ``resize`` and the middle kept. pad: all of the picture, a border on its shorter
    side. squash: all of it, stretched.
    """

    side: int
    how: How = "crop"
    resize: int = 0

    def box(self, width: int, height: int) -> Box:
        """The part of a picture that is seen."""
        if self.how == "squash":
            return 0, 0, width, height
        if self.how == "pad":
            long = max(width, height)
            left, top = (width - long) / 2, (height - long) / 2
            return left, top, left + long, top + long
        return centre_box(width, height, self.side, self.resize or self.side)

    def random_box(self, width: int, height: int, draws: Tensor, scale: Range, ratio: Range) -> Box:
        """A part for training: of the picture's own area (crop), or of the square that is seen otherwise.

        draws (tries, 4) in [0, 1).
        """
        if self.how == "crop":
            return random_box(width, height, draws, scale, ratio)
        long = max(width, height)
        left, top, right, bottom = random_box(long, long, draws, scale, ratio)
        if self.how == "squash":
            return left * width / long, top * height / long, right * width / long, bottom * height / long
        across, down = _shifted(left, right, width, long), _shifted(top, bottom, height, long)
        return across[0], down[0], across[1], down[1]


@dataclass(frozen=True)
class Cuts:
    """Random parts of pictures: ``scale`` of the area, ``ratio`` of width to height, resized to ``side`` squares."""

    side: int
    scale: Range = BOXES[0]
    ratio: Range = BOXES[1]
    interpolation: Interpolation = "bilinear"


def _shifted(start: float, stop: float, length: int, long: int) -> tuple[float, float]:
    """The same stretch where it meets as much of the picture as it can: never a box of border alone."""
    room, reach = long - (stop - start), length - (stop - start)
    first = (start / room if room else 0.0) * reach
    return first, first + stop - start


def centre_box(width: int, height: int, size: int, resize: int) -> Box:
    """Where a centre crop of ``size`` lies once the shorter side is scaled to ``resize``."""
    pixel = min(width, height) / resize  # one output pixel, in input pixels
    left, top = (round((side / pixel - size) / 2) * pixel for side in (width, height))
    return left, top, left + size * pixel, top + size * pixel


def random_box(width: int, height: int, draws: Tensor, scale: Range = BOXES[0], ratio: Range = BOXES[1]) -> Box:
    """Random-resized-crop: ``scale`` of the area, ``ratio`` of width to height (log-uniform); draws (tries, 4)."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for area, shape, x, y in draws.tolist():
        pixels = width * height * (scale[0] + (scale[1] - scale[0]) * area)
        aspect = math.exp(low + (high - low) * shape)
        w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            break
    else:  # an extreme shape: the largest box of an allowed ratio, in the centre
        w, h = min(width, max(1, round(height * ratio[1]))), min(height, max(1, round(width / ratio[0])))
        left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def cut(picture: Image, box: Box, side: int, interpolation: Interpolation = "bilinear") -> Image:
    """That box of a picture, scaled to ``side``; what lies beyond the picture is filled."""
    from PIL import Image

    by = Image.Resampling[interpolation.upper()]
    left, top, right, bottom = box
    inside = max(left, 0), max(top, 0), min(right, picture.width), min(bottom, picture.height)
    if min(left, top) >= 0 and right <= picture.width + 1 and bottom <= picture.height + 1:  # but for rounding, inside
        return picture.resize((side, side), by, box=inside)
    across, down = side / (right - left), side / (bottom - top)
    x, y = round((inside[0] - left) * across), round((inside[1] - top) * down)
    w, h = (max(1, round(n)) for n in ((inside[2] - inside[0]) * across, (inside[3] - inside[1]) * down))
    x, y = min(x, side - 1), min(y, side - 1)
    border = Image.new(picture.mode, (side, side), FILL_GREY if picture.mode == "L" else FILL)
    border.paste(picture.resize((w, h), by, box=inside), (x, y))
    return border


def cut_arrays(images: Tensor, frame: Frame) -> Tensor:
    """uint8 (N, C, H, W), C 1 or 3, to (N, C, side, side), exactly as files are framed."""
    from PIL import Image

    box = frame.box(images.shape[-1], images.shape[-2])
    framed = torch.empty(*images.shape[:2], frame.side, frame.side, dtype=torch.uint8)
    for at, image in enumerate(images):
        pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
        shown = np.array(cut(Image.fromarray(pixels.contiguous().numpy()), box, frame.side))
        framed[at] = torch.from_numpy(shown.reshape(frame.side, frame.side, -1)).permute(2, 0, 1)
    return framed


def choose_frame(sizes: Sequence[tuple[int, int]]) -> tuple[How, str]:
    """The frame that keeps the subject in pictures of these widths and heights, and why."""
    if not sizes:
        return "crop", "no picture was found"
    aspects = sorted(math.log(width / height) for width, height in sizes)
    lean = sorted(abs(aspect) for aspect in aspects)
    most = math.exp(lean[round(0.9 * (len(lean) - 1))])
    low, high = (math.exp(aspects[round(share * (len(aspects) - 1))]) for share in (0.1, 0.9))
    if most <= SQUARE:
        return "crop", f"nine in ten have sides within {most:.2f} : 1, so that a crop to the middle loses little"
    if high / low <= ALIKE and most <= 2:
        return "squash", f"nearly all have width : height {median(aspects):.2f}, so that stretching treats all alike"
    return "pad", f"width : height goes from {low:.2f} to {high:.2f}; a crop would lose up to {1 - 1 / most:.0%} of one"


def median(aspects: Sequence[float]) -> float:
    return math.exp(median_low(aspects))
