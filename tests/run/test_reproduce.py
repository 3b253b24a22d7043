"""Many runs as one experiment: what is trained, what is compared, what the table says."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from evenhand.cli import app, main
from evenhand.errors import Stopped, UserError
from evenhand.run import reproduce as module
from evenhand.run.needs import needed_recipe
from evenhand.run.recipe import Expected, Recipe, load_recipe, recipe_names, recipe_text
from evenhand.run.reproduce import reproduce

RECIPE = """
[data]
set = "shapes"
n_max = 10
[method]
name = "classifier"
batch = 20
net = { name = "small-cnn", width = 4 }
[run]
epochs = 1
threads = 1
progress = false
[variants]
ce = { method.loss = "ce" }
vs = { method.loss = "vs" }
"""


def test_two_jobs_train_what_one_trains(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    one = reproduce(str(recipe), seeds=1, out=tmp_path / "one")
    two = reproduce(str(recipe), seeds=1, out=tmp_path / "two", jobs=2)
    for name in ("ce-0", "vs-0"):
        first, second = (np.load(folder / name / "confusion.npz")["confusion"] for folder in (one, two))
        assert np.array_equal(first, second)
    assert (two / "report.html").exists()


def test_seeds_start_where_asked(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    folder = reproduce(str(recipe), seeds=2, first_seed=3, variants=["ce"], out=tmp_path / "runs")
    assert sorted(path.parent.name for path in folder.glob("*/model.json")) == ["ce-3", "ce-4"]


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe, and a training that only says what it was asked: mean recall 0.5, a digest for each split."""
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)

    def train(recipe: Recipe) -> Path:
        folder = Path(recipe.run.folder)
        folder.mkdir(parents=True)
        (folder / "recipe.toml").write_text(recipe.toml())
        (folder / "model.json").write_text(json.dumps({"format": 2, "task": "classify"}))
        (folder / "measure.json").write_text(json.dumps(MEASURED))
        digest = "given" if "given" in recipe.about else str(recipe.data.split_seed)
        (folder / "streams.json").write_text(
            json.dumps({"labelled": {"samples": 9, "classes": ["a", "b", "c"], "counts": [5, 3, 1], "digest": digest}})
        )
        return folder

    monkeypatch.setattr(module, "train", train)
    return recipe


MEASURED: dict[str, Any] = {
    "task": "classify", "split": "test", "checkpoint": "last.pt", "select": "last", "classes": ["a", "b", "c"],
    "train_counts": [5, 3, 1], "groups": {"head": [0], "mid": [1], "tail": [2]}, "recall": [0.5, 0.5, 0.5],
    "accuracy": 0.5, "mean_recall": 0.5, "min_recall": 0.5,
    "group_recall": {"head": 0.5, "mid": 0.5, "tail": 0.5}, "ece": 0.0, "samples": 9,
}  # fmt: skip


def said(folder: Path) -> str:
    return (folder / "table.md").read_text()


def expecting(number: str) -> str:
    """The recipe whose variant ce expects that."""
    return RECIPE.replace(
        'ce = { method.loss = "ce" }', f'ce = {{ method.loss = "ce", expect.mean_recall = {number} }}'
    )


def test_expected_numbers_are_compared(quick: Path, tmp_path: Path) -> None:
    ours = "{ value = 0.55, tolerance = 0.1, source = 'measured', seeds = [1, 2], date = '2026-11-16' }"
    theirs = "{ value = 0.7, tolerance = 0.1, source = 'authors' }"
    quick.write_text(f"{expecting(ours)}la = {{ method.loss = 'la', expect.tail = {theirs} }}\n")
    table = said(reproduce(str(quick), seeds=2, out=tmp_path / "runs", splits=False))
    assert "ce: mean_recall 0.500, expected 0.550 ± 0.100 (measured, seeds 1, 2, 2026-11-16): agrees" in table
    assert "la: tail 0.500, expected 0.700 ± 0.100 (authors): DIFFERS" in table
    assert "vs: " not in table


def test_fewer_seeds_than_were_measured_may_lie_further_off(quick: Path, tmp_path: Path) -> None:
    """The tolerance is a mean's over two seeds: of one seed it is sqrt(2) times as wide."""
    ours = "{ value = 0.55, tolerance = 0.1, source = 'measured', seeds = [1, 2], date = '2026-11-16' }"
    quick.write_text(expecting(ours))
    table = said(reproduce(str(quick), seeds=1, out=tmp_path / "one", splits=False))
    assert "ce: mean_recall 0.500, expected 0.550 ± 0.141 (measured, seeds 1, 2, 2026-11-16): agrees" in table


def test_any_number_that_is_measured_may_be_expected(quick: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(MEASURED, "class_fid_mean", 43.4)
    number = "{ value = 43.41, tolerance = 5.0, source = 'authors' }"
    quick.write_text(expecting(number).replace("mean_recall", "class_fid_mean"))
    assert "class_fid_mean 43.400, expected 43.410" in said(reproduce(str(quick), seeds=1, out=tmp_path / "runs"))
    quick.write_text(expecting(number).replace("mean_recall", "mean_recal"))
    with pytest.raises(UserError, match="did you mean 'mean_recall'"):
        reproduce(str(quick), seeds=1, out=tmp_path / "others")


def test_an_expectation_of_other_settings_is_left_out_with_a_word(quick: Path, tmp_path: Path) -> None:
    quick.write_text(expecting("{ value = 0.5, tolerance = 0.1, source = 'authors' }"))
    assert "agrees" in said(reproduce(str(quick), seeds=1, out=tmp_path / "as-written"))
    changes = ["data.imbalance=2", "run.threads=2"]
    table = said(reproduce(str(quick), seeds=1, overrides=changes, out=tmp_path / "changed", variants=["ce"]))
    assert "ce: its expected numbers are left out, they were made without data.imbalance\n" in table
    assert "agrees" not in table
    assert "DIFFERS" not in table


@pytest.mark.parametrize(
    ("splits", "verdict", "spread"),
    [
        (None, "not compared, it is of one split; use --no-splits", "each with its own split of the data"),
        (True, "not compared, it is of one split; use --no-splits", "each with its own split of the data"),
        (False, "agrees", "one split of the data (data.split_seed 0)"),
    ],
)
def test_small_data_are_split_anew_by_each_seed(
    quick: Path, tmp_path: Path, splits: bool | None, verdict: str, spread: str
) -> None:
    quick.write_text(expecting("{ value = 0.5, tolerance = 0.1, source = 'measured' }"))
    folder = reproduce(str(quick), seeds=2, variants=["ce"], out=tmp_path / "runs", splits=splits)
    table = said(folder)
    used = [load_recipe(folder / f"ce-{seed}").data.split_seed for seed in (0, 1)]
    assert used == ([0, 0] if splits is False else [0, 1])
    assert verdict in table
    assert spread in table
    assert ("2 seeds and splits" in table) == (splits is not False)


def test_a_split_that_is_given_compares_with_any(quick: Path, tmp_path: Path) -> None:
    quick.write_text("about = 'given'\n" + expecting("{ value = 0.5, tolerance = 0.1, source = 'measured' }"))
    table = said(reproduce(str(quick), seeds=2, variants=["ce"], out=tmp_path / "runs", splits=True))
    assert "one split of the data, which is given" in table
    assert "agrees" in table


def test_a_number_over_splits_is_not_compared_with_one_split(quick: Path, tmp_path: Path) -> None:
    quick.write_text(expecting("{ value = 0.5, tolerance = 0.1, source = 'measured', splits = true }"))
    ce = {"seeds": 2, "variants": ["ce"]}
    assert "agrees" in said(reproduce(str(quick), out=tmp_path / "splits", splits=True, **ce))  # type: ignore[arg-type]
    table = said(reproduce(str(quick), out=tmp_path / "one", splits=False, **ce))  # type: ignore[arg-type]
    assert "not compared, it is over several splits; use --splits" in table


def test_a_number_of_paired_runs_is_compared_over_its_own_seeds_alone(quick: Path, tmp_path: Path) -> None:
    """Its tolerance is smaller than what other splits make of it."""
    number = "{ value = 0.5, tolerance = 0.1, source = 'measured', seeds = [1, 2], splits = true, paired = true }"
    quick.write_text(expecting(number))
    for first, seeds, verdict in (
        (1, 2, "agrees"),
        (0, 2, "not compared, it holds for its own splits alone; use --first-seed 1 --seeds 2"),
        (1, 1, "not compared, it holds for its own splits alone; use --first-seed 1 --seeds 2"),
    ):
        out = tmp_path / f"{first}-{seeds}"
        table = reproduce(str(quick), seeds=seeds, first_seed=first, out=out, splits=True, variants=["ce"])
        assert verdict in said(table)


def test_large_data_keep_their_split(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", 10)
    folder = reproduce(str(quick), seeds=2, variants=["ce"], out=tmp_path / "runs")
    assert load_recipe(folder / "ce-1").data.split_seed == 0


def test_a_run_that_serves_all_seeds_keeps_the_split(tmp_path: Path, quick: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    quick.write_text("[needs]\nfirst = " + json.dumps(str(first)) + RECIPE)
    folder = reproduce(str(quick), seeds=2, variants=["ce"], out=tmp_path / "runs")
    assert load_recipe(folder / "ce-1").data.split_seed == 0
    with pytest.raises(UserError, match=r"needs\.first is one run for all seeds.*--no-splits"):
        reproduce(str(quick), seeds=2, variants=["ce"], out=tmp_path / "others", splits=True)


@pytest.mark.parametrize("program", ["/somewhere/evenhand", "/somewhere/evenhand/__main__.py"])
def test_the_command_in_a_table_runs_again(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    out = tmp_path / "it's a folder"
    words = ["reproduce", str(quick), "--seeds", "1", "--variant", "ce", "--out", str(out)]
    words += ["--set", 'about=two words and "quotes"', "--set", 'data.augment=["crop", "flip"]']
    monkeypatch.setattr(sys, "argv", [program, *words])
    with pytest.raises(SystemExit, match="0"):
        main()
    program, *again = shlex.split(next(line for line in said(out).splitlines() if line.startswith("    ")))
    assert (program, again) == ("evenhand", words)
    assert CliRunner().invoke(app, again).exit_code == 0
    assert load_recipe(out / "ce-0").about == 'two words and "quotes"'


@pytest.mark.parametrize("jobs", [1, 2])
def test_trainings_are_counted_as_they_finish(
    jobs: int, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "workers", ThreadPoolExecutor)
    reproduce(str(quick), seeds=1, out=tmp_path / "runs", jobs=jobs)
    assert sorted(re.findall(r"(\d)/2 (?:ce|vs)-0", capsys.readouterr().err)) == ["1", "2"]


def test_who_interrupts_it_learns_how_to_go_on(quick: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(_: Recipe) -> None:
        raise Stopped("runs/ce-0 is saved at step 3; to go on: evenhand train runs/ce-0 --resume")

    monkeypatch.setattr(module, "train", stopped)
    result = CliRunner().invoke(app, ["reproduce", str(quick), "--out", str(tmp_path / "runs")])
    assert result.exit_code == 130
    assert "repeat the same command" in result.stderr
    assert "--resume" not in result.stderr


def test_the_demonstration_is_one_seed_of_three_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(module, "reproduce", lambda *given, **how: heard.append((given, how)) or tmp_path)
    assert module.demo(tmp_path, ["x=1"]) == tmp_path
    assert heard == [
        (("fashion-lt",), {"seeds": 1, "variants": module.DEMO, "overrides": ["x=1"], "out": tmp_path, "splits": False})
    ]
    assert set(module.DEMO) <= load_recipe("fashion-lt").variants.keys()
    known = inspect.signature(reproduce).parameters
    assert [known[key].default for key in ("seeds", "first_seed", "jobs")] == [3, 0, 1]


@pytest.mark.parametrize(("size", "anew"), [(19_999, True), (20_000, False)])
def test_data_are_few_below_twenty_thousand(size: int, anew: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_data", lambda _: SimpleNamespace(labelled=range(size)))
    assert module._varied(None, [load_recipe("fashion-lt")], []) == anew


@pytest.mark.parametrize("how", ["data.split_seed=7", "data={split_seed=7}", "file"])
def test_a_split_that_is_chosen_is_every_seeds(quick: Path, tmp_path: Path, how: str) -> None:
    if how == "file":
        quick.write_text(quick.read_text().replace("[data]", "[data]\nsplit_seed = 7", 1))
    ce = {"seeds": 2, "variants": ["ce"], "overrides": [how] * (how != "file")}
    folder = reproduce(str(quick), out=tmp_path / "runs", **ce)  # type: ignore[arg-type]
    assert [load_recipe(folder / f"ce-{seed}").data.split_seed for seed in (0, 1)] == [7, 7]
    with pytest.raises(UserError, match=r"--splits: data\.split_seed is set, to one split for all seeds; leave it out"):
        reproduce(str(quick), out=tmp_path / "others", splits=True, **ce)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [n for n in recipe_names() if "splits = true" in recipe_text(n)])
def test_numbers_that_are_ours_can_be_compared_by_the_command(name: str) -> None:
    """Those over several splits need a split for each seed, the annotator of a generator included."""
    for variant in load_recipe(name).variants:
        recipe = load_recipe(f"{name}:{variant}")
        if any(expected.splits for expected in recipe.expect.values()):
            assert module._one_split([recipe], []) == "", variant
        for need, asked in recipe.needs.items():
            one, other = (
                needed_recipe(need, asked, recipe.changed({"data.split_seed": seed, "run.seed": seed}))
                for seed in (1, 2)
            )
            assert (one.data.split_seed, other.data.split_seed) == (1, 2)
            assert one.run.folder != other.run.folder


@pytest.mark.parametrize(("value", "verdict"), [(0.6, "agrees"), (0.61, "DIFFERS"), (0.4, "agrees"), (0.39, "DIFFERS")])
def test_a_number_agrees_within_its_tolerance(tmp_path: Path, value: float, verdict: str) -> None:
    expected = Expected(value=value, tolerance=0.10001, source="authors")
    recipe = load_recipe("fashion-lt").model_copy(update={"expect": {"mean_recall": expected}})
    (tmp_path / "ce-0").mkdir()
    (tmp_path / "ce-0" / "measure.json").write_text(json.dumps(MEASURED))
    (line,) = module._compare({tmp_path / "ce-0": recipe}, {"ce": recipe})
    assert line == f"ce: mean_recall 0.500, expected {value:.3f} ± 0.100 (authors): {verdict}"


def test_runs_stand_in_the_order_of_their_variants(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[list[str]] = []
    monkeypatch.setattr(module, "write_report", lambda runs, page: pages.append([run.name for run in runs]) or page)
    reproduce(str(quick), seeds=2, variants=["vs", "ce"], out=tmp_path / "some")
    reproduce(f"{quick}:vs", seeds=1, out=tmp_path / "one")
    quick.write_text(RECIPE.partition("[variants]")[0])
    reproduce(str(quick), seeds=2, out=tmp_path / "plain")
    assert pages == [["vs-0", "vs-1", "ce-0", "ce-1"], ["vs-0"], ["tiny-0", "tiny-1"]]
    with pytest.raises(UserError, match="has no variant 'cx'"):
        reproduce(str(quick), variants=["cx"])
