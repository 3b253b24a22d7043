"""The sections on detectors: classes, training curves, and the faults that they are surest of, as pictures."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from pydantic import BaseModel, Field

from evenhand.errors import UserError
from evenhand.report.charts import class_plots, plots
from evenhand.report.classes import class_table, each_set_of_classes
from evenhand.report.curves import REPEATED, run_lines
from evenhand.report.markup import joined, parts
from evenhand.report.records import NOT_RUN, ClassData, RunGroup
from evenhand.report.sections import Sections
from evenhand.tasks.detect import DETECT

(AP,) = DETECT.per_class
CURVES = {"train": ("loss", "image", "instance"), "val": ("map50",)}
TITLES = {"false_alarms": "Surest false alarms", "misses": "Objects that were missed"}
MOST = 12  # pictures of each kind


class Fault(BaseModel):
    name: str
    of: str = Field(alias="class")
    box: list[float]
    score: float
    picture: str = ""


class Parts(BaseModel):
    faults: dict[str, list[Fault]] = {}


def classes_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    return each_set_of_classes(groups, lambda members, classes: _precisions(members, classes, colours))


def _precisions(members: Sequence[RunGroup], classes: ClassData, colours: Mapping[str, str]) -> Markup:
    series = {g.name: found for g in members if (found := g.parts("ap50"))}
    if not series:
        return parts.missing(f"Average precision per class: {NOT_RUN}.")
    drawing = class_plots.plot_scores(classes, AP, series, colours)
    caption = "Average precision per class at an overlap of one half, mean over seeds."
    return parts.figure(drawing, caption) + class_table(members, "Average precision per class as a table")


def curves_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    pairs = [(kind, key) for kind, keys in CURVES.items() for key in keys]
    found = {f"{kind} {key}": run_lines(groups, kind, key, "epoch") for kind, key in pairs}
    panels = {title: lines for title, lines in found.items() if lines}
    return parts.figure(plots.plot_curves(panels, colours, "epoch"), REPEATED) if panels else parts.missing()


def _inside(folder: Path, name: str) -> Path:
    """A file of the run's; what others hand over must not bring the reader's own files into a page."""
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise UserError(f"{folder / 'measure.json'} names a picture outside its folder, {name}: measure the run again")
    return file


def faults_section(groups: Sequence[RunGroup], _colours: Mapping[str, str]) -> Markup:
    """Of each group's first measured run."""
    found: list[Markup] = []
    for group in groups:
        run = next(iter(group.measured), None)
        if run is None:
            continue
        shown = []
        for kind, title in TITLES.items():
            faults = [f for f in (run.measure or {}).get("faults", {}).get(kind, []) if f.get("picture")][:MOST]
            files = [(f, _inside(run.folder, f["picture"])) for f in faults]
            tiles = [parts.picture(_uri(file.read_bytes()), _said(f)) for f, file in files if file.is_file()]
            if tiles:
                shown.append(parts.heading(title) + parts.side_by_side(joined(tiles)))
        if shown:
            found.append(parts.fold(group.name, joined(shown), not found))
    return joined(found) or parts.missing(f"{NOT_RUN}; evenhand measure RUN draws them while the images are there.")


def _said(fault: Mapping[str, object]) -> str:
    return f"{fault['class']} {fault['score']:.2f}, {fault['name']}"


def _uri(data: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(data).decode()


SECTIONS = Sections(
    illustrated={
        "Each class": classes_section,
        "Training": curves_section,
        "Faults": faults_section,
    },
    parts=Parts,
    classes="Average precision of each class",
)
