"""Scenes drawn on the spot: what is in the boxes is what is drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from evenhand.data.scenes import prepare_scenes
from evenhand.data.sets.scenes import SETS, load_shapes
from evenhand.data.settings import DataSettings
from evenhand.data.stream import Streams
from evenhand.data.target import Boxes
from evenhand.errors import UserError


def test_another_split_has_other_scenes() -> None:
    first, second = (load_shapes("plain", seed)["test"] for seed in (0, 1))
    assert not torch.equal(first.fetch(torch.arange(8)), second.fetch(torch.arange(8)))
    data = prepare_scenes(DataSettings(set="shape-scenes", source=["plain"], target="negative", split_seed=1))
    same = load_shapes("plain", 1)["val"]
    assert torch.equal(data.streams["val"].fetch(torch.arange(8)), same.fetch(torch.arange(8)))


def test_shapes_lie_in_their_boxes_one_in_each_half() -> None:
    """Objects are brighter than half, the noise around them darker than a quarter; the negative is the reverse."""
    streams = load_shapes("plain")
    assert {name: len(stream) for name, stream in streams.items()} == {"train": 24, "val": 8, "test": 8}
    train, middles = streams["train"], []
    images = train.fetch(torch.arange(24)).float().amax(1) / 255  # (N, H, W)
    for image, found in zip(images, train.target.objects, strict=True):  # type: ignore[union-attr]
        inside = torch.zeros(64, 64, dtype=torch.bool)
        for (left, top, right, bottom), label in zip(found.boxes.int().tolist(), found.labels.tolist(), strict=True):
            box = image[top:bottom, left:right]
            inside[top:bottom, left:right] = True
            share = float((box > 0.5).float().mean())  # disc: pi / 4, square: all, cross: its arms
            assert (0.67 < share < 0.8, share == 1, share < 0.67)[label]
            middles.append((left + right) / 2)
        assert image[~inside].max() < 0.26
    assert set(middles) == {16.5, 48.5}
    assert max(len(found.boxes) for found in train.target.objects) == 2  # type: ignore[union-attr]


def test_further_tests_are_there_with_a_target_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_new(domain: str, split_seed: int) -> Streams:
        streams = load_shapes(domain, split_seed)
        return {**streams, "test-new": load_shapes(domain, 9)["test"]}

    monkeypatch.setitem(SETS, "shape-scenes", SETS["shape-scenes"]._replace(load=with_new))
    adapted = prepare_scenes(DataSettings(set="shape-scenes", source=["plain"], target="negative")).streams
    alone = prepare_scenes(DataSettings(set="shape-scenes", source=["negative"])).streams
    rows = torch.arange(8)
    for split in ("test", "test-new"):
        assert torch.equal(adapted[split].fetch(rows), alone[split].fetch(rows))
    assert not torch.equal(alone["test"].fetch(rows), alone["test-new"].fetch(rows))


def test_a_class_without_any_training_object_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_crosses(domain: str, split_seed: int) -> Streams:
        streams = load_shapes(domain, split_seed)
        few = [found.pick(found.labels != 2) for found in streams["train"].target.objects]  # type: ignore[union-attr]
        return {**streams, "train": replace(streams["train"], target=Boxes(few))}

    monkeypatch.setitem(SETS, "shape-scenes", SETS["shape-scenes"]._replace(load=without_crosses))
    for target in ("", "negative"):
        with pytest.raises(UserError, match="no training object of class cross"):
            prepare_scenes(DataSettings(set="shape-scenes", source=["plain"], target=target))
