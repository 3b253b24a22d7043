"""Which folder a command reads, goes on in, or refuses."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand import locks
from evenhand.errors import UserError
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


def test_a_file_is_no_folder_for_a_run(cli: Cli, tiny: Path) -> None:
    assert "'tiny.toml' is a file" in cli("train", tiny, "--set", "run.folder=tiny.toml").mistake()


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".run.lock").mkdir()
    refused = pytest.raises(UserError, match=r"cannot write .*run \(Is a directory\); choose another run\.folder")
    with refused, locks.held(tmp_path / "run", wait=False):
        pass


def test_what_the_system_refuses_is_one_line_without_numbers(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "mine.toml")

    monkeypatch.setattr(Path, "write_text", refuse)
    said = cli("copy", "folder", tiny.with_name("mine.toml")).mistake()
    assert said.startswith("cannot use 'mine.toml' (Permission denied); see that")


def test_what_no_memory_holds_is_one_line_in_every_command(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("train", tiny).fine()
    errors: list[Exception] = [
        MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), RuntimeError("a slip"),
    ]  # fmt: skip

    def full(*_: object, **__: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(checkpoint, "restore", full)
    for _ in range(2):
        said = cli("measure", "runs/tiny-0").mistake()
        assert said.startswith("this does not fit into memory; take fewer at a time")
    with pytest.raises(RuntimeError, match="a slip"):
        cli("measure", "runs/tiny-0")


def test_printed_commands_can_be_pasted(cli: Cli, tiny: Path) -> None:
    said = cli("train", tiny, "--set", "run.folder=my runs/a", "--set", "run.epochs=0").fine()
    assert "report: evenhand report 'my runs/a'" in said


def test_what_is_no_recipe_is_told_so(cli: Cli, tiny: Path) -> None:
    tiny.with_name("x.png").write_bytes(b"\x89PNG")
    assert "x.png is no recipe" in cli("train", "x.png").mistake()
    assert "--set: run = 3 is a value" in cli("train", tiny, "--set", "run=3").mistake()


@pytest.mark.usefixtures("tiny")
def test_a_mistyped_path_is_not_answered_by_a_list_of_all_recipes(cli: Cli) -> None:
    assert cli("train", "phots/nowhere").mistake().endswith("no such file: evenhand list recipes names ours")
    assert cli("train", "runs/foldr").mistake().endswith("no such file: did you mean 'folder'?")
