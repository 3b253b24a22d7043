"""``evenhand predict`` of a detector: a table of boxes, or COCO results."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import evenhand
from evenhand.errors import UserError
from evenhand.measure.detection import average_precision
from evenhand.run.measuring import measure
from evenhand.run.recipe import validate
from evenhand.run.training import train
from helpers import save_picture, table

pytestmark = pytest.mark.usefixtures("tv")
Cli = Callable[..., Any]
CLASSES = ["disc", "square", "cross"]
NET = {"short_side": 64, "long_side": 96, "anchors": [16, 24], "proposals": 20, "regions": 8, "head": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    data = {"set": "shape-scenes", "source": ["plain"], "target": "negative"}
    told = {"folder": str(place / "run"), "steps": 2, "progress": False, "threads": 1}
    method = {"name": "detector", "batch": 2, "net": NET}
    folder = train(validate({"data": data, "method": method, "run": told}, "test"))
    return Path(shutil.move(folder, place / "moved"))


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Three images of three sizes."""
    for at, size in enumerate([(64, 48), (120, 90), (33, 70)]):
        save_picture(tmp_path / "scenes" / f"{at}.png", *size, seed=at)
    return tmp_path / "scenes"


def coco(file: Path, **changed: Any) -> Path:
    kinds = [{"id": 7, "name": "square"}, {"id": 9, "name": "cross"}, {"id": 4, "name": "disc"}]
    sizes = {11: ("1.png", 120, 90), 5: ("0.png", 64, 48)}
    images = [{"id": key, "file_name": name, "width": w, "height": h} for key, (name, w, h) in sizes.items()]
    file.write_text(json.dumps({"images": images, "categories": kinds} | changed))
    return file


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_folder_becomes_a_table_of_boxes_in_each_image_s_own_pixels(cli: Cli, run: Path, scenes: Path) -> None:
    said = cli("predict", run, scenes, "--min-score", 0, "-o", scenes / "out.csv")
    assert said.fine() == ""
    found = rows((scenes / "out.csv").read_text())
    assert list(found[0]) == ["name", "x1", "y1", "x2", "y2", "class", "score"]
    model = evenhand.load(run)
    assert model.classes == tuple(CLASSES)
    expected = model.predict(scenes, min_score=0)
    assert [one.name for one in expected] == ["0.png", "1.png", "2.png"]
    for name, boxes, labels, scores in expected:
        mine = [row for row in found if row["name"] == name]
        assert [row["class"] for row in mine] == list(labels)
        assert [float(row["score"]) for row in mine] == pytest.approx(scores.tolist(), abs=1e-4)
        corners = torch.tensor([[float(row[edge]) for edge in ("x1", "y1", "x2", "y2")] for row in mine])
        torch.testing.assert_close(corners, boxes, atol=0.006, rtol=0)
        width, height = Image.open(scenes / name).size
        assert (boxes >= 0).all()
        assert (boxes <= torch.tensor([width, height, width, height]) + 1e-3).all()
    assert float(expected[1].boxes[:, 2].max()) > 70  # the second image is wider than what the network sees at 64
    assert f"{len(found)} objects of score 0 or more in 3 images" in said.err


def test_only_objects_above_the_score_are_told(cli: Cli, run: Path, scenes: Path) -> None:
    everything = rows(cli("predict", run, scenes, "--min-score", 0).fine())
    scores = sorted(float(row["score"]) for row in everything)
    least = scores[len(scores) // 2]
    some = rows(cli("predict", run, scenes, "--min-score", least + 1e-4).fine())
    assert 0 < len(some) < len(everything)
    assert min(float(row["score"]) for row in some) >= least
    by_default = cli("predict", run, scenes)
    assert len(rows(by_default.fine())) == sum(score >= 0.5 for score in scores)
    assert "of score 0.5 or more" in by_default.err
    model = evenhand.load(run)
    assert sum(len(one.labels) for one in model.predict(scenes, min_score=least + 1e-4)) == len(some)
    assert [one.name for one in model.predict(scenes, min_score=1.0)] == ["0.png", "1.png", "2.png"]


def test_as_many_images_at_a_time_as_asked(cli: Cli, run: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evenhand.methods.adapt.detector import Detector

    sizes: list[int] = []
    inner = Detector.detect
    monkeypatch.setattr(Detector, "detect", lambda self, images: sizes.append(len(images)) or inner(self, images))
    whole = rows(cli("predict", run, scenes, "--min-score", 0).fine())
    single = rows(cli("predict", run, scenes, "--min-score", 0, "--batch", 1).fine())
    assert sizes == [3, 1, 1, 1]
    assert [row["name"] for row in whole] == [row["name"] for row in single]


def test_coco_results_number_loose_images_in_their_order(cli: Cli, run: Path, scenes: Path, tmp_path: Path) -> None:
    (scenes / "0.png").write_bytes(b"no image")
    said = cli("predict", run, scenes, "-o", tmp_path / "out.json")
    said.fine()
    found = json.loads((tmp_path / "out.json").read_text())
    expected = evenhand.load(run).predict([scenes / "1.png", scenes / "2.png"], min_score=0)
    assert len(found) == sum(len(one.labels) for one in expected)
    assert [(e["image_id"], e["file_name"]) for e in found] == [
        (at, f"{at - 1}.png") for at, one in zip((2, 3), expected, strict=True) for _ in one.labels
    ]  # what cannot be read keeps its number
    labels = [label for one in expected for label in one.labels]
    assert [entry["category_id"] for entry in found] == [1 + CLASSES.index(label) for label in labels]
    boxes = torch.cat([one.boxes for one in expected])
    sides = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
    torch.testing.assert_close(torch.tensor([entry["bbox"] for entry in found]), sides, atol=0.01, rtol=0)
    assert "of score 0 or more in 2 images" in said.err
    assert "1 of 3 inputs could not be read" in said.err


def test_a_coco_file_gives_its_images_and_its_ids(cli: Cli, run: Path, scenes: Path) -> None:
    cli("predict", run, coco(scenes / "notes.json"), "-o", scenes / "out.json").fine()
    found = json.loads((scenes / "out.json").read_text())
    first, second = evenhand.load(run).predict([scenes / "1.png", scenes / "0.png"], min_score=0)
    ids = {"square": 7, "cross": 9, "disc": 4}
    assert [e["image_id"] for e in found] == [11] * len(first.labels) + [5] * len(second.labels)
    assert [e["category_id"] for e in found] == [ids[label] for one in (first, second) for label in one.labels]
    assert all(entry.keys() == {"image_id", "category_id", "bbox", "score"} for entry in found)
    listed = rows(cli("predict", run, scenes / "notes.json", "--min-score", 0).fine())
    assert list(dict.fromkeys(row["name"] for row in listed)) == ["1.png", "0.png"]


def test_results_of_a_coco_file_score_as_measure_does(cli: Cli, run: Path, tmp_path: Path) -> None:
    from evenhand.data.sets.scenes import load_shapes

    test = load_shapes("negative")["test"]
    images = []
    for at, image in enumerate(test.fetch(torch.arange(len(test)))):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{at}.png")
        images.append({"id": at, "file_name": f"{at}.png", "width": 64, "height": 64})
    kinds = [{"id": k, "name": name} for k, name in enumerate(CLASSES)]
    (tmp_path / "notes.json").write_text(json.dumps({"images": images, "categories": kinds}))
    cli("predict", run, tmp_path / "notes.json", "-o", tmp_path / "out.json").fine()
    entries = json.loads((tmp_path / "out.json").read_text())
    found = []
    for at in range(len(test)):
        own = [entry for entry in entries if entry["image_id"] == at]
        boxes = torch.tensor([entry["bbox"] for entry in own]).reshape(-1, 4)
        corners = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
        found.append((corners, [entry["score"] for entry in own], [entry["category_id"] for entry in own]))
    truths = [(one.boxes, one.labels) for one in test.target.objects]
    ap = average_precision(found, truths, 3).nanmean()
    assert float(ap) == pytest.approx(measure(run)["map50"], abs=1e-3)


@pytest.mark.parametrize(("words", "said"), [
    (["--top", 3], "--top has no effect on a run of task detect"),
    (["--out", "x.json", "0.png"], "numbers its own images"),
])  # fmt: skip
def test_options_that_do_not_fit_are_one_line(
    cli: Cli, run: Path, scenes: Path, words: list[Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenes)
    coco(scenes / "notes.json")
    assert said in cli("predict", run, "notes.json", *words).mistake()


def test_a_class_that_the_file_does_not_have_is_one_line(cli: Cli, run: Path, scenes: Path) -> None:
    file = coco(scenes / "notes.json", categories=[{"id": 1, "name": "disc"}])
    assert "no category 'square'" in cli("predict", run, file, "-o", scenes / "out.json").mistake()
    assert not (scenes / "out.json").exists()
    cli("predict", run, file).fine()  # a table has names


def test_what_cannot_be_read_is_listed(cli: Cli, run: Path, scenes: Path) -> None:
    file = coco(scenes / "notes.json")
    (scenes / "0.png").unlink()
    said = cli("predict", run, file, table(scenes, "path\n2.png\nnowhere.png\n"), "--min-score", 0)
    assert list(dict.fromkeys(row["name"] for row in rows(said.fine()))) == ["1.png", "2.png"]
    *_, head, first, second = said.err.splitlines()
    assert head == "evenhand: 2 of 4 inputs could not be read:"
    assert "0.png" in first
    assert "nowhere.png" in second
    (scenes / "1.png").write_bytes(b"x")
    assert "none of 2 inputs could be read" in cli("predict", run, file).mistake()


def test_arrays_and_pil_images_say_what_files_say(run: Path, scenes: Path) -> None:
    model = evenhand.load(run)
    files = [scenes / f"{at}.png" for at in range(3)]
    expected = model.predict(files, min_score=0)
    images = [Image.open(file) for file in files]
    found = model.predict(images, min_score=0)
    assert [one.name for one in found] == ["image 0", "image 1", "image 2"]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.labels == theirs.labels
        assert torch.equal(mine.boxes, theirs.boxes)
    (alone,), (array,) = model.predict(files[1], min_score=0), model.predict(np.asarray(images[1])[None], min_score=0)
    assert torch.equal(alone.boxes, array.boxes)
    with pytest.raises(UserError, match="cannot read image"):
        model.predict([scenes / "0.png", table(scenes, "x", "broken.png")])


def test_a_detector_is_not_exported_but_its_classes_have_groups(cli: Cli, run: Path, tmp_path: Path) -> None:
    said = cli("export", run, "--format", "torch", "-o", tmp_path / "out").mistake()
    assert "is a run of task detect; export writes classifiers: use evenhand predict" in said
    assert not (tmp_path / "out").exists()
    found = json.loads((run / "measure.json").read_text())
    assert sorted(k for members in found["groups"].values() for k in members) == [0, 1, 2]
    page = tmp_path / "page.html"
    cli("report", run, "-o", page).fine()
    assert "<h1>mAP@0.5 of <strong>" in page.read_text()
