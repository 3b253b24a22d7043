"""The command line in this process: its exit code and what it printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from evenhand.cli import main

TINY = """
about = "ten shapes in seconds"

[data]
set = "shapes"
n_max = 8
imbalance = 4
val_per_class = 2
test_per_class = 3

[method]
name = "classifier"
batch = 16
net = { name = "small-cnn", width = 2 }

[run]
epochs = 1
threads = 1
progress = false

[variants]
ce = { method.loss = "ce", expect.mean_recall = { value = 0.1, tolerance = 0.9, source = "measured" } }

[variants.vs-sam]
method = { loss = "vs", optim.name = "sam" }
expect.tail = { value = 3, tolerance = 0.5, source = "authors" }
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def mistake(self) -> str:
        """The one line that a user's mistake prints."""
        assert self.code == 2, self
        assert len(self.err.splitlines()) == 1, self.err
        assert self.err.startswith("evenhand: ")
        return self.err.removeprefix("evenhand: ").strip()

    def fine(self) -> str:
        assert self.code == 0, self
        return self.out


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """``cli("train", file)`` runs the entry point as the console script does."""

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["evenhand", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe file in an otherwise empty working folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return file
