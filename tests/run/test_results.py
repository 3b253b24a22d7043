"""Objects as a table and as COCO results, written by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

from evenhand.errors import UserError
from evenhand.run.predicting import Objects
from evenhand.run.results import Numbering, write_results, write_table

BOXES = torch.tensor([[1.0, 2.0, 4.126, 8.0], [0.0, 0.0, 1.0, 1.0]])
FOUND = [
    (0, Objects("a.png", BOXES, ("cat", "dog"), torch.tensor([0.75, 0.5]))),
    (2, Objects("ü.png", torch.zeros(0, 4), (), torch.zeros(0))),
    (3, Objects("ü.png", torch.tensor([[5.0, 5.0, 6.5, 9.0]]), ("cat",), torch.tensor([0.25]))),
]


def test_the_table_has_a_row_for_each_object() -> None:
    file = io.StringIO()
    assert write_table(file, FOUND) == (3, 3)
    assert file.getvalue().splitlines() == [
        "name,x1,y1,x2,y2,class,score",
        "a.png,1.00,2.00,4.13,8.00,cat,0.7500",
        "a.png,0.00,0.00,1.00,1.00,dog,0.5000",
        "ü.png,5.00,5.00,6.50,9.00,cat,0.2500",
    ]


def test_results_have_sides_and_numbers_from_one_on() -> None:
    file = io.StringIO()
    ids = Numbering.of([Path("photos")], ("cat", "dog"))
    assert write_results(file, FOUND, ids) == (3, 3)
    assert "ü.png" in file.getvalue()
    assert json.loads(file.getvalue()) == [
        {"image_id": 1, "file_name": "a.png", "category_id": 1, "bbox": [1, 2, 3.13, 6], "score": 0.75},
        {"image_id": 1, "file_name": "a.png", "category_id": 2, "bbox": [0, 0, 1, 1], "score": 0.5},
        {"image_id": 4, "file_name": "ü.png", "category_id": 1, "bbox": [5, 5, 1.5, 4], "score": 0.25},
    ]


def test_a_coco_file_has_numbers_of_its_own() -> None:
    file = io.StringIO()
    write_results(file, FOUND[2:], Numbering([7, 8, 9, 70], {"cat": 5}))
    (entry,) = json.loads(file.getvalue())
    assert entry == {"image_id": 70, "category_id": 5, "bbox": [5, 5, 1.5, 4], "score": 0.25}


def test_a_coco_file_is_predicted_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="numbers its own images; for COCO results predict it alone"):
        Numbering.of([tmp_path / "a.json", tmp_path / "b"], ("cat",))
    assert Numbering.of([tmp_path / "a", tmp_path / "b"], ("cat", "dog")).categories == {"cat": 1, "dog": 2}
