"""What a person should see of a measurement: every prediction by name, and pictures or texts of some.

The report reads files only, so both are written when a classifier is measured. What is shown is chosen by the
predictions alone: the surest mistakes, then a few of each confusion, the frequent ones first, then hits that were
close. Neither number nor size grows with the split.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from evenhand.data.sources.source import Source
from evenhand.data.stream import Stream
from evenhand.measure.classification import Evaluation

MOST, SUREST, EACH, CLOSE = 200, 24, 6, 2  # shown in all; surest mistakes; of a confusion; hits of a class
BYTES = 600_000  # of all pictures together
SIDE, LETTERS = 96, 400  # of a picture, of a text
SHARP = 40  # pixels up to which JPEG would blur more than it saves
BATCH = 16  # pictures held at a time
COLUMNS = ("name", "truth", "predicted", "confidence", "second", "second_confidence")


def files_of(found: Evaluation, stream: Stream) -> dict[str, bytes]:
    """``predictions.csv`` and ``examples.json`` of a stream."""
    return {"predictions.csv": predictions(found, stream), "examples.json": examples(found, stream)}


def predictions(found: Evaluation, stream: Stream) -> bytes:
    """CSV with a line for each sample, in the stream's order; confidences as the network says them."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(COLUMNS)
    of = stream.classes
    for row, (truth, predicted, sure, second, less) in enumerate(zip(*_said(found), strict=True)):
        lines.writerow([stream.samples.name(row), of[truth], of[predicted], f"{sure:.4f}", of[second], f"{less:.4f}"])
    return out.getvalue().encode()


def examples(found: Evaluation, stream: Stream) -> bytes:
    """JSON: the rows shown with their picture or text, the surest mistakes first; classes are numbers."""
    source, columns = stream.samples.origin or stream.samples, _said(found)
    shown: list[dict[str, Any]] = []
    spent = 0
    for rows in torch.tensor(chosen(found), dtype=torch.int64).split(BATCH):
        for row, seen in zip(rows.tolist(), _seen(source, rows), strict=True):
            spent += len(seen.get("data", ""))
            if spent <= BYTES:
                values = (stream.samples.name(row), *(column[row] for column in columns))
                shown.append(dict(zip(COLUMNS, values, strict=True)) | seen)
    return json.dumps({"shown": shown}, indent=1).encode()


def chosen(found: Evaluation, most: int = MOST) -> list[int]:
    """Rows to show, the most telling first."""
    sure = found.confidence.argsort(descending=True, stable=True)
    right = found.predicted == found.target
    wrong = sure[~right[sure]]
    cells: dict[tuple[int, int], list[int]] = {}
    pairs = zip(found.target[wrong].tolist(), found.predicted[wrong].tolist(), strict=True)
    for pair, row in zip(pairs, wrong.tolist(), strict=True):
        cells.setdefault(pair, []).append(row)
    frequent = [cells[pair] for pair in sorted(cells, key=lambda pair: (-len(cells[pair]), pair))]
    close: dict[int, list[int]] = {}
    hits = sure[right[sure]].flip(0)
    for k, row in zip(found.target[hits].tolist(), hits.tolist(), strict=True):
        close.setdefault(k, []).append(row)
    listed = [*wrong[:SUREST].tolist(), *_in_turn(frequent, EACH), *_in_turn([close[k] for k in sorted(close)], CLOSE)]
    return list(dict.fromkeys(listed))[:most]


def _in_turn(queues: Sequence[Sequence[int]], each: int) -> list[int]:
    """The first of every queue, then the second, at most ``each`` of one."""
    return [queue[turn] for turn in range(each) for queue in queues if turn < len(queue)]


def _said(found: Evaluation) -> tuple[list[Any], ...]:
    """The columns after the name, classes as numbers."""
    sure, less = ([round(p, 4) for p in part.tolist()] for part in (found.confidence, found.second_confidence))
    return found.target.tolist(), found.predicted.tolist(), sure, found.second.tolist(), less


def _seen(source: Source, rows: Tensor) -> list[dict[str, Any]]:
    """Of each row its picture or its text, empty where there is neither."""
    if source.kind == "images":
        return [_picture(image) for image in source.fetch(rows)]
    if source.kind == "texts":
        return [{"text": _text(codes)} for codes in source.fetch(rows)]
    return [{} for _ in rows]


def _text(codes: Tensor) -> str:
    text = "".join(chr(code) for code in codes.tolist() if code)
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _picture(image: Tensor) -> dict[str, Any]:
    """uint8 (C, H, W) as a small JPEG, or PNG if it is tiny, in base64."""
    pixels = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3]))
    picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    kind = "png" if max(picture.size) <= SHARP else "jpeg"
    out = io.BytesIO()
    picture.save(out, kind, quality=80, optimize=True)
    data = base64.b64encode(out.getvalue()).decode()
    return {"kind": kind, "width": picture.width, "height": picture.height, "data": data}
