"""The house: which room may use which, read from the imports themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import evenhand

ROOT = Path(evenhand.__file__).parent
LOWER = ("data", "nets", "measure", "pieces", "tasks", "methods")
FORBIDDEN = {
    "nets": {"data", "measure", "pieces", "tasks", "methods", "run", "report"},
    "data": {"nets", "measure", "pieces", "tasks", "methods", "run", "report"},
    "measure": {"pieces", "tasks", "methods", "run", "report"},
    "pieces": {"data", "tasks", "methods", "run", "report"},
    "methods": {"run", "report"},
    "report": {"run", "methods", "nets", "pieces"},
}


def imported(file: Path) -> Iterator[str]:
    """The rooms that a file imports when it is loaded; what functions or type checkers import is left out."""
    nodes: list[ast.stmt] = list(ast.parse(file.read_text(encoding="utf-8")).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evenhand"):
            parts = (node.module or "").split(".")
            yield from [parts[1]] if len(parts) > 1 else [name.name for name in node.names]
        elif isinstance(node, ast.ClassDef | ast.Try | ast.With):
            nodes += node.body


def rooms() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for file in ROOT.rglob("*.py"):
        place = file.relative_to(ROOT)
        room = place.parts[0] if len(place.parts) > 1 else place.stem
        found.setdefault(room, set()).update(set(imported(file)) - {room})
    return found


@pytest.mark.parametrize("room", FORBIDDEN)
def test_data_flow_one_way(room: str) -> None:
    assert not rooms()[room] & FORBIDDEN[room]


def test_rooms_have_no_cycle() -> None:
    left = rooms()
    while ready := [room for room, uses in left.items() if not uses & left.keys()]:
        for room in ready:
            del left[room]
    assert left == {}


def test_methods_do_not_import_each_other_across_families() -> None:
    for family in (ROOT / "methods").iterdir():
        for file in family.glob("*.py") if family.is_dir() else ():
            for other in (ROOT / "methods").iterdir():
                if other.is_dir() and other != family and other.name != "__pycache__":
                    assert f"evenhand.methods.{other.name}" not in file.read_text(encoding="utf-8"), file


@pytest.mark.parametrize("room", ["evenhand.nets", "evenhand.pieces.sam", "evenhand.measure.confusion"])
def test_a_room_loads_without_the_data(room: str) -> None:
    code = f"import {room}, sys; print([m for m in sys.modules if m.startswith('evenhand.data')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_files_stay_short_enough_to_hold_in_the_head() -> None:
    long = {str(f.relative_to(ROOT)): n for f in ROOT.rglob("*.py") if (n := len(f.read_text().splitlines())) > 280}
    assert long == {}
