"""The report of detectors: the faults that they are surest of, as pictures."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from evenhand.errors import UserError
from evenhand.report.page import render
from evenhand.report.reading import load_run
from helpers import save_picture

FAULT = {"name": "street.png", "class": "car", "score": 0.875, "box": [1.0, 2.0, 3.0, 4.0]}


def run_folder(root: Path, **fault: str) -> Path:
    (root / "recipe.toml").write_text('[method]\nname = "faster"\n[run]\nseed = 0\n')
    measure = {
        "task": "detect", "split": "test", "checkpoint": "last.pt", "select": "last", "classes": ["car", "bus"],
        "train_counts": [10, 5], "groups": {}, "map50": 0.5, "ap50": [0.4, 0.6],
        "faults": {"false_alarms": [{**FAULT, **fault}], "misses": []},
    }  # fmt: skip
    (root / "measure.json").write_text(json.dumps(measure))
    return root


def test_faults_are_shown_where_their_pictures_are(tmp_path: Path) -> None:
    picture = save_picture(tmp_path / "faults" / "false_alarms-0.jpg")
    page = render([load_run(run_folder(tmp_path, picture="faults/false_alarms-0.jpg"))])
    assert "data:image/jpeg;base64," + base64.b64encode(picture.read_bytes()).decode() in page
    assert "car 0.88, street.png" in page
    assert "Surest false alarms" in page
    assert "Objects that were missed" not in page
    picture.unlink()
    assert "evenhand measure RUN draws them" in render([load_run(tmp_path)])


@pytest.mark.parametrize("how", ["absolute", "upwards", "link"])
def test_pictures_outside_the_run_are_refused(tmp_path: Path, how: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    private = save_picture(tmp_path / "private.jpg")
    (run / "link.jpg").symlink_to(private)
    names = {"absolute": str(private), "upwards": "../private.jpg", "link": "link.jpg"}
    with pytest.raises(UserError, match="names a picture outside its folder"):
        render([load_run(run_folder(run, picture=names[how]))])


@pytest.mark.parametrize("lost", ["name", "class", "score"])
def test_a_fault_that_lacks_what_is_said_of_it_is_one_line(tmp_path: Path, lost: str) -> None:
    save_picture(tmp_path / "fault.jpg")
    run = run_folder(tmp_path, picture="fault.jpg")
    measure = json.loads((run / "measure.json").read_text())
    del measure["faults"]["false_alarms"][0][lost]
    (run / "measure.json").write_text(json.dumps(measure))
    with pytest.raises(UserError, match=rf"faults\.false_alarms\.0\.{lost}: Field required"):
        load_run(run)
