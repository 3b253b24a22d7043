"""Boxes move with their image: an object painted into a scene is found inside its box after every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evenhand.data.target import Found
from evenhand.data.views import boxes
from evenhand.data.views.boxes import STEPS, BoxView, crop, flip, scale
from helpers import seeded


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


def test_scale_changes_objects_both_ways_within_a_frame_that_stays() -> None:
    image, found = scene()
    chance = torch.Generator().manual_seed(0)
    shares, places = [], set()
    for _ in range(60):
        x, y = scale(image, found, chance)
        assert x.shape == image.shape
        for box, label in zip(y.boxes, y.labels.tolist(), strict=True):
            wide, tall = (box[2:] - box[:2]).tolist()
            if label == 7 and box.min() > 0 and box[2] < 80 and box[3] < 50:  # not cut
                assert wide == pytest.approx(tall, abs=0.4)  # sides are rounded to pixels
                shares.append(wide / 10)
                places.add(tuple(box.int().tolist()))
    assert 0.68 < min(shares) < 0.8 < 1.1 < max(shares) < 1.32
    assert len(places) > 20


def test_scaled_images_have_grey_around_them_and_lose_what_sticks_out() -> None:
    image, found = scene()
    small, moved = scale(image, found, torch.Generator().manual_seed(0), low=0.5, high=0.5)
    assert (small == 117).all(0).sum() == 50 * 80 - 25 * 40
    assert (moved.boxes[:, 2:] - moved.boxes[:, :2]).tolist() == [[15.0, 5.0], [5.0, 5.0]]
    lost = [len(scale(image, found, torch.Generator().manual_seed(s), low=2.0, high=2.0)[1].labels) for s in range(12)]
    assert {1, 2} & set(lost)
    assert 0 in lost


def test_a_detector_s_own_resizing_does_not_undo_scale(tv: Any) -> None:
    transform = tv.models.detection.transform.GeneralizedRCNNTransform(50, 80, [0.5] * 3, [0.5] * 3)
    image, found = scene()
    view, widths = BoxView(["scale"]), []
    for seed in range(8):
        (x,), (y,) = view.see([image], [found], torch.Generator().manual_seed(seed))
        _, (wanted,) = transform([x], [{"boxes": y.boxes, "labels": y.labels}])
        widths += [(b[2] - b[0]).item() for b, k in zip(wanted["boxes"], y.labels.tolist(), strict=True) if k == 4]
    assert max(widths) - min(widths) > 6


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


def test_windows_by_hand() -> None:
    """A box of 10 x 10 stays with three tenths of it in sight, cut at the edges."""
    x = torch.arange(400, dtype=torch.uint8).view(1, 20, 20)
    y = Found(torch.tensor([[0.0, 5, 10, 15], [0, 0, 4, 4], [10, 12, 20, 22]]), torch.tensor([1, 2, 3]))
    for left, labels in ((4, [1]), (6, [1, 3]), (8, [3])):
        image, found = boxes._window(x, y, 3, left, 15, 10)
        assert found is not None
        assert torch.equal(image, x[:, 3:18, left : left + 10])
        assert found.labels.tolist() == labels
    assert boxes._window(x, y, 3, 6, 15, 10)[1].boxes.tolist() == [[0, 2, 4, 12], [4, 9, 10, 15]]  # type: ignore[union-attr]
    assert boxes._window(x, None, 0, 0, 5, 5)[1] is None
    assert (boxes.GREY, boxes.LEAST_VISIBLE) == (117, 0.3)
    assert boxes.STRONG == ("scale", "crop", "flip", "jitter", "grayscale", "blur")


@pytest.mark.parametrize("seed", range(8))
def test_scales_crops_and_flips_literally(seed: int) -> None:
    x = torch.randint(256, (3, 20, 30), dtype=torch.uint8, generator=seeded(9))
    y = Found(torch.tensor([[2.0, 3, 12, 9], [20, 10, 30, 20]]), torch.tensor([0, 1]))
    g = seeded(seed)
    factor = 0.7 + 0.6 * float(torch.rand((), generator=g))
    tall, wide = round(20 * factor), round(30 * factor)
    top = int(torch.randint(abs(20 - tall) + 1, (), generator=g))
    left = int(torch.randint(abs(30 - wide) + 1, (), generator=g))
    image, found = boxes.scale(x, y, seeded(seed))
    assert found is not None
    assert image.shape == x.shape
    by = torch.tensor([wide / 30, tall / 20] * 2)
    if factor >= 1:
        corner = torch.tensor([left, top, left, top])
        cut = (y.boxes * by - corner).clamp(min=0).minimum(torch.tensor([30.0, 20, 30, 20]))
        assert all(any(torch.allclose(box, other) for other in cut) for box in found.boxes)
    else:
        torch.testing.assert_close(found.boxes, y.boxes * by + torch.tensor([left, top, left, top]))
        inside = torch.zeros(20, 30, dtype=torch.bool)
        inside[top : top + tall, left : left + wide] = True
        assert (image[:, ~inside] == 117).all()
        assert (image[:, inside] != 117).float().mean() > 0.9
    g = seeded(seed)
    tall, wide = (round(side * (0.6 + 0.4 * float(torch.rand((), generator=g)))) for side in (20, 30))
    top = int(torch.randint(20 - tall + 1, (), generator=g))
    left = int(torch.randint(30 - wide + 1, (), generator=g))
    assert torch.equal(boxes.crop(x, y, seeded(seed))[0], x[:, top : top + tall, left : left + wide])
    kept = float(torch.rand((), generator=seeded(seed))) < 0.5
    image, found = boxes.flip(x, y, seeded(seed))
    assert found is not None
    assert torch.equal(image, x if kept else x.flip(2))
    assert found.boxes.tolist() == (y.boxes.tolist() if kept else [[18, 3, 28, 9], [0, 10, 10, 20]])
