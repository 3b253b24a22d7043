"""Scenes drawn on the spot: what is in the boxes is what is drawn."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand.data.scenes import prepare_scenes
from evenhand.data.sets import scenes
from evenhand.data.sets.scenes import SETS, _compose, _cover, load_emoji, load_shapes
from evenhand.data.sets.shifted import STYLES, split_emoji
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


def test_shapes_are_those_of_their_seed() -> None:
    """The first scenes of a domain and a seed are the same for everybody."""
    train = load_shapes("plain")["train"]
    objects = train.target.objects  # type: ignore[union-attr]
    assert [found.labels.tolist() for found in objects[:4]] == [[2, 1], [2, 2], [2], [0, 2]]
    assert [found.boxes.int().tolist() for found in objects[:4]] == [
        [[5, 29, 28, 52], [37, 14, 60, 37]], [[7, 37, 26, 56], [35, 17, 62, 44]], [[38, 16, 59, 37]],
        [[8, 2, 25, 19], [38, 21, 59, 42]],
    ]  # fmt: skip
    assert objects[0].boxes.dtype == torch.float32
    image = train.fetch(torch.tensor([0]))[0].float()
    assert image.mean((1, 2)).tolist() == pytest.approx([71.21, 69.83, 57.44], abs=0.2)
    assert train.samples.name(3) == "plain/train/3"
    small = load_shapes("negative", side=48, counts=(2, 1, 3))
    assert {split: (len(part), part.name, part.classes) for split, part in small.items()} == {
        split: (count, split, ("disc", "square", "cross")) for split, count in (("train", 2), ("val", 1), ("test", 3))
    }
    assert small["test"].fetch(torch.arange(3)).shape == (3, 3, 48, 48)


def test_the_negative_of_a_domain_is_bright_where_the_other_is_dark() -> None:
    plain, negative = (load_shapes(domain)["test"].fetch(torch.arange(8)).float() for domain in SETS["shape-scenes"][1])
    assert plain.median() < 60
    assert negative.median() > 195


def test_built_in_scenes_are_three_sets() -> None:
    assert {name: row.domains for name, row in SETS.items()} == {
        "trees": ("yellowstone", "osbs", "soap"), "emoji-scenes": STYLES, "shape-scenes": ("plain", "negative"),
    }  # fmt: skip
    assert (scenes.SIDE, scenes.SMALLEST, scenes.LARGEST, scenes.MOST) == (128, 28, 64, 4)
    assert scenes.COUNTS == {"train": 800, "val": 100, "test": 250, "test-new": 250}
    assert scenes.RULE == 1


@pytest.mark.parametrize(
    ("other", "share"),
    [([0, 0, 10, 10], 1.0), ([5, 0, 15, 10], 0.5), ([2, 4, 6, 8], 1.0), ([10, 0, 20, 10], 0.0), ([20, 20, 30, 30], 0.0),
     ([8, 7, 28, 27], 0.06), ([-5, -5, 2, 1], 2 / 42)],
)  # fmt: skip
def test_cover_is_the_share_of_the_smaller_box_that_both_have(other: list[float], share: float) -> None:
    here = [0.0, 0.0, 10.0, 10.0]
    assert _cover(here, other) == _cover(other, here) == pytest.approx(share)


# emoji-scenes

RESVG = """
import io, re
from PIL import Image
def svg_to_bytes(svg, *, skip_system_fonts, width, height):
    assert skip_system_fonts and width == height == 64
    image = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    image.paste(tuple(map(int, re.search(r'fill="(\\d+) (\\d+) (\\d+)"', svg).groups())) + (255,), (16, 8, 48, 56))
    file = io.BytesIO(); image.save(file, "PNG"); return list(file.getvalue())
"""


@pytest.fixture
def designers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Ten emoji of each subgroup, a rectangle whose colour tells class, emoji and style; ten grey photographs."""
    groups = [group for parts in scenes.KINDS.values() for group in parts] + ["cats"]
    code = {f"{group}-{i}": 0x1F000 + 10 * g + i for g, group in enumerate(groups) for i in range(10)}
    table = [{"unified": f"{number:X}", "subcategory": name.rpartition("-")[0]} for name, number in code.items()]
    for s, style in enumerate(STYLES):
        (tmp_path / style).mkdir()
        icons = {
            name: {"body": f'<path fill="{2 * (n - 0x1F000)} {10 + 60 * s} 5"/>', "left": 0, "top": 0}
            for name, n in code.items()
        }
        (tmp_path / style / "icons.json").write_text(json.dumps({"icons": icons, "width": 36, "height": 36}))
        (tmp_path / style / "chars.json").write_text(json.dumps({f"{n:x}": name for name, n in code.items()}))
    for folder in ("table", "photos", "rasteriser/resvg_py"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "table" / "emoji.json").write_text(json.dumps(table))
    (tmp_path / "rasteriser" / "resvg_py" / "__init__.py").write_text(RESVG)
    for i in range(10):
        Image.new("RGB", (40, 30), (240, 240, 100 + 10 * i)).save(tmp_path / "photos" / f"{i}.jpg", quality=100)
    names = [*STYLES, "table", "rasteriser"]
    places = {package.name: tmp_path / name for package, name in zip(scenes.emoji_packages(), names, strict=True)}
    places[scenes.PHOTOS.name] = tmp_path / "photos"
    monkeypatch.setattr(scenes, "obtain_package", lambda package: places[package.name])
    monkeypatch.setattr(scenes, "COUNTS", {"train": 30, "val": 5, "test": 20, "test-new": 20})
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "cache"))
    yield tmp_path
    sys.modules.pop("resvg_py", None)


def read(streams: Streams, split: str, style: str) -> tuple[set[int], set[int], list[list[list[float]]]]:
    """Emoji and photographs that a split shows, and its boxes; each box is tight around one emoji of its class."""
    part, emoji, behind = streams[split], set(), set()
    groups = [group for parts in scenes.KINDS.values() for group in parts]
    kinds = [k for k, parts in enumerate(scenes.KINDS.values()) for _ in parts]
    images = part.fetch(torch.arange(len(part)))
    assert images.shape == (scenes.COUNTS[split], 3, 128, 128)
    assert part.classes == tuple(scenes.KINDS)
    assert (part.name, part.samples.name(1)) == (split, f"{style}/{split}/1")
    for image, found in zip(images.int(), part.target.objects, strict=True):  # type: ignore[union-attr]
        behind.add(round((int(image[2].max()) - 100) / 10))
        assert 1 <= len(found.boxes) <= 4
        for (left, top, right, bottom), label in zip(found.boxes.int().tolist(), found.labels.tolist(), strict=True):
            red, green, blue = image[:, (top + bottom) // 2, (left + right) // 2].tolist()
            assert (green, blue) == (10 + 60 * STYLES.index(style), 5)
            number = red // 2
            assert kinds[number // 10] == label
            assert len(groups) > number // 10
            emoji.add(number)
            side = 2 * (right - left)
            assert 27 <= side <= 66
            assert (bottom - top) / (right - left) == pytest.approx(1.5, abs=0.2)
            assert min(left, top) >= 0
            assert max(right, bottom) <= 128
    return emoji, behind, [found.boxes.tolist() for found in part.target.objects]  # type: ignore[union-attr]


def test_emoji_scenes_show_new_emoji_in_one_split_alone_and_other_photographs_in_tests(designers: Path) -> None:
    streams = load_emoji("openmoji")
    assert list(streams) == ["train", "val", "test", "test-new"]
    seen = {split: read(streams, split, "openmoji") for split in streams}
    assert not seen["test-new"][0] & (seen["train"][0] | seen["val"][0] | seen["test"][0])
    assert len({number // 10 for number in seen["train"][0]}) == 11  # every subgroup of the eight kinds
    assert max(seen["train"][1]) == 7
    groups = [group for parts in scenes.KINDS.values() for group in parts]
    number = {f"{group}-{i}": 10 * g + i for g, group in enumerate([*groups, "cats"]) for i in range(10)}
    names = sorted(number)
    new, _ = split_emoji(np.array([number[name] // 10 for name in names]), names, 0)
    assert seen["test-new"][0] <= {number[name] for name, held in zip(names, new, strict=True) if held}
    assert seen["test"][1] == seen["test-new"][1] == {8, 9}
    counts = [len(boxes) for _, _, all_boxes in seen.values() for boxes in all_boxes]
    assert {*counts} == {1, 2, 3, 4}
    (kept,) = (designers / "cache").iterdir()
    assert kept.name.startswith("emoji-scenes-openmoji-")
    assert kept.name.endswith("-1.safetensors")
    assert len(kept.name.split("-")[3]) == 8


def test_styles_share_the_layout_of_tests_and_seeds_share_nothing(
    designers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = load_emoji("noto"), load_emoji("twemoji")
    mine, theirs = (
        {split: read(s, split, style) for split in s} for s, style in ((first, "noto"), (second, "twemoji"))
    )
    for split in ("test", "test-new"):
        assert mine[split] == theirs[split]
    assert mine["train"][2] != theirs["train"][2]
    other = load_emoji("noto", 1)
    assert read(other, "test-new", "noto")[0] != mine["test-new"][0]
    assert read(other, "test", "noto")[2] != mine["test"][2]
    assert len([*(designers / "cache").glob("*-1-split-1.safetensors")]) == 1
    monkeypatch.setattr(scenes, "_compose_all", None)  # never a second time
    again = load_emoji("noto")
    rows = torch.arange(30)
    assert torch.equal(again["train"].fetch(rows), first["train"].fetch(rows))
    assert read(again, "test", "noto") == mine["test"]


def test_nothing_is_composed_of_what_is_see_through_or_would_be_covered() -> None:
    """A fifth emoji never fits beside four that fill the scene; what is less than half opaque has no box."""
    photos = [Image.new("RGB", (128, 128), (9, 9, 9))]
    thin, half = (Image.new("RGBA", (64, 64), (200, 0, 0, alpha)) for alpha in (127, 128))
    image, found = _compose([(thin, 0)], photos, 1, torch.Generator().manual_seed(0))
    assert (found.boxes.shape, found.boxes.dtype, found.labels.dtype) == ((0, 4), torch.float32, torch.int64)
    assert (image == 9).all()
    boxes, sides = [], set()
    for seed in range(60):
        image, found = _compose([(half, 0)], photos, 1, torch.Generator().manual_seed(seed))
        boxes.append(found.boxes.tolist())
        for left, top, right, bottom in boxes[-1]:
            assert right - left == bottom - top
            sides.add(int(right - left))
            assert min(image[int(top), int(left), 0], image[int(bottom) - 1, int(right) - 1, 0]) > 9
        covers = [_cover(a, b) for i, a in enumerate(boxes[-1]) for b in boxes[-1][:i]]
        assert max(covers, default=0) <= 0.1
    assert max(map(len, boxes)) <= 4
    assert 28 <= min(sides) <= 29
    assert 63 <= max(sides) <= 64
    assert max(edge for some in boxes for box in some for edge in box) >= 126
    assert min(edge for some in boxes for box in some for edge in box) <= 2
    assert any(_cover(a, b) > 0 for some in boxes for i, a in enumerate(some) for b in some[:i])


def test_scenes_of_rule_one_are_these() -> None:
    """Composed otherwise, they need another number of the rule: the file that is kept is named by it."""
    photos = [Image.new("RGB", (128, 128), (i, i, i)) for i in range(5)]
    emoji = [(Image.new("RGBA", (64, 64), (100 + i, 0, 0, 255)), i % 3) for i in range(6)]
    image, found = _compose(emoji, photos, 3, torch.Generator().manual_seed(1))
    assert isinstance(image, np.ndarray)
    assert found.labels.tolist() == [0, 1]
    assert found.boxes.tolist() == [[1, 83, 43, 125], [12, 27, 44, 59]]
    assert (image[0, 0].tolist(), sorted({*image[..., 0].flatten().tolist()})) == ([0, 0, 0], [0, 100, 104])
