"""``data.labels`` without a target: labels of a pool or of the unlabelled part train, and nothing else moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand.data.labels import named
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError


def draw(place: Path, count: int, seed: int, size: tuple[int, int] = (16, 16)) -> None:
    """Noise, so that no two are copies."""
    place.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        noise = np.random.default_rng([seed, number]).integers(0, 256, (*size, 3), np.uint8)
        Image.fromarray(noise).save(place / f"{number}.png")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """<class>/* without splits, and a pool of other images, larger than they are."""
    for seed, name in enumerate(("ant", "bee")):
        draw(tmp_path / "photos" / name, 10, seed)
    draw(tmp_path / "new" / "deep", 5, 7, (40, 30))
    return tmp_path


def prepared(place: Path, rows: str = "", **more: Any) -> Data:
    (place / "labels.csv").write_text("name,label\n" + rows)
    labels = {"labels": str(place / "labels.csv")} if rows else {}
    given = {"set": str(place / "photos"), **labels, **more}
    return prepare_data(DataSettings.model_validate(given))


def test_labels_of_a_pool_train_and_what_is_held_out_stays(place: Path) -> None:
    plain = prepared(place, val_share=0.2)
    rows = "deep/3.png,bee\ndeep/0.png,ant\ndeep/1.png,#none\ndeep/2.png,\n"
    data = prepared(place, rows, val_share=0.2, pool=str(place / "new"))
    before, train = plain.labelled, data.labelled
    assert named(train) == [*named(before), "deep/0.png", "deep/3.png"]
    assert train.labels is not None
    assert [train.classes[k] for k in train.labels[-2:].tolist()] == ["ant", "bee"]
    assert data.counts == [n + 1 for n in plain.counts]
    assert train.fetch(torch.arange(len(train))).shape[2:] == (16, 16)
    for part in ("val", "test"):
        assert data.streams[part].digest() == plain.streams[part].digest()


def test_labels_of_the_unlabelled_part_move(place: Path) -> None:
    (place / "all").mkdir()
    (place / "photos").rename(place / "all" / "train")
    draw(place / "all" / "unlabelled", 4, 9)
    (place / "all").rename(place / "photos")
    name = "unlabelled/{}.png"
    data = prepared(place, f"{name.format(1)},ant\n{name.format(3)},#none\n")
    assert named(data.labelled)[-1] == name.format(1)
    assert named(data.streams["unlabelled"]) == [name.format(0), name.format(2)]
    every = prepared(place, "".join(f"{name.format(i)},bee\n" for i in range(4)))
    assert len(every.labelled) == len(data.labelled) + 3
    assert "unlabelled" not in every.streams


def test_texts_of_a_pool(tmp_path: Path) -> None:
    lines = [f"film {'good' if i % 2 else 'bad'} {i},{'yes' if i % 2 else 'no'}" for i in range(20)]
    (tmp_path / "texts.csv").write_text("review,liked\n" + "\n".join(lines))
    (tmp_path / "pool.csv").write_text("review\na splendid thing\nanother\n")
    columns = {"text_column": "review", "label_column": "liked"}
    data = prepared(
        tmp_path, "pool.csv:2,yes\n", set=str(tmp_path / "texts.csv"), pool=str(tmp_path / "pool.csv"), **columns
    )
    assert named(data.labelled)[-1] == "pool.csv:2"
    assert "splendid" in data.facts.words


MISTAKES: dict[str, tuple[str, str, str]] = {
    "unknown name": ("3.png,bee\n", "new", "does not have: 3.png; names there look like 'deep/0.png'"),
    "unknown class": ("deep/3.png,be\n", "new", "label 'be' of 'deep/3.png' is no class; did you mean 'bee'?"),
    "nothing labelled": ("deep/3.png,\n", "new", "gives no sample of data.pool"),
    "the data's own": ("ant/0.png,ant\n", "photos", "which the data have as"),
    "no labels": ("", "new", "is a pool without labels"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(place: Path, mistake: str) -> None:
    rows, pool, why = MISTAKES[mistake]
    with pytest.raises(UserError) as error:
        prepared(place, rows, pool=str(place / pool))
    assert why in str(error.value)
    assert "\n" not in str(error.value)
