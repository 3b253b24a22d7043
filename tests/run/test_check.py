"""What ``check`` says of the data, and descriptions of runs that it would not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from evenhand.data.sources.soundness import Problem
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.run import check
from evenhand.run.check import _print_problems, _print_streams, check_recipe, time_steps
from evenhand.run.folder import read_model
from evenhand.run.recipe import Recipe, smoke_recipe


def test_streams_are_counted_by_class_where_they_have_labels(capsys: pytest.CaptureFixture[str]) -> None:
    samples = Memory(torch.zeros(4, 1, 2, 2, dtype=torch.uint8))
    streams = {
        "labelled": Stream(samples, torch.tensor([1, 0, 1, 1]), ("ant", "bee"), "labelled"),
        "unlabelled": Stream(samples, None, ("ant", "bee"), "unlabelled"),
        "val": Stream(samples, torch.tensor([1, 1, 1, 1]), ("ant", "bee"), "val"),
    }
    _print_streams(streams, Console(width=100))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["labelled", "4", "2", "3", "bee", "1", "ant", "3.0"],
        ["unlabelled", "4", "-", "-", "-", "-"],
        ["val", "4", "2", "4", "bee", "0", "ant", "a", "class", "is", "empty"],
    ]


def test_a_run_that_names_no_format_is_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps({"task": "classify"}))
    with pytest.raises(UserError, match="format 1"):
        read_model(tmp_path)


def test_threads_beyond_reason_are_refused_as_in_training() -> None:
    before = torch.get_num_threads()
    with pytest.raises(UserError, match=r"run\.threads = 1000 is far more"):
        check_recipe(smoke_recipe("fashion-lt").changed({"run.threads": 1000}))
    assert torch.get_num_threads() == before


def test_a_step_takes_the_mean_of_those_after_the_first_two(
    tiny: Callable[..., Recipe], build: Callable[[Recipe], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny()
    method, data = build(recipe)
    took = [4.0, 5.0, 1.0, 1.0, 1.0, 3.0]
    clock = accumulate(seconds for step in took for seconds in (0.0, step))
    monkeypatch.setattr(check, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert time_steps(method, data.streams, recipe, torch.device("cpu")) == (1.5, 6, method.size())


def test_of_many_problems_twenty_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [Problem("error", "unreadable", f"{i}.png", "is damaged") for i in range(23)]
    _print_problems(problems[:20], Console(width=80))
    assert capsys.readouterr().out.splitlines() == [f"error: {i}.png: is damaged" for i in range(20)]
    _print_problems(problems, Console(width=80))
    assert capsys.readouterr().out.splitlines()[20:] == ["... and 3 more"]
