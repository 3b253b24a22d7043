"""The report's section on the two heads of a distilled transformer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenhand.errors import UserError
from evenhand.report.charts.svg import colour
from evenhand.report.experts import section
from evenhand.report.page import render
from evenhand.report.reading import load_run
from evenhand.report.records import group_runs

RECIPE = '[method]\nname = "deit-lt"\n[run]\nseed = {seed}\n'


def run_folder(root: Path, seed: int = 0, experts: Any = None) -> Path:
    folder = root / f"deit-lt-{seed}"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE.format(seed=seed))
    measure: dict[str, Any] = {
        "task": "classify", "split": "test", "checkpoint": "last.pt", "select": "last", "classes": ["cat", "lynx"],
        "train_counts": [10, 1], "groups": {"head": [0], "tail": [1]}, "accuracy": 0.5, "mean_recall": 0.5 + seed / 50,
        "recall": [0.6, 0.4], "group_recall": {"head": 0.6, "tail": 0.4},
    }  # fmt: skip
    if experts is not None:
        measure["experts"] = experts
    (folder / "measure.json").write_text(json.dumps(measure))
    rows = [{"kind": "train", "step": s, "epoch": s / 10, "loss": 1.0, "cosine": 1 / s} for s in (10, 20)]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def heads(seed: int) -> dict[str, Any]:
    return {
        "cls": {"mean_recall": 0.41, "head": 0.8 + seed / 50, "tail": 0.02, "recall": [0.8, 0.02]},
        "dist": {"mean_recall": 0.45, "head": 0.3, "tail": 0.615, "recall": [0.3, 0.6]},
    }


def test_a_row_for_each_head_and_their_average(tmp_path: Path) -> None:
    groups = group_runs([load_run(run_folder(tmp_path, seed, heads(seed))) for seed in (0, 1)])
    text = str(section(groups, {g.name: colour(i) for i, g in enumerate(groups)}))
    for shown in ("CLS", "DIST", "average", "81.0", "61.5", "51.0", "cosine of CLS and DIST", "evenhand attention RUN"):
        assert shown in text, shown
    assert "mid recall" in text
    page = render([record for group in groups for record in group.records])
    assert '<section id="experts">' in page


def test_runs_of_one_head_have_no_such_section(tmp_path: Path) -> None:
    page = render([load_run(run_folder(tmp_path))])
    assert '<section id="experts">' not in page


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="experts"):
        load_run(run_folder(tmp_path, experts={"cls": {"mean_recall": "much"}}))
