"""Targets: classes or boxes, carried by streams and batches, and moved by views together with the images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evenhand.data.loader import Feed, Loader
from evenhand.data.sources.source import Joined, Source
from evenhand.data.stream import Stream, join
from evenhand.data.target import Boxes, Classes, Found
from evenhand.data.views.view import OfSamples, View
from evenhand.errors import UserError

CPU = torch.device("cpu")


class Sizes(Source):
    """Images of different sizes, as detection has them: image i is (3, 4, 4 + i), all pixels i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def fetch(self, rows: torch.Tensor, chance: torch.Generator | None = None) -> list[torch.Tensor]:
        return [torch.full((3, 4, 4 + row), row, dtype=torch.uint8) for row in rows.tolist()]

    def name(self, row: int) -> str:
        return f"image {row}"

    def identity(self, *, dated: bool = False) -> list[bytes]:
        return [str(self.count).encode()]


class Mirror(View):
    """Turns images and boxes left to right."""

    def __call__(self, x: Any, chance: torch.Generator | None = None) -> Any:
        return [image.flip(-1) for image in x]

    def see(self, x: Any, y: Any, chance: torch.Generator) -> tuple[Any, Any]:
        turned = []
        for image, found in zip(x, y, strict=True):
            left, top, right, bottom = found.boxes.unbind(1)
            wide = image.shape[-1]
            turned.append(Found(torch.stack([wide - right, top, wide - left, bottom], 1), found.labels))
        return self(x), turned


def objects(*labels: list[int]) -> Boxes:
    some = [torch.tensor(each, dtype=torch.int64) for each in labels]
    boxes = [torch.tensor([[0.0, 0, 1 + k, 2] for k in each]).view(-1, 4) for each in labels]
    return Boxes([Found(*pair) for pair in zip(boxes, some, strict=True)])


@pytest.fixture
def scenes() -> Stream:
    return Stream(Sizes(3), objects([0, 1], [], [1]), ("cat", "dog"), "scenes")


def test_boxes_count_pick_and_join(scenes: Stream) -> None:
    assert scenes.counts == [1, 2]
    assert scenes.labels is None  # no single class
    some = scenes.subset(torch.tensor([2, 1]))
    assert some.counts == [0, 1]
    both = join([scenes, some], "both")
    assert both.counts == [1, 3]
    assert isinstance(both.samples, Joined)
    assert [image.shape[-1] for image in both.fetch(torch.tensor([3, 0]))] == [6, 4]
    assert both.samples.name(3) == "image 2"
    assert scenes.unlabelled().target is None
    assert scenes.digest() != scenes.unlabelled().digest()
    assert scenes.digest() != Stream(Sizes(3), objects([0, 1], [], [0]), ("cat", "dog")).digest()


def test_a_batch_carries_lists_and_a_view_moves_boxes_with_the_image(scenes: Stream) -> None:
    plain = OfSamples(lambda x, _: x)
    feed = Feed("scenes", 3, (plain, Mirror()))
    (batch,) = Loader({"scenes": scenes}, feed, seed=0, device=CPU).iterate(0, 1)
    order = batch.indices.tolist()
    assert sorted(order) == [0, 1, 2]
    assert [image.shape[-1] for image in batch.x] == [4 + row for row in order]
    at = order.index(0)
    assert batch.y[at].boxes.tolist() == [[0, 0, 1, 2], [0, 0, 2, 2]]
    assert batch.targets[1][at].boxes.tolist() == [[3, 0, 4, 2], [2, 0, 4, 2]]  # in an image of width 4
    assert batch.targets[1][at].labels.tolist() == [0, 1]
    assert batch.y[order.index(1)].boxes.shape == (0, 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_hidden_target_stays_hidden(scenes: Stream, workers: int) -> None:
    feed = Feed("scenes", 2, (OfSamples(lambda x, _: x),))
    (batch,) = Loader(scenes.unlabelled(), feed, seed=0, device=CPU, workers=workers).iterate(0, 1)
    assert batch.targets == (None,)
    with pytest.raises(ValueError, match="has no labels"):
        _ = batch.y


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(UserError, match=r"'s': label 2 of sample 1 is outside 0\.\.1"):
        Stream(Sizes(2), torch.tensor([0, 2]), ("a", "b"), "s")
    with pytest.raises(UserError, match=r"'s', image 1: label 5 of sample 0 is outside 0\.\.1"):
        Stream(Sizes(2), objects([0], [5]), ("a", "b"), "s")
    with pytest.raises(UserError, match=r"boxes \(1, 4\) for 2 labels; give \(m, 4\) and \(m,\)"):
        Stream(Sizes(1), Boxes([Found(torch.zeros(1, 4), torch.tensor([0, 1]))]), ("a", "b"), "s")
    with pytest.raises(UserError, match="2 labels for 3 samples"):
        Stream(Sizes(3), torch.tensor([0, 1]), ("a", "b"), "s")


def test_labels_stand_for_classes() -> None:
    stream = Stream(Sizes(2), torch.tensor([1, 0]), ("a", "b"), "s")
    assert isinstance(stream.target, Classes)
    assert stream.counts == [1, 1]
