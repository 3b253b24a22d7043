"""Sections on cycles, pairs, self-training, adaptation, galleries, contrasts and folders, from files made by hand."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from evenhand.errors import UserError
from evenhand.report import adaptation, curves, cycles, detect, experts, gallery, page, selftraining
from evenhand.report import selmix as pairs
from evenhand.report.charts.svg import INK
from evenhand.report.contrast import Estimate, contrasts, difference, estimate, verb
from evenhand.report.cycles import Group
from evenhand.report.look import write_look
from evenhand.report.reading import load_run, run_folders
from evenhand.report.records import RunGroup, RunRecord
from evenhand.report.table import Cell, Table
from evenhand.tasks import Task
from evenhand.tasks.classify import CLASSIFY
from evenhand.tasks.detect import DETECT
from evenhand.tasks.generate import GENERATE
from evenhand.tasks.metric import Metric, score

NAMES, COUNTS = ["ant", "bee", "cat"], [1, 100, 10]
ROOMS = (adaptation, cycles, detect, experts, pairs, selftraining)


def run(name: str = "a", folder: Path = Path("nowhere"), task: Task = CLASSIFY, **parts: Any) -> RunRecord:
    """A measured run of three classes; ``parts`` beside those of a record go to measure.json."""
    own = {key: parts.pop(key) for key in ("log", "streams", "environment", "facts") if key in parts}
    recipe = {"method": parts.pop("method", {}), "run": {"seed": parts.pop("seed", 0)}}
    known = {"split": "test", "select": "last", "classes": NAMES, "train_counts": COUNTS, "groups": {}}
    base: dict[str, Any] = {"log": (), "streams": {}, "environment": {}, "facts": {}}
    measure = None if parts.pop("unmeasured", False) else {**known, **parts}
    return RunRecord(
        name=name, folder=folder / name, task=task, recipe=recipe, recipe_text="", measure=measure, **{**base, **own}
    )


def group(*records: RunRecord) -> RunGroup:
    return RunGroup(records[0].name, records)


def texts(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in table.rows]


def folds(text: object) -> list[tuple[str, str]]:
    return re.findall(r"<details( open)?><summary>(.*?)</summary>", str(text))


@pytest.fixture
def plotted(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What each plot is given, by the plot's name; the page has that name in its place."""
    found: dict[str, list[Any]] = {}

    def standing_in(name: str) -> Callable[..., str]:
        def plot(*args: Any, **more: Any) -> str:
            found.setdefault(name, []).append((*args, *more.values()))
            return name

        return plot

    for room in (*ROOMS, curves, detect.plots, detect.class_plots):
        for name in [key for key in vars(room) if key.startswith("plot_")]:
            monkeypatch.setattr(room, name, standing_in(name))
    return found


# labels bought in rounds


def rounds(seed: int, accuracies: list[float], count: int = 2, **more: Any) -> dict[str, Any]:
    batch = {"spacing": 0.1234, "classes": 2.0 + seed, "entropy": 0.5}
    rows = [
        {"labels": 4 * i, "accuracy": a, "bought": [4 * i, 1, 0], "also": {"oracle:x": a + 0.1},
         "batch": batch if i < count else None}
        for i, a in enumerate(accuracies)
    ]  # fmt: skip
    return {"by": "random", "seed": seed, "classes": NAMES, "count": count, "select": "last", "cycles": rows, **more}


def experiment(name: str, *told: dict[str, Any], **recipe: Any) -> Group:
    return Group(name, told, tuple(Path(name) for _ in told), recipe)


def test_an_experiment_is_as_long_as_its_shortest_seed() -> None:
    one = experiment("x", rounds(0, [0.1, 0.2, 0.3]), rounds(1, [0.1, 0.4]))
    assert one.labels == [0, 4]
    assert one.accuracies(1) == pytest.approx([20, 40])
    assert one.accuracies(1, "oracle:x") == pytest.approx([30, 50])
    assert one.accuracies(1, "val:x") == []
    assert (one.mean_over_cycles(0), one.mean_over_cycles(1), one.mean_over_cycles(7)) == (
        pytest.approx(25),
        None,
        None,
    )
    means, errors = cycles._curve(one)
    assert (means, errors) == (pytest.approx([10, 30]), pytest.approx([0, 10]))


def test_rounds_that_were_not_reached_are_not_run() -> None:
    long, short = experiment("long", rounds(0, [0.1, 0.2, 0.3])), experiment("short", rounds(0, [0.1, 0.4]))
    table = cycles.accuracy_table([short, long])
    assert table.columns == ("experiment", "seeds", "0 labels", "4 labels", "8 labels", "mean of rounds")
    assert texts(table) == [
        ["short", "1", "10.0", "40.0", "not run", "not run"],
        ["long", "1", "10.0", "20.0", "30.0", "25.0"],
    ]
    assert table.numbers == range(1, 6)
    rules = cycles.rule_table([short, long])
    assert texts(rules) == [["short", "last", "40.0", "50.0"], ["long", "last", "30.0", "40.0"]]
    assert (rules.columns[2:], rules.numbers) == (("last or selected", "best on test (oracle:x)"), range(2, 4))


def test_numbers_of_batches_are_means_over_rounds_then_seeds() -> None:
    table = cycles.batch_table([experiment("x", rounds(0, [0.1, 0.2, 0.3]), rounds(1, [0.1, 0.2, 0.3]))])
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert str(row["spacing (0: all alike)"]) == "0.123 ± 0.000"
    assert str(row["entropy"]) == "0.500 ± 0.000"
    assert str(row["classes predicted"]) == "2.5 ± 0.5"
    assert str(row["classes bought in all"]) == "2.0 ± 0.0"
    assert str(row["coverage of the pool"]) == "not run"
    assert row["classes predicted"].title == "2.00, 3.00"
    assert table.numbers == range(1, 9)
    assert cycles.with_error([1.0, 2.0, 6.0]) == Cell("3.0", "± 1.5", "1.00, 2.00, 6.00")


def test_differences_are_against_random_of_the_same_training() -> None:
    base = experiment("base", rounds(0, [0.1, 0.2, 0.3]), rounds(1, [0.1, 0.2, 0.3]), method="m")
    ours = experiment("ours", rounds(0, [0.1, 0.3, 0.4], by="x"), rounds(1, [0.1, 0.1, 0.2], by="x"), method="m")
    other = experiment("other", rounds(0, [0.1, 0.9, 0.9], by="x"), method="n")
    half = experiment("half", rounds(0, [0.1, 0.9], by="x"), method="m")
    table = cycles.difference_table([ours, base, other, half])
    assert texts(table) == [["ours", "base", "0.00 ± 10.00", "1 of 2"], ["half", "base", "not run", "not run"]]
    assert table.numbers == range(2, 4)
    assert "not run" not in table.caption


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [
        ({}, {}, True), ({"cycles": {"by": "x"}}, {"cycles": {"by": "random"}}, True),
        ({"cycles": {"count": 2}}, {"cycles": {"count": 3}}, False), ({"cycles": {"budget": 2}}, {}, False),
        ({"data": {"split_seed": 5}}, {"data": {"split_seed": 6}}, False),
        ({"data": {"split_seed": 0}}, {"data": {}}, True),
        ({"data": {"split_seed": 5}}, {"data": {}}, False), ({"run": {"seed": 3}}, {"run": {"seed": 4}}, True),
    ],
)  # fmt: skip
def test_training_is_all_but_what_chooses(mine: Any, theirs: Any, same: bool) -> None:
    one, other = (cycles._training(experiment("x", rounds(0, [0.1]), **recipe)) for recipe in (mine, theirs))
    assert (one == other) == same


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ((1, 1), "b 35.0 % (1 seed), then a 25.0 %. With so few"),
        ((3, 3), "b 35.0 ± 0.0 % (3 seeds), then a 25.0 ± 0.0 %."),
        ((3, 2), "With so few seeds"), ((2, 3), "With so few seeds"),
    ],
)  # fmt: skip
def test_three_seeds_on_both_sides_are_not_few(seeds: tuple[int, int], said: str) -> None:
    groups = [
        experiment(name, *(rounds(s, [0.1, first, 0.3]) for s in range(count)))
        for name, first, count in (("a", 0.2, seeds[0]), ("b", 0.4, seeds[1]))
    ]
    text = cycles.verdict(groups)
    assert said in text
    assert ("chance" in text) == (min(seeds) < 3)
    assert cycles.verdict(groups[:1]).endswith(f"({seeds[0]} seed{'s' * (seeds[0] > 1)}).")


def test_what_was_bought_is_the_mean_of_the_last_round(plotted: dict[str, list[Any]]) -> None:
    one = experiment("x", rounds(0, [0.1, 0.2]), rounds(1, [0.1, 0.2, 0.3]))
    other = experiment("y", rounds(0, [0.1, 0.2], classes=NAMES[::-1]))
    assert cycles._bought([one, other], {}).count("<figure>") == 2
    assert plotted["plot_bought"][0][:2] == ({"x": [6, 1, 0]}, tuple(NAMES))


def test_the_rounds_of_the_first_seed_are_shown(tmp_path: Path, plotted: dict[str, list[Any]]) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"batch-{number}.json").write_text(json.dumps({"points": {"picked": [[number, 0]]}}))
        (tmp_path / f"picks-{number}.png").write_bytes(b"%d" % number)
    one = Group("x", (rounds(0, [0.1, 0.2, 0.3]),), (tmp_path,), {})
    text = str(cycles._chosen(one))
    assert plotted["plot_chosen"] == [([{"picked": [[1, 0]]}, {"picked": [[2, 0]]}],)]
    assert re.findall(r'alt="(.*?)" src="data:image/png;base64,(.*?)"', text) == [
        (f"picks of round {n}", base64.b64encode(b"%d" % n).decode()) for n in (1, 2)
    ]
    assert "Round 2, in the order of picks." in text
    assert "not run" in cycles._chosen(Group("x", (rounds(0, [0.1, 0.2]),), (tmp_path / "none",), {}))


def test_the_page_of_cycles_opens_the_first_two(
    tmp_path: Path, plotted: dict[str, list[Any]], monkeypatch: Any
) -> None:
    groups = [experiment(n, rounds(3, [0.1, 0.2, 0.3])) for n in "abc"]
    monkeypatch.setattr(cycles, "group_experiments", lambda _: groups)
    text = cycles.write_cycles_report([], tmp_path / "out.html").read_text()
    assert folds(text) == [(" open", "a, seed 3"), (" open", "b, seed 3"), ("", "c, seed 3")]
    assert re.search("<title>.*a, b, c.*</title>", text)
    lines, colours = plotted["plot_labels"][0]
    assert lines["a"][:2] == ([0, 4, 8], pytest.approx([10, 20, 30]))
    assert (list(colours), len(set(colours.values()))) == (list("abc"), 3)


# pairs of classes


def test_the_cross_table_marks_what_a_run_aimed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Table] = []
    monkeypatch.setattr(pairs, "parts", SimpleNamespace(table=lambda t: seen.append(t) or ""))
    aims = ({"objective": "h-mean"}, {"objective": "mean-recall", "floors": "coverage"}, {})
    runs = [
        group(run(n, method=m, mean_recall=0.5, h_mean=0.4, min_coverage=0.05))
        for n, m in zip("abc", aims, strict=True)
    ]
    pairs._cross_table(runs)
    (table,) = seen
    assert table.columns == ("run", "mean recall (%)", "H-mean of recalls (%)", "min coverage (%)")
    assert texts(table) == [[n, "50.0", "40.0", "5.00"] for n in "abc"]
    assert [[cell.best for cell in row[1:]] for row in table.rows] == [
        [False, True, False],
        [True, False, True],
        [False] * 3,
    ]
    assert table.numbers == range(1, 4)
    assert pairs._cross_table([group(run(unmeasured=True))]) == pairs._cross_table([group(run())]) == ""


def save(folder: Path, **arrays: Any) -> None:
    folder.mkdir(exist_ok=True)
    for key, array in arrays.items():
        np.savez(folder / f"{key}.npz", **{key: np.array(array, dtype=float)})


def test_pairs_of_the_first_run_that_has_them_are_drawn_by_frequency(
    tmp_path: Path, plotted: dict[str, list[Any]]
) -> None:
    looked = {"selmix": {"shown": [0, 50]}}
    runs = [run("a", tmp_path), run("b", tmp_path, **looked), run("c", tmp_path, seed=1, **looked)]
    save(tmp_path / "b", pair_gain=np.zeros((2, 3, 3)))  # no distribution
    save(tmp_path / "c", pair_gain=np.ones((2, 3, 3)), pair_distribution=np.ones((2, 3, 3)))
    text = str(pairs._matrices(group(*runs)))
    ((steps, gains, _, names, title),) = plotted["plot_pair_matrices"]
    assert (steps, gains.sum(), names, title) == ([0, 50], 18, ["bee", "cat", "ant"], "a")
    assert "Class pairs of c from" in text
    assert "share" not in text
    save(tmp_path / "c", pair_gain=np.ones((2, 2, 2)), pair_distribution=np.ones((2, 2, 2)))
    assert "3 classes share 2 rows." in pairs._matrices(group(*runs))
    assert "Gains and pairs: not run." in pairs._matrices(group(runs[0]))
    for wrong in (np.ones((3, 3)), np.ones((1, 3, 3)), np.ones((2, 3, 2))):
        save(tmp_path / "c", pair_gain=np.ones((2, 3, 3)), pair_distribution=wrong)
        with pytest.raises(UserError, match="do not fit"):
            pairs._matrices(group(*runs))
    save(tmp_path / "c", pair_gain=np.ones((1, 3, 3)), pair_distribution=np.ones((1, 3, 3)))
    with pytest.raises(UserError, match="do not fit"):  # one matrix, two steps
        pairs._matrices(group(*runs))


def test_gains_come_true_over_all_seeds(tmp_path: Path, plotted: dict[str, list[Any]]) -> None:
    save(tmp_path / "a", pair_fidelity=[[[1, 10, 0], [2, 20, 0]], [[3, 30, 0], [4, 5, 0]]])
    save(tmp_path / "b", pair_fidelity=np.zeros((0, 2, 3)))
    save(tmp_path / "c", pair_fidelity=[[[5, 1, 0]]])
    text = str(pairs._fidelity([group(*(run(n, tmp_path) for n in "abc")), group(run("none", tmp_path))], {}))
    ((series, _),) = plotted["plot_fidelity"]
    assert {name: rows[:, 0].tolist() for name, rows in series.items()} == {"a": [1, 2, 3, 4, 5]}
    assert "soft predictions: a -0.60." in text  # ranks 1 to 5 against 3, 4, 5, 2, 1
    assert pairs._fidelity([group(run("none", tmp_path))], {}) == ""
    save(tmp_path / "c", pair_fidelity=np.zeros((1, 1, 2)))
    with pytest.raises(UserError, match=r"is not \(looks, pairs, 3\)"):
        pairs._fidelity([group(run("c", tmp_path))], {})
    save(tmp_path / "c", pair_fidelity=[[[np.nan, 0, 0]]])
    with pytest.raises(UserError, match="is not finite"):
        pairs._fidelity([group(run("c", tmp_path))], {})


def test_ranks_correlate_from_two_points_on() -> None:
    assert pairs._rank_correlation(np.array([1.0]), np.array([2.0])) == 0
    assert pairs._rank_correlation(np.array([1.0, 2.0]), np.array([5.0, 4.0])) == pytest.approx(-1)
    assert pairs._rank_correlation(np.array([1.0, 1.0]), np.array([5.0, 4.0])) == 0
    assert pairs._rank_correlation(np.array([1.0, 2.0, 9.0]), np.array([1.0, 9.0, 2.0])) == pytest.approx(0.5)


def test_the_first_two_runs_of_pairs_are_open(plotted: dict[str, list[Any]]) -> None:
    log = ({"kind": "val", "step": 1, "epoch": 0.1, "pair_entropy": 2.0},)
    own = [group(run(n, method={"name": "selmix"}, log=log)) for n in "abc"]
    text = pairs.section([*own, group(run("d"))], {})
    assert folds(text) == [(" open", "a"), (" open", "b"), ("", "c")]
    assert [list(args[0]) for args in plotted["plot_curves"]] == [["entropy of the pairs (nats)"]]
    assert "<figure>" not in pairs.section([group(run("a", method={"name": "selmix"}))], {})


# self-training


def traced(**values: list[float]) -> tuple[dict[str, Any], ...]:
    size = len(next(iter(values.values())))
    own = [{key.replace("__", ":"): v[i] for key, v in values.items()} for i in range(size)]
    return tuple({"kind": "val", "step": 10 * i, "epoch": float(i), **row} for i, row in enumerate(own))


def test_a_floor_lies_below_the_coverage_from_first_to_last_step(plotted: dict[str, list[Any]]) -> None:
    log = traced(coverage__ant=[0.1, 0.2, 0.3], coverage__bee=[0.5, 0.4, 0.3], multiplier__ant=[1.0, 2.0, 3.0])
    method = {"floors": "coverage", "floor": 0.25}
    text = str(selftraining.section([group(run(log=log, method=method)), group(run("plain"))], {}))
    multipliers, coverage = (args[0] for args in plotted["plot_curves"])
    assert multipliers == {"a": [("ant", [0, 10, 20], [1, 2, 3])]}
    bee, ant, floor = coverage["a"]
    assert (bee[0], ant[0], floor) == ("bee", "ant", ("floor", [0, 20], [0.25, 0.25]))  # bees are more frequent
    assert plotted["plot_curves"][1][1]["floor"] == INK
    assert (text.count("Dark: the floor asked for."), "largest and the" in text) == (1, False)
    assert "Share of unlabelled" not in text


def test_floors_are_asked_for_by_objective_or_floors() -> None:
    def floor(**method: Any) -> float | None:
        return selftraining._floor(group(run(method=method)))

    assert floor(objective="coverage") == pytest.approx(0.95 / 3)
    assert floor(objective="mean-recall", floors="head-tail-coverage") == pytest.approx(0.95 / 3)
    assert (floor(objective="mean-recall"), floor(floors="coverage", floor=0.2)) == (None, 0.2)
    assert selftraining._floor(group(run(method={"floors": "coverage"}, classes=[], train_counts=[]))) is None


@pytest.mark.parametrize(("count", "chosen"), [(10, range(9, -1, -1)), (11, [10, 9, 8, 7, 6, 4, 3, 2, 1, 0])])
def test_the_five_largest_and_the_five_rarest_classes_have_traces(
    count: int, chosen: Any, plotted: dict[str, list[Any]]
) -> None:
    names = [f"c{k}" for k in range(count)]
    log = traced(**{f"recall__{name}": [0.5, 0.6] for name in names}, kept__c0=[0.5, 0.5])
    one = group(run(log=log, classes=names, train_counts=list(range(count))))
    text = str(selftraining.section([one], {}))
    assert [line[0] for line in plotted["plot_curves"][0][0]["a"]] == [f"c{k}" for k in chosen]
    assert ("The 5 largest and the 5 rarest classes." in text) == (count > 10)
    assert selftraining._chosen(one, ["head", "tail"]) == ["head", "tail"]


# adaptation, heads, detectors


def test_adaptation_shows_the_first_picture_and_the_curvature_of_all_classes(
    tmp_path: Path, plotted: dict[str, list[Any]]
) -> None:
    points = {"source_points": {"xy": [[0, 1]]}, "target_points": {"xy": [[1, 0]]}}
    groups = [
        group(run("a", tmp_path, adaptation=points)),
        group(run("b", tmp_path, adaptation={**points, "target_points": None})),
        group(run("c", tmp_path, streams={"target": {}})),
        group(run("d", tmp_path)),
    ]
    (tmp_path / "a").mkdir()
    rows = [{"class": k, "checkpoint": "last.pt", "maximum": 1.0, "trace": 2.0} for k in ("ant", "all classes")]
    (tmp_path / "a" / "hessian.json").write_text(json.dumps(rows))
    text = str(adaptation.section(groups, {}))
    assert folds(text) == [(" open", "a"), (" open", "b"), ("", "c")]
    assert plotted["plot_domains"] == [(points, NAMES)]
    assert text.count("Features of the two domains: not run.") == 2
    assert "Curvature of the task loss: a (last.pt): λ max 1, trace 2." in text
    assert text.count("not run (evenhand hessian RUN --whole)") == 2
    assert '<p class="none">not run</p>' in text  # no curves
    assert adaptation.section(groups[3:], {}) == ""


def test_troubles_of_adaptation_are_told_once_a_group() -> None:
    health = {"domain_accuracy": 0.99, "effective_classes": None}
    seeds = group(run("a", adaptation=health), run("a", seed=1, adaptation=health))
    (line,) = adaptation.troubles([seeds])
    assert line.startswith("a: the discriminator wins (domain accuracy 0.99")
    assert adaptation.troubles([group(run("a", adaptation={"domain_accuracy": float("nan")}))]) == []


def test_heads_stand_in_the_order_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Table] = []
    monkeypatch.setattr(experts.parts, "table", lambda t: seen.append(t) or "", raising=False)
    heads = {
        "cls": {"mean_recall": 0.1, "head": 0.2, "mid": 0.3, "tail": 0.4},
        "dist": {"mean_recall": 0.5, "tail": 0.6},
    }
    one = group(run(experts=heads, mean_recall=0.7, group_recall={"head": 0.8, "tail": 0.9}))
    text = experts.section([one, group(run("b"))], {})
    assert texts(seen[0]) == [
        ["a", "CLS", "10.0", "20.0", "30.0", "40.0"], ["a", "DIST", "50.0", "not run", "not run", "60.0"],
        ["a", "average", "70.0", "80.0", "not run", "90.0"],
    ]  # fmt: skip
    assert seen[0].numbers == range(2, 6)
    assert "<figure>" not in text
    assert experts.section([group(run("b"))], {}) == ""


def test_faults_are_twelve_of_each_kind_and_the_first_group_is_open(tmp_path: Path) -> None:
    def faults(name: str, count: int) -> RunGroup:
        (tmp_path / name).mkdir()
        found = []
        for i in range(count):
            (tmp_path / name / f"{i}.jpg").write_bytes(b"%d" % i)
            found.append({"name": f"{name}{i}", "class": "car", "score": i / 100, "box": [], "picture": f"{i}.jpg"})
        found.insert(0, {"name": "unpictured", "class": "car", "score": 1.0, "box": []})
        return group(run(name, tmp_path, DETECT, faults={"misses": found}))

    groups = [group(run("none", tmp_path, DETECT, unmeasured=True)), faults("x", 13), faults("y", 1)]
    text = str(detect.faults_section(groups, {}))
    assert folds(text) == [(" open", "x"), ("", "y")]
    assert re.findall("<figcaption>(.*?)</figcaption>", text)[-2:] == ["car 0.11, x11", "car 0.00, y0"]
    assert (text.count("<img"), text.count("<h3>")) == (13, 2)
    assert "Surest false alarms" not in text


def test_detectors_show_precision_and_curves(plotted: dict[str, list[Any]]) -> None:
    log = (
        {"kind": "train", "step": 1, "epoch": 0.5, "loss": 2.0},
        {"kind": "val", "step": 1, "epoch": 0.5, "map50": 0.1},
    )
    detect.curves_section([group(run("x", task=DETECT, log=log))], {})
    assert plotted["plot_curves"][0][0] == {"train loss": [("x", [0.5], [2.0])], "val map50": [("x", [0.5], [0.1])]}
    assert "not run" in detect.curves_section([group(run("x", task=DETECT))], {})
    assert "Average precision per class: not run." in detect.classes_section([group(run("x", task=DETECT))], {})


# galleries


def sheet(folder: Path, labels: list[int], drawn: list[int], tile: int = 4, across: int = 2) -> None:
    """A row for each label; pixels are 10 times the row, and one more where drawn."""
    folder.mkdir(exist_ok=True)
    block, step = (across * tile, tile), (across * tile + 2, tile + 1)
    picture = Image.new("L", (2 * step[0], len(labels) * step[1]), 255)
    for row in range(len(labels)):
        for side in range(2):
            picture.paste(
                10 * row + side, (side * step[0], row * step[1], side * step[0] + block[0], row * step[1] + block[1])
            )
    facts = PngInfo()
    told = {"block": block, "step": step, "labels": labels, "drawn": drawn, "tile": tile}
    facts.add_text("evenhand", json.dumps(told))
    picture.save(folder / "sheet.png", pnginfo=facts)


def images(text: object) -> dict[str, tuple[set[int], str]]:
    """Shades and size of every image, by what it shows."""
    found = {}
    for width, height, alt, data in re.findall(
        r'width="(\d+)" height="(\d+)" alt="(.*?)" src=".*?base64,(.*?)"', str(text)
    ):
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            assert picture.size == (8, 4)
            found[alt] = set(picture.convert("L").tobytes()), f"{width}x{height}"
    return found


def test_a_gallery_has_a_row_for_each_class_and_a_column_for_each_group(tmp_path: Path) -> None:
    sheet(tmp_path / "a", [1, 0], [3, 0])
    sheet(tmp_path / "b", [1, 0], [3, 3])
    groups = [group(run(n, tmp_path, GENERATE)) for n in ("a", "b", "none")]
    text = str(gallery.pictures_section(groups, {}))
    zoom = 24  # times 4 pixels are 96
    assert images(text) == {
        "real images of bee": ({0}, f"{8 * zoom}x{4 * zoom}"), "bee as drawn by a": ({1}, f"{8 * zoom}x{4 * zoom}"),
        "bee as drawn by b": ({1}, f"{8 * zoom}x{4 * zoom}"), "real images of ant": ({10}, f"{8 * zoom}x{4 * zoom}"),
        "ant as drawn by b": ({11}, f"{8 * zoom}x{4 * zoom}"),
    }  # fmt: skip
    assert text.count("none found") == 1
    assert "none picked, 2 of 3 classes; click" in text
    assert re.findall(r'<th scope="col">(.*?)</th>', text) == ["real", "a, seed 0", "b, seed 0"]
    assert "100 training images" in text
    assert "<details" not in text


def test_galleries_of_other_classes_stand_apart(tmp_path: Path) -> None:
    sheet(tmp_path / "a", [1, 0, 2], [3, 3, 3])
    sheet(tmp_path / "b", [-1], [3])
    text = str(gallery.pictures_section([group(run(n, tmp_path, GENERATE)) for n in "ab"], {}))
    assert folds(text) == [(" open", "a"), (" open", "b")]
    assert text.count("none picked; click") == 2
    assert {"real images of any class", "any class as drawn by b"} <= images(text).keys()
    assert text.count("training images") == 3


@pytest.mark.parametrize(
    ("tile", "across", "members", "zoom"),
    [
        (8, 2, 1, 12),  # 96 pixels
        (8, 5, 2, 7),  # 940 pixels over three columns of 40: 7.8
        (48, 10, 1, 2),  # less than once, were it not for the least
        (48, 10, 9, 2),
        (49, 10, 1, 940 / 2 / 490),  # larger ones become smaller
        (96, 1, 1, 1),
        (90, 1, 1, 1),  # whole pixels: not 1.07
    ],
)
def test_images_are_enlarged_as_the_page_allows(tile: int, across: int, members: int, zoom: float) -> None:
    block = (across * tile, tile)
    one = gallery.Sheet(Image.new("L", (2 * block[0], block[1])), [-1], [1], block, block, tile)
    of = group(run("a", task=GENERATE))
    text = str(gallery._gallery([(of, of.records[0], one)] * members))
    assert set(re.findall(r'width="(\d+)" height="(\d+)"', text)) == {
        (f"{zoom * block[0]:.0f}", f"{zoom * block[1]:.0f}")
    }
    assert ('class="pixels"' in text) == (zoom >= 1)


def test_styles_are_those_of_the_first_run_that_has_some(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    Image.new("RGBA", (5, 6), (1, 2, 3, 255)).save(tmp_path / "b" / "latents.png")
    both = group(run("a", tmp_path, GENERATE), run("b", tmp_path, GENERATE, seed=1, z_sensitivity=[0.5, 0.04, 0.3]))
    text = str(gallery.pictures_section([both], {}))
    assert "Styles of a, seed 1: the mapping network" in text
    assert "The noise z matters least to bee: 0.04 of all" in text
    (data,) = re.findall(r'alt="latents of a, seed 1" src="data:image/png;base64,(.*?)"', text)
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert (picture.mode, picture.getpixel((2, 2))) == ("RGB", (1, 2, 3))


# contrasts


def test_a_difference_is_clear_beyond_two_standard_errors() -> None:
    assert [Estimate(m, e).clear for m, e in ((2.0, 1.0), (2.1, 1.0), (-2.1, 1.0), (9.0, None))] == [
        False,
        True,
        True,
        False,
    ]
    assert estimate([1.0, 2.0, 6.0]) == (pytest.approx(3), pytest.approx(7**0.5 / 3**0.5))
    assert estimate([4.0]) == (4, None)
    assert difference({0: 5.0, 1: 7.0}, {1: 4.0, 0: 1.0}) == (3.5, 0.5)
    assert Estimate(-3, 1.0).cell(1, signed=True) == Cell("-3.0", "± 1.0", alarm=True)
    assert Estimate(3, 1.0).cell(2, signed=True) == Cell("+3.00", "± 1.00")
    assert Estimate(-1, 1.0).cell(1, signed=True) == Cell("-1.0", "± 1.0")
    assert Estimate(-3, 1.0).cell(1) == Cell("-3.0", "± 1.0")
    assert str(Estimate(3, None)) == "+3.0"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Estimate(3, 1), "helps"), (Estimate(0.5, 0.1), "helps"), (Estimate(-3, 1), "hurts"),
        (Estimate(1, 1), "makes no difference that 4 seeds can show"),
        (Estimate(3, None), "is not judged by one seed"),
    ],
)  # fmt: skip
def test_a_verb_says_what_a_difference_shows(found: Estimate, said: str) -> None:
    assert verb(found, 4) == said


def test_rows_stand_against_one_of_them() -> None:
    metrics = [Metric("x", "recall"), score("y", "FID", digits=2, lower=True)]
    rows = {
        "real": {"x": {0: 50.0, 1: 52.0}, "y": {0: 1.0, 1: 1.0}},
        "both": {"x": {0: 53.0, 1: 57.0}, "y": {0: 2.0, 1: 3.0}},
    }
    plain, apart = contrasts(rows, metrics, "real")
    assert texts(plain) == [["real", "51.0 ± 1.0", "1.00 ± 0.00"], ["both", "55.0 ± 2.0", "2.50 ± 0.50"]]
    assert texts(apart) == [["both", "+4.0 ± 1.0", "+1.50 ± 0.50"]]
    assert (plain.numbers, apart.numbers) == (range(1, 3), range(1, 3))
    assert plain.caption == "Trained on: mean ± standard error over 2 seeds"
    one = {name: {key: {0: values[0]} for key, values in row.items()} for name, row in rows.items()}
    assert contrasts(one, metrics, "real")[1].caption == "Less 'real', points, seed by seed: one seed"


# a look at a folder


def test_a_look_has_counts_of_each_split_and_thirty_sets_of_copies(tmp_path: Path) -> None:
    Image.new("RGB", (400, 200), (9, 8, 7)).save(tmp_path / "wide.png")
    copies = [
        SimpleNamespace(near=i == 1, across="splits" * (i == 0), names=[f"{i}-{j}" for j in range(9)])
        for i in range(31)
    ]
    found = SimpleNamespace(
        path="<p>", classes=["ant", "bee"], counts={"train": {"ant": 1, "bee": 9}, "test": {"bee": 2}},
        train={"ant": 1, "bee": 9}, examples={"ant": [str(tmp_path / "wide.png"), "none.png"]}, copies=copies,
    )  # fmt: skip
    text = write_look(tmp_path / "look.html", found, ["warning: x", "error: y", "z"], []).read_text()
    assert "<td>bee</td><td>9</td><td>2</td>" in text
    assert "<td>ant</td><td>1</td><td>0</td>" in text
    assert text.index("<td>bee</td>") < text.index("<td>ant</td>")
    assert re.findall('<li class="(.*?)">', text) == ["warning", "error", ""]
    assert re.findall("<h3>(.*?)</h3>", text)[:3] == ["exact copies across splits", "near copies ", "exact copies "]
    assert "<br>29-0, 29-1, 29-2, 29-3, 29-4, 29-5, 29-6, 29-7</p>" in text
    assert "30-0" not in text
    (data,) = re.findall(r'<img alt="wide.png".*?base64,(.*?)"', text)
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert (picture.size, picture.format) == ((176, 88), "JPEG")
    none = write_look(tmp_path / "look.html", SimpleNamespace(**{**vars(found), "copies": []}), [], []).read_text()
    assert "<h2>Copies</h2>" not in none


def test_thumbnails_show_pictures_as_they_are_read(tmp_path: Path) -> None:
    from evenhand.report.look import _picture

    def shown(name: str) -> Image.Image:
        (data,) = re.findall(r'base64,(.*?)"', _picture(str(tmp_path / name)))
        return Image.open(io.BytesIO(base64.b64decode(data)))

    Image.fromarray(np.full((88, 88), 100 * 257, np.uint16)).save(tmp_path / "deep.png")
    Image.new("RGBA", (88, 88), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    lying = Image.new("RGB", (88, 44))
    exif = lying.getexif()
    exif[0x0112] = 6
    lying.save(tmp_path / "lying.jpg", exif=exif)
    assert [shown(name).getpixel((9, 9)) for name in ("deep.png", "clear.png")] == [(100,) * 3, (255,) * 3]
    assert shown("lying.jpg").size == (44, 88)
    Image.effect_noise((88, 88), 50).save(tmp_path / "torn.png")
    whole = (tmp_path / "torn.png").read_bytes()
    (tmp_path / "torn.png").write_bytes(whole[:60] + b"\0\0\0\0" + whole[64:])  # a chunk of no kind: a SyntaxError
    assert _picture(str(tmp_path / "torn.png")) == ""


def test_a_very_wide_picture_is_at_most_four_thumbnails_wide(tmp_path: Path) -> None:
    from evenhand.report.look import _picture

    Image.new("RGB", (2000, 100)).save(tmp_path / "x.png")
    (data,) = re.findall(r'base64,(.*?)"', _picture(str(tmp_path / "x.png")))
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert picture.width == 352


# the page and what it reads


def test_every_run_stands_on_its_own_where_seeds_are_put_together() -> None:
    seeds = (run("a", mean_recall=0.5), run("b", seed=1, mean_recall=0.7))
    assert folds(page._summary([RunGroup("x", seeds)], {})) == [("", "Every run on its own")]
    assert folds(page._summary([RunGroup("x", seeds[:1])], {})) == []


def test_digests_name_the_runs_that_used_the_samples() -> None:
    streams = [
        {"labelled": {"digest": "x", "samples": 1200}, "test": {"digest": "y", "counts": [3, 4]}},
        {"labelled": {"digest": "x", "samples": 1200}, "val": {}}, {"test": {"digest": "z"}},
    ]  # fmt: skip
    table = page._digests([run(n, streams=s) for n, s in zip("abc", streams, strict=True)])
    assert texts(table) == [["labelled", "1,200", "x", "a, b"], ["test", "7", "y", "a"], ["test", "0", "z", "c"]]
    assert table.numbers == range(1, 2)
    assert texts(page._digests([run("a", streams=streams[0])]))[0][-1] == "all runs"


def test_provenance_tells_environments_and_commands_apart() -> None:
    told = ({"torch": "1", "command": "train a"}, {"torch": "1", "command": "train a", "gpus": [0]}, {})
    runs = [run(n, environment=e) for n, e in zip(("a", "b", "c d"), told, strict=True)]
    text = str(page._provenance(runs, [group(*runs)]))
    assert text.count("train a") == 1
    assert "evenhand report nowhere/a nowhere/b &#39;nowhere/c d&#39;" in text
    assert "[0]" in text
    assert "all runs" not in text


def folder(root: Path, measure: Any = None, model: Any = None) -> Path:
    root.mkdir(parents=True)
    for name, content in (("measure.json", measure), ("model.json", model)):
        if content is not None:
            (root / name).write_text(json.dumps(content))
    return root


def test_the_measurement_says_the_task_before_the_model(tmp_path: Path) -> None:
    both = load_run(folder(tmp_path / "both", {"task": "generate"}, {"task": "classify", "facts": {"counts": []}}))
    assert (both.task, both.name, both.recipe, both.recipe_text, both.log) == (GENERATE, "both", None, "", ())
    assert (both.streams, both.environment, both.facts) == ({}, {}, {"counts": []})
    assert load_run(folder(tmp_path / "model", None, {"task": "detect"})).task is DETECT


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"groups": {"head": [3]}}, "beyond the 3"), ({"groups": {"head": [-1]}}, "beyond the 3"),
        ({"group_recall": {"head": "x"}}, r"measure.json group_recall\.head: "),
        ({"recall": [0.1, 0.2]}, "recall has 2 entries, not 3"),
        ({"reliability": {"count": [1], "confidence": [1.0], "accuracy": []}}, "differ in length"),
        ({"reliability": {"count": [1], "confidence": [], "accuracy": []}}, "differ in length"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_named(tmp_path: Path, changes: Any, said: str) -> None:
    fine = {"task": "classify", "classes": NAMES, "train_counts": COUNTS, "groups": {"head": [0, 2]}, "recall": []}
    with pytest.raises(UserError, match=said):
        load_run(folder(tmp_path / "bad", fine | changes))
    assert load_run(folder(tmp_path / "fine", fine)).measure == fine
    whole = {**fine, "group_recall": {"head": 0.5, "tail": None}, "recall": [0.1, None, 0.2]}
    assert load_run(folder(tmp_path / "whole", whole)).measure == whole


def test_empty_lines_of_a_log_are_no_rows(tmp_path: Path) -> None:
    place = folder(tmp_path / "x", None, {"task": "classify"})
    row = {"kind": "train", "step": 1, "epoch": 0.5}
    (place / "log.jsonl").write_text(f"{json.dumps(row)}\n\n  \n{json.dumps(row)}\n")
    assert load_run(place).log == (row, row)


def test_runs_are_folders_with_a_recipe_or_lie_in_one(tmp_path: Path) -> None:
    for name in ("all/b", "all/a", "one", "one/below", "all/b/deep"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "recipe.toml").touch()
    found = run_folders([tmp_path / "all", tmp_path / "one"])
    assert [str(path.relative_to(tmp_path)) for path in found] == ["all/a", "all/b", "one"]
    with pytest.raises(UserError, match="no runs in"):
        run_folders([tmp_path / "none"])
