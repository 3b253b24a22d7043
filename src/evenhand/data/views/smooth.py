"""A bicubic warp of whole batches, by PIL's arithmetic: the geometric operations of DeiT's RandAugment."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def affine_bicubic(x: Tensor, matrix: Tensor, fill: Sequence[int]) -> Tensor:
    """As ``imageops.affine``, each pixel from its 4 x 4 neighbours; outside is the colour ``fill``.

    The kernel is PIL's, Keys' with a = -1; beyond the border its neighbours are the border's.
    """
    n, c, h, w = x.shape
    across, down = (torch.arange(side, device=x.device) + 0.5 for side in (w, h))
    column, row = (
        (line[:, :1] * across)[:, None, :] + (line[:, 1:2] * down + line[:, 2:])[:, :, None]
        for line in matrix.to(x.device).unbind(1)
    )  # (N, H, W) each
    outside = (column < 0) | (column >= w) | (row < 0) | (row >= h)
    (columns, across_weights), (rows, down_weights) = (_taps(at, side) for at, side in ((column, w), (row, h)))
    pixels, total = x.flatten(2).float(), x.new_zeros((n, c, h * w), dtype=torch.float32)
    for i in range(4):
        for j in range(4):
            index = (rows[i] * w + columns[j]).view(n, 1, h * w).expand(n, c, h * w)
            total.addcmul_(pixels.gather(2, index), (down_weights[i] * across_weights[j]).view(n, 1, h * w))
    moved = total.add_(0.5).clamp_(0, 255).to(torch.uint8).view(n, c, h, w)
    paint = x.new_tensor(fill).view(1, -1, 1, 1)
    return torch.where(outside[:, None], paint, moved)


def _taps(at: Tensor, side: int) -> tuple[list[Tensor], list[Tensor]]:
    """The four positions around ``at``, kept inside, and their weights."""
    at = at - 0.5
    first = at.floor()
    d = at - first
    weights = [d * (-1 + d * (2 - d)), 1 + d * d * (d - 2), d * (1 + d * (1 - d)), d * d * (d - 1)]
    return [(first.long() + k).clamp_(0, side - 1) for k in (-1, 0, 1, 2)], weights
