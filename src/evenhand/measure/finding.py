"""Detections of a whole stream, and the most telling faults among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import in_order
from evenhand.data.stream import Stream
from evenhand.measure.boxes import box_inside, box_iou

Detections = tuple[Tensor, Tensor, Tensor]  # boxes (n, 4), scores (n,), labels (n,)
BATCH = 8  # images at once: a scene is large
SIDE = 192  # of a fault's picture


@torch.no_grad()
def find_all(detect: Callable[[Any], list[Detections]], stream: Stream, *, batch: int = BATCH) -> tuple[list, list]:
    """What is found in every image of a stream, and what is there; each process looks at its share."""
    mine = torch.arange(parallel.rank(), len(stream), parallel.world())
    flat: list[Tensor] = []
    for rows, images in in_order(stream, mine, min(batch, BATCH)):
        for row, (boxes, scores, labels) in zip(rows.tolist(), detect(images), strict=True):
            place = scores.new_full((len(scores), 1), row)
            flat.append(torch.cat([place, boxes, scores[:, None], labels[:, None]], 1).double())
    nothing = torch.zeros(0, 7, dtype=torch.float64, device="cuda" if parallel.on_gpus() else "cpu")
    everything = parallel.gather(torch.cat(flat) if flat else nothing).cpu()  # (D, 7): row, box, score, label
    order = everything[:, 0].argsort(stable=True)
    counts = torch.bincount(everything[:, 0].long(), minlength=len(stream)).tolist()
    found = [(part[:, 1:5], part[:, 5], part[:, 6].long()) for part in everything[order].split(counts)]
    truths = [tuple(part for part in truth if part is not None) for truth in stream.target.objects]
    return found, truths


def surest_faults(found: list[Any], truths: list[Any], stream: Stream, most: int) -> dict[str, list[dict[str, Any]]]:
    """False alarms by falling score, and misses by how little was found there: image, class, box, score.

    Optional objects (difficult ones, crowds) are never missed, and what lies in one for the most part is no alarm.
    """
    alarms, misses = [], []
    for row, ((boxes, scores, labels), truth) in enumerate(zip(found, truths, strict=True)):
        overlap = box_iou(boxes, truth[0])  # (n, m)
        same = labels[:, None] == truth[1][None]
        hit = (overlap >= 0.5) & same
        optional = truth[2] if len(truth) > 2 else torch.zeros(len(truth[1]), dtype=torch.bool)
        excused = (box_inside(boxes, truth[0]) >= 0.5) & same & optional
        for i in (~(hit | excused).any(1)).nonzero()[:, 0].tolist():
            alarms.append((-float(scores[i]), row, int(labels[i]), boxes[i].tolist()))
        for j in (~(hit.any(0) | optional)).nonzero()[:, 0].tolist():
            near = float((scores * ((overlap[:, j] >= 0.3) & same[:, j])).max()) if len(scores) else 0.0
            misses.append((near, row, int(truth[1][j]), truth[0][j].tolist()))
    kept: dict[str, list[dict[str, Any]]] = {}
    for name, faults in (("false_alarms", alarms), ("misses", misses)):
        kept[name] = [
            {
                "row": row,
                "name": stream.samples.name(row),
                "class": stream.classes[label],
                "box": box,
                "score": abs(score),
            }
            for score, row, label, box in sorted(faults)[:most]
        ]
    return kept


def draw_faults(faults: dict[str, list[dict[str, Any]]], truths: list[Any], stream: Stream, folder: Path) -> None:
    """A small picture of each fault into ``folder``/faults, its name into the fault."""
    from PIL import Image, ImageDraw

    place = folder / "faults"
    place.mkdir(exist_ok=True)
    for kind, some in faults.items():
        for number, fault in enumerate(some):
            (image,) = stream.fetch(torch.tensor([fault["row"]]))
            picture = Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy()).convert("RGB")
            scale = SIDE / max(picture.size)
            picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
            pen = ImageDraw.Draw(picture)
            for box in truths[fault["row"]][0].tolist():
                pen.rectangle([edge * scale for edge in box], outline="white")
            pen.rectangle([edge * scale for edge in fault["box"]], outline="red", width=2)
            picture.save(place / f"{kind}-{number}.jpg", quality=85)
            fault["picture"] = f"faults/{kind}-{number}.jpg"
