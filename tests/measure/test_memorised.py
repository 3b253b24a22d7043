"""Copies of training images, and latents of classes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand.data.stream import Memory, Stream
from evenhand.measure import latents, memorised
from evenhand.measure.features import from_module
from evenhand.measure.latents import write_plane, z_sensitivity
from evenhand.measure.memorised import copying, copying_of, nearest
from evenhand.randomness import dice
from helpers import seeded


def test_nearest_is_found_row_by_row() -> None:
    x, among = torch.randn(7, 3, generator=seeded()), torch.randn(5, 3, generator=seeded(1))
    distance, which = nearest(x, among, block=2)
    for i in range(7):
        each = [float((x[i] - other).double().norm()) for other in among]
        assert (float(distance[i]), int(which[i])) == (pytest.approx(min(each), rel=1e-5), each.index(min(each)))
    with pytest.raises(ValueError, match="dimensions"):
        nearest(x, among[:, :2])


def test_copies_are_told_from_new_images() -> None:
    seen, held, new = torch.randn(3, 400, 8, generator=seeded()).unbind()
    fresh = copying(new, seen, held)
    assert fresh["ratio"] == pytest.approx(1, abs=0.1)
    assert fresh["near"] == pytest.approx(0.05, abs=0.04)
    assert fresh["images"] == 400
    copies = copying(seen[:100] + 0.01 * new[:100], seen, held)
    assert copies["ratio"] < 0.05
    assert copies["near"] == 1.0
    half = copying(torch.cat([seen[:200], new[:200]]), seen, held)
    assert 0.45 < half["near"] < 0.65


def test_copies_are_told_where_held_out_images_are_copies_too() -> None:
    seen, held = torch.randn(2, 400, 8, generator=seeded()).unbind()
    held[:40] = seen[100:140]
    assert copying(seen[:100], seen, held)["near"] == 1.0
    assert copying(held, seen, held)["near"] == pytest.approx(0.1)


def test_a_mirror_image_is_a_copy_where_training_flips() -> None:
    pixels, size = from_module(torch.nn.Flatten(), "pixels"), (3, 80, 1, 6, 6)
    known, fresh, new = torch.randint(256, size, generator=seeded(), dtype=torch.uint8).unbind()
    seen, held = (Stream(Memory(x), torch.zeros(80).long(), ("a",), "x") for x in (known, fresh))
    found = {
        (name, turned): copying_of(pixels, images, seen, held, batch=32, mirrored=turned)["near"]
        for name, images in (("copies", known), ("turned", known.flip(3)), ("new", new))
        for turned in (False, True)
    }
    assert found["copies", False] == found["copies", True] == found["turned", True] == 1
    assert found["turned", False] < 0.3
    assert found["new", True] < 0.2  # held-out images may be turned as well
    both = copying_of(pixels, new, seen, held, batch=32, mirrored=True)
    rows = [x.flatten(1) / 255 for x in (new, new.flip(3), known, fresh, fresh.flip(3))]
    near = [torch.cdist(x, rows[2]).amin(1) for x in rows]
    drawn, usual = torch.minimum(near[0], near[1]), torch.minimum(near[3], near[4])
    assert both["ratio"] == pytest.approx(float(drawn.median() / usual.median()), rel=1e-4)


def test_z_sensitivity_is_the_share_of_variance_within() -> None:
    labels = torch.arange(3).repeat(200)
    centres = torch.tensor([[0.0, 0], [3, 0], [0, 3]])
    noise = torch.randn(600, 2, generator=seeded()) * torch.tensor([0.0, 1.0, 2.0])[labels, None]
    w = centres[labels] + noise
    found = z_sensitivity(w, labels, 4)
    whole = sum(float(((w[:, j] - w[:, j].mean()) ** 2).mean()) for j in range(2))
    for k in range(3):
        own = w[labels == k]
        within = sum(float(((own[:, j] - own[:, j].mean()) ** 2).mean()) for j in range(2))
        assert float(found[k]) == pytest.approx(within / whole, rel=1e-4, abs=1e-9)
    assert float(found[0]) < 1e-9
    assert found[3].isnan()
    with pytest.raises(ValueError, match="expected"):
        z_sensitivity(w[:, 0], labels, 3)


def test_picture_has_a_colour_for_each_class_and_a_point_for_a_collapsed_one(tmp_path: Path) -> None:
    labels = torch.arange(2).repeat(50)
    w = torch.randn(100, 5, generator=seeded()) + 10.0 * labels[:, None]
    w[labels == 0] = 0
    write_plane(tmp_path / "latents.png", w, labels, ("a", "b"))
    picture = np.asarray(Image.open(tmp_path / "latents.png"))
    pixels = picture[:, :480].reshape(-1, 3)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    assert len(colours) == 3  # white and two classes
    inked = sorted(counts)[:2]
    assert inked[0] < 40 < 400 < inked[1]
    legend = {tuple(colour) for colour in picture[:, 480:].reshape(-1, 3).tolist()}
    assert {tuple(colour) for colour in colours.tolist()} <= legend
    write_plane(tmp_path / "many.png", w, labels, tuple(map(str, range(26))))
    assert Image.open(tmp_path / "many.png").size == (480, 480)  # too many classes to name


def test_the_plane_is_drawn_with_dots_and_a_legend(tmp_path: Path) -> None:
    """Of 480 pixels, 12 at the edges; a dot of five at each place, and a line of eighteen for each name."""
    w = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
    latents.write_plane(tmp_path / "a.png", w, torch.arange(4), ["ant", "bee", "cow", "dog"])
    picture = Image.open(tmp_path / "a.png")
    assert picture.size == (640, 480)
    colours = [(204, 41, 41), (122, 204, 41), (41, 204, 204), (122, 41, 204)]
    for (x, y), colour, k in zip([(12, 240), (468, 240), (240, 468), (240, 12)], colours, range(4), strict=True):
        assert latents._colour(k, 4) == colour
        for dx, dy in ((0, 0), (2, 0), (-2, 0), (0, 2), (0, -2)):
            assert picture.getpixel((x + dx, y + dy)) == colour
        for dx, dy in ((3, 0), (-3, 0), (0, 3), (0, -3)):
            assert picture.getpixel((x + dx, y + dy)) == (255, 255, 255)
        top = 12 + 18 * k
        for corner in ((480, top + 3), (488, top + 3), (480, top + 11), (488, top + 11)):
            assert picture.getpixel(corner) == colour
        for corner in ((479, top + 7), (489, top + 7), (484, top + 2), (484, top + 12)):
            assert picture.getpixel(corner) == (255, 255, 255)
        ink = np.asarray(picture.crop((490, top, 640, top + 18)).convert("L")) < 128
        assert ink.any()
        assert np.argwhere(ink)[:, 1].min() in (4, 5)
    latents.write_plane(tmp_path / "b.png", w, torch.arange(4), [str(k) for k in range(25)])
    assert Image.open(tmp_path / "b.png").size == (640, 480)
    latents.write_plane(tmp_path / "c.png", w, torch.arange(4), [str(k) for k in range(26)])
    assert Image.open(tmp_path / "c.png").size == (480, 480)


def test_z_sensitivity_by_hand() -> None:
    w = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 4.0], [1.0, 4.0], [9.0, 9.0]])
    labels = torch.tensor([0, 0, 1, 1, 2])
    whole = float(w.double().var(0, correction=0).sum())
    found = latents.z_sensitivity(w, labels, 3).tolist()
    assert found[:2] == pytest.approx([1 / whole, 0])
    assert math.isnan(found[2])
    assert latents.z_sensitivity(torch.ones(4, 2), torch.zeros(4), 1).tolist() == [0]


def test_near_is_what_only_one_held_out_image_in_twenty_is() -> None:
    seen, held = torch.zeros(3, 1), torch.arange(1.0, 22.0)[:, None]  # distances 1 to 21: a twentieth is nearer than 2
    fake = torch.tensor([[0.5], [2.0], [2.0 + 1e-5], [2.1], [22.0]])
    found = copying(fake, seen, held)
    assert found == {"ratio": pytest.approx(2.00001 / 11), "near": pytest.approx(3 / 5), "images": 3.0}
    mirrored = copying(fake, seen, held, mirrored=(fake - 2.1, held))
    assert mirrored["near"] == pytest.approx(4 / 5)
    assert mirrored["ratio"] == pytest.approx(0.1 / 11, rel=1e-4)
    turned = copying(fake, seen, held, mirrored=(fake, held / 10))
    assert turned["ratio"] == pytest.approx(2.00001 / 1.1)
    assert (memorised.MOST, memorised.ROUNDING, memorised.USUAL) == (10_000, 1e-6, 0.05)


def test_of_many_images_some_are_looked_at_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(Memory(torch.zeros(20, 1, 2, 2, dtype=torch.uint8)), None, ("a",), "train")
    assert memorised._some(stream) is stream
    monkeypatch.setattr(memorised, "MOST", 20)
    assert memorised._some(stream) is stream
    monkeypatch.setattr(memorised, "MOST", 5)
    some = memorised._some(stream)
    rows = torch.randperm(20, generator=dice(0, "copying"))[:5]
    assert [some.samples.name(row) for row in range(5)] == [str(row) for row in rows.tolist()]
    assert some.name == "some of train"
