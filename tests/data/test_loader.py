"""Batches as a function of (seed, step) alone: whatever the workers, the start, the process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from evenhand import parallel
from evenhand.data import loader as loader_module
from evenhand.data.loader import Batch, Feed, Loader, in_order, moved
from evenhand.data.samplers import Shuffled, Weighted, sample_weights
from evenhand.data.sources.files import Files
from evenhand.data.stream import Memory, Stream
from evenhand.data.target import Found
from evenhand.data.views.images import build
from evenhand.data.views.view import OfSamples, View
from evenhand.errors import UserError
from evenhand.randomness import dice, mix

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

CPU = torch.device("cpu")
CLASSES = ("cat", "dog", "owl")
AUGMENT = build(["crop", "flip"], size=8, mean=(0.5,) * 3, std=(0.25,) * 3)


AUGMENT_16 = build(["crop", "flip"], size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
plain = OfSamples(lambda x, _: x.float())


@pytest.fixture
def memory() -> Stream:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (30, 3, 8, 8), dtype=np.uint8))
    return Stream(Memory(images), torch.arange(30) % 3, CLASSES, "labelled")


@pytest.fixture
def files(tmp_path: Path) -> Stream:
    chance = np.random.default_rng(1)
    paths = []
    for i in range(12):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(chance.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(paths[-1])
    return Stream(Files(paths, size=16, random_frame=True), torch.arange(12) % 3, CLASSES, "labelled")


def test_files_are_cropped_while_decoded_unless_a_view_crops_or_the_whole_is_wanted(files: Stream) -> None:
    resized = build(["resized-crop"], size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    assert resized.reframes
    assert not AUGMENT.reframes
    flips = {("flip",): True, ("crop", "flip"): True, ("crop",): False, (): False}
    assert {steps: build(steps, size=16, mean=(0.5,), std=(0.25,)).mirrors for steps in flips} == flips
    centre = files.fetch(torch.arange(12))

    def decoded(feed: Feed) -> bool:
        """Whether the loader hands out the frames as they lie in the centre."""
        batch = next(Loader(files, feed, seed=0, device=CPU).iterate(0, 1))
        return torch.equal(batch.views[0], centre[batch.indices].float())

    assert not decoded(Feed("labelled", 6, (plain,)))
    assert decoded(Feed("labelled", 6, (plain,), whole=True))
    assert not decoded(Feed("labelled", 6, (plain, resized)))  # the other view has boxes of its own
    held = replace(files, samples=files.samples.held(True))  # type: ignore[attr-defined]
    assert (
        next(Loader(held, Feed("labelled", 6, (plain, resized)), seed=0, device=CPU).iterate(0, 1))
        .views[0]
        .equal(
            centre[next(Loader(held, Feed("labelled", 6, (plain,)), seed=0, device=CPU).iterate(0, 1)).indices].float()
        )
    )


def test_every_view_has_its_own_boxes_of_the_whole_picture(tmp_path: Path) -> None:
    """A ramp from left to right: its ends lie outside the middle, where a crop first would lose them."""
    ramp = np.broadcast_to(np.linspace(0, 255, 400).astype(np.uint8)[None, :, None], (100, 400, 3))
    Image.fromarray(np.ascontiguousarray(ramp)).save(tmp_path / "ramp.png")
    stream = Stream(Files([tmp_path / "ramp.png"] * 64, size=16), torch.arange(64) % 3, CLASSES, "labelled")
    view = build(["resized-crop", "flip"], size=16, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    batch = next(Loader(stream, Feed("labelled", 64, (view, view)), seed=0, device=CPU).iterate(0, 1))
    means = [x.mean((1, 2, 3)) for x in batch.views]
    assert not torch.equal(*means)
    for mean in means:
        assert mean.min() < 90 < 165 < mean.max()  # a centre crop has 96 to 159
    levels = (batch.x.flatten(1).amax(1) - batch.x.flatten(1).amin(1)) / 255 * 400  # widths of the boxes
    assert levels.max() > 110  # wider than the 100 pixels of a centre crop
    held = replace(stream, samples=stream.samples.held(True))  # type: ignore[attr-defined]
    middle = next(Loader(held, Feed("labelled", 64, (view,)), seed=0, device=CPU).iterate(0, 1)).x.mean((1, 2, 3))
    assert middle.min() > 90
    assert middle.max() < 165


def test_boxes_do_not_depend_on_workers_or_on_where_one_starts(files: Stream) -> None:
    view = build(["jitter", "resized-crop", "flip"], size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    feed = Feed("labelled", 4, (view, plain, view))
    apart = load(files, feed, 0, 4)
    assert all(map(same, apart, load(files, feed, 0, 4, workers=2)))
    assert all(map(same, apart[2:], load(files, feed, 2, 4)))
    assert not same(apart[0], load(files, feed, 0, 1, seed=1)[0])


def same(a: Batch, b: Batch) -> bool:
    views = all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))
    return views and torch.equal(a.indices, b.indices) and torch.equal(a.y, b.y)


def load(stream: Stream, feed: Feed, start: int, stop: int, *, seed: int = 0, workers: int = 0) -> list[Batch]:
    return list(Loader(stream, feed, seed=seed, device=CPU, workers=workers).iterate(start, stop))


def test_a_batch_holds_what_its_indices_say(memory: Stream) -> None:
    for batch in load(memory, Feed("labelled", 7, (plain,)), 0, 9):
        assert torch.equal(batch.x, memory.fetch(batch.indices).float())
        assert memory.labels is not None
        assert torch.equal(batch.y, memory.labels[batch.indices])


def test_an_epoch_is_shuffled_without_repeats(memory: Stream) -> None:
    loader = Loader(memory, Feed("labelled", 7, (plain,)), seed=0, device=CPU)
    assert loader.steps_per_epoch == 4
    seen = torch.cat([batch.indices for batch in loader.iterate(0, 4)])
    assert len(seen.unique()) == 28
    assert not torch.equal(seen, torch.cat([batch.indices for batch in loader.iterate(4, 8)]))


@pytest.mark.parametrize("start", [0, 1, 3, 4, 11])
def test_starts_at_any_step_with_what_an_unbroken_run_sees(memory: Stream, start: int) -> None:
    feed = Feed("labelled", 7, (AUGMENT, AUGMENT))
    whole = load(memory, feed, 0, 13)
    late = load(memory, feed, start, 13)
    assert len(late) == 13 - start
    assert all(same(a, b) for a, b in zip(whole[start:], late, strict=True))


def test_workers_change_nothing(files: Stream) -> None:
    """Random framing happens in the workers, augmentation after them; an epoch boundary lies inside."""
    feed = Feed("labelled", 5, (build(["crop", "flip"], size=16, mean=(0.5,) * 3, std=(0.25,) * 3),))
    alone, helped = (load(files, feed, 1, 6, workers=workers) for workers in (0, 2))
    assert len(alone) == 5
    assert all(same(a, b) for a, b in zip(alone, helped, strict=True))


def test_workers_outlive_the_signal_that_asks_the_whole_group_to_stop(files: Stream) -> None:
    feed = Feed("labelled", 5, (plain,))
    batches = Loader(files, feed, seed=0, device=CPU, workers=2).iterate(0, 30)
    first = [next(batches), next(batches)]  # one of each worker: both have begun
    for worker in multiprocessing.active_children():
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGTERM)
    helped = [*first, *batches]
    assert all(same(a, b) for a, b in zip(load(files, feed, 0, 30), helped, strict=True))


def test_framing_is_random_in_training_only(files: Stream) -> None:
    same_image = Feed("labelled", 1, (plain,), weights=torch.eye(12)[0])
    first, second = load(files, same_image, 0, 2)
    assert torch.equal(first.indices, second.indices)
    assert not torch.equal(first.x, second.x)
    assert torch.equal(files.fetch(first.indices), files.fetch(first.indices))


def test_seed_and_stream_change_order_and_views(memory: Stream) -> None:
    feed = Feed("labelled", 7, (AUGMENT,))
    first, other = (load(memory, feed, 0, 1, seed=seed)[0] for seed in (0, 1))
    assert not torch.equal(first.indices, other.indices)
    elsewhere = load(memory, Feed("unlabelled", 7, (AUGMENT,)), 0, 1)[0]
    assert not torch.equal(first.indices, elsewhere.indices)


def test_views_are_drawn_one_by_one_and_anew_each_step(memory: Stream) -> None:
    always_first = Feed("labelled", 4, (AUGMENT, AUGMENT), weights=torch.eye(30)[0])
    step = load(memory, always_first, 0, 2)
    assert not torch.equal(step[0].views[0], step[0].views[1])
    assert not torch.equal(step[0].x, step[1].x)


def test_unlabelled_streams_hide_their_labels(memory: Stream) -> None:
    hidden = memory.unlabelled()
    (batch,) = load(hidden, Feed("unlabelled", 7, (plain,)), 0, 1)
    assert batch.targets == (None,)
    assert hidden.labels is None
    with pytest.raises(ValueError, match="has no labels"):
        _ = batch.y


def test_weights_draw_with_replacement_in_their_proportion() -> None:
    labels = torch.tensor([0] * 80 + [1] * 15 + [2] * 5)
    stream = Stream(Memory(torch.zeros(100, 1, 2, 2, dtype=torch.uint8)), labels, CLASSES, "labelled")
    feed = Feed("labelled", 100, (plain,), weights=sample_weights(labels, 3))
    drawn = torch.cat([batch.y for batch in load(stream, feed, 0, 30)])
    share = torch.bincount(drawn, minlength=3) / len(drawn)
    torch.testing.assert_close(share, torch.full((3,), 1 / 3), rtol=0, atol=0.04)  # 5 standard deviations


@pytest.mark.parametrize("weighted", [False, True])
def test_trap_13_processes_share_the_joint_batch(
    memory: Stream, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.linspace(1, 2, 30) if weighted else None
    feed = Feed("labelled", 10, (AUGMENT,), weights)
    joint = load(memory, feed, 0, 5)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(parallel, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(parallel, "world", lambda: 2)
        parts.append(load(memory, feed, 0, 5))
    for whole, left, right in zip(joint, *parts, strict=True):
        assert torch.equal(whole.indices, torch.cat([left.indices, right.indices]))
        assert torch.equal(whole.y, torch.cat([left.y, right.y]))


BOXES = build(["resized-crop"], size=16, mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.mark.parametrize(
    ("kind", "view"), [("memory", AUGMENT), ("files", plain), ("files", BOXES)], ids=["views", "frames", "boxes"]
)
def test_trap_13_processes_see_one_sample_differently(
    kind: str, view: View, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both draw the first sample alone, so that only what is done to it can tell them apart."""
    stream: Stream = request.getfixturevalue(kind)
    feed = Feed("labelled", 8, (view,), weights=torch.eye(len(stream))[0])
    seen = []
    for rank in range(2):
        monkeypatch.setattr(parallel, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(parallel, "world", lambda: 2)
        seen.append(load(stream, feed, 0, 1)[0])
    assert torch.equal(seen[0].indices, seen[1].indices)
    assert not torch.equal(seen[0].x, seen[1].x)


def test_samplers_are_those_of_the_stream(memory: Stream) -> None:
    loader = Loader(memory, Feed("labelled", 7, (plain,)), seed=4, device=CPU)
    assert isinstance(loader.picks, Shuffled)
    assert torch.equal(loader.picks.batch(3), Shuffled(30, 7, mix(4, "labelled")).batch(3))
    weighted = Loader(memory, Feed("labelled", 7, (plain,), torch.ones(30)), seed=4, device=CPU)
    assert isinstance(weighted.picks, Weighted)


def test_own_picks_replace_the_sampler(memory: Stream) -> None:
    class Backwards:
        steps_per_epoch = 10

        def batch(self, step: int) -> Tensor:
            return torch.tensor([29 - step, 28 - step])

    batches = load(memory, Feed("labelled", 2, (plain,), picks=Backwards()), 3, 5)
    assert [batch.indices.tolist() for batch in batches] == [[26, 25], [25, 24]]


def test_an_empty_stream_is_refused() -> None:
    empty = Stream(Memory(torch.zeros(0, 1, 2, 2, dtype=torch.uint8)), None, CLASSES, "unlabelled")
    with pytest.raises(ValueError, match="stream 'unlabelled' is empty"):
        Loader(empty, Feed("unlabelled", 2, (plain,)), seed=0, device=CPU)


def test_weights_for_another_stream_are_refused(memory: Stream) -> None:
    """One weight per sample: a longer list would draw samples that do not exist, a shorter one miss some."""
    for length in (29, 31):
        with pytest.raises(ValueError, match=f"{length}"):
            Loader(memory, Feed("labelled", 7, (plain,), torch.ones(length)), seed=0, device=CPU)


def test_batches_follow_from_seed_stream_and_step_literally(files: Stream) -> None:
    """The sampler's seed is mixed with the stream's name; frames and views have dice of their own."""
    loader = Loader(files, Feed("labelled", 4, (AUGMENT_16, AUGMENT_16)), seed=3, device=CPU)
    seed = mix(3, "labelled")
    assert loader.steps_per_epoch == 3
    for step, batch in enumerate(loader.iterate(2, 5), 2):
        rows = Shuffled(12, 4, seed).batch(step)
        assert torch.equal(batch.indices, rows)
        raw, chance = files.fetch(rows, dice(seed, "frame", step, 0)), dice(seed, "augment", step, 0)
        assert torch.equal(batch.views[0], AUGMENT_16(raw, chance))
        assert torch.equal(batch.views[1], AUGMENT_16(raw, chance))
        assert torch.equal(batch.x, batch.views[0])
        assert torch.equal(batch.y, files.labels[rows])  # type: ignore[index]
    boxed = build(["resized-crop", "flip"], size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    (batch,) = Loader(files, Feed("labelled", 4, (AUGMENT_16, boxed)), seed=3, device=CPU).iterate(1, 2)
    rows, own = Shuffled(12, 4, seed).batch(1), files.samples.boxed(boxed.cuts)  # type: ignore[arg-type]
    assert own is not None
    chance = dice(seed, "augment", 1, 0)
    assert torch.equal(batch.views[0], AUGMENT_16(files.fetch(rows, dice(seed, "frame", 1, 0)), chance))
    assert torch.equal(batch.views[1], boxed.unboxed()(own.fetch(rows, dice(seed, "frame", 1, 0, 1)), chance))


def test_options_of_a_feed_that_is_not_given_any(memory: Stream, files: Stream) -> None:
    feed = Feed("labelled", 4, (plain,))
    assert (feed.weights, feed.picks, feed.whole) == (None, None, False)
    assert Loader(memory, feed, seed=0, device=CPU, workers=3).workers == 0  # nothing to decode
    assert Loader(files, feed, seed=0, device=CPU, workers=3).workers == 3
    assert Loader(files, feed, seed=0, device=CPU).workers == 0
    own = replace(memory, name="own")
    (batch,) = Loader({"labelled": memory}, Feed(own, 4, (plain,)), seed=0, device=CPU).iterate(0, 1)
    assert torch.equal(batch.indices, Shuffled(30, 4, mix(0, "own")).batch(0))
    with pytest.raises(UserError, match="needs a stream 'unlabelled'; the data give: labelled"):
        Loader({"labelled": memory}, Feed("unlabelled", 4, (plain,)), seed=0, device=CPU)


def test_rows_come_in_order_batch_by_batch(memory: Stream, files: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.tensor([5, 1, 7, 2, 0])
    found = list(in_order(memory, rows, 2))
    assert [some.tolist() for some, _ in found] == [[5, 1], [7, 2], [0]]
    assert torch.equal(torch.cat([x for _, x in found]), memory.fetch(rows))
    used: list[int] = []

    class Counted(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        def __init__(self, pieces: Any, **how: Any) -> None:
            used.append(how["num_workers"])
            assert how["batch_size"] is None
            super().__init__(pieces, **{**how, "num_workers": 0})

    monkeypatch.setattr(loader_module, "DataLoader", Counted)
    monkeypatch.setattr(loader_module, "PIECE", 3)
    several = replace(files, workers=2)
    for stream, count in ((several, 4), (several, 3), (files, 12), (replace(memory, workers=2), 9)):
        batches = list(in_order(stream, torch.arange(count), 2))
        assert used == [2]  # the first alone: the others are few, or need no help
        assert torch.equal(torch.cat([x for _, x in batches]), stream.fetch(torch.arange(count)))


def test_tensors_are_moved_in_lists_and_named_tuples_too() -> None:
    assert moved(None, CPU) is None
    found = moved([Found(torch.ones(1, 4), torch.ones(1)), torch.zeros(2)], CPU)
    assert isinstance(found[0], Found)
    assert found[0].optional is None
    assert found[1].tolist() == [0, 0]
