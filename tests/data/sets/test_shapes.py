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


def test_the_set_is_the_same_for_everybody() -> None:
    """Other drawings would be another set: their means, to a tenth of a level."""
    means = {
        "shapes": [79.45, 70.24, 51.79, 97.87, 72.53, 86.74, 79.01, 73.13, 77.45, 89.13, 67.17, 92.68, 75.7, 91.34,
                   65.32, 78.72, 90.0, 80.05, 91.12, 113.04],
        "shapes-negative": [158.78, 183.75, 172.65, 183.46, 167.57, 177.52, 210.32, 161.8, 193.58, 141.21, 180.06,
                            155.04, 173.94, 171.59, 146.67, 152.05, 151.13, 183.77, 184.25, 199.79],
    }  # fmt: skip
    for name, wanted in means.items():
        stream = shapes.load(name, per_class=2, size=16)["train"]
        images = stream.fetch(torch.arange(20)).float()
        assert images.mean((1, 2, 3)).tolist() == pytest.approx(wanted, abs=0.1)
        assert stream.labels.tolist() == [k for k in range(10) for _ in range(2)]  # type: ignore[union-attr]
        assert stream.samples.name(19) == "train/19"
    corners = shapes.load("shapes", per_class=2, size=16)["train"].fetch(torch.tensor([1, 9, 17]))[:, :, 3:9, 5].float()
    assert corners.mean(2).flatten().tolist() == pytest.approx(
        [189.0, 38.5, 70.8, 125.3, 144.0, 163.3, 81.7, 87.2, 114.2], abs=0.4
    )
    usual = shapes.load()
    assert usual["train"].counts == [60] * 10
    assert usual["test"].fetch(torch.tensor([0])).shape == (1, 3, 32, 32)
    assert (usual["train"].fetch(torch.arange(600)).float().mean(), shapes.DOMAINS) == (
        pytest.approx(80, abs=8), ("shapes", "shapes-negative"),
    )  # fmt: skip
    assert shapes.load("shapes-negative")["train"].fetch(torch.arange(600)).float().mean() > 160


DRAWN = """
......... ......... ......... ......... ......... ......... ......... ......... ......... .........
...###... ...###... .#######. .#######. ....#.... .#.....#. ..#..#.#. ......... .##..#... .........
..#####.. ..#####.. .#######. .#######. ....#.... ..#...#.. ..#..#.#. .#######. .##..#... .......#.
.#######. .##...##. .#######. .##...##. ....#.... ...#.#... ..#..#.#. ......... ...#..##. ......##.
.#######. .##...##. .#######. .##...##. .#######. ....#.... ..#..#.#. ......... ......... .....###.
.#######. .##...##. .#######. .##...##. ....#.... ...#.#... ..#..#.#. .#######. .##..#... ....####.
..#####.. ..#####.. .#######. .#######. ....#.... ..#...#.. ..#..#.#. ......... ...#..##. ...#####.
...###... ...###... .#######. .#######. ....#.... .#.....#. ..#..#.#. .#######. ...#..##. ..######.
......... ......... ......... ......... ......... ......... ......... ......... ......... .........
"""


def test_each_shape_is_drawn_as_it_is_called() -> None:
    row, column = torch.meshgrid(torch.linspace(-1, 1, 9), torch.linspace(-1, 1, 9), indexing="ij")
    masks = shapes._mask((column / 0.8).expand(10, 9, 9), (row / 0.8).expand(10, 9, 9), torch.arange(10))
    drawn = [" ".join("".join(".#"[int(cell)] for cell in line) for line in lines) for lines in masks.unbind(1)]
    assert drawn == DRAWN.strip().splitlines()
    u = torch.tensor([0.55, 0.65, 0.25, 0.35, 0.95, 1.05])
    across = shapes._mask(u.expand(10, 1, 6), torch.zeros(10, 1, 6), torch.arange(10))[:, 0].long()
    assert across[[0, 1, 2, 3, 4]].tolist() == [
        [1, 1, 1, 1, 1, 0], [0, 1, 0, 0, 1, 0], [1, 1, 1, 1, 1, 0], [0, 1, 0, 0, 1, 0], [1, 1, 1, 1, 1, 0],
    ]  # fmt: skip
    beside = shapes._mask(u.expand(10, 1, 6), torch.full((10, 1, 6), 0.5), torch.arange(10))[:, 0].long()
    assert beside[4].tolist() == [0, 0, 1, 0, 0, 0]  # the arms of the cross reach to 0.3
    assert beside[5].tolist() == [1, 1, 1, 1, 0, 0]  # those of the saltire, too
