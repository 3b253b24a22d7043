"""The classes of the runs: what several tasks show of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from markupsafe import Markup

from evenhand.report.charts.class_plots import plot_counts
from evenhand.report.markup import joined, parts
from evenhand.report.records import ClassData, RunGroup
from evenhand.report.tables import per_class_table

LISTED, OPENED = 1000, 12  # more classes in a table would be most of the page; up to a dozen it stands open


def each_set_of_classes(groups: Sequence[RunGroup], inside: Callable[[Sequence[RunGroup], ClassData], str]) -> Markup:
    """For each set of training data its counts, then what ``inside`` shows of the runs on it."""
    data: dict[str, list[RunGroup]] = {}
    for group in sorted(groups, key=lambda g: not g.measured):
        if group.classes[0]:
            data.setdefault(json.dumps(group.classes[:2]), []).append(group)
    found: list[str] = []
    for members in data.values():
        classes, counts = members[0].classes, members[0].classes[1]
        if len(data) > 1:
            found.append(parts.heading(", ".join(g.name for g in members)))
        imbalance = max(counts) / min(counts) if min(counts) else 0.0
        ratio = f", imbalance {imbalance:.{1 if imbalance < 10 else 0}f}" if imbalance else ""
        caption = f"{sum(counts):,} training samples in {len(counts):,} classes{ratio}."
        found += [parts.figure(plot_counts(classes), caption), inside(members, classes)]
    return joined(found) or parts.missing()


def class_table(members: Sequence[RunGroup], title: str) -> Markup:
    """The per-class table, folded away unless it is short."""
    table = per_class_table([r for g in members for r in g.records])
    size = len(table.rows)
    return parts.fold(title, parts.table(table), size <= OPENED) if size <= LISTED else Markup()
