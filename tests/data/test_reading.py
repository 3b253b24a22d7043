"""What a recipe says of its data reaches whoever reads them: no key is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand.data import domains, pool, prepared, reading
from evenhand.data.facts import Facts
from evenhand.data.holdout import Whole, held_rows, hold_out_count, hold_out_share
from evenhand.data.prepared import Seen, data_of
from evenhand.data.settings import DataSettings
from evenhand.data.sources import formats
from evenhand.data.sources.frames import Frame
from evenhand.data.sources.rows import Columns
from evenhand.data.stream import Memory, Stream
from evenhand.data.tokenising import TextSettings
from evenhand.data.uneven import make_longtailed
from evenhand.errors import UserError
from helpers import save_picture

ASKED: dict[str, Any] = {"size": 20, "grey": True, "skip_unreadable": True, "frame": "pad"}
COLUMNS: dict[str, Any] = {"label_column": "kind", "text_column": "said", "columns": ["a", "b"]}
BOXED: dict[str, Any] = {"augment": ["resized-crop"]}  # pictures stay files


def stream(count: int = 6, side: int = 8) -> Stream:
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(count, 3, side, side)
    return Stream(Memory(images), torch.arange(count) % 2, ("a", "b"), "all")


def test_a_folder_is_read_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(formats, "read", lambda place, **how: seen.update(how, place=place) or {"all": stream()})
    asked = {k: v for k, v in ASKED.items() if k != "frame"}
    parts = reading.read_set(DataSettings(set="here", **asked, **COLUMNS, **BOXED), whole=True)
    assert list(parts) == ["train"]
    assert seen == {
        "place": "here", "size": 20, "mode": "L", "skip_unreadable": True, "whole": True,
        "columns": Columns("kind", "said", ("a", "b")), "frame": "auto", "memory": False,
    }  # fmt: skip
    reading.read_set(DataSettings(set="here"))
    assert (seen["mode"], seen["whole"], seen["memory"], seen["size"]) == ("RGB", False, None, None)
    assert (seen["skip_unreadable"], seen["columns"]) == (False, Columns())


def test_image_lists_are_read_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(reading, "read_image_list", lambda *place, **how: calls.append((*place, how)) or stream())
    lists: dict[str, Any] = {"set": "a.txt", "root": "pics", "test_list": "b.txt", "val_list": "c.txt"}
    parts = reading.read_set(DataSettings(**lists, **ASKED, **BOXED), whole=True)
    how = {"size": 20, "mode": "L", "skip_unreadable": True, "whole": True, "frame": "pad", "memory": False}
    assert calls == [("a.txt", "pics", how), ("b.txt", "pics", how), ("c.txt", "pics", how)]
    assert {split: part.name for split, part in parts.items()} == {"train": "train", "test": "test", "val": "val"}
    assert parts["train"].classes == ("0", "1")
    del lists["val_list"]
    assert list(reading.read_set(DataSettings(**lists))) == ["train", "test"]
    assert calls[-1][2]["size"] == 224


def test_domains_are_read_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(formats, "read", lambda place, **how: seen.update(how, place=place) or {})
    settings = DataSettings(set="x", **ASKED, **COLUMNS, **BOXED)
    domains._read(Path("there"), settings, 30, ["k"])
    assert seen == {
        "place": Path("there"), "size": 30, "mode": "L", "skip_unreadable": True, "classes": ["k"],
        "columns": Columns("kind", "said", ("a", "b")), "frame": "pad", "memory": False,
    }  # fmt: skip
    listed: list[Any] = []
    monkeypatch.setattr(domains, "read_image_list", lambda *place, **how: listed.append((*place, how)) or stream())
    domains._list("l.txt", settings.model_copy(update={"root": str(tmp_path)}))
    how = {"size": 20, "mode": "L", "skip_unreadable": True, "frame": "pad", "memory": False}
    assert listed == [(tmp_path / "l.txt", tmp_path, how)]
    domains._list("l.txt", DataSettings(set="x"))
    assert listed[-1][2] == {"size": 224, "mode": "RGB", "skip_unreadable": False, "frame": "auto", "memory": None}


def test_loose_images_are_framed_as_the_recipe_says(tmp_path: Path) -> None:
    for i in range(3):
        save_picture(tmp_path / "sub" / f"{i}.png", 30, 60, i)
    wide = domains._loose(tmp_path, DataSettings(set="x"), 16)
    assert (wide.samples.frame, wide.name, wide.labels, wide.classes) == (
        Frame(16, "squash", 16),
        tmp_path.name,
        None,
        (),
    )
    assert (wide.samples.name(0), wide.samples.decodes) == ("sub/0.png", False)
    large = domains._loose(tmp_path, DataSettings(set="x", frame="crop", grey=True, **BOXED), None)
    assert (large.samples.frame, large.samples.decodes) == (Frame(224, "crop", 256), True)
    assert large.fetch(torch.tensor([0])).shape == (1, 1, 224, 224)
    (tmp_path / "bad.png").write_bytes(b"no")
    with pytest.warns(UserWarning, match="skipped 1 unreadable"):
        assert len(domains._loose(tmp_path, DataSettings(set="x", skip_unreadable=True), 16)) == 3


def test_a_pool_is_read_as_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("cat/0.png", "dog/1.png"):
        save_picture(tmp_path / "pics" / name, 30, 60)
    found = pool.read_pool(tmp_path / "pics", size=100, mode="L", frame="pad", whole=True, labelled=True)
    assert (found.names, found.labels) == (["cat/0.png", "dog/1.png"], ("cat", "dog"))
    assert (found.source.frame, found.source.fetch(torch.tensor([1])).shape) == (
        Frame(100, "pad", 100),
        (1, 1, 100, 100),
    )
    assert found.source.whole  # type: ignore[attr-defined]
    usual = pool.read_pool(tmp_path / "pics")
    assert (usual.source.frame, usual.labels) == (Frame(224, "crop", 256), ())
    rest = found.without({"cat/0.png"})
    assert (rest.names, rest.labels) == (["dog/1.png"], ("dog",))
    seen: dict[str, Any] = {}
    monkeypatch.setattr(formats, "read", lambda _, **how: seen.update(how) or {"train": stream()})
    table = tmp_path / "t.csv"
    table.write_text("x")
    asked = pool.read_pool(
        table, size=9, mode="L", frame="pad", whole=True, columns=Columns("kind"), labelled=True, skip_unreadable=True
    )
    assert asked.labels == ("a", "b", "a", "b", "a", "b")
    assert seen == {
        "size": 9, "mode": "L", "frame": "pad", "whole": True, "skip_unreadable": True, "memory": False,
        "columns": Columns("kind", bare=False),
    }  # fmt: skip
    pool.read_pool(table, columns=Columns("kind"))
    assert seen["columns"] == Columns("kind", bare=True)
    assert (seen["size"], seen["mode"], seen["frame"], seen["whole"], seen["skip_unreadable"]) == (
        224, "RGB", "crop", False, False,
    )  # fmt: skip


def test_views_are_built_of_the_facts_and_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(prepared, "build", lambda names, **how: calls.append((names, how)))
    facts = Facts(classes=("a", "b"), counts=[1, 1], size=[20, 24], mean=[0.1], std=[0.2], inputs=1)
    data = data_of(DataSettings(augment=["flip"], strong=["cutout"]), facts)
    how = {"size": 24, "mean": [0.1], "std": [0.2], "enlarged": False}
    assert calls == [(["flip"], how), (["cutout"], how), ([], how)]
    assert (data.side, data.streams, data.enlarged) == (24, {}, None)
    larger = data_of(DataSettings(enlarge=30), facts)
    assert calls[-1] == ([], {**how, "size": 30, "enlarged": True})
    assert (larger.side, larger.enlarged) == (30, 30)
    data_of(DataSettings(enlarge=24), facts)
    assert calls[-1] == ([], how)
    with pytest.raises(UserError, match="less than the images' side, 24"):
        data_of(DataSettings(enlarge=23), facts)
    with pytest.raises(UserError, match="is for images, but the samples are vectors"):
        data_of(DataSettings(enlarge=30), facts.model_copy(update={"kind": "vectors"}))


def test_views_of_texts_are_built_of_the_settings() -> None:
    facts = Facts(kind="tokens", classes=("a", "b"), counts=[1, 1], words=("x", "y"), translations=True)
    text = TextSettings(length=5, cut="ends", augment=["back-translation"], strong=["swap"])
    data = data_of(DataSettings(text=text), facts)
    views: Any = (data.train_view, data.strong_view, data.eval_view)
    assert [(view.length, len(view.steps), view.translated) for view in views] == [
        (5, 0, True),
        (5, 1, False),
        (5, 0, False),
    ]
    assert data.vocabulary is not None
    assert data.vocabulary.encode(["x y x y x y x"]).tolist() == [[2, 3, 2, 3, 2]]
    assert data.vocabulary.cut == "ends"  # type: ignore[attr-defined]


def test_facts_tell_how_a_picture_is_cut() -> None:
    def framing(**facts: Any) -> Frame:
        return Facts(classes=("a",), counts=[1], **facts).framing

    assert framing(size=[95, 95]) == Frame(95, "crop", 95)
    assert framing(size=[96, 96]) == Frame(96, "crop", 110)
    assert framing(size=[224, 224], resize=224) == Frame(224, "crop", 224)
    assert framing(size=[30, 40], frame="pad", resize=40) == Frame(40, "pad", 40)
    assert framing(size=[96, 96], frame=None) == Frame(96, "crop", 110)
    usual = Facts(classes=("a",), counts=[1])
    assert (usual.kind, usual.inputs, usual.frame, usual.resize, usual.translations) == (
        "images",
        3,
        "crop",
        None,
        False,
    )
    framed = Memory(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), frame=Frame(8, "pad", 9))
    assert Seen.of(Stream(framed, None, (), "x")) == Seen([8, 8], "pad", 9)
    assert Seen.of(stream()) == Seen([8, 8], None, 8)
    assert Seen.of(Stream(Memory(torch.zeros(2, 3)), None, (), "x")) == Seen([])


def whole(counts: list[int], groups: list[int] | None = None) -> Whole:
    labels = torch.tensor([k for k, n in enumerate(counts) for _ in range(n)])
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    names = tuple("abcd"[: len(counts)])
    numbers = torch.arange(len(labels)) if groups is None else torch.tensor(groups)
    return Whole(Stream(Memory(images), labels, names, "all"), numbers)


def test_a_share_of_every_class_and_at_least_one_is_held_out() -> None:
    rest, held = hold_out_share(whole([20, 5, 2]), 0.25, 0, "test")
    assert (held.counts, rest.stream.counts) == ([5, 1, 1], [15, 4, 1])
    assert (held.name, rest.stream.name) == ("test", "train")
    with pytest.warns(UserWarning, match=r"left out of the val split, having fewer than 3 samples .*: c$"):
        assert hold_out_share(whole([20, 5, 2]), 0.25, 0, "val", 3)[1].counts == [5, 1, 0]
    with pytest.warns(UserWarning, match=r"fewer than 2 samples .*: b$"):
        assert hold_out_share(whole([20, 1]), 0.25, 0, "val")[1].counts == [5, 0]
    assert hold_out_count(whole([5, 3]), 2, 0, "val")[1].counts == [2, 2]
    with pytest.raises(UserError, match="class 'b' has 3 samples: too few to hold out 3 as val"):
        hold_out_count(whole([5, 3]), 3, 0, "val")


def test_whole_groups_are_held_out_while_they_fit() -> None:
    labels = torch.zeros(6, dtype=torch.int64)
    for seed in range(5):
        held, short = held_rows(labels, [3], seed, torch.tensor([0, 0, 0, 0, 4, 5]), "subset", least=1)
        assert held.nonzero()[:, 0].tolist() == [4, 5]  # four copies do not fit in three
        assert short == []
        assert held_rows(labels, [3], seed, torch.tensor([0, 0, 0, 0, 4, 5]), "subset", least=3)[1] == [0]
        assert held_rows(labels, [9], seed, torch.arange(6), "subset", least=1)[0].sum() == 5  # one stays
    assert held_rows(labels, [0], 0, torch.arange(6), "subset", least=1)[1] == []


def test_a_share_of_labels_is_hidden_and_the_rest_is_unlabelled() -> None:
    data = whole([10, 5, 1]).stream
    labelled, hidden = make_longtailed(data, DataSettings(labelled_share=0.3))
    assert hidden is not None
    assert (labelled.counts, hidden.counts, hidden.name) == ([3, 2, 1], [7, 3, 0], "unlabelled")
    assert make_longtailed(data, DataSettings()) == (data, None)
    cut, none = make_longtailed(whole([10, 5]).stream, DataSettings(imbalance=2.5))
    assert (cut.counts, none) == ([5, 2], None)
    cut, hidden = make_longtailed(whole([10, 5]).stream, DataSettings(imbalance=2, n_max=8, labelled_share=0.5))
    assert hidden is not None
    assert (cut.counts, hidden.counts) == ([4, 2], [4, 2])
    options = DataSettings(imbalance=2, n_max=4, unlabelled_max=2, unlabelled_kind="inverted")
    cut, hidden = make_longtailed(whole([10, 5]).stream, options)
    assert hidden is not None
    assert (cut.counts, hidden.counts) == ([4, 2], [1, 2])
    with pytest.raises(UserError, match="class 'b' has 5 samples, the profile wants 6"):
        make_longtailed(whole([10, 5]).stream, DataSettings(imbalance=1.5, n_max=9))
