"""The files that detection sets come as: Pascal VOC, COCO, Cityscapes, and a folder of images without any."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from evenhand.data.sources.cityscapes import list_cityscapes
from evenhand.data.sources.paths import folders_in, images_in, read_text
from evenhand.data.sources.scenes import Annotated, Listed, known_classes
from evenhand.data.stream import Streams
from evenhand.errors import UserError

SPLIT_FOLDERS = {"train": "train", "val": "val", "valid": "val", "test": "test"}
IN_COCO = (b'"images"', b'"categories"', b'"bbox"')


def read_scenes(place: Path, *, root: Path | None = None, mode: str = "RGB") -> Streams:
    """Streams of whatever ``place`` is; "unlabelled" of a folder with images alone."""
    return {split: part.stream(mode) for split, part in list_scenes(place, root=root).items()}


def list_scenes(place: Path, *, root: Path | None = None) -> dict[str, Listed]:
    """What ``read_scenes`` reads, with all its faults."""
    if place.suffix.lower() == ".json":
        return {"all": list_coco(place, root)}
    if not place.is_dir():
        raise UserError(f"'{place}' is neither a folder nor a COCO file (.json); check the path")
    if _is_voc(place):
        return list_voc(place)
    if _is_cityscapes(place):
        return list_cityscapes(place)
    if found := sorted(place.glob("*.json")):
        return {file.stem: list_coco(file, root) for file in found}
    if found := _split_files(place):
        folders = [file.parent for file in found]
        if twice := next((folder for folder in folders if folders.count(folder) > 1), None):
            raise UserError(f"'{twice}' has {folders.count(twice)} .json files; keep the one with its boxes")
        return {SPLIT_FOLDERS[file.parent.name]: list_coco(file, root) for file in found}
    files = images_in(place)
    if not files:
        raise UserError(
            f"'{place}' has neither images nor annotations; give VOC's folders (Annotations, JPEGImages), a COCO "
            ".json, Cityscapes' (leftImg8bit, gtFine), or images"
        )
    rows = [Annotated(file, 0, 0, [], [], []) for file in files]
    return {"unlabelled": Listed(rows, (), place, place.name, labelled=False)}


def list_domains(place: Path, *, root: Path | None = None) -> dict[str, Listed]:
    """Scenes at ``place``, or as "domain" or "domain/split" those of the folders in it; nothing if there are no boxes.

    Domains with boxes come first.
    """
    if holds_scenes(place):
        return list_scenes(place, root=root)
    inside = folders_in(place) if place.is_dir() else []
    labelled = [folder for folder in inside if holds_scenes(folder)]
    others = [folder for folder in inside if folder not in labelled and images_in(folder)] if labelled else []
    found = {}
    for folder in (*labelled, *others):
        for split, part in list_scenes(folder, root=root).items():
            found[folder.name if split in ("all", "unlabelled") else f"{folder.name}/{split}"] = part
    return found


def holds_scenes(place: Path) -> bool:
    """Whether there are boxes, not images of classes; a .json beside class folders may be anything."""
    if not place.is_dir():
        return place.suffix.lower() == ".json"
    if _is_voc(place) or _is_cityscapes(place):
        return True
    notes = (file.read_bytes() for file in (*place.glob("*.json"), *_split_files(place)))
    return any(all(word in content for word in IN_COCO) for content in notes)


def _is_voc(place: Path) -> bool:
    return (place / "Annotations").is_dir() and (place / "JPEGImages").is_dir()


def _is_cityscapes(place: Path) -> bool:
    return (place / "gtFine").is_dir() and (place / "leftImg8bit").is_dir()


def _split_files(place: Path) -> list[Path]:
    """``train/*.json``, ``valid/*.json``, ``test/*.json``: one in each folder, beside its images."""
    inside = [folder for folder in folders_in(place) if folder.name in SPLIT_FOLDERS]
    return [file for folder in inside for file in sorted(folder.glob("*.json"))]


def list_voc(folder: Path) -> dict[str, Listed]:
    """One part for each list in ImageSets/Main (train, val, trainval, test), or "all"."""
    lists = [folder / "ImageSets" / "Main" / f"{split}.txt" for split in ("train", "val", "trainval", "test")]
    chosen = {file.stem: [line.split()[0] for line in read_text(file).splitlines() if line.split()]
              for file in lists if file.is_file()}  # fmt: skip
    if "train" in chosen and "val" in chosen:
        chosen.pop("trainval", None)
    elif "trainval" in chosen:
        chosen["train"] = chosen.pop("trainval")
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
    """A COCO file; its images lie in ``root``, in a folder ``images`` or of its own name beside it, or beside it."""
    folder = root or next((p for p in (file.parent / "images", file.parent / file.stem) if p.is_dir()), file.parent)
    with _as_coco(file):
        content = json.loads(read_text(file))
        images = {int(image["id"]): {**image, "file_name": str(image["file_name"])} for image in content["images"]}
        categories = {int(kind["id"]): str(kind["name"]) for kind in content["categories"]}
        return Coco(folder, images, categories, content.get("annotations", []))


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
