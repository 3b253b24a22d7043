"""What ``measure`` kept to be looked at: pictures or texts of single samples, and a gallery of the surest mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from markupsafe import Markup
from pydantic import BaseModel, Field

from evenhand.errors import UserError
from evenhand.report.markup import joined, parts
from evenhand.report.reading import AGAIN, read
from evenhand.report.records import NOT_RUN, RunGroup, RunRecord

ROOM = 2_400_000  # bytes of pictures that all groups of a page share
SUREST = 24
OPENED = 2  # groups whose pictures are not folded away
ENLARGED = 96  # pixels that a smaller picture is drawn at, about


class Example(BaseModel):
    """A row of examples.json; classes are numbers."""

    name: str
    truth: int = Field(ge=0)
    predicted: int = Field(ge=0)
    confidence: float = Field(ge=0, le=1)
    second: int = Field(ge=0)
    second_confidence: float = Field(ge=0, le=1)
    kind: Literal["png", "jpeg"] | None = None
    width: int = Field(0, ge=0, le=512)
    height: int = Field(0, ge=0, le=512)
    data: Annotated[str, Field(pattern="^[A-Za-z0-9+/=]*$")] = ""
    text: str = ""


class Examples(BaseModel):
    shown: list[Example]


def examples_of(record: RunRecord, room: int = ROOM) -> list[dict[str, Any]]:
    """The rows there is room for, the surest mistakes first; none without the file."""
    measure = record.measure or {}
    own = record.folder / f"examples-{measure.get('split')}.json"  # of a split that is not the final one
    path = own if own.exists() else record.folder / "examples.json"
    found = (read(path, Examples, AGAIN) or {"shown": []})["shown"]
    size = len(measure.get("classes", ()))
    if any(max(row[key] for key in ("truth", "predicted", "second")) >= size for row in found):
        raise UserError(f"{path} names a class beyond the {size} there are; {AGAIN}")
    kept, spent = [], 0
    for row in found:
        spent += len(row.get("data", "")) + len(row.get("text", ""))
        if spent <= room:
            kept.append(row)
    return kept


def shown_of(group: RunGroup, sharing: int) -> tuple[RunRecord | None, list[dict[str, Any]]]:
    """The group's first run that has examples, and those that fit when so many groups share the page."""
    for record in group.measured:
        if found := examples_of(record, ROOM // max(1, sharing)):
            return record, found
    return None, []


def card(row: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """One example as the templates take it."""
    largest = max(row.get("width", 0), row.get("height", 0), 1)
    zoom = max(1, ENLARGED // largest)  # whole pixels
    second = f"{classes[row['second']]} {100 * row['second_confidence']:.1f} %"
    return {
        "name": row["name"], "truth": classes[row["truth"]], "predicted": classes[row["predicted"]],
        "sure": f"{100 * row['confidence']:.1f} %", "second": second, "kind": row.get("kind"),
        "data": row.get("data", ""), "text": row.get("text", ""), "sharp": zoom > 1,
        "width": zoom * row.get("width", 0), "height": zoom * row.get("height", 0),
    }  # fmt: skip


def mistakes_section(groups: Sequence[RunGroup], _colours: Mapping[str, str]) -> Markup:
    """The mistakes that a network was surest of, with their names: wrong labels are often among them."""
    found = []
    for i, group in enumerate(groups):
        record, rows = shown_of(group, len(groups))
        wrong = sorted((r for r in rows if r["truth"] != r["predicted"]), key=lambda r: -r["confidence"])[:SUREST]
        if record is None:
            inside = parts.missing(f"{NOT_RUN}; evenhand measure RUN writes examples.json into the run’s folder.")
        else:
            place = f"{record.name}, {record.label}" if len(group.measured) > 1 else record.name
            inside = parts.cards([card(row, group.classes[0]) for row in wrong])
            inside += parts.note(
                f"{len(wrong)} of {place}, the surest first, as the network sees them. Every prediction by name is in "
                f"{record.folder.name}/predictions.csv."
                if wrong
                else f"{place} made no mistake."
            )
        found.append(parts.fold(group.name, inside, i < OPENED) if len(groups) > 1 else inside)
    return joined(found)
