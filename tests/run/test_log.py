"""What is logged between two readings."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from evenhand import parallel
from evenhand.run import log as log_module
from evenhand.run.log import Log, Meter


def test_means_over_the_steps_since_the_last_reading() -> None:
    meter = Meter()
    for value in (1.0, 3.0):
        meter.add({"loss": torch.tensor(value), "rate": torch.tensor(0.5)})
    assert meter.read() == {"loss": 2.0, "rate": 0.5}
    assert meter.read() == {}
    for told in ({"loss": 1.0, "r1": 6.0}, {"loss": 2.0}, {"loss": 3.0}):  # what comes now and then is not diluted
        meter.add({name: torch.tensor(value) for name, value in told.items()})
    assert meter.read() == {"loss": 2.0, "r1": 6.0}


def test_scalars_of_a_device_and_of_the_cpu_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss lives where the network is, a schedule's value on the CPU; "meta" stands in for a GPU."""
    seen = []
    monkeypatch.setattr(parallel, "mean", lambda x: seen.append(x.device.type) or torch.ones(x.shape))
    meter = Meter()
    meter.add({"loss": torch.ones((), device="meta"), "reversal": torch.tensor(0.5)})
    assert set(meter.read()) == {"loss", "reversal"}
    assert seen == ["meta"]


def test_a_warning_is_printed_as_it_is_and_told_in_the_log(
    tmp_path: Path, narrow: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "Console", lambda **_: narrow)
    with Log(tmp_path, 10, progress=False, tensorboard=False, label="run") as log:
        log.warn(3, 0.123456, "class [red] has 12 samples")
    assert narrow.file.getvalue().strip() == "warning at step 3: class [red] has 12 samples"  # type: ignore[attr-defined]
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {
        "kind": "event", "step": 3, "epoch": 0.1235, "event": "warning", "warning": "class [red] has 12 samples",
    }  # fmt: skip


def test_a_warning_is_heard_whatever_ran_before_and_once_in_a_run(tmp_path: Path) -> None:
    """Python passes over what it has said: the second run of a process would have another diary than the first."""

    def warn() -> None:
        warnings.warn("class 'ant' is hardly drawn", stacklevel=1)

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            with Log(tmp_path / name, 10, progress=False, tensorboard=False, label="run") as log:
                for step in (5, 10):
                    with log.noting(step, 0.5):
                        warn()
    for name in ("a", "b"):
        (row,) = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        assert (row["step"], row["warning"]) == (5, "class 'ant' is hardly drawn")
    assert len(heard) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="loader processes are forked on POSIX alone")
def test_a_forked_process_writes_no_rows_of_its_own(tmp_path: Path) -> None:
    with Log(tmp_path, 10, progress=False, tensorboard=False, label="run") as log, log.noting(1, 0.5):
        if not (child := os.fork()):
            try:
                warnings.warn("a picture is truncated", stacklevel=1)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert not (tmp_path / "log.jsonl").exists()


def test_the_bar_is_drawn_beside_what_is_printed_by_the_writing_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path, 10, progress=True, tensorboard=False, label="run")
    assert (log.bar.disable, log.bar.console.stderr, log.board) == (False, True, None)
    (task,) = log.bar.tasks
    assert (task.description, task.total) == ("run", 10)
    assert Log(tmp_path, 10, progress=False, tensorboard=False, label="run").bar.disable
    monkeypatch.setattr(parallel, "is_writer", lambda: False)
    other = Log(tmp_path, 10, progress=True, tensorboard=True, label="run")
    assert (other.bar.disable, other.board) == (True, None)
    other.row("train", 1, 1.0, {})
    assert not (tmp_path / "log.jsonl").exists()


def test_progress_is_steps_and_a_rate_that_is_known(tmp_path: Path) -> None:
    log = Log(tmp_path, 10, progress=False, tensorboard=False, label="run")
    log.advance(4, 1234.4, "loss 0.5")
    (task,) = log.bar.tasks
    assert (task.completed, task.fields) == (4, {"rate": "1,234 img/s", "note": "loss 0.5"})
    log.advance(5, float("inf"), "")
    assert log.bar.tasks[0].fields == {"rate": "", "note": ""}


def test_rows_after_the_step_to_resume_from_are_forgotten_and_so_are_failures(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"step": 1}, {"step": 2, "event": "warning", "warning": "w"}, {"step": 2, "event": "failed"}, {"step": 3},
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 1, "half')
    log = Log(tmp_path, 10, progress=False, tensorboard=False, label="run")
    assert log.at is None
    log.forget_after(2)
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == rows[:2]
    assert (log.noted, log.at) == ({"w"}, (2, 0.0))
