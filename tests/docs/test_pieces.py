"""docs/pieces.md shows every piece at work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIECES = sorted(p.stem for p in (ROOT / "src" / "evenhand" / "pieces").glob("*.py") if p.stem != "__init__")
EXAMPLES = "".join(re.findall(r"^```py\w+\n(.*?)^```$", (ROOT / "docs" / "pieces.md").read_text(), re.M | re.S))
IMPORTED = re.compile(r"from evenhand\.pieces(?:\.(\w+))? import ([\w, ]+)")


@pytest.mark.parametrize("piece", PIECES)
def test_every_piece_has_an_example(piece: str) -> None:
    """One that imports it and then uses what it imported."""
    names = [
        name.strip()
        for module, given in IMPORTED.findall(EXAMPLES)
        for name in given.split(",")
        if module == piece or (not module and name.strip() == piece)
    ]
    assert any(len(re.findall(rf"\b{name}\b", EXAMPLES)) > 1 for name in names), f"no example of pieces/{piece}.py"
