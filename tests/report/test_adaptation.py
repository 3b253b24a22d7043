"""The report of adaptation runs: both columns side by side, curves, picture, warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evenhand.report.page import render
from evenhand.report.reading import load_run
from evenhand.report.tables import summary_table

RECIPE = '[method]\nname = "domain-adversarial"\n[run]\nseed = {seed}\nselect = "label-free:infomax"\n'


def run_folder(root: Path, seed: int = 0, **numbers: float) -> Path:
    folder = root / f"cdan-{seed}"
    folder.mkdir()
    (folder / "recipe.toml").write_text(RECIPE.format(seed=seed))
    points = {"xy": [[0.0, 1.0], [1.0, 0.5], [2.0, -1.0]], "labels": [0, 1, 1]}
    health = {"domain_accuracy": 0.7, "a_distance": 1.2, "effective_classes": 2.0, "possible_classes": 2.0, **numbers}
    also: dict[str, Any] = {"accuracy": 0.75, "chosen_with_target_labels": True, "step": 20, "checkpoint": "x.pt"}
    measure = {
        "task": "classify", "split": "test", "checkpoint": "best.pt", "select": "label-free:infomax",
        "classes": ["cat", "dog"],
        "train_counts": [10, 5], "groups": {}, "accuracy": 0.5 + seed / 10, "mean_recall": 0.5, "recall": [0.4, 0.6],
        "also": {"oracle:accuracy": also},
        "adaptation": {**health, "source_points": points, "target_points": {**points, "labels": None}},
    }  # fmt: skip
    (folder / "measure.json").write_text(json.dumps(measure))
    rows = [{"kind": "target", "step": s, "epoch": s / 10, "a_distance": 2 - s / 20, "infomax": 0.1} for s in (10, 20)]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_honest_and_oracle_columns_side_by_side(tmp_path: Path) -> None:
    table = summary_table([load_run(run_folder(tmp_path, seed)) for seed in (0, 1)])
    honest = table.columns.index("accuracy (%)")
    oracle = table.columns.index("accuracy by oracle (%)")
    assert "chosen with target labels" in table.caption
    row = table.rows[0]
    assert (row[honest].text, row[oracle].text) == ("55.0", "75.0")
    assert not row[oracle].best
    assert "label-free:infomax" in [cell.text for cell in row]


def test_the_column_of_another_rule_is_named_by_it(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    measure = json.loads((folder / "measure.json").read_text())
    rules = ("oracle:accuracy", "label-free:entropy", "val:mean_recall")
    also = {rule: {"accuracy": 0.7, "mean_recall": 0.6} for rule in rules}
    (folder / "measure.json").write_text(json.dumps({**measure, "also": also}))
    named = [column for column in summary_table([load_run(folder)]).columns if " by " in column]
    assert named == ["accuracy by oracle (%)", "accuracy by entropy (%)", "mean recall by val:mean_recall (%)"]


def test_the_page_has_curves_picture_and_warning(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for place in (good, bad):
        place.mkdir()
    page = render([load_run(run_folder(good))])
    assert '<section id="adaptation">' in page
    for text in ("A-distance (0 mixed, 2 apart)", "by domain", "sees no label of the target", "evenhand hessian RUN",
                 "trained-on ones, or held-out source ones where the target is not trained on"):  # fmt: skip
        assert text in page
    assert "the discriminator wins" not in page
    folder = run_folder(bad, domain_accuracy=0.99)
    row = {"class": "all classes", "checkpoint": "best.pt", "maximum": 12.34, "trace": 56.7}
    (folder / "hessian.json").write_text(json.dumps([row]))
    page = render([load_run(folder)])
    assert "the discriminator wins (domain accuracy 0.99" in page
    assert "λ max 12.3, trace 56.7" in page
