"""Classifiers on the page: numbers against those reckoned by hand, classes in an order that is not their index."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from PIL import Image
from rich.console import Console

from evenhand.errors import UserError
from evenhand.report import examples, terminal
from evenhand.report.advice import of_classifier, of_generator
from evenhand.report.charts.class_plots import plot_scores
from evenhand.report.charts.plots import plot_curves
from evenhand.report.classify import calibration_section, terminal_table
from evenhand.report.page import render
from evenhand.report.reading import load_run
from evenhand.report.records import apart, group_runs
from evenhand.report.scores import class_scores, score_table
from evenhand.report.tables import summary_of
from evenhand.report.terminal import print_tables
from evenhand.report.verdict import advice, verdict
from evenhand.tasks.metric import score

NAMES, COUNTS = ["lynx", "cat", "dog", "eel"], [10, 1000, 100, 5]
MATRIX = [[2, 0, 0, 0], [1, 7, 2, 0], [0, 5, 15, 0], [0, 3, 0, 0]]  # an eel is never recognised, nor said to be one


def picture(shade: int) -> str:
    out = io.BytesIO()
    Image.new("L", (8, 8), shade).save(out, "png")
    return base64.b64encode(out.getvalue()).decode()


def example(name: str, truth: int, predicted: int, confidence: float, **more: Any) -> dict[str, Any]:
    second = next(k for k in range(4) if k != predicted)
    seen = more or {"kind": "png", "width": 8, "height": 8, "data": picture(int(200 * confidence))}
    return {"name": name, "truth": truth, "predicted": predicted, "confidence": confidence, "second": second,
            "second_confidence": 0.01, **seen}  # fmt: skip


SHOWN = [
    example("a/eel1.png", 3, 1, 0.99),
    example("b/dog.png", 2, 1, 0.75),
    example("c/eel2.png", 3, 1, 0.5),
    example("d/lynx.png", 0, 0, 0.4),
]


def make_run(
    root: Path, name: str, *, seed: int = 0, matrix: Any = MATRIX, method: str = "", shown: Any = SHOWN, **changes: Any
) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    counts = np.array(matrix)
    recall = [float(c[k] / c.sum()) if c.sum() else None for k, c in enumerate(counts)]
    known = [r for r in recall if r is not None]
    np.savez_compressed(folder / "confusion.npz", confusion=counts)
    measure = {
        "task": "classify", "split": "test", "checkpoint": "last.pt", "select": "last", "classes": NAMES,
        "train_counts": COUNTS, "groups": {"head": [1], "mid": [2], "tail": [0, 3]}, "groups_rule": "1/1/2",
        "recall": recall, "accuracy": float(counts.trace() / counts.sum()), "mean_recall": sum(known) / len(known),
        "min_recall": min(known), "ece": 0.05, "samples": int(counts.sum()), **changes,
    }  # fmt: skip
    (folder / "measure.json").write_text(json.dumps(measure))
    (folder / "model.json").write_text(json.dumps({"task": "classify"}))
    (folder / "recipe.toml").write_text(f'[method]\nname = "classifier"\n{method}\n[run]\nseed = {seed}\n')
    if shown is not None:
        (folder / "examples.json").write_text(json.dumps({"shown": shown}))
    return folder


def group(*folders: Path) -> Any:
    (found,) = group_runs(map(load_run, folders))
    return found


def text(table: Any) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in table.rows]


def test_precision_recall_f1_n_and_interval_of_each_class(tmp_path: Path) -> None:
    """Cat: 7 of 10 found, 15 called cat, F1 14/25. Lynx: two of two, which is 34 % at the least."""
    table = score_table(group(make_run(tmp_path, "ce")))
    assert table.columns == ("class", "group", "training", "n (test)", "recall (%)", "95 % interval", "taken for it",
                             "precision (%)", "95 % interval", "F1 (%)")  # fmt: skip
    assert text(table) == [
        ["cat", "head", "1,000", "10", "70.0", "40–89", "15", "46.7", "25–70", "56.0"],
        ["dog", "mid", "100", "20", "75.0", "53–89", "17", "88.2", "66–97", "81.1"],
        ["lynx", "tail", "10", "2", "100.0", "34–100", "3", "66.7", "21–94", "80.0"],
        ["eel", "tail", "5", "3", "0.0", "0–56", "0", "–", "–", "0.0"],
    ]
    doubted = [[cell.text for cell in row if cell.doubtful] for row in table.rows]
    assert doubted == [[], [], ["2", "34–100", "3", "21–94"], ["3", "0–56", "0"]]


def test_methods_side_by_side_have_each_classs_own_n(tmp_path: Path) -> None:
    groups = group_runs([load_run(make_run(tmp_path, "ce")), load_run(make_run(tmp_path, "la", method='loss = "la"'))])
    table = terminal_table(groups)
    assert table.columns[3] == "n (test)"
    assert [row[:4] for row in text(table)] == [
        ["cat", "head", "1,000", "10"], ["dog", "mid", "100", "20"], ["lynx", "tail", "10", "2"],
        ["eel", "tail", "5", "3"],
    ]  # fmt: skip


def test_runs_of_another_length_are_no_seeds(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"ce-{s}", seed=s) for s in range(3)]
    for run, length in zip(runs, ("epochs = 5", "epochs = 5", "epochs = 9"), strict=True):
        (run / "recipe.toml").write_text((run / "recipe.toml").read_text() + length + "\n")
    assert [len(g.records) for g in group_runs(map(load_run, runs))] == [2, 1]
    steps = [make_run(tmp_path / "steps", f"ce-{s}", seed=s) for s in range(2)]
    for run, length in zip(steps, ("steps = 5", "steps = 9"), strict=True):
        (run / "recipe.toml").write_text((run / "recipe.toml").read_text() + length + "\n")
    assert [len(g.records) for g in group_runs(map(load_run, steps))] == [1, 1]


def test_seeds_share_the_reliability_by_their_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples that were right and one that was wrong are three in four, not one in two."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr("evenhand.report.charts.plots.plot_reliability", lambda s, _: seen.update(s) or "")
    bins = [
        {"confidence": [0.8, None], "accuracy": [1.0, None], "count": [3, 0]},
        {"confidence": [0.4, 0.9], "accuracy": [0.0, 0.5], "count": [1, 2]},
    ]
    runs = [make_run(tmp_path, f"ce-{s}", seed=s, reliability=b) for s, b in enumerate(bins)]
    calibration_section([group(*runs)], {})
    (pooled,) = seen.values()
    assert {key: list(value) for key, value in pooled.items()} == {
        "count": [4, 2], "confidence": pytest.approx([0.7, 0.9]), "accuracy": pytest.approx([0.75, 0.5])
    }  # fmt: skip


def test_the_page_draws_two_of_two_as_an_interval(tmp_path: Path) -> None:
    page = render([load_run(make_run(tmp_path, "ce"))])
    row = re.search(r'<tr><th scope="row" title="lynx">lynx</th>.*?</tr>', page, re.S)
    assert row is not None
    assert 'title="only 2: its share may be far off">2</td>' in row[0]
    assert '<i class="span" style="--from:34.2;--at:100.0;--to:100.0"></i> 34–100' in row[0]


def test_seeds_share_their_test_so_the_interval_is_of_one_seeds_n(tmp_path: Path) -> None:
    worse = [[0, 2, 0, 0], [0, 9, 1, 0], [0, 5, 15, 0], [0, 3, 0, 0]]
    runs = [make_run(tmp_path, f"ce-{s}", seed=s, matrix=m) for s, m in enumerate((MATRIX, worse))]
    rows = {row[0]: row for row in text(score_table(group(*runs)))}
    assert rows["lynx"][3:6] == ["2", "50.0 ± 70.7", "9–91"]
    assert rows["cat"][4:8] == ["80.0 ± 14.1", "49–94", "15", "47.0 ± 0.5"]
    assert rows["lynx"][7] == "66.7"  # of the seed that said so at all
    assert class_scores(group(*runs))[0].samples == 2
    words = "of the mean over seeds for one seed’s n"
    assert (words in score_table(group(*runs)).caption, words in score_table(group(runs[0])).caption) == (True, False)


def test_the_terminal_has_all_numbers_of_one_group_and_the_recalls_of_several(tmp_path: Path) -> None:
    runs = [load_run(make_run(tmp_path, "ce")), load_run(make_run(tmp_path, "sam", method="rho = 0.1"))]
    assert "F1 (%)" in terminal_table(group_runs(runs[:1])).columns
    several = terminal_table(group_runs(runs))
    assert "F1 (%)" not in several.columns
    assert [row[0] for row in text(several)] == ["cat", "dog", "lynx", "eel"]
    (tmp_path / "ce" / "confusion.npz").unlink()  # without it there is only the recall
    alone = terminal_table(group_runs([load_run(tmp_path / "ce")]))
    assert [row[0] for row in text(alone)] == ["cat", "dog", "lynx", "eel"]


def test_of_many_classes_those_of_lowest_recall_are_listed(tmp_path: Path) -> None:
    table = score_table(group(make_run(tmp_path, "ce")), most=2)
    assert [str(row[0]) for row in table.rows] == ["eel", "cat"]
    assert "the 2 of 4 classes with the lowest recall" in table.caption


def test_another_splits_matrix_goes_with_its_measurement(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ce", split="val")
    np.savez_compressed(run / "confusion-val.npz", confusion=np.diag([1, 2, 3, 4]))
    table = score_table(group(run))
    assert [row[3] for row in text(table)] == ["2", "3", "1", "4"]
    assert table.columns[3] == "n (val)"


def test_a_cell_opens_the_samples_behind_it(tmp_path: Path) -> None:
    page = render([load_run(make_run(tmp_path, "ce"))])
    matrix = re.search(r'<table class="matrix.*?</table>', page, re.S)
    assert matrix is not None
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", matrix[0], re.S)]
    bare = [[re.sub("<[^>]*>", "", cell) for cell in row] for row in rows]
    assert bare == [
        ["", "cat", "dog", "lynx", "eel", "n"],
        ["cat", "7", "2", "1", "", "10"],
        ["dog", "5", "15", "", "", "20"],
        ["lynx", "", "", "2", "", "2"],
        ["eel", "3", "", "", "", "3"],
    ]
    links = dict(re.findall(r'id="to-(cell-[\d-]+)" href="#cell-[\d-]+" aria-label="([^"]*)"', matrix[0]))
    assert links == {
        "cell-0-3-1": "eel taken for cat: 3 of 3 (100.0 %)",
        "cell-0-2-1": "dog taken for cat: 5 of 20 (25.0 %)",
        "cell-0-0-0": "lynx recognised: 2 of 2 (100.0 %)",
    }
    for link, told in links.items():
        dialog = re.search(rf'<dialog id="{link}".*?</dialog>', page, re.S)
        assert dialog is not None
        assert f">{told}</h3>" in dialog[0]
        truth, predicted = map(int, link.split("-")[2:])
        wanted = [row for row in SHOWN if (row["truth"], row["predicted"]) == (truth, predicted)]
        assert re.findall('alt="([^"]*)"', dialog[0]) == [row["name"] for row in wanted]
        assert re.findall('base64,([^"]*)', dialog[0]) == [row["data"] for row in wanted]


def test_errors_in_words_are_the_most_frequent_first(tmp_path: Path) -> None:
    page = render([load_run(make_run(tmp_path, "ce"))])
    body = page[page.index("All confusions") :]
    rows = re.findall(
        r'<tr><th scope="row" title="(\w+)">.*?</th><td class="">(\w+)</td><td class="num">(.*?)</td>', body
    )
    assert [(t, p, re.sub("<[^>]*>", "", n)) for t, p, n in rows] == [
        ("dog", "cat", "5"), ("eel", "cat", "3"), ("cat", "dog", "2"), ("cat", "lynx", "1"),
    ]  # fmt: skip


def test_a_list_of_errors_says_whether_it_is_whole() -> None:
    from evenhand.report.confusions import _errors

    counts = np.array(MATRIX)
    assert _errors(counts, NAMES, {}, 4).caption == "All confusions"
    assert _errors(counts, NAMES, {}, 3).caption == "The 3 most frequent of 4 confusions"


def test_many_classes_are_drawn_in_order_of_their_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evenhand.report import confusions

    drawn: list[Any] = []
    monkeypatch.setattr(confusions, "SPELT", 3)
    monkeypatch.setattr(confusions.plots, "plot_confusion", lambda m, names, _: drawn.append((m.tolist(), names)) or "")
    confusions.confusions_section([group(make_run(tmp_path, "ce"))], {})
    assert drawn == [([[7, 2, 1, 0], [5, 15, 0, 0], [0, 0, 2, 0], [3, 0, 0, 0]], ["cat", "dog", "lynx", "eel"])]


def test_the_surest_mistakes_are_named(tmp_path: Path) -> None:
    section = str(examples.mistakes_section([group(make_run(tmp_path, "ce"))], {}))
    cards = [" ".join(re.sub("<[^>]*>", " ", card).split()) for card in re.findall("<li>.*?</li>", section, re.S)]
    assert cards == [
        "eel taken for cat , 99.0 % sure then lynx 1.0 % a/eel1.png",
        "dog taken for cat , 75.0 % sure then lynx 1.0 % b/dog.png",
        "eel taken for cat , 50.0 % sure then lynx 1.0 % c/eel2.png",
    ]
    assert "ce/predictions.csv" in section
    assert 'class="pixels" width="96" height="96"' in section  # 8 pixels, enlarged by whole ones


def test_texts_are_shown_and_escaped(tmp_path: Path) -> None:
    shown = [example("t.csv:3", 3, 1, 0.9, text="<script>alert(1)</script> & more")]
    page = render([load_run(make_run(tmp_path, "ce", shown=shown))])
    assert "<blockquote>&lt;script&gt;alert(1)&lt;/script&gt; &amp; more</blockquote>" in page
    assert page.count("<script>") == 1


def test_without_examples_the_page_says_how_to_get_them(tmp_path: Path) -> None:
    page = render([load_run(make_run(tmp_path, "ce", shown=None))])
    assert "evenhand measure RUN writes examples.json" in page
    assert "<dialog" not in page


def test_pictures_share_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [make_run(tmp_path, name, method=f"la_tau = {i}.0") for i, name in enumerate("ab")]
    monkeypatch.setattr(examples, "ROOM", 2 * len(SHOWN[0]["data"]))
    found = [examples.shown_of(g, 2)[1] for g in group_runs(map(load_run, runs))]
    assert [[row["name"] for row in rows] for rows in found] == [["a/eel1.png"]] * 2
    monkeypatch.setattr(examples, "ROOM", 10**6)
    assert len(examples.shown_of(group(runs[0]), 2)[1]) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"truth": 4}, "names a class beyond the 4"),
        ({"data": '" onerror="alert(1)'}, "should match pattern"),
        ({"kind": "svg+xml"}, "'png' or 'jpeg'"),
        ({"confidence": 2.0}, "less than or equal to 1"),
        ({"name": 3}, "valid string"),
    ],
)
def test_examples_of_anybody_are_checked(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    run = make_run(tmp_path, "ce", shown=[SHOWN[0] | change])
    with pytest.raises(UserError, match=rf"examples\.json.*{said}.*measure the run again"):
        render([load_run(run)])


def log_of(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "log.jsonl").write_text("".join(json.dumps({"step": 7, "epoch": 1.0, **row}) + "\n" for row in rows))
    return folder


def test_failed_runs_stand_apart_and_in_no_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = log_of(make_run(tmp_path, "ce-0"), {"kind": "train", "loss": 1.0})
    lost = log_of(
        make_run(tmp_path, "ce-1", seed=1),
        {"kind": "train", "loss": 9e9},
        {"kind": "event", "event": "failed", "reason": "training diverged by step 7 (loss is nan)"},
    )
    stopped = log_of(make_run(tmp_path, "la", method='loss = "la"'), {"kind": "train", "loss": 8e9})
    nothing = make_run(tmp_path, "sam", method="rho = 1", mean_recall=None)
    for folder in (lost, stopped):
        (folder / "measure.json").unlink()
    records = [load_run(folder) for folder in (good, lost, stopped, nothing)]
    groups, failed = apart(group_runs(records))
    assert [(g.name, g.size, [r.name for r in g.records]) for g in groups] == [("ce", "1 of 2 seeds", ["ce-0"])]
    assert [r.name for r in failed] == ["ce-1", "la", "sam"]
    page = render(records)
    section = page[page.index('<section id="runs-that-failed-or-did-not-end">') :].partition("</section>")[0]
    for expected in ("training diverged by step 7 (loss is nan)", "not measured; its log ends at step 7",
                     "its mean recall is undefined"):  # fmt: skip
        assert expected in section
    assert "1 of 2 seeds" in page
    curves = page[page.index('<section id="training-curves">') :].partition("</section>")[0]
    assert "(log)" not in curves
    print_tables(records)
    assert "ce-1 failed or did not end: training diverged by step 7" in " ".join(capsys.readouterr().out.split())
    assert "Runs that failed" not in render(records[:1])


def test_a_report_of_failed_runs_alone_shows_what_there_is(tmp_path: Path) -> None:
    run = log_of(make_run(tmp_path, "ce"), {"kind": "train", "loss": 1.0})
    (run / "measure.json").unlink()
    page = render([load_run(run)])
    assert "not measured; its log ends at step 7" in page
    assert '<section id="training-curves">' in page


def test_lines_of_many_classes_say_that_they_are_means() -> None:
    for count, said in ((40, False), (41, True)):
        classes = [f"class {k}" for k in range(count)], [9] * count, {}
        drawn = plot_scores(classes, score("fid", "FID", lower=True), {"a": [[1.0] * count]})
        assert ("FID ↓, mean of neighbouring classes" in drawn) == said


@pytest.mark.filterwarnings("error")
def test_values_that_explode_get_a_logarithmic_axis() -> None:
    calm = plot_curves({"loss": [("a", [1, 2, 3], [3.0, 2.0, 1.0])]}, {"a": "#000000"}, "step")
    wild = plot_curves({"loss": [("a", [1, 2, 3, 4], [3.0, 2.0, 1.0, 1e6])]}, {"a": "#000000"}, "step")
    below = plot_curves({"gap": [("a", [1, 2, 3, 4], [-1.0, 2.0, 0.0, -1e6])]}, {"a": "#000000"}, "step")
    assert ["(log)" in svg for svg in (calm, wild, below)] == [False, True, True]
    fid = score("fid", "FID", lower=True)
    scores = [plot_scores((NAMES, COUNTS, {}), fid, {"a": [values]}) for values in ([5, 6, 7, 8], [5, 6, 7, 8e5])]
    assert ["FID ↓ (log)" in svg for svg in scores] == [False, True]
    assert ">1e+06<" in wild
    assert not any("$" in svg for svg in (calm, wild, below, *scores))


@pytest.mark.parametrize(
    ("method", "run", "columns"),
    [
        ("", "", set()),
        ('objective = "coverage"', "", {"min coverage (%)", "coverage below 0.95/K (%)"}),
        ('objective = "h-mean"', "", {"H-mean of recalls (%)"}),
        ('objective = "f-beta"', "", {"macro F1 (%)"}),
        ('objective = "min-recall"', "", set()),
        ("", 'select = "val:g_mean"', {"G-mean of recalls (%)"}),
    ],
)
def test_what_a_recipe_aims_at_is_in_the_summary(tmp_path: Path, method: str, run: str, columns: set[str]) -> None:
    hidden = {"min_coverage": 0.1, "coverage_violation": 0.0, "h_mean": 0.2, "g_mean": 0.3, "macro_f1": 0.4}
    folder = make_run(tmp_path, "ce", method=method, **hidden)
    (folder / "recipe.toml").write_text((folder / "recipe.toml").read_text() + run)
    plain = summary_of([group(make_run(tmp_path, "plain"))]).columns
    assert set(summary_of([group(folder)]).columns) - set(plain) == columns


SCARCE = [[3, 0, 0, 0], [0, 20, 0, 0], [0, 0, 5, 0], [0, 0, 0, 4]]
GUESSED = [[0, 20, 0, 0]] * 4
BALANCED = [[18, 1, 1, 0], [1, 18, 1, 0], [1, 0, 18, 1], [0, 1, 1, 18]]
BEHIND = [[4, 10, 6, 0], [0, 19, 1, 0], [0, 2, 18, 0], [0, 9, 7, 4]]


@pytest.mark.parametrize(
    ("matrix", "method", "changes", "said"),
    [
        (GUESSED, "", {}, "chance alone 25.0 %): train longer, or start from pretrained weights."),
        (GUESSED, 'net.weights = "resnet18"', {}, "train longer."),
        (GUESSED, '[data]\nembed = "mobilenet_v2"', {}, "train longer, or tune the whole network"),
        (BEHIND, "", {}, '75 points below the head’s (20.0 %): try logit adjustment (method.loss = "la") or balanced'),
        (BEHIND, 'loss = "la"', {}, "the loss favours rare classes already; collect samples of the rarest classes."),
        (BEHIND, 'loss = "ldam"', {}, 'try deferred weights with it (method.weighting = "drw").'),
        (BEHIND, 'weighting = "drw"', {}, 'try logit adjustment in place of balancing (method.loss = "la"'),
        (BEHIND, 'loss = "la"\nsampling = "class-balanced"', {}, "collect samples of the rarest classes"),
        (BALANCED, "", {"ece": 0.2}, "off by 20.0 points (ECE): hold out validation"),
        (BALANCED, "", {"ece": 0.2, "split": "val"}, "was trained once"),  # validation is there
        (BALANCED, "", {"ece": 0.2, "temperature": {"value": 1.5, "ece": 0.02}}, "by 1.50, fitted on validation"),
        ([[90, 10, 0, 0], [9, 91, 0, 0], [0, 1, 99, 0], [0, 0, 0, 100]], "", {}, "95 % of its mistakes are between"),
        (SCARCE, "", {}, "(lynx 3, eel 4, dog 5): collect more"),
        (SCARCE, "", {"ece": 0.2}, "(lynx 3, eel 4, dog 5): collect more"),  # so few say nothing of confidences
        (BALANCED, "", {}, "was trained once: repeat it with --seed"),
    ],
)  # fmt: skip
def test_advice_follows_from_what_was_measured(
    tmp_path: Path, matrix: Any, method: str, changes: dict[str, Any], said: str
) -> None:
    found = group(make_run(tmp_path, "ce", matrix=matrix, method=method, **changes))
    line = of_classifier(found)
    assert said in line
    assert "\n" not in line
    assert advice([found]) == [line]


def test_advice_is_a_line_on_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ce", matrix=BEHIND)
    assert f"<b>What to try next:</b> {escape(of_classifier(group(run)))}</p>" in render([load_run(run)])


def test_a_gap_that_few_samples_allow_is_no_reason(tmp_path: Path) -> None:
    """Head 9 of 10, tail 1 of 2 and 1 of 1: far apart, but not more than chance."""
    few = [[1, 1, 0, 0], [0, 9, 1, 0], [0, 0, 10, 0], [0, 0, 0, 1]]
    assert "below the head" not in of_classifier(group(make_run(tmp_path, "ce", matrix=few)))


def test_advice_is_of_the_best_group_and_silent_if_nothing_calls_for_it(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "bad", matrix=BEHIND, method="la_tau = 2.0")]
    runs += [make_run(tmp_path, f"ce-{s}", seed=s, matrix=BALANCED) for s in range(2)]
    assert advice(group_runs(map(load_run, runs))) == []
    assert "What to try next" not in render([load_run(run) for run in runs])
    assert "Best mean recall: ce" in verdict(group_runs(map(load_run, runs))).striptags()
    shutil.rmtree(runs.pop())
    assert "trained once" in advice(group_runs(map(load_run, runs)))[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recall": 0.01}, "comes near hardly any real image (recall 0.010)"),
        ({"patterns": [0.9, 0.4, 0.9, 0.9]}, "images of 1 classes are much alike: try gSR"),
        ({"class_shares": [0.9, 0.1, 0.0, 0.0]}, "hardly draws 2 of 4 classes"),
        ({"real_count": 409}, "only 409 real images judge gan"),
        ({}, "was trained once"),
    ],
)
def test_advice_on_generators(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    run = tmp_path / "gan"
    run.mkdir()
    (run / "recipe.toml").write_text('[method]\nname = "gan"\n')
    measure = {"task": "generate", "classes": NAMES, "train_counts": COUNTS, "fid": 9.0, "recall": 0.5,
               "patterns": [0.9] * 4, "class_shares": [0.25] * 4, "real_count": 10_000, **changes}  # fmt: skip
    (run / "measure.json").write_text(json.dumps(measure))
    assert said in of_generator(group(run))


def test_the_terminals_tables_fit_into_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "console", lambda: Console(width=80))
    groups = {"group_recall": {"head": 0.7, "mid": 0.75, "tail": 0.5}}
    print_tables([load_run(make_run(tmp_path, "ce", **groups))])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = (line.split() for line in lines if line.split()[:1] == ["lynx"])
    assert row == ["lynx", "tail", "10", "2", "100.0", "34–100", "66.7", "80.0"]
    (summary,) = (line.split() for line in lines if line.split()[:1] == ["ce"])
    assert summary == ["ce", "68.6", "61.3", "70.0", "75.0", "50.0", "0.0", "5.0"]
    assert any(line.startswith("What to try next: ") for line in lines)


def test_tables_in_a_pipe_are_not_broken_at_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "with-a-name-that-says-everything-about-this-run-and-a-little-more"
    print_tables([load_run(make_run(tmp_path, long)), load_run(make_run(tmp_path, "ce", method='loss = "vs"'))])
    assert any(long in line and "68.6" in line for line in capsys.readouterr().out.splitlines())
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal.console().width == 70
