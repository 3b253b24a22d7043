"""SelMix watched: gains and pairs over time, their entropy, whether gains came true, and each aim's other metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from pydantic import BaseModel

from evenhand.errors import UserError
from evenhand.report.charts.pairs import plot_fidelity, plot_pair_matrices
from evenhand.report.charts.plots import plot_curves
from evenhand.report.curves import REPEATED, run_lines
from evenhand.report.markup import joined, parts
from evenhand.report.reading import AGAIN, read_array
from evenhand.report.records import RunGroup, RunRecord, by_count
from evenhand.report.table import Cell, Table
from evenhand.report.tables import number_cell
from evenhand.tasks.classify import CLASSIFY

CURVES = {"pair_entropy": "entropy of the pairs (nats)", "largest_gain": "largest gain"}
# Which number of the table an objective aims at; floors add the least coverage.
AIMED = {
    "mean-recall": "mean_recall", "min-recall": "min_recall", "h-mean": "h_mean", "g-mean": "g_mean",
    "min-head-tail-recall": "min_head_tail_recall",
}  # fmt: skip
FLOORS = {"coverage": "min_coverage", "head-tail-coverage": "min_head_tail_coverage"}
OPENED = 2  # groups whose pictures are not folded away


class Looks(BaseModel):
    """What measure.json has of SelMix."""

    steps: list[int]
    largest: list[float]
    entropy: list[float]
    shown: list[int]


def section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """Nothing unless a run is SelMix's."""
    own = [g for g in groups if g.records[0].method.get("name") == "selmix"]
    if not own:
        return Markup()
    panels = {title: lines for key, title in CURVES.items() if (lines := run_lines(own, "val", key))}
    caption = f"How widely pairs are spread, and how much the best one promises. {REPEATED}"
    curves = parts.figure(plot_curves(panels, colours, "step"), caption) if panels else Markup()
    folds = (parts.fold(g.name, _matrices(g), i < OPENED) for i, g in enumerate(own))
    return _cross_table(own) + curves + _fidelity(own, colours) + joined(folds)


def _cross_table(groups: Sequence[RunGroup]) -> Markup:
    """Trained for one, all reported: what a run aimed at in bold, which is the claim."""
    keys = [*AIMED.values(), *FLOORS.values()]
    metrics = [m for m in map(CLASSIFY.metric, keys) if any(g.values(m) for g in groups)]
    if not metrics or not any(g.measured for g in groups):
        return Markup()
    rows = []
    for group in groups:
        method = group.records[0].method
        aims = {AIMED.get(str(method.get("objective")), ""), FLOORS.get(str(method.get("floors")), "")}
        cells = [number_cell(group.values(m), m.digits) for m in metrics]
        marked = [
            Cell(c.text, c.spread, c.title, best=m.key in aims, alarm=c.alarm)
            for c, m in zip(cells, metrics, strict=True)
        ]
        rows.append((Cell(group.name), *marked))
    columns = ("run", *(m.label for m in metrics))
    caption = "Each run by every metric; in bold what it was fine-tuned for"
    return parts.table(Table(caption, columns, tuple(rows), range(1, len(columns))))


def _matrices(group: RunGroup) -> Markup:
    for record in group.measured:
        steps = (record.measure or {}).get("selmix", {}).get("shown") or []
        gains, shares = (_array(record.folder / f"pair_{key}.npz", f"pair_{key}") for key in ("gain", "distribution"))
        if gains is None or shares is None or not steps:
            continue
        if gains.ndim != 3 or gains.shape != shares.shape or len(gains) != len(steps):
            raise UserError(f"{record.folder}: pair_gain.npz and pair_distribution.npz do not fit; {AGAIN}")
        classes = [group.classes[0][k] for k in by_count(group.classes)]
        merged = f" {len(classes)} classes share {gains.shape[1]} rows." if gains.shape[1] < len(classes) else ""
        caption = (
            f"Class pairs of {record.name} from the most frequent class (top, left) to the rarest.{merged} Blue pairs "
            "raise the objective, vermilion ones lower it; below, how often each is drawn."
        )
        return parts.figure(plot_pair_matrices(steps, gains, shares, classes, group.name), caption)
    return parts.missing("Gains and pairs: not run.")


def _fidelity(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """All looks and seeds of a group together; how well the ranks agree is in the caption."""
    series, told = {}, []
    for group in groups:
        found = [rows for r in group.measured if (rows := _tried(r)) is not None and len(rows)]
        if found:
            series[group.name] = points = np.concatenate(found)
            told.append(f"{group.name} {_rank_correlation(points[:, 0], points[:, 1]):.2f}")
    if not series:
        return Markup()
    caption = (
        "Does a gain come true? The head takes a step of 1 % of its norm on a pair. Dashed: as predicted. Rank "
        f"correlation with the change in soft predictions: {'; '.join(told)}."
    )
    return parts.figure(plot_fidelity(series, colours), caption)


def _tried(record: RunRecord) -> np.ndarray | None:
    found = _array(record.folder / "pair_fidelity.npz", "pair_fidelity")
    if found is not None and (found.ndim != 3 or found.shape[2] != 3):
        raise UserError(f"{record.folder / 'pair_fidelity.npz'}: {found.shape} is not (looks, pairs, 3); {AGAIN}")
    return None if found is None else found.reshape(-1, 3)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    first, second = (np.argsort(np.argsort(v, kind="stable"), kind="stable").astype(float) for v in (x, y))
    return float(np.corrcoef(first, second)[0, 1])


def _array(path: Path, key: str) -> np.ndarray | None:
    found = read_array(path, key, AGAIN)
    if found is None:
        return None
    if not np.isfinite(found).all():
        raise UserError(f"{path}: {key} is not finite; {AGAIN}")
    return found.astype(float)
