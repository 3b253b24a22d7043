"""Trees from the air at three sites: the photographs with boxes that the package deepforest brings, cut into tiles.

Yellowstone (853 boxes) trains on one photograph and validates on another; OSBS in Florida (61) and SOAP in California
(37, and a photograph without boxes) are four tiles each, seen without labels and tested on: a demonstration, too small
to compare methods by. Dead and living trees are one class.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from evenhand.data.sets.packages import obtain_package
from evenhand.data.sets.pinned import DEEPFOREST
from evenhand.data.sources.annotations import voc_note
from evenhand.data.sources.files import load_image
from evenhand.data.stream import Memory, Stream, Streams
from evenhand.data.target import Boxes, Found
from evenhand.data.views.boxes import LEAST_VISIBLE

SIDE = 200
SITES: dict[str, dict[str, tuple[str, ...]]] = {
    "yellowstone": {
        "train": ("2019_YELL_2_528000_4978000_image_crop2",),
        "val": ("2019_YELL_2_541000_4977000_image_crop",),
    },
    "osbs": {"all": ("OSBS_029",)},
    "soap": {"unlabelled": ("SOAP_031", "SOAP_061"), "all": ("SOAP_061",)},
}


def load_trees(site: str, split_seed: int = 0) -> Streams:  # noqa: ARG001  (photographs come split)
    """One site's tiles, by split; "unlabelled" has no boxes."""
    folder = next(obtain_package(DEEPFOREST).rglob("OSBS_029.png")).parent
    streams = {}
    for split, photographs in SITES[site].items():
        tiles, objects, names = [], [], []
        for name in photographs:
            pixels = torch.from_numpy(np.array(load_image(folder / f"{name}.png"))).permute(2, 0, 1)
            boxes = torch.zeros(0, 4) if split == "unlabelled" else _boxes(folder / f"{name}.xml")
            for top in _starts(pixels.shape[1]):
                for left in _starts(pixels.shape[2]):
                    tiles.append(pixels[:, top : top + SIDE, left : left + SIDE])
                    objects.append(_seen(boxes, left, top))
                    names.append(f"{name}/{left}-{top}")
        target = None if split == "unlabelled" else Boxes(objects)
        streams[split] = Stream(Memory(torch.stack(tiles), names), target, ("tree",), split)
    return streams


def _boxes(file: Path) -> torch.Tensor:
    return torch.tensor(voc_note(file, file.parent).boxes).reshape(-1, 4)


def _starts(length: int) -> list[int]:
    """Of as few tiles as cover it; they overlap where it is no multiple."""
    count = math.ceil(length / SIDE)
    return [round(at * (length - SIDE) / max(1, count - 1)) for at in range(count)]


def _seen(boxes: torch.Tensor, left: int, top: int) -> Found:
    """What a tile shows enough of, cut at its edges."""
    moved = boxes - boxes.new_tensor([left, top, left, top])
    cut = moved.clamp(0, SIDE)
    whole, shown = ((b[:, 2:] - b[:, :2]).prod(1) for b in (moved, cut))
    kept = cut[(shown > 0) & (shown >= LEAST_VISIBLE * whole)]
    return Found(kept, torch.zeros(len(kept), dtype=torch.int64))
