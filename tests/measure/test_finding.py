"""Detections of a stream, and the faults that a report shows, by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenhand.data.stream import Memory, Stream
from evenhand.data.target import Boxes, Found
from evenhand.measure import finding
from evenhand.measure.boxes import box_inside
from evenhand.measure.finding import find_all, surest_faults

CAT, DOG = 0, 1


def stream(*objects: Found) -> Stream:
    images = torch.zeros(len(objects), 3, 40, 40, dtype=torch.uint8)
    names = [f"scene-{i}" for i in range(len(objects))]
    return Stream(Memory(images, names), Boxes(list(objects)), ("cat", "dog"), "test")


def found(*rows: tuple[list[float], float, int]) -> tuple[Tensor, Tensor, Tensor]:
    boxes = torch.tensor([box for box, _, _ in rows], dtype=torch.float32).reshape(-1, 4)
    return boxes, torch.tensor([s for _, s, _ in rows]), torch.tensor([k for _, _, k in rows], dtype=torch.int64)


def truth(*rows: tuple[list[float], int, bool]) -> Found:
    boxes = torch.tensor([box for box, _, _ in rows]).reshape(-1, 4)
    optional = torch.tensor([o for _, _, o in rows], dtype=torch.bool)
    return Found(boxes, torch.tensor([k for _, k, _ in rows], dtype=torch.int64), optional)


def faults(found_rows: list[Any], truths: list[Found], most: int = 10) -> dict[str, list[tuple[str, str, float]]]:
    kept = surest_faults(found_rows, [tuple(t) for t in truths], stream(*truths), most)
    return {kind: [(f["name"], f["class"], round(f["score"], 3)) for f in some] for kind, some in kept.items()}


def test_share_of_a_box_that_lies_in_another() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 5, 5, 9]])
    others = torch.tensor([[0.0, 0, 10, 5], [8, 8, 40, 40]])
    assert torch.allclose(box_inside(boxes, others), torch.tensor([[0.5, 0.04], [0.0, 0.0]]))


def test_alarms_by_falling_score_misses_by_what_came_near() -> None:
    truths = [truth(([0, 0, 10, 10], CAT, False)), truth(([20, 20, 30, 30], DOG, False))]
    rows = [
        found(([0, 0, 10, 9], 0.9, CAT), ([30, 30, 40, 40], 0.4, DOG)),  # a hit, and an alarm
        found(([20, 20, 30, 30], 0.8, CAT), ([20, 20, 30, 24], 0.3, DOG)),  # another class; too small, but near
    ]
    assert faults(rows, truths) == {
        "false_alarms": [("scene-1", "cat", 0.8), ("scene-0", "dog", 0.4), ("scene-1", "dog", 0.3)],
        "misses": [("scene-1", "dog", 0.3)],
    }
    assert [len(some) for some in faults(rows, truths, most=1).values()] == [1, 1]


def test_optional_objects_are_neither_missed_nor_alarms_when_found() -> None:
    crowd = ([0, 0, 30, 30], CAT, True)
    truths = [truth(crowd), truth(crowd, ([32, 32, 40, 40], DOG, False))]
    rows = [found(([2, 2, 8, 8], 0.9, CAT)), found(([2, 2, 8, 8], 0.9, DOG))]
    assert faults(rows, truths) == {"false_alarms": [("scene-1", "dog", 0.9)], "misses": [("scene-1", "dog", 0.0)]}


def test_everything_that_is_found_comes_back_in_the_order_of_the_stream() -> None:
    truths = [truth(([0, 0, 10, 10], CAT, False)), truth(), truth(([1, 1, 9, 9], DOG, False))]
    rows = [found(([0, 0, 5, 5], 0.7, DOG)), found(), found(([1, 1, 2, 2], 0.6, CAT), ([3, 3, 4, 4], 0.5, DOG))]
    answers = iter(rows)
    seen, there = find_all(lambda images: [next(answers) for _ in images], stream(*truths), batch=2)
    for (boxes, scores, labels), (b, s, k) in zip(seen, rows, strict=True):
        assert torch.allclose(boxes.float(), b)
        assert torch.allclose(scores.float(), s)
        assert labels.tolist() == k.tolist()
    assert [len(one[1]) for one in there] == [1, 0, 1]
    assert [len(one[0]) for one in find_all(lambda images: [found() for _ in images], stream(*truths))[0]] == [0, 0, 0]


def test_limits_of_hits_and_excuses() -> None:
    """Half an overlap is a hit; half of it in an optional object is no alarm; a third near a truth is remembered."""
    half = found(([0, 0, 10, 5], 0.9, CAT))
    assert faults([half], [truth(([0, 0, 10, 10], CAT, False))]) == {"false_alarms": [], "misses": []}
    less = found(([0, 0, 10, 4.9], 0.9, CAT))
    missed = faults([less], [truth(([0, 0, 10, 10], CAT, False))])
    assert missed == {"false_alarms": [("scene-0", "cat", 0.9)], "misses": [("scene-0", "cat", 0.9)]}
    far = found(([0, 0, 10, 2.9], 0.9, CAT), ([0, 0, 10, 4], 0.4, CAT), ([0, 0, 10, 9], 0.8, DOG))
    assert faults([far], [truth(([0, 0, 10, 10], CAT, False))])["misses"] == [("scene-0", "cat", 0.4)]
    assert faults([found()], [truth(([0, 0, 10, 10], CAT, False))])["misses"] == [("scene-0", "cat", 0.0)]
    for edge, alarms in ((10, 0), (9.9, 1)):
        inside = found(([edge - 5, 0, edge + 5, 1], 0.9, CAT)) if edge == 10 else found(([5.1, 0, 15.1, 1], 0.9, CAT))
        crowd = truth(([0, 0, 10, 100], CAT, True))
        assert len(faults([inside], [crowd])["false_alarms"]) == alarms
    assert faults([inside], [crowd])["misses"] == []
    two = found(([20, 20, 30, 30], 0.3, CAT), ([0, 0, 5, 5], 0.7, DOG), ([20, 0, 30, 5], 0.5, DOG))
    assert faults([two], [truth()], most=2)["false_alarms"] == [("scene-0", "dog", 0.7), ("scene-0", "dog", 0.5)]
    assert (finding.BATCH, finding.SIDE) == (8, 192)
