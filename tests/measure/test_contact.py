"""Contact sheets: their size, where each image stands, and what cuts them up again."""

from __future__ import annotations

import io
import json

import numpy as np
import torch
from PIL import Image

from evenhand.data.sources.source import Memory
from evenhand.measure.contact import contact_sheet


def test_images_stand_row_by_row_and_the_file_says_where() -> None:
    shades = torch.arange(15, dtype=torch.uint8) * 10
    source = Memory(shades[:, None, None, None].expand(15, 3, 8, 8).clone())
    rows = torch.tensor([*range(14, 0, -1)])  # fourteen: twelve in the first row, two in the second
    sheet = Image.open(io.BytesIO(contact_sheet(source, rows)))
    facts = json.loads(sheet.text["evenhand"])  # type: ignore[attr-defined]
    assert facts == {"tile": 56, "across": 12, "gap": 3, "images": 14}
    assert sheet.size == (12 * 59 - 3, 2 * 59 - 3)
    pixels = np.asarray(sheet)
    for number, row in enumerate(rows.tolist()):
        top, left = number // 12 * 59, number % 12 * 59
        assert (pixels[top : top + 56, left : left + 56] == 10 * row).all()
    assert (pixels[56:59] == 255).all()
    assert (pixels[:, 56:59] == 255).all()
    assert (pixels[59:, 2 * 59 :] == 255).all()
