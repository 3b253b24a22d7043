"""Boxes as annotation files tell of them, against the images that are there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenhand.data.sources.scenes import Listed
from evenhand.measure.detection import SIZES

Spread = tuple[float, float, float]


@dataclass(frozen=True)
class Objects:
    """How many, how large, and which of them training would stop at or change."""

    images: Mapping[str, int]  # annotated ones of each split
    bare: Mapping[str, int]  # of them without any box
    optional: int
    sizes: Mapping[str, int]  # small, medium, large by COCO's areas
    sides: Spread | None  # root of the area: smallest, median, largest
    aspects: Spread | None  # width over height: tenth, middle and ninetieth of a hundred
    faults: Sequence[str]  # of the files, each a line with its remedy
    missing: Sequence[str]
    flat: Sequence[str]  # boxes without any area inside their image
    outside: Sequence[str]  # images that boxes stick out of
    resized: Sequence[str]  # images of another size than the annotation says
    idle: Sequence[str] = ()  # classes that are listed and nowhere shown

    @property
    def spoil(self) -> bool:
        return bool(self.faults or self.missing or self.flat)


def objects_in(parts: Mapping[str, Listed], found: Mapping[str, tuple[int, int]], idle: Sequence[str] = ()) -> Objects:
    """``found``: the sizes of image files that could be read."""
    told = {key: part for key, part in parts.items() if part.labelled}
    rows = [row for part in told.values() for row in part.rows]
    flat, outside, resized = [], [], []
    areas, aspects = [], []
    for row in rows:
        if found.get(str(row.path), (row.width, row.height)) != (row.width, row.height):
            resized.append(str(row.path))
        for (left, top, right, bottom), label in zip(row.boxes, row.labels, strict=True):
            wide, tall = min(right, row.width) - max(left, 0), min(bottom, row.height) - max(top, 0)
            if not (all(map(math.isfinite, (left, top, right, bottom))) and wide > 0 and tall > 0):
                flat.append(f"[{left:g}, {top:g}, {right:g}, {bottom:g}] of '{label}' in {row.path}")
                continue
            areas.append(wide * tall)
            aspects.append(wide / tall)
            if (wide, tall) != (right - left, bottom - top):
                outside.append(str(row.path))
    medium, large = SIZES["medium"]
    sides = [area**0.5 for area in areas]
    return Objects(
        images={key: len(part.rows) for key, part in told.items()},
        bare={key: sum(not row.boxes for row in part.rows) for key, part in told.items()},
        optional=sum(map(sum, (row.optional for row in rows))),
        sizes={"small": sum(a < medium for a in areas), "medium": sum(medium <= a < large for a in areas),
               "large": sum(a >= large for a in areas)},
        sides=_spread(sides, 0.0, 1.0), aspects=_spread(aspects, 0.1, 0.9),
        faults=[fault for part in told.values() for fault in part.faults],
        missing=[str(row.path) for row in rows if not row.path.is_file()], flat=flat,
        outside=list(dict.fromkeys(outside)), resized=resized, idle=idle,
    )  # fmt: skip


def _spread(values: Sequence[float], low: float, high: float) -> Spread | None:
    if not values:
        return None
    ordered = sorted(values)
    first, middle, last = (ordered[round(share * (len(ordered) - 1))] for share in (low, 0.5, high))
    return first, middle, last
