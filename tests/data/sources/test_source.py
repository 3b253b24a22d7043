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
from evenhand.data.sources import source as source_module
from evenhand.data.sources.files import Files
from evenhand.data.sources.formats import read
from evenhand.data.sources.frames import Cuts, Frame
from evenhand.data.sources.items import Items
from evenhand.data.sources.source import Joined, Memory, Picked, Source, joined, reframed
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


def test_memory_keeps_frame_files_and_origin_of_what_is_picked() -> None:
    frame, looked_at = Frame(12, "crop", 14), Texts(["a", "b", "c", "d", "e"])
    whole = Memory(images(), [f"m{i}" for i in range(N)], looked_at, frame=frame, files=[f"f{i}" for i in range(N)])
    some = whole.pick(torch.tensor([3, 1]))
    assert (some.name(0), some.path(1), some.frame) == ("m3", "f1", frame)
    assert some.origin is not None
    assert some.origin.text(1) == "b"
    plain = Memory(images())
    assert (plain.name(2), plain.path(2), plain.frame, plain.origin) == ("2", None, None, None)
    assert plain.pick(torch.tensor([4])).path(0) is None
    small = whole.framed(6, 3)
    assert (small.frame, small.path(4), small.name(4)) == (Frame(6, "crop", 7), "f4", "m4")
    assert whole.framed(12, 3) is whole
    assert whole.framed(12, 1).samples.shape == (N, 1, 12, 12)
    vectors = Memory(torch.zeros(2, 3))
    assert (vectors.kind, vectors.framed(4, 1), vectors.cut(frame, 1)) == ("vectors", vectors, vectors)
    assert Memory(torch.zeros(2, 3, dtype=torch.int64)).kind == "tokens"
    with pytest.raises(ValueError, match="give images as uint8"):
        Memory(torch.zeros(2, 3, 4, 4))


def test_arrays_are_cut_only_where_the_frame_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    square = Memory(images(), [f"m{i}" for i in range(N)])
    same = square.cut(Frame(12, "crop", 12), 3)
    assert torch.equal(same.samples, square.samples)
    assert (same.frame, same.name(1)) == (Frame(12, "crop", 12), "m1")
    assert not torch.equal(square.cut(Frame(12, "crop", 14), 3).samples, square.samples)
    assert square.cut(Frame(8, "crop", 8), 1).samples.shape == (N, 1, 8, 8)
    monkeypatch.setattr(source_module, "cut_arrays", None)
    square.cut(Frame(12, "crop", 12), 3)


def test_grey_is_luma_and_sizes_change_without_aliasing() -> None:
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 20, 30]], dtype=torch.uint8).view(4, 3, 1, 1)
    assert reframed(colours, 0, 1).flatten().tolist() == [76, 150, 29, 18]
    assert reframed(colours[:, :1], 0, 3)[3].flatten().tolist() == [10, 10, 10]
    assert reframed(colours, 0, 3) is not None
    stripes = (torch.arange(16) % 2 * 200).to(torch.uint8).expand(1, 1, 16, 16)
    small = reframed(stripes, 4, 1).float()
    assert small.shape == (1, 1, 4, 4)
    assert (small - 100).abs().max() < 20  # the mean, not some of the stripes
    assert torch.equal(reframed(stripes, 16, 1), stripes)


def test_joined_sources_answer_row_by_row(tmp_path: Path) -> None:
    texts, files = Texts(["x", "y"]), from_files(tmp_path)
    both = Joined([Texts(["p"]), texts])
    assert (both.text(0), both.text(2), both.kind) == ("p", "y", "texts")
    mixed = Joined([Memory(images(2), ["a", "b"]), files])
    assert (len(mixed), mixed.decodes, mixed.name(1), mixed.name(2)) == (7, True, "b", "0.png")
    assert not Joined([Memory(images(2)), Memory(images(2))]).decodes
    rows = torch.tensor([6, 0, 2, 1])
    apart = torch.cat([files.fetch(torch.tensor([4])), images(2)[:1], files.fetch(torch.tensor([0])), images(2)[1:2]])
    assert torch.equal(mixed.fetch(rows), apart)
    assert len(mixed.fetch(torch.empty(0, dtype=torch.int64))) == 0
    squared = mixed.squared().parts[1]
    assert squared.squares  # type: ignore[attr-defined]
    assert Picked(files, torch.tensor([1])).squared().inner.squares  # type: ignore[attr-defined]
    assert Picked(Memory(images()), torch.tensor([1])).boxed(Cuts(4)) is None
    assert mixed.frame is None
    assert Joined([files, Memory(images(2))]).frame == files.frame
    dated = list(Joined([files]).identity(dated=True))
    assert dated == list(files.identity(dated=True)) != list(files.identity())
    picked = list(Picked(files, torch.tensor([1])).identity(dated=True))
    assert picked[1:] == dated


def test_joined_memory_has_files_and_origins_where_all_have() -> None:
    def held(files: list[str] | None, origin: Source | None) -> Memory:
        return Memory(images(2), ["a", "b"], origin, frame=Frame(12), files=files)

    known = joined([held(["f", "g"], Texts(["1", "2"])), held(["h", "i"], Texts(["3", "4"]))])
    assert (known.path(2), known.frame) == ("h", Frame(12))
    assert known.origin is not None
    assert known.origin.text(3) == "4"
    partly = joined([held(["f", "g"], Texts(["1", "2"])), held(None, None)])
    assert (partly.path(0), partly.origin) == (None, None)
    alone = held(None, None)
    assert joined([alone]) is alone
