"""Copies of training images, and latents of classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand.data.stream import Memory, Stream
from evenhand.measure.features import from_module
from evenhand.measure.latents import write_plane, z_sensitivity
from evenhand.measure.memorised import copying, copying_of, nearest
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
