from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources import published
from evenhand.data.sources.arrays import class_names
from evenhand.data.sources.files import Files
from evenhand.data.sources.formats import read
from evenhand.data.sources.frames import Frame
from evenhand.data.sources.published import frequency_order, read_cifar, read_idx, read_image_list
from evenhand.data.sources.soundness import check, find_problems
from evenhand.errors import UserError
from helpers import save, save_picture, table, tree

# CIFAR and MNIST

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


def cifar_binary(folder: Path, fine: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.array([[9, 1], [9, 0], [9, 1]], np.uint8)[:, 0 if fine else 1 :]
    records = np.concatenate([labels, BATCH], 1).tobytes()
    for name in ["train", "test"] if fine else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / f"{name}.bin").write_bytes(records)
    (folder / ("fine_label_names.txt" if fine else "batches.meta.txt")).write_text("cat\ndog\n\n")
    return folder


@pytest.mark.parametrize("fine", [False, True])
def test_cifar_binary(tmp_path: Path, fine: bool) -> None:
    streams = read_cifar(cifar_binary(tmp_path, fine))
    assert streams["test"].labels.tolist() == [1, 0, 1]
    assert torch.equal(streams["test"].fetch(torch.tensor([1]))[0], torch.from_numpy(BATCH[1].reshape(3, 32, 32)))
    assert len(streams["train"]) == (3 if fine else 15)
    last = tmp_path / ("test.bin" if fine else "test_batch.bin")
    last.write_bytes(last.read_bytes()[:-5])
    with pytest.raises(UserError, match=r"test.*\.bin.*multiple"):
        read_cifar(tmp_path)


@pytest.mark.parametrize("fine", [False, True])
def test_read_recognises_cifar_folders(tmp_path: Path, fine: bool) -> None:
    for folder in (cifar_python(tmp_path / "python", fine), cifar_binary(tmp_path / "binary", fine)):
        streams, direct = read(folder), read_cifar(folder)
        assert list(streams) == ["train", "test"]
        assert {key: stream.digest() for key, stream in streams.items()} == {k: s.digest() for k, s in direct.items()}
        assert read(folder, classes=["x", "y"])["test"].classes == ("x", "y")
        assert check(folder) == find_problems(direct)
    for gone in ("test", "meta") if fine else ("data_batch_1", "test_batch", "batches.meta"):
        kept = (tmp_path / "python" / gone).rename(tmp_path / "kept")
        with pytest.raises(UserError, match=rf"CIFAR file '.*/{gone}'.*does not exist"):
            read(tmp_path / "python")
        kept.rename(tmp_path / "python" / gone)


def test_a_recipe_may_name_a_benchmark_folder(tmp_path: Path) -> None:
    data = prepare_data(DataSettings(set=str(cifar_python(tmp_path / "cifar-100-python", fine=True))))
    assert data.classes == ("cat", "dog")
    assert {key: len(stream) for key, stream in data.streams.items()} == {"labelled": 3, "test": 3}
    assert data.facts.size == [32, 32]


def test_image_folders_are_not_mistaken_for_benchmarks(tmp_path: Path) -> None:
    tree(tmp_path, "train/a/1.png", "test/a/1.png")
    for name in ("meta", "train.bin"):
        (tmp_path / name).write_text("mine")
    assert list(read(tmp_path)) == ["train", "test"]
    tree(tmp_path / "photos", "train-images-ubyte/1.png", "test-images-ubyte/1.png")
    assert read(tmp_path / "photos")["all"].classes == ("test-images-ubyte", "train-images-ubyte")


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
    (folder / "data_batch_2").write_bytes(pickle.dumps({b"data": BATCH[:, :9], b"labels": [0, 1, 1]}))
    with pytest.raises(UserError, match=r"data_batch_2': images of shape \(3, 9\)"):
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
    assert read(tmp_path, classes=["zero", "one"])["test"].digest() == streams["test"].digest()
    assert read(tmp_path)["train"].classes == ("0", "1")
    other = path.rename(tmp_path / f"emnist-{path.name}")
    path.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match=r"emnist-t10k-labels.* and .*/t10k-labels.* different sets"):
        read(tmp_path)
    other.unlink()
    assert torch.equal(streams["test"].fetch(torch.arange(3))[:, 0], torch.from_numpy(images))
    assert streams["train"].labels.tolist() == [1, 0, 1]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match="t10k-labels"):
        read_idx(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=r"t10k-labels.*four idx files"):
        read_idx(tmp_path)


# image lists


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
    assert isinstance(both[0].samples, Files)


def test_image_list_paths_may_contain_any_spaces(tmp_path: Path) -> None:
    names = ["a b/one  two.png", "a b/3 4", "plain.png"]
    for value, name in enumerate(names):
        save(tmp_path / f"{name}.png", value=value)
    lines = [f"{names[0]}.png 0", f"  {names[1]}.png\t1 ", f"{names[2]}.png   2\r"]
    stream = read_image_list(table(tmp_path, "\n".join(lines), "list.txt"), tmp_path, size=16)
    assert stream.labels.tolist() == [0, 1, 2]
    assert stream.fetch(torch.arange(3))[:, 0, 0, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [16, 96])
def test_image_list_skips_unreadable_files_only_when_asked(tmp_path: Path, size: int) -> None:
    tree(tmp_path, "0.png", "1.png", "2.png")
    bad = tmp_path / "1.png"
    bad.write_bytes(bad.read_bytes()[:40])
    listed = table(tmp_path, "gone.png 2\n0.png 0\n1.png 3\n2.png 1\n", "list.txt")
    with pytest.raises(UserError, match=r"gone\.png.*is root .* right"):
        read_image_list(listed, tmp_path)
    skipped: list[str] = []
    with pytest.warns(UserWarning, match=r"skipped 2 unreadable of 4 .*1\.png, .*gone\.png") as caught:
        stream = read_image_list(listed, tmp_path, size=size, skip_unreadable=True, skipped=skipped)
    assert caught[0].filename == __file__
    assert sorted(skipped) == [str(bad), str(tmp_path / "gone.png")]
    assert stream.classes == ("0", "1", "2", "3")  # classes do not depend on which files are damaged
    assert stream.labels.tolist() == [0, 1]
    assert stream.fetch(torch.arange(2))[:, 0, 0, 0].tolist() == [0, 2]
    remap = torch.tensor([3, 2, 1, 0])
    with pytest.warns(UserWarning, match="skipped 2"):
        stream = read_image_list(listed, tmp_path, size=size, remap=remap, skip_unreadable=True)
    assert stream.labels.tolist() == [3, 2]
    listed.write_text("gone.png 0\n")
    with pytest.warns(UserWarning, match="skipped 1"), pytest.raises(UserError, match="none of the images"):
        read_image_list(listed, tmp_path, skip_unreadable=True)


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
        ({"x": IMAGES / 2.0, "y": LABELS}, r"must lie in 0\.\.1"),
        ({"x": IMAGES[0, 0], "y": LABELS}, r"shape \(6, 3\)"),
        ({"x": np.zeros((4, 5, 6, 4), np.uint8), "y": LABELS}, "1 or 3 channels"),
        ({"x": np.zeros((4, 5, 0), np.uint8), "y": LABELS}, "images of 5 x 0 pixels"),
        ({"x": IMAGES, "y": LABELS[:3]}, "3 labels for 4 samples"),
        ({"x": IMAGES[:0], "y": LABELS[:0]}, "all: there are no samples"),
        ({"x_train": IMAGES, "y_train": LABELS, "x_val": IMAGES[:0], "y_val": LABELS[:0]}, "val: there are no"),
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


def packed(**members: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as zipped:
        for name, content in members.items():
            zipped.writestr(f"{name}.npy", content)
    return held.getvalue()


def header(shape: tuple[int, ...]) -> bytes:
    held = io.BytesIO()
    np.lib.format.write_array_header_1_0(held, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return held.getvalue()


def plain_array() -> bytes:
    held = io.BytesIO()
    np.save(held, np.zeros(3))
    return held.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"x": 1}), pickle.dumps([1], 0), plain_array(), packed(x=pickle.dumps([1]), y=b"abc"),
        packed(x=header((10**15,))), packed(x=b"\x93NUMPY\x01\x00\x10\x00{'descr': '<i8',"), packed(x=b""), b"PK",
    ],
)  # fmt: skip
def test_hostile_npz_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*data\.npz.*np\.savez") as caught:
        read(tmp_path / "data.npz")
    assert len(str(caught.value).splitlines()) == 1
    assert "allow_pickle=" not in str(caught.value)


def test_labels_that_skip_most_classes_are_refused_before_they_are_named(tmp_path: Path) -> None:
    path = archive(tmp_path, x=np.zeros((3, 4, 4), np.uint8), y=np.array([0, 1, 10_000_000]))
    tracemalloc.start()
    with pytest.raises(UserError, match=r"data\.npz.*label 10000000 in 3 samples makes 10000001 classes") as caught:
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert peak < 10_000_000
    listed = tmp_path / "list.txt"
    listed.write_text("a.png 0\nb.png 10000000\n")
    tree(tmp_path, "a.png", "b.png")
    with pytest.raises(UserError, match="makes 10000001 classes"):
        read_image_list(listed, tmp_path)
    sparse = archive(tmp_path, x=np.zeros((3, 4, 4), np.uint8), y=np.array([0, 1, 999]))
    assert len(read(sparse)["all"].classes) == 1000


def test_floats_become_levels_a_few_at_a_time() -> None:
    images = np.linspace(0, 1, 130 * 4, dtype=np.float64).reshape(130, 2, 2, 1)
    assert np.array_equal(published._bytes(images, Path("x")), np.rint(255 * images))
    whole = np.zeros((2, 2, 2, 1), np.uint8)
    assert published._bytes(whole, Path("x")) is whole
    for at, bad in ((0, -0.01), (129, 1.01), (70, np.nan)):
        wrong = images.copy()
        wrong[at, 0, 0, 0] = bad
        with pytest.raises(UserError, match="images of floats must lie in"):
            published._bytes(wrong, Path("x"))


def test_image_lists_are_read_as_asked(tmp_path: Path) -> None:
    for i in range(3):
        save_picture(tmp_path / f"{i}.png", 20, 60, i)
    (tmp_path / "l.txt").write_text("0.png 0\n1.png 1\n2.png 1\n")
    usual = read_image_list(tmp_path / "l.txt", tmp_path)
    assert (usual.samples.frame, usual.name, usual.samples.name(2)) == (Frame(224, "pad", 224), "l", "2.png")
    assert usual.samples.decodes
    asked = read_image_list(
        tmp_path / "l.txt", tmp_path, size=100, mode="L", whole=True, frame="crop", memory=True,
        remap=torch.tensor([1, 0]), classes=["ant", "bee"],
    )  # fmt: skip
    assert (asked.samples.frame, asked.samples.decodes) == (Frame(100, "crop", 100), False)
    assert asked.fetch(torch.tensor([0])).shape == (1, 1, 100, 100)
    assert (asked.labels.tolist(), asked.classes) == ([1, 0, 0], ("bee", "ant"))  # type: ignore[union-attr]
    (tmp_path / "1.png").write_bytes(b"no")
    skipped: list[str] = []
    with pytest.warns(UserWarning, match="skipped 1"):
        rest = read_image_list(tmp_path / "l.txt", tmp_path, size=8, skip_unreadable=True, skipped=skipped)
    assert (len(rest), skipped) == (2, [str(tmp_path / "1.png")])


def test_labels_far_above_the_number_of_samples_are_refused() -> None:
    assert len(class_names(None, [torch.tensor([1010])])) == 1011
    with pytest.raises(UserError, match="label 1011 in 1 samples makes 1012 classes"):
        class_names(None, [torch.tensor([1011])])
    assert class_names(None, [torch.empty(0)]) == ()
    assert class_names([1, 2], []) == ("1", "2")  # type: ignore[list-item]
