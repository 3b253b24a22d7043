"""The files that detection sets come as: Pascal VOC, COCO, Cityscapes, and a folder of images without any."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from evenhand.data.sources.cityscapes import list_cityscapes
from evenhand.data.sources.paths import encodable, few, folders_in, images_in, read_text
from evenhand.data.sources.scenes import Annotated, Listed, known_classes
from evenhand.data.stream import Streams
from evenhand.errors import UserError

SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
SOUGHT = 20  # images by which the folder of all is found
LAYOUTS = ("VOC", "Cityscapes", "COCO", "images")
EXPECTED = "VOC's folders (Annotations, JPEGImages), a COCO .json, or Cityscapes' (leftImg8bit, gtFine)"
IN_COCO = (b'"images"', b'"categories"', b'"bbox"')


class Reading(NamedTuple):
    """What a recipe says of how scenes are read."""

    root: Path | None = None  # of a COCO file's images
    fog: float | None = None  # of Foggy Cityscapes
    whole: bool = False  # VOC's trainval trains, where there is one, and nothing validates


PLAIN = Reading()


def read_scenes(place: Path, how: Reading = PLAIN, *, mode: str = "RGB") -> Streams:
    """Streams of whatever ``place`` is; "unlabelled" of a folder with images alone."""
    return {split: part.stream(mode) for split, part in list_scenes(place, how).items()}


def list_scenes(place: Path, how: Reading = PLAIN) -> dict[str, Listed]:
    """What ``read_scenes`` reads, with all its faults."""
    if place.suffix.lower() == ".json":
        return {"all": list_coco(place, how.root)}
    if not place.is_dir():
        raise UserError(f"'{place}' is neither a folder nor a COCO file (.json); check the path")
    kind = layout(place)
    if kind == "VOC":
        return list_voc(place, whole=how.whole)
    if kind == "Cityscapes":
        return list_cityscapes(place, how.fog)
    if kind == "COCO":
        return {split: list_coco(file, how.root) for split, file in _coco_files(place).items()}
    files = images_in(place)
    if not files:
        raise UserError(f"'{place}' has neither images nor annotations; give {EXPECTED}, or images")
    rows = [Annotated(file, 0, 0, [], [], []) for file in files]
    return {"unlabelled": Listed(rows, (), place, place.name, labelled=False)}


def list_domains(place: Path, how: Reading = PLAIN) -> dict[str, Listed]:
    """Scenes at ``place``, or as "domain" or "domain/split" those of the folders in it; nothing if there are no boxes.

    Domains with boxes come first.
    """
    if holds_scenes(place):
        return list_scenes(place, how)
    found = {}
    for name in domains_in(place):
        for split, part in list_scenes(place / name, how).items():
            found[name if split in ("all", "unlabelled") else f"{name}/{split}"] = part
    return found


def domains_in(place: Path) -> list[str]:
    """Folders of a folder without boxes of its own, if any has some: those with boxes first, then those of images."""
    inside = [] if not place.is_dir() or holds_scenes(place) else folders_in(place)
    labelled = [folder for folder in inside if holds_scenes(folder)]
    others = [folder for folder in inside if folder not in labelled and images_in(folder)] if labelled else []
    return [folder.name for folder in (*labelled, *others)]


def holds_scenes(place: Path) -> bool:
    """Whether there are boxes, not images of classes; a .json beside class folders may be anything."""
    kind = layout(place)
    if not place.is_dir() or kind in ("VOC", "Cityscapes"):
        return kind != "images"
    notes = (file.read_bytes() for files in _json_files(place) for file in files)
    return any(all(word in content for word in IN_COCO) for content in notes)


def layout(place: Path) -> str:
    """One of ``LAYOUTS``, by the names of what is there."""
    if (place / "Annotations").is_dir() and (place / "JPEGImages").is_dir():
        return "VOC"
    if (place / "gtFine").is_dir() and (place / "leftImg8bit").is_dir():
        return "Cityscapes"
    coco = any(_json_files(place)) if place.is_dir() else place.suffix.lower() == ".json"
    return "COCO" if coco else "images"


def _json_files(place: Path) -> tuple[list[Path], list[Path]]:
    """Those of ``place`` and its ``annotations``, and those of its folders of splits, beside their images."""
    beside = [file for folder in (place, place / "annotations") for file in sorted(folder.glob("*.json"))]
    folders = [folder for folder in folders_in(place) if _split(folder.name)]
    return beside, [file for folder in folders for file in sorted(folder.glob("*.json"))]


def _coco_files(place: Path) -> dict[str, Path]:
    """The file of each split, by its name or its folder's; one of another name is "all"."""
    beside, inside = _json_files(place)
    found = [(split, file) for file in beside if (split := _split(file.stem))]
    found = found or [(_split(file.parent.name), file) for file in inside]
    if not found and len(beside) > 1:
        names = few(file.name for file in beside)
        raise UserError(f"'{place}': {names} could all be meant; name them train, val, test .json, or give one of them")
    if not found:
        return {"all": beside[0]} if beside else {}
    for split in dict(found):
        if len(same := [file for which, file in found if which == split]) > 1:
            names = few(file.relative_to(place).as_posix() for file in same)
            raise UserError(
                f"'{place}' has {len(same)} .json files of '{split}' ({names}); keep the one with its boxes"
            )
    if unused := [file.name for file in beside if file not in dict(found).values()]:
        warnings.warn(f"'{place}': not named after a split, so not used: {few(unused)}", stacklevel=2)
    return dict(found)


def _split(name: str) -> str:
    """The split that a file or folder is named after, such as valid, instances_train2017 or test-new."""
    if name.startswith("test-"):
        return name
    return SPLIT_NAMES.get(re.sub(r"^instances_|\d{4}$", "", name.lower()), "")


def list_voc(folder: Path, *, whole: bool = False) -> dict[str, Listed]:
    """One part for each list in ImageSets/Main (train, val, test), or "all"; trainval trains if ``whole``, or with what
    else there is.
    """
    lists = [folder / "ImageSets" / "Main" / f"{split}.txt" for split in ("train", "val", "trainval", "test")]
    chosen = {file.stem: [line.split()[0] for line in read_text(file).splitlines() if line.split()]
              for file in lists if file.is_file()}  # fmt: skip
    both = chosen.pop("trainval", None)
    if both is not None and whole:
        chosen.pop("val", None)
    if both is not None and not {"train", "val"} <= chosen.keys():
        held = {*chosen.get("val", ())}
        chosen["train"] = [name for name in both if name not in held]
    if not chosen:
        chosen = {"all": sorted(file.stem for file in (folder / "Annotations").glob("*.xml"))}
    rows: dict[str, list[Annotated]] = {split: [] for split in chosen}
    faults: dict[str, list[str]] = {split: [] for split in chosen}
    for split, names in chosen.items():
        for name in names:
            try:
                rows[split].append(_voc(folder, name))
            except UserError as error:
                faults[split].append(str(error))
    classes = known_classes(row for part in rows.values() for row in part)
    return {split: Listed(part, classes, folder, split, tuple(faults[split])) for split, part in rows.items()}


def _voc(folder: Path, name: str) -> Annotated:
    row = voc_note(folder / "Annotations" / f"{name}.xml", folder / "JPEGImages")
    # files are renamed more often than what stands in them
    return row if row.path.is_file() else row._replace(path=folder / "JPEGImages" / f"{name}.jpg")


def voc_note(file: Path, images: Path) -> Annotated:
    """One annotation. VOC counts pixels from 1 and includes the last: left and top move by one."""
    try:
        tree = ElementTree.fromstring(read_text(file))
        size = tree.find("size")
        assert size is not None
        width, height = (int(size.findtext(key, "")) for key in ("width", "height"))
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
    picture = images / (tree.findtext("filename") or f"{file.stem}.jpg")
    return Annotated(picture, width, height, boxes, labels, optional)


class Coco(NamedTuple):
    """A COCO file: where its images lie, each as the file describes it, names of categories by id, and the boxes."""

    folder: Path
    images: dict[int, dict[str, Any]]
    categories: dict[int, str]
    notes: list[dict[str, Any]]

    def path(self, image: int) -> Path:
        return self.folder / self.images[image]["file_name"]


def read_coco(file: Path, root: Path | None = None) -> Coco:
    """A COCO file, and where its images are."""
    with _as_coco(file):
        content = json.loads(read_text(file))
        images = {int(image["id"]): {**image, "file_name": str(image["file_name"])} for image in content["images"]}
        categories = {int(kind["id"]): encodable(str(kind["name"])) for kind in content["categories"]}
        names = [image["file_name"] for image in images.values()]
        return Coco(_image_folder(file, names, root), images, categories, content.get("annotations", []))


def _image_folder(file: Path, names: Sequence[str], root: Path | None) -> Path:
    """``root``, the folder ``images`` or the file's own; or one in them of its name, such as train2017."""
    beside = file.parent
    above = [beside.parent / "images", beside.parent] if beside.name == "annotations" else []
    bases = [root] if root else [beside / "images", beside, *above]
    places = [base / name for base in bases for name in ("", file.stem, file.stem.removeprefix("instances_"))]
    some = names[:SOUGHT]
    default = root or next((p for p in (beside / "images", beside / file.stem) if p.is_dir()), beside)
    return max([default, *places], key=lambda place: sum((place / name).is_file() for name in some))


@contextmanager
def _as_coco(file: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"'{file}' is not a COCO file ({type(error).__name__}: {error}); see docs/detection.md"
        ) from error


def list_coco(file: Path, root: Path | None = None) -> Listed:
    """Boxes of categories or images that the file does not list are faults, and left out."""
    found = read_coco(file, root)
    names, rows, faults = found.categories, [], []
    held: defaultdict[int, list[Any]] = defaultdict(list)
    with _as_coco(file):
        unknown = [kind for note in found.notes if (kind := int(note["category_id"])) not in names]
        strange = [at for note in found.notes if (at := int(note["image_id"])) not in found.images]
        for note in found.notes:
            if int(note["category_id"]) in names:
                held[int(note["image_id"])].append(note)
        for at, image in found.images.items():
            boxes = [_corners(note["bbox"]) for note in held[at]]
            labels = [names[int(note["category_id"])] for note in held[at]]
            crowds = [bool(note.get("iscrowd", 0)) for note in held[at]]
            rows.append(Annotated(found.path(at), int(image["width"]), int(image["height"]), boxes, labels, crowds))
    for name, count in Counter(names.values()).items():
        if count > 1:
            ids = ", ".join(str(key) for key in sorted(names) if names[key] == name)
            faults.append(f"'{file}': categories {ids} have one name, '{name}'; rename or join them")
    if unknown:
        several = f" ({len(unknown)} boxes of {len(set(unknown))} such ids)" if len(unknown) > 1 else ""
        told = f"category id {min(unknown)} is not among its categories{several}; add it, or drop its boxes"
        faults.append(f"'{file}': {told}")
    if strange:
        told = f"annotations speak of image id {min(strange)}, which it does not list; correct it"
        faults.append(f"'{file}': {told}")
    classes = dict.fromkeys(names[key] for key in sorted(names))
    return Listed(rows, tuple(classes), found.folder, file.stem, tuple(faults))


def _corners(box: list[float]) -> list[float]:
    left, top, width, height = map(float, box)
    return [left, top, left + width, top + height]
