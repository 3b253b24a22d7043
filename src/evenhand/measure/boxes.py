"""Boxes x1, y1, x2, y2: how they overlap, and those of many images laid out in arrays for matching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenhand.given import as_tensor

Array = np.ndarray[Any, np.dtype[Any]]


def box_area(boxes: Tensor) -> Tensor:
    """(...,) of boxes (..., 4); 0 where the corners are swapped."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def box_iou(first: Any, second: Any) -> Tensor:
    """(n, m) intersection over union of boxes (n, 4) with boxes (m, 4); 0 where both are empty."""
    a, b = (as_tensor(boxes) for boxes in (first, second))
    for boxes in (a, b):
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise ValueError(f"boxes of shape {tuple(boxes.shape)}: expected (n, 4), as x1, y1, x2, y2")
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    a, b = a.to(wide)[:, None], b.to(wide)[None]
    return _over(_shared(a, b), box_area(a) + box_area(b) - _shared(a, b))


def box_inside(first: Tensor, second: Tensor) -> Tensor:
    """(n, m) share of the area of each box (n, 4) that lies in each box (m, 4); 0 of an empty one."""
    a, b = first[:, None], second[None].to(first.dtype)
    return _over(_shared(a, b), box_area(a))


class Pool(NamedTuple):
    """All images in one: detections by image, class and falling score, truths by image and class."""

    num_classes: int
    score: Array  # (D,)
    label: Array
    rank: Array  # place among the detections of its class in its image, 0 the surest
    area: Array
    true_label: Array  # (M,)
    true_area: Array
    optional: Array  # need not be found: VOC's difficult, COCO's crowds
    detection: Array  # (P,) of every pair of the same image and class
    truth: Array
    overlap: Array  # intersection over union
    inside: Array  # intersection over the detection's area


def pool(detections: Sequence[Any], truths: Sequence[Any], num_classes: int, most: int | None = None) -> Pool:
    """Lists with one entry per image, checked; of a class in an image the ``most`` surest detections."""
    if num_classes < 1:
        raise ValueError(f"num_classes={num_classes}: expected at least 1")
    if len(detections) != len(truths):
        raise ValueError(f"detections of {len(detections)} images, truths of {len(truths)}: give both for every image")
    found = _read(detections, "detections", num_classes)
    found = found.take(np.lexsort((-found.value, found.group)))  # stable: equal scores keep their order
    rank = np.arange(len(found.group)) - np.searchsorted(found.group, found.group)
    if most is not None:
        found, rank = found.take(rank < most), rank[rank < most]
    true = _read(truths, "truths", num_classes)
    true = true.take(np.argsort(true.group, kind="stable"))
    start, stop = (np.searchsorted(true.group, found.group, side) for side in ("left", "right"))
    many = stop - start  # (D,) truths of the detection's image and class
    detection = np.repeat(np.arange(len(many)), many)
    truth = np.arange(len(detection)) - np.repeat(many.cumsum() - stop, many)
    a, b = torch.from_numpy(found.box), torch.from_numpy(true.box)
    areas, shared = (box_area(a), box_area(b)), _shared(a[detection], b[truth])
    union = areas[0][detection] + areas[1][truth] - shared
    return Pool(
        num_classes, found.value, found.label, rank, areas[0].numpy(), true.label, areas[1].numpy(),
        true.value > 0, detection, truth, _over(shared, union).numpy(), _over(shared, areas[0][detection]).numpy(),
    )  # fmt: skip


class _Rows(NamedTuple):
    box: Array  # (N, 4) float64
    value: Array  # score of a detection, 1 for an optional truth
    label: Array
    group: Array  # image and class as one number

    def take(self, rows: Array) -> _Rows:
        return _Rows(*(column[rows] for column in self))


def _read(images: Sequence[Any], name: str, num_classes: int) -> _Rows:
    scored, columns = name == "detections", []
    for i, image in enumerate(images):
        parts = [np.asarray(part.detach().double().cpu() if isinstance(part, Tensor) else part) for part in image]
        if not scored and len(parts) == 2:
            parts.append(np.zeros(len(parts[0])))
        shapes = [part.shape for part in parts]
        if len(parts) != 3 or shapes[1:] != [shapes[0][:1]] * 2 or (len(parts[0]) and shapes[0][1:] != (4,)):
            expected = "boxes (n, 4), scores (n,), labels (n,)" if scored else "boxes (m, 4), labels (m,)"
            raise ValueError(f"{name}[{i}] holds shapes {', '.join(map(str, shapes))}: expected {expected}")
        columns.append([parts[0].reshape(-1, 4), *(parts[1:] if scored else parts[:0:-1])])
    columns.append([np.zeros((0, 4)), np.zeros(0), np.zeros(0, dtype=np.int64)])  # of no images
    image_of = np.repeat(np.arange(len(columns)), [len(column[0]) for column in columns])
    box, value, given = (np.concatenate([c[part] for c in columns]).astype(np.float64) for part in range(3))
    label = given.astype(np.int64)
    outside = (label != given) | (label < 0) | (label >= num_classes)
    faults = {
        f"a label outside 0..{num_classes - 1}: check num_classes": outside,
        "a number that is not finite": ~(np.isfinite(box).all(1) & np.isfinite(value)),
        "a box with swapped corners: expected x1, y1, x2, y2": (box[:, 2:] < box[:, :2]).any(1),
    }
    for fault, where in faults.items():
        if where.any():
            raise ValueError(f"{name}[{image_of[where.argmax()]}] holds {fault}")
    return _Rows(box, value, label, image_of * num_classes + label)


def _shared(a: Tensor, b: Tensor) -> Tensor:
    low, high = a[..., :2].maximum(b[..., :2]), a[..., 2:].minimum(b[..., 2:])
    return (high - low).clamp(min=0).prod(-1)


def _over(part: Tensor, whole: Tensor) -> Tensor:
    return part / torch.where(whole > 0, whole, 1.0)
