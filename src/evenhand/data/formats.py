"""What a user has on disk (class, split and domain folders, CSV, .npz, benchmark files) as named streams."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import pickle
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from evenhand.data.builtin import parse_idx
from evenhand.data.files import (
    SUFFIXES,
    Files,
    Problem,
    as_images,
    existing,
    find_problems,
    folders_in,
    images_in,
    load_image,
    natural,
)
from evenhand.data.stream import Memory, Source, Stream, Streams
from evenhand.errors import UserError, did_you_mean

SPLITS = ("train", "val", "test", "unlabelled")
Rows = list[tuple[Path, str | None]]  # a file and the name of its class


@dataclass(frozen=True)
class _Options:
    size: int | None
    mode: str
    skip_unreadable: bool
    skipped: list[str] | None
    memory: bool | None
    classes: str | Sequence[str] | None


def read(
    path: str | Path,
    *,
    size: int | None = None,
    mode: str = "RGB",
    skip_unreadable: bool = False,
    skipped: list[str] | None = None,
    memory: bool | None = None,
    classes: str | Sequence[str] | None = None,
) -> Streams:
    """Streams from class, split or domain folders, a CSV or an ``.npz``.

    ``<class>/*`` gives the key "all"; ``train|val|test/<class>/*`` and ``unlabelled/*`` the splits;
    ``<domain>/<class>/*`` the domains; a CSV ``path,label,domain,split`` splits, domains or "domain/split".
    Classes and files are in natural order of their names, whatever the disk says.

    size: default the median shorter side, at most 224; arrays keep their own size and channels.
    memory: None decodes images of at most 64 pixels into memory, False never, True always.
    classes: fixes names and order; "intersection" drops what some domain lacks.
    skip_unreadable: drops bad files with a warning, and adds their names to ``skipped``.
    """
    place = existing(path)
    options = _Options(size, mode, skip_unreadable, skipped, memory, classes)
    if place.is_dir():
        table, by_domain = _from_folder(place)
    elif place.suffix.lower() == ".csv":
        table, by_domain = _from_csv(place)
    elif place.suffix.lower() == ".npz":
        return _from_npz(place, options)
    else:
        raise UserError(f"'{path}' is of unknown type '{place.suffix}'; give a folder, a .csv or an .npz")
    return _streams(table, by_domain, options)


def check(path: str | Path) -> list[Problem]:
    """Everything wrong with what ``read`` would read, each with its file; nothing is raised."""
    try:
        return find_problems(read(path, memory=False))
    except UserError as error:
        rest = find_problems(path) if Path(path).is_dir() else []
        return [Problem("error", "layout", str(path), str(error)), *rest]


# folders and tables of files


def _from_folder(root: Path) -> tuple[dict[str, Rows], bool]:
    inside = folders_in(root)
    splits = [folder.name for folder in inside if folder.name in SPLITS]
    if splits:
        for folder in inside:
            if folder.name not in SPLITS:
                hint = did_you_mean(folder.name, SPLITS)
                raise UserError(
                    f"'{folder}' lies beside the split '{splits[0]}' but is no split itself; {hint}"
                )
        return {
            name: [(p, None) for p in _some_images(root / name)]
            if name == "unlabelled"
            else _classes(root / name)
            for name in SPLITS
            if name in splits
        }, False
    _some_images(root)
    if not any(_is_image(p) for folder in inside for p in folder.iterdir()):
        domains = [
            f for f in inside if folders_in(f) or not any(f.iterdir())
        ]  # image_list/*.txt is no domain
        if domains:
            return {domain.name: _classes(domain) for domain in domains}, True
    return {"all": _classes(root)}, False


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _some_images(folder: Path) -> list[Path]:
    found = images_in(folder)
    if not found:
        raise UserError(f"no images under '{folder}'; looked for {', '.join(SUFFIXES)}")
    return found


def _classes(folder: Path) -> Rows:
    rows: Rows = []
    inside = folders_in(folder)
    if not inside:
        raise UserError(f"'{folder}' has no class folders; expected {folder.name}/<class>/<image>")
    for each in inside:
        found = images_in(each)
        if not found:
            raise UserError(
                f"class folder '{each}' is empty; add images ({', '.join(SUFFIXES)}) or remove it"
            )
        rows += [(file, each.name) for file in found]
    return rows


def _from_csv(path: Path) -> tuple[dict[str, Rows], bool]:
    with io.StringIO(_text(path), newline="") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        columns = list(reader.fieldnames or ())
        for column in ("path", "label"):
            if column not in columns:
                raise UserError(f"'{path}' has no column '{column}'; {did_you_mean(column, columns)}")
        optional = [column for column in ("domain", "split") if column not in columns]
        for column in columns:  # a misspelt optional column would silently merge the splits
            hint = did_you_mean(column, optional)
            if column not in ("path", "label") and hint.startswith("did"):
                raise UserError(f"'{path}' has an unknown column '{column}'; {hint}")
        table: dict[str, Rows] = {}
        for row in reader:
            where = f"'{path}' line {reader.line_num}"
            cells = {column: (row[column] or "").strip() for column in columns if column}
            for column in {"path", "domain", "split"} & set(columns):
                if not cells[column]:
                    raise UserError(f"{where} has no {column}; fill it in")
            split = cells.get("split")
            if split is not None and split not in SPLITS:
                raise UserError(f"{where}: split '{split}' is unknown; {did_you_mean(split, SPLITS)}")
            key = "/".join(part for part in (cells.get("domain"), split) if part) or "all"
            label = None if split == "unlabelled" else cells["label"] or None
            rows = table.setdefault(key, [])
            if rows and (rows[0][1] is None) != (label is None):
                raise UserError(f"{where}: '{key}' mixes rows with and without label; use split 'unlabelled'")
            rows.append((path.parent / cells["path"], label))
    if not table:
        raise UserError(f"'{path}' has a header but no rows")
    return table, "domain" in columns


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8 text ({error.reason}); save it as UTF-8") from error


def _streams(table: dict[str, Rows], by_domain: bool, options: _Options) -> Streams:
    names = _agree(table, by_domain, options.classes)
    number = {name: index for index, name in enumerate(names)}
    kept = {
        key: _readable([row for row in rows if row[1] is None or row[1] in number], options)
        for key, rows in table.items()
    }
    size = options.size or _typical_size([file for rows in kept.values() for file, _ in rows])
    streams = {}
    for key, rows in kept.items():
        if not rows:
            raise UserError(f"'{key}' has no images left after skipping files or classes")
        source = _hold(Files([file for file, _ in rows], size=size, mode=options.mode), options.memory)
        labels = None if rows[0][1] is None else torch.tensor([number[label or ""] for _, label in rows])
        streams[key] = Stream(source, labels, names, key)
    return streams


def _agree(table: dict[str, Rows], by_domain: bool, wanted: str | Sequence[str] | None) -> tuple[str, ...]:
    """The class names of all streams; domains must have the same, unless their intersection is wanted."""
    found: dict[str, set[str]] = {}
    for key, rows in table.items():
        for file, label in rows:
            if label is not None:
                if wanted and not isinstance(wanted, str) and label not in wanted:
                    raise UserError(
                        f"label '{label}' of '{file}' is outside the classes; {did_you_mean(label, wanted)}"
                    )
                found.setdefault(key.split("/")[0] if by_domain else "", set()).add(label)
    if wanted and not isinstance(wanted, str):
        return tuple(wanted)
    if wanted not in (None, "intersection"):
        raise UserError(f"classes must be names or 'intersection', got '{wanted}'")
    every = set().union(*found.values())
    shared = every.intersection(*found.values())
    if wanted and not shared:
        raise UserError(f"the domains {', '.join(found)} share no class; compare their folder names")
    if not wanted and shared != every:
        lacks = "; ".join(f"'{key}' lacks {_few(every - has)}" for key, has in found.items() if every - has)
        raise UserError(
            f"domains must have the same classes: {lacks}; add them or pass classes='intersection'"
        )
    return tuple(sorted(shared, key=natural))


def _few(names: Iterable[str]) -> str:
    ordered = sorted(names, key=natural)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def _readable(rows: Rows, options: _Options) -> Rows:
    if not options.skip_unreadable:
        return rows
    good, bad = [], []
    for row in rows:
        try:
            load_image(row[0], options.mode)
            good.append(row)
        except UserError:
            bad.append(str(row[0]))
    if bad:
        warnings.warn(f"skipped {len(bad)} unreadable of {len(rows)} images: {_few(bad)}", stacklevel=4)
    if options.skipped is not None:
        options.skipped.extend(bad)
    return good


def _typical_size(files: list[Path]) -> int:
    """Median shorter side of up to 100 images spread over the list, at most 224."""
    sides = []
    for file in files[:: max(1, len(files) // 100)]:
        try:
            with Image.open(file) as image:
                sides.append(min(image.size))
        except Exception:  # whatever it is, it is reported with the file's name when that is decoded
            continue
    return min(median_low(sides), 224) if sides else 224


def _hold(files: Files, memory: bool | None) -> Source:
    """Small images are decoded once, into memory."""
    small = files.size <= 64 and len(files) * len(files.mode) * files.size**2 < 2**31
    wanted = small if memory is None else memory
    return Memory(files.fetch(range(len(files)))) if wanted else files


# arrays


def _from_npz(path: Path, options: _Options) -> Streams:
    """Keys ``x``/``images`` and ``y``/``labels``, alone or with a split before or after: ``x_train``."""
    roles = {"x": "x", "images": "x", "y": "y", "labels": "y"}
    parts: dict[str, dict[str, np.ndarray]] = {}
    names = None if isinstance(options.classes, str) else options.classes
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read '{path}': {error}; save plain arrays with np.savez") from error
    for key, array in arrays.items():
        words = key.split("_")
        role = [roles[word] for word in words if word in roles]
        split = [word for word in words if word in SPLITS]
        if key == "classes":
            names = names or [str(name) for name in array]
        elif len(role) == 1 and len(words) == 1 + len(split):
            parts.setdefault(split[0] if split else "all", {})[role[0]] = array
        else:
            raise UserError(
                f"'{path}' has an unknown array '{key}'; expected x, y, x_train, y_train, ..., classes"
            )
    pairs = {}
    for name in sorted(parts, key=("all", *SPLITS).index):
        part = parts[name]
        if "x" not in part or ("y" not in part and name != "unlabelled"):
            raise UserError(
                f"'{path}': '{name}' needs both images (x) and labels (y), has only {', '.join(part)}"
            )
        pairs[name] = part["x"], None if name == "unlabelled" else part["y"]
    if not pairs:
        raise UserError(f"'{path}' holds no images; expected arrays x and y, or x_train, y_train, ...")
    return _arrays(pairs, names, str(path))


def _arrays(pairs: dict[str, tuple[Any, Any]], classes: Sequence[str] | None, where: str) -> Streams:
    """Streams in memory from (images, labels or None)."""
    images = {name: as_images(x, f"{where}, {name}") for name, (x, _) in pairs.items()}
    labels = {name: np.asarray(y) for name, (_, y) in pairs.items() if y is not None}
    for name, y in labels.items():
        if not np.issubdtype(y.dtype, np.integer) or y.ndim == 0 or y.size != len(y):
            raise UserError(f"{where}, {name}: labels must be integers (N,), got {y.dtype} {y.shape}")
        if len(y) != len(images[name]):
            raise UserError(f"{where}, {name}: {len(y)} labels for {len(images[name])} images")
    names = _names(classes, labels.values())
    return {
        name: Stream(
            Memory(x),
            _tensor(labels[name], names, f"{where}, {name}") if name in labels else None,
            names,
            name,
        )
        for name, x in images.items()
    }


def _names(classes: Sequence[str] | None, labels: Iterable[np.ndarray]) -> tuple[str, ...]:
    """The names given, or numbers up to the largest label."""
    return tuple(
        classes or (str(k) for k in range(1 + max((int(y.max()) for y in labels if y.size), default=-1)))
    )


def _tensor(labels: np.ndarray, names: Sequence[str], where: str) -> Tensor:
    labels = labels.reshape(-1).astype(np.int64)
    outside = (labels < 0) | (labels >= len(names))
    if outside.any():
        at = int(outside.argmax())
        remedy = "renumber the labels or name every class"
        raise UserError(
            f"{where}: label {labels[at]} of sample {at} is outside 0..{len(names) - 1}; {remedy}"
        )
    return torch.from_numpy(labels)


# benchmark files


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
        raise UserError(
            f"cannot read CIFAR file '{path}': {error}; obtain it again from a trusted place"
        ) from error


def _unpack(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Binary records: one label byte (CIFAR-100: coarse, then fine) and 3072 pixels."""
    data = np.frombuffer(existing(path).read_bytes(), np.uint8)
    if not data.size or data.size % (label_bytes + 3072):
        raise UserError(
            f"'{path}' has {data.size} bytes, not a multiple of {label_bytes + 3072}; obtain it again"
        )
    records = data.reshape(-1, label_bytes + 3072)
    return records[:, label_bytes:], records[:, label_bytes - 1]


_CIFAR = (  # train files, test file, class names (python and binary), key of the labels, label bytes
    ([f"data_batch_{i}" for i in range(1, 6)], "test_batch", "batches.meta", "batches.meta.txt", "label", 1),
    (["train"], "test", "meta", "fine_label_names.txt", "fine_label", 2),
)


def read_cifar(folder: str | Path) -> Streams:
    """CIFAR-10 or CIFAR-100 (fine labels), python or binary files, in ``folder`` or one folder below."""
    for place in (existing(folder), *folders_in(Path(folder))):
        for train, test, meta, meta_text, key, label_bytes in _CIFAR:
            if (place / test).is_file() and (place / meta).is_file():
                names = [str(name) for name in _unpickle(place / meta, f"{key}_names")[0]]
                batches = [_unpickle(place / file, "data", f"{key}s") for file in (*train, test)]
            elif (place / f"{test}.bin").is_file():
                names = existing(place / meta_text).read_text().split()
                batches = [list(_unpack(place / f"{file}.bin", label_bytes)) for file in (*train, test)]
            else:
                continue
            x, y = zip(*batches, strict=True)
            return _arrays(
                {
                    "train": (np.concatenate(x[:-1]).reshape(-1, 3, 32, 32), np.concatenate(y[:-1])),
                    "test": (x[-1].reshape(-1, 3, 32, 32), y[-1]),
                },
                names,
                str(place),
            )
    raise UserError(
        f"no CIFAR files in '{folder}'; expected data_batch_1..5 and test_batch, or train and test"
    )


def read_idx(folder: str | Path, classes: Sequence[str] | None = None) -> Streams:
    """MNIST-type idx files, raw or gzipped: ``*train-images*``, ``*t10k-labels*`` and so on."""

    def one(*patterns: str) -> np.ndarray:
        found = sorted(path for pattern in patterns for path in existing(folder).glob(pattern))
        if not found:
            raise UserError(
                f"no file {patterns[0]} in '{folder}'; expected MNIST's four idx files, raw or .gz"
            )
        try:
            data = found[0].read_bytes()
            return parse_idx(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        except (OSError, EOFError, zlib.error, UserError) as error:
            raise UserError(f"cannot read '{found[0]}': {error}") from error

    return _arrays(
        {
            "train": (one("*train-images*"), one("*train-labels*")),
            "test": (one("*t10k-images*", "*test-images*"), one("*t10k-labels*", "*test-labels*")),
        },
        classes,
        str(folder),
    )


def read_image_list(
    list_file: str | Path,
    root: str | Path,
    classes: Sequence[str] | None = None,
    *,
    size: int = 224,
    mode: str = "RGB",
    remap: Tensor | None = None,
) -> Stream:
    """Lines ``relative/path label`` (ImageNet-LT, iNaturalist, Office, DomainNet), in the order listed.

    ``remap`` (K,) gives each listed label its new number, see ``frequency_order``; class names move along.
    """
    path, root = existing(list_file), existing(root)
    files, labels = [], []
    for number, line in enumerate(_text(path).splitlines(), 1):
        name, _, label = line.strip().rpartition(" ")
        if name and label.removeprefix("-").isdecimal():
            files.append(root / name.strip())
            labels.append(int(label))
        elif line.strip():
            raise UserError(f"'{path}' line {number}: '{line}' is not 'relative/path label'")
    if not files:
        raise UserError(f"'{path}' lists no images")
    if not files[0].is_file():
        raise UserError(f"'{files[0]}', the first image of '{path}', does not exist; is root '{root}' right?")
    found = np.array(labels)
    names = (
        tuple(str(k) for k in range(len(remap)))
        if remap is not None and not classes
        else _names(classes, [found])
    )
    tensor = _tensor(found, names, f"'{path}'")
    if remap is not None:
        if sorted(remap.tolist()) != list(range(len(names))):
            raise UserError(f"remap must be a permutation of 0..{len(names) - 1}, one entry for each class")
        tensor, names = remap[tensor], tuple(names[old] for old in remap.argsort().tolist())
    return Stream(_hold(Files(files, size=size, mode=mode), None), tensor, names, path.stem)


def frequency_order(labels: Tensor | Sequence[int], num_classes: int) -> Tensor:
    """(K,) new number of each class, the most frequent first, ties in class order; use it for every split.

    >>> frequency_order([0, 1, 1, 2, 2, 2], 3)
    tensor([2, 1, 0])
    """
    counts = torch.bincount(torch.as_tensor(labels), minlength=num_classes)
    if len(counts) > num_classes:
        raise UserError(
            f"label {len(counts) - 1} is outside 0..{num_classes - 1}; give the right num_classes"
        )
    return counts.argsort(descending=True, stable=True).argsort()
