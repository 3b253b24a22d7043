"""Detection sets as they come, and what is wrong with them, named before training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from evenhand.data.prepared import prepare_data
from evenhand.data.scenes import prepare_scenes
from evenhand.data.settings import DataSettings
from evenhand.data.sources import annotations as notes_module
from evenhand.data.sources.annotations import Reading, holds_scenes, list_scenes, read_scenes
from evenhand.data.sources.scenes import Scenes
from evenhand.errors import UserError

NAN, INF = float("nan"), float("inf")


def picture(path: Path, size: tuple[int, int] = (60, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (10, 200, 30)).save(path)


def voc(folder: Path, objects: dict[str, list[tuple[str, tuple[float, ...], int]]], **lists: list[str]) -> Path:
    for name, things in objects.items():
        picture(folder / "JPEGImages" / f"{name}.jpg")
        inner = "".join(
            f"<object><name>{kind}</name><difficult>{hard}</difficult><bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
            f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
            for kind, (a, b, c, d), hard in things
        )
        note = f"<annotation><filename>{name}.jpg</filename><size><width>60</width><height>40</height></size>{inner}"
        (folder / "Annotations").mkdir(exist_ok=True)
        (folder / "Annotations" / f"{name}.xml").write_text(note + "</annotation>")
    for split, names in lists.items():
        (folder / "ImageSets" / "Main").mkdir(parents=True, exist_ok=True)
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names))
    return folder


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def coco(file: Path, **changed: Any) -> Path:
    picture(file.parent / "images" / "a.jpg")
    picture(file.parent / "images" / "b.jpg", (30, 30))
    content = {
        "images": [
            {"id": 7, "file_name": "a.jpg", "width": 60, "height": 40},
            {"id": 9, "file_name": "b.jpg", "width": 30, "height": 30},
        ],
        "categories": [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}],
        "annotations": [
            {"image_id": 7, "category_id": 3, "bbox": [1, 2, 10, 20]},
            {"image_id": 7, "category_id": 1, "bbox": [5, 5, 6, 6], "iscrowd": 1},
        ],
    }
    file.write_text(json.dumps(content | changed))
    return file


def test_voc_counts_pixels_from_one_and_marks_difficult_objects(tmp_path: Path) -> None:
    things = {"x": [("dog", (1, 1, 20, 30), 0), ("cat", (11, 5, 60, 40), 1)], "y": []}
    streams = read_scenes(voc(tmp_path, things, trainval=["x"], test=["y"]))
    assert set(streams) == {"train", "test"}
    (found,) = streams["train"].target.objects
    assert streams["train"].classes == ("cat", "dog")
    assert found.boxes.tolist() == [[0, 0, 20, 30], [10, 4, 60, 40]]
    assert found.labels.tolist() == [1, 0]
    assert found.optional.tolist() == [False, True]
    assert found.needed.labels.tolist() == [1]
    (empty,) = streams["test"].target.objects
    assert empty.boxes.shape == (0, 4)
    (image,) = streams["train"].fetch(torch.tensor([0]))
    assert image.shape == (3, 40, 60)
    assert streams["train"].samples.name(0) == "JPEGImages/x.jpg"


def test_voc_trains_on_train_or_on_trainval_if_nothing_is_to_be_held_out(tmp_path: Path) -> None:
    things = {name: [("dog", (1, 1, 20, 30), 0)] for name in "wxyz"}
    place = str(voc(tmp_path / "a", things, train=["w"], val=["x", "y"], trainval=["w", "x", "y"], test=["z"]))
    for share, wanted in ((None, {"labelled": 1, "val": 2, "test": 1}), (0, {"labelled": 3, "test": 1})):
        data = prepare_scenes(DataSettings(set=place, val_share=share))
        assert {name: len(stream) for name, stream in data.streams.items()} == wanted
    (tmp_path / "a" / "ImageSets" / "Main" / "train.txt").unlink()
    assert {split: len(part) for split, part in read_scenes(Path(place)).items()} == {"train": 1, "val": 2, "test": 1}
    other = str(voc(tmp_path / "b", things, train=["w"], val=["x", "y"], trainval=["w", "x", "y"]))
    data = prepare_scenes(DataSettings(set=place, target=other, val_share=0))
    assert {name: len(stream) for name, stream in data.streams.items()} == {"source": 3, "target": 1, "test": 2}


def test_coco_boxes_have_width_and_height_and_crowds_are_optional(tmp_path: Path) -> None:
    stream = read_scenes(coco(tmp_path / "notes.json"))["all"]
    assert stream.classes == ("cat", "dog")  # in the order of their ids
    first, second = stream.target.objects
    assert first.boxes.tolist() == [[1, 2, 11, 22], [5, 5, 11, 11]]
    assert first.labels.tolist() == [1, 0]
    assert first.optional.tolist() == [False, True]
    assert len(second.labels) == 0


def test_half_an_emoji_in_a_category_is_a_question_mark(tmp_path: Path) -> None:
    half = coco(tmp_path / "notes.json", categories=[{"id": 1, "name": "cat \ud83d"}, {"id": 3, "name": "dog"}])
    assert read_scenes(half)["all"].classes == ("cat ?", "dog")


def cityscape(folder: Path, *images: str) -> Path:
    note = folder / "gtFine" / "train" / "ulm" / "ulm_0_gtFine_polygons.json"
    objects = [
        {"label": "car", "polygon": [[5, 6], [20, 3], [12, 30]]},
        {"label": "cargroup", "polygon": [[0, 0], [9, 9], [0, 9]]},
        {"label": "person", "polygon": [[-4, 10], [8, 10], [8, 50]]},
    ]
    made(note.parent)
    note.write_text(json.dumps({"imgWidth": 60, "imgHeight": 40, "objects": objects}))
    for name in images:
        picture(folder / "leftImg8bit" / "train" / "ulm" / f"ulm_0_leftImg8bit{name}.png")
    return folder


def test_cityscapes_polygons_become_boxes_of_eight_kinds(tmp_path: Path) -> None:
    stream = read_scenes(cityscape(tmp_path, "_foggy_beta_0.02"))["train"]
    (found,) = stream.target.objects
    assert found.boxes.tolist() == [[5, 3, 20, 30], [0, 10, 8, 40]]
    assert [stream.classes[k] for k in found.labels] == ["car", "person"]


def test_one_of_several_fog_levels_is_chosen(tmp_path: Path) -> None:
    foggy = cityscape(tmp_path / "foggy", *(f"_foggy_beta_{level}" for level in (0.005, 0.01, 0.02)))
    with pytest.raises(UserError, match=r"3 images of 'ulm_0', fog levels 0\.005, 0\.01, 0\.02; set data\.fog"):
        read_scenes(foggy)
    stream = read_scenes(foggy, Reading(fog=0.02))["train"]
    assert str(stream.samples.path(0)).endswith("ulm_0_leftImg8bit_foggy_beta_0.02.png")
    with pytest.raises(UserError, match=r"fog levels 0\.005, 0\.01, 0\.02; set data\.fog"):
        read_scenes(foggy, Reading(fog=0.03))
    clear = cityscape(tmp_path / "clear", "")
    with pytest.warns(UserWarning, match="bus.*left out"):
        data = prepare_scenes(DataSettings(set=str(clear), target=str(foggy), fog=0.01, val_share=0))
    found = [str(data.streams[name].samples.path(0)) for name in ("source", "target")]
    assert [name.rpartition("leftImg8bit")[2] for name in found] == [".png", "_foggy_beta_0.01.png"]
    with pytest.raises(UserError, match=r"data\.fog = 0\.02 has no effect"):
        prepare_data(DataSettings(set="shapes", fog=0.02))


def test_a_folder_of_images_is_unlabelled(tmp_path: Path) -> None:
    picture(tmp_path / "deep" / "a.png")
    stream = read_scenes(tmp_path)["unlabelled"]
    assert stream.target is None
    assert stream.samples.name(0) == "deep/a.png"


def test_a_copy_made_later_is_the_same_data(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    scenes = Scenes([tmp_path / "a.png"], names=["a"])
    before, dated = (list(scenes.identity(**how)) for how in ({}, {"dated": True}))  # type: ignore[arg-type]
    os.utime(tmp_path / "a.png", (1, 1))
    assert list(scenes.identity()) == before
    assert list(scenes.identity(dated=True)) != dated
    content = bytearray((tmp_path / "a.png").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "a.png").write_bytes(content)
    assert list(scenes.identity()) != before, "the same length, another content"


@pytest.mark.parametrize(("changed", "said"), [
    ({"annotations": [{"image_id": 7, "category_id": 5, "bbox": [0, 0, 1, 1]}]}, "category id 5"),
    ({"annotations": [{"image_id": 1, "category_id": 3, "bbox": [0, 0, 1, 1]}]}, "image id 1"),
    ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [5, 5, 0, 4]}]}, "no area inside the image"),
    ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [70, 5, 9, 4]}]}, "no area inside the image"),
    ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [NAN, 5, 9, 4]}]}, "no area inside the image"),
    ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [5, 5, NAN, 4]}]}, "no area inside the image"),
    ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [5, 5, INF, 4]}]}, "no area inside the image"),
    ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [-INF, 5, INF, 4]}]}, "no area inside the image"),
    ({"images": [{"id": 7, "file_name": "a.jpg", "width": INF, "height": 40}]}, "is not a COCO file"),
    ({"images": [{"id": 7, "file_name": "gone.jpg", "width": 60, "height": 40}]}, "1 of 1 images are missing"),
    ({"categories": [{"id": 3, "name": "dog"}, {"id": 1, "name": "dog"}]}, "categories 1, 3 have one name, 'dog'"),
    ({"categories": "none"}, "is not a COCO file"),
    ({"annotations": [{"image_id": 7}]}, "is not a COCO file"),
])  # fmt: skip
def test_faults_of_a_coco_file_are_named(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_scenes(coco(tmp_path / "notes.json", **changed))


def test_a_box_that_sticks_out_is_cut_and_told_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="stick out of 1 images"):
        streams = read_scenes(voc(tmp_path, {"x": [("dog", (50, 30, 70, 60), 0)]}))
    assert streams["all"].target.objects[0].boxes.tolist() == [[49, 29, 60, 40]]


@pytest.mark.parametrize(
    "text", ["", "<annotation></annotation>", "<annotation><size><width>x</width></size></annotation>"]
)
def test_a_damaged_annotation_is_named(tmp_path: Path, text: str) -> None:
    folder = voc(tmp_path, {"x": []})
    (folder / "Annotations" / "x.xml").write_text(text)
    with pytest.raises(UserError, match=r"x\.xml.*VOC"):
        read_scenes(folder)


def test_nothing_to_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither images nor annotations"):
        read_scenes(tmp_path)
    with pytest.raises(UserError, match="neither a folder nor a COCO file"):
        read_scenes(tmp_path / "gone")


def test_domains_keep_the_classes_they_share_and_hide_the_target(tmp_path: Path) -> None:
    some = {f"s{i}": [("dog", (1, 1, 20, 30), 0), ("hen", (5, 5, 20, 30), 0)] for i in range(10)}
    voc(tmp_path / "a", some)
    voc(tmp_path / "b", {"t": [("dog", (1, 1, 20, 30), 0), ("cow", (1, 1, 9, 9), 0)]})
    given = {"set": str(tmp_path / "a"), "target": str(tmp_path / "b"), "val_share": 0.2}
    with pytest.raises(UserError, match=r"cow, hen.*intersection"):
        prepare_scenes(DataSettings(**given))
    data = prepare_scenes(DataSettings(**given, classes="intersection"))
    assert data.classes == ("dog",)
    assert data.counts == [8]
    assert {name: len(stream) for name, stream in data.streams.items()} == {
        "source": 8,
        "val": 2,
        "target": 1,
        "test": 1,
    }
    assert data.streams["target"].target is None
    assert data.streams["test"].target.objects[0].labels.tolist() == [0]


def splits(folder: Path, **boxes: dict[str, int]) -> str:
    """COCO files in folders; a class of each split, listed, with so many boxes."""
    for split, counts in boxes.items():
        kinds = [{"id": at, "name": name} for at, name in enumerate(counts)]
        kind = [at for at, count in enumerate(counts.values()) for _ in range(count)]
        notes = [{"image_id": 7, "category_id": at, "bbox": [1, 2, 10, 20]} for at in kind]
        (folder / split).mkdir(parents=True, exist_ok=True)
        coco(folder / split / "notes.json", categories=kinds, annotations=notes)
    return str(folder)


def test_classes_are_those_of_training_whatever_split_comes_first(tmp_path: Path) -> None:
    place = splits(tmp_path / "a", train={"dog": 2, "cat": 1}, test={"cat": 1})
    with pytest.raises(UserError, match=r"not every split has dog \(missing in .*a/test\).*intersection"):
        prepare_scenes(DataSettings(set=place))
    assert prepare_scenes(DataSettings(set=place, classes="intersection")).classes == ("cat",)
    place = splits(tmp_path / "b", train={"dog": 2, "cat": 1}, valid={"dog": 1, "cat": 1, "hen": 1})
    with pytest.raises(UserError, match=r"not every split has hen \(missing in .*b/train\)"):
        prepare_scenes(DataSettings(set=place))
    assert prepare_scenes(DataSettings(set=place, classes="intersection")).classes == ("dog", "cat")
    other = splits(tmp_path / "c", train={"cow": 1}, test={"cat": 1, "dog": 0})  # a target's boxes are for its test
    place = splits(tmp_path / "d", train={"dog": 2, "cat": 1}, test={"cow": 1})  # a source's test is of no use
    data = prepare_scenes(DataSettings(set=place, target=other, val_share=0))
    assert (data.classes, data.streams["test"].counts) == (("dog", "cat"), [0, 1])


def test_a_class_without_any_box_is_left_out_and_told_of(tmp_path: Path) -> None:
    place = splits(tmp_path / "a", train={"animals": 0, "dog": 2, "cat": 1}, test={"animals": 0, "dog": 1, "cat": 0})
    with pytest.warns(UserWarning, match="no image has a box of class animals: left out"):
        data = prepare_scenes(DataSettings(set=place))
    assert (data.classes, data.counts) == (("dog", "cat"), [2, 1])
    place = splits(tmp_path / "b", train={"dog": 2, "cat": 0}, test={"dog": 1, "cat": 1})
    with pytest.raises(UserError, match="no training object of class cat"):
        prepare_scenes(DataSettings(set=place))
    place = splits(tmp_path / "c", train={"dog": 0})
    with pytest.warns(UserWarning, match="dog"), pytest.raises(UserError, match="no image has a box to learn from"):
        prepare_scenes(DataSettings(set=place))


def test_one_place_may_be_source_and_target(tmp_path: Path) -> None:
    place = splits(tmp_path, train={"dog": 2, "cat": 1}, test={"cat": 1, "dog": 1})
    assert prepare_scenes(DataSettings(set=place, target=place, val_share=0)).classes == ("dog", "cat")


@pytest.mark.parametrize(("key", "value"), [
    ("embed", "mobilenet_v2"), ("imbalance", 10), ("size", 64), ("val_per_class", 3), ("skip_unreadable", True),
    ("target_max", 3), ("labels", "x.csv"), ("labelled_share", 0.5), ("target_test_share", 0.5), ("enlarge", 64),
    ("normalise", "imagenet"), ("kind", "step"), ("order", "reversed"), ("frame", "pad"), ("test_share", 0.5),
    ("pool", "x"), ("val_list", "x.txt"), ("test_list", "x.txt"), ("squares", True), ("columns", ["x"]),
    ("min_per_class", 3), ("text", {"length": 9}),
])  # fmt: skip
def test_keys_without_effect_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"data.{key} has no effect"):
        prepare_scenes(DataSettings(set="shape-scenes", source=["plain"], **{key: value}))


def test_keys_of_files_are_refused_where_they_change_nothing(tmp_path: Path) -> None:
    things = {"x": [("dog", (1, 1, 20, 30), 0)]}
    places = {"VOC": voc(tmp_path / "voc", things), "COCO": coco(made(tmp_path / "coco") / "notes.json")}
    for how in ({"root": str(tmp_path)}, {"fog": 0.02}):
        with pytest.raises(UserError, match=f"data.{next(iter(how))} is for CO?.*no effect on these scenes"):
            prepare_scenes(DataSettings(set=str(places["VOC"]), **how))
    for key, value in (("root", str(tmp_path)), ("fog", 0.02), ("grey", True)):
        with pytest.raises(UserError, match=f"data.{key} is for"):
            prepare_scenes(DataSettings(set="shape-scenes", source=["plain"], **{key: value}))
    images = tmp_path / "coco" / "images"
    assert prepare_scenes(DataSettings(set=str(places["COCO"]), root=str(images), grey=True)).inputs == 1
    with pytest.raises(UserError, match="neither a folder nor a COCO file"):
        prepare_scenes(DataSettings(set="nowhere", root=str(images)))


def test_a_tenth_is_held_out_if_there_is_a_target(tmp_path: Path) -> None:
    place = voc(tmp_path, {f"s{i}": [("dog", (1, 1, 20, 30), 0)] for i in range(20)})
    alone = prepare_scenes(DataSettings(set=str(place))).streams
    adapted = prepare_scenes(DataSettings(set=str(place), target=str(place))).streams
    whole = prepare_scenes(DataSettings(set=str(place), target=str(place), val_share=0)).streams
    sizes = [{name: len(stream) for name, stream in streams.items()} for streams in (alone, adapted, whole)]
    target = {"target": 20, "test": 20}
    assert sizes == [{"labelled": 20}, {"source": 18, "val": 2, **target}, {"source": 20, **target}]


@pytest.mark.parametrize("target", ["", "b"])
def test_images_without_boxes_are_nothing_to_learn_from(tmp_path: Path, target: str) -> None:
    picture(tmp_path / "a" / "x.png")
    voc(tmp_path / "b", {"x": [("dog", (1, 1, 20, 30), 0)]})
    other = str(tmp_path / target) if target else ""
    with pytest.raises(UserError, match=r"a' has no annotated images to train on; give VOC's.*COCO.*Cityscapes"):
        prepare_scenes(DataSettings(set=str(tmp_path / "a"), target=other))
    with pytest.raises(UserError, match=r"holds the domains a, b; name one or more in data\.source"):
        prepare_scenes(DataSettings(set=str(tmp_path)))
    bare = str(coco(made(tmp_path / "d") / "notes.json", images=[], annotations=[]))
    with pytest.raises(UserError, match=r"notes\.json' has no annotated images to train on"):
        prepare_scenes(DataSettings(set=bare, target=other))
    place = splits(tmp_path / "c", test={"dog": 1})
    with pytest.raises(UserError, match=r"c' has no annotated images to train on in 'test'"):
        prepare_scenes(DataSettings(set=place, target=other))


def test_split_folders_with_a_coco_file_each_are_splits(tmp_path: Path) -> None:
    for folder, size in (("train", (60, 40)), ("valid", (60, 40)), ("test", (30, 30))):
        picture(tmp_path / folder / "a.jpg", size)
        notes = [{"image_id": 7, "category_id": 3, "bbox": [1, 2, 10, 20]}]
        image = {"id": 7, "file_name": "a.jpg", "width": size[0], "height": size[1]}
        content = {"images": [image], "annotations": notes, "categories": [{"id": 3, "name": "dog"}]}
        (tmp_path / folder / "_annotations.coco.json").write_text(json.dumps(content))
    streams = read_scenes(tmp_path)
    assert {split: stream.samples.path(0) for split, stream in streams.items()} == {
        "train": str(tmp_path / "train" / "a.jpg"),
        "val": str(tmp_path / "valid" / "a.jpg"),
        "test": str(tmp_path / "test" / "a.jpg"),
    }
    assert holds_scenes(tmp_path)
    (tmp_path / "train" / "more.json").write_text("{}")
    with pytest.raises(UserError, match=r"2 \.json files"):
        read_scenes(tmp_path)


def test_coco_files_are_splits_by_their_names(tmp_path: Path) -> None:
    for name in ("train", "valid", "test", "test-new"):
        coco(made(tmp_path / "a") / f"{name}.json")
    assert set(read_scenes(tmp_path / "a")) == {"train", "val", "test", "test-new"}
    coco(tmp_path / "a" / "more.json")
    with pytest.warns(UserWarning, match=r"not used: more\.json"):
        assert "more" not in read_scenes(tmp_path / "a")
    coco(tmp_path / "a" / "val.json")
    with pytest.raises(UserError, match=r"2 \.json files of 'val' \(val\.json, valid\.json\)"):
        read_scenes(tmp_path / "a")
    coco(made(tmp_path / "b") / "boxes.json")
    assert set(read_scenes(tmp_path / "b")) == {"all"}
    coco(tmp_path / "b" / "again.json")
    with pytest.raises(UserError, match=r"again\.json, boxes\.json could all be meant"):
        read_scenes(tmp_path / "b")


@pytest.mark.parametrize(("name", "split"), [
    ("Validation", "val"), ("instances_val2014", "val"), ("test2017", "test"), ("person_keypoints_train2017", None),
])  # fmt: skip
def test_names_of_splits(tmp_path: Path, name: str, split: str | None) -> None:
    coco(made(tmp_path) / f"{name}.json")
    assert [*list_scenes(tmp_path)] == [split or "all"]


@pytest.mark.parametrize("folder", ["", "annotations"])
def test_coco_s_own_files_find_their_images(tmp_path: Path, folder: str) -> None:
    for split in ("train", "val"):
        coco(made(tmp_path / folder) / f"instances_{split}2017.json")
        (tmp_path / folder / "images").rename(tmp_path / f"{split}2017")
    (tmp_path / folder / "captions_train2017.json").write_text("{}")
    assert holds_scenes(tmp_path)
    with pytest.warns(UserWarning, match=r"not used: captions_train2017\.json"):
        streams = read_scenes(tmp_path)
    found = {split: stream.samples.path(0) for split, stream in streams.items()}
    assert found == {split: str(tmp_path / f"{split}2017" / "a.jpg") for split in ("train", "val")}
    with pytest.warns(UserWarning, match="not used"):
        assert set(read_scenes(tmp_path, Reading(root=tmp_path))) == {"train", "val"}


def test_scenes_are_told_from_images_of_classes(tmp_path: Path) -> None:
    picture(tmp_path / "photos" / "dog" / "a.jpg")
    (tmp_path / "photos" / "labels.json").write_text('{"images": [], "categories": ["dog"]}')
    assert not holds_scenes(tmp_path / "photos")
    assert holds_scenes(voc(tmp_path / "voc", {"x": []}))
    file = coco(tmp_path / "notes.json")
    assert holds_scenes(file)
    assert holds_scenes(tmp_path)


def test_all_faults_of_a_file_are_listed(tmp_path: Path) -> None:
    notes = [
        {"image_id": 7, "category_id": 5, "bbox": [0, 0, 1, 1]},
        {"image_id": 1, "category_id": 3, "bbox": [0, 0, 1, 1]},
        {"image_id": 7, "category_id": 3, "bbox": [0, 0, 4, 4]},
    ]
    part = list_scenes(coco(tmp_path / "notes.json", annotations=notes))["all"]
    assert [row.labels for row in part.rows] == [["dog"], []]
    assert len(part.faults) == 2
    assert "category id 5" in part.faults[0]
    assert "image id 1" in part.faults[1]


@pytest.mark.parametrize(
    ("name", "split"),
    [("train", "train"), ("Valid", "val"), ("validation", "val"), ("instances_train2017", "train"), ("val2017", "val"),
     ("test", "test"), ("test-new", "test-new"), ("boxes", ""), ("train20", "")],
)  # fmt: skip
def test_files_are_named_after_splits(name: str, split: str) -> None:
    assert notes_module._split(name) == split


def test_images_are_sought_where_coco_keeps_them(tmp_path: Path) -> None:
    notes = tmp_path / "annotations" / "instances_val2017.json"
    assert notes_module._image_folder(notes, ["a.jpg"], None) == notes.parent
    for place in (tmp_path, tmp_path / "images", notes.parent / "images", tmp_path / "val2017"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "a.jpg").write_bytes(b"")
        assert notes_module._image_folder(notes, ["a.jpg"], None) == place
        (place / "a.jpg").unlink()
    assert notes_module._image_folder(notes, ["a.jpg"], tmp_path / "else") == tmp_path / "else"
    assert (notes_module.SOUGHT, Reading()) == (20, (None, None, False))
    assert notes_module._corners([1, 2, 3, 4]) == [1, 2, 4, 6]
