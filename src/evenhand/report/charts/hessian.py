"""Pictures of curvature: the spectral density of each class, and its extremes over training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from evenhand.report.charts.svg import colour, marker

if TYPE_CHECKING:
    from evenhand.measure.hessian import Spectrum


def plot_spectra(results: Mapping[str, Spectrum], path: str | Path, *, title: str = "") -> None:
    """One panel per class: log10(density + 1e-7) over the eigenvalues, the negative ones in vermilion.

    Each panel has its own eigenvalue axis, for a tail class may be curved a hundred times more than a head
    class; the density axis is shared. The suffix of `path` (.svg, .png, .pdf) chooses the format.
    """
    if not results:
        raise ValueError("results is empty; pass at least one class's spectrum")
    columns = min(4, math.ceil(math.sqrt(len(results))))
    rows = math.ceil(len(results) / columns)
    figure = Figure(figsize=(4.2 * columns, 2.6 * rows + 0.4), layout=ConstrainedLayoutEngine(h_pad=0.12))
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for panel, (name, spectrum) in zip(panels, results.items(), strict=False):
        grid, values = spectrum.density()
        height = (values + 1e-7).log10().numpy()
        where = grid.numpy()
        panel.fill_between(where, -7, height, where=where >= 0, color=colour(0), linewidth=0.6)
        panel.fill_between(where, -7, height, where=where <= 0, color=colour(1), linewidth=0.6)
        extremes = f"{spectrum.minimum:.3g} to {spectrum.maximum:.3g}, ratio {spectrum.ratio:.2g}"
        panel.set_title(f"{name}: {extremes}", fontsize=10)
        _clean(panel)
    for panel in panels[len(results) :]:
        panel.remove()
    figure.supxlabel("eigenvalue of the Hessian", fontsize=10)
    figure.supylabel("log10 density", fontsize=10)
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=150)


def plot_dynamics(
    history: Mapping[str, Sequence[tuple[float, float, float]]], path: str | Path, *, title: str = ""
) -> None:
    """|minimum / maximum|, minimum and maximum over epochs, one line per class.

    `history[name]` lists (epoch, minimum, maximum), one entry per checkpoint.
    """
    if not any(history.values()):
        raise ValueError("history is empty; pass at least one (epoch, minimum, maximum)")
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    ratio, lowest, highest = figure.subplots(1, 3)
    for i, (name, points) in enumerate(history.items()):
        epochs, minima, maxima = zip(*sorted(points), strict=True)
        ratios = [abs(low / high) if high else math.nan for low, high in zip(minima, maxima, strict=True)]
        for panel, values in ((ratio, ratios), (lowest, minima), (highest, maxima)):
            panel.plot(epochs, values, color=colour(i), marker=marker(i), markersize=4, linewidth=1.4, label=name)
    for panel, text in ((ratio, "|smallest / largest|"), (lowest, "smallest eigenvalue"), (highest, "largest")):
        panel.set_title(text, fontsize=10)
        panel.set_xlabel("epoch", fontsize=10)
        _clean(panel)
    highest.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=9, title="class")
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=150)


def _clean(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=9)
