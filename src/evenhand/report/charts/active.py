"""Plots of active learning: accuracy against labels, what was chosen, which classes were bought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from evenhand.report.charts.svg import GREY, WIDTH, draw, legend, marker

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RED = "#D55E00"
KINDS = {"source": ("o", "#56B4E9", 7), "pool": (".", GREY, 8), "labelled": ("^", "#009E73", 16)}
Curve = tuple[Sequence[float], Sequence[float], Sequence[float]]  # labels, mean, standard error


def plot_labels(curves: Mapping[str, Curve], colours: Mapping[str, str]) -> str:
    """Accuracy in % over labels, with a band of one standard error; an error of nan has none."""

    def paint(figure: Figure) -> None:
        axes, handles = figure.add_subplot(), []
        for s, (name, (labels, mean, error)) in enumerate(curves.items()):
            x, y, e = (np.asarray(v, dtype=float) for v in (labels, mean, error))
            handles += axes.plot(x, y, color=colours[name], marker=marker(s), markersize=4.5)
            if np.isfinite(e).all():
                axes.fill_between(x, y - e, y + e, color=colours[name], alpha=0.15, linewidth=0)
        axes.set(xlabel="labels bought in the target", ylabel="accuracy (%)")
        legend(figure, handles, list(curves), 90)

    return draw(8.4, 4.4, f"Accuracy over labels for {', '.join(curves)}", paint)


def plot_chosen(rounds: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> str:
    """One panel a round: source, pool and labelled samples, and in red squares what was picked."""
    across = min(3, len(rounds))
    down = -(-len(rounds) // across)

    def paint(figure: Figure) -> None:
        grid = figure.subplots(down, across, squeeze=False).ravel()
        for number, (axes, points) in enumerate(zip(grid, rounds, strict=False), 1):
            for name, (shape, tint, size) in KINDS.items():
                if points.get(name):
                    xy = np.array(points[name], dtype=float).T
                    axes.scatter(*xy, s=size, marker=shape, color=tint, alpha=0.5, linewidths=0, label=name)
            xy = np.array(points["picked"], dtype=float).T
            axes.scatter(*xy, s=26, marker="s", facecolors="none", edgecolors=RED, linewidths=1.1, label="picked")
            axes.set(title=f"round {number}", xticks=[], yticks=[])
        for axes in grid[len(rounds) :]:
            axes.set_axis_off()
        handles, names = grid[min(1, len(rounds) - 1)].get_legend_handles_labels()
        legend(figure, handles, names)

    return draw(
        WIDTH, 0.5 + 3.2 * down, f"What was chosen in {len(rounds)} rounds, in two dimensions of features", paint
    )


def plot_bought(counts: Mapping[str, Sequence[float]], classes: Sequence[str], colours: Mapping[str, str]) -> str:
    """Labels bought of each class, mean over seeds, a row of bars for each way of choosing."""

    def paint(figure: Figure) -> None:
        grid = figure.subplots(len(counts), 1, squeeze=False, sharex=True, sharey=True).ravel()
        for axes, (name, values) in zip(grid, counts.items(), strict=True):
            axes.bar(range(len(classes)), values, color=colours[name], width=0.8)
            axes.set_title(name)
        if len(classes) <= 30:
            grid[-1].set_xticks(range(len(classes)), classes, rotation=45, ha="right", rotation_mode="anchor")
        else:
            grid[-1].set_xticks([])
            grid[-1].set_xlabel(f"{len(classes)} classes")

    return draw(WIDTH, 0.8 + 1.1 * len(counts), f"Labels bought of each class by {', '.join(counts)}", paint)
