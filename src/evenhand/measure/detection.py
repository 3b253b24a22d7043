"""Average precision of detected boxes, by the rules of Pascal VOC and of COCO.

Detections and truths are lists with one entry per image: ``(boxes (n, 4), scores (n,), labels (n,))`` and
``(boxes (m, 4), labels (m,))``, boxes as x1, y1, x2, y2. A third truth entry, (m,) booleans, marks boxes that
need not be found and are no mistake either: VOC's "difficult", COCO's "iscrowd". Arrays or tensors.

Both rules go through a class's detections from the surest down, each a hit or a false alarm. VOC tries a detection
against the truth it overlaps most, which may be taken already; COCO against the best truth that is still free.
Equal scores keep their order: images as given, then detections as given.

>>> truths = [([[0, 0, 10, 10], [20, 20, 30, 30]], [0, 1])]
>>> detections = [([[0, 0, 10, 9], [50, 50, 60, 60]], [0.9, 0.8], [0, 0])]
>>> average_precision(detections, truths, 3).tolist()
[1.0, 0.0, nan]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from evenhand.measure.boxes import Array, Pool, box_iou, pool

__all__ = ["COCO_IOUS", "average_precision", "box_iou", "coco_average_precision", "coco_scores"]

Rule = Literal["area", "11-point", "coco"]
Size = Literal["all", "small", "medium", "large"]

COCO_IOUS = np.linspace(0.5, 0.95, 10)
SIZES = {"all": (0, np.inf), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, np.inf)}  # areas, closed
MOST = 100  # surest detections of a class in an image that COCO looks at
# Recalls at which precision is read, rounded as by the authors' programs: 3 of 5 do not reach 0.6000000000000001.
POINTS = {"area": None, "11-point": np.linspace(0, 1, 11), "coco": np.linspace(0, 1, 101)}


def average_precision(
    detections: Sequence[Any], truths: Sequence[Any], num_classes: int, *, iou: float = 0.5, rule: Rule = "area"
) -> Tensor:
    """(K,) average precision of each class, NaN where a class has no truth; its ``nanmean()`` is mAP at ``iou``.

    ``"area"`` under the precision-recall curve (VOC from 2010), ``"11-point"`` mean (VOC 2007), ``"coco"`` 101 points.
    """
    if rule not in POINTS:
        raise ValueError(f"rule='{rule}': choose 'area', '11-point' or 'coco'")
    if not 0 < iou <= 1:
        raise ValueError(f"iou={iou} is outside (0, 1]: use 0.5 for VOC's")
    boxes = pool(detections, truths, num_classes, MOST if rule == "coco" else None)
    return torch.from_numpy(_scored(boxes, np.array([iou]), rule, "all"))[0]


def coco_average_precision(
    detections: Sequence[Any], truths: Sequence[Any], num_classes: int, *, size: Size = "all"
) -> Tensor:
    """(10, K) at IoU 0.5, 0.55, ..., 0.95, of truths of a ``size``; NaN where a class has none of that size."""
    if size not in SIZES:
        raise ValueError(f"size='{size}': choose 'all', 'small', 'medium' or 'large'")
    return torch.from_numpy(_scored(pool(detections, truths, num_classes, MOST), COCO_IOUS, "coco", size))


def coco_scores(detections: Sequence[Any], truths: Sequence[Any], num_classes: int) -> dict[str, float]:
    """The six numbers of COCO's table; AP is the mean over ten IoU thresholds and all classes with truths.

    A truth's size is the area of its box; COCO's own annotations have the area of the segment instead.
    """
    boxes = pool(detections, truths, num_classes, MOST)
    tables = {size: torch.from_numpy(_scored(boxes, COCO_IOUS, "coco", size)) for size in SIZES}  # (10, K) each
    whole = tables.pop("all")
    parts = {"AP": whole, "AP50": whole[0], "AP75": whole[5], **{f"AP {size}": t for size, t in tables.items()}}
    return {name: float(part.nanmean()) for name, part in parts.items()}


def _scored(boxes: Pool, thresholds: Array, rule: str, size: str) -> Array:
    """(T, K)"""
    low, high = SIZES[size]
    ignored = boxes.optional | (boxes.true_area < low) | (boxes.true_area > high)  # (M,)
    found = (_match_coco if rule == "coco" else _match_voc)(boxes, np.minimum(thresholds, 1 - 1e-10), ignored)  # (T, D)
    hit = (found >= 0) & ~np.append(ignored, True)[found]
    wrong = (found < 0) & (boxes.area >= low) & (boxes.area <= high)
    order = np.lexsort((-boxes.score, boxes.label))
    parts = np.searchsorted(boxes.label[order], np.arange(boxes.num_classes + 1))
    result = np.full((len(thresholds), boxes.num_classes), np.nan)
    for k, truths in enumerate(np.bincount(boxes.true_label[~ignored], minlength=boxes.num_classes)):
        own = order[parts[k] : parts[k + 1]]
        if truths:
            result[:, k] = _areas(hit[:, own], wrong[:, own], truths, POINTS[rule])
    return result


def _areas(hit: Array, wrong: Array, truths: int, points: Array | None) -> Array:
    """(T,) area under each row's curve, or mean over recall ``points``, of precisions that never rise with recall."""
    if not hit.shape[1]:
        return np.zeros(len(hit))
    hits = hit.cumsum(1)  # (T, D)
    precision = hits / np.maximum(hits + wrong.cumsum(1), 1)
    precision = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]
    if points is None:
        return (hit * precision).sum(1) / truths  # each hit adds 1 / truths to the recall
    beyond = np.append(precision, np.zeros((len(hit), 1)), 1)  # recalls never reached
    return np.stack([row[np.searchsorted(r, points)].mean() for row, r in zip(beyond, hits / truths, strict=True)])


def _match_voc(boxes: Pool, thresholds: Array, ignored: Array) -> Array:
    """(T, D) the truth that each detection hits, or -1: the first to have it as its best gets it."""
    order = np.lexsort((-boxes.truth, boxes.overlap, boxes.detection))
    best = order[np.diff(boxes.detection[order], append=-1) != 0]  # each detection's last; of equals the first truth
    detection, truth, overlap = boxes.detection[best], boxes.truth[best], boxes.overlap[best]
    found = np.full((len(thresholds), len(boxes.score)), -1)
    for row, threshold in zip(found, thresholds, strict=True):
        near = overlap >= threshold
        first = np.zeros(near.sum(), dtype=bool)
        first[np.unique(truth[near], return_index=True)[1]] = True  # detections come by falling score
        row[detection[near]] = np.where(first | ignored[truth[near]], truth[near], -1)
    return found


def _match_coco(boxes: Pool, thresholds: Array, ignored: Array) -> Array:
    """(T, D) the truth that each detection hits, or -1: its best free one, an ignored one only if no other is near.

    Detections of one rank belong to different images or classes, so they choose all at once.
    """
    overlap = np.where(boxes.optional[boxes.truth], boxes.inside, boxes.overlap)
    near = overlap >= thresholds.min()
    detection, truth, overlap = boxes.detection[near], boxes.truth[near], overlap[near]
    order = np.lexsort((overlap, ~ignored[truth], detection, boxes.rank[detection]))  # a detection's last is its best
    detection, truth, overlap = detection[order], truth[order], overlap[order]
    turns = np.searchsorted(boxes.rank[detection], np.arange(MOST + 1))
    found = np.full((len(thresholds), len(boxes.score)), -1)
    free = np.ones((len(thresholds), len(boxes.true_label)), dtype=bool)
    for start, stop in pairwise(turns):
        if start == stop:
            continue
        own, wanted = detection[start:stop], truth[start:stop]
        able = (overlap[start:stop] >= thresholds[:, None]) & free[:, wanted]  # (T, P)
        first = np.flatnonzero(np.diff(own, prepend=-1))  # pairs of one detection lie together
        best = np.maximum.reduceat(np.where(able, np.arange(stop - start), -1), first, axis=1)  # (T, detections)
        row, column = np.nonzero(best >= 0)
        won = wanted[best[row, column]]
        found[row, own[first[column]]] = won
        free[row, won] = boxes.optional[won]  # a crowd is never full
    return found
