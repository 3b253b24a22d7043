"""Real and drawn images of each class side by side, cut from the runs' ``sheet.png``."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from PIL import Image

from evenhand.errors import UserError
from evenhand.report.markup import joined, parts
from evenhand.report.records import NOT_RUN, RunGroup, RunRecord

ROOM = 940  # pixels of the page for a row's images
SEEN = 96  # pixels an image is enlarged to at most
LEAST = 2.0  # times that a small image is enlarged, though its row then scrolls
SMALL = 48  # pixels


@dataclass(frozen=True)
class Sheet:
    """Blocks of images in two columns, real and drawn, with a row for each label (-1: of any class)."""

    picture: Image.Image
    labels: list[int]
    drawn: list[int]  # images there are of each label
    block: tuple[int, int]  # pixels across and down
    step: tuple[int, int]
    tile: int

    def cut(self, label: int, side: int) -> bytes:
        """One block as PNG; ``side`` 0: real, 1: drawn."""
        left, top = side * self.step[0], self.labels.index(label) * self.step[1]
        out = io.BytesIO()
        self.picture.crop((left, top, left + self.block[0], top + self.block[1])).save(out, "png", optimize=True)
        return out.getvalue()


def load_sheet(folder: Path) -> Sheet | None:
    """As ``measure`` writes it; None if it did not."""
    path = folder / "sheet.png"
    if not path.exists():
        return None
    try:
        with Image.open(path) as picture:
            picture.load()
            facts = json.loads(picture.info["evenhand"])
            (a, b), (c, d) = facts["block"], facts["step"]
            labels, drawn = [int(k) for k in facts["labels"]], [int(n) for n in facts["drawn"]]
            return Sheet(picture, labels, drawn, (int(a), int(b)), (int(c), int(d)), int(facts["tile"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}); measure the run again") from error


def pictures_section(groups: Sequence[RunGroup], _colours: Mapping[str, str]) -> Markup:
    """Each class as drawn, then where there are some the latents that it is drawn from."""
    return _galleries(groups) + joined(filter(None, map(_plane, groups)))


def _plane(group: RunGroup) -> Markup | None:
    """``latents.png`` of the group's first run that has one."""
    record = next((r for r in group.measured if (r.folder / "latents.png").is_file()), None)
    if record is None:
        return None
    path, out = record.folder / "latents.png", io.BytesIO()
    try:
        with Image.open(path) as picture:
            picture.convert("RGB").save(out, "png", optimize=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); measure the run again") from error
    shares = (record.measure or {}).get("z_sensitivity")
    least = min(zip(shares, group.classes[0], strict=True)) if shares else None
    said = f" The noise z matters least to {least[1]}: {least[0]:.2f} of all styles' variance." if least else ""
    whose = f"{group.name}, {record.label}"
    caption = (
        f"Styles of {whose}: the mapping network's latents in the plane of their largest variance. A class that draws "
        f"one image is a point; classes that are confused lie on each other.{said}"
    )
    return parts.contact_sheet(base64.b64encode(out.getvalue()).decode(), f"latents of {whose}", caption)


def _galleries(groups: Sequence[RunGroup]) -> Markup:
    """For each set of classes a row per class: real images, then those of every group's first run that has some."""
    shown: dict[str, list[tuple[RunGroup, RunRecord, Sheet]]] = {}
    for group in groups:
        found = next(((r, s) for r in group.measured if (s := load_sheet(r.folder)) is not None), None)
        if found is not None:
            key = json.dumps([group.comparable_key, found[1].labels, found[1].block])
            shown.setdefault(key, []).append((group, *found))
    if not shown:
        return parts.missing(f"{NOT_RUN}; evenhand measure RUN writes sheet.png into the run’s folder.")
    galleries = {", ".join(group.name for group, _, _ in members): _gallery(members) for members in shown.values()}
    if len(galleries) == 1:
        return joined(galleries.values())
    return joined(parts.fold(names, text, True) for names, text in galleries.items())


def _gallery(members: Sequence[tuple[RunGroup, RunRecord, Sheet]]) -> Markup:
    group, _, first = members[0]
    classes, counts, _ = group.classes
    zoom = min(SEEN / first.tile, ROOM / (1 + len(members)) / first.block[0])
    zoom = max(zoom, LEAST) if first.tile <= SMALL else zoom
    zoom = int(zoom) if zoom >= 1 else zoom  # whole pixels, while they are enlarged
    rows = []
    for i, k in enumerate(first.labels):
        name = classes[k] if k >= 0 else "any class"
        images: list[dict[str, Any] | None] = [_image(first, k, 0, f"real images of {name}", zoom)]
        for group, _, sheet in members:
            images.append(_image(sheet, k, 1, f"{name} as drawn by {group.name}", zoom) if sheet.drawn[i] else None)
        count = f"{counts[k]:,} training images" if k >= 0 else ""
        rows.append({"name": name, "count": count, "images": images})
    all_classes = first.labels == [-1] or len(first.labels) == len(classes)
    some = "" if all_classes else f", {len(first.labels)} of {len(classes)} classes"
    caption = (
        f"Real images of the {group.measure.get('split')} split beside drawn ones, none picked{some}; click to enlarge."
    )
    heads = ["real", *(f"{group.name}, {record.label}" for group, record, _ in members)]
    return parts.gallery(caption, heads, rows)


def _image(sheet: Sheet, label: int, side: int, alt: str, zoom: float) -> dict[str, Any]:
    width, height = (f"{zoom * pixels:.0f}" for pixels in sheet.block)
    data = base64.b64encode(sheet.cut(label, side)).decode()
    return {"alt": alt, "width": width, "height": height, "sharp": zoom >= 1, "data": data}
