"""The report's section on selective mixup, from runs trained here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from evenhand.errors import UserError
from evenhand.report import selftraining
from evenhand.report.charts.pairs import plot_pair_matrices
from evenhand.report.charts.svg import colour
from evenhand.report.classify import SECTIONS
from evenhand.report.reading import load_run
from evenhand.report.records import RunGroup, group_runs
from evenhand.report.selmix import _rank_correlation, section
from evenhand.run.recipe import load_recipe
from evenhand.run.tables import flatten
from evenhand.run.training import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three steps of two aims from one base, looked at before each."""
    folder = tmp_path_factory.mktemp("runs")
    smoke = flatten(load_recipe("selmix-fashion").smoke) | {"run.progress": False, "method.cycle": 1}
    names = ("min-recall", "mean-recall-coverage")
    recipes = {
        name: load_recipe(f"selmix-fashion:{name}", smoke | {"run.folder": str(folder / name)}) for name in names
    }
    return {name: train(recipe, smoke=True) for name, recipe in recipes.items()}


def groups_of(*folders: Path) -> list[RunGroup]:
    return group_runs([load_run(folder) for folder in folders])


def test_section_shows_pairs_gains_and_the_cross_table(runs: dict[str, Path]) -> None:
    groups = groups_of(*runs.values())
    text = section(groups, {group.name: colour(i) for i, group in enumerate(groups)})
    for word in ("entropy of the pairs", "largest gain", "Does a gain come true?", "gain, step 0", "gain, step 2",
                 "drawn, step 2", "in bold what it was fine-tuned for"):  # fmt: skip
        assert word in text, word
    measured = json.loads((runs["min-recall"] / "measure.json").read_text())
    assert f'best">{100 * measured["min_recall"]:.1f}' in text.replace("\n", "")
    assert text.count('best">') == 3  # worst recall; mean recall and least coverage


def test_multipliers_and_floor_stand_in_the_section_on_self_training(runs: dict[str, Path]) -> None:
    (covered,) = groups_of(runs["mean-recall-coverage"])
    text = selftraining.section([covered], {covered.name: colour(0)})
    for word in ("Multipliers of coverage floors", "Dark: the floor asked for"):
        assert word in text, word
    assert SECTIONS.illustrated["Selective mixup"] is section
    assert selftraining._floor(covered) == pytest.approx(0.095)
    assert selftraining._floor(groups_of(runs["min-recall"])[0]) is None


def test_other_runs_have_no_such_section(runs: dict[str, Path]) -> None:
    (base,) = {folder for folder in (runs["min-recall"].parent / "needs").iterdir() if folder.is_dir()}
    assert section(groups_of(base), {}) == ""


def test_damaged_arrays_are_named(runs: dict[str, Path], tmp_path: Path) -> None:
    for name, array in (("pair_gain", np.zeros((2, 3))), ("pair_fidelity", np.zeros(4)), ("pair_gain", None)):
        copy = tmp_path / "run"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(runs["min-recall"], copy)
        if array is None:
            (copy / f"{name}.npz").write_bytes(b"no archive")
        else:
            np.savez(copy / f"{name}.npz", **{name: array})
        groups = groups_of(copy)
        with pytest.raises(UserError, match="measure the run again"):
            section(groups, {groups[0].name: colour(0)})


def test_rank_correlation() -> None:
    x = np.array([0.1, 0.5, 0.2, 0.9])
    assert _rank_correlation(x, np.exp(x)) == pytest.approx(1)
    assert _rank_correlation(x, -x) == pytest.approx(-1)
    assert _rank_correlation(x, np.zeros(4)) == 0


def test_pairs_are_as_dark_as_their_gain_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains 4, -2 and 0 of at most 4; pairs drawn with chances 0.5, 0.25 and 0."""
    seen: list[np.ndarray] = []
    monkeypatch.setattr(Axes, "imshow", lambda _, x, **__: seen.append(x))
    plot_pair_matrices([0], np.array([[[4.0, -2.0], [0, 0]]]), np.array([[[0.5, 0.25], [0.25, 0]]]), ["a", "b"])
    for rgba in seen:
        (all_of_it, half), (_, none) = rgba[..., 3]
        assert all_of_it == 1 > half > 0.5 > none == 0
    gain, drawn = seen
    blue, vermilion = (np.array([*bytes.fromhex(colour(i)[1:])]) / 255 for i in range(2))
    assert np.array_equal(gain[0, :, :3], [blue, vermilion])  # which raise and lower the metric
    assert np.array_equal(drawn[0, :, :3], [blue, blue])
