"""A signal to one of several processes saves and stops all of them, and the run goes on from there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import evenhand
from evenhand.run import checkpoint
from helpers import save


def start(place: Path, *words: str) -> list[subprocess.Popen[str]]:
    """The command in two processes, as torchrun starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(evenhand.__file__).parents[1]),
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, "-m", "evenhand", *words], cwd=place, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_process_stops_all_and_the_run_resumes(
    tmp_path: Path, tiny_text: str, number: signal.Signals
) -> None:
    (tmp_path / "tiny.toml").write_text(tiny_text.replace("epochs = 3\n", "steps = 100000\neval_every = 1000\n"))
    log = tmp_path / "run" / "log.jsonl"
    both = start(tmp_path, "train", "tiny.toml", "--set", "run.folder=run")
    try:
        until = time.monotonic() + 120
        while not (log.exists() and log.read_text().count("\n") > 5):
            assert time.monotonic() < until, "training did not begin"
            assert all(process.poll() is None for process in both), both[0].communicate()[0]
            time.sleep(0.1)
        both[1].send_signal(number)
        said = [process.communicate(timeout=300)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [130, 130], said
    step = checkpoint.load(tmp_path / "run" / "last.pt")["step"]
    assert step % 10 == 0
    assert 0 < step < 100_000
    again = start(tmp_path, "train", "tiny.toml", "--set", "run.folder=run", "--resume", "--set", "run.stop_after=3")
    said = [process.communicate(timeout=300)[0] for process in again]
    assert [process.returncode for process in again] == [0, 0], said
    assert checkpoint.load(tmp_path / "run" / "last.pt")["step"] == step + 3
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, step + 4))


FAULTY = """
import multiprocessing, sys
from evenhand.cli import app
from evenhand.data.sources.files import Files
from evenhand.methods import method_class

where = sys.argv.pop(1)
owner = Files if where == "fetch" else method_class("classifier")
sound = getattr(owner, where)

def faulty(*given):
    if where == "fetch" and multiprocessing.parent_process() is None:
        return sound(*given)
    raise RuntimeError("a fault of our own")

setattr(owner, where, faulty)
app()
"""


@pytest.mark.parametrize("where", ["update", "predict", "fetch"])
def test_an_error_of_ours_ends_the_run_and_its_workers(tmp_path: Path, where: str) -> None:
    """In the step, in the evaluation, and in a decoding process itself."""
    recipe = """
[data]
set = "photos"
size = 72
val_share = 0.5

[method]
name = "classifier"
batch = 4
net = { name = "small-cnn", width = 2 }

[run]
steps = 40
eval_every = 0.1
workers = 2
threads = 1
progress = false
folder = "run"
"""
    (tmp_path / "mine.toml").write_text(recipe)
    for i in range(300):
        save(tmp_path / "photos" / "train" / "ab"[i % 2] / f"{i}.png", side=80, value=i % 250)
    env = {**os.environ, "PYTHONPATH": str(Path(evenhand.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", FAULTY, where, "train", "mine.toml"],
        cwd=tmp_path, env=env, text=True, capture_output=True, timeout=30,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "RuntimeError: a fault of our own" in ended.stderr
