"""``data.added``: more training samples; who is head or tail, and how images are normalised, stays the data's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError

REAL = {"set": "shapes", "n_max": 12, "imbalance": 6, "val_per_class": 2}


def stored(path: Path, classes: list[str], side: int = 32, channels: int = 3) -> str:
    images = np.full((6, side, side, channels), 200, np.uint8)
    np.savez(path, x=images, y=np.array([0, 0, 0, 1, 1, 1]), classes=np.array(classes))
    return str(path)


def test_they_train_and_nothing_else_changes(tmp_path: Path) -> None:
    plain = prepare_data(DataSettings.model_validate(REAL))
    rarest, largest = plain.classes[-1], plain.classes[0]
    place = stored(tmp_path / "more.npz", [rarest, largest])  # an order of its own
    data = prepare_data(DataSettings.model_validate({**REAL, "added": place}))
    assert data.streams.keys() == plain.streams.keys()
    assert len(data.labelled) == len(plain.labelled) + 6
    assert data.counts == data.labelled.counts
    assert [a - b for a, b in zip(data.counts, plain.counts, strict=True)] == [3, *[0] * 8, 3]
    assert (data.labelled.fetch(torch.arange(len(plain.labelled), len(data.labelled))) == 200).all()
    assert data.facts.groups == plain.facts.groups
    assert data.facts.mean == plain.facts.mean
    for name in ("test", "val"):
        assert data.streams[name].digest() == plain.streams[name].digest()
    again = prepare_data(DataSettings.model_validate({**REAL, "added": place}), data.facts)  # a resumed run's
    assert again.facts == data.facts


def test_a_folder_of_another_size_and_colour_is_brought_into_shape(tmp_path: Path) -> None:
    place = stored(tmp_path / "small.npz", ["ring", "disc"], side=20, channels=1)
    data = prepare_data(DataSettings.model_validate({**REAL, "added": place}))
    assert data.labelled.fetch(torch.tensor([len(data.labelled) - 1])).shape == (1, 3, 32, 32)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    place = stored(tmp_path / "odd.npz", ["rng", "disc"])
    with pytest.raises(UserError, match="class 'rng' that the data lack; did you mean 'ring'"):
        prepare_data(DataSettings.model_validate({**REAL, "added": place}))
    np.savez(tmp_path / "vectors.npz", x=np.zeros((2, 4), np.float32), y=np.array([0, 1]))
    with pytest.raises(UserError, match="has vectors, labelled images are needed"):
        prepare_data(DataSettings.model_validate({**REAL, "added": str(tmp_path / "vectors.npz")}))
    with pytest.raises(UserError, match="one domain"):
        prepare_data(DataSettings.model_validate({**REAL, "added": place, "target": "elsewhere"}))


def test_whole_files_lose_no_margin(tmp_path: Path) -> None:
    from PIL import Image

    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            for row in range(3):
                picture = Image.new("RGB", (128, 128), "white")
                picture.paste("black", (8, 8, 120, 120))
                picture.putpixel((0, row), (row, 0, 0))
                picture.save(tmp_path / split / name / f"{row}.png")
    given = {"set": str(tmp_path), "size": 112, "frame": "crop"}
    corners = {}
    for whole in (False, True):
        data = prepare_data(DataSettings.model_validate({**given, "whole": whole}))
        corners[whole] = int(data.labelled.fetch(torch.tensor([0]))[0, 0, 3, 3])
    assert corners[True] > 200 > corners[False]  # the white margin is seen, or cropped away
