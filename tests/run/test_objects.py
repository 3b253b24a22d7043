"""``look``, ``check`` and ``train FOLDER`` on scenes with boxes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from evenhand.cli import main
from evenhand.data.sets.scenes import load_shapes
from evenhand.data.settings import DataSettings
from evenhand.data.sources.scenes import Annotated, Listed
from evenhand.errors import UserError
from evenhand.report.look import write_look
from evenhand.run import choosing
from evenhand.run.advice import advise
from evenhand.run.check import check_recipe
from evenhand.run.choosing import choose, is_data
from evenhand.run.findings import find
from evenhand.run.looking import facts, problems
from evenhand.run.objects import objects_in
from evenhand.run.recipe import load_recipe
from helpers import save_picture

TINY = [
    "method.net.weights=''", "method.net.short_side=64", "method.net.anchors=[16, 24]", "method.net.proposals=20",
    "method.net.regions=8", "method.net.head=8", "method.batch=2", "run.steps=2", "run.threads=1",
]  # fmt: skip


def write_coco(folder: Path, domain: str = "plain", split: str = "train", name: str = "notes.json") -> Path:
    """Drawn shapes as a COCO file with its images beside it."""
    stream = load_shapes(domain)[split]
    folder.mkdir(parents=True, exist_ok=True)
    images, notes = [], []
    for at, pixels in enumerate(stream.fetch(torch.arange(len(stream)))):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{at}.png")
        images.append({"id": at, "file_name": f"{at}.png", "width": 64, "height": 64})
        found = stream.target.objects[at]
        for (x1, y1, x2, y2), label in zip(found.boxes.tolist(), found.labels.tolist(), strict=True):
            notes.append({"image_id": at, "category_id": label, "bbox": [x1, y1, x2 - x1, y2 - y1]})
    kinds = [{"id": k, "name": name} for k, name in enumerate(stream.classes)]
    (folder / name).write_text(json.dumps({"images": images, "annotations": notes, "categories": kinds}))
    return folder / name


def changed(file: Path, change: Any) -> Path:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return file


def said(findings: Any) -> str:
    return "\n".join((*facts(findings), *problems(findings)))


def test_boxes_are_counted_by_class_and_split(tmp_path: Path) -> None:
    for folder, split in (("train", "train"), ("valid", "val")):
        write_coco(tmp_path / folder, split=split)
    found = find(tmp_path)
    streams = load_shapes("plain")
    assert found.kind == "scenes"
    assert found.domains == ()
    for split in ("train", "val"):
        counts = dict(zip(("disc", "square", "cross"), streams[split].counts, strict=True))
        assert found.counts[split] == counts
    bare = sum(not len(one.labels) for one in streams["train"].target.objects)
    assert bare
    assert found.objects is not None
    assert (found.objects.images["train"], found.objects.bare["train"]) == (24, bare)
    assert f"images: train 24 ({bare} without any box), val 8" in said(found)
    assert not found.spoils
    assert "frame:" not in said(found)


def test_sizes_are_coco_s_and_aspects_those_of_boxes(tmp_path: Path) -> None:
    save_picture(tmp_path / "a.png", 300, 200)
    boxes = [[0, 0, 10, 10], [0, 0, 31, 33], [0, 0, 32, 32], [0, 0, 95, 96], [0, 0, 200, 100]]
    notes = [{"image_id": 1, "category_id": 1, "bbox": box, "iscrowd": int(box[2] == 10)} for box in boxes]
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 300, "height": 200}],
        "annotations": notes, "categories": [{"id": 1, "name": "tree"}],
    }  # fmt: skip
    (tmp_path / "notes.json").write_text(json.dumps(content))
    objects = find(tmp_path / "notes.json").objects
    assert objects is not None
    assert objects.sizes == {"small": 2, "medium": 2, "large": 1}
    assert objects.sides == (10, 32, 20000**0.5)
    assert objects.aspects == pytest.approx((31 / 33, 1, 2))
    assert objects.optional == 1
    text = said(find(tmp_path / "notes.json"))
    assert "boxes: small 40%, medium 40%, large 20%" in text
    assert "width : height 0.94 to 2.00, median 1.00" in text
    assert "optional boxes (difficult, crowds): 1" in text


def spoil(content: dict[str, Any]) -> None:
    notes = content["annotations"]
    notes[0]["category_id"] = 99
    notes[1]["image_id"] = 999
    notes[2]["bbox"] = [3, 3, 0, 5]
    notes[3]["bbox"] = [-5, 3, 20, 20]
    content["images"][7]["width"] = 70
    content["images"].append({"id": 77, "file_name": "gone.png", "width": 9, "height": 9})
    content["categories"].append({"id": 8, "name": "ghost"})


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    file = changed(write_coco(tmp_path), spoil)
    (tmp_path / "3.png").write_bytes(b"x")
    found = find(file)
    lines = list(problems(found))
    expected = [
        "error: cannot read image", "category id 99", "image id 999", "1 of 25 images are missing",
        "1 boxes have no area inside their image, such as [3, 3, 3, 8]", "warning: 1 images have another size",
        "warning: boxes stick out of 1 images", "warning: no image has a box of class ghost: left out",
    ]  # fmt: skip
    for line, wanted in zip(lines, expected, strict=True):
        assert wanted in line
    assert "skip_unreadable" not in lines[0]
    assert found.spoils
    with pytest.raises(UserError, match="cannot read"):
        choose(str(file))
    again = changed(write_coco(tmp_path / "again"), spoil)
    with pytest.raises(UserError, match="category id 99"):
        choose(str(again))


def test_classes_of_splits_are_compared_and_one_without_boxes_is_left_out(tmp_path: Path) -> None:
    def drop_crosses(content: dict[str, Any]) -> None:
        content["annotations"] = [note for note in content["annotations"] if note["category_id"] != 2]

    def super_category(content: dict[str, Any]) -> None:
        content["categories"].append({"id": 8, "name": "shapes"})

    train = changed(write_coco(tmp_path / "train"), super_category)
    write_coco(tmp_path / "test", split="test")
    found = find(tmp_path)
    assert found.classes == ("disc", "square", "cross")
    assert "warning: no image has a box of class shapes: left out" in said(found)
    assert not found.spoils
    changed(train, drop_crosses)
    found = find(tmp_path)
    assert found.spoils
    assert "error: no training object of class cross: add some" in said(found)
    changed(train, lambda content: content["categories"].pop(2))
    found = find(tmp_path)
    assert "error: not every split has cross (missing in train)" in said(found)
    assert find(tmp_path, DataSettings(classes="intersection")).classes == ("disc", "square")
    bare = changed(train, lambda content: content.update(annotations=[]))
    assert "error: no image has a box to learn from" in said(find(bare))


def test_files_named_after_splits_are_no_domains(tmp_path: Path) -> None:
    for name, split in (("train", "train"), ("valid", "val"), ("test-new", "test")):
        write_coco(tmp_path / name, split=split, name=f"{name}.json").rename(tmp_path / f"{name}.json")
    found = find(tmp_path)
    assert found.domains == ()
    assert set(found.counts) == {"train", "val", "test-new"}
    assert found.train == found.counts["train"]
    assert not found.spoils


def test_a_test_alone_has_nothing_to_learn_from(tmp_path: Path) -> None:
    write_coco(tmp_path / "test", split="test")
    assert "error: no training object of class cross, disc, square" in said(find(tmp_path))


@pytest.mark.parametrize("corner", [float("nan"), float("inf")])
def test_corners_that_are_no_numbers_are_boxes_without_area(tmp_path: Path, corner: float) -> None:
    def spoil_all(content: dict[str, Any]) -> None:
        for note in content["annotations"]:
            note["bbox"][2] = corner

    found = find(changed(write_coco(tmp_path), spoil_all))
    assert found.spoils
    assert re.search(r"error: \d+ boxes have no area inside their image, such as .*(nan|inf)", said(found))


def test_voc_and_its_damaged_annotations(tmp_path: Path) -> None:
    save_picture(tmp_path / "JPEGImages" / "a.jpg", 40, 30)
    (tmp_path / "Annotations").mkdir()
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>20</xmax><ymax>10</ymax></bndbox>"
    thing = f"<object><name>dog</name>{box}</object>"
    note = f"<annotation><size><width>40</width><height>30</height></size>{thing}</annotation>"
    (tmp_path / "Annotations" / "a.xml").write_text(note)
    (tmp_path / "Annotations" / "b.xml").write_text("<annotation>")
    found = find(tmp_path)
    assert found.counts == {"all": {"dog": 1}}
    assert found.ignored == {}
    assert "b.xml" in next(problems(found))


def test_domains_are_advised_to_adapt_and_one_place_is_not(tmp_path: Path) -> None:
    write_coco(tmp_path / "street" / "train")
    write_coco(tmp_path / "street" / "test", split="test")
    shutil.copytree(tmp_path / "street" / "train", tmp_path / "fog")
    (tmp_path / "fog" / "notes.json").unlink()
    found = find(tmp_path)
    assert found.domains == ("street", "fog")  # with boxes first
    assert found.unlabelled == {"fog": 24}
    assert found.train == found.counts["street/train"]
    assert "fog 24 without annotations" in said(found)
    assert "sets of exact copies in two splits" in said(found)
    first, second = advise(found)
    assert (first.recipe, second.recipe) == ("detect:source-only", "detect:da-faster")
    assert first.set == (f"data.set={tmp_path}", 'data.source=["street"]', "data.target=fog")
    (only,) = advise(find(tmp_path / "street"))
    assert (only.recipe, only.set) == ("detect:source-only", (f"data.set={tmp_path / 'street'}",))


def test_images_may_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shutil.move(write_coco(tmp_path / "pictures"), tmp_path / "notes.json")

    def look(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["evenhand", "look", str(file), *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0)

    assert look() == 2
    assert look("--root", tmp_path / "pictures") == 0


def test_the_page_shows_images_of_each_class(tmp_path: Path) -> None:
    found = find(write_coco(tmp_path))
    page = write_look(tmp_path / "look.html", found, [*facts(found), *problems(found)], []).read_text()
    assert page.count("<img") == 18


@pytest.mark.usefixtures("tv")
def test_a_recipe_is_chosen_and_can_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_coco(tmp_path)
    assert is_data(str(file))
    monkeypatch.setattr(choosing, "time_steps", lambda *_: (0.5, 600, 10))
    monkeypatch.setattr("evenhand.run.check.WARM", 0)
    monkeypatch.setattr("evenhand.run.check.TIMED", 1)
    recipe = choose(str(file), TINY, seed=4)
    assert (recipe.method.name, recipe.data.set, recipe.run.seed) == ("detector", str(file), 4)
    values = [*TINY, f"data.set={file}", f"data.target={file}"]
    assert check_recipe(load_recipe("detect:sdat", values)) == []
    said = capsys.readouterr().out
    assert "2 steps at" in said
    file = changed(file, spoil)
    with pytest.raises(UserError, match="category id 99"):
        check_recipe(load_recipe("detect:sdat", values))


def test_boxes_are_measured_by_what_is_inside_their_image(tmp_path: Path) -> None:
    there = save_picture(tmp_path / "a.png", 200, 150)
    boxes = [
        [0, 0, 32, 32], [0, 0, 31, 32], [0, 0, 96, 96], [10, 20, 106, 115], [-8, 4, 8, 20], [190, 4, 210, 24],
        [4, -4, 20, 12], [4, 140, 20, 160], [200, 0, 210, 10], [5, 5, 5, 9], [5, 9, 9, 9], [float("nan"), 0, 1, 1],
    ]  # fmt: skip
    rows = [
        Annotated(there, 200, 150, boxes, ["x"] * 12, [True] + [False] * 11), Annotated(there, 200, 151, [], [], []),
        Annotated(tmp_path / "gone.png", 9, 9, [], [], []),
    ]  # fmt: skip
    part = Listed(rows, ("x",), tmp_path, "train", ("a fault",))
    hidden = Listed(rows, (), tmp_path, "street", ("another",), labelled=False)
    found = objects_in({"train": part, "street": hidden}, {str(there): (200, 150)}, ["y"])
    assert (found.images, found.bare, found.optional) == ({"train": 3}, {"train": 2}, 1)
    assert found.sizes == {"small": 5, "medium": 2, "large": 1}
    areas = sorted([1024, 992, 9216, 96 * 95, 8 * 16, 10 * 20, 16 * 12, 16 * 10])
    assert found.sides == (areas[0] ** 0.5, areas[4] ** 0.5, areas[-1] ** 0.5)
    aspects = sorted([1, 31 / 32, 1, 96 / 95, 8 / 16, 10 / 20, 16 / 12, 16 / 10])
    assert found.aspects == (aspects[1], aspects[4], aspects[6])
    assert [text.partition("]")[0] for text in found.flat] == [
        "[200, 0, 210, 10",
        "[5, 5, 5, 9",
        "[5, 9, 9, 9",
        "[nan, 0, 1, 1",
    ]
    assert list(found.outside) == list(found.resized) == [str(there)]
    assert list(found.missing) == [str(tmp_path / "gone.png")]
    assert (list(found.faults), list(found.idle), found.spoil) == (["a fault"], ["y"], True)
    empty = objects_in({"train": part._replace(rows=[])}, {})
    assert (empty.sides, empty.aspects) == (None, None)
