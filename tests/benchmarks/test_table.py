"""Evidence tables: rows can be trained, what is kept belongs to what was trained, differences are paired."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evenhand.run.recipe import smoke_recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("table")


@pytest.mark.parametrize("name", sorted(file.stem for file in (BENCHMARKS / "tables").glob("*.toml")))
def test_every_row_of_every_table_is_a_recipe_of_its_own(program: ModuleType, name: str, tmp_path: Path) -> None:
    table = program.Table.read(name)
    recipes = [table.recipe(row, table.seeds[0], tmp_path) for row in table.rows]
    assert len({program.whole_digest(recipe) for recipe in recipes}) == len(recipes)
    assert all(recipe.run.seed == recipe.data.split_seed == table.seeds[0] for recipe in recipes)
    assert len({recipe.run.folder for recipe in recipes}) == len(recipes)


@pytest.mark.parametrize("name", sorted(file.stem for file in (BENCHMARKS / "tables").glob("*.toml")))
def test_what_is_kept_was_trained_as_the_recipes_say_today(program: ModuleType, name: str, tmp_path: Path) -> None:
    """A key that a recipe gains changes its digest: numbers that it leaves as they are must be given the new one."""
    table = program.Table.read(name)
    lines = table.ledger.read_text().splitlines() if table.ledger.exists() else []
    ran = {record["row"] for record in map(json.loads, lines) if record["seed"] == table.seeds[0]}
    known = table.kept()
    today = {row: program.whole_digest(table.recipe(row, table.seeds[0], tmp_path)) for row in table.rows}
    assert not [row for row, digest in today.items() if row in ran and digest not in known]


def test_a_row_that_is_needed_by_others_is_the_very_run_they_need(program: ModuleType, tmp_path: Path) -> None:
    table = program.Table.read("selmix-fashion")
    base = table.recipe("base", 1, tmp_path)
    tuned = table.recipe("SelMix for min recall", 1, tmp_path)
    needed = program.needed_recipe("first", tuned.needs["first"], tuned)
    assert (base.run.folder, base.digest()) == (needed.run.folder, needed.digest())


def test_a_change_of_what_is_needed_changes_the_digest(program: ModuleType) -> None:
    recipe = program.load_recipe("selmix-fashion:min-recall")
    longer = recipe.changed({"needs.first.set": {"run.steps": 2000}})
    seeded = recipe.changed({"run.seed": 1})
    assert len({program.whole_digest(some) for some in (recipe, longer, seeded)}) == 3
    assert program.whole_digest(recipe.changed({"run.threads": 2})) == program.whole_digest(recipe)


def test_a_changed_row_finds_no_folder_of_the_old_one(two_rows: Any, tmp_path: Path) -> None:
    before = two_rows.recipe("other", 1, tmp_path).run.folder
    two_rows.rows["other"] = ["fashion-lt:la", "run.epochs=3"]
    after = two_rows.recipe("other", 1, tmp_path).run.folder
    assert before != after
    assert Path(before).parent == Path(after).parent  # what they need lies beside them


def test_what_all_rows_set_a_row_may_set_otherwise(two_rows: Any, tmp_path: Path) -> None:
    two_rows.all_set = ["run.epochs=5", "method.batch=32"]
    plain, other = (two_rows.recipe(row, 1, tmp_path) for row in ("plain", "other"))
    assert (plain.run.epochs, other.run.epochs) == (5, 2)
    assert plain.method.batch == other.method.batch == 32


@pytest.fixture
def two_rows(program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(program, "HERE", tmp_path)
    (tmp_path / "results").mkdir()
    rows = {"plain": "fashion-lt:ce", "other": ["fashion-lt:la", "run.epochs=2"], "third": "fashion-lt:vs"}
    return program.Table("tiny", {"recall": "mean_recall"}, rows, [1, 2, 3])


def keep(program: ModuleType, table: Any, row: str, seed: int, value: float) -> None:
    table.keep(row, seed, program.whole_digest(table.recipe(row, seed, Path("runs"))), {"mean_recall": value})


def test_means_and_paired_differences_by_hand(program: ModuleType, two_rows: Any) -> None:
    for seed, plain, other in ((1, 0.5, 0.6), (2, 0.3, 0.5), (3, 0.7, 0.7)):
        keep(program, two_rows, "plain", seed, plain)
        keep(program, two_rows, "other", seed, other)
    lines = program.text(two_rows, [*two_rows.rows], [1, 2, 3], "plain").splitlines()
    assert lines[2] == "| plain | 3 | 50.0 ± 20.0 |"
    assert lines[4] == "| third | not run |"
    assert lines[-1] == "| other | 3 | +10.0 ± 5.8 |"  # 10, 20, 0: deviation 10 / sqrt 3


def test_differences_are_of_the_seeds_that_both_have(program: ModuleType, two_rows: Any) -> None:
    for seed, value in ((1, 0.5), (2, 0.4)):
        keep(program, two_rows, "plain", seed, value)
    keep(program, two_rows, "other", 2, 0.5)
    keep(program, two_rows, "other", 3, 0.9)
    lines = program.text(two_rows, ["plain", "other"], [1, 2, 3], "plain").splitlines()
    assert lines[-1] == "| other | 1 | +10.0 |"


def test_what_is_kept_is_not_trained_again_and_a_changed_recipe_is(
    program: ModuleType, two_rows: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained: list[tuple[str, int]] = []

    def run(recipe: Any, *_: Any) -> dict[str, float]:
        trained.append((recipe.method.loss, recipe.run.seed))
        return {"mean_recall": 0.5}

    monkeypatch.setattr(program, "run", run)
    program.fill(two_rows, ["plain", "other"], [1, 2], tmp_path, 1)
    assert trained == [("ce", 1), ("la", 1), ("ce", 2), ("la", 2)]
    two_rows.rows["other"] = ["fashion-lt:la", "run.epochs=3"]
    program.fill(two_rows, ["plain", "other"], [1, 2], tmp_path, 1)
    assert trained[4:] == [("la", 1), ("la", 2)]


def test_numbers_of_a_run_are_its_floats_and_the_means_of_its_lists(program: ModuleType, tmp_path: Path) -> None:
    measured = {
        "task": "classify",
        "accuracy": 0.5,
        "recall": [0.1, 0.2],
        "names": ["a"],
        "group_recall": {"tail": 0.25},
        "samples": 10,
    }
    (tmp_path / "measure.json").write_text(json.dumps({**measured, "temperature": {"value": 1.5}}))
    (tmp_path / "measure-test-new.json").write_text(json.dumps({"map": 0.125}))
    found = program.numbers_of(tmp_path, program.More(("test-new",)))
    assert found == {
        "accuracy": 0.5,
        "recall.mean": 0.15,
        "group_recall.tail": 0.25,
        "temperature.value": 1.5,
        "test-new.map": 0.125,
    }


@pytest.mark.usefixtures("tv")
def test_a_run_that_never_saw_a_target_is_tested_on_another_as_if_trained_for_it(
    program: ModuleType, tmp_path: Path
) -> None:
    here, there = (
        smoke_recipe("emoji-scenes:source-only").changed(
            {"data.target": target, "run.folder": str(tmp_path / target), "run.progress": False}
        )
        for target in ("negative", "plain")
    )
    before = program.run(here)
    borrowed = program.run(there, program.NOTHING, here)
    assert not (tmp_path / "plain").exists()
    assert program.run(here) == before  # its own numbers stay
    own = program.run(there)
    assert borrowed == {key: own[key] for key in borrowed}
    assert borrowed["coco"] != before["coco"]


def test_a_row_trained_in_another_table_names_a_row_of_it(program: ModuleType, tmp_path: Path) -> None:
    table, other = program.Table.read("emoji-scenes-twemoji"), program.Table.read("emoji-scenes")
    for row in table.rows:
        trained, own = table.trained(row, 1, tmp_path), table.recipe(row, 1, tmp_path)
        assert (trained.run.folder == own.run.folder) == (row not in table.trained_in)
        if row in table.trained_in:
            assert trained == other.recipe(row, 1, tmp_path)
            assert trained.method == own.method
            assert trained.data.source == own.data.source


def test_generators_are_measured_by_other_features_and_a_classifier_each_once(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def by(folder: Path, features: str) -> None:
        asked.append(features)
        (folder / f"measure-{features}.json").write_text(json.dumps({"fid": 3.0}))

    def cas(folder: Path, *, recipe: str) -> None:
        asked.append(recipe)
        (folder / "measure.json").write_text(json.dumps({"fid": 2.0, "classifier_score": {"accuracy": 0.5}}))

    (tmp_path / "measure.json").write_text(json.dumps({"fid": 2.0}))
    monkeypatch.setattr(program, "measure_by", by)
    monkeypatch.setattr(program, "classifier_score", cas)
    recipe = program.load_recipe("noisytwins-fashion", [f"run.folder={json.dumps(str(tmp_path))}"])
    more = program.More(features=("mobilenet_v2",), cas="annotator")
    expected = {"fid": 2.0, "classifier_score.accuracy": 0.5, "mobilenet_v2.fid": 3.0}
    assert program.run(recipe, more) == program.run(recipe, more) == expected
    assert asked == ["mobilenet_v2", "annotator"]


def test_a_column_may_have_its_own_scale_and_digits(program: ModuleType, two_rows: Any) -> None:
    two_rows.columns = {"recall": {"key": "mean_recall", "scale": 1, "digits": 3}}
    for seed, plain, other in ((1, 0.5, 0.6), (2, 0.25, 0.5)):
        keep(program, two_rows, "plain", seed, plain)
        keep(program, two_rows, "other", seed, other)
    lines = program.text(two_rows, ["plain", "other"], [1, 2], "plain").splitlines()
    assert lines[2] == "| plain | 2 | 0.375 ± 0.177 |"
    assert lines[-1] == "| other | 2 | +0.175 ± 0.075 |"
