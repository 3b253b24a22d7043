"""Pictures of a transformer's tokens: distances, ranks, cosine, the teacher's entropy, rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenhand.report.charts.svg import colour, marker


def plot_attention(found: Mapping[str, Any], path: str | Path, *, title: str = "") -> None:
    """One panel for each thing that attention.json has; of several checkpoints, distances and ranks of the last."""
    last = found["rows"][-1]
    panels: dict[str, Callable[[Axes], None]] = {
        "Mean attention distance": lambda panel: _distances(panel, last["distance"]),
        "Directions of rare classes' tokens": lambda panel: _ranks(panel, last["rank"]),
    }
    measured = [(row["epoch"], row["cosine"]) for row in found["rows"] if "cosine" in row]
    if measured or found["cosine_in_training"]:
        panels["Cosine of CLS and DIST"] = lambda panel: _cosine(panel, found["cosine_in_training"], measured)
    if found["teacher"]:
        panels["Entropy of the teacher"] = lambda panel: _entropy(panel, found["teacher"])
    figure = Figure(figsize=(4.4 * len(panels), 3.6), layout="constrained")
    for panel, (name, paint) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        paint(panel)
        panel.set_title(name, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=9)
        panel.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=150)


def _distances(panel: Axes, blocks: Sequence[Sequence[float]]) -> None:
    for i, heads in enumerate(blocks):
        panel.plot(range(1, len(heads) + 1), sorted(heads), color=colour(i), marker=marker(i), label=f"block {i + 1}")
    panel.set_xlabel("head, sorted", fontsize=9)
    panel.set_ylabel("pixels", fontsize=9)


def _ranks(panel: Axes, ranks: Mapping[str, Sequence[int]]) -> None:
    for i, (token, values) in enumerate(ranks.items()):
        panel.plot(range(1, len(values) + 1), values, color=colour(i), marker=marker(i), label=token.upper())
    panel.set_xlabel("block", fontsize=9)


def _cosine(panel: Axes, logged: Sequence[Sequence[float]], measured: Sequence[tuple[float, float]]) -> None:
    if logged:
        panel.plot(*zip(*logged, strict=True), color=colour(0), linewidth=1.3, label="training batches")
    if measured:
        panel.plot(*zip(*measured, strict=True), color=colour(1), marker="o", label="checkpoints, unaugmented")
    panel.set_xlabel("epoch", fontsize=9)


def _entropy(panel: Axes, teacher: Mapping[str, Mapping[str, Any]]) -> None:
    for i, (view, numbers) in enumerate(teacher.items()):
        edges = np.linspace(0, numbers["largest"], len(numbers["histogram"]) + 1)
        panel.stairs(numbers["histogram"], edges, color=colour(i), linewidth=1.6, label=f"{view} views")
    panel.set_xlabel("nats", fontsize=9)
    panel.set_ylabel("share of images", fontsize=9)


def plot_rollout(
    images: np.ndarray, titles: Sequence[str], maps: Mapping[str, np.ndarray], path: str | Path
) -> None:  # fmt: skip
    """A row for each token's map, laid over the images (n, H, W, C); each map in its own scale."""
    figure = Figure(figsize=(1.6 * len(images) + 0.6, 1.7 * (1 + len(maps))), layout="constrained")
    panels = figure.subplots(1 + len(maps), len(images), squeeze=False)
    for i, (image, title) in enumerate(zip(images, titles, strict=True)):
        shown = image if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, -1)
        panels[0][i].imshow(shown)
        panels[0][i].set_title(title, fontsize=8)
        height, width = shown.shape[:2]
        for row, values in enumerate(maps.values(), 1):
            panels[row][i].imshow(shown)
            panels[row][i].imshow(
                values[i], extent=(-0.5, width - 0.5, height - 0.5, -0.5), cmap="inferno", alpha=0.6,
                interpolation="bilinear",
            )  # fmt: skip
    for row, name in enumerate(["image", *(token.upper() if token != "mean" else token for token in maps)]):
        panels[row][0].set_ylabel(name, fontsize=9)
    for panel in panels.ravel():
        panel.set_xticks([])
        panel.set_yticks([])
    figure.savefig(path, dpi=100)
