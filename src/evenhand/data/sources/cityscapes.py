"""Cityscapes and Foggy Cityscapes: polygons as boxes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evenhand.data.sources.paths import read_text
from evenhand.data.sources.scenes import Annotated, Listed
from evenhand.errors import UserError

CITYSCAPES = ("person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle")


def list_cityscapes(folder: Path, fog: float | None = None) -> dict[str, Listed]:
    """Boxes around the polygons of the eight kinds of things; images without any are left out.

    Foggy Cityscapes has its images in leftImg8bit under names that end in ``_foggy_beta_0.02``; ``fog`` chooses among
    its levels.
    """
    found = {}
    for split in ("train", "val"):
        notes = sorted((folder / "gtFine" / split).rglob("*_gtFine_polygons.json"))
        rows = [_cityscape(folder, note, fog) for note in notes]
        rows = [row for row in rows if row.boxes]
        if rows:
            found[split] = Listed(rows, CITYSCAPES, folder, split)
    if not found:
        raise UserError(f"'{folder}/gtFine' has no *_gtFine_polygons.json with people or vehicles; unpack gtFine there")
    return found


def _cityscape(folder: Path, note: Path, fog: float | None) -> Annotated:
    start = note.name.removesuffix("_gtFine_polygons.json")
    picture = _picture(folder / "leftImg8bit" / note.parent.relative_to(folder / "gtFine"), start, fog)
    try:
        content = json.loads(read_text(note))
        width, height = int(content["imgWidth"]), int(content["imgHeight"])
        found = list(_things(content["objects"], width, height))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read '{note}' as Cityscapes' polygons ({error}); unpack it again") from error
    boxes, labels = [box for box, _ in found], [label for _, label in found]
    return Annotated(picture, width, height, boxes, labels, [False] * len(boxes))


def _picture(place: Path, start: str, fog: float | None) -> Path:
    found = sorted(place.glob(f"{start}_leftImg8bit*"))
    levels = {float(level[1]): file for file in found if (level := re.search(r"_foggy_beta_([\d.]+)$", file.stem))}
    if fog is not None and fog in levels:
        return levels[fog]
    if len(found) > 1 or (fog is not None and levels):
        known = ", ".join(f"{level:g}" for level in sorted(levels))
        several = f"{len(found)} images of '{start}', fog levels {known or 'none'}"
        remedy = "set data.fog to one of them" if levels else "keep one"
        raise UserError(f"'{place}' has {several}; {remedy}")
    return found[0] if found else place / f"{start}_leftImg8bit.png"


def _things(objects: list[dict[str, Any]], width: int, height: int) -> Iterator[tuple[list[float], str]]:
    for thing in objects:
        if thing["label"] in CITYSCAPES:  # groups ("cargroup") are no single things
            across, down = zip(*thing["polygon"], strict=True)
            left, right = (min(max(edge(across), 0), width) for edge in (min, max))
            top, bottom = (min(max(edge(down), 0), height) for edge in (min, max))
            if right > left and bottom > top:
                yield [float(left), float(top), float(right), float(bottom)], thing["label"]
