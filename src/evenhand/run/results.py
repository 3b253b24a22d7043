"""Objects that were found, as a table or as COCO results."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from evenhand.data.sources.annotations import read_coco
from evenhand.errors import UserError
from evenhand.run.predicting import Objects

HEADER = ("name", "x1", "y1", "x2", "y2", "class", "score")
Found = Iterable[tuple[int, Objects]]  # an image's place among the inputs, and what is in it


def write_table(file: IO[str], found: Found) -> tuple[int, int]:
    """A row for each object; returns how many images and objects there were."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(HEADER)
    images = objects = 0
    for _, (name, boxes, labels, scores) in found:
        for box, label, score in zip(boxes.tolist(), labels, scores.tolist(), strict=True):
            out.writerow([name, *(f"{edge:.2f}" for edge in box), label, f"{score:.4f}"])
        images, objects = images + 1, objects + len(labels)
    return images, objects


@dataclass(frozen=True)
class Numbering:
    """Ids of images by their place and of categories by their name: a COCO file's own, or from 1 on in order."""

    images: Sequence[int] | None
    categories: dict[str, int]

    @classmethod
    def of(cls, paths: Sequence[Path], classes: Sequence[str]) -> Numbering:
        files = [path for path in paths if path.suffix.lower() == ".json"]
        if not files:
            return cls(None, {name: k for k, name in enumerate(classes, 1)})
        if len(paths) > 1:
            raise UserError(f"'{files[0]}' numbers its own images; for COCO results predict it alone")
        coco = read_coco(files[0])
        categories = {name: key for key, name in coco.categories.items()}
        if lacking := [name for name in classes if name not in categories]:
            raise UserError(f"'{files[0]}' has no category '{lacking[0]}', which the model finds; add it to the file")
        return cls(list(coco.images), categories)


def write_results(file: IO[str], found: Found, ids: Numbering) -> tuple[int, int]:
    """A list of one entry per object, as COCO's tools take it; where the ids are ours the image's name goes along."""
    images = objects = 0
    file.write("[")
    for row, (name, boxes, labels, scores) in found:
        known = {"image_id": row + 1, "file_name": name} if ids.images is None else {"image_id": ids.images[row]}
        for (x1, y1, x2, y2), label, score in zip(boxes.tolist(), labels, scores.tolist(), strict=True):
            box = [round(edge, 2) for edge in (x1, y1, x2 - x1, y2 - y1)]
            entry = known | {"category_id": ids.categories[label], "bbox": box, "score": score}
            file.write(("," if objects else "") + "\n" + json.dumps(entry, ensure_ascii=False))
            objects += 1
        images += 1
    file.write("\n]\n")
    return images, objects
