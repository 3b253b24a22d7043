"""Plots with the classes along the axis, most training samples first: counts, scores, shares of what is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.report.charts.svg import INK, SHADE, WIDTH, colour, draw, legend, marker, robust_axis, thinned
from evenhand.report.records import ClassData, by_count
from evenhand.tasks.metric import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES_NAMED = 40
Seeds = Sequence[Sequence[float | None]]  # one list of K values per seed


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


def plot_counts(classes: ClassData) -> str:
    """Training samples per class, log scale, most frequent first."""
    names, counts, groups = classes
    order = by_count(classes)
    sizes = [counts[k] for k in order]
    tips = {f"bar{k}": f"{names[k]}: {counts[k]:,} training samples" for k in order}

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
        _name_classes(axes, [names[k] for k in order])

    alt = f"Training samples of {len(order)} classes, from {max(sizes):,} to {min(sizes):,}"
    return draw(WIDTH, 2.9, alt, paint, tips)


def plot_scores(
    classes: ClassData,
    metric: Metric,
    series: Mapping[str, Seeds],
    colours: Mapping[str, str] | None = None,
    doubtful: Mapping[str, set[int]] | None = None,
    ranges: Mapping[str, Sequence[tuple[float, ...] | None]] | None = None,
) -> str:
    """A metric per class: a dot is the mean over seeds, its bar spans lowest to highest; ``doubtful`` dots are hollow.

    ``ranges`` (from, at, to) of each class, in the metric's scale, are thin lines behind. Above 40 classes, lines of
    means. A class undefined for one seed has no dot.
    """
    names, _, groups = classes
    order = by_count(classes)
    named = len(order) <= CLASSES_NAMED
    tips: dict[str, str] = {}

    def paint(figure: Figure) -> None:
        axes, handles = figure.add_subplot(), []
        _shade(axes, order, groups)
        for s, (name, seeds) in enumerate(series.items()):
            values = metric.scale * np.array(seeds, dtype=float)[:, order]  # (seeds, K)
            tint, shape = (colours or {}).get(name, colour(s)), marker(s)
            mean = values.mean(0)
            if not named:
                there = np.flatnonzero(np.isfinite(mean))
                handles += axes.plot(*thinned(there, mean[there], 50), color=tint, marker=shape, markersize=3)
                continue
            handles += axes.plot([], [], shape, color=tint, markersize=6)
            for i, k in enumerate(order):
                if not np.isfinite(mean[i]):
                    continue
                x, gid = i + 0.7 * ((s + 0.5) / len(series) - 0.5), f"dot{s}-{k}"
                hollow = k in (doubtful or {}).get(name, ())
                fill: dict[str, Any] = {"markerfacecolor": "none"} if hollow else {"markeredgewidth": 0}
                span = ranges[name][k] if ranges and name in ranges else None
                if span:
                    axes.plot([x, x], [span[0], span[-1]], color=tint, alpha=0.85, linewidth=1)
                axes.plot([x, x], [values[:, i].min(), values[:, i].max()], color=tint, alpha=0.55, linewidth=3)
                axes.plot([x], [mean[i]], shape, color=tint, markersize=6, gid=gid, **fill)
                each = ", ".join(f"{v:.{metric.digits}f}" for v in values[:, i])
                tips[gid] = f"{names[k]}, {name}: {metric.name} {metric.said(mean[i])} (seeds: {each})"
        every = np.concatenate([np.ravel(np.array(seeds, dtype=float)) for seeds in series.values()])
        log = not metric.unit and robust_axis(axes, every)
        if not log:
            axes.set_ylim(*((-2, 102) if metric.unit else (0, None)))
        label = metric.label + " (log)" * log
        axes.set_ylabel(label if named else f"{label}, mean of neighbouring classes")
        _name_classes(axes, [names[k] for k in order])
        legend(figure, handles, list(series))

    alt = f"{metric.opening} of {len(order)} classes for {', '.join(series)}, most training samples first"
    return draw(WIDTH, 3.6, alt, paint, tips)


def plot_shares(classes: ClassData, series: Mapping[str, Seeds], colours: Mapping[str, str] | None = None) -> str:
    """How much of what is drawn belongs to each class, against the same of all (dashed) and the training data's (dots).

    A bar is the mean over seeds, its line spans lowest to highest; above 40 classes, lines of means.
    """
    names, counts, groups = classes
    order = by_count(classes)
    even, trained = 100 / len(order), 100 * np.array(counts, dtype=float)[order] / max(1, sum(counts))
    tips: dict[str, str] = {}

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        handles: list[Any] = []
        _shade(axes, order, groups)
        wide, where = 0.8 / len(series), np.arange(len(order))
        for s, (name, seeds) in enumerate(series.items()):
            values = 100 * np.array(seeds, dtype=float)[:, order]  # (seeds, K)
            tint, mean = (colours or {}).get(name, colour(s)), values.mean(0)
            if len(order) > CLASSES_NAMED:
                handles += axes.plot(*thinned(where, mean, 50), color=tint)
                continue
            at = where + wide * (s - (len(series) - 1) / 2)
            bars = axes.bar(at, mean, width=0.92 * wide, color=tint)
            handles.append(bars)
            axes.vlines(at, values.min(0), values.max(0), color=INK, alpha=0.6, linewidth=1.2)
            for i, (k, bar) in enumerate(zip(order, bars, strict=True)):
                bar.set_gid(f"bar{s}-{k}")
                each = ", ".join(f"{v:.1f}" for v in values[:, i])
                tips[f"bar{s}-{k}"] = f"{names[k]}, {name}: {mean[i]:.1f} % of what is drawn (seeds: {each})"
        handles += axes.plot(axes.get_xlim(), [even, even], color=INK, linestyle="--", linewidth=1)
        handles += axes.plot(*thinned(where, trained, 50), ".", color=INK, alpha=0.6, markersize=5, zorder=3)
        axes.set_ylim(0, None)
        axes.set_ylabel("share of drawn images (%)")
        _name_classes(axes, [names[k] for k in order])
        legend(figure, handles, [*series, f"even: {even:.2g} %", "training data"])

    alt = f"Share of {len(order)} classes in what {', '.join(series)} draw, against {even:.2g} % each"
    return draw(WIDTH, 3.6, alt, paint, tips)
