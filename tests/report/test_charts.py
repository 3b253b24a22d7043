"""What charts say beyond their points: names, scales, legends, limits, and where drawing gives way to summing up."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from evenhand.report.charts import active, attention, class_plots, hessian, pairs, plots, svg
from evenhand.report.charts.svg import GREY, INK, PALETTE, WIDTH, colour, draw, legend, robust_axis, thinned
from evenhand.report.classify import RECALL
from evenhand.tasks.metric import score

FID = score("fid", "FID", digits=2, lower=True)
TINTS = {"a": "#112233", "b": "#445566"}


class Drawn(NamedTuple):
    figure: Any
    size: tuple[float, float]
    alt: str
    tips: dict[str, str]

    @property
    def axes(self) -> Any:
        return self.figure.axes[0]

    @property
    def legend(self) -> list[str]:
        return [text.get_text() for text in self.figure.legends[0].get_texts()]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Drawn]:
    """A plot's figure in place of its SVG, in the page's style."""
    found: list[Drawn] = []

    def keep(width: float, height: float, alt: str, paint: Callable[[Figure], None], tips: Any = None) -> str:
        figure = Figure(figsize=(width, height))
        with matplotlib.rc_context(svg.STYLE):
            paint(figure)
        found.append(Drawn(figure, (width, height), alt, tips or {}))
        return ""

    for room in (class_plots, plots, active, pairs):
        monkeypatch.setattr(room, "draw", keep)

    def call(plot: Callable[..., str], *args: Any, **more: Any) -> Drawn:
        plot(*args, **more)
        return found[-1]

    return call


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """The figure that a function would write to a file, whose place comes after its first arguments."""
    found: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: found.append(figure))

    def call(plot: Callable[..., None], *args: Any, **more: Any) -> Any:
        plot(*args, tmp_path / "x.svg", **more)
        return found[-1]

    return call


def xy(line: Any) -> tuple[list[float], list[float]]:
    return [float(v) for v in line.get_xdata()], [float(v) for v in line.get_ydata()]


def ticks(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def shown(axis: Any) -> bool:
    return bool(axis.axison)


def corners(filled: Any) -> np.ndarray:
    """Lowest and highest point of what is filled at each x: (2, points)."""
    vertices = np.concatenate([path.vertices for path in filled.get_paths()])
    places = sorted(set(vertices[:, 0]))
    of_place = [vertices[vertices[:, 0] == x][:, 1] for x in places]
    return np.array([[y.min() for y in of_place], [y.max() for y in of_place]])


# the page's style


def test_plots_have_two_spines_lines_across_and_no_marks_at_their_ticks() -> None:
    seen: list[Figure] = []

    def paint(figure: Figure) -> None:
        seen.append(figure)
        legend(figure, figure.add_subplot().plot([0, 1], [1, 2]), ["a"])

    draw(5, 3, "", paint)
    (figure,) = seen
    (axes,) = figure.axes
    assert [axes.spines[side].get_visible() for side in ("top", "right", "left", "bottom")] == [
        False,
        False,
        True,
        True,
    ]
    assert {line.get_visible() for line in axes.get_ygridlines()} == {True}
    assert {line.get_visible() for line in axes.get_xgridlines()} == {False}
    assert {mark.get_markersize() for side in (axes.xaxis, axes.yaxis) for mark in side.get_ticklines()} == {0}
    assert axes.get_axisbelow() is True
    assert axes.xaxis.label.get_parse_math() is False
    assert figure.legends[0].get_frame_on() is False
    assert (figure.get_facecolor()[3], axes.get_facecolor()[3]) == (0, 0)  # the page shines through
    assert figure.get_layout_engine() is not None
    assert axes.spines["left"].get_edgecolor()[:3] == pytest.approx([v / 255 for v in (4, 5, 6)])


def test_a_plot_has_the_ids_that_it_refers_to_and_no_others_of_a_page() -> None:
    def points(figure: Figure) -> None:
        figure.add_subplot().plot([0, 1, 2], [1, 3, 2], marker="o")  # a mark is defined once and used thrice

    one, other = (draw(3, 2, alt, points) for alt in ("one", "other"))
    ids = [re.findall(r' id="([^"]*)"', drawn) for drawn in (one, other)]
    assert ids[0]
    assert {*re.findall(r'(?:url\(|href=")#([^")]+)', one)} == {*ids[0]}
    assert {*ids[0]}.isdisjoint(ids[1])
    assert not re.search("<metadata|<style", one)


def test_a_plot_is_as_wide_as_asked_and_is_named_for_those_who_do_not_see_it() -> None:
    def paint(figure: Figure) -> None:
        figure.add_subplot().bar([0], [1])[0].set_gid("bar")

    text = draw(5, 2, "a < b", paint, {"bar": "one & two"})
    assert 'aria-label="a &lt; b" style="width:100%;max-width:480px;--natural:480px"' in text
    assert "<title>one &amp; two</title>" in text
    assert 'viewBox="0 0 360 144"' in text


@pytest.mark.parametrize(
    ("names", "columns"),
    [(["four"] * 5, 5), (["four"] * 12, 10), (["x" * 44] * 5, 2), (["x" * 45] * 5, 1), (["x" * 200] * 5, 1)],
)
def test_a_legend_has_as_many_columns_as_fit(names: list[str], columns: int) -> None:
    figure = Figure()
    handles = [figure.add_subplot().plot([0], [0])[0] for _ in names]
    legend(figure, handles, names)
    assert figure.legends[0]._ncols == columns


def test_a_legend_is_outside_and_names_what_begins_with_an_underscore() -> None:
    figure = Figure()
    legend(figure, figure.add_subplot().plot([0], [0]), ["_run"], 20)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["\u200b_run"]
    assert figure.legends[0]._outside_loc == "upper"


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1, 1, 1, 30], "log"), ([1, 1, 1, 29.9], "linear"), ([0, 0, 0, 0], "linear"), ([], "linear"),
        ([-1, 1, 1, -30], "symlog"), ([0, 1, 1, 30], "symlog"), ([np.nan, 1, 1, 30], "log"), ([5, 5, 5, 140], "linear"),
    ],
)  # fmt: skip
def test_thirty_times_the_median_makes_an_axis_logarithmic(values: list[float], scale: str) -> None:
    axes = Figure().add_subplot()
    assert robust_axis(axes, values) == (scale != "linear")
    assert axes.get_yscale() == scale
    if scale != "linear":
        assert axes.yaxis.get_major_formatter()(1e6) == "1e+06"
        assert axes.yaxis.get_minor_formatter()(5) == ""


def test_below_the_median_a_logarithmic_axis_with_zero_is_even() -> None:
    axes = Figure().add_subplot()
    robust_axis(axes, [0, 2, 4, 6, -400])
    assert axes.yaxis.get_transform().linthresh == 5


def test_many_points_are_drawn_as_means_of_neighbours() -> None:
    x, y = thinned(range(6), [0, 2, 4, 6, 8, 30], 3)
    assert (list(x), list(y)) == ([0.5, 2.5, 4.5], [1, 5, 19])
    assert len(thinned(range(150), range(150))[0]) == 150
    assert list(thinned(range(150), range(150))[1]) == list(range(150))
    assert len(thinned(range(151), range(151))[0]) == 150
    assert len(thinned(range(3000), range(3000))[0]) == 150


def test_colours_and_marks_begin_anew_when_they_are_used_up() -> None:
    assert [colour(i) for i in (0, 9, 10)] == [PALETTE[0], PALETTE[9], PALETTE[0]]
    assert [svg.marker(i) for i in (0, 9, 10)] == ["o", ">", "o"]


# classes along the axis

FIVE = (["ant", "bee", "cat", "dog", "eel"], [3, 1000, 50, 7, 400], {"head": [1, 4], "mid": [2], "tail": [0]})


def test_groups_are_bands_behind_their_classes_named_above_their_middle(drawn: Callable[..., Drawn]) -> None:
    """In order of counts: bee, eel (head), cat (mid), dog (in no group), ant (tail)."""
    axes = drawn(class_plots.plot_counts, FIVE).axes
    bands = [patch for patch in axes.patches if not patch.get_gid()]
    assert [(band.get_x(), band.get_x() + band.get_width()) for band in bands] == [(-0.5, 1.5), (1.5, 2.5), (3.5, 4.5)]
    assert [band.get_alpha() for band in bands] == pytest.approx([0.05, 0.14, 0.23])
    assert {band.get_linewidth() for band in bands} == {0}
    names = [text for text in axes.texts if text.get_text() in FIVE[2]]
    assert [(text.get_text(), *text.get_position()) for text in names] == [
        ("head", 0.5, 1.01), ("mid", 2, 1.01), ("tail", 4, 1.01)
    ]  # fmt: skip
    for text in names:
        assert (text.get_ha(), text.get_va(), text.get_transform()) == ("center", "bottom", axes.get_xaxis_transform())
        assert 0.5 < text.get_alpha() < 1
    assert axes.get_xlim() == (-0.5, 4.5)


def test_counts_are_bars_with_their_numbers_from_half_of_the_smallest(drawn: Callable[..., Drawn]) -> None:
    found = drawn(class_plots.plot_counts, FIVE)
    axes = found.axes
    assert axes.get_ylim() == pytest.approx((1.5, 1800))
    assert axes.get_yscale() == "log"
    assert (axes.yaxis.get_major_formatter()(1000), axes.yaxis.get_minor_formatter()(5)) == ("1,000", "")
    numbers = [text for text in axes.texts if text.get_text() not in FIVE[2]]
    assert [text.get_text() for text in numbers] == ["1,000", "400", "50", "7", "3"]
    heights = [1.06 * n for n in (1000, 400, 50, 7, 3)]
    assert [text.get_position() for text in numbers] == [(i, pytest.approx(h)) for i, h in enumerate(heights)]
    assert {(text.get_ha(), text.get_va()) for text in numbers} == {("center", "bottom")}
    bars = [patch for patch in axes.patches if patch.get_gid()]
    assert {to_hex(bar.get_facecolor()).upper() for bar in bars} == {colour(0)}
    assert all(0.5 < bar.get_width() < 1 for bar in bars)
    assert found.alt == "Training samples of 5 classes, from 1,000 to 3"
    assert axes.get_ylabel() == "training samples (log)"
    assert found.size[0] == WIDTH


def test_a_class_without_samples_stands_on_the_axis(drawn: Callable[..., Drawn]) -> None:
    axes = drawn(class_plots.plot_counts, (["a", "b"], [0, 1], {})).axes
    assert axes.get_ylim() == pytest.approx((0.5, 1.8))
    assert [text.get_position()[1] for text in axes.texts] == pytest.approx([1.06, 0.53])
    with pytest.warns(UserWarning, match="no positive values"):
        assert drawn(class_plots.plot_counts, (["a"], [0], {})).axes.get_ylim() == pytest.approx((0.5, 1.8))


@pytest.mark.parametrize(
    ("count", "bars", "numbers", "names"), [(20, 20, 20, 20), (21, 21, 0, 21), (41, 41, 0, 0), (120, 120, 0, 0)]
)
def test_the_more_classes_the_less_is_written(
    drawn: Callable[..., Drawn], count: int, bars: int, numbers: int, names: int
) -> None:
    axes = drawn(class_plots.plot_counts, ([f"c{k}" for k in range(count)], list(range(count, 0, -1)), {})).axes
    assert (len(axes.patches), len(axes.texts), len(axes.get_xticks())) == (bars, numbers, names)
    assert axes.get_xlabel() == (f"{count} classes, most training samples first" if count > 40 else "")


def test_above_120_classes_counts_are_an_area(drawn: Callable[..., Drawn]) -> None:
    axes = drawn(class_plots.plot_counts, ([str(k) for k in range(121)], [200 - k for k in range(121)], {})).axes
    (area,) = axes.collections
    assert not axes.patches
    low, high = corners(area)
    assert (low.min(), high.max()) == (40, 200)  # half of the smallest, and the largest
    assert corners(area).shape[1] >= 121
    assert 0.5 in area.get_paths()[0].vertices[:, 0]  # steps in the middle between classes
    assert to_hex(area.get_facecolor()[0]).upper() == colour(0)


@pytest.mark.parametrize(
    ("names", "said", "turned"),
    [
        (["a" * 18, "b" * 19], ["a" * 18, "b" * 17 + "…"], False),
        (["a" * 18] * 5, ["a" * 18] * 5, False),
        (["a" * 18] * 5 + ["b"], ["a" * 18] * 5 + ["b"], True),
    ],
)
def test_long_names_are_cut_and_many_letters_stand_aslant(
    drawn: Callable[..., Drawn], names: list[str], said: list[str], turned: bool
) -> None:
    axes = drawn(class_plots.plot_counts, (names, list(range(len(names), 0, -1)), {})).axes
    assert ticks(axes.xaxis) == said
    looks = {(label.get_rotation(), label.get_ha(), label.get_rotation_mode()) for label in axes.get_xticklabels()}
    assert looks == {(40, "right", "anchor") if turned else (0, "center", "default")}


def test_scores_of_two_runs_stand_left_and_right_of_their_class(drawn: Callable[..., Drawn]) -> None:
    classes = (["ant", "bee"], [1, 9], {})
    series = {"a": [[0.2, 0.5], [0.4, 0.7]], "c": [[0.9, 0.8]]}
    found = drawn(class_plots.plot_scores, classes, RECALL, series, TINTS, {"a": {0}})
    dots = {line.get_gid(): line for line in found.axes.lines if line.get_gid()}
    places = {gid: (*xy(dot)[0], *xy(dot)[1]) for gid, dot in dots.items()}
    want = {"dot0-1": (-0.175, 60), "dot0-0": (0.825, 30), "dot1-1": (0.175, 80), "dot1-0": (1.175, 90)}
    assert places == {gid: pytest.approx(place) for gid, place in want.items()}
    assert [dots[gid].get_markerfacecolor() for gid in ("dot0-0", "dot0-1")] == ["none", TINTS["a"]]
    assert dots["dot0-0"].get_markeredgewidth() > 0 == dots["dot0-1"].get_markeredgewidth()
    assert [dots[f"dot{s}-0"].get_color() for s in range(2)] == [TINTS["a"], colour(1)]
    assert [dots[f"dot{s}-0"].get_marker() for s in range(2)] == ["o", "s"]
    bars = [xy(line) for line in found.axes.lines if not line.get_gid() and len(line.get_xdata())]
    assert ([pytest.approx(-0.175)] * 2, pytest.approx([50, 70])) in bars
    assert ([pytest.approx(0.825)] * 2, pytest.approx([20, 40])) in bars
    assert found.tips["dot0-0"] == "ant, a: recall 30.0 % (seeds: 20.0, 40.0)"
    assert found.legend == ["a", "c"]
    assert [handle.get_marker() for handle in found.figure.legends[0].legend_handles] == ["o", "s"]
    assert (found.axes.get_ylim(), found.axes.get_ylabel()) == ((-2, 102), "recall (%)")
    assert found.alt == "Recall of 2 classes for a, c, most training samples first"


def test_a_class_undefined_for_a_seed_has_no_dot_and_the_next_ones_have(drawn: Callable[..., Drawn]) -> None:
    series = {"a": [[0.2, None, 0.4], [0.2, 0.1, 0.4]]}
    found = drawn(class_plots.plot_scores, (["x", "y", "z"], [9, 8, 7], {}), RECALL, series)
    assert sorted(found.tips) == ["dot0-0", "dot0-2"]


def test_intervals_are_thinner_than_the_span_of_seeds(drawn: Callable[..., Drawn]) -> None:
    series, ranges = {"a": [[0.2], [0.4]], "b": [[0.5]]}, {"a": [(10.0, 30.0, 60.0)]}
    lines = drawn(class_plots.plot_scores, (["x"], [9], {}), RECALL, series, None, None, ranges).axes.lines
    (interval,) = (line for line in lines if xy(line)[1] == [10, 60])
    (span,) = (line for line in lines if xy(line)[1] == pytest.approx([20, 40]))
    assert xy(interval)[0] == xy(span)[0]
    assert interval.get_linewidth() < span.get_linewidth()
    assert 0 < span.get_alpha() < interval.get_alpha() < 1
    assert interval.get_color() == span.get_color() == colour(0)


def test_scores_without_a_unit_begin_at_nought_or_are_logarithmic(drawn: Callable[..., Drawn]) -> None:
    classes = (["x", "y", "z"], [9, 8, 7], {})
    calm, wild = (drawn(class_plots.plot_scores, classes, FID, {"a": [[5, 6, v]]}).axes for v in (7, 7e5))
    assert (calm.get_ylim()[0], calm.get_yscale(), calm.get_ylabel()) == (0, "linear", "FID ↓")
    assert calm.get_ylim()[1] < 20
    assert (wild.get_yscale(), wild.get_ylabel()) == ("log", "FID ↓ (log)")
    share = drawn(class_plots.plot_scores, classes, RECALL, {"a": [[1e-9, 1e-9, 1]]}).axes
    assert share.get_yscale() == "linear"  # of what lies between 0 and 100 %


def test_scores_of_many_classes_are_a_line_over_those_that_have_one(drawn: Callable[..., Drawn]) -> None:
    count = 101
    values = [None, *(k / 100 for k in range(1, count))]
    found = drawn(class_plots.plot_scores, (["x"] * count, list(range(count, 0, -1)), {}), RECALL, {"a": [values]})
    (line,) = found.axes.lines
    x, y = xy(line)
    assert len(x) == 50
    assert (x[0], y[0], x[-1], y[-1]) == pytest.approx((1.5, 1.5, 99.5, 99.5))
    assert line.get_marker() == "o"
    assert found.legend == ["a"]
    assert found.tips == {}
    assert found.axes.get_ylabel() == "recall (%), mean of neighbouring classes"


def test_shares_have_lines_over_their_seeds_and_a_dashed_one_at_even_shares(drawn: Callable[..., Drawn]) -> None:
    classes = (["ant", "bee"], [1, 9], {})
    series = {"a": [[0.2, 0.8], [0.4, 0.6]], "c": [[0.5, 0.5]]}
    found = drawn(class_plots.plot_shares, classes, series, TINTS)
    bars = {bar.get_gid(): bar for bar in found.axes.patches}
    middles = {gid: (bar.get_x() + bar.get_width() / 2, bar.get_height()) for gid, bar in bars.items()}
    want = {"bar0-1": (-0.2, 70), "bar0-0": (0.8, 30), "bar1-1": (0.2, 50), "bar1-0": (1.2, 50)}
    assert middles == {gid: pytest.approx(place) for gid, place in want.items()}
    assert [bar.get_width() for bar in bars.values()] == pytest.approx([0.92 * 0.4] * 4)
    assert [to_hex(bars[f"bar{s}-0"].get_facecolor()).upper() for s in range(2)] == [TINTS["a"], colour(1)]
    spans = found.axes.collections[0]
    assert to_hex(spans.get_color()[0]) == INK
    first = spans.get_segments()
    assert [[tuple(end) for end in line] for line in first] == [
        [pytest.approx((-0.2, 60)), pytest.approx((-0.2, 80))], [pytest.approx((0.8, 20)), pytest.approx((0.8, 40))]
    ]  # fmt: skip
    even, trained = found.axes.lines
    assert (xy(even), even.get_linestyle()) == (([-0.5, 1.5], [50, 50]), "--")
    assert (xy(trained), trained.get_marker(), trained.get_linestyle()) == (([0, 1], [90, 10]), ".", "None")
    assert trained.get_zorder() > max(bar.get_zorder() for bar in bars.values())
    assert {line.get_color() for line in (even, trained)} == {INK}
    assert found.tips["bar0-0"] == "ant, a: 30.0 % of what is drawn (seeds: 20.0, 40.0)"
    assert found.legend == ["a", "c", "even: 50 %", "training data"]
    assert (found.axes.get_ylim()[0], found.axes.get_ylabel()) == (0, "share of drawn images (%)")
    assert found.alt == "Share of 2 classes in what a, c draw, against 50 % each"


def test_shares_of_many_classes_are_lines_of_means(drawn: Callable[..., Drawn]) -> None:
    for count, bars in ((40, 40), (41, 0), (100, 0)):
        classes = ([str(k) for k in range(count)], list(range(count, 0, -1)), {})
        axes = drawn(class_plots.plot_shares, classes, {"a": [[k / 1000 for k in range(count)]]}).axes
        assert (len(axes.patches), len(axes.lines)) == (bars, 2 if bars else 3)
    x, y = xy(axes.lines[0])
    assert len(x) == 50
    assert (x[0], y[0], x[-1], y[-1]) == pytest.approx((0.5, 0.05, 98.5, 9.85))
    assert axes.lines[0].get_color() == colour(0)
    assert len(axes.lines[2].get_xdata()) == 50
    untrained = drawn(class_plots.plot_shares, (["a", "b"], [0, 0], {}), {"a": [[0.5, 0.5]]}).axes
    assert xy(untrained.lines[-1])[1] == [0, 0]


# curves, matrices, reliability, domains


@pytest.mark.parametrize(
    ("panels", "grid"), [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (7, (3, 3))]
)
def test_panels_stand_in_a_grid_and_places_left_over_are_empty(
    drawn: Callable[..., Drawn], panels: int, grid: tuple[int, int]
) -> None:
    lines = {f"p{i}": [("a", [1, 2], [i, i + 1])] for i in range(panels)}
    found = drawn(plots.plot_curves, lines, TINTS, "step")
    axes = found.figure.axes
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == grid
    assert [shown(one) for one in axes] == [True] * panels + [False] * (grid[0] * grid[1] - panels)
    assert [one.get_title(loc="left") for one in axes[:panels]] == list(lines)
    assert {one.get_xlabel() for one in axes[:panels]} == {"step"}
    assert found.size == (WIDTH if panels > 1 else 5, pytest.approx(0.5 + 2.3 * grid[0]))
    assert found.alt == f"Curves during training: {', '.join(lines)}"


def test_each_panel_has_its_own_scale_and_a_single_value_is_a_dot(drawn: Callable[..., Drawn]) -> None:
    panels = {
        "low": [("a", [1, 2], [0.0, 0.1]), ("a", [1, 2], [0.1, 0.2])],
        "wild": [("b", [1, 2, 3], [1.0, 1.0, 900.0])],
        "one": [("b", [7], [5.0])],
    }
    found = drawn(plots.plot_curves, panels, TINTS, "epoch")
    low, wild, one = found.figure.axes
    assert [axes.get_yscale() for axes in (low, wild, one)] == ["linear", "log", "linear"]
    assert wild.get_title(loc="left") == "wild (log)"
    assert [line.get_marker() for line in (*low.lines, *wild.lines, *one.lines)] == ["", "", "", "o"]
    assert [line.get_color() for line in (low.lines[1], wild.lines[0])] == [TINTS["a"], TINTS["b"]]
    assert low.get_ylim() != one.get_ylim()
    assert found.legend == ["a", "b"]  # once each


def test_panels_that_share_their_scale_are_logarithmic_together(drawn: Callable[..., Drawn]) -> None:
    panels = {"low": [("a", [1, 2], [1.0, 1.0])], "high": [("a", [1, 2, 3], [1.0, 1.0, 900.0])]}
    for alike, scales in ((True, ["log", "log"]), (False, ["linear", "log"])):
        found = drawn(plots.plot_curves, panels, TINTS, "step", alike=alike)
        assert [axes.get_yscale() for axes in found.figure.axes] == scales


def test_a_confusion_is_blue_where_right_and_darker_the_more(drawn: Callable[..., Drawn]) -> None:
    found = drawn(plots.plot_confusion, [[3, 1], [2, 2]], ["ant", "n" * 19], "ce")
    axes = found.axes
    rgba = axes.images[0].get_array()
    blue, vermilion = ([*bytes.fromhex(tint[1:])] for tint in PALETTE[:2])
    assert np.rint(255 * rgba[..., :3]).tolist() == [[blue, vermilion], [vermilion, blue]]
    assert np.asarray(rgba[..., 3]) == pytest.approx(np.array([[0.75, 0.25], [0.5, 0.5]]) ** 0.7)
    assert [text.get_color() for text in axes.texts] == ["white", INK, "white", "white"]
    assert {(text.get_ha(), text.get_va()) for text in axes.texts} == {("center", "center")}
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == ["ant", "n" * 17 + "…"]
    assert {(label.get_rotation(), label.get_ha(), label.get_rotation_mode()) for label in axes.get_xticklabels()} == {
        (45, "right", "anchor")
    }
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert axes.get_title(loc="left") == "ce"
    assert not any(line.get_visible() for line in (*axes.get_xgridlines(), *axes.get_ygridlines()))
    assert found.alt == "Confusion matrix of 2 classes, ce"
    assert drawn(plots.plot_confusion, [[1]], ["a"]).alt == "Confusion matrix of 1 classes"


@pytest.mark.parametrize(
    ("count", "numbers", "named", "label", "power", "side"),
    [
        (12, 12, True, "predicted class", 0.7, 5.4), (20, 20, True, "predicted class", 0.7, 6.4),
        (21, 0, True, "predicted class", 0.45, 6.4), (30, 0, True, "predicted class", 0.45, 6.4),
        (31, 0, False, "predicted class", 0.45, 6.4), (100, 0, False, "predicted class", 0.45, 6.4),
        (200, 0, False, "predicted class (200 classes in 100 blocks)", 0.45, 6.4),
    ],
)  # fmt: skip
def test_confusions_of_many_classes_lose_numbers_then_names_then_cells(
    drawn: Callable[..., Drawn], count: int, numbers: int, named: bool, label: str, power: float, side: float
) -> None:
    """Half of each class is right, the rest is taken for the class after the next."""
    counts = np.eye(count) + np.roll(np.eye(count), 2, 1)
    found = drawn(plots.plot_confusion, counts, [f"c{k}" for k in range(count)])
    axes = found.axes
    assert len(axes.texts) == 2 * numbers
    assert (len(axes.get_xticks()), len(axes.get_yticks())) == ((count, count) if named else (0, 0))
    assert axes.get_xlabel() == label
    shades = axes.images[0].get_array()[..., 3]
    assert (shades[0, 0], shades[0, 200 // max(count, 100)]) == pytest.approx((0.5**power, 0.5**power))
    assert found.size == (side, pytest.approx(0.92 * side))


def test_reliability_has_a_diagonal_and_the_colours_of_its_runs(drawn: Callable[..., Drawn]) -> None:
    bins = {"confidence": [0.2, 0.9], "accuracy": [0.1, 0.6], "count": [1, 3]}
    empty = {"confidence": [None], "accuracy": [None], "count": [0]}
    found = drawn(plots.plot_reliability, {"c": bins, "a": bins, "d": empty}, TINTS)
    left, right = found.figure.axes
    diagonal, *lines = left.lines
    assert (xy(diagonal), diagonal.get_linestyle(), diagonal.get_color()) == (([0, 100], [0, 100]), "--", INK)
    assert 0 < diagonal.get_alpha() < 1
    for panel in (lines, right.lines):
        assert [line.get_color() for line in panel] == [colour(0), TINTS["a"], colour(2)]
        assert [line.get_marker() for line in panel] == ["o", "s", "D"]
    assert [len(line.get_xdata()) for line in lines] == [2, 2, 0]
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("right as often as sure?", "how sure?")
    assert (left.get_xlim(), right.get_xlim(), left.get_ylim()) == ((0, 101),) * 3
    assert (right.get_ylim()[0], right.get_ylabel(), right.get_xlabel()) == (0, "samples (%)", "confidence (%)")
    assert right.get_ylim()[1] < 101
    assert found.legend == ["c", "a", "d"]
    assert found.alt == "Reliability diagram for c, a, d; the diagonal is perfect calibration"


def test_domains_are_coloured_by_domain_and_by_class(drawn: Callable[..., Drawn]) -> None:
    points = {
        "source_points": {"xy": [[0.0, 1.0], [1.0, 0.5], [3.0, 4.0]], "labels": [2, 9, 10]},
        "target_points": {"xy": [[5.0, 6.0]], "labels": None},
    }
    found = drawn(plots.plot_domains, points, ["x"] * 10)
    left, right = found.figure.axes
    source, target = left.collections
    assert source.get_offsets().tolist() == [[0, 1], [1, 0.5], [3, 4]]
    assert target.get_offsets().tolist() == right.collections[1].get_offsets().tolist() == [[5, 6]]
    assert [to_hex(part.get_facecolor()[0]).upper() for part in (source, target)] == [colour(0), colour(1)]
    by_class = [[to_hex(tint).upper() for tint in part.get_facecolor()] for part in right.collections]
    assert by_class == [[colour(2), colour(9), GREY], [GREY]]
    shapes = [len(part.get_paths()[0].vertices) for part in (source, target)]
    assert shapes[0] > shapes[1]  # a circle and a triangle
    assert [len(part.get_paths()[0].vertices) for part in right.collections] == shapes
    assert {part.get_alpha() < 1 for part in (*left.collections, *right.collections)} == {True}
    assert {float(part.get_linewidth()[0]) for part in (*left.collections, *right.collections)} == {0}
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("by domain", "by class")
    assert left.get_shared_x_axes().joined(left, right)
    assert left.get_shared_y_axes().joined(left, right)
    assert not any(len(axis.get_ticklocs()) for one in (left, right) for axis in (one.xaxis, one.yaxis))
    assert found.alt == "Features of source and target in two dimensions, 10 classes"
    eleven = drawn(plots.plot_domains, points, ["x"] * 11).figure.axes[1]
    assert eleven.get_title(loc="left") == "by class, the first 10 in colour"


def test_a_band_is_of_its_lines_colour_and_lets_others_shine_through(drawn: Callable[..., Drawn]) -> None:
    series = {"a": [[1, 2]], "b": [[1, 3], [3, 3]]}
    found = drawn(plots.plot_line_with_band, [1, 100], series, xlabel="rho", ylabel="%", log_x=True)
    (band,) = found.axes.collections
    assert to_hex(band.get_facecolor()[0]).upper() == colour(1) == found.axes.lines[1].get_color()
    assert 0 < band.get_alpha() < 0.5
    edges = sorted({round(float(y), 4) for x, y in band.get_paths()[0].vertices if x == 1})
    assert edges == [0.5858, 3.4142]  # 2 less and more the root of 2
    assert [line.get_marker() for line in found.axes.lines] == ["o", "s"]
    assert found.axes.get_xscale() == "log"
    assert (found.axes.get_xlabel(), found.axes.get_ylabel(), found.legend) == ("rho", "%", ["a", "b"])
    assert found.alt == "% over rho for a, b"
    assert drawn(plots.plot_line_with_band, [1, 100], series).axes.get_xscale() == "linear"


# labels bought in rounds


def test_accuracy_over_labels_has_a_band_where_there_is_an_error(drawn: Callable[..., Drawn]) -> None:
    curves = {"b": ([4, 8], [50, 60], [2, 3]), "a": ([4, 8], [40, 45], [np.nan, np.nan])}
    found = drawn(active.plot_labels, curves, TINTS)
    (band,) = found.axes.collections
    assert corners(band).tolist() == [[48, 57], [52, 63]]
    assert 0 < band.get_alpha() < 0.5
    assert to_hex(band.get_facecolor()[0]) == TINTS["b"]
    assert [xy(line) for line in found.axes.lines] == [([4, 8], [50, 60]), ([4, 8], [40, 45])]
    assert [(line.get_color(), line.get_marker()) for line in found.axes.lines] == [
        (TINTS["b"], "o"),
        (TINTS["a"], "s"),
    ]
    assert (found.axes.get_xlabel(), found.axes.get_ylabel()) == ("labels bought in the target", "accuracy (%)")
    assert (found.legend, found.alt) == (["b", "a"], "Accuracy over labels for b, a")


def test_rounds_are_panels_and_the_picked_are_red_squares(drawn: Callable[..., Drawn]) -> None:
    first = {"source": [[1, 2]], "pool": [[3, 4], [5, 6]], "picked": [[3, 4]]}
    later = {**first, "labelled": [[7, 8]]}
    found = drawn(active.plot_chosen, [first, later, later, later])
    axes = found.figure.axes
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 3)
    assert [shown(one) for one in axes] == [True] * 4 + [False] * 2
    assert [one.get_title(loc="left") for one in axes[:4]] == [f"round {n}" for n in (1, 2, 3, 4)]
    points = {part.get_label(): part for part in axes[1].collections}
    assert list(points) == ["source", "pool", "labelled", "picked"]
    assert [part.get_offsets().tolist() for part in points.values()] == [
        [[1, 2]], [[3, 4], [5, 6]], [[7, 8]], [[3, 4]]
    ]  # fmt: skip
    assert to_hex(points["picked"].get_edgecolor()[0]).upper() == active.RED
    assert len(points["picked"].get_facecolor()) == 0
    assert float(points["picked"].get_linewidth()[0]) > 0
    for name, (_, tint, size) in active.KINDS.items():
        assert to_hex(points[name].get_facecolor()[0]).upper() == tint
        assert (points[name].get_sizes()[0], float(points[name].get_linewidth()[0])) == (size, 0)
        assert 0 < points[name].get_alpha() < 1
        assert points["picked"].get_sizes()[0] > size
    assert len({len(part.get_paths()[0].vertices) for part in points.values()}) == 3  # dots, triangles, squares
    assert not any(len(axis.get_ticklocs()) for one in axes[:4] for axis in (one.xaxis, one.yaxis))
    assert found.legend == ["source", "pool", "labelled", "picked"]  # as from the second round on
    assert drawn(active.plot_chosen, [first]).legend == ["source", "pool", "picked"]
    assert found.size == (WIDTH, pytest.approx(0.5 + 3.2 * 2))
    assert found.alt == "What was chosen in 4 rounds, in two dimensions of features"


def test_labels_bought_are_bars_under_the_classes_names(drawn: Callable[..., Drawn]) -> None:
    found = drawn(active.plot_bought, {"b": [3, 0.5], "a": [1, 2]}, ["ant", "bee"], TINTS)
    upper, lower = found.figure.axes
    assert [[bar.get_height() for bar in one.patches] for one in (upper, lower)] == [[3, 0.5], [1, 2]]
    assert [bar.get_x() + bar.get_width() / 2 for bar in upper.patches] == pytest.approx([0, 1])
    assert all(0.5 < bar.get_width() < 1 for bar in upper.patches)
    assert [to_hex(one.patches[0].get_facecolor()) for one in (upper, lower)] == [TINTS["b"], TINTS["a"]]
    assert [one.get_title(loc="left") for one in (upper, lower)] == ["b", "a"]
    assert upper.get_ylim() == lower.get_ylim()
    assert upper.get_shared_x_axes().joined(upper, lower)
    assert ticks(lower.xaxis) == ["ant", "bee"]
    assert {(label.get_rotation(), label.get_ha(), label.get_rotation_mode()) for label in lower.get_xticklabels()} == {
        (45, "right", "anchor")
    }
    assert found.size == (WIDTH, pytest.approx(0.8 + 1.1 * 2))
    assert found.alt == "Labels bought of each class by b, a"


@pytest.mark.parametrize(("count", "label"), [(30, ""), (31, "31 classes")])
def test_above_thirty_classes_what_was_bought_is_unnamed(drawn: Callable[..., Drawn], count: int, label: str) -> None:
    axes = drawn(active.plot_bought, {"a": [1] * count}, [f"c{k}" for k in range(count)], TINTS).axes
    assert (axes.get_xlabel(), len(axes.get_xticks())) == (label, 0 if label else count)


# pairs of classes


def test_pairs_are_titled_by_step_and_named_while_their_names_fit(drawn: Callable[..., Drawn]) -> None:
    for count, side, named in ((12, 12, True), (13, 13, False), (12, 6, False)):
        names = [f"class number {k:02}" for k in range(count)]
        found = drawn(
            pairs.plot_pair_matrices, [0, 50], np.ones((2, side, side)), np.ones((2, side, side)), names, "ce"
        )
        grid = found.figure.axes
        assert [axes.get_title(loc="left") for axes in grid] == [
            "gain, step 0", "gain, step 50", "drawn, step 0", "drawn, step 50"
        ]  # fmt: skip
        assert ticks(grid[0].yaxis) == ticks(grid[2].yaxis) == ([name[:14] for name in names] if named else [])
        assert list(grid[0].get_yticks()) == (list(range(count)) if named else [])
        assert not any(len(axes.get_xticks()) for axes in grid)
        assert not any(len(axes.get_yticks()) for axes in (grid[1], grid[3]))
        assert [axes.get_ylabel() for axes in grid] == ["label's class", "", "label's class", ""]
        assert [axes.get_xlabel() for axes in grid] == ["", "", "partner's class", ""]
        assert not any(line.get_visible() for axes in grid for line in (*axes.get_xgridlines(), *axes.get_ygridlines()))
    assert found.alt == "Gains and shares of class pairs at steps 0, 50, ce"
    assert drawn(pairs.plot_pair_matrices, [7], np.zeros((1, 2, 2)), np.zeros((1, 2, 2)), ["a", "b"]).alt.endswith(" 7")


def test_a_matrix_of_pairs_is_as_tall_as_it_is_wide(drawn: Callable[..., Drawn]) -> None:
    """At least three would fit beside each other, so that one is not the whole page."""
    sizes = {}
    for count in (1, 3, 4):
        matrices = np.ones((count, 2, 2))
        sizes[count] = drawn(pairs.plot_pair_matrices, range(count), matrices, matrices, ["a", "b"]).size
    assert sizes == {n: (WIDTH, pytest.approx(0.4 + 2 * WIDTH / max(n, 3) * 0.95)) for n in sizes}


def test_fidelity_is_the_change_over_the_prediction_with_a_diagonal(drawn: Callable[..., Drawn]) -> None:
    rows = {"c": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "a": np.array([[-2.0, 0.0, 1.0]])}
    found = drawn(pairs.plot_fidelity, rows, TINTS)
    soft, hard = found.figure.axes
    assert [part.get_offsets().tolist() for part in soft.collections] == [[[1, 2], [4, 5]], [[-2, 0]]]
    assert [part.get_offsets().tolist() for part in hard.collections] == [[[1, 3], [4, 6]], [[-2, 1]]]
    for axes in (soft, hard):
        (diagonal,) = axes.lines
        assert (xy(diagonal), diagonal.get_linestyle()) == (([-2, 4], [-2, 4]), "--")
        assert [to_hex(part.get_facecolor()[0]).upper() for part in axes.collections] == [colour(0), TINTS["a"]]
        assert {part.get_alpha() < 1 for part in axes.collections} == {True}
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("change predicted by the gain", "change of the objective")
    assert [axes.get_title(loc="left") for axes in (soft, hard)] == ["soft predictions", "hard predictions"]
    assert found.legend == ["c", "a"]
    assert found.alt == "Gain fidelity of c, a; on the diagonal a gain comes true"
    above = drawn(pairs.plot_fidelity, {"a": np.ones((1, 3))}, {}).axes
    assert xy(above.lines[0]) == ([0, 1], [0, 1])  # nought is always there
    below = drawn(pairs.plot_fidelity, {"a": -0.5 * np.ones((1, 3))}, {}).axes
    assert xy(below.lines[0]) == ([-0.5, 0], [-0.5, 0])


# curvature


def spectrum(density: list[float], low: float = -1.0, high: float = 2.0) -> Any:
    grid = torch.linspace(low, high, len(density))
    return SimpleNamespace(density=lambda: (grid, torch.tensor(density)), minimum=low, maximum=high, ratio=0.5)


@pytest.mark.parametrize(("count", "grid"), [(1, (1, 1)), (2, (1, 2)), (5, (2, 3)), (17, (5, 4))])
def test_spectra_stand_in_a_grid_of_at_most_four_columns(
    saved: Callable[..., Any], count: int, grid: tuple[int, int]
) -> None:
    figure = saved(hessian.plot_spectra, {f"c{k}": spectrum([1, 1, 1]) for k in range(count)}, title="epoch 3")
    assert len(figure.axes) == count  # the other places are taken away
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == grid
    assert figure.get_size_inches().tolist() == pytest.approx([4.2 * grid[1], 2.6 * grid[0] + 0.4])
    assert figure.get_layout_engine() is not None
    assert (figure.get_suptitle(), figure.get_supxlabel()) == ("epoch 3", "eigenvalue of the Hessian")
    assert figure.get_supylabel() == "log10 density"
    first = figure.axes[0]
    assert all(first.get_shared_y_axes().joined(first, other) for other in figure.axes[1:])
    assert not any(first.get_shared_x_axes().joined(first, other) for other in figure.axes[1:])


def test_a_spectrum_is_the_logarithm_of_its_density_above_minus_seven(saved: Callable[..., Any]) -> None:
    (axes,) = saved(hessian.plot_spectra, {"shirt": spectrum([0.01, 0.0, 1.0, 100.0])}).axes
    positive, negative = axes.collections
    assert corners(positive).tolist() == [[-7] * 3, pytest.approx([-7, 0, 2], abs=1e-4)]
    assert corners(negative).tolist() == [[-7] * 2, pytest.approx([-2, -7], abs=1e-4)]
    assert [to_hex(part.get_facecolor()[0]).upper() for part in (positive, negative)] == [colour(0), colour(1)]
    assert axes.get_title() == "shirt: -1 to 2, ratio 0.5"
    assert [axes.spines[side].get_visible() for side in ("top", "right", "left")] == [False, False, True]
    assert axes.get_axisbelow() is True
    assert {line.get_visible() for line in axes.get_ygridlines()} == {True}
    assert {line.get_visible() for line in axes.get_xgridlines()} == {False}


def test_dynamics_go_by_epoch_and_a_flat_minimum_has_no_ratio(saved: Callable[..., Any]) -> None:
    figure = saved(hessian.plot_dynamics, {"boot": [(10, -2, 8), (5, -1, 10)], "coat": [(5, -1, 0)]}, title="t")
    ratio, lowest, highest = figure.axes
    assert [xy(axes.lines[0]) for axes in figure.axes] == [
        ([5, 10], pytest.approx([0.1, 0.25])), ([5, 10], [-1, -2]), ([5, 10], [10, 8])
    ]  # fmt: skip
    assert np.isnan(xy(ratio.lines[1])[1]).all()
    for axes in figure.axes:
        assert [(line.get_color(), line.get_marker()) for line in axes.lines] == [(colour(0), "o"), (colour(1), "s")]
        assert axes.get_xlabel() == "epoch"
        assert axes.spines["top"].get_visible() is False
    assert [axes.get_title() for axes in figure.axes] == ["|smallest / largest|", "smallest eigenvalue", "largest"]
    told = highest.get_legend()
    assert [text.get_text() for text in told.get_texts()] == ["boot", "coat"]
    assert (told.get_title().get_text(), told.get_frame_on()) == ("class", False)
    place = told.get_bbox_to_anchor().transformed(highest.transAxes.inverted())
    assert (place.x0, place.y0) == pytest.approx((1.02, 0.5))  # beside the panel
    assert (lowest.get_legend(), figure.get_suptitle()) == (None, "t")
    assert figure.get_layout_engine() is not None


# a transformer's tokens


def test_attention_shows_the_last_checkpoint_and_the_cosine_of_all(saved: Callable[..., Any]) -> None:
    rows = [
        {"epoch": 1, "distance": [[9.0]], "rank": {"cls": [9]}, "cosine": 0.5},
        {"epoch": 3, "distance": [[3.0, 1.0], [2.0, 4.0]], "rank": {"cls": [5, 7], "dist": [6, 8]}, "cosine": 0.25},
    ]
    teacher = {"weak": {"largest": 2.0, "histogram": [0.25, 0.75]}, "mixed": {"largest": 2.0, "histogram": [1.0, 0.0]}}
    found = {"rows": rows, "cosine_in_training": [[0.5, 0.9], [1.5, 0.8]], "teacher": teacher}
    figure = saved(attention.plot_attention, found, title="t")
    distances, ranks, cosine, entropy = figure.axes
    assert [xy(line) for line in distances.lines] == [([1, 2], [1, 3]), ([1, 2], [2, 4])]
    assert [xy(line) for line in ranks.lines] == [([1, 2], [5, 7]), ([1, 2], [6, 8])]
    assert [xy(line) for line in cosine.lines] == [([0.5, 1.5], [0.9, 0.8]), ([1, 3], [0.5, 0.25])]
    assert cosine.lines[1].get_marker() == "o"
    steps = [patch.get_data() for patch in entropy.patches]
    assert [(list(step.values), list(step.edges)) for step in steps] == [
        ([0.25, 0.75], [0, 1, 2]), ([1, 0], [0, 1, 2])
    ]  # fmt: skip
    assert [to_hex(patch.get_edgecolor()).upper() for patch in entropy.patches] == [colour(0), colour(1)]
    told = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert told == [["block 1", "block 2"], ["CLS", "DIST"], ["training batches", "checkpoints, unaugmented"],
                    ["weak views", "mixed views"]]  # fmt: skip
    for axes in (distances, ranks):
        assert [(line.get_color(), line.get_marker()) for line in axes.lines] == [(colour(0), "o"), (colour(1), "s")]
    assert [line.get_color() for line in cosine.lines] == [colour(0), colour(1)]
    assert [axes.get_xlabel() for axes in figure.axes] == ["head, sorted", "block", "epoch", "nats"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["pixels", "", "", "share of images"]
    assert [axes.get_title() for axes in figure.axes] == [
        "Mean attention distance", "Directions of rare classes' tokens", "Cosine of CLS and DIST",
        "Entropy of the teacher",
    ]  # fmt: skip
    for axes in figure.axes:
        assert [axes.spines[side].get_visible() for side in ("top", "right", "left")] == [False, False, True]
        assert axes.get_legend().get_frame_on() is False
        assert axes.get_axisbelow() is True
        assert {line.get_visible() for line in axes.get_xgridlines()} == {False}
    assert (figure.get_suptitle(), figure.get_size_inches().tolist()) == ("t", pytest.approx([17.6, 3.6]))
    assert figure.get_layout_engine() is not None


def test_attention_leaves_out_what_there_is_not(saved: Callable[..., Any]) -> None:
    row = {"epoch": 1, "distance": [[9.0]], "rank": {"cls": [9]}}
    bare = {"rows": [row], "cosine_in_training": [], "teacher": {}}
    assert len(saved(attention.plot_attention, bare).axes) == 2
    logged = saved(attention.plot_attention, {**bare, "cosine_in_training": [[1.0, 0.5]]}).axes[2]
    assert [line.get_label() for line in logged.lines] == ["training batches"]
    measured = saved(attention.plot_attention, {**bare, "rows": [{**row, "cosine": 0.5}]}).axes[2]
    assert [line.get_label() for line in measured.lines] == ["checkpoints, unaugmented"]


def test_rollouts_lie_over_their_images_grey_ones_too(saved: Callable[..., Any]) -> None:
    maps = {"cls": np.arange(8.0).reshape(2, 2, 2), "mean": np.zeros((2, 2, 2))}
    grey = np.linspace(0, 1, 2 * 4 * 6).reshape(2, 4, 6, 1)
    figure = saved(attention.plot_rollout, grey, ["ant", "bee"], maps)
    panels = np.array(figure.axes).reshape(3, 2)
    for i in range(2):
        assert np.array_equal(panels[0, i].images[0].get_array(), np.repeat(grey[i], 3, -1))
        for row, values in enumerate(maps.values(), 1):
            under, over = panels[row, i].images
            assert np.array_equal(under.get_array(), np.repeat(grey[i], 3, -1))
            assert np.array_equal(over.get_array(), values[i])
            assert list(over.get_extent()) == list(under.get_extent()) == [-0.5, 5.5, 3.5, -0.5]
            assert 0 < over.get_alpha() < 1
            assert (over.get_cmap().name, over.get_interpolation()) == ("inferno", "bilinear")
    assert [axes.get_title() for axes in panels[0]] == ["ant", "bee"]
    assert [axes.get_ylabel() for axes in panels[:, 0]] == ["image", "CLS", "mean"]
    assert not any(len(axis.get_ticklocs()) for one in panels.ravel() for axis in (one.xaxis, one.yaxis))
    assert figure.get_size_inches().tolist() == pytest.approx([1.6 * 2 + 0.6, 1.7 * 3])
    coloured = np.random.default_rng(0).random((1, 4, 6, 3))
    (single,) = (axes.images[0] for axes in saved(attention.plot_rollout, coloured, ["x"], {}).axes)
    assert np.array_equal(single.get_array(), coloured[0])
