"""Images on disk or in somebody's ``Dataset``, decoded when asked for."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from evenhand.data.stream import Stream
from evenhand.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
Box = tuple[float, float, float, float]  # left, top, right, bottom


def natural(name: str) -> tuple[list[str | int], str]:
    """Sorting key that puts ``2`` before ``10``, the same on every file system."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d+)", name))], name


def existing(path: str | Path) -> Path:
    """The path, or an error that says how far it exists."""
    path = Path(path)
    if not path.exists():
        parent = next((p for p in path.absolute().parents if p.exists()), path)
        raise UserError(f"'{path}' does not exist; the nearest folder that does is '{parent}'")
    return path


def folders_in(folder: Path) -> list[Path]:
    """Visible folders directly inside, in natural order."""
    inside = (p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))
    return sorted(inside, key=lambda p: natural(p.name))


def images_in(folder: Path) -> list[Path]:
    """Visible image files at any depth, in natural order of their names relative to ``folder``."""
    found = []
    for place, inside, files in os.walk(folder, followlinks=True):
        inside[:] = [name for name in inside if not name.startswith((".", "__"))]
        found += [Path(place, f) for f in files if f.lower().endswith(SUFFIXES) and not f.startswith(".")]
    return sorted(found, key=lambda path: natural(path.relative_to(folder).as_posix()))


def centre_box(width: int, height: int, size: int, resize: int) -> Box:
    """Where a centre crop of ``size`` lies once the shorter side is scaled to ``resize``."""
    pixel = min(width, height) / resize  # one output pixel, in input pixels
    left, top = (round((side / pixel - size) / 2) * pixel for side in (width, height))
    return left, top, left + size * pixel, top + size * pixel


def random_box(width: int, height: int, draws: Tensor) -> Box:
    """Random-resized-crop: area 0.08..1, ratio 3/4..4/3 (log-uniform); draws (tries, 4) in [0, 1)."""
    for area, shape, x, y in draws.tolist():
        pixels, ratio = width * height * (0.08 + 0.92 * area), (4 / 3) ** (2 * shape - 1)
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            break
    else:  # an extreme shape: the largest box of an allowed ratio, in the centre
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


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
    path: str | Path | IO[bytes], mode: str = "RGB", size: int = 0, choose: Callable[[int, int], Box] | None = None
) -> Image.Image:
    """One image, upright, in ``mode``; with ``choose(width, height)`` that box of it, scaled to ``size``."""
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(0x0112, 1) >= 5  # EXIF orientations 5..8 swap the sides
            width, height = reversed(image.size) if turned else image.size
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
        window = left * across, top * down, min(right * across, whole.width), min(bottom * down, whole.height)
        return whole.resize((size, size), Image.Resampling.BILINEAR, box=window)
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, zlib.error and others
        remedy = "replace or remove it, or set skip_unreadable"
        raise UserError(f"cannot read image '{path}': {error}; {remedy}") from error


class Files:
    """Image files, decoded to uint8 (N, C, size, size) when fetched; pickles, so loader workers can decode.

    Without a generator: shorter side to ``resize``, centre crop. With one, and ``random_frame`` (default:
    for ``size`` >= 96): random-resized-crop, every number drawn from the generator. ``reader`` opens what is no file.
    """

    def __init__(
        self, paths: Iterable[str | Path], *, size: int, mode: str = "RGB", resize: int | None = None,
        random_frame: bool | None = None, reader: Callable[[str], IO[bytes]] | None = None,
    ) -> None:  # fmt: skip
        if mode not in ("RGB", "L"):
            raise UserError(f"mode must be 'RGB' or 'L', got {mode!r}")
        large = size >= 96
        self.paths = [os.fspath(path) for path in paths]
        self.size, self.mode, self.reader = size, mode, reader
        self.resize = resize if resize is not None else round(size * 256 / 224) if large else size
        self.random_frame = large if random_frame is None else random_frame
        if not 0 < size <= self.resize:
            raise UserError(f"size must be at least 1 and at most resize, got size={size}, resize={self.resize}")

    def __len__(self) -> int:
        return len(self.paths)

    def fetch(self, indices: Tensor | Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        chosen = torch.as_tensor(indices, dtype=torch.long).tolist()
        images = torch.empty(len(chosen), len(self.mode), self.size, self.size, dtype=torch.uint8)
        choose = partial(centre_box, size=self.size, resize=self.resize)
        random = generator is not None and self.random_frame
        draws = torch.rand(len(chosen), 10, 4, generator=generator) if random else None
        for row, index in enumerate(chosen):
            if draws is not None:
                choose = partial(random_box, draws=draws[row])
            name = self.paths[index]
            pixels = np.array(load_image(self.reader(name) if self.reader else name, self.mode, self.size, choose))
            images[row] = as_images(pixels[None], name)[0]
        return images

    def identity(self) -> Iterable[bytes]:
        """Names from the common folder down, and file lengths: the same wherever the folder is moved."""
        if self.reader is not None:
            yield from (name.encode() for name in self.paths)
            return
        paths = [os.path.abspath(path) for path in self.paths]
        root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
        for path in paths:
            if not os.path.isfile(path):
                raise UserError(f"image '{path}' is missing; restore it or take it out of the list")
            name = path[len(root) :].replace(os.sep, "/")
            yield f"{name}\0{os.path.getsize(path)}\0".encode()


def as_images(array: np.ndarray, where: str) -> Tensor:
    """uint8 arrays (N, H, W), (N, H, W, C) or (N, C, H, W), C in {1, 3}, to a tensor (N, C, H, W)."""
    if array.dtype != np.uint8:
        raise UserError(f"{where}: images must be uint8 in 0..255, got {array.dtype}; scale, round and cast them")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    elif array.ndim != 4 or array.shape[1] not in (1, 3):
        raise UserError(
            f"{where}: images have shape {array.shape}; expected (N, H, W), (N, H, W, C) or (N, C, H, W) "
            "with 1 or 3 channels"
        )
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def as_labels(values: Any, what: str) -> Tensor:
    """Integers (N,) or (N, 1), to int64 (N,)."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer) or array.ndim == 0 or array.size != len(array):
        raise UserError(f"{what} must be integers (N,), got {array.dtype} {array.shape}")
    return torch.from_numpy(array.reshape(-1).astype(np.int64))


def class_names(given: Sequence[str] | None, labels: Iterable[Tensor]) -> tuple[str, ...]:
    """The names given, or numbers up to the largest label."""
    return tuple(str(name) for name in given or range(1 + max((int(y.max()) for y in labels if len(y)), default=-1)))


class Items:
    """Any map-style torch ``Dataset`` of (image, label): tensor in 0..1 or uint8, PIL image or uint8 array.

    Random transforms inside the dataset keep their own random state, so leave them to evenhand.
    """

    def __init__(self, dataset: Any) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise UserError(f"{type(dataset).__name__} has no length or no items; give a map-style Dataset")
        self.dataset, self.kind = dataset, type(dataset).__name__

    def __len__(self) -> int:
        return len(self.dataset)

    def sample(self, index: int) -> tuple[Tensor, Any]:
        """Image (C, H, W) uint8 and label."""
        where = f"{self.kind}[{index}]"
        try:
            image, label = self.dataset[index]
        except (TypeError, ValueError, OSError) as error:
            raise UserError(f"{where} does not give (image, label): {error}") from error
        if isinstance(image, Image.Image):
            image = np.array(convert(image, "L" if image.mode in ("1", "L") else "RGB"))
        elif isinstance(image, Tensor):
            if image.is_floating_point():
                if image.numel() and not 0 <= float(image.min()) <= float(image.max()) <= 1:
                    raise UserError(f"{where}: float images must lie in 0..1; leave out Normalize, it comes later")
                image = (image * 255).round().to(torch.uint8)
            image = image.cpu().numpy()
        return as_images(np.asarray(image)[None], where)[0], label

    def fetch(self, indices: Tensor | Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        images = [self.sample(index)[0] for index in torch.as_tensor(indices, dtype=torch.long).tolist()]
        shapes = sorted({tuple(image.shape) for image in images})
        if len(shapes) > 1:
            remedy = "add Resize and CenterCrop to its transform"
            raise UserError(f"{self.kind}: images of shapes {shapes[0]} and {shapes[1]} in one batch; {remedy}")
        return torch.stack(images)

    def identity(self) -> Iterable[bytes]:
        """The stored pixels or file names where the dataset shows them, else only its kind and length."""
        data, samples = getattr(self.dataset, "data", None), getattr(self.dataset, "samples", ())
        yield f"{type(self.dataset).__qualname__} {len(self)}".encode()
        if isinstance(data, Tensor | np.ndarray):
            yield np.asarray(data).tobytes()
        for name, *_ in samples:
            yield Path(name).name.encode()


def from_dataset(dataset: Any, classes: Sequence[str] | None = None, name: str = "") -> Stream:
    """A stream over any torch ``Dataset``; labels from ``.targets`` or ``.labels``, else by one pass."""
    items = Items(dataset)
    known = next((getattr(dataset, key) for key in ("targets", "labels") if hasattr(dataset, key)), None)
    found = [items.sample(index)[1] for index in range(len(items))] if known is None else known
    labels = as_labels(found, f"labels of {items.kind}")
    return Stream(items, labels, class_names(classes or getattr(dataset, "classes", None), [labels]), name)
