"""The drawn shapes: offline, fixed, learnable, and train unlike test."""

from __future__ import annotations

import pytest
import torch

from evenhand.data.sets import shapes

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")


def test_both_splits_are_balanced_and_named() -> None:
    streams = shapes.load(per_class=4, size=16)
    assert list(streams) == ["train", "test"]
    for name, stream in streams.items():
        assert stream.name == name
        assert stream.classes == shapes.CLASSES
        assert stream.counts == [4] * 10
        images = stream.fetch(torch.arange(len(stream)))
        assert (images.dtype, tuple(images.shape)) == (torch.uint8, (40, 3, 16, 16))


def test_the_same_whatever_the_global_generator() -> None:
    first = shapes.load(3, 16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        second = shapes.load(3, 16)
    assert all(first[split].digest() == second[split].digest() for split in first)


def test_splits_share_no_image() -> None:
    train, test = (s.fetch(torch.arange(len(s))).flatten(1) for s in shapes.load(6, 16).values())
    assert not (train[:, None] == test[None]).all(2).any()


def test_classes_differ_by_their_shape() -> None:
    """Masks at the same place and scale are pairwise different, and never empty or full."""
    row, column = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
    grid = torch.stack([row, column]) / 0.6
    v, u = grid[:, None].expand(2, 10, 32, 32)
    masks = shapes._mask(u, v, torch.arange(10)).flatten(1).float()  # (10, P)
    assert ((masks.mean(1) > 0.05) & (masks.mean(1) < 0.6)).all()
    apart = (masks[:, None] != masks[None]).float().mean(2) + torch.eye(10)
    assert apart.min() > 0.05
