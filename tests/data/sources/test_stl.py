"""STL-10's binary format on tiny files of the same layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources.formats import read
from evenhand.data.sources.stl import _labels
from evenhand.errors import UserError

NAMES = ["airplane", "bird", "car"]


def write(folder: Path, *, unlabelled: bool = True) -> dict[str, np.ndarray]:
    """Images (N, 96, 96, 3), written channel by channel and each channel column by column, as the authors do."""
    rng = np.random.default_rng(0)
    images = {}
    for stem, count in {"train": 9, "test": 3, **({"unlabeled": 4} if unlabelled else {})}.items():
        images[stem] = rng.integers(0, 256, (count, 96, 96, 3), dtype=np.uint8)
        with (folder / f"{stem}_X.bin").open("wb") as out:
            for image in images[stem]:
                for channel in range(3):
                    out.write(image[:, :, channel].tobytes(order="F"))
        if stem != "unlabeled":
            (folder / f"{stem}_y.bin").write_bytes(bytes(1 + row % 3 for row in range(count)))
    (folder / "class_names.txt").write_text("\n".join(NAMES) + "\n")
    return images


def test_images_labels_and_names(tmp_path: Path) -> None:
    images = write(tmp_path)
    streams = read(tmp_path)
    assert streams.keys() == {"train", "test", "unlabelled"}
    for part, stem in (("train", "train"), ("test", "test"), ("unlabelled", "unlabeled")):
        found = streams[part].fetch(torch.arange(len(streams[part])))
        assert np.array_equal(found.numpy(), images[stem].transpose(0, 3, 1, 2))
    assert streams["train"].classes == tuple(NAMES)
    assert streams["train"].labels is not None
    assert streams["train"].labels.tolist() == [0, 1, 2] * 3
    assert streams["unlabelled"].labels is None
    assert streams["unlabelled"].samples.name(2) == "unlabelled/2"


def test_images_are_brought_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write(tmp_path, unlabelled=False)
    monkeypatch.setattr("evenhand.data.sources.stl.PIECE", 4)  # nine images in three pieces
    streams = read(tmp_path, size=32)
    assert streams.keys() == {"train", "test"}
    found = streams["train"].fetch(torch.arange(9)).double()
    assert found.shape == (9, 3, 32, 32)
    means = images["train"].reshape(9, 32, 3, 32, 3, 3).mean((2, 4)).transpose(0, 3, 1, 2)
    assert np.corrcoef(found.numpy().ravel(), means.ravel())[0, 1] > 0.8  # torch weighs neighbours, too


def test_a_recipe_reads_it(tmp_path: Path) -> None:
    write(tmp_path)
    data = prepare_data(DataSettings(set=str(tmp_path), size=32, val_per_class=1, n_max=2, imbalance=2))
    assert {name: len(stream) for name, stream in data.streams.items()} == {
        "labelled": 4, "val": 3, "test": 3, "unlabelled": 4,
    }  # fmt: skip
    assert data.facts.size == [32, 32]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "test_y.bin").write_bytes(bytes([1, 2]))
    with pytest.raises(UserError, match=r"test_y.bin' has 2 labels for 3 images"):
        read(tmp_path)
    (tmp_path / "test_y.bin").write_bytes(bytes([1, 2, 4]))
    with pytest.raises(UserError, match=r"test_y.bin' holds label 4: expected 1 to 3"):
        read(tmp_path)
    (tmp_path / "train_X.bin").write_bytes(bytes(1000))
    with pytest.raises(UserError, match=r"train_X.bin' has 1000 bytes, not a multiple of 27648"):
        read(tmp_path)
    (tmp_path / "class_names.txt").unlink()
    with pytest.raises(UserError, match=r"class_names.txt"):
        read(tmp_path)


def test_no_images_have_no_labels(tmp_path: Path) -> None:
    (tmp_path / "test_y.bin").write_bytes(b"")
    assert len(_labels(tmp_path / "test_y.bin", 0, 10)) == 0
