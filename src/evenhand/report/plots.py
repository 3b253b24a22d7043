"""The report's plots, each a function from plain numbers to an SVG string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.report.records import class_order
from evenhand.report.svg import INK, PALETTE, SHADE, colour, draw, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 11.4  # inches: the page's panel
CLASSES_NAMED = 40


def _legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], columns: int) -> None:
    # A leading underscore would hide the entry.
    labels = [f"\u200b{name}" if name.startswith("_") else name for name in names]
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=1.4)


def _columns(names: Sequence[str], room: int = 100) -> int:
    return max(1, min(len(names), room // (max(map(len, names), default=1) + 6)))


def _shade(axes: Axes, order: Sequence[int], groups: Mapping[str, Sequence[int]]) -> None:
    """Head, mid and tail as bands behind the classes, named along the top."""
    member = {k: place for place, indices in enumerate(groups.values()) for k in indices}
    places = [member.get(k, -1) for k in order]
    starts = [i for i in range(len(places)) if i == 0 or places[i] != places[i - 1]]
    for start, end in zip(starts, [*starts[1:], len(places)], strict=True):
        if (place := places[start]) >= 0:
            axes.axvspan(start - 0.5, end - 0.5, color=SHADE, alpha=0.05 + 0.09 * (place % 3), linewidth=0)
            axes.text((start + end - 1) / 2, 1.01, list(groups)[place], ha="center", va="bottom", alpha=0.7,
                      transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_xlim(-0.5, len(order) - 0.5)


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    if len(names) > CLASSES_NAMED:
        axes.set_xlabel(f"{len(names)} classes, most training samples first")
        axes.set_xticks([])
        return
    short = [name if len(name) <= 18 else name[:17] + "…" for name in names]
    steep = sum(map(len, short)) > 90
    axes.set_xticks(range(len(names)), short, rotation=40 if steep else 0, ha="right" if steep else "center",
                    rotation_mode="anchor" if steep else "default")  # fmt: skip


def plot_counts(classes: Sequence[str], counts: Sequence[int], groups: Mapping[str, Sequence[int]]) -> str:
    """Training samples per class, log scale, most frequent first."""
    order = class_order(counts, groups)
    sizes = [counts[k] for k in order]
    tips = {f"bar{k}": f"{classes[k]}: {counts[k]:,} training samples" for k in order}

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        _shade(axes, order, groups)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_minor_formatter("")
        floor = max(0.5, min((s for s in sizes if s), default=1) / 2)
        if len(order) > 120:
            axes.fill_between(range(len(order)), floor, sizes, step="mid", color=colour(0), linewidth=0)
        else:
            bars = axes.bar(range(len(order)), sizes, width=0.72, color=colour(0))
            for k, bar in zip(order, bars, strict=True):
                bar.set_gid(f"bar{k}")
        if len(order) <= 20:
            for i, size in enumerate(sizes):
                axes.text(i, 1.06 * max(size, floor), f"{size:,}", ha="center", va="bottom", fontsize=8)
        axes.set_ylim(floor, max([*sizes, 1]) * 1.8)
        axes.set_ylabel("training samples (log)")
        _name_classes(axes, [classes[k] for k in order])

    alt = f"Training samples of {len(order)} classes, from {max(sizes):,} to {min(sizes):,}"
    return draw(WIDTH, 2.9, alt, paint, tips)


def plot_recall(
    classes: Sequence[str],
    counts: Sequence[int],
    groups: Mapping[str, Sequence[int]],
    series: Mapping[str, Sequence[Sequence[float]]],
    colours: Mapping[str, str] | None = None,
) -> str:
    """Recall per class; ``series`` gives each name one list of K recalls per seed.

    A dot is the mean over seeds, its bar spans lowest to highest; above 40 classes, lines of means.
    """
    order = class_order(counts, groups)
    tips: dict[str, str] = {}

    def paint(figure: Figure) -> None:
        axes, handles = figure.add_subplot(), []
        _shade(axes, order, groups)
        for s, (name, seeds) in enumerate(series.items()):
            values = 100 * np.array(seeds, dtype=float)[:, order]  # (seeds, K)
            tint, shape = (colours or {}).get(name, colour(s)), marker(s)
            mean = values.mean(0)
            if len(order) > CLASSES_NAMED:
                there = np.flatnonzero(np.isfinite(mean))
                handles += axes.plot(*_thin(there, mean[there], 50), color=tint, marker=shape, markersize=3)
                continue
            handles += axes.plot([], [], shape, color=tint, markersize=6)
            for i, k in enumerate(order):
                if not np.isfinite(mean[i]):
                    continue
                x, gid = i + 0.7 * ((s + 0.5) / len(series) - 0.5), f"dot{s}-{k}"
                axes.plot([x, x], [values[:, i].min(), values[:, i].max()], color=tint, alpha=0.55)
                axes.plot([x], [mean[i]], shape, color=tint, markersize=6, markeredgewidth=0, gid=gid)
                each = ", ".join(f"{v:.1f}" for v in values[:, i])
                tips[gid] = f"{classes[k]}, {name}: recall {mean[i]:.1f} % (seeds: {each})"
        axes.set_ylim(-2, 102)
        axes.set_ylabel("recall (%)" if len(order) <= CLASSES_NAMED else "recall (%), mean of neighbouring classes")
        _name_classes(axes, [classes[k] for k in order])
        _legend(figure, handles, list(series), _columns(list(series)))

    alt = f"Recall of {len(order)} classes for {', '.join(series)}, most training samples first"
    return draw(WIDTH, 3.6, alt, paint, tips)


def plot_curves(
    panels: Mapping[str, Sequence[tuple[str, Sequence[float], Sequence[float]]]],
    colours: Mapping[str, str],
    xlabel: str,
) -> str:
    """One panel per quantity; each holds (name, x, y) lines, several of one name for several seeds."""

    across = 2 if len(panels) in (2, 4) else min(3, len(panels))
    down = -(-len(panels) // across)

    def paint(figure: Figure) -> None:
        grid = figure.subplots(down, across, squeeze=False).ravel()
        handles: dict[str, Any] = {}
        for axes, (title, lines) in zip(grid, panels.items(), strict=False):
            for name, x, y in lines:
                dot = "o" if len(x) == 1 else ""
                (line,) = axes.plot(*_thin(x, y), color=colours[name], linewidth=1.3, marker=dot, markersize=4)
                handles.setdefault(name, line)
            axes.set_title(title)
            axes.set_xlabel(xlabel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        _legend(figure, list(handles.values()), list(handles), _columns(list(handles)))

    width = WIDTH if across > 1 else 5
    return draw(width, 0.5 + 2.3 * down, f"Curves during training: {', '.join(panels)}", paint)


def _thin(x: Any, y: Any, limit: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """At most ``limit`` points: means of neighbouring ones."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) <= limit:
        return xs, ys
    parts = [np.array([part.mean() for part in np.array_split(v, limit)]) for v in (xs, ys)]
    return parts[0], parts[1]


def row_normalised(confusion: Any) -> np.ndarray:
    """Rows sum to 1 (to 0 for a class without samples)."""
    matrix = np.array(confusion, dtype=float)  # (K, K)
    return matrix / np.maximum(matrix.sum(1, keepdims=True), 1e-12)


def plot_confusion(confusion: Any, classes: Sequence[str], title: str = "") -> str:
    """Row-normalised heat map, truth down, prediction across; hits blue, errors vermilion.

    Above 30 classes the labels go; above 100, neighbouring classes share a cell.
    """
    rates = row_normalised(confusion)
    K = len(rates)
    edges = np.linspace(0, K, min(K, 100) + 1).astype(int)[:-1]
    widths = np.diff([*edges, K])
    shown = np.add.reduceat(np.add.reduceat(rates, edges, 0), edges, 1) / widths[:, None]
    rgba = np.empty((*shown.shape, 4))
    for hits, tint in ((False, PALETTE[1]), (True, PALETTE[0])):
        rgba[np.eye(len(shown), dtype=bool) == hits, :3] = np.array([*bytes.fromhex(tint[1:])]) / 255
    rgba[..., 3] = np.clip(shown, 0, 1) ** (0.7 if K <= 20 else 0.45)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.grid(False)
        axes.imshow(rgba, interpolation="none")
        if K <= 20:
            for i, j in np.argwhere(shown >= 0.005):
                ink = "white" if shown[i, j] > 0.45 else INK
                axes.text(j, i, f"{100 * shown[i, j]:.0f}", ha="center", va="center", color=ink, fontsize=8)
        if K <= 30:
            short = [name if len(name) <= 18 else name[:17] + "…" for name in classes]
            axes.set_xticks(range(K), short, rotation=45, ha="right", rotation_mode="anchor")
            axes.set_yticks(range(K), short)
        else:
            axes.set_xticks([])
            axes.set_yticks([])
        block = "" if len(shown) == K else f" ({K} classes in {len(shown)} blocks)"
        axes.set_xlabel(f"predicted class{block}")
        axes.set_ylabel("true class")
        axes.set_title(title)

    size = 5.4 if K <= 12 else 6.4
    return draw(size, size * 0.92, f"Confusion matrix of {K} classes{f', {title}' if title else ''}", paint)


def plot_reliability(series: Mapping[str, Mapping[str, Any]], colours: Mapping[str, str] | None = None) -> str:
    """Accuracy against confidence, and where confidence lies; a series has confidence, accuracy, count."""

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        left.plot([0, 100], [0, 100], color=INK, alpha=0.4, linestyle="--", linewidth=1)
        handles = []
        for s, (name, bins) in enumerate(series.items()):
            count = np.array(bins["count"], dtype=float)
            full = count > 0
            x, y = (100 * np.array(bins[key], dtype=float)[full] for key in ("confidence", "accuracy"))
            style = {"color": (colours or {}).get(name, colour(s)), "marker": marker(s), "markersize": 4}
            handles += left.plot(x, y, **style)
            right.plot(x, 100 * count[full] / max(count.sum(), 1), **style)
        left.set(title="right as often as sure?", ylabel="accuracy (%)", ylim=(0, 101))
        right.set(title="how sure?", ylabel="samples (%)", ylim=(0, None))
        for axes in (left, right):
            axes.set(xlabel="confidence (%)", xlim=(0, 101))
        _legend(figure, handles, list(series), _columns(list(series)))

    alt = f"Reliability diagram for {', '.join(series)}; the diagonal is perfect calibration"
    return draw(WIDTH, 3.4, alt, paint)


def plot_line_with_band(
    x: Sequence[float],
    series: Mapping[str, Sequence[Sequence[float]]],
    *,
    xlabel: str = "",
    ylabel: str = "",
    log_x: bool = False,
) -> str:
    """Mean and ± sample standard deviation over repeats; ``series`` gives each name (repeats, len(x)) values.

    >>> svg = plot_line_with_band([0.0, 0.1], {"tail recall": [[50, 60], [52, 58]]}, xlabel="rho", ylabel="%")
    """

    def paint(figure: Figure) -> None:
        axes, handles = figure.add_subplot(), []
        for s, repeats in enumerate(series.values()):
            values = np.array(repeats, dtype=float)  # (repeats, len(x))
            mean = values.mean(0)
            handles += axes.plot(x, mean, color=colour(s), marker=marker(s), markersize=4.5)
            if len(values) > 1:
                spread = values.std(0, ddof=1)
                axes.fill_between(x, mean - spread, mean + spread, color=colour(s), alpha=0.18, linewidth=0)
        if log_x:
            axes.set_xscale("log")
        axes.set(xlabel=xlabel, ylabel=ylabel)
        _legend(figure, handles, list(series), _columns(list(series), 70))

    return draw(6.4, 3.6, f"{ylabel} over {xlabel} for {', '.join(series)}", paint)
