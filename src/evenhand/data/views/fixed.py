"""Steps that leave nothing to chance, so that evaluation may take them too."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from evenhand.data.views import imageops


def is_fixed(step: Any) -> bool:
    return isinstance(step, partial) and step.func in (resize, centre_crop)


def centre_crop(x: Tensor, _: Generator | None = None, *, size: int) -> Tensor:
    top, left = ((side - size) // 2 for side in x.shape[-2:])
    if min(top, left) < 0:
        raise ValueError(f"cannot crop {size} from {x.shape[-2]}x{x.shape[-1]}; give a smaller size")
    return x[..., top : top + size, left : left + size]


def resize(x: Tensor, _: Generator | None = None, *, size: int) -> Tensor:
    """The whole image as a ``size`` square, bicubic as PIL does it."""
    whole = torch.tensor([[0, 0, *x.shape[-2:]]], dtype=torch.float32).expand(len(x), 4)
    return imageops.resample(x, whole, size, "bicubic")
