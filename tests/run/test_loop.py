"""The loop on a scripted method, whose every evaluation is known beforehand."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.sources.files import Files
from evenhand.data.sources.source import Memory, Source
from evenhand.data.stream import Stream, Streams
from evenhand.data.views.view import OfSamples
from evenhand.errors import UserError
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.run import checkpoint, fit, loop
from evenhand.run.checkpoints import Checkpoints
from evenhand.run.settings import Run
from helpers import save, toy_data

SCRIPT = {2: 0.25, 4: 0.75, 6: 0.5}  # steps done -> share of the samples predicted right
K = 4


def stream(name: str, size: int = 8) -> Stream:
    """Samples that carry their label and their number in two pixels."""
    labels = torch.arange(size) % K
    images = torch.zeros(size, 1, 2, 2, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = labels.byte(), torch.arange(size).byte()
    return Stream(Memory(images), labels, tuple("abcd"), name)


class Forbidden(Source):
    """A source that nobody may open."""

    def __len__(self) -> int:
        return 8

    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> Tensor:
        raise AssertionError("the test split was opened")

    def name(self, row: int) -> str:
        return str(row)

    def identity(self, *, dated: bool = False) -> list[bytes]:
        return []


class Scripted(Recogniser):
    """Counts its steps, and at each evaluation is right on the scripted share of the samples."""

    def __init__(self, script: dict[int, float] | None = None) -> None:
        self.script, self.data = script or SCRIPT, toy_data("abcd")
        self.weight = torch.zeros(3)
        self.step = 0
        self.progress: list[Progress] = []
        self.batches: list[list[int]] = []
        self.sizes: list[int] = []

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        return {"labelled": Feed("labelled", 4, (OfSamples(lambda x, _: x.float()),))}

    def schedule(self, at: Progress) -> None:
        self.progress.append(at)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        self.step += 1
        self.weight += torch.rand(3)
        self.batches.append(batch["labelled"].indices.tolist())
        return {"loss": torch.tensor(1.0 / self.step), "noise": self.weight.sum()}

    def predict(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        label, number = x[:, 0, 0, 0].long(), x[:, 0, 0, 1].long()
        right = number < 8 * self.script.get(self.step, 0.0)
        return 3 * torch.eye(K)[torch.where(right, label, (label + 1) % K)]

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "weight": self.weight}

    def load_state(self, state: dict[str, Any]) -> None:
        self.step, self.weight = state["step"], state["weight"]


def streams(*names: str) -> Streams:
    return {name: stream(name) for name in ("labelled", *names)}


def run(folder: Path, **settings: Any) -> Run:
    return Run(**{"folder": str(folder), "epochs": 3, "log_every": 1, "progress": False, **settings})


def rows(folder: Path, kind: str = "") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [row for row in found if kind in ("", row["kind"])]


def step_of(folder: Path, name: str = "last.pt") -> int:
    content = checkpoint.load(folder / name)
    assert content["step"] == content["method"]["step"]
    return int(content["step"])


def one_line(caught: pytest.ExceptionInfo[UserError]) -> str:
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# what a run leaves


def test_log_and_checkpoint_of_a_run(tmp_path: Path) -> None:
    method = Scripted()
    assert fit(method, streams("val"), run(tmp_path), digest="d") == tmp_path
    train = rows(tmp_path, "train")
    assert [row["step"] for row in train] == [1, 2, 3, 4, 5, 6]
    assert [row["epoch"] for row in train] == [0.5, 1, 1.5, 2, 2.5, 3]
    assert [row["loss"] for row in train] == pytest.approx([1 / s for s in range(1, 7)])
    assert all(row["images_per_second"] > 0 for row in train)
    val = rows(tmp_path, "val")
    assert [(row["step"], row["accuracy"]) for row in val] == list(SCRIPT.items())
    assert {"mean_recall", "min_recall", "g_mean", "h_mean", "min_coverage", "ece", "loss"} <= val[0].keys()
    last = checkpoint.load(tmp_path / "last.pt")
    assert (last["step"], last["total"], last["digest"]) == (6, 6, "d")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.pt", "log.jsonl"]
    assert [(at.step, at.epoch, at.total_steps) for at in method.progress] == [(s, s // 2, 6) for s in range(6)]
    assert [sorted(method.batches[s] + method.batches[s + 1]) for s in (0, 2, 4)] == [list(range(8))] * 3


def test_log_rows_are_means_since_the_last_row(tmp_path: Path) -> None:
    fit(Scripted(), streams(), run(tmp_path, log_every=4, eval_every=3))
    assert [(r["step"], r["loss"]) for r in rows(tmp_path)] == [
        (4, pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)),
        (6, pytest.approx((1 / 5 + 1 / 6) / 2)),
    ]


def test_steps_override_epochs_and_evaluation_follows_its_own_clock(tmp_path: Path) -> None:
    fit(Scripted({4: 0.5, 5: 0.5}), streams("val"), run(tmp_path, steps=5, eval_every=2))
    assert [row["step"] for row in rows(tmp_path, "val")] == [4, 5]
    assert step_of(tmp_path) == 5


class Slow(Scripted):
    """A step takes two seconds of a clock, a look at validation a hundred."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 7.0

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        self.clock += 2
        return super().update(batch)

    def predict(self, x: Tensor) -> Tensor:
        self.clock += 100
        return super().predict(x)


class Two:
    """The process group as the loop sees it, with another process beside this one."""

    def __getattr__(self, name: str) -> Any:
        return (lambda: 2) if name == "world" else getattr(parallel, name)


@pytest.mark.parametrize("world", [1, 2])
def test_a_rate_is_of_training_alone_and_of_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    method = Slow()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: method.clock))
    if world == 2:
        monkeypatch.setattr(loop, "parallel", Two())
    fit(method, streams("val"), run(tmp_path, log_every=3, eval_every=2, steps=7))
    found = [(row["step"], row["images_per_second"]) for row in rows(tmp_path, "train")]
    assert found == [(step, pytest.approx(world * 4 / 2)) for step in (3, 4, 6, 7)]


def test_a_run_in_another_thread_goes_to_its_end(tmp_path: Path) -> None:
    """Signals are the main thread's."""
    thread = threading.Thread(target=fit, args=(Scripted(), streams(), run(tmp_path)))
    thread.start()
    thread.join(60)
    assert step_of(tmp_path) == 6


def test_a_part_of_a_step_is_a_step(tmp_path: Path) -> None:
    fit(Scripted(), streams(), run(tmp_path, epochs=1.1, eval_every=0.1))
    assert (step_of(tmp_path), checkpoint.load(tmp_path / "last.pt")["epoch"]) == (3, 1.5)


def test_kept_checkpoints_are_named_by_whole_epochs_or_by_parts(tmp_path: Path) -> None:
    for every, names in ((1, ["epoch-0001.pt"]), (0.5, ["epoch-0000.500.pt", "epoch-0001.000.pt"])):
        fit(Scripted(), streams(), run(tmp_path / str(every), epochs=1, keep_every=every))
        assert sorted(path.name for path in (tmp_path / str(every)).glob("epoch-*.pt")) == names


def test_only_an_evaluation_of_this_very_step_is_told_again(tmp_path: Path) -> None:
    kept = Checkpoints(Scripted({2: 0.5}), streams("val"), run(tmp_path), tmp_path, "", 6, 2)
    assert kept.measured(-1) == {}
    kept.method.step = 2  # type: ignore[attr-defined]
    measured = kept.evaluate(2)
    assert measured["val"]["accuracy"] == 0.5
    assert kept.measured(2) == measured
    assert kept.measured(3) == {}
    assert kept.begin() == 0


@pytest.mark.parametrize(("step", "told"), [(2, 0), (3, 1), (6, 1)])
def test_troubles_are_told_from_the_middle_on_and_once(tmp_path: Path, step: int, told: int) -> None:
    kept = Checkpoints(Scripted(), streams("val"), run(tmp_path), tmp_path, "", 6, 2)
    kept.method.task = SimpleNamespace(troubles=lambda *_: {"kind": "said"})  # type: ignore[misc, assignment]
    assert len(kept.troubles(step, {})) == told
    assert kept.troubles(step, {}) == []


def test_no_epochs_still_leaves_a_judged_checkpoint(tmp_path: Path) -> None:
    method = Scripted({0: 0.5})
    fit(method, streams("val"), run(tmp_path, epochs=0, select="val:accuracy"))
    assert step_of(tmp_path) == step_of(tmp_path, "best.pt") == 0
    content = checkpoint.load(tmp_path / "last.pt")
    assert (content["total"], content["best"]) == (0, 0.5)
    assert method.batches == []


def test_kept_checkpoints(tmp_path: Path) -> None:
    fit(Scripted(), streams(), run(tmp_path, keep_every=1, eval_every=3))
    assert [(p.name, step_of(tmp_path, p.name)) for p in sorted(tmp_path.glob("epoch-*.pt"))] == [
        ("epoch-0001.pt", 2), ("epoch-0002.pt", 4), ("epoch-0003.pt", 6),
    ]  # fmt: skip


def test_checkpoints_kept_within_an_epoch_do_not_replace_each_other(tmp_path: Path) -> None:
    fit(Scripted(), streams(), run(tmp_path, keep_every=0.5, eval_every=3))
    assert sorted(step_of(tmp_path, p.name) for p in tmp_path.glob("epoch-*.pt")) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("fatal", range(1, 14))
def test_trap_18_a_kept_checkpoint_survives_a_kill_after_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fatal: int
) -> None:
    """Two evaluations in the run's three epochs, one of which is also kept; killed after the n-th checkpoint."""
    names = ["epoch-0001.pt", "epoch-0002.pt", "epoch-0003.pt"]
    written: list[str] = []
    save_checkpoint = checkpoint.save

    def killed(path: Path, content: dict[str, Any]) -> None:
        save_checkpoint(path, content)
        written.append(path.name)
        if len(written) == fatal:
            raise SystemExit("killed")

    monkeypatch.setattr(checkpoint, "save", killed)
    settings = {"keep_every": 1, "eval_every": 1, "select": "val:accuracy"}
    try:
        fit(Scripted(), streams("val"), run(tmp_path, **settings))
    except SystemExit:
        fit(Scripted(), streams("val"), run(tmp_path, resume=True, **settings))
    assert [p.name for p in sorted(tmp_path.glob("epoch-*.pt"))] == names
    assert [step_of(tmp_path, name) for name in names] == [2, 4, 6]


def test_tensorboard_file_holds_the_scalars(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    fit(Scripted(), streams("val"), run(tmp_path, tensorboard=True))
    board = accumulators.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in board.Scalars("val/accuracy")] == list(SCRIPT.items())
    assert [e.step for e in board.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]


def test_evaluation_keeps_to_its_batch_size(tmp_path: Path) -> None:
    method = Scripted()
    fit(method, streams("val"), run(tmp_path, eval_batch=3))
    assert method.sizes == [3, 3, 2] * 3


def test_a_method_that_listens_hears_every_validation(tmp_path: Path) -> None:
    """Where it may change its feeds; also after a pause just then."""

    class Listener(Scripted):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[tuple[int, float]] = []

        def refresh(self, at: Progress, streams: Streams) -> None:
            self.heard += [(at.step, at.measured["val"]["accuracy"])] if at.measured else []

    method, again = Listener(), Listener()
    fit(method, streams("val"), run(tmp_path / "whole"))
    assert method.heard == [(2, 0.25), (4, 0.75)]  # nobody steps after the last
    fit(again, streams("val"), run(tmp_path / "paused", stop_after=4))
    fit(again, streams("val"), run(tmp_path / "paused", resume=True))
    assert again.heard == method.heard


@pytest.mark.parametrize(("place", "step"), [("traces", 2), ("refresh", 0), ("feeds", 0), ("update", 0)])
def test_a_warning_is_shown_and_logged_once(tmp_path: Path, place: str, step: int) -> None:
    class Worried(Scripted):
        def __getattribute__(self, name: str) -> Any:
            if name == place:
                warnings.warn("class 'lynx' looks collapsed", stacklevel=1)
            return super().__getattribute__(name)

    with pytest.warns(UserWarning, match="lynx"):
        fit(Worried(), streams("val"), run(tmp_path))
    told = [(row["step"], row["event"], row["warning"]) for row in rows(tmp_path, "event")]
    assert told == [(step, "warning", "class 'lynx' looks collapsed")]
    for resume, stop in ((False, 3), (True, None)):
        with pytest.warns(UserWarning, match="lynx"):
            fit(Worried(), streams("val"), run(tmp_path / "paused", resume=resume, stop_after=stop))
    again = [row for row in rows(tmp_path / "paused", "event") if row["event"] == "warning"]
    assert again == rows(tmp_path, "event")


def test_a_missing_stream_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a stream 'labelled'") as caught:
        fit(Scripted(), {"val": stream("val")}, run(tmp_path))
    one_line(caught)


# randomness


def test_trap_11_global_random_state_neither_matters_nor_changes(tmp_path: Path) -> None:
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        method = Scripted()
        fit(method, streams(), run(tmp_path / str(seed)))
        weights.append(method.weight)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*weights)
    other = Scripted()
    fit(other, streams(), run(tmp_path / "other", seed=1))
    assert not torch.equal(weights[0], other.weight)


# selection


def test_trap_05_best_is_the_best_of_validation(tmp_path: Path) -> None:
    fit(Scripted(), streams("val"), run(tmp_path, select="val:accuracy"))
    assert step_of(tmp_path, "best.pt") == 4
    assert checkpoint.load(tmp_path / "best.pt")["best"] == 0.75
    assert step_of(tmp_path) == 6


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_trap_05_best_stays_the_best_across_resume(tmp_path: Path, stop: int) -> None:
    settings: dict[str, Any] = {"select": "val:accuracy", "resume": True}
    fit(Scripted(), streams("val"), run(tmp_path, stop_after=stop, **settings))
    assert step_of(tmp_path) == stop
    fit(Scripted(), streams("val"), run(tmp_path, **settings))
    assert step_of(tmp_path, "best.pt") == 4
    assert step_of(tmp_path) == 6


def test_trap_05_the_first_evaluation_may_be_the_best(tmp_path: Path) -> None:
    fit(Scripted({2: 1.0, 4: 0.5, 6: 0.5}), streams("val"), run(tmp_path, select="val:mean_recall"))
    assert step_of(tmp_path, "best.pt") == 2


@pytest.mark.parametrize("metric", ["loss", "ece"])
def test_trap_05_of_a_metric_that_should_fall_the_least_is_the_best(tmp_path: Path, metric: str) -> None:
    fit(Scripted(), streams("val"), run(tmp_path, select=f"val:{metric}"))
    val = rows(tmp_path, "val")
    assert step_of(tmp_path, "best.pt") == min(val, key=lambda row: row[metric])["step"] == 4


def test_test_split_stays_closed(tmp_path: Path) -> None:
    closed = {"test": Stream(Forbidden(), torch.arange(8) % K, tuple("abcd"), "test")}
    fit(Scripted(), streams("val") | closed, run(tmp_path / "val", select="val:accuracy"))
    fit(Scripted(), streams() | closed, run(tmp_path / "last"))
    with pytest.raises(AssertionError, match="test split was opened"):
        fit(Scripted(), streams() | closed, run(tmp_path / "oracle", select="oracle:accuracy"))


def test_oracle_selects_on_test_and_says_so_in_the_log(tmp_path: Path) -> None:
    flipped = stream("val").subset(torch.arange(8).flip(0))
    for number, image in enumerate(flipped.samples.samples):  # type: ignore[attr-defined]
        image[0, 0, 1] = 7 - number
    fit(Scripted(), {**streams("test"), "val": flipped}, run(tmp_path, select="oracle:accuracy"))
    assert step_of(tmp_path, "best.pt") == 4
    assert [row["accuracy"] for row in rows(tmp_path, "test")] == list(SCRIPT.values())


def test_selection_without_validation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="val_per_class") as caught:
        fit(Scripted(), streams(), run(tmp_path, select="val:accuracy"))
    one_line(caught)


def test_selection_by_an_unknown_metric_is_refused_before_training(tmp_path: Path) -> None:
    method = Scripted()
    with pytest.raises(UserError, match="mean_recal") as caught:
        fit(method, streams("val"), run(tmp_path, select="val:mean_recal"))
    assert "mean_recall" in one_line(caught)
    assert method.step == 0


# pausing and resuming


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_resumed_run_sees_the_same_batches_and_draws(tmp_path: Path, stop: int) -> None:
    whole, first, rest = Scripted(), Scripted(), Scripted()
    fit(whole, streams("val"), run(tmp_path / "whole"))
    fit(first, streams("val"), run(tmp_path / "parts", stop_after=stop))
    fit(rest, streams("val"), run(tmp_path / "parts", resume=True))
    assert first.batches + rest.batches == whole.batches
    assert torch.equal(rest.weight, whole.weight)
    assert [r["step"] for r in rows(tmp_path / "parts", "train")] == [1, 2, 3, 4, 5, 6]
    assert [r["accuracy"] for r in rows(tmp_path / "parts", "val")] == list(SCRIPT.values())
    assert [r["step"] for r in rows(tmp_path / "parts", "event")] == [stop]


def test_resuming_a_finished_run_trains_nothing(tmp_path: Path) -> None:
    fit(Scripted(), streams("val"), run(tmp_path))
    before = (tmp_path / "log.jsonl").read_text()
    again = Scripted()
    fit(again, streams("val"), run(tmp_path, resume=True))
    assert again.batches == []
    assert again.step == 6
    assert (tmp_path / "log.jsonl").read_text() == before


def test_resume_with_nothing_there_begins(tmp_path: Path) -> None:
    fit(Scripted(), streams(), run(tmp_path, resume=True))
    assert step_of(tmp_path) == 6


def test_trap_18_half_a_line_in_the_log_and_rows_to_be_written_again_are_dropped(tmp_path: Path) -> None:
    fit(Scripted(), streams("val"), run(tmp_path, stop_after=3))
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"kind": "train", "step": 4, "epoch": 2.0, "loss": 9}\n{"kind": "val", "step": 4, "ep')
    fit(Scripted(), streams("val"), run(tmp_path, resume=True))
    found = [(row["kind"], row["step"]) for row in rows(tmp_path)]
    assert len(found) == len(set(found))
    assert [row["loss"] for row in rows(tmp_path, "train")] == pytest.approx([1 / s for s in range(1, 7)])


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    fit(Scripted(), streams(), run(tmp_path))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(UserError, match="--resume") as caught:
        fit(Scripted(), streams(), run(tmp_path))
    assert str(tmp_path) in one_line(caught)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    fit(Scripted(), streams(), run(tmp_path, stop_after=2), digest="one")
    with pytest.raises(UserError, match="another recipe") as caught:
        fit(Scripted(), streams(), run(tmp_path, resume=True), digest="two")
    assert "one" in one_line(caught)
    assert step_of(tmp_path) == 2


def test_a_damaged_checkpoint_is_refused_and_left_alone(tmp_path: Path) -> None:
    fit(Scripted(), streams(), run(tmp_path, stop_after=2))
    (tmp_path / "last.pt").write_bytes((tmp_path / "last.pt").read_bytes()[:500])
    with pytest.raises(UserError, match="damaged") as caught:
        fit(Scripted(), streams(), run(tmp_path, resume=True))
    one_line(caught)
    assert (tmp_path / "last.pt").stat().st_size == 500


def test_a_damaged_checkpoint_names_the_whole_one_and_the_way_on(tmp_path: Path) -> None:
    """The advice is followed to the letter, and training ends as it would have."""
    fit(Scripted(), streams(), run(tmp_path / "whole"))
    folder = tmp_path / "a run"
    fit(Scripted(), streams(), run(folder, stop_after=5, keep_every=1))
    (folder / "last.pt").write_bytes((folder / "last.pt").read_bytes()[:500])
    (folder / "epoch-0001.pt").write_bytes(b"")
    with pytest.raises(UserError, match=r"epoch-0002\.pt beside it is whole") as caught:
        fit(Scripted(), streams(), run(folder, resume=True))
    command, _, then = one_line(caught).partition("from that one, ")[2].partition(", then ")
    assert then == "--resume"
    subprocess.run(command, shell=True, check=True)
    fit(Scripted(), streams(), run(folder, resume=True))
    mine, theirs = (checkpoint.load(path / "last.pt")["method"]["weight"] for path in (folder, tmp_path / "whole"))
    assert torch.equal(mine, theirs)


def test_a_damaged_best_checkpoint_names_the_last_one(tmp_path: Path) -> None:
    fit(Scripted(), streams("val"), run(tmp_path, select="val:accuracy"))
    (tmp_path / "best.pt").write_bytes(b"junk")
    with pytest.raises(UserError, match=r"last.pt beside it is whole \(step 6\)") as caught:
        checkpoint.load(tmp_path / "best.pt")
    assert "--resume" not in one_line(caught)
    (tmp_path / "last.pt").write_bytes(b"junk")
    with pytest.raises(UserError, match="no other checkpoint beside it is whole"):
        checkpoint.load(tmp_path / "best.pt")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00\x01", b"[1, 2]\n", b"5\n", b'{"kind": "train"}\n', b'{"step": "4"}\n', b"nonsense\n{}\n",
                b"[" * 100_000 + b"\n"],
)  # fmt: skip
def test_a_log_that_is_not_one_is_one_line_and_left_alone(tmp_path: Path, content: bytes) -> None:
    fit(Scripted(), streams(), run(tmp_path, stop_after=3))
    (tmp_path / "log.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=r"log\.jsonl.*move it away, and --resume") as caught:
        fit(Scripted(), streams(), run(tmp_path, resume=True))
    one_line(caught)
    assert (tmp_path / "log.jsonl").read_bytes() == content
    (tmp_path / "log.jsonl").unlink()
    fit(Scripted(), streams(), run(tmp_path, resume=True))
    assert step_of(tmp_path) == 6


def test_threads_beyond_reason_are_one_line(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    with pytest.raises(UserError, match=r"run\.threads = 1000 is far more than this machine's \d+ cores") as caught:
        fit(Scripted(), streams(), run(tmp_path, threads=1000))
    one_line(caught)
    assert torch.get_num_threads() == before


class Signalled(Scripted):
    """Sends itself a signal during its third step, and two during the fifth."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        for _ in range({3: 1, 5: 2}.get(self.step + 1, 0)):
            signal.raise_signal(self.number)  # two sent to the process might arrive as one
        return super().update(batch)


@pytest.mark.parametrize(
    ("number", "recipe", "way_on"),
    [(signal.SIGINT, True, r"evenhand train \S+ --resume"), (signal.SIGTERM, False, "the same call with run.resume")],
)
def test_a_signal_finishes_the_step_and_saves(
    tmp_path: Path, number: signal.Signals, recipe: bool, way_on: str
) -> None:
    before = signal.getsignal(number)
    if recipe:
        (tmp_path / "recipe.toml").touch()
    with pytest.raises(KeyboardInterrupt, match=f"saved at step 3; to go on: {way_on}$"):
        fit(Signalled(number), streams(), run(tmp_path, eval_every=3))
    assert step_of(tmp_path) == 3
    assert rows(tmp_path)[-1]["event"].startswith("paused")
    assert signal.getsignal(number) is before
    fit(Scripted(), streams(), run(tmp_path, resume=True))
    assert step_of(tmp_path) == 6


def test_the_second_signal_stops_at_once(tmp_path: Path) -> None:
    method = Signalled(signal.SIGINT)
    method.step = 3
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            fit(method, streams(), run(tmp_path, eval_every=3))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert "saved" not in str(caught.value)
    assert not (tmp_path / "last.pt").exists()


# divergence


class Poisoned(Scripted):
    """From the fourth step on its loss, its weights, or both, are not finite."""

    def __init__(self, *what: str) -> None:
        super().__init__()
        self.what = what

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        scalars = super().update(batch)
        if self.step >= 4 and "weights" in self.what:
            self.weight = self.weight * float("inf")
        if self.step >= 4 and "loss" in self.what:
            scalars["loss"] = torch.tensor(float("nan"))
        return scalars

    def predict(self, x: Tensor) -> Tensor:
        return super().predict(x) + 0 * self.weight.sum()


@pytest.mark.parametrize("what", [("loss",), ("weights",), ("loss", "weights")])
@pytest.mark.parametrize("splits", [(), ("val",)])
@pytest.mark.parametrize("log_every", [1, 50])
def test_divergence_is_one_line_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, what: tuple[str, ...], splits: tuple[str, ...], log_every: int
) -> None:
    with pytest.raises(UserError, match="diverged by step 4") as caught:
        fit(Poisoned(*what), streams(*splits), run(tmp_path, log_every=log_every))
    assert "learning rate" in one_line(caught)
    assert "last.pt" in one_line(caught)
    assert step_of(tmp_path) == 2
    assert checkpoint.is_finite(checkpoint.load(tmp_path / "last.pt"))
    told = rows(tmp_path, "event")[-1]
    assert (told["event"], told["reason"]) == ("failed", str(caught.value))
    fit(Scripted(), streams(*splits), run(tmp_path, log_every=log_every, resume=True))
    assert rows(tmp_path, "event") == []


def test_divergence_before_the_first_checkpoint_says_that_nothing_was_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing was saved"):
        fit(Poisoned("loss"), streams(), run(tmp_path, eval_every=3))
    assert not (tmp_path / "last.pt").exists()


def test_a_full_disk_stops_the_run_in_one_line_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def nearly_full(content: dict[str, Any], file: Path) -> None:
        if content["step"] > 2:
            raise OSError(28, "No space left on device")
        save(content, file)

    monkeypatch.setattr(torch, "save", nearly_full)
    with pytest.raises(UserError, match="disk full") as caught:
        fit(Scripted(), streams(), run(tmp_path))
    one_line(caught)
    assert step_of(tmp_path) == 2
    monkeypatch.undo()
    fit(Scripted(), streams(), run(tmp_path, resume=True))
    assert [row["step"] for row in rows(tmp_path, "train")] == [1, 2, 3, 4, 5, 6]


# feeds that change


class Picky(Scripted):
    """Draws only from the sample its step says, beginning with number 0; a new feed every second step."""

    def __init__(self) -> None:
        super().__init__()
        self.only = 0

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        weights = torch.zeros(len(streams["labelled"]))
        weights[self.only] = 1
        return {"labelled": Feed("labelled", 4, (OfSamples(lambda x, _: x.float()),), weights)}

    def refresh(self, at: Progress, streams: Streams) -> dict[str, Feed] | None:
        if at.step % 2 or at.step == 0:
            return None
        self.only = at.step
        return self.feeds(streams)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "only": self.only}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.only = state["only"]


def files(tmp_path: Path) -> Streams:
    """Images on disk, so that loader processes decode them."""
    paths = [save(tmp_path / f"{i}.png", side=8, value=i) for i in range(8)]
    return {"labelled": Stream(Files(paths, size=8), torch.arange(8) % K, tuple("abcd"), "labelled")}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_changed_feed_reaches_the_loader_processes(tmp_path: Path, workers: int) -> None:
    method = Picky()
    fit(method, files(tmp_path), run(tmp_path / "run", steps=6, workers=workers))
    assert method.batches == [[0] * 4, [0] * 4, [2] * 4, [2] * 4, [4] * 4, [4] * 4]


@pytest.mark.parametrize("pause", [1, 2, 3, 5])
def test_a_resumed_run_is_fed_as_it_was_left(tmp_path: Path, pause: int) -> None:
    streams = files(tmp_path)
    whole, first, second = Picky(), Picky(), Picky()
    fit(whole, streams, run(tmp_path / "whole", steps=6, workers=0))
    fit(first, streams, run(tmp_path / "paused", steps=6, workers=0, stop_after=pause))
    fit(second, streams, run(tmp_path / "paused", steps=6, workers=0, resume=True))
    assert first.batches + second.batches == whole.batches
    assert torch.equal(second.weight, whole.weight)


def test_a_feed_may_bring_a_stream_of_its_own(tmp_path: Path) -> None:
    class Growing(Scripted):
        def refresh(self, at: Progress, streams: Streams) -> dict[str, Feed] | None:
            few = streams["labelled"].subset(torch.tensor([6, 7]), "few")
            return {"labelled": Feed(few, 4, (OfSamples(lambda x, _: x.float()),))} if at.step == 2 else None

    method = Growing()
    fit(method, streams(), run(tmp_path, steps=4))
    assert [sorted(set(batch)) for batch in method.batches[2:]] == [[0, 1], [0, 1]]
    assert len(method.batches[0]) == 4
