"""``sheet.png`` of a generator's run: real images of each class on the left, drawn ones on the right."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor
from torch.nn.functional import avg_pool2d

from evenhand import atomic, parallel
from evenhand.data.stream import Stream
from evenhand.randomness import dice

DOWN, ACROSS = 2, 5
EACH = DOWN * ACROSS  # images of a class, real and drawn
GAP = 4
LARGEST = 64  # pixels; larger images are reduced
CLASSES, BYTES = 24, 3_000_000  # at most, so that a report with several sheets stays small
POOL = 2000  # images an unconditional generator draws, among which the annotator looks


def write_sheet(path: Path, method: Any, stream: Stream, counts: list[int], *, seed: int = 0) -> None:
    """A row for each class from the most to the least frequent, or for classes evenly spaced in that order.

    What the report needs to cut the sheet up stands in the file's ``evenhand`` text, as JSON. An unconditional
    generator's images are sorted by the annotator: of a class it hardly draws there are few or none. Without an
    annotator there is one row, of no class (-1).
    """
    example = _tile(stream.fetch(torch.tensor([0])))
    labels = _shown(counts, example.numel()) if method.labelled or method.judge.annotator is not None else [-1]
    pairs = list(zip(_real(stream, labels), _drawn(method, labels, len(counts), seed), strict=True))
    _, channels, h, w = example.shape
    block, step = (ACROSS * w, DOWN * h), (ACROSS * w + GAP, DOWN * h + GAP)
    size = (channels, len(labels) * step[1] - GAP, 2 * step[0] - GAP)
    sheet = torch.full(size, 255, dtype=torch.uint8)
    for row, pair in enumerate(pairs):
        for side, images in enumerate(pair):
            for number, image in enumerate(images):
                top, left = row * step[1] + number // ACROSS * h, side * step[0] + number % ACROSS * w
                sheet[:, top : top + h, left : left + w] = image
    facts = {"labels": labels, "block": block, "step": step, "tile": w, "drawn": [len(images) for _, images in pairs]}
    if parallel.is_writer():  # drawing takes all processes: BatchNorm is theirs together
        atomic.write(path, _png(sheet, facts))


def _shown(counts: list[int], size: int) -> list[int]:
    """Class indices, most frequent first; as many as the images' ``size`` in bytes allows."""
    order = sorted(range(len(counts)), key=lambda k: -counts[k])
    most = min(CLASSES, max(5, BYTES // (2 * EACH * size)))
    if len(order) <= most:
        return order
    return [order[round(i * (len(order) - 1) / (most - 1))] for i in range(most)]


def _real(stream: Stream, labels: list[int]) -> list[Tensor]:
    of = torch.full((len(stream),), -1) if labels == [-1] or stream.labels is None else stream.labels
    return [_tile(stream.fetch(torch.nonzero(of == k).flatten()[:EACH])) for k in labels]


def _drawn(method: Any, labels: list[int], num_classes: int, seed: int) -> list[Tensor]:
    chance = dice(seed, "sheet")
    if method.labelled:
        asked = torch.tensor(labels).repeat_interleave(EACH)
        return list(_tile(method.sample(len(asked), asked, chance=chance)).split(EACH))
    if labels == [-1]:
        return [_tile(method.sample(EACH, chance=chance))]
    images = method.sample(min(POOL, 100 * num_classes), chance=chance)
    found = method.judge.label(images)
    return [_tile(images[found == k][:EACH]) for k in labels]


def _tile(images: Tensor) -> Tensor:
    """uint8 (N, C, H, W), reduced by a whole factor to at most ``LARGEST`` pixels."""
    factor = -(-max(images.shape[2:]) // LARGEST)
    return avg_pool2d(images.float(), factor).round().byte() if factor > 1 and len(images) else images


def _png(sheet: Tensor, facts: dict[str, Any]) -> bytes:
    pixels = sheet.permute(1, 2, 0).numpy()
    text, out = PngInfo(), io.BytesIO()
    text.add_text("evenhand", json.dumps(facts))
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(out, "png", pnginfo=text)
    return out.getvalue()
