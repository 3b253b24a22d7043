"""From streams to batches: which samples a step sees and in which views, as a function of (seed, step) alone.

Nothing is remembered between steps, so a run resumes at any step without saved sampler state, and the batch does
not depend on the number of workers.
"""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from evenhand import parallel
from evenhand.data.samplers import Shuffled, Weighted
from evenhand.data.sources.source import Source
from evenhand.data.stream import Stream, Streams, needed
from evenhand.data.views.view import View
from evenhand.errors import UserError
from evenhand.randomness import dice, mix


class Picks(Protocol):
    """Indices of this process's part of the joint batch at a step."""

    steps_per_epoch: int

    def batch(self, step: int) -> Tensor: ...


@dataclass(frozen=True)
class Feed:
    """What a method wants of one stream at each step.

    batch counts over all processes; each view becomes one tensor of the batch; ``weights`` draws with
    replacement in proportion to them, one per sample; ``picks`` replaces the sampler altogether. Large image files are
    cropped at random while they are decoded, and files of any size where a view has random boxes: one for each such
    view, of the whole picture. ``whole`` asks for the frame of evaluation.
    """

    stream: str | Stream
    batch: int
    views: tuple[View, ...]
    weights: Tensor | None = None
    picks: Picks | None = None
    whole: bool = False

    def boxed(self, samples: Source) -> list[Source | None]:
        """For each view the pictures whose boxes are chosen for it at decoding, where they are."""
        cuts = [None if self.whole else view.cuts for view in self.views]
        return [None if some is None else samples.boxed(some) for some in cuts]


@dataclass(frozen=True)
class Batch:
    """One step's samples as each view shows them, with the target as that view moved it, and their indices.

    A target is None where the stream hides it.
    """

    views: tuple[Any, ...]
    targets: tuple[Any, ...]
    indices: Tensor

    @property
    def x(self) -> Any:
        return self.views[0]

    @property
    def y(self) -> Any:
        if self.targets[0] is None:
            raise ValueError("this stream has no labels: feed a labelled stream to a step that needs them")
        return self.targets[0]


class _Steps(Dataset[Any]):
    """Step number -> raw batch, so that a worker makes whole batches in any order.

    A UserError is returned, because torch would add a worker's traceback to the message of one that is raised.
    """

    def __init__(self, stream: Stream, picks: Picks, seed: int, feed: Feed) -> None:
        self.stream, self.picks, self.seed, self.boxed = stream, picks, seed, feed.boxed(stream.samples)
        crops = [view.reframes and own is None for view, own in zip(feed.views, self.boxed, strict=True)]
        self.random_frame = not (feed.whole or any(crops))
        self.rank = parallel.rank()

    def __getitem__(self, step: int) -> tuple[Any, list[Any], Tensor] | UserError:
        """What views share, and what each has of its own where its boxes are chosen at decoding."""
        indices, shared = self.picks.batch(step), None
        try:
            if None in self.boxed:
                chance = dice(self.seed, "frame", step, self.rank) if self.random_frame else None
                shared = self.stream.fetch(indices, chance)
            own = [
                None if some is None else some.fetch(indices, dice(self.seed, "frame", step, self.rank, at))
                for at, some in enumerate(self.boxed)
            ]
            return shared, own, indices
        except UserError as error:
            return error


class Loader:
    """Endless batches of one feed, from any step on."""

    def __init__(
        self, streams: Streams | Stream, feed: Feed, *, seed: int, device: torch.device, workers: int = 0
    ) -> None:
        stream, name = _stream(streams, feed)
        if len(stream) == 0:
            raise ValueError(f"stream '{name}' is empty: give it at least one sample")
        place = {"rank": parallel.rank(), "world": parallel.world()}
        seed = mix(seed, name)
        if feed.picks is not None:
            self.picks: Picks = feed.picks
        elif feed.weights is not None:
            if len(feed.weights) != len(stream):
                raise ValueError(f"{len(feed.weights)} sampling weights for {len(stream)} samples of '{name}'")
            self.picks = Weighted(feed.weights, feed.batch, seed, **place)
        else:
            self.picks = Shuffled(len(stream), feed.batch, seed, **place)
        self.stream, self.feed, self.seed, self.device = stream, feed, seed, device
        self.workers = workers if stream.samples.decodes else 0

    @property
    def steps_per_epoch(self) -> int:
        return self.picks.steps_per_epoch

    def iterate(self, start: int, stop: int) -> Generator[Batch, None, None]:
        """Batches of the steps start, start + 1, ..., stop - 1."""
        steps = _Steps(self.stream, self.picks, self.seed, self.feed)
        views = [
            view if own is None else view.unboxed() for view, own in zip(self.feed.views, steps.boxed, strict=True)
        ]
        raw = DataLoader(
            steps,
            batch_size=None,
            sampler=range(start, stop),
            num_workers=self.workers,
            generator=dice(self.seed, "workers"),
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_outlive_a_signal,
        )
        with _ending(raw) as all_made:
            for step, made in enumerate(all_made, start):
                if isinstance(made, UserError):
                    raise made
                shared, own, indices = made
                truth = None if self.stream.target is None else moved(self.stream.target.of(indices), self.device)
                shared, chance = moved(shared, self.device), dice(self.seed, "augment", step, parallel.rank())
                samples = [shared if some is None else moved(some, self.device) for some in own]
                seen = [view.see(some, truth, chance) for view, some in zip(views, samples, strict=True)]
                yield Batch(tuple(x for x, _ in seen), tuple(y for _, y in seen), indices)


@contextmanager
def _ending(raw: DataLoader[Any]) -> Iterator[Iterator[Any]]:
    """What it makes; its processes end with the block. A traceback that keeps the iterator would keep them, too, until
    Python's exit, which sends one SIGTERM and waits for ever.
    """
    made: Any = iter(raw)
    try:
        yield made
    finally:
        if raw.num_workers:
            made._shutdown_workers()


def _outlive_a_signal(_: int) -> None:
    """A SIGTERM to the whole group is the main process's to answer, which needs its workers to finish the step.

    The second ends a worker, as it ends the main process.
    """
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))


class _Pieces(Dataset[Any]):
    """Piece number -> its samples; a UserError is returned, as of ``_Steps``."""

    def __init__(self, stream: Stream, pieces: Sequence[Tensor]) -> None:
        self.stream, self.pieces = stream, pieces

    def __getitem__(self, number: int) -> Any:
        try:
            return self.stream.fetch(self.pieces[number])
        except UserError as error:
            return error


PIECE = 64  # samples that a loader process hands over at once: shared memory is small in containers


def in_order(stream: Stream, rows: Tensor, batch: int) -> Iterator[tuple[Tensor, Any]]:
    """These rows and their samples as stored, batch by batch; ``stream.workers`` processes decode ahead."""
    batches = rows.split(batch)
    if not (stream.workers and stream.samples.decodes and len(rows) > PIECE):
        for some in batches:
            yield some, stream.fetch(some)
        return
    pieces = [some.split(PIECE) for some in batches]
    raw = DataLoader(
        _Pieces(stream, [piece for some in pieces for piece in some]),
        batch_size=None,
        sampler=range(sum(map(len, pieces))),
        num_workers=stream.workers,
        generator=dice(0, "workers"),
        worker_init_fn=_outlive_a_signal,
    )
    with _ending(raw) as all_made:
        for some, cut in zip(batches, pieces, strict=True):
            made = [next(all_made) for _ in cut]
            for piece in made:
                if isinstance(piece, UserError):
                    raise piece
            stacked = all(isinstance(piece, Tensor) for piece in made)
            yield some, torch.cat(made) if stacked else [sample for piece in made for sample in piece]


def moved(value: Any, device: torch.device) -> Any:
    """Tensors to the device, in lists and named tuples too."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if hasattr(value, "_fields"):
        return type(value)(*(moved(part, device) for part in value))
    return [moved(part, device) for part in value]


def _stream(streams: Streams | Stream, feed: Feed) -> tuple[Stream, str]:
    """The stream a feed speaks of: one it brings itself, or one of those there are, by name."""
    if isinstance(feed.stream, Stream):
        return feed.stream, feed.stream.name
    if isinstance(streams, Stream):
        return streams, feed.stream
    return needed(streams, feed.stream), feed.stream
