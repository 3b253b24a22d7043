"""The classes of the runs: what several tasks show of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from markupsafe import Markup

from evenhand.report.charts.class_plots import plot_counts
from evenhand.report.markup import joined, parts
from evenhand.report.records import Classes, RunGroup
from evenhand.report.tables import per_class_table

LISTED, OPENED = 1000, 12  # more classes in a table would be most of the page; up to a dozen it stands open


def each_set_of_classes(groups: Sequence[RunGroup], inside: Callable[[Sequence[RunGroup], Classes], str]) -> Markup:
    """For each set of training data its counts, then what ``inside`` shows of the runs on it."""
    data: dict[str, list[RunGroup]] = {}
    for group in sorted(groups, key=lambda g: not g.measured):
        if group.classes[0]:
            data.setdefault(json.dumps(group.classes[:2]), []).append(group)
    found: list[str] = []
    for members in data.values():
        names, counts, named = members[0].classes
        if len(data) > 1:
            found.append(parts.heading(", ".join(g.name for g in members)))
        ratio = f", imbalance {max(counts) / min(counts):.0f}" if min(counts) else ""
        caption = f"{sum(counts):,} training samples in {len(names):,} classes{ratio}."
        found += [parts.figure(plot_counts(names, counts, named), caption), inside(members, members[0].classes)]
    return joined(found) or parts.missing()


def class_table(members: Sequence[RunGroup], title: str) -> Markup:
    """The per-class table, folded away unless it is short."""
    table = per_class_table([r for g in members for r in g.records])
    return parts.fold(title, table.to_html(), len(table.rows) <= OPENED) if len(table.rows) <= LISTED else Markup()
