"""The report's section on self-training, from runs trained here."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenhand.report.charts.svg import colour
from evenhand.report.page import render
from evenhand.report.reading import load_run
from evenhand.report.records import group_runs
from evenhand.report.selftraining import _chosen, _floor, section
from evenhand.run.recipe import load_recipe
from evenhand.run.tables import flatten
from evenhand.run.training import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three steps of several variants, evaluated after each step."""
    folder = tmp_path_factory.mktemp("runs")
    smoke = flatten(load_recipe("csst-fashion").smoke) | {"run.progress": False}
    names = ("csst-min-recall", "csst-coverage", "fixmatch", "erm")
    recipes = {name: load_recipe(f"csst-fashion:{name}", smoke | {"run.folder": str(folder / name)}) for name in names}
    return {name: train(recipe) for name, recipe in recipes.items()}


def test_section_shows_what_each_run_has(runs: dict[str, Path]) -> None:
    groups = {name: group_runs([load_run(folder)])[0] for name, folder in runs.items()}
    tints = {group.name: colour(i) for i, group in enumerate(groups.values())}
    assert section([groups["erm"]], tints) == ""
    text = section(list(groups.values()), tints)
    for word in ("Multipliers", "Recall on validation", "Coverage on validation", "pseudo-label", "Dark: the floor"):
        assert word in text
    alone = section([groups["fixmatch"]], tints)
    assert "Share of unlabelled samples learnt from" in alone
    assert "Multipliers" not in alone
    assert "Dark" not in alone
    assert _floor(groups["csst-coverage"]) == pytest.approx(0.095)
    assert _floor(groups["csst-min-recall"]) is None


def test_page_links_the_section(runs: dict[str, Path]) -> None:
    page = render([load_run(runs["csst-coverage"]), load_run(runs["erm"])])
    assert '<section id="self-training">' in page
    assert '<section id="self-training">' not in render([load_run(runs["erm"])])


def test_both_ends_of_many_classes_are_drawn(runs: dict[str, Path]) -> None:
    (group,) = group_runs([load_run(runs["fixmatch"])])
    assert _chosen(group, ["head", "tail"]) == ["head", "tail"]
    many = [str(i) for i in range(30)]
    assert _chosen(group, many) == many[:5] + many[-5:]
