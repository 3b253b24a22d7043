"""LSUN's databases, where the package lmdb is installed; where it is not, what is said."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
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


@pytest.fixture
def folders_for_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package lmdb: each record is a file, named by its key in hex; nobody may write."""

    class BrokenError(Exception):
        pass

    class Opened:
        def __init__(self, place: str, **how: bool) -> None:
            assert how == {"readonly": True, "lock": False, "readahead": False, "meminit": False}
            self.place = Path(place)
            if not self.place.is_dir():
                raise BrokenError("no such place")

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def begin(self) -> Opened:
            return self

        def cursor(self) -> Opened:
            return self

        def iternext(self, *, keys: bool, values: bool) -> list[bytes]:
            assert (keys, values) == (True, False)
            return sorted(bytes.fromhex(file.name) for file in self.place.iterdir())

        def get(self, key: bytes) -> bytes:
            return (self.place / key.hex()).read_bytes()

    monkeypatch.setitem(sys.modules, "lmdb", SimpleNamespace(open=Opened, Error=BrokenError))


def put(folder: Path, name: str, greys: list[int], size: tuple[int, int] = (40, 40)) -> None:
    (folder / name).mkdir(parents=True)
    for i, grey in enumerate(greys):
        Image.new("RGB", size, (grey, grey, grey)).save(folder / name / f"a{i}", "png")


@pytest.mark.usefixtures("folders_for_databases")
def test_databases_become_streams_by_split_with_classes_in_alphabetical_order(tmp_path: Path) -> None:
    put(tmp_path, "kitchen_val_lmdb", [200])
    put(tmp_path, "kitchen_train_lmdb", [10, 20])
    put(tmp_path, "bedroom_train_lmdb", [30, 40, 50])
    put(tmp_path, "attic_unlabelled_lmdb", [60])
    (tmp_path / "notes_lmdb").mkdir()
    streams = databases.read_databases(tmp_path, size=4)
    assert list(streams) == ["train", "val", "unlabelled"]
    assert {stream.classes for stream in streams.values()} == {("attic", "bedroom", "kitchen")}
    train = streams["train"]
    assert train.name == "train"
    assert sorted(zip(train.labels.tolist(), train.fetch(torch.arange(5))[:, 0, 0, 0].tolist(), strict=True)) == [  # type: ignore[union-attr]
        (1, 30), (1, 40), (1, 50), (2, 10), (2, 20),
    ]  # fmt: skip
    assert streams["val"].labels.tolist() == [2]  # type: ignore[union-attr]
    assert streams["unlabelled"].labels is None
    assert train.samples.name(0) == "bedroom_train_lmdb/a0"
    assert train.fetch(torch.tensor([0])).shape == (1, 3, 4, 4)
    assert not train.samples.decodes  # small, so held in memory
    with pytest.raises(UserError, match=r"cannot read the LMDB 'nowhere': no such place; obtain it again"):
        databases.Records([Path("nowhere")]).keys("nowhere")


@pytest.mark.usefixtures("folders_for_databases")
def test_databases_are_framed_as_asked_or_by_their_pictures(tmp_path: Path) -> None:
    put(tmp_path, "bedroom_train_lmdb", [10] * 3, (80, 40))
    put(tmp_path, "bedroom_val_lmdb", [10] * 3, (40, 40))
    wide = databases.read_databases(tmp_path, memory=False)
    assert all(isinstance(part.samples, Files) for part in wide.values())
    assert [part.samples.frame.how for part in wide.values()] == ["squash", "squash"]  # type: ignore[union-attr]
    assert wide["train"].fetch(torch.tensor([2])).shape == (1, 3, 224, 224)  # the default
    assert wide["train"].samples.path(0) is None
    whole = databases.read_databases(tmp_path, size=100, mode="L", memory=False, whole=True, frame="crop")["train"]
    assert whole.fetch(torch.tensor([0])).shape == (1, 1, 100, 100)
    assert (whole.samples.frame.how, whole.samples.frame.resize) == ("crop", 100)  # type: ignore[union-attr]
    cropped = databases.read_databases(tmp_path, size=100, memory=False, frame="crop")["train"]
    assert cropped.samples.frame.resize == 114  # type: ignore[union-attr]
    assert not databases.read_databases(tmp_path, size=100, memory=True)["train"].samples.decodes


@pytest.mark.usefixtures("folders_for_databases")
def test_a_database_without_images_and_a_damaged_record_are_named(tmp_path: Path) -> None:
    put(tmp_path, "bedroom_train_lmdb", [10])
    (tmp_path / "bedroom_train_lmdb" / "a1").write_bytes(b"no image")
    stream = databases.read_databases(tmp_path, size=100, frame="crop")["train"]
    with pytest.raises(UserError, match=r"cannot read image 'bedroom_train_lmdb/a1'"):
        stream.fetch(torch.tensor([1]))
    (tmp_path / "attic_train_lmdb").mkdir()
    with pytest.raises(UserError, match=r"attic_train_lmdb' holds no images; obtain it again or remove it"):
        databases.read_databases(tmp_path)
