"""NMS against a slow loop; RoIAlign against sampling point by point, and against torchvision's own fallback."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor

from evenhand.nets.detection.ops import nms, roi_align


def some_boxes(n: int, chance: torch.Generator, side: float = 40.0, grid: bool = False) -> Tensor:
    corners = torch.rand(n, 2, generator=chance, dtype=torch.float64) * side * 0.7
    boxes = torch.cat([corners, corners + 1 + torch.rand(n, 2, generator=chance, dtype=torch.float64) * side * 0.3], 1)
    return boxes.round() if grid else boxes


def slow_nms(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    left = sorted(range(len(boxes)), key=lambda i: (-float(scores[i]), i))
    kept: list[int] = []
    for i in left:
        a = boxes[i].tolist()
        for j in kept:
            b = boxes[j].tolist()
            w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            inner = max(w, 0) * max(h, 0)
            union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inner
            if inner / union > threshold:
                break
        else:
            kept.append(i)
    return kept


@pytest.mark.parametrize("seed", range(20))
def test_nms_is_that_of_the_slow_loop(seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    boxes = some_boxes(60, chance, grid=seed % 2 == 0)
    scores = torch.rand(60, generator=chance, dtype=torch.float64)
    if seed % 3 == 0:
        scores = (scores * 5).round()  # ties: the first of equals wins
    for threshold in (0.1, 0.5, 0.7):
        assert nms(boxes, scores, threshold).tolist() == slow_nms(boxes, scores, threshold)


def test_nms_of_a_chain_keeps_every_other_box() -> None:
    left = torch.arange(9.0) * 4
    boxes = torch.stack([left, torch.zeros(9), left + 10, torch.ones(9) * 10], 1)  # neighbours share 6 of 14
    assert nms(boxes, torch.arange(9.0, 0, -1), 0.4).tolist() == [0, 2, 4, 6, 8]


def test_nms_of_nothing() -> None:
    assert nms(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []


def sampled(X: Tensor, y: float, x: float) -> Tensor:
    """One bilinear sample (C,), as the kernel takes it."""
    H, W = X.shape[1:]
    if y < -1 or y > H or x < -1 or x > W:
        return X.new_zeros(len(X))
    y, x = min(max(y, 0.0), H - 1), min(max(x, 0.0), W - 1)
    top, left = int(y), int(x)
    below, right = min(top + 1, H - 1), min(left + 1, W - 1)
    v, u = y - top, x - left
    upper = (1 - u) * X[:, top, left] + u * X[:, top, right]
    return (1 - v) * upper + v * ((1 - u) * X[:, below, left] + u * X[:, below, right])


def slow_roi_align(
    maps: Tensor, boxes: Tensor, size: tuple[int, int], scale: float, ratio: int, aligned: bool
) -> Tensor:
    out = []
    for image, *box in boxes.tolist():
        x1, y1, x2, y2 = (v * scale - (0.5 if aligned else 0) for v in box)
        w, h = x2 - x1, y2 - y1
        if not aligned:
            w, h = max(w, 1.0), max(h, 1.0)
        down, across = (ratio, ratio) if ratio > 0 else (math.ceil(h / size[0]), math.ceil(w / size[1]))
        cells = [
            sum(
                sampled(
                    maps[int(image)],
                    y1 + (i + (a + 0.5) / down) * h / size[0],
                    x1 + (j + (b + 0.5) / across) * w / size[1],
                )
                for a in range(down)
                for b in range(across)
            )
            / (down * across)
            for i in range(size[0])
            for j in range(size[1])
        ]
        out.append(torch.stack(cells, 1).view(-1, *size))
    return torch.stack(out)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [2, -1])
def test_roi_align_is_the_mean_of_bilinear_samples(aligned: bool, ratio: int) -> None:
    chance = torch.Generator().manual_seed(3)
    maps = torch.randn(2, 3, 9, 11, generator=chance, dtype=torch.float64, requires_grad=True)
    boxes = some_boxes(8, chance) - 6  # some stick out of the map, by more than a cell
    boxes = torch.cat([torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0], dtype=torch.float64)[:, None], boxes], 1)
    mine = roi_align(maps, boxes, (3, 2), 0.3, ratio, aligned)
    slow = slow_roi_align(maps, boxes, (3, 2), 0.3, ratio, aligned)
    torch.testing.assert_close(mine, slow, rtol=0, atol=1e-12)
    weights = torch.randn(mine.shape, generator=chance, dtype=torch.float64)
    (first,) = torch.autograd.grad((mine * weights).sum(), maps)
    (second,) = torch.autograd.grad((slow * weights).sum(), maps)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)


def test_boxes_as_a_list_for_each_image_and_images_without_any() -> None:
    chance = torch.Generator().manual_seed(5)
    maps = torch.randn(3, 2, 8, 8, generator=chance, dtype=torch.float64)
    first, last = some_boxes(2, chance, 8.0), some_boxes(3, chance, 8.0)
    listed = roi_align(maps, [first, first[:0], last], 2, 1.0, 2)
    rows = torch.cat([torch.tensor([0.0, 0, 2, 2, 2], dtype=torch.float64)[:, None], torch.cat([first, last])], 1)
    assert torch.equal(listed, roi_align(maps, rows, 2, 1.0, 2))
    assert roi_align(maps, [first[:0]] * 3, 2, 1.0, 2).shape == (0, 2, 2, 2)


@pytest.mark.usefixtures("tv")
@pytest.mark.parametrize("aligned", [False, True])
def test_roi_align_is_torchvisions_fallback_inside_the_map(aligned: bool) -> None:
    chance = torch.Generator().manual_seed(4)
    maps = torch.randn(2, 3, 16, 16, generator=chance, dtype=torch.float64, requires_grad=True)
    boxes = some_boxes(6, chance, 28.0) + 2
    rows = torch.cat([torch.tensor([0.0, 1, 0, 1, 1, 0], dtype=torch.float64)[:, None], boxes], 1)
    fallback = sys.modules["torchvision.ops.roi_align"]._roi_align
    fallback = getattr(fallback, "__wrapped__", fallback)
    theirs = fallback(maps, rows, 0.5, 4, 4, 2, aligned)
    mine = roi_align(maps, rows, 4, 0.5, 2, aligned)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    grads = [torch.autograd.grad((found**2).sum(), maps)[0] for found in (mine, theirs)]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-10)


def test_torchvision_is_never_touched_where_its_operations_exist(tv) -> None:
    has = tv.extension._has_ops()
    assert (tv.ops.nms is nms) == (not has)
    assert (tv.ops.roi_align is roi_align) == (not has)
