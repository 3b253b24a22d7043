"""The one loop: batches, schedule, evaluation, checkpoints, log. Who needs another writes one with the pieces."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from evenhand import parallel
from evenhand.data.loader import Batch, Loader
from evenhand.data.samplers import mix
from evenhand.data.stream import Streams
from evenhand.errors import UserError
from evenhand.methods.protocol import Listens, Method, Progress
from evenhand.run import checkpoint
from evenhand.run.log import Log, Meter
from evenhand.run.settings import Run

LOWER_IS_BETTER = {"loss", "ece", "fid", "kid", "label_kl"}


def fit(method: Method, streams: Streams, run: Run, *, digest: str = "") -> Path:
    """Train ``method`` on ``streams``; returns the run's folder with ``last.pt`` and ``best.pt``.

    Every random number is a function of (seed, step), so ``run.resume`` continues bit for bit. ``digest`` names
    the recipe: a checkpoint of another one is refused.
    """
    folder = Path(run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if run.threads:
        torch.set_num_threads(run.threads)
    device = parallel.local_device(run.device)
    loaders = {
        name: Loader(_stream(streams, feed.stream), feed, seed=run.seed, device=device, workers=run.workers)
        for name, feed in method.feeds(streams).items()
    }
    epoch_steps = next(iter(loaders.values())).steps_per_epoch
    total = run.steps if run.steps is not None else math.ceil(run.epochs * epoch_steps)
    keeper = _Keeper(method, streams, run, folder, digest, total)
    start = keeper.resume() if run.resume else keeper.begin()
    every = _steps(run.eval_every, epoch_steps)
    meter, seen, since = Meter(), 0, time.perf_counter()
    with (
        _own_randomness(),
        _polite_stop() as asked,
        Log(folder, total, progress=run.progress, tensorboard=run.tensorboard, label=folder.name) as log,
    ):
        log.forget_after(start)
        note = ""
        if total == 0:
            keeper.judge(0)
            keeper.save(0)
        for step, batch in enumerate(_zip({n: x.iterate(start, total) for n, x in loaders.items()}), start):
            at = Progress(step, epoch_steps, total)
            method.schedule(at)
            torch.manual_seed(mix(run.seed, "step", step, parallel.rank()))
            meter.add(method.update(batch))
            seen += sum(len(part.indices) for part in batch.values())
            done = step + 1
            if done % run.log_every == 0 or done % every == 0 or done == total:
                values = _checked(meter.read(), done, folder)
                rate = seen * parallel.world() / (time.perf_counter() - since)
                log.row("train", done, done / epoch_steps, {**values, "images_per_second": rate})
                note = " ".join(f"{name} {value:.3f}" for name, value in values.items() if name == "loss") or note
                log.advance(done, rate, note)
                seen, since = 0, time.perf_counter()
            if done % every == 0 or done == total:
                measured = keeper.judge(done)
                for split, values in measured.items():
                    log.row(split, done, done / epoch_steps, values)
                keeper.save(done)
                since = time.perf_counter()
            if run.keep_every and done % _steps(run.keep_every, epoch_steps) == 0:
                keeper.keep(done, round(done / epoch_steps))
            if done < total and (asked() or done - start == run.stop_after):
                keeper.save(done)
                log.row("event", done, done / epoch_steps, {"event": "paused; --resume continues"})
                if asked():
                    raise KeyboardInterrupt(f"{folder} is saved at step {done}; --resume continues")
                break
    parallel.barrier()
    return folder


class _Keeper:
    """Evaluates, remembers the best, and writes checkpoints."""

    def __init__(
        self, method: Method, streams: Streams, run: Run, folder: Path, digest: str, total: int
    ) -> None:
        self.method, self.streams, self.run, self.folder = method, streams, run, folder
        self.digest, self.total = digest, total
        self.rule, _, self.metric = run.select.partition(":")
        self.best = -math.inf
        self.judged = {"val": "val", "oracle": "test"}.get(self.rule)
        if self.judged is not None and self.judged not in streams:
            raise UserError(
                f"run.select = '{run.select}' needs a '{self.judged}' stream; "
                "carve one with data.val_per_class, or use select = 'last'"
            )

    def begin(self) -> int:
        if (self.folder / "last.pt").exists():
            raise UserError(f"{self.folder} already holds a run: add --resume, or choose another run.folder")
        parallel.barrier()
        return 0

    def resume(self) -> int:
        path = self.folder / "last.pt"
        if not path.exists():
            return 0
        content = checkpoint.load(path)
        if content["digest"] != self.digest:
            raise UserError(
                f"{path} belongs to another recipe (digest {content['digest'] or 'none'}, this one is {self.digest}); "
                "choose another run.folder, or train with the recipe.toml in it"
            )
        self.method.load_state(content["method"])
        self.best = content["best"]
        return int(content["step"])

    def judge(self, step: int) -> dict[str, dict[str, float]]:
        """Measure the streams that selection or feedback may see; the test split only under 'oracle'."""
        measured: dict[str, dict[str, float]] = {}
        for split in ["val"] * ("val" in self.streams) + ["test"] * (self.rule == "oracle"):
            measured[split] = self.method.judge(self.streams[split], batch=self.run.eval_batch)
        if isinstance(self.method, Listens) and "val" in measured:
            self.method.feedback(measured["val"], self.streams)
        if self.judged is not None:
            values = measured[self.judged]
            if self.metric not in values:
                raise UserError(f"run.select names '{self.metric}'; measured are: {', '.join(sorted(values))}")
            score = -values[self.metric] if self.metric in LOWER_IS_BETTER else values[self.metric]
            if score > self.best:
                self.best = score
                self._write("best.pt", step)
        return measured

    def save(self, step: int) -> None:
        self._write("last.pt", step)

    def keep(self, step: int, epoch: int) -> None:
        """A checkpoint that stays, for studies over training."""
        self._write(f"epoch-{epoch:04d}.pt", step)

    def _write(self, name: str, step: int) -> None:
        if not parallel.is_writer():
            return
        state = self.method.state()
        if not checkpoint.is_finite(state):
            raise UserError(_diverged("weights are not finite", step, self.folder))
        content = {
            "method": state, "step": step, "total": self.total, "best": self.best, "digest": self.digest,
        }  # fmt: skip
        checkpoint.save(self.folder / name, content)


def _zip(parts: dict[str, Iterator[Batch]]) -> Iterator[dict[str, Batch]]:
    for batches in zip(*parts.values(), strict=True):
        yield dict(zip(parts, batches, strict=True))


def _stream(streams: Streams, name: str) -> Any:
    if name not in streams:
        raise UserError(f"the method needs a stream '{name}'; the data give: {', '.join(sorted(streams))}")
    return streams[name]


def _steps(epochs: float, epoch_steps: int) -> int:
    return max(1, round(epochs * epoch_steps))


def _checked(values: dict[str, float], step: int, folder: Path) -> dict[str, float]:
    for name, value in values.items():
        if not math.isfinite(value):
            raise UserError(_diverged(f"{name} is {value}", step, folder))
    return values


def _diverged(what: str, step: int, folder: Path) -> str:
    kept = "the last good checkpoint is kept in last.pt" if (folder / "last.pt").exists() else "nothing was saved yet"
    return f"training diverged by step {step} ({what}); {kept}. Lower the learning rate or set a gradient clip"


@contextmanager
def _polite_stop() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM finishes the step, saves and interrupts; the second one stops at once."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread() or parallel.world() > 1:
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: object) -> None:
        signals.append(number)
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Networks' dropout draws from the global generators: lend them, and give them back as they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield


