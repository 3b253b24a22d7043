"""Readers of the files that packages carry: given the folders of a row's packages, classes and splits."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from evenhand.data.sets.shifted import blend
from evenhand.data.sources.idx import parse_idx
from evenhand.errors import UserError

Split = tuple[np.ndarray, np.ndarray]  # images uint8 (N, C, H, W), labels (N,)
Parsed = tuple[tuple[str, ...], dict[str, Split]]  # classes, and the splits by name

GARMENTS = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
DIGITS = tuple("0123456789")


def read_mnist(folder: Path, *, classes: tuple[str, ...]) -> Parsed:
    """The four gzipped idx files that MNIST and its descendants consist of."""

    def array(name: str) -> np.ndarray:
        return parse_idx(gzip.decompress(one_file(folder, name).read_bytes()))

    def split(name: str) -> Split:
        return array(f"{name}-images-idx3-ubyte.gz")[:, None], array(f"{name}-labels-idx1-ubyte.gz")

    return classes, {"train": split("train"), "test": split("t10k")}


def read_mnist_m(digits: Path, photos: Path) -> Parsed:
    """MNIST's digits over photographs."""
    classes, parts = read_mnist(digits, classes=DIGITS)
    return classes, blend(parts, photos)


def read_cifar10(folder: Path) -> Parsed:
    """PNGs in which every row is one 32 x 32 image, and labels (spelt "lables") as JSON lists."""
    from PIL import Image

    def split(pictures: list[str], labels: str) -> Split:
        rows = [np.asarray(Image.open(one_file(folder, name)).convert("RGB")) for name in pictures]
        images = np.concatenate(rows).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        return images, np.array(json.loads(one_file(folder, labels).read_text()))

    train = split([f"data_batch_{i}.png" for i in range(1, 6)], "train_lables.json")
    return CIFAR10_CLASSES, {"train": train, "test": split(["test_batch.png"], "test_lables.json")}


def read_optdigits(folder: Path) -> Parsed:
    """Lines of 64 grey values in 0..16, then the digit; values are stretched to 0..255."""

    def split(name: str) -> Split:
        table = np.loadtxt(one_file(folder, name), delimiter=",", dtype=int)
        return np.rint(table[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8), table[:, 64]

    return DIGITS, {"train": split("optdigits.tra"), "test": split("optdigits.tes")}


def read_quickdraw(folder: Path) -> Parsed:
    """A gzipped file per class, a JSON list of 784 values in 0..1 per line; the last fifth is the test."""
    files = sorted(folder.rglob("*.ndjson.gz"))
    drawings = np.array([[json.loads(line) for line in _lines(file)] for file in files])  # (K, n, 784)
    images = np.rint(drawings * 255).astype(np.uint8)
    labels = np.arange(len(files))[:, None].repeat(images.shape[1], axis=1)

    def split(part: slice) -> Split:
        return images[:, part].reshape(-1, 1, 28, 28), labels[:, part].ravel()

    cut = images.shape[1] * 4 // 5
    classes = tuple(file.name.removesuffix(".ndjson.gz") for file in files)
    return classes, {"train": split(slice(cut)), "test": split(slice(cut, None))}


SOLAR = ("sound", "probably sound", "probably defective", "defective")  # by the experts' defect probability, 0 to 1


def read_elpv(folder: Path) -> Parsed:
    """Photographs of solar cells, 300 x 300 grey, and a table of file, defect probability in thirds and cell type."""
    from PIL import Image

    table = one_file(folder, "labels.csv")
    rows = [line.split() for line in table.read_text().splitlines() if line.strip()]
    parts = {}
    for kind in ("mono", "poly"):
        mine = [(path, round(3 * float(share))) for path, share, of in rows if of == kind]
        images = np.stack([np.asarray(Image.open(table.parent / path).convert("L")) for path, _ in mine])
        parts[f"{kind}/all"] = images[:, None], np.array([label for _, label in mine])
    return SOLAR, parts


def one_file(folder: Path, name: str) -> Path:
    """The only file called so, at any depth."""
    found = sorted(folder.rglob(name))
    if len(found) != 1:
        raise UserError(f"{len(found)} files {name} in {folder} instead of one; delete the folder and try again")
    return found[0]


def _lines(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines()
