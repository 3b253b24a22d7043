"""The files that detection sets come as: Pascal VOC, COCO, Cityscapes, and a folder of images without any."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from evenhand.data.sources.paths import images_in, read_text
from evenhand.data.sources.scenes import Annotated, Scenes, known_classes, scenes_stream
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError

CITYSCAPES = ("person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle")


def read_scenes(place: Path, *, root: Path | None = None, mode: str = "RGB") -> Streams:
    """Streams of whatever ``place`` is; "unlabelled" of a folder with images alone."""
    if place.suffix.lower() == ".json":
        return {"all": read_coco(place, root, mode)}
    if not place.is_dir():
        raise UserError(f"'{place}' is neither a folder nor a COCO file (.json); check the path")
    if (place / "Annotations").is_dir() and (place / "JPEGImages").is_dir():
        return read_voc(place, mode)
    if (place / "gtFine").is_dir() and (place / "leftImg8bit").is_dir():
        return read_cityscapes(place, mode)
    found = sorted(place.glob("*.json"))
    if found:
        return {file.stem: read_coco(file, root, mode) for file in found}
    files = images_in(place)
    if not files:
        raise UserError(
            f"'{place}' has neither images nor annotations; give VOC's folders (Annotations, JPEGImages), a COCO "
            ".json, Cityscapes' (leftImg8bit, gtFine), or images"
        )
    names = [file.relative_to(place).as_posix() for file in files]
    return {"unlabelled": Stream(Scenes(files, mode=mode, names=names), None, (), place.name)}


def read_voc(folder: Path, mode: str = "RGB") -> Streams:
    """A stream for each list in ImageSets/Main (train, val, trainval, test), or "all"."""
    lists = [folder / "ImageSets" / "Main" / f"{split}.txt" for split in ("train", "val", "trainval", "test")]
    chosen = {file.stem: [line.split()[0] for line in read_text(file).splitlines() if line.split()]
              for file in lists if file.is_file()}  # fmt: skip
    if "train" in chosen and "val" in chosen:
        chosen.pop("trainval", None)
    elif "trainval" in chosen:
        chosen["train"] = chosen.pop("trainval")
    if not chosen:
        chosen = {"all": sorted(file.stem for file in (folder / "Annotations").glob("*.xml"))}
    rows = {split: [_voc(folder, name) for name in names] for split, names in chosen.items()}
    classes = known_classes(row for part in rows.values() for row in part)
    return {split: scenes_stream(part, classes, split, mode, folder) for split, part in rows.items()}


def _voc(folder: Path, name: str) -> Annotated:
    """VOC counts pixels from 1 and includes the last: left and top move by one."""
    file = folder / "Annotations" / f"{name}.xml"
    try:
        tree = ElementTree.fromstring(read_text(file))
        size = tree.find("size")
        assert size is not None
        width, height = (int(size.findtext(key, "")) for key in ("width", "height"))
        picture = folder / "JPEGImages" / (tree.findtext("filename") or f"{name}.jpg")
        boxes, labels, optional = [], [], []
        for thing in tree.iter("object"):
            corners = [float(thing.findtext(f"bndbox/{key}", "")) for key in ("xmin", "ymin", "xmax", "ymax")]
            boxes.append([corners[0] - 1, corners[1] - 1, corners[2], corners[3]])
            labels.append(thing.findtext("name", "").strip())
            optional.append(thing.findtext("difficult", "0").strip() == "1")
    except (OSError, UserError, ValueError, AssertionError, ElementTree.ParseError) as error:
        raise UserError(f"cannot read '{file}' as a VOC annotation ({error}); correct or remove it") from error
    if "" in labels:
        raise UserError(f"'{file}' has an object without a name; correct or remove it")
    if not picture.is_file():  # files are renamed more often than what stands in them
        picture = folder / "JPEGImages" / f"{name}.jpg"
    return Annotated(picture, width, height, boxes, labels, optional)


def read_coco(file: Path, root: Path | None = None, mode: str = "RGB") -> Stream:
    """A COCO file; its images lie in ``root``, in a folder ``images`` or of its own name beside it, or beside it."""
    try:
        content = json.loads(read_text(file))
        images, notes, kinds = content["images"], content.get("annotations", []), content["categories"]
        names = {int(kind["id"]): str(kind["name"]) for kind in kinds}
        folder = root or next((p for p in (file.parent / "images", file.parent / file.stem) if p.is_dir()), file.parent)
        held: defaultdict[int, list[Any]] = defaultdict(list)
        for note in notes:
            held[int(note["image_id"])].append(note)
        unknown = {int(note["category_id"]) for note in notes} - names.keys()
        strange = held.keys() - {int(image["id"]) for image in images}
        rows = [
            Annotated(folder / image["file_name"], int(image["width"]), int(image["height"]),
                      [_corners(note["bbox"]) for note in held[int(image["id"])]],
                      [names.get(int(note["category_id"]), "") for note in held[int(image["id"])]],
                      [bool(note.get("iscrowd", 0)) for note in held[int(image["id"])]])
            for image in images
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{file}' is not a COCO file ({type(error).__name__}: {error}); see docs/detection.md"
        ) from error
    if unknown:
        raise UserError(f"'{file}': category id {min(unknown)} is not among its categories; add it, or drop its boxes")
    if strange:
        raise UserError(f"'{file}': annotations speak of image id {min(strange)}, which it does not list; correct it")
    return scenes_stream(rows, [names[key] for key in sorted(names)], file.stem, mode, folder)


def _corners(box: list[float]) -> list[float]:
    left, top, width, height = map(float, box)
    return [left, top, left + width, top + height]


def read_cityscapes(folder: Path, mode: str = "RGB") -> Streams:
    """Boxes around the polygons of the eight kinds of things; images without any are left out.

    Foggy Cityscapes has its images in leftImg8bit under names that end in ``_foggy_beta_0.02``.
    """
    streams = {}
    for split in ("train", "val"):
        rows = [
            _cityscape(folder, note) for note in sorted((folder / "gtFine" / split).rglob("*_gtFine_polygons.json"))
        ]
        rows = [row for row in rows if row.boxes]
        if rows:
            streams[split] = scenes_stream(rows, CITYSCAPES, split, mode, folder)
    if not streams:
        raise UserError(f"'{folder}/gtFine' has no *_gtFine_polygons.json with people or vehicles; unpack gtFine there")
    return streams


def _cityscape(folder: Path, note: Path) -> Annotated:
    start = note.name.removesuffix("_gtFine_polygons.json")
    place = folder / "leftImg8bit" / note.parent.relative_to(folder / "gtFine")
    picture = next(iter(sorted(place.glob(f"{start}_leftImg8bit*"))), place / f"{start}_leftImg8bit.png")
    try:
        content = json.loads(read_text(note))
        width, height = int(content["imgWidth"]), int(content["imgHeight"])
        found = list(_things(content["objects"], width, height))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read '{note}' as Cityscapes' polygons ({error}); unpack it again") from error
    boxes, labels = [box for box, _ in found], [label for _, label in found]
    return Annotated(picture, width, height, boxes, labels, [False] * len(boxes))


def _things(objects: list[dict[str, Any]], width: int, height: int) -> Iterator[tuple[list[float], str]]:
    for thing in objects:
        if thing["label"] in CITYSCAPES:  # groups ("cargroup") are no single things
            across, down = zip(*thing["polygon"], strict=True)
            left, right = (min(max(edge(across), 0), width) for edge in (min, max))
            top, bottom = (min(max(edge(down), 0), height) for edge in (min, max))
            if right > left and bottom > top:
                yield [float(left), float(top), float(right), float(bottom)], thing["label"]
