"""Boxes move with their image: an object painted into a scene is found inside its box after every step."""

from __future__ import annotations

import pytest
import torch

from evenhand.data.target import Found
from evenhand.data.views.boxes import STEPS, BoxView, crop, flip, scale


def scene() -> tuple[torch.Tensor, Found]:
    image = torch.zeros(3, 50, 80, dtype=torch.uint8)
    image[0, 10:20, 30:60] = 255
    image[1, 35:45, 5:15] = 255
    return image, Found(torch.tensor([[30.0, 10, 60, 20], [5, 35, 15, 45]]), torch.tensor([4, 7]))


@pytest.mark.parametrize("name", ["flip", "scale", "crop"])
@pytest.mark.parametrize("seed", range(6))
def test_boxes_stay_around_their_objects(name: str, seed: int) -> None:
    image, found = scene()
    x, y = STEPS[name](image, found, torch.Generator().manual_seed(seed))
    for box, label in zip(y.boxes.tolist(), y.labels.tolist(), strict=True):
        channel = 0 if label == 4 else 1
        rows, columns = (x[channel] > 127).nonzero().unbind(1)
        edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert max(abs(a - float(b)) for a, b in zip(box, edges, strict=True)) <= 1.0


def test_flip_mirrors_half_of_the_images() -> None:
    image, found = scene()
    chance = torch.Generator().manual_seed(0)
    seen = [flip(image, found, chance)[1].boxes[0].tolist() for _ in range(40)]
    assert {tuple(box) for box in seen} == {(30.0, 10.0, 60.0, 20.0), (20.0, 10.0, 50.0, 20.0)}
    assert 10 < seen.count([20.0, 10.0, 50.0, 20.0]) < 30


def test_scale_changes_both_sides_alike_within_its_range() -> None:
    image, found = scene()
    chance = torch.Generator().manual_seed(0)
    heights = {scale(image, found, chance)[0].shape[1] for _ in range(60)}
    assert min(heights) >= 35
    assert max(heights) <= 65
    assert len(heights) > 10


def test_an_object_of_which_too_little_is_left_is_lost() -> None:
    image = torch.zeros(3, 100, 100, dtype=torch.uint8)
    found = Found(torch.tensor([[0.0, 0, 4, 100], [40, 40, 60, 60]]), torch.tensor([0, 1]))
    chance = torch.Generator().manual_seed(1)
    lost = 0
    for _ in range(40):
        x, y = crop(image, found, chance)
        assert min(x.shape[1:]) >= 60
        assert (y.boxes[:, 2:] <= torch.tensor([x.shape[2], x.shape[1]])).all()
        assert (y.boxes >= 0).all()
        lost += 0 not in y.labels.tolist()
    assert lost > 5


def test_hidden_boxes_stay_hidden_and_images_see_the_same() -> None:
    image, found = scene()
    view = BoxView(["scale", "crop", "flip", "jitter"])
    told, moved = view.see([image, image], [found, found], torch.Generator().manual_seed(3))
    hidden, nothing = view.see([image, image], None, torch.Generator().manual_seed(3))
    assert nothing is None
    assert all(torch.equal(a, b) for a, b in zip(told, hidden, strict=True))
    assert told[0].dtype == torch.float32
    assert float(told[0].max()) <= 1
    assert len(moved) == 2


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_step_changes_something(name: str) -> None:
    chance = torch.Generator().manual_seed(0)
    image = torch.randint(256, (3, 40, 40), generator=chance, dtype=torch.uint8)
    plain = BoxView()([image])[0]
    seen = [BoxView([name])([image], chance)[0] for _ in range(20)]
    assert any(x.shape != plain.shape or not torch.equal(x, plain) for x in seen)


def test_an_unknown_step_is_named() -> None:
    with pytest.raises(ValueError, match="cutmix"):
        BoxView(["cutmix"])
