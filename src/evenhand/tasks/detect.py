"""Detect: where are which objects? Judged by average precision, at an overlap of one half and as COCO does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenhand.tasks import Scores, Task
from evenhand.tasks.metric import Metric

if TYPE_CHECKING:  # what measures imports torch, which a report does without
    from pathlib import Path

    from torch import Tensor

    from evenhand.data.prepared import Data
    from evenhand.data.stream import Stream
    from evenhand.methods.protocol import Finder
    from evenhand.report.sections import Sections

SHOWN = 24  # misses and false alarms kept for the report


class Detect(Task):
    """mAP at IoU 0.5 (area under the curve, and VOC's eleven points), COCO's means, and per class."""

    name = "detect"
    noun = "images"
    metrics = (
        Metric("map50", "mAP@0.5"),
        Metric("map50_11", "mAP@0.5, 11 points", shown=False, late=True),
        Metric("coco", "COCO mAP", late=True),
        Metric("coco75", "mAP@0.75", late=True),
        Metric("head", "head AP", path=("group_ap", "head")),
        Metric("mid", "mid AP", path=("group_ap", "mid")),
        Metric("tail", "tail AP", path=("group_ap", "tail")),
        Metric("small", "small", path=("by_size", "small"), late=True),
        Metric("medium", "medium", path=("by_size", "medium"), late=True),
        Metric("large", "large", path=("by_size", "large"), late=True),
    )
    headline, tail = metrics[0], metrics[6]
    per_class = (Metric("ap50", "AP@0.5"),)
    boxes = True

    def score(self, method: Finder, stream: Stream, *, batch: int = 512) -> Scores:
        from evenhand.measure.detection import average_precision
        from evenhand.measure.finding import find_all

        found, truths = find_all(method.detect, stream, batch=batch)
        ap = average_precision(found, truths, len(stream.classes))
        groups = _by_group(ap, method.data.groups)
        known = {name: value for name, value in groups.items() if value is not None}
        return {"map50": float(ap.nanmean())} | known | method.traces()

    def table(self, method: Finder, stream: Stream, *, batch: int = 512) -> dict[str, Any]:
        from evenhand.measure.detection import average_precision, coco_scores
        from evenhand.measure.finding import find_all

        K, groups = len(stream.classes), method.data.groups
        found, truths = find_all(method.detect, stream, batch=batch)
        ap = average_precision(found, truths, K)
        coco = coco_scores(found, truths, K)
        return {
            "map50": float(ap.nanmean()),
            "map50_11": float(average_precision(found, truths, K, rule="11-point").nanmean()),
            "coco": coco["AP"], "coco75": coco["AP75"],
            "by_size": {size: _known(coco[f"AP {size}"]) for size in ("small", "medium", "large")},
            "ap50": [_known(value) for value in ap.tolist()],
            "group_ap": _by_group(ap, groups), "groups": groups,
            "objects": sum(len(truth[1]) for truth in truths),
            **method.details(),
        }  # fmt: skip

    def finish(self, method: Finder, data: Data, folder: Path, *, batch: int = 512) -> dict[str, Any]:
        """Pictures of the faults on the test split, true boxes white, found ones red, for the report."""
        from evenhand import parallel
        from evenhand.measure.finding import draw_faults, find_all, surest_faults

        stream = data.streams.get("test")
        if stream is None or stream.target is None:
            return {}
        found, truths = find_all(method.detect, stream, batch=batch)
        faults = surest_faults(found, truths, stream, SHOWN)
        if parallel.is_writer():
            draw_faults(faults, truths, stream, folder)
        return {"faults": faults}

    def sections(self) -> Sections:
        from evenhand.report.detect import SECTIONS

        return SECTIONS


DETECT = Detect()


def _known(value: float) -> float | None:
    return value if value == value else None


def _by_group(ap: Tensor, groups: dict[str, list[int]]) -> dict[str, float | None]:
    """Mean AP of the classes of each group that have an object; None where none has."""
    return {name: _known(float(ap[rows].nanmean())) for name, rows in groups.items()}
