"""Ten small pictures in a pool, and the picks of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

CLASSES = ["lynx", "otter", "quail", "sable", "tapir"]
COLUMNS = ["name", "rank", "path", "text", "label", "guess1", "confidence1", "guess2", "confidence2"]


def write_picks(folder: Path, rows: list[dict[str, str]], classes: list[str] | None = None) -> Path:
    path = folder / "picks.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, restval="")
        table.writeheader()
        table.writerows(rows)
    about = {"pool": str(folder / "pool"), "classes": CLASSES if classes is None else classes}
    path.with_suffix(".json").write_text(json.dumps(about))
    return path


@pytest.fixture
def picks(tmp_path: Path) -> Path:
    """Guesses: lynx, then otter; listed in reverse order of rank, which must not matter."""
    rows = []
    for rank in range(10, 0, -1):
        file = tmp_path / "pool" / "a" / f"{rank}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (25 * rank, 80, 160)).save(file)
        guess = {"guess1": "lynx", "confidence1": "0.6", "guess2": "otter", "confidence2": "0.25"}
        rows.append({"name": f"a/{rank}.png", "rank": str(rank), "path": str(file), **guess})
    return write_picks(tmp_path, rows)
