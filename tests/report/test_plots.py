"""Plots show what they are given: under a class's name what is that class's, whatever the order of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenhand.report.charts import class_plots, plots
from evenhand.report.charts.svg import colour
from evenhand.report.classify import RECALL
from evenhand.report.confusions import _matrix
from evenhand.report.curves import class_figure

NAMES, COUNTS = ["ant", "bee", "cat"], [1, 100, 10]
CLASSES = (NAMES, COUNTS, {"head": [1], "mid": [2], "tail": [0]})
VALUES = {"ant": 0.1, "bee": 0.7, "cat": 0.2}
Painted = tuple[Axes, dict[str, str]]


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> list[Painted]:
    """Axes and hover texts of every plot, as they were handed over to be written."""
    found: list[Painted] = []

    def draw(_: float, __: float, ___: str, paint: Callable[[Figure], None], tips: Any = None) -> str:
        figure = Figure()
        paint(figure)
        found.append((figure.axes[0], tips or {}))
        return ""

    for room in (class_plots, plots):
        monkeypatch.setattr(room, "draw", draw)
    return found


def named(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def marked(axes: Axes) -> dict[str, Any]:
    """Lines and bars by their ids."""
    return {str(artist.get_gid()): artist for artist in (*axes.lines, *axes.patches) if artist.get_gid()}


def test_counts_stand_at_their_names(painted: list[Painted]) -> None:
    class_plots.plot_counts(CLASSES)
    ((axes, tips),) = painted
    assert named(axes) == ["bee", "cat", "ant"]
    bars = {k: marked(axes)[f"bar{k}"] for k in range(3)}
    assert [bars[k].get_height() for k in range(3)] == COUNTS
    assert [named(axes)[round(bars[k].get_x() + bars[k].get_width() / 2)] for k in range(3)] == NAMES
    assert tips == {f"bar{k}": f"{NAMES[k]}: {COUNTS[k]} training samples" for k in range(3)}


def test_scores_stand_at_their_names(painted: list[Painted]) -> None:
    class_plots.plot_scores(CLASSES, RECALL, {"ce": [list(VALUES.values())]}, ranges={"ce": [(1, 2, 3), None, None]})
    ((axes, tips),) = painted
    assert named(axes) == ["bee", "cat", "ant"]
    for k, (name, value) in enumerate(VALUES.items()):
        dot = marked(axes)[f"dot0-{k}"]
        assert (named(axes)[round(dot.get_xdata()[0])], dot.get_ydata()[0]) == (name, pytest.approx(100 * value))
        assert tips[f"dot0-{k}"].startswith(f"{name}, ce: recall {100 * value:.1f} %")
    (span,) = [line for line in axes.lines if list(line.get_ydata()) == [1, 3]]
    assert named(axes)[round(span.get_xdata()[0])] == "ant"


def test_shares_stand_at_their_names_above_those_of_training(painted: list[Painted]) -> None:
    class_plots.plot_shares(CLASSES, {"gan": [list(VALUES.values())]})
    ((axes, tips),) = painted
    assert named(axes) == ["bee", "cat", "ant"]
    for k, (name, value) in enumerate(VALUES.items()):
        bar = marked(axes)[f"bar0-{k}"]
        place = round(bar.get_x() + bar.get_width() / 2)
        assert (named(axes)[place], bar.get_height()) == (name, pytest.approx(100 * value))
        assert tips[f"bar0-{k}"].startswith(f"{name}, gan: {100 * value:.1f} %")
    trained = axes.lines[-1].get_ydata()
    assert list(trained) == pytest.approx([100 * count / 111 for count in (100, 10, 1)])


def test_shares_of_several_runs_stand_around_their_name(painted: list[Painted]) -> None:
    class_plots.plot_shares(CLASSES, {name: [list(VALUES.values())] for name in ("gan", "twins")})
    ((axes, _),) = painted
    left, right = (marked(axes)[f"bar{s}-1"] for s in range(2))  # of the bee, at 0
    assert left.get_x() == pytest.approx(-(right.get_x() + right.get_width()))
    assert left.get_x() + left.get_width() < 0 < right.get_x()


def test_confusions_have_the_truth_down_and_the_prediction_across(painted: list[Painted]) -> None:
    plots.plot_confusion([[6, 2, 0], [0, 4, 0], [0, 0, 0]], NAMES)
    ((axes, _),) = painted
    written = {(text.get_position()[1], text.get_position()[0]): text.get_text() for text in axes.texts}
    assert written == {(0, 0): "75", (0, 1): "25", (1, 1): "100"}


def test_a_matrixs_shades_are_shares_of_the_true_class() -> None:
    rows = _matrix(np.array([[6, 2, 0], [0, 4, 0], [0, 0, 0]]), [1, 2, 0], NAMES, {})
    assert [(row["name"], row["n"]) for row in rows] == [("bee", 4), ("cat", 0), ("ant", 8)]
    assert [cell["share"] for cell in rows[2]["cells"]] == [f"{100 * 0.25**0.7:.0f}", "0", f"{100 * 0.75**0.7:.0f}"]
    assert [cell["dark"] for cell in rows[2]["cells"]] == [False, False, True]


def test_reliability_is_accuracy_over_confidence(painted: list[Painted]) -> None:
    plots.plot_reliability({"ce": {"confidence": [0.2, None, 0.9], "accuracy": [0.1, None, 0.6], "count": [1, 0, 3]}})
    ((axes, _),) = painted
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("confidence (%)", "accuracy (%)")
    line = axes.lines[-1]
    assert (list(line.get_xdata()), list(line.get_ydata())) == (pytest.approx([20, 90]), pytest.approx([10, 60]))
    (lines,) = [other.lines for other in axes.figure.axes if other is not axes]
    assert list(lines[0].get_ydata()) == pytest.approx([25, 75])


def test_two_repeats_have_a_band_of_their_deviation_and_one_has_none(painted: list[Painted]) -> None:
    plots.plot_line_with_band([0.0, 0.1], {"two": [[50, 60], [54, 60]], "one": [[1, 2]]})
    ((axes, _),) = painted
    (band,) = axes.collections
    (corners,) = (path.vertices for path in band.get_paths())
    assert (corners[:, 1].min(), corners[:, 1].max()) == pytest.approx((52 - 8**0.5, 60))
    assert [list(line.get_ydata()) for line in axes.lines] == [[52, 60], [1, 2]]


def test_domains_are_told_apart_by_name(painted: list[Painted]) -> None:
    points = {"xy": [[0.0, 1.0], [1.0, 0.5]], "labels": [0, 1]}
    plots.plot_domains({"source_points": points, "target_points": {**points, "labels": None}}, NAMES)
    ((axes, _),) = painted
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["source", "target"]


def test_panels_of_the_same_classes_share_their_scale(painted: list[Painted]) -> None:
    class_figure({"low": [("ant", [1, 2], [0.0, 0.1])], "high": [("ant", [1, 2], [0.8, 0.9])]}, "Recall.")
    ((axes, _),) = painted
    one, other = axes.figure.axes
    assert one.get_ylim() == other.get_ylim()
    assert one.lines[0].get_color() == other.lines[0].get_color() == colour(0)
