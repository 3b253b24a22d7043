"""What a generator's latent space says of its classes, without drawing an image."""

from __future__ import annotations

import io
from collections.abc import Sequence
from colorsys import hsv_to_rgb
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from evenhand import atomic
from evenhand.measure.shift import principal_plane

SIDE, EDGE, DOT = 480, 12, 2  # pixels of a picture ...
LEGEND, LINE, NAMED = 160, 18, 25  # ... and of the names beside it, of at most so many classes


def z_sensitivity(w: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(K,) ``tr Cov(w | y) / tr Cov(w)`` of latents (N, d): 0 for a class whose latents ignore the noise.

    The same number of latents of each class makes the mean over classes a share of variance. A class with fewer than
    two is NaN.
    """
    if w.ndim != 2 or labels.shape != w.shape[:1]:
        raise ValueError(f"w {tuple(w.shape)} and labels {tuple(labels.shape)}: expected (N, d) and (N,)")
    wide = w.double()
    whole = wide.var(0, correction=0).sum().clamp_min(torch.finfo(torch.float64).tiny)
    of_class = [wide[labels == k] for k in range(num_classes)]
    spreads = [x.var(0, correction=0).sum() if len(x) > 1 else torch.tensor(torch.nan) for x in of_class]
    return torch.stack([spread.to(whole) for spread in spreads]) / whole


def write_plane(path: Path, w: Tensor, labels: Tensor, classes: Sequence[str]) -> None:
    """A picture of latents (N, d) in the plane of their largest variance, coloured by class, with a legend.

    A class that has collapsed is a point; classes that are confused lie on each other.
    """
    points = principal_plane(w)
    points = (points - points.amin(0)) / (points.amax(0) - points.amin(0)).clamp_min(1e-12)
    named = list(classes) if len(classes) <= NAMED else []
    picture = Image.new("RGB", (SIDE + LEGEND * bool(named), SIDE), "white")
    pen = ImageDraw.Draw(picture)
    for (x, y), k in zip((EDGE + points * (SIDE - 2 * EDGE)).tolist(), labels.tolist(), strict=True):
        pen.ellipse((x - DOT, SIDE - y - DOT, x + DOT, SIDE - y + DOT), fill=_colour(k, len(classes)))
    for k, name in enumerate(named):
        top = EDGE + k * LINE
        pen.rectangle((SIDE, top + 3, SIDE + 8, top + 11), fill=_colour(k, len(classes)))
        pen.text((SIDE + 14, top), name[:22], fill="black")
    stored = io.BytesIO()
    picture.save(stored, "PNG")
    atomic.write(path, stored.getvalue())


def _colour(k: int, classes: int) -> tuple[int, int, int]:
    red, green, blue = hsv_to_rgb(k / classes, 0.8, 0.8)
    return round(255 * red), round(255 * green), round(255 * blue)
