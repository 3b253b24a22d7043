"""Who is taken for whom: counts, classes in the order of their frequency, and the samples behind a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from evenhand.report.charts import plots
from evenhand.report.examples import card, shown_of
from evenhand.report.markup import joined, parts
from evenhand.report.records import RunGroup, by_count
from evenhand.report.scores import counts_of
from evenhand.report.table import Cell, Table

OPENED = 2  # groups whose matrices are not folded away
SPELT = 30  # classes up to which every count stands on the page
BESIDE, LISTED = 11, 40  # confusions in words, beside a matrix of counts and without one
Pair = tuple[int, int]


def confusions_section(groups: Sequence[RunGroup], _colours: Mapping[str, str]) -> Markup:
    """For each group its matrix over all seeds, then the most frequent confusions in words."""
    found = []
    for i, group in enumerate(groups):
        matrices = [m for r in group.measured if (m := counts_of(r)) is not None]
        inside = _confusions(group, np.sum(matrices, 0), f"cell-{i}", len(groups)) if matrices else parts.missing()
        found.append(parts.fold(group.name, inside, i < OPENED) if len(groups) > 1 else inside)
    return joined(found)


def _confusions(group: RunGroup, counts: np.ndarray, mark: str, sharing: int) -> Markup:
    classes, order = group.classes[0], by_count(group.classes)
    record, rows = shown_of(group, sharing)
    cells: dict[Pair, list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["truth"], row["predicted"]), []).append(row)
    cells = {pair: own for pair, own in cells.items() if counts[pair]}
    links = {pair: f"{mark}-{pair[0]}-{pair[1]}" for pair in cells}
    pictured = "; a number that is underlined opens its samples" if links else ""
    seeds = f", {len(group.measured)} seeds together" if len(group.measured) > 1 else ""
    if len(classes) <= SPELT:
        caption = f"Samples of each true class (row) by what they were taken for{seeds}; most frequent first{pictured}."
        text = parts.matrix(caption, [classes[k] for k in order], _matrix(counts, order, classes, links))
    else:
        told = f"Share of each true class{seeds}, classes from most to fewest training samples."
        sorted_names = [classes[k] for k in order]
        drawing = plots.plot_confusion(counts[np.ix_(order, order)], sorted_names, group.name)
        text = parts.figure(drawing, told)
    most = BESIDE if len(classes) <= SPELT else LISTED
    text = parts.matched(text + parts.table(_errors(counts, classes, links, most)))
    place = record.name if record else ""
    dialogs = (
        parts.dialog(
            links[pair], _told(pair, counts, classes), [card(row, classes) for row in own], place,
            f"{len(own)} of {counts[pair]:,} shown{seeds and ', of ' + place}",
        )
        for pair, own in cells.items()
    )  # fmt: skip
    return text + joined(dialogs)


def _told(pair: Pair, counts: np.ndarray, classes: Sequence[str]) -> str:
    """``lynx taken for cat: 12 of 40 (30.0 %)``"""
    (truth, predicted), whole = pair, counts[pair[0]].sum()
    what = "recognised" if truth == predicted else f"taken for {classes[predicted]}"
    return f"{classes[truth]} {what}: {counts[pair]:,} of {whole:,} ({100 * counts[pair] / whole:.1f} %)"


def _matrix(
    counts: np.ndarray, order: Sequence[int], classes: Sequence[str], links: Mapping[Pair, str]
) -> list[dict[str, Any]]:
    rows = []
    for t in order:
        whole, cells = max(1, counts[t].sum()), []
        for p in order:
            n, share = int(counts[t, p]), counts[t, p] / whole
            told = _told((t, p), counts, classes) if n else ""
            cells.append(
                {"n": n, "share": f"{100 * share**0.7:.0f}", "hit": t == p, "dark": share > 0.55, "told": told,
                 "link": links.get((t, p), "")}
            )  # fmt: skip
        rows.append({"name": classes[t], "n": int(counts[t].sum()), "cells": cells})
    return rows


def _errors(counts: np.ndarray, classes: Sequence[str], links: Mapping[Pair, str], most: int) -> Table:
    errors = counts * (1 - np.eye(len(counts), dtype=counts.dtype))
    worst = [divmod(int(w), len(counts)) for w in np.argsort(-errors, axis=None, kind="stable")[:most]]
    rows = []
    for t, p in ((int(t), int(p)) for t, p in worst if errors[t, p]):
        share = 100 * counts[t, p] / counts[t].sum()
        shown = Cell(f"{counts[t, p]:,}", link=links.get((t, p), ""))
        rows.append((Cell(classes[t]), Cell(classes[p]), shown, Cell(f"{share:.1f}"), Cell(f"{counts[t].sum():,}")))
    many = int((errors > 0).sum())
    caption = f"The {len(rows)} most frequent of {many:,} confusions" if many > len(rows) else "All confusions"
    names = ("truth", "taken for", "how often", "of the class (%)", "n")
    return Table(caption, names, tuple(rows), range(2, 5), browsed=True)
