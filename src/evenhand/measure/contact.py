"""A contact sheet: samples as one PNG, row by row, with what cuts it up again in the file's ``evenhand`` text."""

from __future__ import annotations

import io
import json
from typing import cast

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from evenhand.data.sources.source import Source

TILE, ACROSS, GAP = 56, 12, 3


def contact_sheet(source: Source, rows: Tensor) -> bytes:
    """The images at ``rows``, in that order."""
    images = cast(Tensor, source.framed(TILE, 3).fetch(rows))  # (n, 3, TILE, TILE)
    down, step = -(-len(images) // ACROSS), TILE + GAP
    sheet = torch.full((3, max(1, down) * step - GAP, ACROSS * step - GAP), 255, dtype=torch.uint8)
    for number, image in enumerate(images):
        top, left = number // ACROSS * step, number % ACROSS * step
        sheet[:, top : top + TILE, left : left + TILE] = image
    facts, out = PngInfo(), io.BytesIO()
    facts.add_text("evenhand", json.dumps({"tile": TILE, "across": ACROSS, "gap": GAP, "images": len(images)}))
    Image.fromarray(sheet.permute(1, 2, 0).numpy()).save(out, "png", pnginfo=facts)
    return out.getvalue()
