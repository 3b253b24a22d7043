"""A report asks the task: one the package does not know gets its page; files of the wrong types are named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from evenhand.errors import UserError
from evenhand.measure.shift import SCORES
from evenhand.report.markup import parts
from evenhand.report.page import render, write_report
from evenhand.report.reading import load_run
from evenhand.report.records import RunGroup, group_runs
from evenhand.report.sections import Sections
from evenhand.report.tables import per_class_table, summary_table
from evenhand.report.terminal import print_tables
from evenhand.report.verdict import verdict
from evenhand.tasks import Task
from evenhand.tasks.classify import LABEL_FREE
from evenhand.tasks.metric import score


class Histogram(BaseModel):
    histogram: list[int] | None = None


def mistakes(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> str:
    told = [f"{g.name} in {colours[g.name]}: {h}" for g in groups for h in g.parts("histogram")]
    return parts.note("; ".join(told)) if told else parts.missing()


class Count(Task):
    """How many of each kind are in the picture?"""

    name = f"{__name__}:TASK"
    noun = "pictures"
    metrics = (score("error", "mean error", digits=2, lower=True), score("rare", "rare error", digits=2, lower=True))
    headline, tail = metrics
    per_class = (score("class_error", "error", digits=1, lower=True),)
    judged_by = ("resolution",)

    def score(self, method: Any, stream: Any, *, batch: int = 512) -> dict[str, float]:
        return {}

    def table(self, method: Any, stream: Any, *, batch: int = 512) -> dict[str, Any]:
        return {}

    def sections(self) -> Sections:
        return Sections(
            illustrated={"Mistakes": mistakes, "Classes": lambda groups, _: "<b>" if len(groups) > 1 else ""},
            notes=lambda groups: [f"Counted in {len(groups)} ways."],
            cautions=lambda groups: [f"{g.name} counts <nothing>." for g in groups if g.measure["error"] > 1],
            parts=Histogram,
            classes="Error of each kind",
        )


TASK = Count()


def make_run(root: Path, name: str, error: float = 0.5, task: str = Count.name, **changes: Any) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(f'[method]\nname = "{name}"\n[run]\nseed = 0\n')
    facts = {"classes": ["cup", "pen"], "counts": [20, 5]}
    (folder / "model.json").write_text(json.dumps({"format": 2, "task": task, "facts": facts}))
    measure = {
        "task": task, "split": "test", "classes": ["cup", "pen"], "train_counts": [20, 5], "samples": 1200,
        "groups": {"tail": [1]}, "error": error, "rare": 2 * error, "histogram": [7, 1], "resolution": 64,
        "class_error": [0.25, {"value": 0.75, "flag": "few"}], **changes,
    }  # fmt: skip
    (folder / "measure.json").write_text(json.dumps(measure))
    return folder


def test_a_task_of_ones_own_has_page_tables_and_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [load_run(make_run(tmp_path, "ours")), load_run(make_run(tmp_path, "theirs", 1.5))]
    assert summary_table(records).columns == ("run", "mean error ↓", "rare error ↓", "repeats", "selected by")
    assert [[str(c) for c in row[:2]] for row in summary_table(records).rows] == [["ours", "0.50"], ["theirs", "1.50"]]
    table = per_class_table(records[:1])
    assert table.caption == "Error of each kind, most training samples first; * not to be trusted"
    assert [str(row[-1]) for row in table.rows] == ["0.2", "0.8*"]
    said = verdict(group_runs(records)).striptags()
    assert said.startswith("Best mean error: ours (0.50, 1 seed); rare error 1.00 against 3.00 for theirs.")
    text = render(records)
    for expected in (
        '<section id="mistakes"><h2>Mistakes</h2>', "ours in #0072B2: [7, 1]", "Counted in 2 ways.", "1,200 pictures",
        "theirs counts &lt;nothing&gt;.", '<section id="classes"><h2>Classes</h2>\n&lt;b&gt;</section>',
    ):  # fmt: skip
        assert expected in text
    assert "Confusions" not in text
    print_tables(records)
    assert "Counted in 2 ways." in capsys.readouterr().out


def test_tasks_follow_each_other_and_do_not_share_anchors(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "ours"), make_run(tmp_path, "others")]
    runs.append(make_run(tmp_path, "ce", task="classify", recall=[0.5, 0.25], mean_recall=0.375))
    text = write_report(runs, tmp_path / "report.html").read_text()
    assert text.index('<section id="classes">') < text.index(f'<section id="{Count.name}-classes">')
    assert text.index("Mean recall of ") < text.index("Equal mean error")
    assert "cannot be compared" not in text
    assert "differ in resolution" in render([load_run(r) for r in (runs[0], make_run(tmp_path, "x", resolution=32))])


def test_an_unmeasured_run_has_its_task_and_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ours")
    (run / "measure.json").unlink()
    assert load_run(run).task is TASK
    assert "Nothing to compare yet: mean error was not run." in render([load_run(run)])
    (run / "model.json").unlink()
    with pytest.raises(UserError, match=r"older format: .*; train again"):
        load_run(run)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("measure.json", {"error": "low"}, "measure.json error: this should be a valid number; measure"),
        ("measure.json", {"error": True}, "measure.json error: "),
        ("measure.json", {"class_error": [1]}, "class_error has 1 entries, not 2"),
        ("measure.json", {"class_error": 3}, "measure.json class_error: "),
        ("measure.json", {"class_error": [0.5, "x"]}, "measure.json class_error.1"),
        ("measure.json", {"histogram": {"a": 1}}, "measure.json histogram: "),
        ("measure.json", {"classes": "cup"}, "measure.json classes: "),
        ("measure.json", {"groups": {"tail": [2]}}, "groups name a class beyond the 2"),
        ("measure.json", {"also": [1]}, "measure.json also: "),
        ("measure.json", {"task": "json:loads"}, "is no task but a function"),
        ("measure.json", {"task": "nowhere:TASK"}, "put its module on the Python path"),
        ("measure.json", {"task": ".:x"}, "put its module on the Python path"),
        ("measure.json", {"task": "clasify"}, "did you mean 'classify'?"),
        ("measure.json", {"task": 3}, "measure.json task: "),
        ("model.json", [1], "model.json: this should be a valid dictionary; "),
        ("model.json", {"task": "classify", "facts": {"classes": ["a"], "counts": []}}, "counts has 0 entries, not 1"),
        ("streams.json", {"test": 3}, "streams.json test: "),
        ("streams.json", {"test": {"digest": 3}}, "streams.json test.digest: "),
        ("log.jsonl", [1], "log.jsonl 0: "),
        ("log.jsonl", {"kind": "val", "step": None, "epoch": 1}, "log.jsonl 0.step: "),
        ("environment.json", [], "environment.json: "),
        (
            "log.jsonl",
            {"kind": "val", "step": 1, "epoch": 1, "error": 10**400},
            "cannot be read (a number of 401 digits)",
        ),
        ("measure.json", {"error": 10**400}, "cannot be read (a number of 401 digits)"),
    ],
)
def test_files_of_the_wrong_types_are_one_line(tmp_path: Path, file: str, content: Any, said: str) -> None:
    run = make_run(tmp_path, "ours")
    if file == "measure.json":
        content = json.loads((run / file).read_text()) | content
    (run / file).write_text(json.dumps(content) + "\n")
    with pytest.raises(UserError) as error:
        load_run(run)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "part",
    [
        {"temperature": 1.5},
        {"temperature": {"ece": 0.1}},
        {"temperature": {"value": "hot", "ece": 0.1}},
        {"reliability": {"count": [1], "confidence": [0.5]}},
        {"reliability": {"count": [1], "confidence": [0.5], "accuracy": []}},
        {"adaptation": {"source_points": {"xy": [[1.0]], "labels": None}}},
        {"adaptation": {"source_points": {"xy": [[1.0, 2.0]], "labels": [0, 1]}}},
    ],
)
def test_parts_of_a_classifiers_measurement_have_types(tmp_path: Path, part: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"measure.json.*{next(iter(part))}|measure.json.*count"):
        load_run(make_run(tmp_path, "ce", task="classify", **part))


def test_reading_and_drawing_need_no_torch(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ce", task="classify", recall=[0.5, 0.25], mean_recall=0.375)
    script = f"""
import sys
sys.argv = ["evenhand", "report", {str(run)!r}]
from evenhand.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert (run / "report.html").exists()


def test_label_free_scores_are_those_that_are_measured() -> None:
    assert tuple(SCORES) == LABEL_FREE
