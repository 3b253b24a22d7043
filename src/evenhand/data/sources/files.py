"""Images on disk, decoded when asked for."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import IO, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from evenhand.data.progress import shown
from evenhand.data.sources.frames import MARGIN, Box, Cuts, Frame, How, Interpolation, cut
from evenhand.data.sources.paths import few
from evenhand.data.sources.source import Memory, Source
from evenhand.errors import UserError

REMEDY = "replace or remove it, or set data.skip_unreadable"
Label = TypeVar("Label")
TOO_NARROW = 50  # a side this many times the other shows nothing in a square
PROBED, PROBE = 2000, 2**16  # files of which an identity has contents, and how many bytes of each


def random_square(width: int, height: int, draws: Tensor) -> Box:
    """A square of the full shorter side, anywhere along the longer one; draws (tries, 4) in [0, 1)."""
    side, (x, y) = min(width, height), draws[0, 2:].tolist()
    left, top = int(x * (width - side + 1)), int(y * (height - side + 1))
    return left, top, left + side, top + side


def convert(image: Image.Image, mode: str) -> Image.Image:
    """To 8-bit ``mode``: transparency is laid on white, 16-bit grey keeps its upper byte."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"32-bit pixels (mode {image.mode}) have no known range, save it with 8 bits")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)


def load_image(
    path: str | Path | IO[bytes], mode: str = "RGB", size: int = 0, choose: Callable[[int, int], Box] | None = None,
    interpolation: Interpolation = "bilinear",
) -> Image.Image:  # fmt: skip
    """One image, upright, in ``mode``; with ``choose(width, height)`` that box of it, scaled to ``size``."""
    try:
        with Image.open(path) as image:
            width, height = upright_size(image)
            turned = image.getexif().get(0x0112, 1) >= 5
            if max(width, height) > TOO_NARROW * min(width, height):
                raise ValueError(f"{width} x {height} pixels are too narrow to show anything")
            left, top, right, bottom = choose(width, height) if choose else (0, 0, width, height)
            if choose:  # a JPEG decodes at 1/2, 1/4 or 1/8 for less work, never smaller than the box needs
                need = math.ceil(size * width / (right - left)), math.ceil(size * height / (bottom - top))
                image.draft(mode, need[::-1] if turned else need)
            ImageOps.exif_transpose(image, in_place=True)
            whole = convert(image, mode)
            whole.load()
        if choose is None:
            return whole
        across, down = whole.width / width, whole.height / height
        return cut(whole, (left * across, top * down, right * across, bottom * down), size, interpolation)
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, zlib.error and others
        raise UserError(f"cannot read image '{path}': {error}; {REMEDY}") from error


class Files(Source):
    """Image files, decoded to uint8 (N, C, size, size) when fetched; pickles, so loader workers can decode.

    Without ``chance``: as ``frame`` says; a crop has the shorter side at ``resize``. With it, and ``random_frame``
    (default: for ``size`` >= 96): random-resized-crop of the whole picture, every number drawn from it, or, once
    ``squared()``, a random square. ``whole`` leaves no margin and frames nothing at random, for generators. ``reader``
    opens what is no file; ``names`` default to the paths.
    """

    frame: Frame

    def __init__(
        self, paths: Iterable[str | Path], *, size: int, mode: str = "RGB", resize: int | None = None,
        random_frame: bool | None = None, whole: bool = False, names: Sequence[str] | None = None,
        reader: Callable[[str], IO[bytes]] | None = None, frame: How = "crop",
    ) -> None:  # fmt: skip
        if mode not in ("RGB", "L"):
            raise UserError(f"mode must be 'RGB' or 'L', got {mode!r}")
        large = size >= 96 and not whole
        self.paths = [os.fspath(path) for path in paths]
        self.names = self.paths if names is None else names
        self.size, self.mode, self.whole, self.reader = size, mode, whole, reader
        self.resize = resize if resize is not None else round(size * MARGIN) if large and frame == "crop" else size
        self.random_frame = large if random_frame is None else random_frame
        self.cuts, self.squares = Cuts(size), False
        if not 0 < size <= self.resize:
            raise UserError(f"size must be at least 1 and at most resize, got size={size}, resize={self.resize}")
        self.frame = Frame(size, frame, self.resize)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def stored(self) -> int:
        return 0 if self.reader else len(self.paths)

    def fetch(self, rows: Tensor | Sequence[int], chance: torch.Generator | None = None) -> Tensor:
        chosen = torch.as_tensor(rows, dtype=torch.long).tolist()
        choose: Callable[[int, int], Box] = self.frame.box
        random = chance is not None and self.random_frame
        cuts = self.cuts if random else Cuts(self.size)
        images = torch.empty(len(chosen), len(self.mode), cuts.side, cuts.side, dtype=torch.uint8)
        draws = torch.rand(len(chosen), 10, 4, generator=chance) if random else None
        for at, row in enumerate(chosen):
            if draws is not None:
                choose = partial(self.frame.random_box, draws=draws[at], scale=cuts.scale, ratio=cuts.ratio)
                if self.squares:
                    choose = partial(random_square, draws=draws[at])
            path = self.paths[row]
            opened = self.reader(path) if self.reader else path
            pixels = np.array(load_image(opened, self.mode, cuts.side, choose, cuts.interpolation))
            images[at] = torch.from_numpy(pixels.reshape(cuts.side, cuts.side, -1)).permute(2, 0, 1)
        return images

    def name(self, row: int) -> str:
        return self.names[row]

    def path(self, row: int) -> str | None:
        return self.paths[row] if self.reader is None else None

    def framed(self, side: int, channels: int) -> Files:
        mode = "L" if channels == 1 else "RGB"
        if (self.size, self.mode) == (side, mode):
            return self
        how = self.frame.how
        return Files(
            self.paths, size=side, mode=mode, whole=self.whole, names=self.names, reader=self.reader, frame=how
        )

    def boxed(self, cuts: Cuts) -> Files:
        mine = copy(self)
        mine.random_frame, mine.cuts = True, cuts
        return mine

    def squared(self) -> Files:
        other = copy(self)
        other.squares = True
        return other

    def held(self, memory: bool | None = None) -> Source:
        """Small images are decoded once, into memory; True and False say otherwise."""
        small = self.size <= 64 and len(self) * len(self.mode) * self.size**2 < 2**31
        if not (small if memory is None else memory):
            return self
        pieces = torch.arange(len(self)).split(256)
        images = [self.fetch(piece) for piece in shown(pieces, "decoding")]
        held = torch.cat(images or [self.fetch([])])
        return Memory(held, self.names, frame=self.frame, files=None if self.reader else self.paths)

    def identity(self, *, dated: bool = False) -> Iterable[bytes]:
        """How they are framed, names from the common folder down, and marks: the same wherever the folder moves."""
        yield f"{self.size} {self.resize} {self.mode}{'' if self.frame.how == 'crop' else self.frame.how}".encode()
        if self.reader is not None:
            every = _every(self.paths)
            for at, name in enumerate(self.paths):
                yield name.encode() + (b"" if at % every else hashlib.blake2b(self.reader(name).read()).digest())
            return
        paths = [os.path.abspath(path) for path in self.paths]
        root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
        for path, mark in zip(paths, marks(paths, "the list", dated=dated), strict=True):
            yield f"{path[len(root) :].replace(os.sep, '/')}\0{mark}".encode()


def marks(paths: Sequence[str], listed: str, *, dated: bool) -> Iterator[str]:
    """Of each file its length, and either when it was changed, which a copy does not keep, or what is in its middle.

    Uncompressed pictures are all of one length. So many files are probed, spread over all: a large set must not be read
    from end to end before a run begins, and its compressed pictures differ in length.
    """
    every = _every(paths)
    for at, path in enumerate(paths):
        if not os.path.isfile(path):
            raise UserError(f"image '{path}' is missing; restore it or take it out of {listed}")
        found = os.stat(path)
        more = str(found.st_mtime_ns) if dated else "" if at % every else _probe(path, found.st_size)
        yield f"{found.st_size}\0{more}"


def _every(paths: Sequence[str]) -> int:
    """The how-manieth is probed."""
    return max(1, math.ceil(len(paths) / PROBED))


def _probe(path: str, length: int) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, (length - PROBE) // 2))
        return hashlib.blake2b(file.read(PROBE), digest_size=8).hexdigest()


def readable(rows: list[tuple[Path, Label]], mode: str, skipped: list[str] | None = None) -> list[tuple[Path, Label]]:
    """The rows whose image decodes; the others are warned of and added to ``skipped``."""
    good, bad = [], []
    for row in shown(rows, "reading files"):
        try:
            load_image(row[0], mode)
            good.append(row)
        except UserError:
            bad.append(str(row[0]))
    if bad:
        warnings.warn(f"skipped {len(bad)} unreadable of {len(rows)} images: {few(bad)}", stacklevel=3)
    if skipped is not None:
        skipped.extend(bad)
    return good


def sizes_of(files: Sequence[Path], most: int = 200) -> list[tuple[int, int]]:
    """Width and height, upright, of some images spread over the list; only their headers are read."""
    sizes = []
    for file in files[:: max(1, len(files) // most)]:
        try:
            with Image.open(file) as image:
                sizes.append(upright_size(image))
        except Exception:  # whatever it is, it is reported with the file's name when that is decoded
            continue
    return sizes


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height; EXIF orientations 5..8 swap the sides."""
    width, height = image.size
    return (height, width) if image.getexif().get(0x0112, 1) >= 5 else (width, height)


def typical_size(sizes: Sequence[tuple[int, int]], frame: How = "crop") -> int:
    """Median of the side that a frame fills (the shorter, where it crops), at most 224."""
    sides = [min(size) if frame == "crop" else max(size) for size in sizes]
    return min(median_low(sides), 224) if sides else 224
