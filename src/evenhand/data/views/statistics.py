"""What images are normalised by."""

from __future__ import annotations

import torch
from torch import Tensor


def channel_stats(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of uint8 images, in [0, 1]; at least 1/255 for the deviation."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = [torch.bincount(plane.flatten(), minlength=256) for plane in images.cpu().unbind(1)]
    share = torch.stack(counts) / counts[0].sum().double()  # (C, 256)
    mean = share @ levels  # (C,)
    std = (share * (levels - mean[:, None]) ** 2).sum(1).sqrt().clamp(min=1 / 255)
    return tuple(mean.tolist()), tuple(std.tolist())
