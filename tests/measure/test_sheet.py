"""``sheet.png``: real images beside drawn ones, class by class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from PIL import Image
from torch import Tensor

from evenhand import parallel
from evenhand.data.stream import Memory, Stream
from evenhand.measure import sheet
from evenhand.measure.sheet import write_sheet

COUNTS = [1000, 100, 10]


class Painter:
    """Draws the label as brightness: what a conditional GAN is to a sheet."""

    labelled = True

    def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
        shades = torch.arange(count) % 3 if labels is None else labels
        return (100 + shades).byte().view(-1, 1, 1, 1).expand(count, 1, 8, 8)

    class judge:  # noqa: N801
        annotator: str | None = "one"

        @staticmethod
        def label(images: Tensor) -> Tensor:
            return (images[:, 0, 0, 0].long() - 100).clamp(max=1)  # finds nothing of the third class


class Unconditional(Painter):
    labelled = False


@pytest.fixture
def stream() -> Stream:
    """Twelve cats, one dog, no lynx; brightness is the index."""
    images = torch.arange(13, dtype=torch.uint8).view(-1, 1, 1, 1).expand(13, 1, 8, 8)
    return Stream(Memory(images), torch.tensor([0] * 12 + [1]), ("cat", "dog", "lynx"), "test")


def read(path: Path) -> tuple[dict[str, Any], list[list[list[int]]]]:
    """What the file says of itself, and the brightness in the middle of each tile: [row][side][number]."""
    with Image.open(path) as picture:
        facts = json.loads(picture.text["evenhand"])  # type: ignore[attr-defined]
        tile, (across, down) = facts["tile"], facts["step"]
        found = [
            [
                [picture.getpixel((side * across + (8 * n + 4) % 40, row * down + 8 * (n // 5) + 4)) for n in range(10)]
                for side in range(2)
            ]
            for row in range(len(facts["labels"]))
        ]
    assert tile == 8
    return facts, found  # type: ignore[return-value]


def test_holds_real_and_drawn(tmp_path: Path, stream: Stream) -> None:
    write_sheet(tmp_path / "sheet.png", Painter(), stream, [10, 1000, 100])
    facts, found = read(tmp_path / "sheet.png")
    assert facts["labels"] == [1, 2, 0]
    assert [row[0] for row in found] == [[12] + [255] * 9, [255] * 10, list(range(10))]
    assert [row[1] for row in found] == [[101] * 10, [102] * 10, [100] * 10]


def test_an_unconditional_generator_has_what_is_found(tmp_path: Path, stream: Stream) -> None:
    write_sheet(tmp_path / "sheet.png", Unconditional(), stream, COUNTS)
    assert read(tmp_path / "sheet.png")[0]["drawn"] == [10, 10, 0]


def test_without_an_annotator_there_is_one_row(tmp_path: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Painter.judge, "annotator", None)
    write_sheet(tmp_path / "sheet.png", Unconditional(), stream, COUNTS)
    facts, found = read(tmp_path / "sheet.png")
    assert (facts["labels"], facts["drawn"]) == ([-1], [10])
    assert found[0][0] == list(range(10))


def test_every_process_draws_and_one_writes(tmp_path: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joint BatchNorm needs them all: one drawing alone would wait for ever."""
    painter = Painter()
    monkeypatch.setattr(painter, "sample", Mock(wraps=painter.sample))
    monkeypatch.setattr(parallel, "is_writer", lambda: False)
    write_sheet(tmp_path / "sheet.png", painter, stream, COUNTS)
    assert painter.sample.called  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


def test_stays_small(tmp_path: Path) -> None:
    class Large(Painter):
        def sample(self, count: int, labels: Any = None, **_: Any) -> Tensor:
            return torch.zeros(count, 3, 128, 128, dtype=torch.uint8)

    images = torch.zeros(300, 3, 128, 128, dtype=torch.uint8)
    stream = Stream(Memory(images), torch.arange(300), ("x",) * 300)
    write_sheet(tmp_path / "sheet.png", Large(), stream, list(range(300, 0, -1)))
    with Image.open(tmp_path / "sheet.png") as picture:
        facts = json.loads(picture.text["evenhand"])  # type: ignore[attr-defined]
    shown = facts["labels"]
    assert (shown[0], shown[-1], len(shown), facts["tile"]) == (0, 299, 12, 64)


def test_classes_are_evenly_spaced_where_there_are_too_many() -> None:
    counts = [5, 9, 7, 1, 3]
    assert sheet._shown(counts, 100) == [1, 2, 0, 4, 3]
    many = list(range(100, 0, -1))
    assert sheet._shown(many, 100) == [round(i * 99 / 23) for i in range(24)]
    assert len(sheet._shown(many, 3_000_000 // (20 * 7))) == 7
    assert len(sheet._shown(many, 10**6)) == 5
    assert sheet._shown(list(range(24)), 1) == list(range(23, -1, -1))
    assert (sheet.DOWN, sheet.ACROSS, sheet.EACH, sheet.GAP, sheet.POOL) == (2, 5, 10, 4, 2000)


@pytest.mark.parametrize(("side", "tile"), [(64, 64), (65, 32), (128, 64), (129, 43), (8, 8)])
def test_large_images_are_reduced_by_a_whole_factor(side: int, tile: int) -> None:
    images = torch.full((2, 1, side, side // 2), 10, dtype=torch.uint8)
    images[:, :, :, 0] = 13
    small = sheet._tile(images)
    assert small.shape[2] == tile
    assert small.dtype == torch.uint8
    factor = -(-side // 64)
    assert int(small[0, 0, 0, 0]) == round(10 + 3 / factor)
    assert sheet._tile(images[:0]).shape == (0, 1, side, side // 2)


def test_a_sheet_says_how_it_is_cut_up(tmp_path: Path) -> None:
    class Wide(Painter):
        def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
            return super().sample(count, labels, chance=chance).expand(count, 3, 8, 8)[..., :6].contiguous()

    images = torch.zeros(3, 3, 8, 6, dtype=torch.uint8)
    stream = Stream(Memory(images), torch.tensor([0, 1, 2]), ("cat", "dog", "lynx"), "test")
    write_sheet(tmp_path / "sheet.png", Wide(), stream, COUNTS)
    with Image.open(tmp_path / "sheet.png") as picture:
        facts = json.loads(picture.text["evenhand"])  # type: ignore[attr-defined]
        assert picture.size == (2 * 34 - 4, 3 * 20 - 4)
        assert picture.mode == "RGB"
        assert picture.getpixel((31, 0)) == (255, 255, 255)
        assert picture.getpixel((34, 20)) == (101, 101, 101)
        assert picture.getpixel((63, 15)) == (100, 100, 100)
    assert facts == {"labels": [0, 1, 2], "block": [30, 16], "step": [34, 20], "tile": 6, "drawn": [10, 10, 10]}


def test_an_unconditional_generator_draws_a_hundred_for_each_class_up_to_two_thousand(stream: Stream) -> None:
    asked: list[int] = []

    class Counted(Unconditional):
        def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
            asked.append(count)
            return super().sample(count, labels, chance=chance)

    for classes in (3, 20, 21):
        sheet._drawn(Counted(), [0, 1], classes, 0)
    assert asked == [300, 2000, 2000]
    assert [len(part) for part in sheet._real(stream, [0, 1, 2])] == [10, 1, 0]
    hidden = Stream(Memory(torch.zeros(12, 1, 8, 8, dtype=torch.uint8)), None, ("a",), "x")
    assert [len(part) for part in sheet._real(hidden, [-1])] == [10]
