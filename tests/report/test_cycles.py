"""The page on labels bought in rounds: its numbers from files that a test writes, and what is said where some lack."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from PIL import Image

from evenhand import atomic, cli
from evenhand.errors import UserError
from evenhand.report.cycles import (
    _curve,
    accuracy_table,
    batch_table,
    difference_table,
    group_experiments,
    rule_table,
    verdict,
    write_cycles_report,
)

ALSO = ("label-free:infomax", "oracle:accuracy")


def experiment(
    root: Path, name: str, by: str, seed: int, last: list[float], complete: bool = True, split: int = 0
) -> Path:
    """Accuracies of cycles; the best on test is always two points above the last checkpoint."""
    folder = root / f"{name}-{seed}"
    folder.mkdir(parents=True)
    recipe = f'[method]\nname = "vaada"\n[cycles]\nby = "{by}"\ncount = 2\nbudget = 0.1\n[run]\nseed = {seed}\n'
    recipe += f"[data]\nsplit_seed = {split}\n"
    (folder / "cycles.toml").write_text(recipe)
    rows: list[dict[str, Any]] = []
    for cycle, accuracy in enumerate(last):
        batch = {"spacing": 0.1 * (cycle + 1), "coverage": 0.5, "classes": 2.0} if cycle < 2 else None
        rows.append({
            "cycle": cycle, "labels": 4 * cycle, "accuracy": accuracy, "mean_recall": accuracy,
            "bought": [4 * cycle, 0],
            "also": {ALSO[0]: accuracy + 0.01, ALSO[1]: accuracy + 0.02}, "batch": batch,
        })  # fmt: skip
        points = {"pool": [[0, 0], [1, 1]], "source": [[2, 2]], "picked": [[0, 1]]}
        (folder / f"batch-{cycle + 1}.json").write_text(json.dumps({"numbers": batch, "points": points}))
        Image.new("RGB", (8, 8)).save(folder / f"picks-{cycle + 1}.png")
    told = {"by": by, "seed": seed, "classes": ["a", "b"], "count": 2, "select": "last", "cycles": rows}
    atomic.write_json(folder / "cycles.json", told if complete else {**told, "cycles": rows[:-1]})
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [
        experiment(tmp_path, "vaada-s3vaada", "s3vaada", 0, [0.3, 0.4, 0.5]),
        experiment(tmp_path, "vaada-s3vaada", "s3vaada", 1, [0.3, 0.44, 0.56]),
        experiment(tmp_path, "vaada-random", "random", 0, [0.3, 0.36, 0.45]),
        experiment(tmp_path, "vaada-random", "random", 1, [0.3, 0.42, 0.55]),
    ]  # fmt: skip


def row(table: Any, name: str) -> dict[str, str]:
    (found,) = [r for r in table.rows if r[0].text == name]
    return dict(zip(table.columns, map(str, found), strict=True))


def test_mean_and_standard_error_over_seeds(folders: list[Path]) -> None:
    groups = group_experiments(folders)
    assert [g.name for g in groups] == ["vaada-s3vaada", "vaada-random"]
    found = row(accuracy_table(groups), "vaada-s3vaada")
    assert found["4 labels"] == f"42.0 ± {stdev([40, 44]) / math.sqrt(2):.1f}"
    assert found["seeds"] == "2"
    assert found["mean of rounds"].startswith("47.5 ±")  # of (40, 50) and (44, 56): 45 and 50


def test_only_seeds_that_both_have_are_compared(tmp_path: Path) -> None:
    mine = [experiment(tmp_path, "vaada-badge", "badge", seed, [0.3, 0.5, 0.5]) for seed in (1, 2)]
    base = [experiment(tmp_path, "vaada-random", "random", s, [0.3, a, a]) for s, a in ((2, 0.46), (3, 0.1))]
    found = row(difference_table(group_experiments([*mine, *base])), "vaada-badge")
    assert found["seeds above"] == "1 of 1"
    assert found["difference"].startswith("4.00")


def test_splits_that_go_with_the_seed_are_one_group_others_are_not(tmp_path: Path) -> None:
    own = [experiment(tmp_path, "own", "random", seed, [0.3, 0.4, 0.5], split=seed) for seed in (1, 2)]
    (one,) = group_experiments(own)
    assert one.seeds == [1, 2]
    apart = [experiment(tmp_path, f"split{split}", "random", 3, [0.3, 0.4, 0.5], split=split) for split in (5, 6)]
    assert [g.seeds for g in group_experiments([*own, *apart])] == [[1, 2], [3], [3]]


def test_experiments_are_named_by_their_folders_without_the_seed(tmp_path: Path) -> None:
    """``0`` lies in ``badge``; two of one name are told apart by their places."""
    bare = experiment(tmp_path, "", "badge", 0, [0.3, 0.4, 0.5]).rename(tmp_path / "0")
    (tmp_path / "badge").mkdir()
    bare = bare.rename(tmp_path / "badge" / "0")
    seeded = experiment(tmp_path, "core_seed", "core", 7, [0.3, 0.4, 0.5]).rename(tmp_path / "core_seed7")
    same = [experiment(tmp_path / side, "x", by, 0, [0.3, 0.4, 0.5]) for side, by in (("l", "random"), ("r", "vap"))]
    assert [g.name for g in group_experiments([bare, seeded, *same])] == ["badge", "core", *map(str, same)]


def test_differences_are_paired_by_seed(folders: list[Path]) -> None:
    found = row(difference_table(group_experiments(folders)), "vaada-s3vaada")
    gains = [45 - 40.5, 50 - 48.5]
    assert found["difference"] == f"{sum(gains) / 2:.2f} ± {stdev(gains) / math.sqrt(2):.2f}"
    assert found["seeds above"] == "2 of 2"
    assert "not run" in difference_table(group_experiments(folders[:2])).caption


def test_best_and_last_stand_side_by_side(folders: list[Path]) -> None:
    found = row(rule_table(group_experiments(folders)), "vaada-random")
    assert found["last or selected"].startswith("50.0")
    assert found["by label-free:infomax"].startswith("51.0")
    assert found["best on test (oracle:accuracy)"].startswith("52.0")


def test_batches(folders: list[Path]) -> None:
    found = row(batch_table(group_experiments(folders)), "vaada-random")
    assert found["spacing (0: all alike)"].startswith("0.150")
    assert found["classes bought in all"].startswith("1.0")


def test_the_curve_of_one_seed_has_no_error(tmp_path: Path) -> None:
    (one,) = group_experiments([experiment(tmp_path, "x", "random", 0, [0.3, 0.4, 0.5])])
    means, errors = _curve(one)
    assert means == pytest.approx([30, 40, 50])
    assert all(map(math.isnan, errors))


def test_an_unfinished_experiment_has_no_mean(tmp_path: Path) -> None:
    folder = experiment(tmp_path, "x", "random", 0, [0.3, 0.4, 0.5], complete=False)
    groups = group_experiments([folder])
    assert row(accuracy_table(groups), "x")["mean of rounds"] == "not run"
    assert "no experiment is complete" in verdict(groups)


def test_the_page_says_who_wins_and_shows_what_was_chosen(folders: list[Path], tmp_path: Path) -> None:
    page = write_cycles_report(folders, tmp_path / "report.html").read_text()
    assert "vaada-s3vaada 47.5 ± 2.5 % (2 seeds), then vaada-random 44.5 ± 4.0 %" in page
    assert "chance cannot be told from merit" in page
    assert page.count("data:image/png;base64,") == 4  # two rounds of the first seed of each
    assert "chosen with test labels" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert write_cycles_report(folders, tmp_path / "again.html").read_text() == page


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    folder = experiment(tmp_path, "x", "random", 0, [0.3, 0.4, 0.5])
    (folder / "cycles.json").write_text('{"by": 3}')
    with pytest.raises(UserError, match=r"cycles\.json .*repeat evenhand cycles"):
        group_experiments([folder])


def test_an_experiment_without_cycles_or_without_its_recipe_is_none(tmp_path: Path) -> None:
    empty, bare, none = (experiment(tmp_path, name, "random", 0, [0.3]) for name in ("empty", "bare", "none"))
    told = json.loads((empty / "cycles.json").read_text())
    atomic.write_json(empty / "cycles.json", {**told, "cycles": []})
    (bare / "cycles.toml").unlink()
    (none / "cycles.json").unlink()
    for folder in (empty, bare, none):
        with pytest.raises(UserError, match=f"{folder.name} holds no cycles: repeat evenhand cycles"):
            group_experiments([folder])


def test_the_command_finds_experiments_in_a_folder(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["evenhand", "report", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0)

    assert report(str(folders[0].parent), "-o", str(tmp_path / "all.html")) == 0
    assert "vaada-random" in (tmp_path / "all.html").read_text()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    assert report(str(folders[0]), str(tmp_path / "run")) == 2
    assert "do not go on one page" in capsys.readouterr().err


def test_an_experiment_and_its_copy_are_not_two_seeds(tmp_path: Path, folders: list[Path]) -> None:
    copied = experiment(tmp_path / "copied", "vaada-s3vaada", "s3vaada", 0, [0.3, 0.4, 0.5])
    with pytest.raises(UserError, match="one experiment with seed 0; name one of them"):
        group_experiments([*folders, copied])
