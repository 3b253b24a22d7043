"""Exact non-maximum suppression and RoIAlign in plain torch.

Both are what torchvision's compiled kernels compute. RoIAlign averages bilinear samples on a regular grid, which is
separable: of one box it is A_y X A_x' with small matrices A of interpolation weights. As products it is quick on a CPU,
and its backward is deterministic on a GPU, where torchvision's is not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices kept, by falling score: a box is dropped if a kept one before it overlaps it by more than the threshold.

    Suppression is the fixed point of keep_i = no j < i with keep_j and IoU_ij above the threshold; every round of the
    loop settles at least one more box for good, and in practice a few rounds settle all.
    """
    order = scores.sort(descending=True, stable=True).indices
    left, top, right, bottom = boxes[order].unbind(1)
    area = (right - left) * (bottom - top)
    shared = _overlap(left, right).mul_(_overlap(top, bottom))  # (n, n)
    union = (area[:, None] + area[None]).sub_(shared)
    over = (shared.div_(union) > iou_threshold).triu_(1).float()  # floats: a product counts who suppresses, exactly
    keep = torch.ones(len(order), device=boxes.device)
    while True:
        settled = (keep @ over == 0).float()
        if torch.equal(settled, keep):
            return order[keep.bool()]
        keep = settled


def _overlap(start: Tensor, stop: Tensor) -> Tensor:
    """(n, n) lengths that each two of n intervals share."""
    shared = torch.minimum(stop[:, None], stop[None]).sub_(torch.maximum(start[:, None], start[None]))
    return shared.clamp_(min=0)


def roi_align(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    output_size: int | tuple[int, int] | list[int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """(R, C, h, w) of maps (N, C, H, W) and boxes: (R, 5), the image's index first, or a list of (r, 4)."""
    if isinstance(boxes, list):
        which = torch.cat([part.new_full((len(part), 1), i) for i, part in enumerate(boxes)])
        boxes = torch.cat([which, torch.cat(boxes)], 1)
    tall, wide = (output_size, output_size) if isinstance(output_size, int) else output_size
    corners = boxes[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    A_x = _weights(corners[:, 0], corners[:, 2], wide, input.shape[3], sampling_ratio, aligned).to(input.dtype)
    A_y = _weights(corners[:, 1], corners[:, 3], tall, input.shape[2], sampling_ratio, aligned).to(input.dtype)
    rows, found = [], []
    for image, X in enumerate(input.permute(0, 2, 3, 1)):  # channels last: one product with long rows, not many small
        own = (boxes[:, 0] == image).nonzero()[:, 0]
        down = (A_y[own].flatten(0, 1) @ X.flatten(1)).view(len(own), tall, *X.shape[1:])  # (r, h, W, C)
        found.append(A_x[own][:, None] @ down)  # (r, h, w, C)
        rows.append(own)
    return torch.cat(found)[torch.cat(rows).argsort()].permute(0, 3, 1, 2)


def _weights(start: Tensor, stop: Tensor, bins: int, length: int, ratio: int, aligned: bool) -> Tensor:
    """(R, bins, length): what each cell of a map's side counts in each bin, averaged over the bin's samples."""
    extent = stop - start
    if not aligned:
        extent = extent.clamp(min=1)
    size = extent / bins
    most = ratio if ratio > 0 else max(int(size.ceil().max()) if len(size) else 1, 1)
    count = torch.full_like(size, ratio) if ratio > 0 else size.ceil()
    number = torch.arange(most, device=start.device, dtype=start.dtype)
    bin_start = start[:, None] + torch.arange(bins, device=start.device, dtype=start.dtype) * size[:, None]  # (R, bins)
    at = bin_start[..., None] + (number + 0.5) * (size / count.clamp(min=1))[:, None, None]  # (R, bins, most)
    counts = (number < count[:, None, None]) & (at >= -1) & (at <= length)  # samples a cell outside the map count 0
    at = at.clamp(0, length - 1)
    low = at.floor().long().clamp(max=length - 1)
    share = at - low
    weight = at.new_zeros(*at.shape[:2], length)
    scale = counts.to(at.dtype) / count.clamp(min=1)[:, None, None]
    weight.scatter_add_(2, low, (1 - share) * scale)
    return weight.scatter_add_(2, (low + 1).clamp(max=length - 1), share * scale)
