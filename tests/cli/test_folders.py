"""Which folder a command reads, goes on in, or refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenhand.run import checkpoint

Cli = Callable[..., Any]


def step(folder: Path) -> int:
    return int(checkpoint.load(folder / "last.pt")["step"])


def paused(cli: Cli, tiny: Path) -> Path:
    """A run of three steps that stopped after the first."""
    cli("train", tiny, "--set", "run.steps=3", "--set", "run.stop_after=1").fine()
    return tiny.parent / "runs" / "tiny-0"


def test_a_run_that_was_moved_goes_on_where_it_is(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = paused(cli, tiny).rename(tiny.parent / "elsewhere")
    cli("train", "elsewhere", "--resume", "--set", "run.stop_after=1").fine()
    assert step(moved) == 2
    monkeypatch.chdir(moved)
    cli("train", ".", "--resume").fine()
    assert step(moved) == 3
    assert not list((tiny.parent / "runs").glob("tiny-0"))


def test_resuming_what_is_not_there_is_refused(cli: Cli, tiny: Path) -> None:
    said = cli("train", tiny, "--set", "run.folder=runs/mistyped", "--resume").mistake()
    assert "runs/mistyped" in said
    assert not (tiny.parent / "runs").exists()
    cli("train", tiny, "--set", "run.folder=runs/new", "--set", "run.resume=true", "--set", "run.epochs=0").fine()


@pytest.mark.parametrize("folder", ["", ".", "..", "/"])
def test_a_folder_without_a_name_is_refused(cli: Cli, tiny: Path, folder: str) -> None:
    assert "run.folder" in cli("train", tiny, "--set", f"run.folder={folder}").mistake()
