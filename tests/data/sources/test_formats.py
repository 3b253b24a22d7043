from __future__ import annotations

import csv
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from evenhand.data.sources import formats
from evenhand.data.sources.files import Files
from evenhand.data.sources.formats import read
from evenhand.data.sources.paths import images_in, other_files, printable
from evenhand.data.sources.soundness import check
from evenhand.data.stream import Memory
from evenhand.errors import UserError
from helpers import save, table, tree


def values(streams: dict[str, formats.Stream], key: str) -> list[int]:
    """The red value of each image, by which the tests tell them apart."""
    stream = streams[key]
    return stream.fetch(torch.arange(len(stream)))[:, 0, 0, 0].tolist()


# folders


def test_class_folders(tmp_path: Path) -> None:
    streams = read(tree(tmp_path, "dog/10.png", "dog/9.png", "cat/x.png", "cat/deep/er/y.PNG"))
    assert list(streams) == ["all"]
    assert streams["all"].classes == ("cat", "dog")
    assert streams["all"].labels.tolist() == [0, 0, 1, 1]
    assert values(streams, "all") == [3, 2, 1, 0]
    assert isinstance(streams["all"].samples, Memory)
    assert streams["all"].samples.samples.shape == (4, 3, 16, 16)


def test_split_folders_share_their_classes(tmp_path: Path) -> None:
    tree(tmp_path, "train/a/1.png", "train/b/1.png", "val/b/1.png", "test/c/1.png", "unlabelled/1.png")
    save(tmp_path / "unlabelled/b/2.png")
    streams = read(tmp_path)
    assert list(streams) == ["train", "val", "test", "unlabelled"]
    assert {stream.classes for stream in streams.values()} == {("a", "b", "c")}
    assert streams["test"].labels.tolist() == [2]
    assert streams["unlabelled"].labels is None
    assert len(streams["unlabelled"]) == 2


def test_domain_folders(tmp_path: Path) -> None:
    tree(tmp_path, "art/mug/1.png", "art/pen/1.png", "photo/mug/1.png", "photo/pen/1.png", "photo/pen/2.png")
    (tmp_path / "image_list").mkdir()
    (tmp_path / "image_list/art.txt").write_text("mug/1.png 0\n")
    streams = read(tmp_path)
    assert list(streams) == ["art", "photo"]
    assert streams["photo"].counts == [1, 2]


def test_domain_mismatch_names_what_is_missing_where(tmp_path: Path) -> None:
    tree(tmp_path, "art/mug/1.png", "art/pen/1.png", "photo/mug/1.png", "photo/saw/1.png", "art/owl/1.png")
    with pytest.raises(UserError, match=r"'art' lacks saw; 'photo' lacks owl, pen; .*intersection"):
        read(tmp_path)
    streams = read(tmp_path, classes="intersection")
    assert streams["art"].classes == ("mug",)
    assert (len(streams["art"]), len(streams["photo"])) == (1, 1)
    tree(tmp_path / "other", "a/x/1.png", "b/y/1.png")
    with pytest.raises(UserError, match=r"share 0 class\(es\)"):
        read(tmp_path / "other", classes="intersection")


def test_given_classes_fix_the_order(tmp_path: Path) -> None:
    tree(tmp_path, "cat/1.png", "dog/1.png")
    assert read(tmp_path, classes=["dog", "cat"])["all"].labels.tolist() == [1, 0]
    with pytest.raises(UserError, match=r"'dog' of .*1\.png.*did you mean 'dogs'"):
        read(tmp_path, classes=["cat", "dogs"])
    with pytest.raises(UserError, match="'union'"):
        read(tmp_path, classes="union")


def test_trap_11_order_on_disk_and_global_state_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"train/class{k}/img{i}.png" for k in (1, 2, 10) for i in (1, 2, 10, 11)]
    tree(tmp_path / "forward", *names)
    for name in reversed(names):
        save(tmp_path / "backward" / name, value=names.index(name))
    one = read(tmp_path / "forward")["train"]
    assert one.classes == ("class1", "class2", "class10")
    assert values({"x": one}, "x") == list(range(12))
    walk, iterdir = os.walk, Path.iterdir

    def shuffled(root: Path, **options: bool) -> object:
        for place, inside, files in walk(root, **options):
            random.shuffle(inside)
            random.shuffle(files)
            yield place, inside, files

    monkeypatch.setattr(os, "walk", shuffled)
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(random.sample(found := list(iterdir(self)), len(found))))
    for memory in (True, False):
        expected = read(tmp_path / "forward", memory=memory)["train"].digest()
        for seed in range(4):
            random.seed(seed)
            torch.manual_seed(seed)
            assert read(tmp_path / "backward", memory=memory)["train"].digest() == expected


def test_size_and_memory_rules(tmp_path: Path) -> None:
    tree(tmp_path, "a/1.png", "b/1.png", side=80)
    assert isinstance(read(tmp_path)["all"].samples, Files)
    assert read(tmp_path)["all"].samples.size == 80
    assert isinstance(read(tmp_path, size=64)["all"].samples, Memory)
    assert isinstance(read(tmp_path, size=32, memory=False)["all"].samples, Files)
    assert read(tmp_path, size=32, mode="L")["all"].samples.samples.shape == (2, 1, 32, 32)
    tree(tmp_path / "large", "a/1.png", side=300)
    assert read(tmp_path / "large")["all"].samples.size == 224


def test_other_files_are_told_without_what_is_hidden_at_any_depth(tmp_path: Path) -> None:
    root = tmp_path / ".kept" / "photos"  # where the folder itself lies does not count
    for name in ("a/1.pdf", "a/b/2.pdf", "notes", ".DS_Store", ".git/HEAD", ".git/objects/ab/cd", "a/.b/c/3.pdf"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    assert other_files(root) == {".pdf": 2, "no extension": 1}


def test_bad_folders_get_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"'{tmp_path}/no/such' does not exist; .* is '{tmp_path}'"):
        read(tmp_path / "no/such")
    with pytest.raises(UserError, match=r"no images under .*; add some \(\.jpg, \.jpeg"):
        read(tmp_path)
    save(tmp_path / "flat/1.png")
    with pytest.raises(UserError, match=r"no class folders; expected flat/<class>"):
        read(tmp_path / "flat")
    tree(tmp_path / "typo", "train/a/1.png", "tset/a/1.png")
    with pytest.raises(UserError, match=r"typo/tset.*did you mean 'test'"):
        read(tmp_path / "typo")
    save(tmp_path / "thing.h5x.png").rename(tmp_path / "thing.h5")
    with pytest.raises(UserError, match=r"unknown type '\.h5'"):
        read(tmp_path / "thing.h5")


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
@pytest.mark.parametrize("place", [b"train/a/x\xff.png", b"train/c\xff/1.png"])
def test_names_that_are_not_utf8_get_one_clear_line(tmp_path: Path, place: bytes) -> None:
    tree(tmp_path, "train/a/1.png", "train/b/1.png")
    odd = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), place)))
    odd.parent.mkdir(exist_ok=True)
    try:
        odd.write_bytes((tmp_path / "train/a/1.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes no such name")
    with pytest.raises(UserError, match=r"the name of '.*\\xff(/1)?(\.png)?' is not UTF-8: rename it"):
        read(tmp_path)
    found = images_in(tmp_path, any_name=True)  # to be predicted: the names are shown, the others' too
    assert len(found) == 3
    assert odd in found or odd / "1.png" in found
    assert sum("\\xff" in printable(str(path)) for path in found) == 1


def test_trap_12_empty_class_folder_is_named(tmp_path: Path) -> None:
    for root in ("plain", "split/train"):
        tree(tmp_path / root, "cat/1.png", "dog/1.png")
        (tmp_path / root / "lynx").mkdir()
    (tmp_path / "plain/lynx/notes.txt").write_text("later")
    for root in ("plain", "split"):
        with pytest.raises(UserError, match=r"class folder '.*lynx' is empty"):
            read(tmp_path / root)
        assert any("lynx" in problem.message and problem.severity == "error" for problem in check(tmp_path / root))


def test_trap_12_truncated_image_is_found_by_check_and_skipped_only_when_asked(tmp_path: Path) -> None:
    tree(tmp_path, "train/a/1.png", "train/a/2.png", "train/b/1.png")
    bad = tmp_path / "train/a/2.png"
    bad.write_bytes(bad.read_bytes()[:40])
    with pytest.raises(UserError, match=r"2\.png"):
        read(tmp_path)
    (problem,) = check(tmp_path)
    assert (problem.kind, problem.file) == ("unreadable", str(bad))
    skipped: list[str] = []
    with pytest.warns(UserWarning, match=r"skipped 1 unreadable of 3 .*2\.png"):
        streams = read(tmp_path, skip_unreadable=True, skipped=skipped)
    assert skipped == [str(bad)]
    assert streams["train"].counts == [1, 1]
    bad.unlink()
    assert check(tmp_path) == []
    assert [p.kind for p in check(tmp_path / "missing")] == ["layout"]


# CSV


def test_csv_keys(tmp_path: Path) -> None:
    tree(tmp_path / "img", "1.png", "2.png", "3.png")
    plain = read(table(tmp_path, "path,label\nimg/3.png,dog\nimg/1.png,cat\n"))
    assert list(plain) == ["all"]
    assert values(plain, "all") == [2, 0]
    assert plain["all"].labels.tolist() == [1, 0]
    split = read(
        table(
            tmp_path,
            "\ufeffsplit, label, path\ntrain,10,img/1.png\ntest,9,img/2.png\nunlabelled,,img/3.png\n",
        )
    )
    assert list(split) == ["train", "test", "unlabelled"]
    assert split["train"].classes == ("9", "10")
    assert split["unlabelled"].labels is None
    domain = read(table(tmp_path, "path,label,domain\nimg/1.png,a,real\nimg/2.png,a,sketch\n"))
    assert list(domain) == ["real", "sketch"]
    both = read(
        table(
            tmp_path,
            "path,label,domain,split\nimg/1.png,a,real,train\nimg/2.png,a,real,test\nimg/3.png,,art,unlabelled\n",
        )
    )
    assert list(both) == ["real/train", "real/test", "art/unlabelled"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\n1.png,a\n", "no column 'path'; known: file, label"),
        ("path,labels\n1.png,a\n", "no column 'label'; did you mean 'labels'"),
        ("path,label,splits\n1.png,a,train\n", "unknown column 'splits'; did you mean 'split'"),
        ("path,label,split\n1.png,a,trian\n", "line 2: split 'trian' is unknown; did you mean 'train'"),
        ("path,label\n1.png,a\n1.png,\n", "line 3.*with and without label"),
        ("path,label\n,a\n", "line 2 has no path"),
        ("path,label\nx.png,a,b\n", "line 2 has more cells than the header"),
        ("path,label\n", "no rows"),
        ("path,label\nmissing.png,a\n", r"missing\.png"),
        ("path,label,domain\n1.png,a,x\n1.png,b,y\n", "'x' lacks b; 'y' lacks a"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    save(tmp_path / "1.png")
    with pytest.raises(UserError, match=message):
        read(table(tmp_path, text), size=16)
    assert check(table(tmp_path, text))[0].severity == "error"


def test_csv_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes("path,label\nü.png,a".encode("latin1"))
    with pytest.raises(UserError, match=r"list\.csv' is not UTF-8"):
        read(tmp_path / "list.csv")


def test_a_short_table_leaves_other_readers_their_long_fields(tmp_path: Path) -> None:
    """The limit is the process's: it may rise for a long text, and never fall."""
    before = csv.field_size_limit()
    tree(tmp_path, "img/1.png")
    read(table(tmp_path, "path,label\nimg/1.png,a\n"))
    assert csv.field_size_limit() >= before


@pytest.mark.parametrize("kind", ["images", "texts", "numbers", "arrays"])
def test_labels_of_the_unlabelled_split_are_not_read(tmp_path: Path, kind: str) -> None:
    place = tmp_path / ("data.npz" if kind == "arrays" else "data.csv")
    splits = ("train", "train", "unlabelled", "unlabelled")
    if kind == "arrays":
        x, y = np.zeros((2, 8, 8), np.uint8), np.array([0, 1])
        np.savez(place, x_train=x, y_train=y, x_unlabelled=x, y_unlabelled=y)
    else:
        what, head = {"images": ("{}.png", "path"), "texts": ("text {}", "text"), "numbers": ("{}", "height")}[kind]
        rows = [f"{what.format(i)},{'ab'[i % 2]},{split}\n" for i, split in enumerate(splits)]
        place.write_text(f"{head},label,split\n{''.join(rows)}")
        for i in range(4 * (kind == "images")):
            save(tmp_path / f"{i}.png", value=i)
    found = read(place)
    assert {name: len(stream) for name, stream in found.items()} == {"train": 2, "unlabelled": 2}
    assert found["train"].labels is not None
    assert found["unlabelled"].labels is None
