"""Average precision against pycocotools' numbers, slow transcriptions of both rules, and what must always hold.

``CASES`` were drawn by numpy's generator (truths at random, 7 of 10 detections a shifted truth, whole pixels so that
overlaps are exact) and judged by pycocotools 2.0.11: ``COCOeval(truth, found, "bbox")`` with its default settings,
boxes as x, y, width, height, area the box's; ``eval["precision"]`` averaged over its recalls, and ``stats[:6]``. When
the code was written, 410 further cases of the same kind, up to 400 detections an image, gave 38,000 numbers that
differ by 2e-15 at most.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from evenhand.data.stream import Memory, Stream
from evenhand.measure import detection
from evenhand.measure.boxes import pool
from evenhand.measure.detection import (
    COCO_IOUS,
    average_precision,
    box_iou,
    coco_average_precision,
    coco_scores,
)
from evenhand.measure.finding import SIDE, draw_faults

RULES = ("area", "11-point", "coco")


class Case(NamedTuple):
    name: str
    detections: list[Any]
    truths: list[Any]
    at_50: list[float | None]  # per class
    mean: list[float | None]  # per class, over ten thresholds
    table: list[float | None]  # AP, AP50, AP75, small, medium, large


# fmt: off
CROWDED = [
    ([[19, 23, 23, 33], [13, 23, 38, 43], [6, 2, 20, 23], [8, -2, 20, 20], [9, 11, 18, 17], [19, 22, 42, 41],
      [14, 25, 36, 42], [18, 2, 38, 14], [0, 5, 17, 17]],
     [0.49, 0.87, 0.1, 0.74, 0.73, 0.92, 0.69, 0.57, 0.28], [0, 0, 0, 0, 0, 0, 0, 0, 1]),
    ([[-2, 13, 15, 22], [4, 5, 7, 28], [19, 18, 22, 28], [4, 19, 22, 42]], [0.16, 0.22, 0.86, 0.09], [0, 1, 0, 0]),
]
CASES = [
    Case(
        "overlapping boxes", CROWDED,
        [([[16, 23, 39, 41], [1, 2, 15, 5], [5, 0, 20, 23]], [0, 0, 0]),
         ([[0, 13, 17, 25], [22, 9, 23, 11], [19, 15, 21, 31]], [0, 0, 0])],
        at_50=[0.308580858086, None], mean=[0.153168316832, None],
        table=[0.153168316832, 0.308580858086, 0.117821782178, 0.153168316832, None, None],
    ),
    Case(
        "crowds", CROWDED,
        [([[16, 23, 39, 41], [1, 2, 15, 5], [5, 0, 20, 23]], [0, 0, 0], [False, False, True]),
         ([[0, 13, 17, 25], [22, 9, 23, 11], [19, 15, 21, 31]], [0, 0, 0], [False, True, False])],
        at_50=[0.328147100424, None], mean=[0.162800565771, None],
        table=[0.162800565771, 0.328147100424, 0.128712871287, 0.162800565771, None, None],
    ),
    Case(
        "equal scores, empty images",
        [([[10, 4, 53, 44], [9, 2, 48, 9], [16, 12, 57, 43], [25, 15, 59, 24], [3, 35, 37, 44], [16, 6, 53, 47],
           [18, 4, 58, 49], [28, 17, 60, 26]], [0.2, 0.9, 0.5, 0.5, 0.2, 0.5, 0.0, 0.1], [0, 0, 0, 0, 1, 0, 0, 0]),
         ([], [], []),
         ([], [], [])],
        [([[15, 9, 54, 47], [29, 13, 62, 26]], [0, 0]),
         ([], []),
         ([[15, 26, 18, 27], [2, 31, 6, 66], [13, 9, 52, 38], [28, 24, 51, 37]], [1, 1, 0, 0])],
        at_50=[0.336633663366, 0.0, None], mean=[0.133498349835, 0.0, None],
        table=[0.066749174917, 0.168316831683, 0.032178217822, 0.033663366337, 0.328217821782, None],
    ),
    Case(
        "all sizes",
        [([[115, 134, 138, 193], [85, 138, 231, 252], [34, 12, 124, 142], [43, -1, 123, 131], [5, 15, 83, 22],
           [108, 135, 242, 246], [89, 146, 221, 248], [106, 14, 226, 83], [5, 32, 103, 103]],
          [0.5, 0.9, 0.1, 0.7, 0.7, 0.9, 0.7, 0.6, 0.3], [0, 0, 0, 0, 0, 0, 0, 0, 1]),
         ([[-9, 78, 92, 135], [26, 30, 39, 165], [111, 101, 121, 174], [139, 66, 146, 67]], [0.2, 0.2, 0.9, 0.1],
          [0, 1, 0, 0]),
         ([[22, 18, 45, 59], [96, 125, 224, 201], [16, 28, 67, 52]], [0.8, 0.9, 0.3], [0, 0, 0])],
        [([[96, 138, 233, 245], [6, 14, 86, 32], [32, 5, 123, 142]], [0, 0, 0]),
         ([[0, 78, 98, 147], [132, 57, 136, 66], [111, 89, 119, 184]], [0, 0, 0]),
         ([[69, 20, 189, 47], [12, 16, 57, 54], [87, 117, 218, 212], [127, 29, 198, 38]], [0, 0, 0, 0])],
        at_50=[0.422442244224, None], mean=[0.203224168571, None],
        table=[0.203224168571, 0.422442244224, 0.141914191419, 0.10099009901, 0.05099009901, 0.561798679868],
    ),
]
# fmt: on


def overlap(a: Any, b: Any) -> float:
    wide, high = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    shared = max(wide, 0) * max(high, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union else 0.0


def slow(detections: list[Any], truths: list[Any], k: int, iou: float, rule: str) -> float:
    """One class as the VOC development kit and COCOeval write it, detection by detection."""
    own = [[box for box, y in zip(t[0], t[1], strict=True) if y == k] for t in truths]
    optional = [[o for o, y in zip(t[2], t[1], strict=True) if y == k] if len(t) > 2 else [0] * len(b)
                for t, b in zip(truths, own, strict=True)]  # fmt: skip
    found = [(s, i, box) for i, d in enumerate(detections) for box, s, y in zip(*d, strict=True) if y == k]
    needed = sum(not o for image in optional for o in image)
    if not needed:
        return math.nan
    taken, hits, alarms, recall, precision = set(), 0, 0, [], []
    for _, i, box in sorted(found, key=lambda f: -f[0]):  # stable
        best, at = -1.0, None
        for j, truth in enumerate(own[i]):
            over = overlap(box, truth)
            if rule == "coco":
                if (i, j) not in taken and over >= max(best, iou):
                    best, at = over, j
            elif over > best:
                best, at = over, j
        if at is None or best < iou:
            alarms += 1
        elif optional[i][at]:
            continue
        elif (i, at) in taken:
            alarms += 1
        else:
            taken.add((i, at))
            hits += 1
        recall.append(hits / needed)
        precision.append(hits / (hits + alarms))
    if rule == "area":
        recall, precision = [0.0, *recall, 1.0], [0.0, *precision, 0.0]
        for i in range(len(precision) - 2, -1, -1):
            precision[i] = max(precision[i], precision[i + 1])
        return sum((recall[i + 1] - recall[i]) * precision[i + 1] for i in range(len(recall) - 1))
    points = np.arange(11) * 0.1 if rule == "11-point" else np.linspace(0, 1, 101)
    reached = [max((p for p, r in zip(precision, recall, strict=True) if r >= point), default=0.0) for point in points]
    return sum(reached) / len(points)


def drawn(seed: int, images: int, classes: int, *, ties: bool = False, difficult: bool = False) -> tuple[Any, Any]:
    """Small boxes on few pixels: many overlaps, equal ones too; images without truths, detections or both."""
    chance = np.random.default_rng(seed)

    def boxes(n: int) -> Any:
        corner = chance.integers(0, 8, (n, 2))
        return np.concatenate([corner, corner + chance.integers(1, 9, (n, 2))], 1)

    detections, truths = [], []
    for _ in range(images):
        n, m = chance.integers(0, 12), chance.integers(0, 6)
        scores = chance.permutation(1000)[:n] / 1000 + len(detections) * 1e-6
        scores = scores.round(1) if ties else scores
        detections.append((boxes(n), scores, chance.integers(0, classes, n)))
        marks = (chance.random(m) < 0.3,) if difficult else ()
        truths.append((boxes(m), chance.integers(0, classes, m), *marks))
    return detections, truths


def known(values: Any) -> list[float | None]:
    return [None if math.isnan(v) else v for v in values]


# pycocotools


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_equal_to_pycocotools(case: Case) -> None:
    classes = len(case.mean)
    every = coco_average_precision(case.detections, case.truths, classes)
    assert every.shape == (len(COCO_IOUS), classes)
    at_50 = average_precision(case.detections, case.truths, classes, rule="coco")
    assert torch.equal(at_50.nan_to_num(-1), every[0].nan_to_num(-1))
    assert known(at_50.tolist()) == pytest.approx(case.at_50, abs=1e-11)
    assert known(every.mean(0).tolist()) == pytest.approx(case.mean, abs=1e-11)
    scores = coco_scores(case.detections, case.truths, classes)
    assert list(scores) == ["AP", "AP50", "AP75", "AP small", "AP medium", "AP large"]
    assert known(scores.values()) == pytest.approx(case.table, abs=1e-11)
    large = coco_average_precision(case.detections, case.truths, classes, size="large")
    assert known([float(large.nanmean())]) == pytest.approx(case.table[5:], abs=1e-11)


def test_coco_looks_at_a_hundred_detections_of_a_class_in_an_image() -> None:
    box, elsewhere = [0, 0, 10, 10], [50, 50, 60, 60]
    detections = [([elsewhere] * 100 + [box], np.linspace(1, 0, 101), [0] * 101)]
    truths = [([box], [0])]
    assert average_precision(detections, truths, 1, rule="coco").item() == 0
    assert average_precision(detections, truths, 1).item() == pytest.approx(1 / 101)


# transcriptions


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    images=st.integers(1, 6),
    classes=st.integers(1, 3),
    iou=st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0]),
    ties=st.booleans(),
    rule=st.sampled_from(RULES),
    difficult=st.booleans(),
)
def test_equal_to_the_slow_transcription(
    seed: int, images: int, classes: int, iou: float, ties: bool, rule: Any, difficult: bool
) -> None:
    detections, truths = drawn(seed, images, classes, ties=ties, difficult=difficult and rule != "coco")
    value = average_precision(detections, truths, classes, iou=iou, rule=rule)
    expected = [slow(detections, truths, k, iou, rule) for k in range(classes)]
    assert known(value.tolist()) == pytest.approx(known(expected), abs=1e-12)


def test_hand_made() -> None:
    """Spec 09, 10a.15. Hit, false alarm, hit of three truths: precisions 1, 1/2, 2/3 at recalls 1/3, 1/3, 2/3."""
    truths = [([[0, 0, 10, 10], [20, 0, 30, 10]], [0, 0]), ([[0, 0, 4, 4]], [0])]
    detections = [([[0, 0, 10, 8], [20, 0, 30, 10]], [0.9, 0.7], [0, 0]), ([[8, 8, 9, 9]], [0.8], [0])]
    expected = {"area": (1 + 2 / 3) / 3, "11-point": (4 + 3 * 2 / 3) / 11, "coco": (34 + 33 * 2 / 3) / 101}
    for rule, value in expected.items():
        assert average_precision(detections, truths, 1, rule=rule).item() == pytest.approx(value)  # type: ignore[arg-type]
    assert average_precision(detections, truths, 1, iou=0.81).item() == pytest.approx((1 / 3) / 3)


def test_voc_tries_the_best_truth_only_and_coco_the_best_that_is_free() -> None:
    truths = [([[0, 0, 10, 10], [2, 0, 12, 10]], [0, 0])]
    detections = [([[0, 0, 10, 10], [0, 0, 11, 10]], [0.9, 0.8], [0, 0])]  # both overlap the first truth most
    found = {rule: average_precision(detections, truths, 1, rule=rule).item() for rule in RULES}  # type: ignore[arg-type]
    assert found == pytest.approx({"area": 0.5, "11-point": 6 / 11, "coco": 1.0})


def test_truths_that_need_not_be_found() -> None:
    truths = [([[0, 0, 10, 10], [20, 0, 30, 10]], [0, 0], [True, False])]
    twice = [([[0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 10]], [0.9, 0.8, 0.7], [0, 0, 0])]
    for rule in RULES:
        assert average_precision(twice, truths, 1, rule=rule).item() == 1  # type: ignore[arg-type]
        assert average_precision(twice, [(*truths[0][:2], [True, True])], 1, rule=rule).isnan().all()  # type: ignore[arg-type]


# what always holds


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), images=st.integers(1, 6), rule=st.sampled_from(RULES))
def test_within_bounds_and_the_same_for_other_scales_and_orders(seed: int, images: int, rule: Any) -> None:
    detections, truths = drawn(seed, images, 3)
    value = average_precision(detections, truths, 3, rule=rule).nan_to_num(-1)
    has = [any((t[1] == k).any() for t in truths) for k in range(3)]
    assert (value >= 0).tolist() == has
    assert (value <= 1).all()
    bent = [(boxes, np.log(scores + 1) * 50 - 7, labels) for boxes, scores, labels in detections]
    assert torch.equal(average_precision(bent, truths, 3, rule=rule).nan_to_num(-1), value)
    order = np.random.default_rng(seed).permutation(images)
    shuffled = average_precision([detections[i] for i in order], [truths[i] for i in order], 3, rule=rule)
    assert torch.equal(shuffled.nan_to_num(-1), value)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), images=st.integers(1, 6), rule=st.sampled_from(RULES))
def test_perfect_detections_score_one_and_none_zero(seed: int, images: int, rule: Any) -> None:
    _, truths = drawn(seed, images, 2)
    distinct = [np.unique(np.column_stack([boxes, labels]), axis=0) for boxes, labels in truths]
    truths = [(rows[:, :4], rows[:, 4]) for rows in distinct]
    perfect = [(boxes, np.random.default_rng(i).random(len(boxes)), y) for i, (boxes, y) in enumerate(truths)]
    present = [any((y == k).any() for _, y in truths) for k in range(2)]
    for detections, value in ((perfect, 1.0), ([([], [], [])] * images, 0.0)):
        found = average_precision(detections, truths, 2, iou=0.95, rule=rule)
        assert known(found.tolist()) == [value if there else None for there in present]


def test_tensors_arrays_and_lists_are_the_same() -> None:
    detections, truths = drawn(3, 4, 2)
    expected = average_precision(detections, truths, 2)
    assert expected.dtype == torch.float64
    for turn in (torch.as_tensor, np.ndarray.tolist):
        given = [[tuple(turn(part) for part in image) for image in images] for images in (detections, truths)]
        assert torch.equal(average_precision(*given, 2), expected)
    half = [(torch.as_tensor(boxes).bfloat16(), scores, labels) for boxes, scores, labels in detections]  # whole pixels
    assert torch.equal(average_precision(half, truths, 2), expected)


def test_nothing_at_all() -> None:
    assert average_precision([], [], 2).isnan().tolist() == [True, True]
    empty = [(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.long))]
    assert average_precision(empty, [(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))], 2).isnan().all()
    assert all(math.isnan(v) for v in coco_scores(empty, [([], [])], 2).values())


def test_box_iou() -> None:
    detections, truths = drawn(7, 1, 1)
    a, b = detections[0][0], truths[0][0]
    expected = [[overlap(x, y) for y in b] for x in a]
    torch.testing.assert_close(box_iou(a.astype(float), b).tolist(), expected)
    point = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    assert box_iou(point, point).tolist() == [[0.0]]
    assert box_iou(torch.zeros(0, 4), point).shape == (0, 1)
    with pytest.raises(ValueError, match=r"boxes of shape \(4,\): expected \(n, 4\)"):
        box_iou(point[0], point)


def test_bad_arguments_name_the_image_and_the_remedy() -> None:
    box, good, true = [0, 0, 1, 1], ([], [], []), ([], [])
    for call, message in [
        (lambda: average_precision([], [true], 1), "detections of 0 images, truths of 1"),
        (
            lambda: average_precision([good, ([box], [0.5], [2])], [true] * 2, 2),
            r"detections\[1\] holds a label outside 0..1",
        ),
        (lambda: average_precision([good], [([box], [0.5])], 2), r"truths\[0\] holds a label outside"),
        (
            lambda: average_precision([([box], [0.5, 0.1], [0])], [true], 1),
            r"detections\[0\] holds shapes \(1, 4\), \(2,\)",
        ),
        (
            lambda: average_precision([([box], [0])], [true], 1),
            r"expected boxes \(n, 4\), scores \(n,\), labels \(n,\)",
        ),
        (lambda: average_precision([good], [([[0, 0, 1]], [0])], 1), r"expected boxes \(m, 4\), labels \(m,\)"),
        (
            lambda: average_precision([([box], [math.nan], [0])], [true], 1),
            r"detections\[0\] holds a number that is not",
        ),
        (lambda: average_precision([good], [([[5, 5, 2, 2]], [0])], 1), "swapped corners: expected x1, y1, x2, y2"),
        (lambda: average_precision([good], [true], 1, rule="voc"), "rule='voc': choose 'area', '11-point' or 'coco'"),  # type: ignore[arg-type]
        (lambda: average_precision([good], [true], 1, iou=50), r"iou=50 is outside \(0, 1\]"),
        (lambda: coco_average_precision([good], [true], 1, size="tiny"), "size='tiny': choose 'all'"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_fault_is_drawn_in_red_over_the_truths_in_white(channels: int, tmp_path: Path) -> None:
    images = torch.zeros(2, channels, 50, 100, dtype=torch.uint8)
    stream = Stream(Memory(images), None, ("disc",), "test")
    truths = [(torch.zeros(0, 4),), (torch.tensor([[60.0, 10.0, 90.0, 40.0]]),)]
    faults: dict[str, Any] = {"alarms": [{"row": 1, "box": [10.0, 10.0, 40.0, 40.0]}]}
    draw_faults(faults, truths, stream, tmp_path)
    assert faults["alarms"][0]["picture"] == "faults/alarms-0.jpg"
    with Image.open(tmp_path / "faults" / "alarms-0.jpg") as picture:
        scale = SIDE / 100
        assert picture.size == (SIDE, round(50 * scale))
        red, white, black = (picture.getpixel((round(x * scale), round(25 * scale))) for x in (10, 60, 50))
    assert red[0] > 120 > 2 * max(red[1:])
    assert min(white) > 120 > 2 * max(black)


def test_constants_are_those_of_the_published_rules() -> None:
    assert detection.COCO_IOUS.tolist() == pytest.approx([0.5 + 0.05 * i for i in range(10)])
    inf = math.inf
    assert {"all": (0, inf), "small": (0, 1024), "medium": (1024, 9216), "large": (9216, inf)} == detection.SIZES
    assert detection.MOST == 100
    assert detection.POINTS["area"] is None
    assert detection.POINTS["11-point"].tolist() == pytest.approx([i / 10 for i in range(11)])  # type: ignore[union-attr]
    assert detection.POINTS["coco"].tolist() == pytest.approx([i / 100 for i in range(101)])  # type: ignore[union-attr]


def test_precision_by_each_rule_by_hand() -> None:
    """Of two truths one is found first, then a false alarm, then the other: precisions 1 and 2/3."""
    truths = [([[0, 0, 10, 10], [20, 20, 30, 30]], [0, 0])]
    found = [([[0, 0, 10, 10], [50, 50, 60, 60], [20, 20, 30, 30]], [0.9, 0.8, 0.7], [0, 0, 0])]
    assert average_precision(found, truths, 1).item() == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(found, truths, 1, rule="11-point").item() == pytest.approx((6 + 5 * 2 / 3) / 11)
    assert average_precision(found, truths, 1, rule="coco").item() == pytest.approx((51 + 50 * 2 / 3) / 101)
    missed = [([[0, 0, 10, 10]], [0.9], [0])]
    assert average_precision(missed, truths, 1).item() == 0.5
    assert average_precision(missed, truths, 1, rule="11-point").item() == pytest.approx(6 / 11)
    half = [([[0, 0, 10, 5], [20, 20, 30, 24]], [0.9, 0.8], [0, 0])]  # overlaps of 0.5 and 0.4
    assert average_precision(half, truths, 1).item() == 0.5
    assert average_precision(half, truths, 1, iou=0.51).item() == 0
    assert average_precision(half, truths, 1, iou=0.4).item() == 1
    assert average_precision(found, truths, 1, iou=1.0).item() == pytest.approx((1 + 2 / 3) / 2)
    for iou in (0, 1.1):
        with pytest.raises(ValueError, match="outside"):
            average_precision(found, truths, 1, iou=iou)


@pytest.mark.parametrize(
    ("side", "size"), [(31, "small"), (32, "small"), (33, "medium"), (96, "medium"), (97, "large")]
)
def test_sizes_end_with_their_limits(side: int, size: str) -> None:
    truths, found = [([[0, 0, side, side]], [0])], [([[0, 0, side, side]], [0.9], [0])]
    scores = coco_scores(found, truths, 1)
    assert scores[f"AP {size}"] == scores["AP"] == scores["AP50"] == scores["AP75"] == 1
    there = {name for name in ("small", "medium", "large") if not math.isnan(scores[f"AP {name}"])}
    assert there == {size} | ({"medium"} if side == 32 else set()) | ({"large"} if side == 96 else set())
    assert coco_average_precision(found, truths, 1).tolist() == [[1.0]] * 10


def test_ap75_is_at_three_quarters() -> None:
    truths = [([[0, 0, 100, 100]], [0])]
    for width, ap50, ap75 in ((75, 1, 1), (74, 1, 0), (50, 1, 0), (49, 0, 0)):
        scores = coco_scores([([[0, 0, width, 100]], [0.9], [0])], truths, 1)
        assert (scores["AP50"], scores["AP75"]) == (ap50, ap75)


def test_pools_pair_what_is_of_one_image_and_class() -> None:
    truths = [([[0, 0, 4, 4], [0, 0, 2, 2], [0, 0, 8, 8]], [1, 0, 1], [False, True, False]), ([[0, 0, 4, 4]], [1])]
    found = [([[0, 0, 4, 2], [0, 0, 4, 4], [0, 0, 2, 2]], [0.5, 0.9, 0.7], [1, 1, 0]), ([[0, 0, 1, 1]], [0.3], [0])]
    got = pool(found, truths, 2)
    assert got.score.tolist() == [0.7, 0.9, 0.5, 0.3]
    assert (got.label.tolist(), got.rank.tolist(), got.area.tolist()) == ([0, 1, 1, 0], [0, 0, 1, 0], [4, 16, 8, 1])
    assert (got.true_label.tolist(), got.true_area.tolist()) == ([0, 1, 1, 1], [4, 16, 64, 16])
    assert got.optional.tolist() == [True, False, False, False]
    assert list(zip(got.detection.tolist(), got.truth.tolist(), strict=True)) == [
        (0, 0),
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]
    assert got.overlap.tolist() == pytest.approx([1, 1, 0.25, 0.5, 0.125])
    assert got.inside.tolist() == pytest.approx([1, 1, 1, 1, 1])
    assert pool(found, truths, 2, most=1).score.tolist() == [0.7, 0.9, 0.3]
    with pytest.raises(ValueError, match="num_classes=0"):
        pool([], [], 0)
