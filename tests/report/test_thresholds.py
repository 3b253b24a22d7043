"""Where the report changes what it says: on both sides of every threshold, from records made by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenhand.report import cautions, classes, classify, confusions, examples, generate, terminal, verdict
from evenhand.report.advice import of_classifier, of_generator
from evenhand.report.charts.svg import colour
from evenhand.report.records import RunGroup, RunRecord, apart, by_count, group_runs
from evenhand.report.repeats import by_split
from evenhand.report.scores import class_scores, score_table, with_counts
from evenhand.report.table import Cell, Table
from evenhand.report.tables import (
    also_metrics,
    difference_table,
    headline,
    notes,
    number_cell,
    per_class_table,
    summary_of,
)
from evenhand.report.tested import compare
from evenhand.report.tested import tested_on as which_test
from evenhand.tasks import Task
from evenhand.tasks.classify import CLASSIFY
from evenhand.tasks.generate import GENERATE

NAMES = ["ant", "bee", "cat", "dog"]


def run(
    name: str = "ce", *, folder: Path = Path("nowhere"), task: Task = CLASSIFY, seed: int | None = 0,
    matrix: Any = None, method: Any = None,
    data: Any = None, select: str = "last", log: Any = (), facts: Any = None, streams: Any = None,
    measured: bool = True, **measure: Any,
) -> RunRecord:  # fmt: skip
    """A run of four classes that lies in a folder of its name, if it has a confusion matrix."""
    place = folder / name
    if matrix is not None:
        place.mkdir(parents=True, exist_ok=True)
        np.savez(place / "confusion.npz", confusion=np.array(matrix))
    known = {
        "task": task.name, "split": "test", "checkpoint": "last.pt", "select": select, "classes": NAMES,
        "train_counts": [5, 1000, 100, 10], "groups": {"head": [1], "mid": [2], "tail": [0, 3]}, **measure,
    }  # fmt: skip
    recipe = {"method": {"name": "classifier", **(method or {})}, "data": data or {}, "run": {"seed": seed}}
    return RunRecord(
        name=name, folder=place, task=task, recipe=recipe, recipe_text="", log=tuple(log),
        measure=known if measured else None, facts=facts or {}, streams=streams or {}, environment={},
    )  # fmt: skip


def group(*records: RunRecord, name: str = "ce") -> RunGroup:
    return RunGroup(name, records)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are their descriptions."""
    for room in (classify.class_plots, classify.plots):
        monkeypatch.setattr(room, "draw", lambda _, __, alt, *___: alt)


def texts(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in table.rows]


def diagonal(*hits: int, of: int = 1000) -> list[list[int]]:
    """What is missed of a class is spread evenly over the others."""
    rest = len(hits) - 1
    return [[hits[t] if t == p else (of - hits[t]) // rest for p in range(len(hits))] for t in range(len(hits))]


# advice on classifiers


@pytest.mark.parametrize(("recall", "guessed"), [(0.374, True), (0.375, False)])
def test_one_and_a_half_times_chance_is_no_guess(recall: float, guessed: bool) -> None:
    line = of_classifier(group(run(mean_recall=recall)))
    assert line.startswith(f"ce hardly does better than guessing (mean recall {100 * recall:.1f} %") == guessed
    one = {"classes": ["ant"], "train_counts": [5], "groups": {}}
    assert "guessing" not in of_classifier(group(run(mean_recall=0.1, **one)))
    two = {"classes": ["ant", "bee"], "train_counts": [5, 5], "groups": {}}
    assert "chance alone 50.0 %" in of_classifier(group(run(mean_recall=0.7, **two)))


def test_vectors_have_no_pretrained_weights() -> None:
    line = of_classifier(group(run(mean_recall=0.1, facts={"kind": "vectors"})))
    assert line.endswith("train longer.")
    assert of_classifier(group(run(mean_recall=0.1, facts={"kind": "images"}))).endswith("from pretrained weights.")


@pytest.mark.parametrize(
    ("matrix", "gap"),
    [
        (diagonal(799, 901, 901, 799), "10"),
        (diagonal(802, 901, 901, 802), None),
        (diagonal(901, 700, 901, 901), None),  # the head behind the tail
        ([*diagonal(700, 901, 901, 0)[:3], [0, 0, 0, 0]], "20"),  # no dog was tested: the ants are the tail
        ([[0] * 4, *diagonal(0, 901, 901, 0)[1:3], [0] * 4], None),
    ],
)
def test_ten_points_between_head_and_tail_are_a_gap(tmp_path: Path, matrix: Any, gap: str | None) -> None:
    line = of_classifier(group(run(folder=tmp_path, matrix=matrix, mean_recall=0.8)))
    assert (f"lies {gap} points below the head’s" in line) == (gap is not None), line


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"name": "selmix"}, 'compare with a classifier of method.loss = "la"'),
        ({"loss": "ldam", "weighting": "drw"}, "the loss favours rare classes already"),
        ({"loss": "vs"}, "the loss favours rare classes already"),
        ({"sampling": "class-balanced"}, "in place of balancing"),
        ({"sampling": "instance", "weighting": "none"}, "try logit adjustment (method.loss"),
    ],
)
def test_a_remedy_is_what_the_recipe_does_not_do_yet(tmp_path: Path, method: dict[str, str], said: str) -> None:
    found = run(folder=tmp_path, matrix=diagonal(300, 901, 901, 300), method=method, mean_recall=0.6)
    assert said in of_classifier(group(found))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ece": 0.1}, "off by 10.0 points (ECE): hold out validation"),
        ({"ece": 0.099}, None),
        ({"ece": 0.2, "samples": 50}, "off by 20.0 points"),
        ({"ece": 0.2, "samples": 49}, None),
        ({"ece": 0.2, "temperature": {"value": 2.0, "ece": 0.189}}, "divide its logits by 2.00, fitted on validation"),
        ({"ece": 0.2, "temperature": {"value": 2.0, "ece": 0.195}}, None),
        ({"ece": float("nan")}, None),
    ],
)
def test_confidences_are_told_of_from_ten_points_and_fifty_samples_on(changes: Any, said: str | None) -> None:
    line = of_classifier(group(run(mean_recall=0.9, **changes)))
    assert (said or "was trained once") in line


def test_a_temperature_is_the_mean_of_the_seeds() -> None:
    seeds = [run(seed=s, ece=0.2, temperature={"value": 1.0 + s, "ece": 0.1}) for s in range(2)]
    assert "by 1.50, fitted on validation, which leaves 10.0." in of_classifier(group(*seeds))


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ({(1, 2): 6, (2, 1): 4, (0, 3): 30}, True),  # 10 of 40 mistakes, in both directions: but ants and dogs are more
        ({(1, 2): 6, (2, 1): 4}, True),
        ({(1, 2): 6, (2, 1): 3}, False),  # fewer than ten
        ({(1, 2): 15, (2, 1): 10, (0, 1): 15, (0, 2): 15, (0, 3): 15, (1, 3): 15, (2, 3): 15}, True),  # a quarter
        ({(1, 2): 14, (2, 1): 10, (0, 1): 16, (0, 2): 15, (0, 3): 15, (1, 3): 15, (2, 3): 15}, False),
    ],
)
def test_ten_mistakes_and_a_quarter_of_all_are_a_pair(tmp_path: Path, errors: Any, told: bool) -> None:
    matrix = 1000 * np.eye(4, dtype=int)
    for place, count in errors.items():
        matrix[place] = count
    line = of_classifier(group(run(folder=tmp_path, matrix=matrix, mean_recall=0.9)))
    assert ("of its mistakes are between" in line) == told, line
    if told:
        pair = "‘ant’ and ‘dog’" if errors.get((0, 3), 0) == 30 else "‘bee’ and ‘cat’"
        both = max(errors.get((0, 3), 0), errors[1, 2] + errors[2, 1])
        assert f"{100 * both / sum(errors.values()):.0f} % of its mistakes are between {pair}" in line
    two = run("two", folder=tmp_path, matrix=[[9, 50], [50, 9]], classes=["a", "b"], train_counts=[1, 1], groups={})
    assert "mistakes" not in of_classifier(group(two))


def test_mistakes_of_all_seeds_are_counted_together(tmp_path: Path) -> None:
    matrix = 100 * np.eye(4, dtype=int)
    matrix[3, 0] = 5
    seeds = [run(f"ce-{s}", folder=tmp_path, seed=s, matrix=matrix, mean_recall=0.9) for s in range(2)]
    assert "100 % of its mistakes are between ‘ant’ and ‘dog’" in of_classifier(group(*seeds))
    assert of_classifier(group(*(run(seed=s, mean_recall=0.9) for s in range(2)))) == ""


@pytest.mark.parametrize(("fewest", "told"), [(9, True), (10, False)])
def test_ten_samples_of_half_of_the_classes_are_enough(tmp_path: Path, fewest: int, told: bool) -> None:
    matrix = np.diag([fewest, 50, fewest, 8])
    line = of_classifier(group(run(folder=tmp_path, matrix=matrix, mean_recall=0.9, split="val")))
    said = f"fewer than 10 samples in the val split (dog 8, ant {fewest}, cat {fewest}): collect"
    assert (said in line) == told


# advice on generators, and what goes wrong with them


def drawn(**changes: Any) -> RunRecord:
    fine = {"fid": 9.0, "recall": 0.5, "patterns": [0.9] * 4, "class_shares": [0.25] * 4, "real_count": 10_000}
    return run("gan", task=GENERATE, method={"name": changes.pop("name", "gan")}, **{**fine, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recall": 0.05}, "was trained once"),
        ({"recall": 0.049}, "hardly any real image (recall 0.049)"),
        ({"patterns": [0.5, None, 0.5, 0.9]}, "was trained once"),
        ({"patterns": [0.49, None, 0.49, 0.9]}, "images of 2 classes are much alike: try gSR"),
        ({"patterns": [0.1] * 4, "name": "gsr-gan"}, "was trained once"),
        ({"class_shares": [0.025, None, 0.4, 0.575]}, "was trained once"),
        ({"class_shares": [0.024, None, 0.4, 0.576]}, "hardly draws 1 of 4 classes"),
        ({"class_shares": [0.0] * 4, "name": "class-balancing-gan"}, "was trained once"),
        ({"real_count": 1000}, "was trained once"),
        ({"real_count": 999}, "only 999 real images judge gan"),
    ],
)
def test_advice_on_generators_has_its_limits(changes: Any, said: str) -> None:
    assert said in of_generator(group(drawn(**changes), name="gan"))


def test_a_class_that_collapsed_with_two_seeds_is_one_class() -> None:
    both = (drawn(patterns=[0.1, 0.9, 0.9, 0.9]), drawn(patterns=[0.1, 0.9, 0.1, 0.9]))
    assert "images of 2 classes are much alike" in of_generator(group(*both, name="gan"))


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"patterns": [0.5] * 4}, 0), ({"patterns": [0.49, 0.9, 0.9, 0.9]}, 1),
        ({"sigma_gain": [[1.0, 1.0, 1.0, 2.0]]}, 0), ({"sigma_gain": [[1.0, 1.0, 1.0, 2.1]]}, 1),
        ({"class_shares": [0.025, 0.325, 0.325, 0.325]}, 0), ({"class_shares": [0.024, 0.325, 0.325, 0.326]}, 1),
        ({"class_shares": None, "patterns": None}, 0),
    ],
)  # fmt: skip
def test_collapse_explosion_and_rarity_have_their_limits(changes: Any, count: int) -> None:
    assert len(cautions.troubles(group(drawn(**changes), name="gan"))) == count


def test_what_most_seeds_agree_in_is_named_first_and_six_are_five_and_one_more() -> None:
    names = [f"c{k}" for k in range(6)]
    of = {"classes": names, "train_counts": [9] * 6, "groups": {}, "class_shares": None}
    seeds = [
        drawn(patterns=values, **of) for values in ([0.4, 0.1, 0.2, 0.3, 0.3, 0.3], [0.45, 0.9, 0.9, 0.9, 0.9, 0.9])
    ]
    (line,) = cautions.troubles(group(*seeds, name="gan"))
    assert "‘c0’ (0.43, 2 of 2 seeds), ‘c1’ (0.10, 1 of 2 seeds), ‘c2’ (0.20, 1 of 2 seeds), " in line
    assert "‘c4’ (0.30, 1 of 2 seeds), 1 more are much alike" in line
    five = cautions.troubles(group(drawn(patterns=[0.1] * 5 + [0.9], **of), name="gan"))[0]
    assert "more" not in five
    assert "seeds" not in five


def test_networks_that_judged_are_named_by_three_of_their_runs() -> None:
    runs = [drawn(features_digest="ab" * 8) for _ in range(4)] + [drawn(features_digest="cd" * 8)]
    (line,) = cautions.judged_apart([group(*runs, name="gan")])
    assert "(abababab gan, gan, gan, 1 more; cdcdcdcd gan)" in line


def test_scores_rest_on_what_the_file_says() -> None:
    known = {
        "features": "inception", "features_digest": "abcd", "dimensions": 2048, "resize": "clean", "reference": "test",
        "fake_count": 50_000, "kid_subsets": 100, "kid_subset_size": 1000, "k": 5, "manifold_real_count": 10_000,
        "manifold_fake_count": 20_000, "label_kl": 0.1, "group_fid": {}, "annotator_agreement": 0.5,
    }  # fmt: skip
    (line,) = generate.basis([group(drawn(**known), name="gan")])
    assert line == (
        "Features: inception, weights abcd, 2048 dimensions; resize: clean. Reference: test; 50,000 drawn. "
        "KID over 100 subsets of 1,000; precision, recall, density and coverage with k = 5 on 10,000 real and "
        "20,000 drawn. Label KL: of the annotator's labels to even shares. Agreement: share of images in which the "
        "annotator sees the class asked for. Head, mid and tail FID: means of their classes' FIDs. Scores of other "
        "features or counts do not compare."
    )
    (bare,) = generate.basis([group(drawn(), name="gan")])
    for word in ("weights", "Label KL", "Agreement", "Head", "CAS", "Inception"):
        assert word not in bare
    assert "None subsets of 0; " in bare
    two = generate.basis([group(drawn(), name="a"), group(drawn(k=3), name="b"), group(drawn(), name="c")])
    assert [text.partition(".")[0] for text in two] == ["a, c", "b"]


def test_a_fid_says_what_stands_beside_it() -> None:
    assert generate.context(group(drawn(), name="gan")) == "recall 0.500"
    some = drawn(features="inception", kid=0.001, real_count=0)
    assert generate.context(group(some, name="gan")) == "by inception features, KID × 1000 1.00 and recall 0.500"
    assert generate.context(group(run(task=GENERATE), name="gan")) == ""


def logged(kind: str, **values: list[float]) -> list[dict[str, Any]]:
    """Rows of the log, one for each value."""
    size = len(next(iter(values.values())))
    steps = ({"kind": kind, "step": 10 * i, "epoch": float(i)} for i in range(size))
    return [{**row, **{key: own[i] for key, own in values.items()}} for i, row in enumerate(steps)]


def test_curves_of_generators_say_what_they_were_compared_with() -> None:
    colours = {"gan": colour(0)}
    val = logged("val", fid=[9.0, 8.0], collapsed=[0.0, 0.0], label_kl=[0.5, 0.4])
    held_out = str(generate.curves_section([group(run(task=GENERATE, log=val), name="gan")], colours))
    assert "Compared with the validation split" in held_out
    assert "collapsed classes" not in held_out  # none ever was
    traces = logged("traces", diversity=[0.5, 0.4], **{"share:ant": [0.1, 0.2], "share:bee": [0.5, 0.4]})
    alone = str(generate.curves_section([group(run(task=GENERATE, log=traces), name="gan")], colours))
    assert "No validation split: variety is beside training images." in alone
    assert alone.count("<figure>") == 2
    norms = group(run(task=GENERATE, log=logged("traces", sigma_max=[0.5, 0.4])), name="gan")
    assert "No validation split. " in str(generate.curves_section([norms], colours))  # and no variety
    assert ">ant<" in alone
    assert ">bee<" not in alone  # of the head
    assert "not run" in generate.curves_section([group(run(task=GENERATE), name="gan")], colours)


@pytest.mark.usefixtures("undrawn")
def test_classes_drawn_are_shown_as_far_as_they_were_measured() -> None:
    scores = [{"value": v, "flag": ""} for v in (1.0, 2.0, 3.0, 4.0)]
    both = group(drawn(class_fid=scores), name="gan")
    section = str(generate.drawn_section([both], {"gan": colour(0)}))
    assert section.count("<figure>") == 3  # counts, shares, FIDs
    assert "Hollow" not in section
    shares = str(generate.drawn_section([group(drawn(), name="gan")], {"gan": colour(0)}))
    assert (shares.count("<figure>"), "FID of each class" in shares) == (2, False)
    doubted = [*scores[:3], {"value": 4.0, "flag": "few"}]
    fids = str(generate.drawn_section([group(drawn(class_fid=doubted, class_shares=None), name="gan")], {}))
    assert (fids.count("<figure>"), "Hollow: too few images" in fids, "Share of each" in fids) == (2, True, False)


@pytest.mark.usefixtures("undrawn")
def test_classes_that_cannot_be_trusted_are_hollow_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(generate.class_plots, "plot_scores", lambda *args: seen.append(args) or "")
    scores = [{"value": float(k), "flag": "few" * (k == 2)} for k in range(4)]
    generate.drawn_section([group(drawn(class_fid=scores), name="gan")], {})
    ((_, metric, values, _, doubtful),) = seen
    assert (metric.key, values, doubtful) == ("class_fid", {"gan": [[0, 1, 2, 3]]}, {"gan": {2}})


# records and their groups


def test_equal_counts_stay_within_their_group() -> None:
    """Classes 1 and 4 belong to no group, and stand with the first."""
    assert by_count((list("abcde"), [7, 7, 7, 9, 7], {"head": [2, 3], "tail": [0]})) == [3, 1, 2, 4, 0]


@pytest.mark.parametrize(
    ("seeds", "measured", "splits", "said"),
    [
        ([0, 1, 2], [True] * 3, [None] * 3, "3 seeds"), ([0], [True], [None], "1 seed"),
        ([0, 1, 2], [True, False, False], [None] * 3, "1 of 3 seeds"), ([0, 1], [False] * 2, [None] * 2, "2 seeds"),
        ([0, 0], [True] * 2, [None] * 2, "2 runs"), ([None], [True], [None], "1 run"),
        ([0, 1], [True] * 2, [0, 1], "2 seeds and splits"), ([0, 1], [True] * 2, [1, 1], "2 seeds"),
    ],
)  # fmt: skip
def test_a_group_says_how_many_it_is(seeds: Any, measured: Any, splits: Any, said: str) -> None:
    each = zip(seeds, measured, splits, strict=True)
    assert group(*(run(seed=s, measured=m, data={"split_seed": d}) for s, m, d in each)).size == said


def test_the_lost_count_among_a_groups_runs() -> None:
    assert RunGroup("ce", (run(seed=0),), (run(seed=1, measured=False),)).size == "1 of 2 seeds"


def test_a_failure_is_an_undefined_headline_or_a_log_without_a_measurement() -> None:
    log = ({"kind": "train", "step": 1234, "epoch": 1.0},)
    assert run(mean_recall=0.5, log=log).failure == ""
    assert run(log=log).failure == ""  # measured by an older version, perhaps
    assert run(mean_recall=None).failure == run(mean_recall=float("inf")).failure == "its mean recall is undefined"
    assert run(measured=False).failure == ""  # not begun
    assert run(measured=False, log=log).failure == "not measured; its log ends at step 1,234"
    assert run(measured=False, log=({**log[0], "reason": "diverged"},)).failure == "diverged"


def test_runs_that_failed_are_taken_out_unless_all_did() -> None:
    log = ({"kind": "train", "step": 1, "epoch": 1.0},)
    good, bad, other = run("a", mean_recall=0.5), run("b", measured=False, log=log), run("c", measured=False, log=log)
    groups, lost = apart([group(good, bad, name="x"), group(other, name="y")])
    assert [(g.name, g.records, g.lost) for g in groups] == [("x", (good,), (bad,))]
    assert lost == [bad, other]
    both = [group(bad, name="x"), group(other, name="y")]
    assert apart(both) == (both, [bad, other])


def test_a_curve_has_the_rows_of_its_kind_that_are_numbers() -> None:
    log = [
        *logged("val", loss=[1.0, float("nan"), 3.0]),
        *logged("train", loss=[7.0]),
        {"kind": "val", "step": 9, "epoch": 9.0},
    ]
    record = run(log=log)
    assert record.curve("x", "val", "loss") == ("x", [0, 20], [1, 3])
    assert record.curve("x", "val", "loss", "epoch") == ("x", [0, 2], [1, 3])
    assert record.curve("x", "val", "accuracy") is None


def test_a_seed_stands_in_the_recipe_or_in_its_run() -> None:
    record = run(seed=3)
    assert (record.seed, record.label) == (3, "seed 3")
    assert run(seed=None).label == "ce"
    assert RunRecord("x", Path("x"), CLASSIFY, {"seed": 0, "run": {"seed": 4}}, "", (), None, {}, {}, {}).seed == 0
    assert RunRecord("x", Path("x"), CLASSIFY, None, "", (), None, {}, {}, {}).label == "x"


def test_runs_measured_in_another_way_are_no_repetition() -> None:
    ways = [{}, {"split": "val"}, {"select": "val:ece"}, {"checkpoint": "best.pt"}, {"classes": NAMES[::-1]}]
    runs = [run(f"ce-{s}", seed=s, **way) for s, way in enumerate(ways)]
    assert [[r.name for r in g.records] for g in group_runs(runs)] == [[f"ce-{s}"] for s in range(5)]
    late = run("ce-9", seed=9, measured=False)
    assert [r.name for r in group_runs([late, *runs])[0].records] == ["ce-9", "ce-0"]


def test_a_split_of_its_own_for_each_seed_is_told_from_a_shared_one() -> None:
    seeds = [run(seed=s, data={"split_seed": d}) for s, d in ((0, 0), (1, 1), (2, 0), (3, 3))]
    assert [[r.seed for r in part] for part in by_split(seeds)] == [[0, 2], [1, 3]]
    assert [[r.seed for r in part] for part in by_split([run(seed=s) for s in range(2)])] == [[0, 1]]


# tables


def test_a_cell_is_the_mean_with_its_spread_and_its_values_to_one_digit_more() -> None:
    assert number_cell([]) == Cell("not run")
    assert number_cell([("a", 1.0), ("b", float("nan"))]) == Cell("undefined")
    assert number_cell([("a", 1.234)]) == Cell("1.2", "", "a: 1.23")
    assert number_cell([("a", 1.0), ("b", 2.0)], 2) == Cell("1.50", "± 0.71", "a: 1.000, b: 2.000")


def test_a_runs_headline_is_what_it_measured() -> None:
    assert headline(run(mean_recall=0.617, group_recall={"tail": 0.35})) == "mean recall 61.7 %, tail recall 35.0 %"
    assert headline(run(mean_recall=0.617)) == "mean recall 61.7 %"
    assert headline(run(task=GENERATE, fid=9.0)) == "FID 9.00"


@pytest.mark.parametrize(("shares", "errors"), [((0.3, 0.5, 0.4), (0.3, 0.5, 0.4)), ((0.5, 0.5, 0.4), (0.2, 0.1, 0.1))])
def test_the_best_of_a_column_is_marked_the_right_way_round(shares: Any, errors: Any) -> None:
    groups = [group(run(f"r{i}", mean_recall=r, ece=e)) for i, (r, e) in enumerate(zip(shares, errors, strict=True))]
    table = summary_of(groups)
    recall, ece = (table.columns.index(name) for name in ("mean recall (%)", "ECE (%)"))
    assert [row[recall].best for row in table.rows] == [value == max(shares) for value in shares]
    assert [row[ece].best for row in table.rows] == [value == min(errors) for value in errors]
    assert table.caption == "One run each; best in bold"
    assert summary_of(groups[:1]).caption == "One run each"
    alone = summary_of([groups[0], group(run("r9", measured=False))])
    assert not any(cell.best for row in alone.rows for cell in row)


def test_the_summary_has_numbers_right_and_says_how_a_checkpoint_was_chosen() -> None:
    fair, peeked = group(run("a", mean_recall=0.5)), group(run("b", mean_recall=0.6, select="oracle:accuracy"))
    table = summary_of([fair, peeked])
    assert (table.columns, table.numbers) == (("run", "mean recall (%)", "repeats", "selected by"), range(1, 2))
    assert table.rows[1][-1] == Cell("test split (oracle)", alarm=True, title="oracle:accuracy")
    assert table.rows[0][-1] == Cell("last")
    seeds = summary_of([group(run(seed=0, mean_recall=0.5), run(seed=1, mean_recall=0.7))])
    assert seeds.caption == "Mean ± sample standard deviation over seeds"
    assert summary_of([group(run(measured=False))]).columns[1] == "mean recall (%)"  # which was not run


def test_other_rules_are_columns_by_the_number_they_name() -> None:
    also = {
        "val:mean_recall": {"accuracy": 0.1, "mean_recall": 0.2},
        "val:unknown": {"mean_recall": 0.3, "accuracy": 0.4},
        "nothing": {"step": 5},
    }
    found = group(run(also=also, mean_recall=0.5))
    assert [m.name for m in also_metrics([found])] == ["mean recall by val:mean_recall", "accuracy by val:unknown"]
    table = summary_of([found])
    assert [str(cell) for cell in table.rows[0][1:4]] == ["50.0", "20.0", "40.0"]
    assert table.numbers == range(1, 4)
    assert "oracle" not in table.caption
    free = group(run(task=GENERATE, also={"label-free:density": {"fid": 9.0, "density": 0.5}}))
    assert [m.name for m in also_metrics([free])] == ["FID by density"]  # not a density


def test_the_table_of_classes_has_the_runs_of_the_same_classes() -> None:
    runs = [run("a-0", recall=[0.1, 0.2, 0.3, None]), run("b-0", method={"rho": 1}, recall=[0.5, 0.6, 0.7, 0.8])]
    other = run("c-0", method={"rho": 2}, classes=NAMES[::-1], recall=[0.5] * 4)
    table = per_class_table([*runs, other, run("d-0", method={"rho": 3}, measured=False)])
    assert texts(table) == [
        ["bee", "head", "1,000", "20.0", "60.0"], ["cat", "mid", "100", "30.0", "70.0"],
        ["dog", "tail", "10", "undefined", "80.0"], ["ant", "tail", "5", "10.0", "50.0"],
    ]  # fmt: skip
    assert (table.numbers, table.browsed) == (range(2, 5), True)
    assert table.caption == "Recall per class, most training samples first"
    assert per_class_table([run(measured=False)]).rows == ()


def test_a_star_is_explained_where_there_is_one() -> None:
    flags = [{"value": 5.0, "flag": ""}, {"value": 6.0, "flag": "few"}, {"value": None, "flag": "none"}, {"value": 7.0}]
    table = per_class_table([drawn(class_fid=flags, patterns=None, class_shares=None)])
    assert [row[-1] for row in texts(table)] == ["6.00*", "undefined", "7.00", "5.00"]
    assert table.caption.endswith("; * too few images of the class for a FID to be trusted")
    plain = per_class_table([drawn(class_fid=[{"value": 5.0}] * 4, patterns=None, class_shares=None)])
    assert "*" not in plain.caption


def test_recipes_that_differ_are_told_setting_by_setting() -> None:
    runs = [
        run("a", method={"rho": 0.1, "net": {"width": 2, "name": "x"}}),
        run("b", method={"rho": 0.2, "net": {"width": 4, "name": "x"}, "steps": [1, 2]}),
    ]
    assert texts(difference_table(runs)) == [
        ["method.rho", "0.1", "0.2"], ["method.net.width", "2", "4"], ["method.steps", "–", "[1, 2]"],
    ]  # fmt: skip


def test_rules_of_groups_are_noted_once() -> None:
    of = [group(run(groups_rule=rule)) for rule in ("b", "a", "b")]
    assert notes(of) == ["Head, mid and tail: a; b."]
    assert notes([group(run())]) == []


def test_a_table_turned_has_its_columns_as_rows() -> None:
    table = Table(
        "c", ("run", "x", "y"), ((Cell("a"), Cell("1"), Cell("2")), (Cell("b"), Cell("3"), Cell("4"))), range(1, 3)
    )
    turned = table.turned()
    assert (turned.columns, texts(turned), turned.numbers) == (
        ("run", "a", "b"), [["x", "1", "3"], ["y", "2", "4"]], range(1, 3)
    )  # fmt: skip


def test_what_all_rows_say_in_words_stands_once_below_the_terminals_table() -> None:
    rows = tuple((Cell(n), Cell("1", "± 2", best=n == "b"), Cell("last"), Cell(s)) for n, s in (("a", "x"), ("b", "y")))
    table = Table("c", ("run", "number", "selected by", "size"), rows, range(1, 2))
    rich: Any = table.to_rich()
    assert str(rich.caption) == "c; selected by: last"
    assert [str(column.header) for column in rich.columns] == ["run", "number", "size"]
    assert [column.justify for column in rich.columns] == ["left", "right", "left"]
    assert [column.no_wrap for column in rich.columns] == [True, False, False]
    assert {column.overflow for column in rich.columns} == {"fold"}
    assert [str(cell.style) for cell in rich.columns[1].cells] == ["", "bold"]
    assert [str(cell) for cell in rich.columns[1].cells] == ["1 ± 2", "1 ± 2"]
    assert (rich.collapse_padding, rich.box is not None) == (True, True)
    assert table.spread == {1}
    for letters, short in ((24, True), (25, False)):
        named = Table("c", ("run", "x"), ((Cell("n" * letters), Cell("1")),), range(1, 2))
        assert named.to_rich().columns[0].no_wrap == short


def test_markdown_has_bars_and_line_breaks_put_right() -> None:
    table = Table("c", ("a", "b"), ((Cell("x|y"), Cell("1\n 2", best=True)),), range(1, 2))
    assert table.to_markdown() == "| a | b |\n|:--|--:|\n| x\\|y | **1 2** |\n"


# every class


def test_the_classes_of_lowest_recall_come_first_and_those_without_samples_last(tmp_path: Path) -> None:
    matrix = [[5, 5, 0, 0], [0, 0, 0, 0], [9, 0, 1, 0], [0, 0, 0, 4]]
    found = group(run(folder=tmp_path, matrix=matrix))
    assert [row[0] for row in texts(score_table(found, most=3))] == ["cat", "ant", "dog"]
    whole = score_table(found, most=4)
    assert [row[0] for row in texts(whole)] == ["bee", "cat", "dog", "ant"]
    assert "most training samples first" in whole.caption
    assert texts(whole)[0][3:] == ["0", "–", "–", "5", "0.0", "0–43", "–"]
    assert [cell.title for cell in whole.rows[0] if cell.text == "–"] == ["no sample", "", "no sample"]
    assert (whole.numbers, whole.browsed) == (range(2, 10), True)
    narrow = score_table(found, wide=False)
    assert narrow.columns == (
        "class",
        "group",
        "training",
        "n (test)",
        "recall (%)",
        "95 % interval",
        "precision (%)",
        "F1 (%)",
    )
    assert texts(narrow)[3] == ["ant", "tail", "5", "10", "50.0", "24–76", "35.7", "41.7"]
    assert narrow.numbers == range(2, 8)
    assert [cell.doubtful for cell in whole.rows[1]] == [False] * 6 + [True, False, True, False]


def test_counts_stand_beside_the_training_samples_of_their_class(tmp_path: Path) -> None:
    bare, counted = (
        run("a", recall=[0.1] * 4),
        run("b", folder=tmp_path, matrix=np.diag([1, 20, 3, 40]), recall=[0.1] * 4),
    )
    table = with_counts(per_class_table([bare]), [group(bare), group(counted)])
    assert [row[:4] for row in texts(table)] == [
        ["bee", "head", "1,000", "20"], ["cat", "mid", "100", "3"], ["dog", "tail", "10", "40"],
        ["ant", "tail", "5", "1"],
    ]  # fmt: skip
    assert (table.columns[3], table.numbers) == ("n (test)", range(2, 5))
    assert [row[3].doubtful for row in table.rows] == [False, True, False, True]
    assert with_counts(per_class_table([bare]), [group(bare)]).columns[3] == "a recall (%)"


def test_a_precision_is_of_the_fewest_that_were_taken_for_the_class(tmp_path: Path) -> None:
    matrices = ([[4, 1], [1, 4]], [[5, 0], [3, 2]])
    of = {"classes": ["a", "b"], "train_counts": [2, 1], "groups": {}}
    seeds = [run(f"ce-{s}", folder=tmp_path, seed=s, matrix=m, **of) for s, m in enumerate(matrices)]
    first, second = class_scores(group(*seeds))
    assert (first.taken, second.taken, first.samples) == (5, 2, 5)
    assert [v for _, v in first.precision] == pytest.approx([80, 62.5])
    assert [v for _, v in first.f1] == pytest.approx([80, 1000 / 13])
    low, mean, high = first.span("precision") or (0, 0, 0)
    assert mean == pytest.approx(71.25)
    assert (low, high) == pytest.approx((30.8, 93.2), abs=0.1)  # Wilson's, of 5


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([100, 10], "110 training samples in 2 classes, imbalance 10."), ([99, 10], "imbalance 9.9."),
        ([5, 0], "5 training samples in 2 classes."), ([995, 5], "1,000 training samples in 2 classes, imbalance 199."),
    ],
)  # fmt: skip
def test_imbalance_is_said_where_every_class_has_samples(counts: list[int], said: str) -> None:
    found = group(run(classes=["a", "b"], train_counts=counts, groups={}))
    assert f"{said}</figcaption>" in classes.each_set_of_classes([found], lambda *_: "")


@pytest.mark.usefixtures("undrawn")
def test_sets_of_classes_stand_apart_under_the_names_of_their_runs() -> None:
    groups = [
        group(run(measured=False, facts={"classes": NAMES, "counts": [5, 1000, 100, 10]}), name="later"),
        group(run(), name="one"),
        group(run(train_counts=[5, 5, 5, 5]), name="two"),
        group(run(measured=False), name="none"),
    ]  # fmt: skip
    text = str(classes.each_set_of_classes(groups, lambda members, _: f"[{len(members)}]"))
    assert re.findall(r"<h3>(.*?)</h3>|\[(\d)\]", text) == [("one, later", ""), ("", "2"), ("two", ""), ("", "1")]
    assert "<h3>" not in classes.each_set_of_classes(groups[1:2], lambda *_: "")
    assert "not run" in classes.each_set_of_classes(groups[3:], lambda *_: "")


@pytest.mark.parametrize(
    ("count", "start"), [(12, "<details open>"), (13, "<details>"), (1000, "<details>"), (1001, "")]
)
def test_a_table_of_classes_is_open_folded_or_left_out(count: int, start: str) -> None:
    of = {"classes": [str(k) for k in range(count)], "train_counts": [1] * count, "groups": {}, "recall": [0.5] * count}
    assert str(classes.class_table([group(run(**of))], "t")).partition("<summary>")[0] == start


@pytest.mark.usefixtures("undrawn")
def test_recalls_of_few_samples_are_hollow_and_have_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(classify.class_plots, "plot_scores", lambda *args: seen.append(args) or "")
    counted = group(run(folder=tmp_path, matrix=np.diag([9, 10, 11, 0]), recall=[1.0, 1.0, 1.0, None]), name="a")
    bare = group(run(recall=[0.1] * 4), name="b")
    text = str(classify.classes_section([counted, bare], {}))
    ((_, _, series, _, doubtful, ranges),) = seen
    assert (list(series), doubtful) == (["a", "b"], {"a": {0, 3}, "b": set()})
    assert [span and round(span[0]) for span in ranges["a"]] == [70, 72, 74, None]
    assert "b" not in ranges
    assert "Hollow: fewer than 10 samples" in text
    assert "Hollow" not in classify.classes_section([bare], {})
    assert "bars from lowest to highest" in classify.classes_section([bare], {})


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("count", "hover"), [(40, True), (41, False)])
def test_many_recalls_cannot_be_hovered_over(count: int, hover: bool) -> None:
    of = {"classes": [str(k) for k in range(count)], "train_counts": [1] * count, "groups": {}, "recall": [0.5] * count}
    assert ("Hover for the numbers" in classify.classes_section([group(run(**of))], {})) == hover


@pytest.mark.usefixtures("undrawn")
def test_recalls_stand_side_by_side_and_each_group_has_its_table(tmp_path: Path) -> None:
    runs = [
        run(n, folder=tmp_path, matrix=np.diag([9, 10, 11, 12]), recall=[1.0] * 4, method={"rho": i})
        for i, n in enumerate("ab")
    ]
    groups = [group(r, name=r.name) for r in runs]
    text = str(classify.classes_section(groups, {}))
    folds = re.findall(r"<details( open)?><summary>(.*?)</summary>", text)
    title = "Recall, precision and F1 of each class"
    assert folds == [(" open", "Recalls side by side"), ("", f"{title}: a"), ("", f"{title}: b")]
    alone = re.findall(r"<details( open)?><summary>(.*?)</summary>", str(classify.classes_section(groups[:1], {})))
    assert alone == [(" open", f"{title}: a")]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("count", "shown"), [(12, " open"), (13, "")])
def test_recalls_of_more_than_twelve_classes_are_folded(tmp_path: Path, count: int, shown: str) -> None:
    of = {
        "classes": [f"c{k}" for k in range(count)],
        "train_counts": [9] * count,
        "groups": {},
        "recall": [1.0] * count,
    }
    runs = [
        run(n, folder=tmp_path, matrix=9 * np.eye(count, dtype=int), method={"rho": i}, **of)
        for i, n in enumerate("ab")
    ]
    text = str(classify.classes_section([group(r, name=r.name) for r in runs], {}))
    assert f"<details{shown}><summary>Recalls side by side" in text


def test_the_rows_of_a_page_are_shared_by_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(classify, "score_table", lambda _, most: asked.append(most) or Table("", (), ()))
    one = group(run(folder=tmp_path, matrix=np.diag([9, 10, 11, 12]), recall=[1.0] * 4))
    for members in (1, 4, 20, 30):
        classify._tables([one] * members, one.classes)
    assert asked == [1000] + [250] * 4 + [50] * 20 + [50] * 30


def test_the_terminal_lists_a_hundred_classes(tmp_path: Path) -> None:
    count = 101
    of = {"classes": [str(k) for k in range(count)], "train_counts": [1] * count, "groups": {}, "recall": [1.0] * count}
    one = group(run(folder=tmp_path, matrix=np.eye(count, dtype=int), **of))
    table = classify.terminal_table([one])
    assert (len(table.rows), len(table.columns)) == (100, 8)
    assert len(classify.terminal_table([group(run(recall=[0.1] * 4))]).rows) == 4
    assert classify.terminal_table([group(run(measured=False))]).rows == ()


def test_curves_go_by_epoch_and_have_the_names_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(classify.plots, "plot_curves", lambda *args: seen.append(args) or "")
    log = [*logged("train", loss=[2.0, 1.0]), *logged("val", mean_recall=[0.1, 0.2], top5=[0.5, 0.6])]
    classify.curves_section([group(run(log=log))], {})
    panels = {"train loss": [("ce", [0, 1], [2, 1])], "val mean recall": [("ce", [0, 1], [0.1, 0.2])]}
    assert seen == [(panels, {}, "epoch")]
    assert "not run" in classify.curves_section([group(run())], {})


def test_bins_of_another_number_are_not_put_together() -> None:
    three = {"count": [1, 0, 2], "confidence": [0.1, None, 0.9], "accuracy": [0.0, None, 1.0]}
    two = {"count": [1, 2], "confidence": [0.1, 0.9], "accuracy": [0.0, 1.0]}
    odd = group(run(reliability=three), run(seed=1, reliability=two))
    assert "not run" in classify.calibration_section([odd], {})
    assert "Divided by" not in classify.calibration_section([group(run(reliability=two))], {})


def test_a_temperature_needs_both_errors() -> None:
    heat = {"value": 2.0, "ece": 0.02}
    assert classify._temperature(group(run(ece=0.1, temperature=heat))) == "ce T = 2.00, ECE 10.0 % → 2.0 %"
    assert classify._temperature(group(run(temperature=heat))) == classify._temperature(group(run(ece=0.1))) == ""


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ([0, 2], "of ant, cat; means"),
        ([3, 9, -1], "of dog; means"),
        ([0, 1, 2, 3] * 2, "of ant, bee, cat, dog, ant and 3 more;"),
    ],
)
def test_classes_that_are_absent_are_named_by_five(absent: list[int], said: str) -> None:
    (line,) = classify.cautions([group(run(absent=absent, split="val"))])
    assert line.startswith("ce: the val split has no sample ")
    assert said in line
    five = {"classes": list("abcde"), "train_counts": [1] * 5, "groups": {}}
    assert "more" not in classify.cautions([group(run(absent=[0, 1, 2, 3, 4], **five))])[0]
    assert classify.cautions([group(run(absent=None))]) == []


def test_further_numbers_are_those_that_the_summary_has_not() -> None:
    section = str(classify.numbers_section([group(run(h_mean=0.5, mean_recall=0.5, min_coverage=0.05))], {}))
    assert re.findall(r'<th scope="row" title="(.*?)">', section) == ["H-mean of recalls (%)", "min coverage (%)"]
    assert '<td class="num">50.0</td>' in section
    assert '<td class="num">5.00</td>' in section
    assert section.startswith("<details>")


# confusions and their samples


@pytest.mark.parametrize(("count", "listed", "drawn_"), [(30, 11, False), (31, 40, True)])
def test_up_to_thirty_classes_are_a_matrix_of_counts(tmp_path: Path, count: int, listed: int, drawn_: bool) -> None:
    matrix = np.arange(count * count).reshape(count, count) + 1
    of = {"classes": [f"c{k}" for k in range(count)], "train_counts": list(range(count)), "groups": {}}
    text = str(confusions.confusions_section([group(run(folder=tmp_path, matrix=matrix, **of))], {}))
    assert f"The {listed} most frequent of {count * (count - 1):,} confusions" in text
    assert ("<svg" in text, '<table class="matrix' in text) == (drawn_, not drawn_)


def test_matrices_of_the_first_two_groups_are_open(tmp_path: Path) -> None:
    groups = [group(run(n, folder=tmp_path, matrix=np.eye(4, dtype=int) + 1), name=n) for n in "abc"]
    text = str(confusions.confusions_section([*groups, group(run(), name="d")], {}))
    assert re.findall(r"<details( open)?><summary>(.*?)</summary>", text) == [
        (" open", "a"),
        (" open", "b"),
        ("", "c"),
        ("", "d"),
    ]
    assert text.count('class="none"') == 1
    assert "seeds together" not in text
    assert "<details" not in confusions.confusions_section(groups[:1], {})
    both = group(*(run(f"s{s}", folder=tmp_path, seed=s, matrix=np.eye(4, dtype=int)) for s in range(2)))
    assert "taken for, 2 seeds together; most frequent first." in confusions.confusions_section([both], {})


def test_a_dialog_says_how_many_of_its_samples_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three bees taken for cats two are shown; a sample that no count knows is not."""
    matrix = np.diag([9, 9, 9, 9])
    matrix[1, 2] = 3
    rows = [sample("x", 1, 2), sample("y", 1, 2), sample("z", 3, 0)]
    monkeypatch.setattr(confusions, "shown_of", lambda of, _sharing: (of.records[0], rows))
    one, other = (run(f"ce-{s}", folder=tmp_path, seed=s, matrix=matrix) for s in range(2))
    alone = str(confusions.confusions_section([group(one)], {}))
    assert "2 of 3 shown; all of them by name in ce-0/predictions.csv" in alone
    assert re.findall('<dialog id="(.*?)"', alone) == ["cell-0-1-2"]
    assert "a number that is underlined opens its samples" in alone
    both = str(confusions.confusions_section([group(one, other)], {}))
    assert "2 of 6 shown, of ce-0; all of them" in both


def test_a_cell_is_dark_above_55_per_cent_and_told_in_words() -> None:
    counts = np.array([[45, 55, 0], [0, 44, 56], [0, 0, 0]])
    rows = confusions._matrix(counts, [0, 1, 2], ["a", "b", "c"], {(0, 1): "x"})
    assert [[cell["dark"] for cell in row["cells"]] for row in rows] == [[False] * 3, [False, False, True], [False] * 3]
    assert [cell["hit"] for cell in rows[1]["cells"]] == [False, True, False]
    assert [cell["told"] for cell in rows[1]["cells"]] == [
        "",
        "b recognised: 44 of 100 (44.0 %)",
        "b taken for c: 56 of 100 (56.0 %)",
    ]
    assert [cell["link"] for cell in rows[0]["cells"]] == ["", "x", ""]
    assert [cell["n"] for cell in rows[0]["cells"]] == [45, 55, 0]


def test_errors_are_shares_of_their_class() -> None:
    table = confusions._errors(np.array([[6, 2], [1, 9]]), ["a", "b"], {(0, 1): "x"}, 5)
    assert texts(table) == [["a", "b", "2", "25.0", "8"], ["b", "a", "1", "10.0", "10"]]
    assert (table.rows[0][2].link, table.rows[1][2].link) == ("x", "")
    assert (table.numbers, table.browsed) == (range(2, 5), True)


def sample(name: str, truth: int, predicted: int, confidence: float = 0.5, **more: Any) -> dict[str, Any]:
    return {"name": name, "truth": truth, "predicted": predicted, "confidence": confidence, "second": 3,
            "second_confidence": 0.25, **more}  # fmt: skip


@pytest.mark.parametrize(
    ("size", "drawn_at", "sharp"),
    [((48, 10), (96, 20), True), ((49, 10), (49, 10), False), ((96, 1), (96, 1), False), ((10, 32), (30, 96), True)],
)
def test_pictures_are_enlarged_by_whole_pixels_to_96(size: Any, drawn_at: Any, sharp: bool) -> None:
    shown = examples.card(sample("x", 0, 1, width=size[0], height=size[1]), NAMES)
    assert (shown["width"], shown["height"], shown["sharp"]) == (*drawn_at, sharp)
    assert (shown["sure"], shown["second"], shown["truth"], shown["predicted"]) == (
        "50.0 %",
        "dog 25.0 %",
        "ant",
        "bee",
    )
    bare = examples.card(sample("x", 0, 1), NAMES)
    assert (bare["width"], bare["height"], bare["data"], bare["text"], bare["kind"]) == (0, 0, "", "", None)


def test_mistakes_of_a_group_are_its_first_runs_and_at_most_24(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [sample(f"x{i:02}", 0, 1, i / 100) for i in range(25)] + [sample("right", 2, 2, 0.9)]
    found = {"a": rows, "b": [sample("right", 2, 2)], "c": []}
    monkeypatch.setattr(examples, "examples_of", lambda record, _room: found[record.name])
    runs = {name: run(name) for name in "abc"}
    seeds, fine, none = group(runs["c"], runs["a"], name="A"), group(runs["b"], name="B"), group(runs["c"], name="C")
    alone = str(examples.mistakes_section([seeds], {}))
    assert re.findall(r'<span class="name">(.*?)</span>', alone) == [f"x{i:02}" for i in range(24, 0, -1)]
    assert "24 of a, seed 0, the surest first" in alone
    assert "<details" not in alone
    assert str(examples.mistakes_section([fine, none], {})).count("<details") == 2
    text = str(examples.mistakes_section([seeds, fine, none], {}))
    assert re.findall(r"<details( open)?><summary>(.)", text) == [(" open", "A"), (" open", "B"), ("", "C")]
    assert "b made no mistake." in text
    assert "evenhand measure RUN writes examples.json" in text


def test_samples_are_kept_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ce"
    folder.mkdir()
    rows = [sample("a", 0, 1, data="abcd", text="xy"), sample("b", 0, 1, text="1234"), sample("c", 0, 1)]
    (folder / "examples.json").write_text(json.dumps({"shown": rows}))
    for room, names in ((10, "abc"), (9, "a"), (5, "")):
        assert "".join(row["name"] for row in examples.examples_of(run(folder=tmp_path), room)) == names
    assert examples.shown_of(group(run(folder=tmp_path)), 0)[1] == rows
    monkeypatch.setattr(examples, "ROOM", 12)
    assert [len(examples.shown_of(group(run(folder=tmp_path)), groups)[1]) for groups in (0, 1, 2)] == [3, 3, 1]
    assert examples.shown_of(group(run(folder=tmp_path / "none")), 1) == (None, [])


# verdicts, and what compares


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ((0.5, 0.7), (0.4,), "With one seed on a side"), ((0.5, 0.6), (0.4, 0.5), ""),
        ((0.5, 0.75), (0.4, 0.5), "The lead over b (17.5) lies within the spread of the seeds."),
        ((0.6, 0.61), (0.4, 0.7), "The lead over b (5.5) lies within the spread of the seeds."),
    ],
)  # fmt: skip
def test_a_lead_counts_if_it_is_larger_than_the_larger_spread(ours: Any, theirs: Any, said: str) -> None:
    best, rival = (
        group(*(run(seed=s, mean_recall=v) for s, v in enumerate(values)), name=name)
        for name, values in (("a", ours), ("b", theirs))
    )
    remark = verdict._weight(best, rival, CLASSIFY.headline)
    assert remark.startswith(said) if said else remark == ""


def test_only_comparable_groups_are_ranked_and_their_number_is_said() -> None:
    groups = [
        group(run(mean_recall=0.5), name="a"), group(run(mean_recall=0.7), name="b"),
        group(run(mean_recall=0.9, split="val"), name="c"),
    ]  # fmt: skip
    said = str(verdict.verdict(groups).striptags())
    assert said.startswith("Best mean recall among the 2 comparable: b (70.0 %, 1 seed)")
    assert "Best mean recall: b" in verdict.verdict(groups[:2]).striptags()
    assert "With one seed" in said
    tied = verdict.verdict([groups[0], group(run(mean_recall=0.5), name="d")]).striptags()
    assert "With one seed" not in tied
    oracle = group(run(mean_recall=0.9, select="oracle:accuracy"), name="o")
    assert verdict.verdict([oracle, groups[0]]).striptags().startswith("Mean recall of a: 50.0 %")
    assert verdict.verdict([oracle]).striptags().startswith("Mean recall of o: 90.0 %")


def test_cautions_name_splits_and_what_runs_differ_in() -> None:
    test, val = group(run(mean_recall=0.5), name="a"), group(run(mean_recall=0.7, split="val"), name="b")
    text = verdict.cautions([test, val]).striptags()
    assert "Not everything was measured on the test split (a: test, b: val)." in text
    assert "The runs differ in split: their numbers cannot be compared." in text
    assert verdict.cautions([test]) == verdict.cautions([group(run(measured=False))]) == ""


def test_groups_compare_on_the_same_samples_however_they_are_seen() -> None:
    def tested(digest: str | None, size: int = 32, split: int = 0, samples: int = 9) -> RunGroup:
        streams = {} if digest is None else {"test": {"digest": digest}}
        return group(run(streams=streams, data={"size": size, "split_seed": split}, samples=samples))

    first = tested("x")
    assert compare(first, tested("x"))
    assert compare(first, tested(None))
    assert not compare(first, tested("y"))
    assert compare(first, tested("y", size=64))
    assert not compare(first, tested("y", size=64, split=1))
    assert not compare(first, tested("y", size=64, samples=8))
    assert not compare(first, group(run(split="val")))


def test_one_way_of_seeing_can_be_wrong_by_itself() -> None:
    """Small images agree; the large ones of one split have two contents."""

    def tested(name: str, seed: int, digest: str, size: int) -> RunRecord:
        return run(
            name, seed=seed, streams={"test": {"digest": digest}}, data={"size": size, "split_seed": seed}, samples=9
        )

    small = group(tested("a", 0, "x", 32), tested("a", 1, "y", 32))
    large = group(tested("b", 0, "v", 64), tested("b", 1, "w", 64))
    assert which_test([small, large])[0] == ""
    assert which_test([small, large])[1].startswith("Each seed splits the data anew")
    odd = group(tested("c", 0, "v", 64), tested("c", 1, "u", 64))
    assert which_test([small, large, odd])[0].startswith("The runs were tested on different data")
    assert which_test([group(run()), group(run())]) == ("", "")


# the terminal


@pytest.mark.parametrize(("groups", "turned"), [(1, True), (7, True), (8, False), (9, False)])
def test_a_summary_is_turned_if_it_is_wide_and_has_fewer_rows(
    groups: int, turned: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight numbers of each generator."""
    monkeypatch.setenv("COLUMNS", "300")
    more = {"kid": 0.1, "precision": 0.5, "density": 0.5, "coverage": 0.5, "label_kl": 0.1, "annotator_agreement": 0.5}
    runs = [run(f"r{i}", task=GENERATE, method={"rho": i}, fid=9.0, recall=0.5, **more) for i in range(groups)]
    terminal.print_tables(runs)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert (["FID", "↓", *["9.00"] * groups] in lines) == turned


def test_seven_numbers_stand_in_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    more = {"kid": 0.1, "precision": 0.5, "density": 0.5, "coverage": 0.5, "label_kl": 0.1}
    terminal.print_tables([run("r", task=GENERATE, fid=9.0, recall=0.5, patterns=[0.1, 0.2, 0.3, 0.4], **more)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["r", "9.00", "100.00", "0.500", "0.500", "0.500", "0.500", "0.100"] in lines
    assert ["dog", "tail", "10", "0.40"] in lines


def test_several_generators_have_no_table_of_classes_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run(n, task=GENERATE, method={"rho": n}, fid=9.0, patterns=[0.9] * 4) for n in "ab"]
    terminal.print_tables(runs)
    assert "training samples" not in capsys.readouterr().out
