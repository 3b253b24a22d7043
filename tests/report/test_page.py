"""The HTML page from synthetic run folders: numbers, honesty, safety, sameness."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

import evenhand.report
from evenhand.errors import UserError
from evenhand.report.charts import class_plots, plots
from evenhand.report.classify import RECALL
from evenhand.report.generate import CLASS_FID
from evenhand.report.page import render, write_report
from evenhand.report.reading import load_run, read_array, read_square
from evenhand.report.records import group_runs
from evenhand.report.tested import tested_on as which_test
from evenhand.report.verdict import cautions, verdict

NASTY = "<script>alert('x')</script>"
VOID = {"meta", "br", "link", "path", "use", "image", "rect"}


def make_run(root: Path, name: str, *, seed: int = 0, rho: float = 0.0, tail: float = 0.3, **changes: Any) -> Path:
    """A whole synthetic run of three classes; ``changes`` overwrite parts of measure.json."""
    folder, recall = root / name, [0.9, 0.6, tail]
    folder.mkdir(parents=True)
    rows = [[r if i == j else (1 - r) / 2 for j in range(3)] for i, r in enumerate(recall)]
    np.savez(folder / "confusion.npz", confusion=(1000 * np.array(rows)).round().astype(int))
    measure = {
        "task": "classify", "split": "test", "checkpoint": "last.pt", "select": "last",
        "classes": ["cat", "dog", "lynx"],
        "train_counts": [1000, 100, 10], "groups": {"head": [0], "mid": [1], "tail": [2]},
        "groups_rule": "one each, by training count", "recall": recall,
        "accuracy": fmean(recall), "mean_recall": fmean(recall), "min_recall": min(recall),
        "group_recall": dict(zip(("head", "mid", "tail"), recall, strict=True)), "ece": 0.05, "samples": 300,
        "reliability": {"confidence": [0.5, 0.9], "accuracy": [0.4, 0.8], "count": [10, 290]}, **changes,
    }  # fmt: skip
    log = [{"kind": "train", "step": s, "epoch": s / 10, "loss": 2 / s, "extra": 1} for s in range(1, 400)]
    log += [{"kind": "val", "step": 10 * e, "epoch": e, "mean_recall": 0.1 * e} for e in range(1, 4)]
    classes = measure["classes"]
    streams = {"labelled": {"classes": classes, "counts": [1000, 100, 10], "digest": "feed01", "samples": 1110}}
    (folder / "recipe.toml").write_text(f"[method]\nrho = {rho}\n[run]\nseed = {seed}\nepochs = 40\n")
    (folder / "model.json").write_text(json.dumps({"format": 2, "task": "classify"}))
    (folder / "measure.json").write_text(json.dumps(measure))
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    (folder / "streams.json").write_text(json.dumps(streams))
    (folder / "environment.json").write_text(json.dumps({"torch": "9.9", "command": f"evenhand train {name}"}))
    return folder


class Cells(HTMLParser):
    """The page's tables, as rows of texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.tables[-1][-1][-1] += data.replace("\xa0", " ").strip()


class Page(HTMLParser):
    """Checks nesting; collects tags, ids, addresses and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [v for k, v in attrs if k == "id" and v]
        self.addresses += [v for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data") and v]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_numbers_on_the_page_are_those_of_the_runs(tmp_path: Path) -> None:
    tails = (0.30, 0.34, 0.41)
    runs = [make_run(tmp_path, f"ce-{s}", seed=s, tail=t) for s, t in enumerate(tails)]
    runs += [make_run(tmp_path, f"sam-{s}", seed=s, tail=t + 0.3, rho=0.1) for s, t in enumerate(tails)]
    page = Page(write_report(runs, tmp_path / "out" / "report.html").read_text())
    mean, spread = fmean(100 * t for t in tails), stdev(100 * t for t in tails)
    tail = f"tail recall {mean + 30:.1f} ± {spread:.1f} % against {mean:.1f} ± {spread:.1f} % for ce."
    recalls = [100 * (0.9 + 0.6 + t + 0.3) / 3 for t in tails]
    assert f"Best mean recall: sam ({fmean(recalls):.1f} ± {stdev(recalls):.1f} %, 3 seeds); {tail}" in page.text
    assert "within the spread" not in page.text
    for expected in ("feed01", "1,110", "rho = 0.1", "one each, by training count", "imbalance 100",
                     "the last checkpoint, nothing selected", "torch", "evenhand train ce-1"):  # fmt: skip
        assert expected in page.text
    assert '"evenhand train' not in page.text  # as it was typed
    assert len(page.ids) == len(set(page.ids))
    assert {"svg", "table", "caption", "details", "nav"} <= page.tags


def test_confusions_are_counts_of_all_seeds_in_order(tmp_path: Path) -> None:
    """Rows of [8 2] and [3 1], then [6 4] and [1 1]: counts of both seeds together, the most frequent first."""
    runs = [make_run(tmp_path, f"ce-{seed}", seed=seed) for seed in range(2)]
    for run, rows in zip(runs, ([[8, 2, 0], [3, 1, 0], [0, 0, 5]], [[6, 4, 0], [1, 1, 0], [0, 0, 1]]), strict=True):
        np.savez_compressed(run / "confusion.npz", confusion=np.array(rows))
    tables = Cells(write_report(runs, tmp_path / "report.html").read_text()).tables
    (errors,) = (table for table in tables if table[0][0] == "truth")
    assert errors == [
        ["truth", "taken for", "how often", "of the class (%)", "n"],
        ["cat", "dog", "6", "30.0", "20"],
        ["dog", "cat", "4", "66.7", "6"],
    ]
    (matrix,) = (table for table in tables if table[0] == ["", "cat", "dog", "lynx", "n"])
    assert matrix[1:] == [["cat", "14", "6", "", "20"], ["dog", "4", "2", "", "6"], ["lynx", "", "", "6", "6"]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"junk",
        b"PK\x05\x06" + bytes(18),
        np.eye(2, dtype=int),
        np.eye(3),
        -np.eye(3, dtype=int),
        {"other": [1]},
        np.array([["1", "2", "3"]] * 3),
    ],
)
def test_a_matrix_that_is_not_one_is_one_line(tmp_path: Path, content: Any) -> None:
    run = make_run(tmp_path, "ce")
    if isinstance(content, bytes):
        (run / "confusion.npz").write_bytes(content)
    else:
        np.savez(run / "confusion.npz", **(content if isinstance(content, dict) else {"confusion": content}))
    with pytest.raises(UserError, match=r"confusion.npz.*measure the run again") as caught:
        render([load_run(run)])
    assert "\n" not in str(caught.value)


def test_arrays_that_were_handed_on_run_no_code(tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    np.savez(tmp_path / "confusion.npz", confusion=np.array([[Malicious()]], dtype=object))
    for read in (read_array, lambda path, key, remedy: read_square(path, key, 1, remedy)):
        with pytest.raises(UserError, match=r"confusion\.npz cannot be read .*; measure it"):
            read(tmp_path / "confusion.npz", "confusion", "measure it")
    assert not (tmp_path / "harm").exists()


def test_temperature_and_further_numbers_are_on_the_page(tmp_path: Path) -> None:
    scaled = [{"value": value, "ece": ece} for value, ece in ((1.5, 0.02), (2.5, 0.04))]
    runs = [make_run(tmp_path, f"ce-{s}", seed=s, macro_f1=0.25 + s / 2, temperature=t) for s, t in enumerate(scaled)]
    text = Page(write_report(runs, tmp_path / "report.html").read_text()).text
    assert "fitted on validation: ce T = 2.00, ECE 5.0 ± 0.0 % → 3.0 ± 1.4 %." in text
    assert re.search(r"macro F1 \(%\)\s*50.0\s*± 35.4", text)
    assert "min coverage" not in text
    assert "Further numbers" not in Page(render([load_run(make_run(tmp_path, "bare"))])).text


def test_page_is_safe_and_self_contained(tmp_path: Path) -> None:
    names = [NASTY, 'a" onload="x', "$x_1$ & 0.12345 #010203"]
    runs = [make_run(tmp_path, f"_run{i}&<b>", rho=i, classes=names, groups_rule=NASTY) for i in range(2)]
    text = write_report(runs, tmp_path / "report.html").read_text()
    page = Page(text)
    ours = (Path(evenhand.report.__file__).parent / "templates" / "page.js").read_text()
    assert re.findall(r"<script.*?</script>", text, re.S) == [f"<script>{ours}</script>"]
    allowed = base64.b64encode(hashlib.sha256(ours.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    assert f"{policy}script-src 'sha256-{allowed}'" in text
    assert re.findall(r"<link[^>]*>", text) == ['<link rel="icon" href="data:,">']
    assert NASTY in page.text
    assert "$x_1$ & 0.12345 #010203" in page.text
    assert all(a.startswith(("#", "data:")) for a in page.addresses)
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert "http://" not in without_names
    assert "https://" not in without_names
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_what_is_missing_is_not_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ce")
    for name in ("measure.json", "log.jsonl", "streams.json", "environment.json"):
        (run / name).unlink()
    page = Page(render([load_run(run)]))
    assert page.text.count("not run") >= 6
    assert "Nothing to compare yet: mean recall was not run." in page.text
    assert "svg" not in page.tags
    assert "%" not in page.text.replace("(%)", "").split("Summary", 1)[1]


def test_unmeasured_run_still_shows_its_classes(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ce")
    (run / "measure.json").unlink()
    facts = {"classes": ["cat", "dog", "lynx"], "counts": [1000, 100, 10], "groups": {"head": [0], "tail": [1, 2]}}
    (run / "model.json").write_text(json.dumps({"format": 2, "task": "classify", "facts": facts}))
    page = Page(render([load_run(run)]))
    assert "1,110 training samples in 3 classes, imbalance 100." in page.text
    assert "Recall per class: not run." in page.text
    facts["counts"] = [15, 10, 9]
    (run / "model.json").write_text(json.dumps({"format": 2, "task": "classify", "facts": facts}))
    assert "34 training samples in 3 classes, imbalance 1.7." in Page(render([load_run(run)])).text


def test_oracle_selection_is_loud(tmp_path: Path) -> None:
    fair, peeked = make_run(tmp_path, "a"), make_run(tmp_path, "b", rho=1, tail=0.9, select="oracle:mean_recall")
    assert cautions(group_runs([load_run(fair)])) == ""
    for run in (fair, peeked):
        (run / "log.jsonl").unlink()
    text = render([load_run(fair), load_run(peeked)])
    assert text.count('<b class="badge">selected on the test split (oracle)</b>') == 2
    said = verdict(group_runs([load_run(fair), load_run(peeked)])).striptags()
    assert said.startswith("Mean recall of a: 60.0 %, 1 seed")


@pytest.mark.parametrize(
    ("tails", "rival", "said"),
    [
        ((0.3,), (0.2,), "With one seed on a side"),
        ((0.3, 0.5), (0.2, 0.5), "lies within the spread of the seeds"),
    ],
)
def test_verdict_knows_its_weight(tmp_path: Path, tails: Any, rival: Any, said: str) -> None:
    runs = [make_run(tmp_path, f"a-{s}", seed=s, tail=t) for s, t in enumerate(tails)]
    runs += [make_run(tmp_path, f"b-{s}", seed=s, tail=t, rho=1) for s, t in enumerate(rival)]
    assert said in verdict(group_runs(map(load_run, runs))).striptags()


def test_one_seed_in_two_folders_is_one_seed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name, tail=0.6) for name in ("a", "a-copied")]
    runs += [make_run(tmp_path, f"b-{s}", seed=s, rho=1) for s in range(2)]
    groups = group_runs(map(load_run, runs))
    assert groups[0].size == "2 runs"
    assert groups[0].values(groups[0].task.headline) == [("seed 0", pytest.approx(70))]
    assert "With one seed on a side" in verdict(groups).striptags()


def test_a_tie_is_no_win(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a", tail=0.3), make_run(tmp_path, "b", rho=1, tail=0.3001)]
    said = verdict(group_runs(map(load_run, runs))).striptags()
    assert said.startswith("Equal mean recall: b (60.0 %, 1 seed), a (60.0 %, 1 seed); tail recall")
    assert "Best" not in said


def test_runs_with_other_test_samples_are_not_ranked(tmp_path: Path) -> None:
    """A digest is also of how samples are seen: at another side of the images the split says which they are."""
    a, b = (split_run(tmp_path, name, 0, 0, digest) for name, digest in (("a", "x"), ("b", "y")))
    better = replace(b, measure={**b.measure, "mean_recall": 0.9})
    same, small = (
        replace(better, streams=a.streams),
        replace(better, recipe={**b.recipe, "data": {"split_seed": 0, "size": 96}}),
    )
    ranked = [verdict(group_runs([a, other])).startswith("Best mean recall: ") for other in (better, same, small)]
    assert ranked == [False, True, True]


def test_incomparable_runs_are_not_ranked(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", rho=1, tail=0.9, classes=["x", "y", "z"])]
    text = render([load_run(run) for run in runs])
    assert "cannot be compared" in text
    assert 'class="num best"' not in text


def test_same_runs_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ce")
    first = write_report([run], tmp_path / "one.html").read_bytes()
    assert first == write_report([run], tmp_path / "two.html").read_bytes()


def test_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    run = tmp_path / "ce"
    run.mkdir()
    (run / "recipe.toml").write_text("seed = 0\n")
    (run / "model.json").write_text('{"task": "classify"}')
    out = write_report([run], tmp_path / "new" / "report.html")
    for runs, place, said in (
        ([run], out / "below.html", "cannot write .* choose another place"),
        ([run], out.parent, "is a folder; name a file"),
        ([run, tmp_path / "new" / ".." / "ce"], out, "given twice"),
        ([], out, "at least one"),
    ):
        with pytest.raises(UserError, match=said):
            write_report(runs, place)
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]


def test_thousand_classes_stay_small(tmp_path: Path) -> None:
    K = 1000
    counts = [max(1, 1280 - k) for k in range(K)]
    groups = {"head": list(range(300)), "mid": list(range(300, 700)), "tail": list(range(700, K))}
    recall = [*np.linspace(0.9, 0.1, K - 1), None]
    big = {"classes": [f"class {k}" for k in range(K)], "train_counts": counts, "groups": groups, "recall": recall}
    matrix = plots.plot_confusion(np.eye(K), big["classes"])
    assert len(matrix) < 20_000
    run = make_run(tmp_path, "ce", **big)
    (run / "confusion.npz").unlink()
    assert len(render([load_run(run)])) < 400_000


@pytest.mark.filterwarnings("error")
def test_plots_are_well_formed_and_themed() -> None:
    classes, counts = ["猫", "<b>", "$x$"], [100, 10, 0]
    svgs = [
        class_plots.plot_counts((classes, counts, {"head": [0], "tail": [1, 2]})),
        class_plots.plot_scores((classes, counts, {}), RECALL, {"_hidden": [[0.5, 0.4, None], [0.6, 0.4, 0.1]]}),
        class_plots.plot_scores((classes, counts, {}), CLASS_FID, {"a": [[5, 4, 1]]}, doubtful={"a": {2}}),
        class_plots.plot_shares((classes, counts, {}), {"a": [[0.5, 0.4, 0.1]], "b": [[0.3, 0.3, 0.4]]}),
        plots.plot_confusion([[1, 0, 0], [0, 0.5, 0.5], [0, 0, 0]], classes),
        plots.plot_reliability({"a": {"confidence": [0.5, None], "accuracy": [0.4, None], "count": [3, 0]}}),
        plots.plot_line_with_band([0.001, 0.005], {"tail": [[50, 60], [52, 58]]}, xlabel="rho", ylabel="%", log_x=True),
    ]
    for svg in svgs:
        root = ET.fromstring(svg)
        assert root.get("aria-label")
        assert "currentColor" in svg
        assert "#010203" not in svg
    assert "_hidden" in svgs[1]
    assert "recall 55.0 % (seeds: 50.0, 60.0)" in svgs[1]


def test_every_group_of_classes_is_a_band_with_its_name() -> None:
    svg = class_plots.plot_counts((["a", "b", "c"], [100, 10, 1], {"head": [0], "mid": [1], "tail": [2]}))
    assert [name for name in ("head", "mid", "tail") if f">{name}<" in svg] == ["head", "mid", "tail"]


def test_an_interval_is_drawn_from_its_lower_end_to_its_upper(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda axes, *args, **more: drawn.append(args[1]) or plot(axes, *args, **more))
    spans = {"ce": [(10.0, 40.0, 80.0), None]}
    class_plots.plot_scores((["a", "b"], [9, 1], {}), RECALL, {"ce": [[0.4, 0.2]]}, ranges=spans)
    assert [10.0, 80.0] in [list(y) for y in drawn if len(y) == 2]


def test_a_confusion_names_the_shares_that_are_not_nothing() -> None:
    svg = plots.plot_confusion([[199, 1, 0], [100, 0, 100], [0, 0, 1]], ["a", "b", "c"])
    assert sorted(re.findall(r">(\d+)<", svg), key=int) == ["0", "50", "50", "100", "100"]  # 0.5, 50, 50, 99.5, 100


@pytest.mark.parametrize(("classes", "side"), [(100, 100), (101, 100), (250, 100), (7, 7)])
def test_a_confusion_has_at_most_a_hundred_cells_a_side(
    classes: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Axes, "imshow", lambda _, x, **__: seen.append(x))
    plots.plot_confusion(np.eye(classes), [str(k) for k in range(classes)])
    (rgba,) = seen
    assert rgba.shape == (side, side, 4)
    assert (np.diag(rgba[..., 3]) > 0).all()


def test_line_labels_keep_their_digits() -> None:
    svg = plots.plot_line_with_band([0.001, 0.002, 0.003], {"a": [[1, 2, 3]]})
    assert ">0.00125<" in svg or ">0.0015<" in svg or ">0.00150<" in svg


def test_half_an_emoji_in_a_file_of_the_run_is_a_question_mark(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    (run / "environment.json").write_text(json.dumps({"machine": "fast \ud83d"}))
    assert "fast ?" in write_report([run], tmp_path / "out.html").read_text(encoding="utf-8")


def test_classes_that_the_split_lacks_are_named(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, "a", absent=[2], recall=[0.9, 0.6, None], group_recall={"head": 0.9, "mid": 0.6, "tail": None}
    )
    text = render([load_run(run)])
    assert "the test split has no sample of lynx; means and worst recall are over the other classes" in text
    assert "has no sample of" not in render([load_run(make_run(tmp_path, "b"))])


def split_run(root: Path, name: str, seed: int, split: int, digest: str, size: int = 32) -> Any:
    """A run with that seed and split, tested on what has that digest, seen at that size."""
    folder = make_run(root, name, seed=seed, rho=float(name.startswith("b")))
    table = f"[data]\nsplit_seed = {split}\nsize = {size}\n"
    (folder / "recipe.toml").write_text((folder / "recipe.toml").read_text() + table)
    streams = json.loads((folder / "streams.json").read_text())
    (folder / "streams.json").write_text(json.dumps({**streams, "test": {"digest": digest, "samples": 9}}))
    return load_run(folder)


ANEW = "Each seed splits the data anew"


@pytest.mark.parametrize(
    ("runs", "warned", "noted"),
    [
        ({"a-1": (1, 1, "x"), "a-2": (2, 2, "y"), "b-1": (1, 1, "x"), "b-2": (2, 2, "y")}, "", True),
        ({"a-1": (1, 1, "x"), "a-2": (2, 2, "y")}, "", True),
        ({"a-1": (1, 0, "x"), "a-2": (2, 0, "x"), "b-1": (1, 0, "x"), "b-2": (2, 0, "x")}, "", False),
        ({"a-1": (1, 1, "x"), "a-2": (2, 2, "y"), "b-1": (1, 1, "x"), "b-2": (2, 2, "z")}, "different data", False),
        ({"a-1": (1, 0, "x"), "a-2": (2, 0, "x"), "b-1": (1, 0, "z"), "b-2": (2, 0, "z")}, "different data", False),
        ({"a-1": (1, 1, "x"), "a-2": (2, 2, "y"), "b-1": (1, 1, "x")}, "different splits", False),
    ],
    ids=["both vary alike", "one group", "one split", "a split differs", "all differ", "a split is missing"],
)
def test_splits_that_vary_with_the_seed_are_said_and_no_fault(
    tmp_path: Path, runs: dict[str, tuple[int, int, str]], warned: str, noted: bool
) -> None:
    records = [split_run(tmp_path, name, *run) for name, run in runs.items()]
    told = str(cautions(group_runs(records)))
    assert warned in told
    assert bool(told) == bool(warned)
    assert which_test(group_runs(records))[1].startswith(ANEW) == noted
    if noted and len(runs) > 2:
        assert Page(render(records)).text.count(ANEW) == 1


def test_another_image_size_is_no_other_data_but_another_split_is(tmp_path: Path) -> None:
    small, large = split_run(tmp_path, "a-1", 1, 1, "x"), split_run(tmp_path, "b-1", 1, 1, "z", size=64)
    assert which_test(group_runs([small, large])) == ("", "")
    elsewhere = split_run(tmp_path, "b-2", 1, 2, "w", size=64)
    assert "different splits" in which_test(group_runs([small, elsewhere]))[0]
