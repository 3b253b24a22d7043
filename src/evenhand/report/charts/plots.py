"""The report's plots, each a function from plain numbers to an SVG string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.report.charts.svg import GREY, INK, PALETTE, WIDTH, colour, draw, legend, marker, robust_axis, thinned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES_COLOURED = 10


def plot_curves(
    panels: Mapping[str, Sequence[tuple[str, Sequence[float], Sequence[float]]]],
    colours: Mapping[str, str],
    xlabel: str,
    *,
    alike: bool = False,
) -> str:
    """One panel per quantity; each holds (name, x, y) lines, several of one name for several seeds.

    Panels that show ``alike`` quantities share their y axis.
    """

    across = 2 if len(panels) in (2, 4) else min(3, len(panels))
    down = -(-len(panels) // across)

    def paint(figure: Figure) -> None:
        grid = figure.subplots(down, across, squeeze=False, sharey=alike).ravel()
        handles: dict[str, Any] = {}
        every = [value for lines in panels.values() for _, _, y in lines for value in y]
        for axes, (title, lines) in zip(grid, panels.items(), strict=False):
            own = every if alike else [value for _, _, y in lines for value in y]
            title += " (log)" * robust_axis(axes, own)
            for name, x, y in lines:
                dot = "o" if len(x) == 1 else ""
                (line,) = axes.plot(*thinned(x, y), color=colours[name], linewidth=1.3, marker=dot, markersize=4)
                handles.setdefault(name, line)
            axes.set_title(title)
            axes.set_xlabel(xlabel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        legend(figure, list(handles.values()), list(handles))

    width = WIDTH if across > 1 else 5
    return draw(width, 0.5 + 2.3 * down, f"Curves during training: {', '.join(panels)}", paint)


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
        legend(figure, handles, list(series))

    alt = f"Reliability diagram for {', '.join(series)}; the diagonal is perfect calibration"
    return draw(WIDTH, 3.4, alt, paint)


def plot_domains(points: Mapping[str, Any], classes: Sequence[str]) -> str:
    """Two panels of the same features: by domain, and by class (the first ten in colour) where labels are known."""

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        for i, (name, shape) in enumerate((("source", "o"), ("target", "^"))):
            part = points[f"{name}_points"]
            xy, labels = np.array(part["xy"], dtype=float), part["labels"] or [CLASSES_COLOURED] * len(part["xy"])
            left.scatter(*xy.T, s=9, marker=shape, color=colour(i), alpha=0.55, linewidths=0, label=name)
            shades = [colour(k) if k < CLASSES_COLOURED else GREY for k in labels]
            right.scatter(*xy.T, s=9, marker=shape, c=shades, alpha=0.55, linewidths=0)
        left.legend(loc="upper right", handletextpad=0.2)
        some = "" if len(classes) <= CLASSES_COLOURED else f", the first {CLASSES_COLOURED} in colour"
        left.set_title("by domain")
        right.set_title(f"by class{some}")
        for axes in (left, right):
            axes.set(xticks=[], yticks=[])

    return draw(WIDTH, 4.2, f"Features of source and target in two dimensions, {len(classes)} classes", paint)


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
        legend(figure, handles, list(series), 70)

    return draw(6.4, 3.6, f"{ylabel} over {xlabel} for {', '.join(series)}", paint)
