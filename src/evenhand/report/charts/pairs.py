"""Class pairs drawn: heat maps of gains and of the distribution, and gains that came true or did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.report.charts.svg import INK, PALETTE, WIDTH, colour, draw, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = 12  # classes whose names fit beside a small heat map


def plot_pair_matrices(
    steps: Sequence[int], gains: np.ndarray, distributions: np.ndarray, classes: Sequence[str], title: str = ""
) -> str:
    """Gains (S, k, k) above, distributions (S, k, k) below, a column for each step; labels down, partners across.

    Blue raises the metric, vermilion lowers it, each row of pictures by its own largest value.
    """
    rows = {"gain": gains / max(np.abs(gains).max(initial=0), 1e-30)}
    rows["drawn"] = distributions / max(distributions.max(initial=0), 1e-30)

    def paint(figure: Figure) -> None:
        grid = figure.subplots(2, len(steps), squeeze=False)
        for line, (name, matrices) in zip(grid, rows.items(), strict=True):
            for axes, step, matrix in zip(line, steps, matrices, strict=True):
                rgba = np.empty((*matrix.shape, 4))
                for positive, tint in ((True, PALETTE[0]), (False, PALETTE[1])):
                    rgba[(matrix >= 0) == positive, :3] = np.array([*bytes.fromhex(tint[1:])]) / 255
                rgba[..., 3] = np.clip(np.abs(matrix), 0, 1) ** 0.6
                axes.grid(False)
                axes.imshow(rgba, interpolation="none")
                axes.set_title(f"{name}, step {step}")
                axes.set_xticks([])
                axes.set_yticks([])
            if len(classes) <= NAMED and matrices.shape[1] == len(classes):
                line[0].set_yticks(range(len(classes)), [name[:14] for name in classes], fontsize=7)
            line[0].set_ylabel("label's class")
        grid[-1][0].set_xlabel("partner's class")

    alt = f"Gains and shares of class pairs at steps {', '.join(map(str, steps))}{f', {title}' if title else ''}"
    return draw(WIDTH, 0.4 + 2 * WIDTH / max(len(steps), 3) * 0.95, alt, paint)


def plot_fidelity(series: Mapping[str, Any], colours: Mapping[str, str]) -> str:
    """Change of the metric after a small step against what the gain predicts, (P, 3) for each name."""

    def paint(figure: Figure) -> None:
        panels: Any = figure.subplots(1, 2)
        handles: list[Any] = []
        for axes, column, title in zip(panels, (1, 2), ("soft predictions", "hard predictions"), strict=True):
            for s, (name, rows) in enumerate(series.items()):
                points = np.asarray(rows, dtype=float)
                tint = colours.get(name, colour(s))
                dots = axes.scatter(points[:, 0], points[:, column], s=12, color=tint, alpha=0.6, linewidths=0)
                handles += [dots] if column == 1 else []
            every = np.concatenate([np.asarray(rows, dtype=float)[:, 0] for rows in series.values()])
            ends = [every.min(initial=0), every.max(initial=0)]
            axes.plot(ends, ends, color=INK, alpha=0.4, linestyle="--", linewidth=1)
            axes.set(title=title, xlabel="change predicted by the gain", ylabel="change of the objective")
        legend(figure, handles, list(series))

    return draw(WIDTH, 3.6, f"Gain fidelity of {', '.join(series)}; on the diagonal a gain comes true", paint)
