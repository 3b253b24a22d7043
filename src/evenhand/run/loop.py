"""The one loop: batches, schedule, evaluation, checkpoints, log. Who needs another writes one with the pieces."""

from __future__ import annotations

import math
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import torch

from evenhand import locks, parallel
from evenhand.data.loader import Batch, Feed, Loader
from evenhand.data.stream import Streams, decoded_by
from evenhand.errors import Stopped, UserError
from evenhand.methods.protocol import Method, Progress
from evenhand.randomness import mix, reseed
from evenhand.run.checkpoints import Checkpoints, diverged
from evenhand.run.log import Log, Meter
from evenhand.run.settings import Run


def fit(method: Method, streams: Streams, run: Run, *, digest: str = "") -> Path:
    """Train ``method`` on ``streams``; returns the run's folder with ``last.pt``, and ``best.pt`` if one is selected.

    Every random number is a function of (seed, step), so ``run.resume`` continues bit for bit. ``digest`` names
    the recipe: a checkpoint of another one is refused, and so is a folder that another process trains in.
    """
    with locks.held(Path(run.folder), wait=False, again=True):
        return _fit(method, streams, run, Path(run.folder), digest)


def _fit(method: Method, streams: Streams, run: Run, folder: Path, digest: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if run.threads:
        use_threads(run.threads)
    streams = decoded_by(streams, run.workers)
    opened = partial(_open, streams=streams, run=run, device=parallel.local_device(run.device))
    # An epoch is a pass over the first feed as a fresh method asks for it, also after a resume with other feeds.
    epoch_steps = next(iter(opened(method.feeds(streams)).values())).steps_per_epoch
    total = run.steps if run.steps is not None else math.ceil(run.epochs * epoch_steps)
    kept = Checkpoints(method, streams, run, folder, digest, total, epoch_steps)
    start = kept.resume() if run.resume else kept.begin()
    every = _steps(run.eval_every, epoch_steps)
    batches: Iterator[dict[str, Batch]] | None = None
    meter, seen, since, note = Meter(), 0, time.perf_counter(), ""
    with (
        _own_randomness(),
        _polite_stop() as asked,
        Log(folder, total, progress=run.progress, tensorboard=run.tensorboard, label=folder.name) as log,
        ExitStack() as reading,
    ):
        log.forget_after(start)
        if total == 0:
            kept.evaluate(0)
            kept.save(0)
        for step in range(start, total):
            at = Progress(step, epoch_steps, total, kept.measured(step))
            with log.noting(step, step / epoch_steps):
                fresh = method.refresh(at, streams)
                if fresh is not None or batches is None:
                    # Loader processes hold copies of their samplers: only new ones see what has changed.
                    reading.close()
                    batches = reading.enter_context(closing(_zip(opened(fresh or method.feeds(streams)), step, total)))
                method.schedule(at)
                # Dropout and the like draw from the global generator: a step's draws depend on nothing before it.
                reseed(mix(run.seed, "step", step, parallel.rank()))
                batch = next(batches)
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
                with log.noting(done, done / epoch_steps):
                    measured = kept.evaluate(done)
                for split, values in measured.items():
                    log.row(split, done, done / epoch_steps, values)
                for said in kept.troubles(done, measured):
                    log.warn(done, done / epoch_steps, said)
            if run.keep_every and done % _steps(run.keep_every, epoch_steps) == 0:
                kept.keep(done)  # before last.pt: a run killed between the two goes on from before, and keeps it again
            if done % every == 0 or done == total:
                kept.save(done)
                since = time.perf_counter()
            stop = parallel.agreed_stop(asked(), done)  # every process asks at every step
            if done < total and (stop or done - start == run.stop_after):
                kept.save(done)
                log.row("event", done, done / epoch_steps, {"event": "paused; --resume continues"})
                if stop:
                    raise Stopped(f"{folder} is saved at step {done}; to go on: {_way_on(folder)}")
                break
    parallel.barrier()
    return folder


def _open(feeds: dict[str, Feed], *, streams: Streams, run: Run, device: torch.device) -> dict[str, Loader]:
    return {
        name: Loader(streams, feed, seed=run.seed, device=device, workers=run.workers) for name, feed in feeds.items()
    }


def _zip(loaders: dict[str, Loader], start: int, stop: int) -> Generator[dict[str, Batch], None, None]:
    with ExitStack() as reading:
        columns = [reading.enter_context(closing(loader.iterate(start, stop))) for loader in loaders.values()]
        for batches in zip(*columns, strict=True):
            yield dict(zip(loaders, batches, strict=True))


def _way_on(folder: Path) -> str:
    """A run of the command line's is its recipe's; of fit() alone, whoever called it has the rest."""
    by_recipe = (folder / "recipe.toml").is_file()
    return shlex.join(["evenhand", "train", str(folder), "--resume"]) if by_recipe else "the same call with run.resume"


def _steps(epochs: float, epoch_steps: int) -> int:
    return max(1, round(epochs * epoch_steps))


def _checked(values: dict[str, float], step: int, folder: Path) -> dict[str, float]:
    for name, value in values.items():
        if not math.isfinite(value):
            raise UserError(diverged(f"{name} is {value}", step, folder))
    return values


def use_threads(count: int) -> None:
    cores = os.cpu_count() or 1
    if count > 4 * cores:  # the system may refuse to start that many, which ends the process without a word
        raise UserError(
            f"run.threads = {count} is far more than this machine's {cores} cores: set it to {cores} or less"
        )
    torch.set_num_threads(count)


@contextmanager
def _polite_stop() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM finishes the step, saves and interrupts; the second one stops at once."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
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
