"""Real and drawn images of each class side by side, cut from the runs' ``sheet.png``."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from evenhand.errors import UserError
from evenhand.report import figures
from evenhand.report.records import NOT_RUN, RunGroup, RunRecord

ROOM = 940  # pixels of the page for a row's images
SEEN = 56  # pixels an image is enlarged to at most


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


def pictures_section(groups: Sequence[RunGroup]) -> str:
    """For each set of classes a row per class: real images, then those of every group's first run that has some."""
    shown: dict[str, list[tuple[RunGroup, RunRecord, Sheet]]] = {}
    for group in groups:
        found = next(((r, s) for r in group.measured if (s := load_sheet(r.folder)) is not None), None)
        if found is not None:
            key = json.dumps([group.task, found[1].labels, found[1].block])
            shown.setdefault(key, []).append((group, *found))
    if not shown:
        return f'<p class="none">{NOT_RUN}; evenhand measure RUN writes sheet.png into the run’s folder.</p>'
    galleries = {", ".join(group.name for group, _, _ in members): _gallery(members) for members in shown.values()}
    if len(galleries) == 1:
        return "".join(galleries.values())
    return "".join(figures.details(names, text, opened=True) for names, text in galleries.items())


def _gallery(members: Sequence[tuple[RunGroup, RunRecord, Sheet]]) -> str:
    measure, first = members[0][0].measure, members[0][2]
    zoom = min(SEEN / first.tile, ROOM / (1 + len(members)) / first.block[0])
    zoom = int(zoom) if zoom >= 1 else zoom  # whole pixels, while they are enlarged
    names = {-1: "any class", **dict(enumerate(measure["classes"]))}
    heads = ["real", *(f"{group.name}, {record.label}" for group, record, _ in members)]
    rows = []
    for i, k in enumerate(first.labels):
        count = f"{measure['train_counts'][k]:,} training images" if k >= 0 else ""
        cells = [_image(first, k, 0, f"real images of {names[k]}", zoom)]
        for group, _, sheet in members:
            alt = f"{names[k]} as drawn by {group.name}"
            cells.append(_image(sheet, k, 1, alt, zoom) if sheet.drawn[i] else '<span class="none">none found</span>')
        head = f'<th scope="row">{html.escape(names[k])}<br><span class="sd">{count}</span></th>'
        rows.append(f"<tr>{head}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    top = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads)
    all_classes = first.labels == [-1] or len(first.labels) == len(measure["classes"])
    some = "" if all_classes else f", {len(first.labels)} of {len(measure['classes'])} classes"
    caption = f"Real images of the {measure.get('split')} split beside drawn ones, none picked{some}."
    return (
        f'<div class="scroll" tabindex="0"><table class="gallery"><caption>{html.escape(caption)}</caption>'
        f"<thead><tr><th></th>{top}</tr></thead>\n<tbody>{chr(10).join(rows)}</tbody></table></div>"
    )


def _image(sheet: Sheet, label: int, side: int, alt: str, zoom: float) -> str:
    data = base64.b64encode(sheet.cut(label, side)).decode()
    size = f'width="{zoom * sheet.block[0]:.0f}" height="{zoom * sheet.block[1]:.0f}"'
    sharp = ' class="pixels"' if zoom >= 1 else ""
    return f'<img{sharp} {size} alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'
