"""The files that benchmarks are published as: CIFAR, MNIST and its descendants, ``.npz``, and lists of images."""

from __future__ import annotations

import codecs
import gzip
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from evenhand.data.sources.arrays import array_streams, class_names
from evenhand.data.sources.files import Files, readable, sizes_of
from evenhand.data.sources.frames import Asked, choose_frame
from evenhand.data.sources.idx import parse_idx
from evenhand.data.sources.paths import SPLITS, existing, folders_in, read_text, relative_names
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError


def read_folder(folder: Path, classes: Sequence[str] | None = None) -> Streams | None:
    """The benchmark in a folder, recognised by the names of its files, or None."""
    if any(path.is_file() for path in folder.glob("*train-images*ubyte*")):
        return read_idx(folder, classes)
    return _cifar(folder, classes)


_CIFAR = (  # train files, test file, class names (python and binary), key of the labels, label bytes
    ([f"data_batch_{i}" for i in range(1, 6)], "test_batch", "batches.meta", "batches.meta.txt", "label", 1),
    (["train"], "test", "meta", "fine_label_names.txt", "fine_label", 2),
)


def read_cifar(folder: str | Path, classes: Sequence[str] | None = None) -> Streams:
    """CIFAR-10 or CIFAR-100 (fine labels), python or binary files, in ``folder`` or one folder below."""
    for place in (existing(folder), *folders_in(Path(folder))):
        streams = _cifar(place, classes)
        if streams is not None:
            return streams
    raise UserError(f"no CIFAR files in '{folder}'; expected data_batch_1..5 and test_batch, or train and test")


def _cifar(place: Path, classes: Sequence[str] | None) -> Streams | None:
    def present(*names: str) -> bool:
        """At least two files, so that one that is missing is reported by name."""
        return sum((place / name).is_file() for name in names) >= 2

    for train, test, meta, meta_text, key, label_bytes in _CIFAR:
        python = [*train, test]
        binary = [f"{name}.bin" for name in python]
        if present(*python, meta):
            names = _unpickle(place / meta, f"{key}_names")[0]
            batches = [_unpickle(place / name, "data", f"{key}s") for name in python]
        elif present(*binary, meta_text):
            names = read_text(existing(place / meta_text)).split()
            batches = [_unpack(place / name, label_bytes) for name in binary]
        else:
            continue
        for name, (x, _) in zip(python, batches, strict=True):
            if np.shape(x)[1:] != (3072,):
                raise UserError(f"'{place / name}': images of shape {np.shape(x)} are not CIFAR's (N, 3072)")
        x, y = zip(*batches, strict=True)
        pairs = {
            "train": (np.concatenate(x[:-1]).reshape(-1, 3, 32, 32), np.concatenate(y[:-1])),
            "test": (x[-1].reshape(-1, 3, 32, 32), y[-1]),
        }
        return array_streams(pairs, classes or names, str(place))
    return None


class _ArrayUnpickler(pickle.Unpickler):
    """Arrays and plain containers only, because any other name in a pickle may run code."""

    allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise UserError(f"it asks for '{module}.{name}', which is not array data, so it may be malicious")
        return self.allowed[module, name]


def _unpickle(path: Path, *keys: str) -> list[Any]:
    try:
        with existing(path).open("rb") as file:
            found = _ArrayUnpickler(file, encoding="latin1").load()
        found = {key.decode() if isinstance(key, bytes) else key: value for key, value in found.items()}
        return [found[key] for key in keys]
    except Exception as error:  # a damaged pickle raises nearly anything
        raise UserError(f"cannot read CIFAR file '{path}': {error}; obtain it again from a trusted place") from error


def _unpack(path: Path, label_bytes: int) -> list[Any]:
    """Binary records: one label byte (CIFAR-100: coarse, then fine) and 3072 pixels."""
    data = np.frombuffer(existing(path).read_bytes(), np.uint8)
    if not data.size or data.size % (label_bytes + 3072):
        raise UserError(f"'{path}' has {data.size} bytes, not a multiple of {label_bytes + 3072}; obtain it again")
    records = data.reshape(-1, label_bytes + 3072)
    return [records[:, label_bytes:], records[:, label_bytes - 1]]


def read_idx(folder: str | Path, classes: Sequence[str] | None = None) -> Streams:
    """MNIST-type idx files, raw or gzipped: ``*train-images*``, ``*t10k-labels*`` and so on."""

    def one(*patterns: str) -> np.ndarray:
        found = sorted(path for pattern in patterns for path in existing(folder).glob(pattern) if path.is_file())
        if not found:
            raise UserError(f"no file {patterns[0]} in '{folder}'; expected MNIST's four idx files, raw or .gz")
        if len({path.name.removesuffix(".gz") for path in found}) > 1:
            raise UserError(f"'{found[0]}' and '{found[-1]}' are of different sets; give each its own folder")
        try:
            data = found[0].read_bytes()
            return parse_idx(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        except (OSError, EOFError, zlib.error, UserError) as error:
            raise UserError(f"cannot read '{found[0]}': {error}") from error

    pairs = {
        "train": (one("*train-images*"), one("*train-labels*")),
        "test": (one("*t10k-images*", "*test-images*"), one("*t10k-labels*", "*test-labels*")),
    }
    return array_streams(pairs, classes, str(folder))


def read_npz(path: Path, classes: Sequence[str] | None = None, *, bare: bool = False) -> Streams:
    """Keys ``x``/``images`` and ``y``/``labels``, alone or with a split before or after: ``x_train``.

    bare: ``x`` may come without labels, as what is to be labelled does; then it is "unlabelled".

    Also ``data`` (floats in 0..1, N x H x W x 3) and ``label``, as the authors of S3VAADA keep Office's domains.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:  # a damaged or hostile archive raises nearly anything, memory errors included
        why = "it holds pickled objects, which may run code" if "ickle" in str(error) else str(error).split("\n")[0]
        raise UserError(f"cannot read '{path}': {why}; save plain arrays with np.savez") from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise UserError(f"cannot read '{path}': '{key}' is not an array; save plain arrays with np.savez")
    names = [str(name) for name in arrays.pop("classes", np.empty(0)).reshape(-1)]
    roles = {"x": "x", "images": "x", "data": "x", "y": "y", "labels": "y", "label": "y"}
    parts: dict[str, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        words = key.split("_")
        role = [roles[word] for word in words if word in roles]
        split = [word for word in words if word in SPLITS]
        if len(role) != 1 or len(words) != 1 + len(split):
            raise UserError(f"'{path}' has an unknown array '{key}'; expected x, y, x_train, y_train, ..., classes")
        parts.setdefault(split[0] if split else "all", {})[role[0]] = array
    if bare and [*parts.get("all", ())] == ["x"] and "unlabelled" not in parts:
        parts["unlabelled"] = parts.pop("all")
    if not parts:
        raise UserError(f"'{path}' holds no images; expected arrays x and y, or x_train, y_train, ...")
    pairs = {}
    for name in sorted(parts, key=("all", *SPLITS).index):
        part = parts[name]
        if "x" not in part or ("y" not in part and name != "unlabelled"):
            raise UserError(f"'{path}': '{name}' needs both images (x) and labels (y), has only {', '.join(part)}")
        pairs[name] = _bytes(part["x"], path), None if name == "unlabelled" else part["y"]
    return array_streams(pairs, classes or names, str(path))


def _bytes(images: np.ndarray, path: Path) -> np.ndarray:
    """Images of floats in 0..1 as uint8, a few at a time; anything else as it is."""
    if images.ndim != 4 or not np.issubdtype(images.dtype, np.floating):
        return images
    whole = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), 64):
        some = images[start : start + 64]
        if not (np.isfinite(some).all() and some.min(initial=0) >= 0 and some.max(initial=0) <= 1):
            raise UserError(f"'{path}': images of floats must lie in 0..1; scale them, or save them as uint8")
        whole[start : start + 64] = np.rint(255 * some)
    return whole


def read_image_list(
    list_file: str | Path,
    root: str | Path,
    classes: Sequence[str] | None = None,
    *,
    size: int = 224,
    mode: str = "RGB",
    remap: Tensor | None = None,
    skip_unreadable: bool = False,
    skipped: list[str] | None = None,
    whole: bool = False,
    frame: Asked = "auto",
    memory: bool | None = None,
) -> Stream:
    """Lines ``relative/path label`` (ImageNet-LT, iNaturalist, Office, DomainNet), in the order listed.

    remap: (K,) the new number of each listed label, see ``frequency_order``; class names move along.
    skip_unreadable: drops bad files with a warning, and adds their names to ``skipped``.
    """
    path, root = existing(list_file), existing(root)
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        words = line.rsplit(maxsplit=1)  # from the right, as a path may contain spaces
        if len(words) == 2 and words[1].removeprefix("-").isdecimal():
            rows.append((root / words[0].strip(), int(words[1])))
        elif words:
            raise UserError(f"'{path}' line {number}: '{line}' is not 'relative/path label'")
    if not rows:
        raise UserError(f"'{path}' lists no images; add lines 'relative/path label'")
    if not skip_unreadable and not rows[0][0].is_file():
        raise UserError(f"'{rows[0][0]}', the first image of '{path}', does not exist; is root '{root}' right?")
    numbers = None if remap is None else [str(label) for label in range(len(remap))]
    names = class_names(classes or numbers, [torch.tensor([label for _, label in rows])])
    for at, (_, label) in enumerate(rows):
        if not 0 <= label < len(names):
            remedy = "renumber the labels or name every class"
            raise UserError(f"'{path}': label {label} of sample {at} is outside 0..{len(names) - 1}; {remedy}")
    if skip_unreadable:
        rows = readable(rows, mode, skipped)
        if not rows:
            raise UserError(f"none of the images of '{path}' can be read; is root '{root}' right?")
    labels = torch.tensor([label for _, label in rows])
    if remap is not None:
        if sorted(remap.tolist()) != list(range(len(names))):
            raise UserError(f"remap must be a permutation of 0..{len(names) - 1}, one entry for each class")
        labels, names = remap[labels], tuple(names[old] for old in remap.argsort().tolist())
    paths = [file for file, _ in rows]
    how = choose_frame(sizes_of(paths))[0] if frame == "auto" else frame
    files = Files(paths, size=size, mode=mode, whole=whole, names=relative_names(paths, root), frame=how)
    return Stream(files.held(memory), labels, names, path.stem)


def frequency_order(labels: Tensor | Sequence[int], num_classes: int) -> Tensor:
    """(K,) new number of each class, the most frequent first, ties in class order; use it for every split.

    >>> frequency_order([0, 1, 1, 2, 2, 2], 3)
    tensor([2, 1, 0])
    """
    counts = torch.bincount(torch.as_tensor(labels), minlength=num_classes)
    if len(counts) > num_classes:
        raise UserError(f"label {len(counts) - 1} is outside 0..{num_classes - 1}; give the right num_classes")
    return counts.argsort(descending=True, stable=True).argsort()
