"""LSUN's databases, where the package lmdb is installed; where it is not, what is said."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from evenhand.data.loader import Feed, Loader
from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources import databases
from evenhand.data.sources.files import Files
from evenhand.data.sources.formats import read
from evenhand.data.sources.soundness import find_problems
from evenhand.data.views.view import OfSamples
from evenhand.errors import UserError

ROOMS = {"bedroom_train": 6, "kitchen_train": 4, "bedroom_val": 2, "kitchen_val": 2}


def encoded(grey: int, kind: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), (grey, grey, grey)).save(out, kind)
    return out.getvalue()


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    """Tiny databases as LSUN's: one for each class and split, JPEG or WebP under a hash."""
    lmdb = pytest.importorskip("lmdb")
    for number, (name, count) in enumerate(ROOMS.items()):
        with lmdb.open(str(tmp_path / f"{name}_lmdb"), map_size=2**20) as made, made.begin(write=True) as change:
            for i in range(count):
                grey = 60 * number + 8 * i
                change.put(f"{i:040x}".encode(), encoded(grey, "webp" if i % 2 else "jpeg"))
    return tmp_path


def test_databases_are_streams_of_classes(rooms: Path) -> None:
    streams = read(rooms, size=16, memory=False)
    assert list(streams) == ["train", "val"]
    train = streams["train"]
    assert train.classes == ("bedroom", "kitchen")
    assert train.counts == [6, 4]
    assert isinstance(train.samples, Files)  # nothing is decoded before it is asked for
    images = train.fetch(torch.tensor([9, 0]))
    assert images.shape == (2, 3, 16, 16)
    assert images.float().mean((1, 2, 3)).tolist() == pytest.approx([60 + 24, 0], abs=4)
    assert train.digest() == read(rooms, size=16, memory=False)["train"].digest()


def test_databases_are_read_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package that opens them."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(databases, "databases_in", lambda _: [tmp_path])
    monkeypatch.setattr(databases, "read_databases", lambda _, **asked: seen.update(asked) or {})
    asked = {"size": 16, "mode": "L", "memory": False, "whole": True, "frame": "pad"}
    read(tmp_path, **asked)  # type: ignore[arg-type]
    assert seen == asked


def test_small_images_are_held_and_one_database_is_a_set(rooms: Path) -> None:
    (only,) = read(rooms / "kitchen_val_lmdb", size=8).values()
    assert only.classes == ("kitchen",)
    assert only.fetch(torch.arange(2)).shape == (2, 3, 8, 8)


def test_records_open_anew_in_another_process(rooms: Path) -> None:
    source = read(rooms, size=16, memory=False)["train"].samples
    here = source.fetch(torch.arange(10))
    assert torch.equal(pickle.loads(pickle.dumps(source)).fetch(torch.arange(10)), here)


def test_workers_read_what_the_loader_would(rooms: Path) -> None:
    train = read(rooms, size=16, memory=False)["train"]
    feed = Feed("train", 4, (OfSamples(lambda x, _: x.float()),))
    batches = [
        [batch.x for batch in Loader(train, feed, seed=0, device=torch.device("cpu"), workers=w).iterate(0, 2)]
        for w in (0, 2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))


def test_a_recipe_reads_databases(rooms: Path) -> None:
    data = prepare_data(DataSettings(set=str(rooms), size=16, test_share=0.25, augment=[]))
    assert data.classes == ("bedroom", "kitchen")
    assert {"labelled", "val", "test"} <= data.streams.keys()
    assert data.streams["labelled"].counts == [4, 3]


def test_trap_12_a_damaged_record_and_a_damaged_database_are_named(rooms: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(rooms / "kitchen_train_lmdb"), map_size=2**20) as made, made.begin(write=True) as change:
        change.put(b"0broken", b"no image")
    (problem,) = [p for p in find_problems(read(rooms, size=16, memory=False)) if p.kind == "unreadable"]
    assert f"kitchen_train_lmdb/{b'0broken'.hex()}" in problem.message
    (rooms / "bedroom_val_lmdb" / "data.mdb").write_bytes(b"junk" * 4096)
    with pytest.raises(UserError, match=r"cannot read the LMDB .*bedroom_val_lmdb"):
        read(rooms, size=16, memory=False)
    with pytest.raises(UserError, match="cannot be skipped"):
        read(rooms, skip_unreadable=True)


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bedroom_train_lmdb").mkdir()
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(UserError, match=r"pip install 'evenhand\[lmdb\]', or export .* train/<class>") as caught:
        read(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
