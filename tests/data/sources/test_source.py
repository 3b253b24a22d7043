"""Every source answers the same questions: samples, names, some of them, another frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources.files import Files
from evenhand.data.sources.formats import read
from evenhand.data.sources.items import Items
from evenhand.data.sources.source import Joined, Memory, Source, joined
from evenhand.data.sources.texts import Texts
from evenhand.data.stream import Stream
from helpers import save_picture, seeded, tree

N = 5


def images(count: int = N, side: int = 12) -> torch.Tensor:
    return torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=seeded(count))


def from_memory(_: Path) -> Source:
    return Memory(images(), [f"m{i}" for i in range(N)])


def from_files(folder: Path) -> Source:
    paths = [save_picture(folder / f"{i}.png", 16, 12, i) for i in range(N)]
    return Files(paths, size=12, names=[path.name for path in paths])


def from_items(_: Path) -> Source:
    return Items(TensorDataset(images().float() / 255, torch.zeros(N, dtype=torch.int64)))


def from_records(folder: Path) -> Source:
    """What is no file but has a reader, as LMDB's records."""
    paths = {f"db/{i:02x}": save_picture(folder / f"{i}.png", 12, 12, i) for i in range(N)}
    return Files(paths, size=12, reader=lambda name: paths[name].open("rb"))


def from_two(folder: Path) -> Source:
    return Joined([Memory(images(2), ["a0", "a1"]), from_files(folder).pick(torch.tensor([4, 1, 0]))])


KINDS: dict[str, Callable[[Path], Source]] = {
    "memory": from_memory, "files": from_files, "items": from_items, "records": from_records, "joined": from_two,
}  # fmt: skip


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    return KINDS[request.param](tmp_path)


def test_picks_keep_samples_and_names_in_their_order(source: Source) -> None:
    whole = source.fetch(torch.arange(N))
    names = [source.name(row) for row in range(N)]
    assert len(set(names)) == len(source) == N
    some = source.pick(torch.tensor([3, 0, 4])).pick(torch.tensor([2, 1]))
    assert [some.name(row) for row in range(2)] == [names[4], names[0]]
    assert torch.equal(some.fetch(torch.arange(2)), whole[[4, 0]])


def test_another_frame_keeps_the_samples_and_their_names(source: Source) -> None:
    small = source.framed(6, 1)
    assert small.fetch(torch.arange(N)).shape == (N, 1, 6, 6)
    assert [small.name(row) for row in range(N)] == [source.name(row) for row in range(N)]
    picked = source.pick(torch.tensor([2])).framed(6, 1)
    assert torch.equal(picked.fetch(torch.tensor([0])), small.fetch(torch.tensor([2])))
    assert source.framed(12, 3).fetch(torch.arange(N)).float().mean() == pytest.approx(
        source.fetch(torch.arange(N)).float().mean(), abs=2
    )


def test_identity_follows_the_samples(source: Source) -> None:
    def marks(some: Source) -> list[bytes]:
        return list(some.identity())

    assert marks(source) == marks(source)
    assert marks(source) != marks(source.pick(torch.tensor([1, 0, 2, 3, 4])))


def test_files_tell_their_path_and_others_do_not(tmp_path: Path) -> None:
    files = from_files(tmp_path)
    assert files.pick(torch.tensor([2])).path(0) == str(tmp_path / "2.png")
    assert from_two(tmp_path).path(2) == str(tmp_path / "4.png")
    assert from_two(tmp_path).path(0) is None
    assert from_records(tmp_path).path(0) is None


def test_joined_memory_is_one_tensor_with_all_names() -> None:
    whole = joined([Memory(images(2), ["a", "b"]), Memory(images(3), ["c", "d", "e"])])
    assert isinstance(whole, Memory)
    assert [whole.name(row) for row in range(5)] == list("abcde")
    assert torch.equal(whole.fetch(torch.tensor([4])), images(3)[[2]])


def test_held_images_keep_the_names_of_their_files(tmp_path: Path) -> None:
    tree(tmp_path, "train/cat/1.png", "train/dog/2.png", "test/cat/3.png", "test/dog/4.png")
    parts = read(tmp_path)
    assert not parts["train"].samples.decodes
    assert [parts["train"].samples.name(row) for row in range(2)] == ["train/cat/1.png", "train/dog/2.png"]
    assert read(tmp_path, memory=False)["test"].samples.name(1) == "test/dog/4.png"


def test_names_reach_every_stream_of_a_recipe(tmp_path: Path) -> None:
    """Through the hold-out, the long tail and hidden labels; each sample is in one stream only."""
    tree(tmp_path, *(f"{k}/{i}.png" for k in ("a", "b") for i in range(20)))
    data = prepare_data(
        DataSettings(set=str(tmp_path), val_per_class=3, imbalance=4, n_max=6, unlabelled_max=4, groups="1/1")
    )
    names = {key: [s.samples.name(row) for row in range(len(s))] for key, s in data.streams.items()}
    seen = [name for some in names.values() for name in some]
    assert len(seen) == len(set(seen))
    for key in ("labelled", "val", "test"):
        stream = data.streams[key]
        assert stream.labels is not None
        assert [name[0] for name in names[key]] == [stream.classes[k] for k in stream.labels.tolist()]
    assert "unlabelled" in names


@pytest.mark.parametrize("values", [{"x": np.zeros((4, 3), np.float32)}, {"x": np.zeros((4, 8, 8), np.uint8)}])
def test_rows_of_arrays_are_named_by_split_and_number(tmp_path: Path, values: dict[str, Any]) -> None:
    np.savez(tmp_path / "a.npz", y=np.array([0, 1, 0, 1]), **values)
    stream = read(tmp_path / "a.npz")["all"]
    assert stream.subset(torch.tensor([3, 1])).samples.name(0) == "all/3"


def test_texts_are_named_by_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\nfine,good\ndull,bad\n")
    stream = read(tmp_path / "t.csv")["all"]
    assert [stream.samples.name(row) for row in range(2)] == ["t.csv:2", "t.csv:3"]
    picked = Texts(["a", "b"], ["x", "y"], ["p", "q"]).pick(torch.tensor([1]))
    assert (picked.texts, picked.translations, picked.name(0)) == (["b"], ["y"], "q")


def test_a_users_own_source_is_a_source() -> None:
    class Squares(Source):
        """Made when asked for."""

        def __len__(self) -> int:
            return 3

        def fetch(self, rows: torch.Tensor, chance: torch.Generator | None = None) -> torch.Tensor:
            return rows.view(-1, 1, 1, 1).expand(-1, 1, 4, 4).to(torch.uint8)

        def name(self, row: int) -> str:
            return f"square {row}"

        def identity(self, *, dated: bool = False) -> list[bytes]:
            return [b"squares"]

    stream = Stream(Squares(), torch.tensor([0, 1, 0]), ("even", "odd"), "squares").subset(torch.tensor([2]))
    assert stream.samples.name(0) == "square 2"
    assert int(stream.fetch(torch.tensor([0])).max()) == 2
    assert len(stream.digest()) == 16
