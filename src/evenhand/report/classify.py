"""The sections on classifiers: classes, training, experts, self-training, pairs, confusions, calibration, domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from pydantic import BaseModel, model_validator

from evenhand.report import adaptation, advice, experts, selftraining
from evenhand.report import selmix as pairs
from evenhand.report.adaptation import Domains
from evenhand.report.charts import class_plots, plots
from evenhand.report.classes import class_table, each_set_of_classes
from evenhand.report.confusions import confusions_section
from evenhand.report.curves import REPEATED, run_lines
from evenhand.report.examples import mistakes_section
from evenhand.report.experts import Expert
from evenhand.report.markup import parts
from evenhand.report.records import NOT_RUN, ClassData, RunGroup
from evenhand.report.scores import FEW, class_scores, score_table, with_counts
from evenhand.report.sections import Sections
from evenhand.report.table import Cell, Table
from evenhand.report.tables import number_cell, per_class_table, said
from evenhand.tasks.classify import CLASSIFY

(RECALL,) = CLASSIFY.per_class
ROWS, LEAST, SCREEN = 1000, 50, 100  # of all class tables of a page, of one of them, in the terminal
CURVES = {"train": ("loss",), "val": ("mean_recall", "min_recall", "accuracy", "ece", "loss")}


def classes_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """Counts and recalls, once for each set of training data among the runs."""
    return each_set_of_classes(groups, lambda members, classes: _recalls(members, classes, colours))


def _recalls(members: Sequence[RunGroup], classes: ClassData, colours: Mapping[str, str]) -> Markup:
    series = {g.name: recalls for g in members if (recalls := g.parts("recall"))}
    if not series:
        return parts.missing(f"Recall per class: {NOT_RUN}.")
    caption = "Recall per class, mean over seeds."
    scores = {g.name: class_scores(g) for g in members if g.name in series}
    if len(classes[0]) <= class_plots.CLASSES_NAMED:
        caption = "Recall per class: mean over seeds, bars from lowest to highest. Hover for the numbers."
        if any(scores.values()):
            caption += f" Thin lines: what so few samples allow (95 %). Hollow: fewer than {FEW} samples."
    ranges = {name: [score.span("recall") for score in found] for name, found in scores.items() if found}
    doubtful = {name: {k for k, score in enumerate(found) if score.samples < FEW} for name, found in scores.items()}
    drawing = class_plots.plot_scores(classes, RECALL, series, colours, doubtful, ranges)
    return parts.figure(drawing, caption) + _tables(members, classes)


def _tables(members: Sequence[RunGroup], classes: ClassData) -> Markup:
    """The recalls of several groups beside each other, then all numbers of each group."""
    if not any(class_scores(g) for g in members):
        return class_table(members, "Recall per class as a table")
    text = Markup()
    if len(members) > 1 and len(classes[0]) <= ROWS:
        records = [r for g in members for r in g.records]
        compared = with_counts(per_class_table(records), [g for g in members if g.measured])
        text += parts.fold("Recalls side by side", parts.table(compared), len(classes[0]) <= 12)
    for group in members:
        if (table := score_table(group, most=max(LEAST, ROWS // len(members)))).rows:
            title = f"Recall, precision and F1 of each class: {group.name}"
            text += parts.fold(title, parts.table(table), len(members) == 1)
    return text


def terminal_table(groups: Sequence[RunGroup]) -> Table:
    """All numbers of one group, or the recalls of several."""
    table = score_table(groups[0], wide=False, most=SCREEN) if len(groups) == 1 and groups[0].measured else None
    records = [r for g in groups for r in g.records]
    return table if table and table.rows else with_counts(per_class_table(records), [g for g in groups if g.measured])


def curves_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """Training loss, then what was evaluated on the validation split."""
    pairs = [(kind, key) for kind, keys in CURVES.items() for key in keys]
    found = {f"{kind} {key.replace('_', ' ')}": run_lines(groups, kind, key, "epoch") for kind, key in pairs}
    panels = {title: lines for title, lines in found.items() if lines}
    return parts.figure(plots.plot_curves(panels, colours, "epoch"), REPEATED) if panels else parts.missing()


def calibration_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """Reliability, the bins of a group's seeds pooled by their counts."""
    series = {}
    for group in groups:
        bins = group.parts("reliability")
        if bins and len({len(b["count"]) for b in bins}) == 1:
            counts = np.array([b["count"] for b in bins], dtype=float)  # (seeds, bins)
            pooled = {"count": counts.sum(0)}
            for key in ("confidence", "accuracy"):
                values = np.nan_to_num(np.array([b[key] for b in bins], dtype=float))
                pooled[key] = (values * counts).sum(0) / np.maximum(counts.sum(0), 1)
            series[group.name] = pooled
    caption = "Below the diagonal: surer than right. The summary has the expected calibration error (ECE)."
    if scaled := [text for group in groups if (text := _temperature(group))]:
        caption += f" Divided by a temperature that was fitted on validation: {'; '.join(scaled)}."
    return parts.figure(plots.plot_reliability(series, colours), caption) if series else parts.missing()


def _temperature(group: RunGroup) -> str:
    """``ce T = 1.82, ECE 12.3 % → 2.1 %``, means over seeds; empty where none was fitted."""
    fitted = [part["value"] for part in group.parts("temperature")]
    before, after = (said(group, CLASSIFY.metric(key)) for key in ("ece", "ece_scaled"))
    return f"{group.name} T = {np.mean(fitted):.2f}, ECE {before} → {after}" if fitted and before and after else ""


def numbers_section(groups: Sequence[RunGroup], _colours: Mapping[str, str]) -> Markup:
    """What is measured besides the summary's columns, such as F1 and coverage."""
    known = [m for m in CLASSIFY.metrics if not m.shown and any(g.values(m) for g in groups)]
    if not known:
        return Markup()
    rows = tuple((Cell(m.label), *(number_cell(g.values(m), m.digits) for g in groups)) for m in known)
    caption = "All other numbers that a checkpoint can be selected by or a recipe can expect"
    table = Table(caption, ("number", *(g.name for g in groups)), rows, range(1, 1 + len(groups)))
    return parts.fold(caption, parts.table(table), False)


class Temperature(BaseModel):
    value: float
    ece: float


class Reliability(BaseModel):
    count: list[float]
    confidence: list[float | None]
    accuracy: list[float | None]

    @model_validator(mode="after")
    def _as_many_of_each(self) -> Reliability:
        if not len(self.count) == len(self.confidence) == len(self.accuracy):
            raise ValueError("count, confidence and accuracy differ in length")
        return self


def cautions(groups: Sequence[RunGroup]) -> list[str]:
    """Classes that the split does not have, and what goes wrong with adaptation."""
    told = []
    for group in groups:
        absent, classes = group.measure.get("absent") or (), group.measure["classes"]
        names = [str(classes[k]) for k in absent if 0 <= k < len(classes)]
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            where = f"the {group.measure.get('split', '')} split has no sample of {', '.join(names[:5])}{more}"
            told.append(f"{group.name}: {where}; means and worst recall are over the other classes.")
    return told + adaptation.troubles(groups)


class Parts(BaseModel):
    absent: list[int] = []
    reliability: Reliability | None = None
    temperature: Temperature | None = None
    adaptation: Domains | None = None
    selmix: pairs.Looks | None = None
    experts: dict[str, Expert] | None = None


SECTIONS = Sections(
    illustrated={
        "Classes": classes_section,
        "Surest mistakes": mistakes_section,
        "Confusions": confusions_section,
        "Training curves": curves_section,
        "Experts": experts.section,
        "Self-training": selftraining.section,
        "Selective mixup": pairs.section,
        "Calibration": calibration_section,
        "Further numbers": numbers_section,
        "Adaptation": adaptation.section,
    },
    cautions=cautions,
    parts=Parts,
    classes="Recall per class",
    advice=advice.of_classifier,
    each_class=terminal_table,
)
