"""Synthetic run folders: reading, grouping by seed, and tables."""

from __future__ import annotations

import io
import json
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from evenhand.errors import UserError
from evenhand.report.reading import load_run
from evenhand.report.records import _group_name, group_runs
from evenhand.report.tables import difference_table, per_class_table, runs_table, summary_table

CLASSES = ["cat", "dog", "lynx"]


def make_run(
    root: Path, name: str, *, seed: int = 0, rho: float = 0.0, recall: tuple[float | None, ...] = (0.9, 0.6, 0.3),
    measured: bool = True, split_seed: int | None = None, **changes: Any,
) -> Path:  # fmt: skip
    folder = root / name
    folder.mkdir(parents=True)
    split = "" if split_seed is None else f"split_seed = {split_seed}\n"
    (folder / "recipe.toml").write_text(
        f'[data]\nname = "toy"\n{split}[method]\nrho = {rho}\n[run]\nseed = {seed}\nfolder = "{name}"\n'
    )
    known = [r for r in recall if r is not None]
    measure = {
        "task": "classify", "split": "test", "checkpoint": "last.pt", "select": "last", "classes": CLASSES,
        "train_counts": [1000, 100, 10],
        "groups": {"head": [0], "mid": [1], "tail": [2]}, "recall": list(recall),
        "accuracy": fmean(known), "mean_recall": fmean(known), "min_recall": min(known),
        "group_recall": dict(zip(("head", "mid", "tail"), recall, strict=True)), "ece": 0.05, "samples": 300, **changes,
    }  # fmt: skip
    (folder / "model.json").write_text(json.dumps({"format": 2, "task": "classify"}))
    if measured:
        (folder / "measure.json").write_text(json.dumps(measure))
    return folder


def test_seeds_are_grouped_and_averaged(tmp_path: Path) -> None:
    tails = (0.30, 0.34, 0.41)
    plain = [make_run(tmp_path, f"ce-{s}", seed=s, recall=(0.9, 0.6, t)) for s, t in enumerate(tails)]
    other = make_run(tmp_path, "sam-0", rho=0.05)
    records = [load_run(p) for p in [plain[0], other, *plain[1:]]]
    groups = group_runs(records)
    assert [(g.name, g.size) for g in groups] == [("ce", "3 seeds"), ("sam", "1 seed")]
    row = dict(zip(summary_table(records).columns, summary_table(records).rows[0], strict=True))
    percent = [100 * t for t in tails]
    assert str(row["tail recall (%)"]) == f"{fmean(percent):.1f} ± {stdev(percent):.1f}"
    assert row["tail recall (%)"].title == "seed 0: 30.00, seed 1: 34.00, seed 2: 41.00"
    assert len(runs_table(records).rows) == 4


def grouped(root: Path, *runs: tuple[int, int]) -> list[tuple[str, list[tuple[int, int]]]]:
    """Sizes and members of the groups of runs that have these seeds and splits."""
    folders = [make_run(root, f"ce-{seed}-split{split}", seed=seed, split_seed=split) for seed, split in runs]
    return [(g.size, [(r.seed, r.split_seed) for r in g.records]) for g in group_runs(map(load_run, folders))]


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["ce-0", "ce-1"], "ce"), (["ce_seed0", "ce_seed1"], "ce"), (["0", "1"], "runs"), (["ce-a-0", "ce-b-1"], "ce"),
        (["ce-0", "ce-long-1"], "ce"), (["one-0", "two-1"], "runs"),
    ],
)  # fmt: skip
def test_a_group_is_called_by_what_its_folders_share(names: list[str], group: str) -> None:
    runs: Any = [SimpleNamespace(folder=Path("runs") / n, name=n, seed=seed) for seed, n in enumerate(names)]
    assert _group_name(runs) == group


def test_seeds_that_split_the_data_anew_are_one_group_which_says_so(tmp_path: Path) -> None:
    varied = [(0, 0), (1, 1), (2, 2)]
    assert grouped(tmp_path / "varied", *varied) == [("3 seeds and splits", varied)]
    shared = [(0, 0), (1, 0), (2, 0)]
    assert grouped(tmp_path / "shared", *shared) == [("3 seeds", shared)]
    assert grouped(tmp_path / "both", (1, 1), (1, 0), (2, 2), (2, 0)) == [
        ("2 seeds and splits", [(1, 1), (2, 2)]), ("2 seeds", [(1, 0), (2, 0)]),
    ]  # fmt: skip


def test_a_split_that_does_not_go_with_the_seed_is_another_experiment(tmp_path: Path) -> None:
    assert grouped(tmp_path, (0, 5), (1, 6)) == [("1 seed", [(0, 5)]), ("1 seed", [(1, 6)])]


def test_markdown_is_exact(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "ce-0", seed=0, recall=(0.9, 0.6, 0.3)),
        make_run(tmp_path, "ce-1", seed=1, recall=(0.9, 0.6, 0.4)),
        make_run(tmp_path, "sam|x", rho=0.05, recall=(0.8, 0.7, 0.6)),
        make_run(tmp_path, "later", rho=0.1, measured=False),
    ]
    assert summary_table(map(load_run, runs)).to_markdown() == (
        "| run | accuracy (%) | mean recall (%) | head recall (%) | mid recall (%) | tail recall (%) "
        "| min recall (%) | ECE (%) | repeats | selected by |\n"
        "|:--|--:|--:|--:|--:|--:|--:|--:|:--|:--|\n"
        "| ce | 61.7 ± 2.4 | 61.7 ± 2.4 | **90.0 ± 0.0** | 60.0 ± 0.0 | 35.0 ± 7.1 | 35.0 ± 7.1 "
        "| **5.0 ± 0.0** | 2 seeds | last |\n"
        "| sam\\|x | **70.0** | **70.0** | 80.0 | **70.0** | **60.0** | **60.0** | **5.0** | 1 seed | last |\n"
        "| later | not run | not run | not run | not run | not run | not run | not run | 1 seed | not run |\n"
    )


def test_per_class_goes_from_frequent_to_rare(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ce", train_counts=[10, 1000, 100], groups={"head": [1], "mid": [2], "tail": [0]})
    table = per_class_table([load_run(run)])
    assert table.columns == ("class", "group", "training samples", "ce recall (%)")
    assert [[str(c) for c in row] for row in table.rows] == [
        ["dog", "head", "1,000", "60.0"],
        ["lynx", "mid", "100", "30.0"],
        ["cat", "tail", "10", "90.0"],
    ]


def test_a_seed_not_yet_measured_is_said(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"ce-{s}", seed=s, measured=s != 1) for s in range(3)]
    (group,) = group_runs(map(load_run, runs))
    assert group.size == "2 of 3 seeds"
    assert [r.name for r in group.records] == ["ce-0", "ce-1", "ce-2"]


def test_only_repetitions_are_averaged(tmp_path: Path) -> None:
    """Another selection rule, another split seed or an unknown recipe is no repetition; a repeated seed is said."""
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", select="oracle:mean_recall")]
    assert len(group_runs(map(load_run, runs))) == 2
    for name, split_seed in (("c", 1), ("d", 2)):
        recipe = make_run(tmp_path, name) / "recipe.toml"
        recipe.write_text(recipe.read_text() + f"[data.split]\nseed = {split_seed}\n")
    assert len(group_runs(load_run(tmp_path / n) for n in "cd")) == 2
    for name in "ef":
        (make_run(tmp_path, name) / "recipe.toml").unlink()
    assert len(group_runs(load_run(tmp_path / n) for n in "ef")) == 2
    (group,) = group_runs(load_run(make_run(tmp_path, f"g-{i}", rho=0.2)) for i in range(2))
    assert group.size == "2 runs"


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / side, "ce", rho=rho) for side, rho in (("left", 0.0), ("right", 0.1))]
    names = [g.name for g in group_runs(map(load_run, runs))]
    assert names == [str(run) for run in runs]
    grid = [make_run(tmp_path, f"rho-{i}", seed=i, rho=i / 10) for i in range(2)]
    assert [g.name for g in group_runs(map(load_run, grid))] == ["rho-0", "rho-1"]
    seeds = [make_run(tmp_path / "sam", f"seed{s}", seed=s, rho=0.3) for s in range(2)]
    assert [g.name for g in group_runs(map(load_run, seeds))] == ["sam"]


def test_oracle_never_wins(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "a", recall=(0.5, 0.5, 0.5)),
        make_run(tmp_path, "b", rho=0.1, recall=(0.6, 0.6, 0.6)),
        make_run(tmp_path, "c", rho=0.2, recall=(0.9, 0.9, 0.9), select="oracle:mean_recall"),
    ]
    table = summary_table(map(load_run, runs))
    column = table.columns.index("mean recall (%)")
    assert [row[column].best for row in table.rows] == [False, True, False]
    assert str(table.rows[2][-1]) == "test split (oracle)"


def test_class_without_samples_is_undefined(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, "ce", recall=(0.9, 0.6, None)))
    assert str(per_class_table([run]).rows[2][-1]) == "undefined"
    assert "undefined" in summary_table([run]).to_markdown()


def test_differences_leave_out_seed_and_folder(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a", seed=3), make_run(tmp_path, "b", rho=0.5)]
    table = difference_table(map(load_run, runs))
    assert [[str(c) for c in row] for row in table.rows] == [["method.rho", "0.0", "0.5"]]


def test_rich_prints_brackets_as_they_are(tmp_path: Path) -> None:
    out = io.StringIO()
    run = make_run(tmp_path, "ce", classes=["[bold]cat", "dog", "lynx"])
    Console(file=out, width=120).print(per_class_table([load_run(run)]).to_rich())
    assert "[bold]cat" in out.getvalue()


@pytest.mark.parametrize("name", ["measure.json", "streams.json", "recipe.toml", "log.jsonl"])
def test_unreadable_file_is_named(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path, "ce")
    (folder / name).write_text('{"broken": \n')
    with pytest.raises(UserError, match=name):
        load_run(folder)


def test_wrong_shapes_and_empty_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="train_counts has 2 entries, not 3"):
        load_run(make_run(tmp_path, "short", train_counts=[1, 2]))
    with pytest.raises(UserError, match="no run folder"):
        load_run(tmp_path / "nowhere")


def test_half_written_log_line_is_ignored(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "ce")
    (folder / "log.jsonl").write_text('{"kind": "train", "step": 1, "epoch": 0.1, "loss": 2.0}\n{"kind": "tra')
    assert [row["step"] for row in load_run(folder).log] == [1]
