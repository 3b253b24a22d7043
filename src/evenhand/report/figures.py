"""The illustrated sections on classifiers: classes, training curves, confusions, calibration."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evenhand.report import class_plots, plots
from evenhand.report.metrics import CLASS_RECALL
from evenhand.report.records import NOT_RUN, RunGroup
from evenhand.report.tables import per_class_table

CLASSES_LISTED = 1000  # above, the per-class table would be most of the page
CURVES = {"train": ("loss",), "val": ("mean_recall", "min_recall", "accuracy", "ece", "loss")}
ClassData = tuple[list[str], list[int], dict[str, list[int]]]  # names, training counts, groups
NOTHING = f'<p class="none">{NOT_RUN}</p>'


def details(title: str, inside: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{html.escape(title)}</summary>{inside}</details>\n"


def figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>\n"


def classes_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> str:
    """Counts and recalls, once for each set of training data among the runs."""
    return each_set_of_classes(groups, lambda members, classes: _recalls(members, classes, colours))


def each_set_of_classes(groups: Sequence[RunGroup], inside: Callable[[Sequence[RunGroup], ClassData], str]) -> str:
    """For each set of training data its counts, then what ``inside`` shows of the runs on it."""
    data: dict[str, list[tuple[RunGroup, ClassData]]] = {}
    for group in sorted(groups, key=lambda g: not g.measured):
        if known := _class_data(group):
            data.setdefault(json.dumps(known[:2]), []).append((group, known))
    parts = []
    for pairs in data.values():
        members, (classes, counts, named) = [group for group, _ in pairs], pairs[0][1]
        if len(data) > 1:
            parts.append(f"<h3>{html.escape(', '.join(g.name for g in members))}</h3>")
        ratio = f", imbalance {max(counts) / min(counts):.0f}" if min(counts) else ""
        caption = f"{sum(counts):,} training samples in {len(classes):,} classes{ratio}."
        parts.append(figure(class_plots.plot_counts(classes, counts, named), caption))
        parts.append(inside(members, (classes, counts, named)))
    return "".join(parts) or NOTHING


def _class_data(group: RunGroup) -> ClassData | None:
    """Class names, training counts and groups: as measured, else as the training stream has them."""
    measure = group.measure
    if measure.get("classes") and measure.get("train_counts"):
        return measure["classes"], measure["train_counts"], measure.get("groups", {})
    for name in ("train", "labelled", "source"):
        stream = group.records[0].streams.get(name) or {}
        if stream.get("classes") and len(stream.get("counts") or ()) == len(stream["classes"]):
            return stream["classes"], stream["counts"], {}
    return None


def _recalls(members: Sequence[RunGroup], classes: ClassData, colours: Mapping[str, str]) -> str:
    series = {g.name: recalls for g in members if (recalls := g.parts("recall"))}
    if not series:
        return f'<p class="none">Recall per class: {NOT_RUN}.</p>'
    caption = "Recall per class, mean over seeds."
    if len(classes[0]) <= class_plots.CLASSES_NAMED:
        caption = "Recall per class: mean over seeds, bars from lowest to highest. Hover for the numbers."
    text = figure(class_plots.plot_scores(*classes, CLASS_RECALL, series, colours), caption)
    return text + class_table(members, "Recall per class as a table")


def class_table(members: Sequence[RunGroup], title: str) -> str:
    """The per-class table, folded away unless it is short."""
    table = per_class_table([r for g in members for r in g.records])
    if len(table.rows) > CLASSES_LISTED:
        return ""
    return details(title, table.to_html(), opened=len(table.rows) <= 12)


def curves_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> str:
    """Training loss, then what was evaluated on the validation split."""
    panels: dict[str, list[tuple[str, list[float], list[float]]]] = {}
    for kind, keys in CURVES.items():
        for key in keys:
            for group, record in ((g, r) for g in groups for r in g.records):
                rows = [row for row in record.log if row.get("kind") == kind and finite(row.get(key))]
                if rows:
                    line = (group.name, [row["epoch"] for row in rows], [row[key] for row in rows])
                    panels.setdefault(f"{kind} {key.replace('_', ' ')}", []).append(line)
    if not panels:
        return NOTHING
    caption = "One line per run; runs of one colour differ in their seed."
    return figure(plots.plot_curves(panels, colours, "epoch"), caption)


def finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def confusions_section(groups: Sequence[RunGroup]) -> str:
    """Mean confusion over seeds, with the most frequent errors in words."""
    parts = []
    for i, group in enumerate(groups):
        matrices, inside = group.parts("confusion"), NOTHING
        if matrices:
            rates = np.mean([plots.row_normalised(m) for m in matrices], 0)  # (K, K)
            classes = [str(name) for name in group.measure["classes"]]
            caption = f"Share of each true class, in per cent. Most frequent errors: {_errors(rates, classes)}."
            inside = figure(plots.plot_confusion(rates, classes, group.name), caption)
        parts.append(details(group.name, inside, opened=i < 2))
    return f'<div class="pairs">{"".join(parts)}</div>'


def _errors(rates: np.ndarray, classes: Sequence[str], most: int = 5) -> str:
    errors = rates - np.diag(np.diag(rates))
    worst = [divmod(int(w), len(classes)) for w in np.argsort(-errors, axis=None, kind="stable")[:most]]
    told = [f"{classes[t]} → {classes[p]} {100 * errors[t, p]:.1f} %" for t, p in worst if errors[t, p] > 0]
    return html.escape("; ".join(told) or "none")


def calibration_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> str:
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
    if not series:
        return NOTHING
    caption = "Below the diagonal: surer than right. The summary has the expected calibration error (ECE)."
    return figure(plots.plot_reliability(series, colours), caption)
