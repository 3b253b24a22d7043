"""Lists, tables and arrays of what is to be predicted, line by line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.run.inputs import Inputs, _array, _column, _table
from helpers import save_picture, toy_data


def inputs(settings: DataSettings | None = None, **facts: Any) -> Inputs:
    return Inputs(settings or DataSettings(), toy_data("ab", **facts))


def pixels(source: Any) -> Any:
    return source.fetch(torch.arange(len(source)))


def test_a_table_is_read_by_its_own_delimiter(tmp_path: Path) -> None:
    for name, text in (
        ("a.csv", "path, label\n x.png , 1\n\n,\ny;z.png,2\n"), ("b.csv", "path;label\nx.png;1\n\n;\n\"y;z.png\";2\n"),
        ("c.tsv", "path\tlabel\nx.png\t1\n\n\t\ny;z.png\t2\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        header, rows = _table(tmp_path / name)
        assert header == ["path", "label"]
        assert rows == [(1, ["x.png", "1"]), (4, ["y;z.png", "2"])]
    (tmp_path / "d.csv").write_text("\n\na;b,c\n1;2,3\n")  # as many of both: commas
    assert _table(tmp_path / "d.csv") == (["a;b", "c"], [(1, ["1;2", "3"])])
    (tmp_path / "e.csv").write_text("\n ,\n")
    with pytest.raises(UserError, match="is empty; add lines"):
        _table(tmp_path / "e.csv")


def test_a_column_is_found_by_name_or_is_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,path\n1,x.png\n2\n3,y.png\n")
    assert _column(tmp_path / "a.csv", "path") == [(1, "x.png"), (3, "y.png")]
    with pytest.raises(UserError, match="has no column 'pat'; did you mean 'path'"):
        _column(tmp_path / "a.csv", "pat")
    (tmp_path / "b.csv").write_text("x.png\n\ny.png\n")
    assert _column(tmp_path / "b.csv", "path") == [(1, "x.png"), (3, "y.png")]
    (tmp_path / "c.txt").write_text("one\n\n two \n")
    assert _column(tmp_path / "c.txt", "path") == [(1, "one"), (3, "two")]
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n\n{"text": 7}\n')
    assert _column(tmp_path / "d.jsonl", "text") == [(1, "a"), (3, "7")]
    (tmp_path / "cut.jsonl").write_text('{"text": "fine \\ud83d"}\n')  # half an emoji
    assert _column(tmp_path / "cut.jsonl", "text") == [(1, "fine ?")]
    with pytest.raises(UserError, match="line 1 has no 'words'"):
        _column(tmp_path / "d.jsonl", "words")


def test_the_array_to_predict_is_known_by_name_or_is_the_only_one(tmp_path: Path) -> None:
    one, two = np.zeros((1, 2)), np.ones((1, 2))
    for arrays, wanted in (({"q": one}, one), ({"y": one, "x": two}, two), ({"images": two, "x": one}, one)):
        np.savez(tmp_path / "a.npz", **arrays)
        assert np.array_equal(_array(tmp_path / "a.npz"), wanted)
    np.savez(tmp_path / "a.npz", p=one, q=two)
    with pytest.raises(UserError, match=r"holds p, q; name the array to be predicted 'x'"):
        _array(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"cannot read .*b\.npy"):
        _array(tmp_path / "b.npy")


def test_colour_is_as_in_training_and_before_any_embedding_as_set() -> None:
    assert [inputs(inputs=n).channels for n in (1, 3)] == [1, 3]
    assert [inputs(inputs=n).mode for n in (1, 3)] == ["L", "RGB"]
    assert inputs(kind="vectors", inputs=1).channels == 3
    assert inputs(DataSettings(grey=True), kind="vectors", inputs=7).channels == 1


def test_what_one_input_is_follows_from_kind_and_embedding() -> None:
    assert [inputs(kind=kind).reads for kind in ("tokens", "images", "vectors", "scenes")] == [
        "texts", "images", "vectors", "scenes",
    ]  # fmt: skip
    assert inputs(DataSettings(embed="mobilenet_v2"), kind="vectors").reads == "images"


def test_one_picture_of_three_axes_is_told_from_grey_ones() -> None:
    model = inputs(size=[4, 4])
    assert len(model.source(np.zeros((5, 6, 3), np.uint8))) == 1
    assert len(model.source(np.zeros((5, 6, 6), np.uint8))) == 5
    assert len(model.source(np.zeros((5, 3, 3), np.uint8))) == 5  # grey ones 3 wide
    grey = model.source(
        [np.zeros((5, 6), np.uint8), Image.new("L", (7, 9), 9), torch.zeros(6, 6, 3, dtype=torch.uint8)]
    )
    assert pixels(grey).shape == (3, 3, 4, 4)
    assert [grey.name(row) for row in range(3)] == ["image 0", "image 1", "image 2"]


def test_vectors_are_as_wide_as_in_training(tmp_path: Path) -> None:
    model = inputs(kind="vectors", inputs=2)
    assert pixels(model.source([[1, 2], [3, 4]])).tolist() == [[1, 2], [3, 4]]
    for wrong in (np.zeros((2, 3)), np.zeros(2), np.zeros((1, 2, 2))):
        with pytest.raises(UserError, match=r"this model takes vectors \(N, 2\)"):
            model.source(wrong)
    with pytest.raises(UserError, match=r"this model takes images \(N, H, W, C\)"):
        inputs(size=[4, 4]).source(np.zeros((2, 3)))
    np.save(tmp_path / "a.npy", np.array([[1.0, 2.0]]))
    found = model.files([tmp_path / "a.npy"])
    assert (pixels(found).tolist(), found.name(0)) == ([[1, 2]], "a.npy/0")
    (tmp_path / "t.csv").write_text("label,b,a\nx,1,2\n\ny,3,4\n")
    named = inputs(kind="vectors", inputs=2, columns=("a", "b")).files([tmp_path / "t.csv"])
    assert pixels(named).tolist() == [[2, 1], [4, 3]]
    assert [named.name(row) for row in range(2)] == ["t.csv:1", "t.csv:3"]
    assert pixels(model.files([tmp_path / "t.csv"])).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(UserError, match="has no column 'c'"):
        inputs(kind="vectors", inputs=1, columns=("c",)).files([tmp_path / "t.csv"])


def test_images_are_named_from_their_folder_down_if_it_is_alone(tmp_path: Path) -> None:
    model = inputs(size=[4, 4])
    for name in ("x/a.png", "y/b.png"):
        save_picture(tmp_path / name)
    alone = model.files([tmp_path / "x"])
    assert [alone.name(row) for row in range(len(alone))] == ["a.png"]
    both = model.files([tmp_path / "x", tmp_path / "y"])
    assert [both.name(row) for row in range(2)] == [(tmp_path / name).as_posix() for name in ("x/a.png", "y/b.png")]
    (tmp_path / "list.csv").write_text("path\nx/a.png\ny/b.png\n")
    listed = model.files([tmp_path / "list.csv"])
    assert [listed.name(row) for row in range(2)] == ["x/a.png", "y/b.png"]
    assert pixels(listed).shape == (2, 3, 4, 4)
    assert len(model.files([])) == 0
    np.save(tmp_path / "v.npy", np.zeros((2, 4, 4), np.uint8))
    mixed = model.files([tmp_path / "x", tmp_path / "v.npy"])
    assert pixels(mixed).shape == (3, 3, 4, 4)


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
def test_images_of_any_name_are_predicted(tmp_path: Path) -> None:
    for name in ("1.png", "2.png"):
        save_picture(tmp_path / name)
    try:
        (tmp_path / "2.png").rename(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"ph\xff.png")))
    except OSError:
        pytest.skip("this file system takes no such name")
    found = inputs(size=[4, 4]).files([tmp_path])
    assert [found.name(row) for row in range(2)] == ["1.png", r"ph\xff.png"]
    assert pixels(found).shape == (2, 3, 4, 4)


def test_scenes_keep_their_size_and_their_names() -> None:
    model = inputs(kind="scenes")
    found = model.source(np.zeros((2, 5, 7), np.uint8))
    assert [tuple(image.shape) for image in pixels(found)] == [(3, 5, 7)] * 2
    assert [found.name(row) for row in range(2)] == ["image 0", "image 1"]


def test_what_cannot_be_gone_through_is_no_input() -> None:
    with pytest.raises(UserError, match="cannot predict of 7"):
        inputs().source(7)
    with pytest.raises(UserError, match="cannot predict of 8"):
        inputs().source([8, "a.png"])


def test_scenes_of_files_are_as_grey_as_the_model(tmp_path: Path) -> None:
    save_picture(tmp_path / "x" / "a.png", 9, 5)
    for grey in (False, True):
        found = inputs(DataSettings(grey=grey), kind="scenes").files([tmp_path / "x"])
        assert tuple(pixels(found)[0].shape) == (1 if grey else 3, 5, 9)
        assert found.name(0) == "a.png"
