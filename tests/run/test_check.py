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
from evenhand.run.check import _print_problems, _print_streams, check_recipe, clock, time_steps
from evenhand.run.folder import read_model
from evenhand.run.recipe import Need, Recipe, smoke_recipe


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


def test_times_are_in_two_units() -> None:
    assert [clock(seconds) for seconds in (0.4, 59.6, 61, 3599, 3600, 7380)] == [
        "0 min 0 s", "1 min 0 s", "1 min 1 s", "59 min 59 s", "1 h 0 min", "2 h 3 min",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("took", "mean"), [([30.0], 30.0), ([4.0, 15.9, 2.0, 9.0], 2.0), ([7.0, 7.0, 5.0, 1.0, 8.0], 3.0)]
)
def test_slow_steps_are_timed_for_twenty_seconds(
    tiny: Callable[..., Recipe], build: Callable[[Recipe], Any], monkeypatch: pytest.MonkeyPatch, took: list[float],
    mean: float,
) -> None:  # fmt: skip
    recipe = tiny("run.steps=9")
    method, data = build(recipe)
    clock = accumulate(seconds for step in took for seconds in (0.0, step))
    monkeypatch.setattr(check, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert time_steps(method, data.streams, recipe, torch.device("cpu")) == (mean, 9, method.size())


def test_an_estimate_is_printed_as_it_is(
    tiny: Callable[..., Recipe], narrow: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "Console", lambda: narrow)
    monkeypatch.setattr(check, "time_steps", lambda *_: (0.25, 1000, 4321))
    monkeypatch.setattr(check, "_needed", lambda *_: ({}, 60.0))
    monkeypatch.setattr(check, "_memory", lambda _: "much")
    assert check_recipe(tiny("run.device=cpu")) == []
    text = narrow.file.getvalue()  # type: ignore[attr-defined]
    said = " ".join(line.strip() for line in text.splitlines())
    assert "4,321 parameters; 1,000 steps at 250 ms" in said
    assert "about 4 min 10 s on cpu, without evaluation; much" in said
    assert said.endswith("with the runs it needs about 5 min 10 s")


def test_a_problem_is_printed_as_it_is(narrow: Console) -> None:
    _print_problems([Problem("error", "unreadable", "my [b] 12.png", "is damaged, all of it")], narrow)
    assert narrow.file.getvalue() == "error: my [b] 12.png: is damaged, all of it\n"  # type: ignore[attr-defined]


def test_a_needed_run_that_is_trained_takes_no_time(
    tiny: Callable[..., Recipe], narrow: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether it is named by its folder, or by a recipe whose run is measured already."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "model.json").touch()
    opened = SimpleNamespace(method="opened")
    monkeypatch.setattr(check, "open_run", lambda _, device: opened if device == "cpu" else None)
    recipe = tiny().model_copy(update={"needs": {"first": Need(recipe=str(there))}})
    assert check._needed(recipe, torch.device("cpu"), Console(quiet=True)) == ({"first": "opened"}, 0.0)
    done = tiny(folder="done")
    Path(done.run.folder).mkdir()
    (Path(done.run.folder) / "measure.json").touch()
    monkeypatch.setattr(check, "needed_recipe", lambda *_: done)
    monkeypatch.setattr(check, "_untrained", lambda *_: ("fresh", 5.0))
    named = tiny().model_copy(update={"needs": {"first": Need(recipe="folder"), "[b]": Need(recipe="folder")}})
    assert check._needed(named, torch.device("cpu"), narrow) == ({"first": "opened", "[b]": "opened"}, 0.0)
    assert "needs.[b]: " in narrow.file.getvalue().replace("\n", " ")  # type: ignore[attr-defined]
    (Path(done.run.folder) / "measure.json").unlink()
    assert check._needed(named, torch.device("cpu"), narrow) == ({"first": "fresh", "[b]": "fresh"}, 10.0)


def test_what_is_needed_first_is_added_to_what_it_needs_itself(
    tiny: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "time_steps", lambda *_: (0.5, 10, 1))
    monkeypatch.setattr(check, "_needed", lambda *_: ({}, 3.0))
    assert check._untrained(tiny(), torch.device("cpu"), Console(quiet=True))[1] == 8.0
