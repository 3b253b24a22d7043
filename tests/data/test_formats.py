from __future__ import annotations

import gzip
import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand.data import formats
from evenhand.data.files import Files
from evenhand.data.formats import check, frequency_order, read, read_cifar, read_idx, read_image_list
from evenhand.data.stream import Memory
from evenhand.errors import UserError


def save(path: Path, side: int = 16, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (value, 255 - value, 7)).save(path)
    return path


def tree(root: Path, *names: str, side: int = 16) -> Path:
    for value, name in enumerate(names):
        save(root / name, side, value)
    return root


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
    assert isinstance(streams["all"].source, Memory)
    assert streams["all"].source.images.shape == (4, 3, 16, 16)


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
    with pytest.raises(UserError, match="share no class"):
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
    assert isinstance(read(tmp_path)["all"].source, Files)
    assert read(tmp_path)["all"].source.size == 80
    assert isinstance(read(tmp_path, size=64)["all"].source, Memory)
    assert isinstance(read(tmp_path, size=32, memory=False)["all"].source, Files)
    assert read(tmp_path, size=32, mode="L")["all"].source.images.shape == (2, 1, 32, 32)
    tree(tmp_path / "large", "a/1.png", side=300)
    assert read(tmp_path / "large")["all"].source.size == 224


def test_bad_folders_get_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"'{tmp_path}/no/such' does not exist; .* is '{tmp_path}'"):
        read(tmp_path / "no/such")
    with pytest.raises(UserError, match=r"no images under .*\.jpg, \.jpeg"):
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


def table(root: Path, text: str, name: str = "list.csv") -> Path:
    (root / name).write_text(text, encoding="utf-8")
    return root / name


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


# arrays


def archive(root: Path, **arrays: np.ndarray) -> Path:
    np.savez(root / "data.npz", **arrays)
    return root / "data.npz"


IMAGES = np.arange(4 * 5 * 6 * 3, dtype=np.uint8).reshape(4, 5, 6, 3)
LABELS = np.array([0, 2, 1, 2])


def test_npz_shapes_and_names(tmp_path: Path) -> None:
    expected = torch.from_numpy(IMAGES).permute(0, 3, 1, 2)
    for images in (IMAGES, IMAGES.transpose(0, 3, 1, 2)):
        stream = read(archive(tmp_path, x=images, y=LABELS))["all"]
        assert torch.equal(stream.fetch(torch.arange(4)), expected)
        assert stream.classes == ("0", "1", "2")
    grey = read(archive(tmp_path, images=IMAGES[..., 0], labels=LABELS[:, None], classes=np.array(["a", "b", "c"])))
    assert torch.equal(grey["all"].fetch(torch.arange(4)), expected[:, :1])
    assert grey["all"].classes == ("a", "b", "c")
    streams = read(
        archive(tmp_path, x_test=IMAGES, y_test=LABELS % 2, x_train=IMAGES, y_train=LABELS, x_unlabelled=IMAGES)
    )
    assert list(streams) == ["train", "test", "unlabelled"]
    assert {stream.classes for stream in streams.values()} == {("0", "1", "2")}
    assert streams["unlabelled"].labels is None
    assert list(read(archive(tmp_path, train_images=IMAGES, train_labels=LABELS))) == ["train"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IMAGES / 255, "y": LABELS}, "uint8.*got float64"),
        ({"x": IMAGES[0, 0], "y": LABELS}, r"shape \(6, 3\)"),
        ({"x": np.zeros((4, 5, 6, 4), np.uint8), "y": LABELS}, "1 or 3 channels"),
        ({"x": IMAGES, "y": LABELS[:3]}, "3 labels for 4 images"),
        ({"x": IMAGES, "y": LABELS / 2}, "integers"),
        ({"x": IMAGES, "y": np.eye(4, dtype=int)}, r"integers \(N,\)"),
        ({"x": IMAGES, "y": np.array(3)}, r"got int64 \(\)"),
        ({"x": IMAGES}, "'all' needs both"),
        ({"x": IMAGES, "y": LABELS, "z": LABELS}, "unknown array 'z'"),
        ({"y": LABELS}, "needs both"),
        ({"x": IMAGES, "y": np.array([object()] * 4)}, "cannot read"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    path = archive(tmp_path, **arrays)
    with pytest.raises(UserError, match=message) as caught:
        read(path)
    assert "data.npz" in str(caught.value)


def test_trap_12_label_out_of_range_is_found_with_the_file(tmp_path: Path) -> None:
    path = archive(tmp_path, x=IMAGES, y=LABELS, classes=np.array(["a", "b"]))
    with pytest.raises(UserError, match=r"data\.npz.*label 2 of sample 1 is outside 0\.\.1"):
        read(path)
    assert "label 2 of sample 1" in check(path)[0].message
    with pytest.raises(UserError, match="label -1 of sample 0"):
        read(archive(tmp_path, x=IMAGES, y=LABELS - 1))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match=r"cannot read .*data\.npz"):
        read(path)


# benchmark files

BATCH = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)


def cifar_python(folder: Path, fine: bool = False, protocol: int = 2) -> Path:
    folder.mkdir(parents=True)
    files = ["train", "test"] if fine else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for at, name in enumerate(files):
        batch = {
            b"data": BATCH + at,
            (b"fine_labels" if fine else b"labels"): [0, 1, at % 2],
            b"coarse_labels": [9] * 3,
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    names = {("fine_label_names" if fine else "label_names"): ["cat", "dog"]}
    (folder / ("meta" if fine else "batches.meta")).write_bytes(pickle.dumps(names, protocol=protocol))
    return folder


@pytest.mark.parametrize("fine", [False, True])
def test_cifar_python(tmp_path: Path, fine: bool) -> None:
    cifar_python(tmp_path / "cifar-batches-py", fine)
    streams = read_cifar(tmp_path)
    assert (len(streams["train"]), len(streams["test"])) == ((3, 3) if fine else (15, 3))
    assert streams["train"].classes == ("cat", "dog")
    assert torch.equal(streams["train"].fetch(torch.tensor([2])), torch.from_numpy(BATCH[2].reshape(1, 3, 32, 32)))
    assert streams["test"].labels.tolist() == [0, 1, 1]


def test_cifar_python_as_python_2_wrote_it(tmp_path: Path) -> None:
    folder = cifar_python(tmp_path / "c")
    raw = BATCH.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        + b"(K\x01K\x03M\x00\x0c\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )  # fmt: skip
    data = b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x00K\x01K\x01eu."
    (folder / "test_batch").write_bytes(data)
    test = read_cifar(folder)["test"]
    assert torch.equal(test.fetch(torch.arange(3)), torch.from_numpy(BATCH.reshape(3, 3, 32, 32)))


@pytest.mark.parametrize("fine", [False, True])
def test_cifar_binary(tmp_path: Path, fine: bool) -> None:
    labels = np.array([[9, 1], [9, 0], [9, 1]], np.uint8)[:, 0 if fine else 1 :]
    records = np.concatenate([labels, BATCH], 1).tobytes()
    for name in ["train", "test"] if fine else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (tmp_path / f"{name}.bin").write_bytes(records)
    (tmp_path / ("fine_label_names.txt" if fine else "batches.meta.txt")).write_text("cat\ndog\n\n")
    streams = read_cifar(tmp_path)
    assert streams["test"].labels.tolist() == [1, 0, 1]
    assert torch.equal(streams["test"].fetch(torch.tensor([1]))[0], torch.from_numpy(BATCH[1].reshape(3, 32, 32)))
    assert len(streams["train"]) == (3 if fine else 15)
    (tmp_path / ("test.bin" if fine else "test_batch.bin")).write_bytes(records[:-5])
    with pytest.raises(UserError, match=r"test.*\.bin.*multiple"):
        read_cifar(tmp_path)


class Evil:
    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize(
    "evil", [Evil(os.mkdir, "owned"), Evil(eval, "1"), Evil(getattr, "x", "upper"), Evil(np.load, "x")]
)
def test_cifar_pickle_with_a_forbidden_global_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evil: Evil
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = cifar_python(tmp_path / "c")
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": BATCH, b"labels": evil}, protocol=2))
    with pytest.raises(UserError, match=r"data_batch_3.*may be malicious"):
        read_cifar(folder)
    assert not (tmp_path / "owned").exists()


def test_damaged_cifar_is_named(tmp_path: Path) -> None:
    folder = cifar_python(tmp_path / "c")
    whole = (folder / "data_batch_2").read_bytes()
    (folder / "data_batch_2").write_bytes(whole[:1000])
    with pytest.raises(UserError, match="data_batch_2"):
        read_cifar(folder)
    (folder / "data_batch_2").unlink()
    with pytest.raises(UserError, match=r"data_batch_2.*does not exist"):
        read_cifar(folder)
    (folder / "data_batch_2").write_bytes(pickle.dumps({b"data": BATCH, b"labels": [0, 1, 2]}))
    with pytest.raises(UserError, match="label 2 of sample 5"):
        read_cifar(folder)
    save(tmp_path / "photos/1.png")
    with pytest.raises(UserError, match="no CIFAR files"):
        read_cifar(tmp_path / "photos")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("compressed", [False, True])
def test_idx(tmp_path: Path, compressed: bool) -> None:
    images, labels = np.arange(48, dtype=np.uint8).reshape(3, 4, 4), np.array([1, 0, 1], np.uint8)
    for prefix in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            data = idx(array)
            path = tmp_path / f"{prefix}-{kind}-ubyte{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(data) if compressed else data)
    streams = read_idx(tmp_path, ["zero", "one"])
    assert torch.equal(streams["test"].fetch(torch.arange(3))[:, 0], torch.from_numpy(images))
    assert streams["train"].labels.tolist() == [1, 0, 1]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match="t10k-labels"):
        read_idx(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=r"t10k-labels.*four idx files"):
        read_idx(tmp_path)


def test_image_lists_and_frequency_order(tmp_path: Path) -> None:
    tree(tmp_path / "root", "a/1.png", "b/with space.png", "c/3.png")
    train = table(tmp_path, "a/1.png 0\nb/with space.png 1\nc/3.png 1\n\n", "train.txt")
    test = table(tmp_path, "c/3.png 2\na/1.png 0\n", "test.txt")
    stream = read_image_list(train, tmp_path / "root", ["x", "y", "z"], size=16)
    assert stream.labels.tolist() == [0, 1, 1]
    assert stream.name == "train"
    remap = frequency_order(stream.labels, 3)
    assert remap.tolist() == [1, 0, 2]
    both = [read_image_list(f, tmp_path / "root", ["x", "y", "z"], size=96, remap=remap) for f in (train, test)]
    assert both[0].classes == both[1].classes == ("y", "x", "z")
    assert both[0].labels.tolist() == [1, 0, 0]
    assert both[1].labels.tolist() == [2, 1]
    assert both[0].counts == sorted(both[0].counts, reverse=True)
    assert read_image_list(test, tmp_path / "root", remap=remap).classes == ("1", "0", "2")
    assert isinstance(both[0].source, Files)


def test_bad_image_lists(tmp_path: Path) -> None:
    tree(tmp_path, "a/1.png")
    with pytest.raises(UserError, match=r"list\.txt' line 2"):
        read_image_list(table(tmp_path, "a/1.png 0\na/1.png\n", "list.txt"), tmp_path)
    with pytest.raises(UserError, match=r"label 5 of sample 0 is outside 0\.\.1"):
        read_image_list(table(tmp_path, "a/1.png 5\n", "list.txt"), tmp_path, ["x", "y"])
    with pytest.raises(UserError, match="label -1"):
        read_image_list(table(tmp_path, "a/1.png -1\n", "list.txt"), tmp_path)
    with pytest.raises(UserError, match=r"is root .* right"):
        read_image_list(table(tmp_path, "b/1.png 0\n", "list.txt"), tmp_path)
    with pytest.raises(UserError, match="permutation"):
        read_image_list(table(tmp_path, "a/1.png 0\n", "list.txt"), tmp_path, remap=torch.tensor([0, 0]))
    with pytest.raises(UserError, match="label 3 is outside"):
        frequency_order([0, 3], 2)
