"""What several tests make: generators, batches, images and trees of them, packages."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from evenhand.data.facts import Facts
from evenhand.data.loader import Batch, Loader
from evenhand.data.prepared import Data
from evenhand.data.views.view import OfSamples


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batches(method: Any, data: Data, count: int = 1) -> list[dict[str, Batch]]:
    """The first ``count`` batches that the loop would give the method."""
    columns = {
        key: list(Loader(data.streams, feed, seed=0, device=torch.device("cpu")).iterate(0, count))
        for key, feed in method.feeds(data.streams).items()
    }
    return [{key: column[step] for key, column in columns.items()} for step in range(count)]


def toy_data(classes: Sequence[str], **facts: Any) -> Data:
    """What a method of a test needs to know of its classes."""
    view = OfSamples(lambda x, _: x)
    return Data(Facts(classes=tuple(classes), counts=[1] * len(classes), **facts), view, view, view)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth image, so that JPEG and scaling change it little."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    wave = np.stack([x, y, 0.5 + 0.5 * np.sin(3 * x + 5 * y + seed)], -1)
    return Image.fromarray((wave * 255).astype(np.uint8))


def save_picture(path: Path, width: int = 40, height: int = 40, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(width, height, seed).save(path)
    return path


def scene(path: Path, seed: int, size: tuple[int, int] = (48, 48), tint: int = 0) -> Path:
    """A picture of its own, unlike that of any other seed."""
    coarse = np.random.default_rng(seed).integers(0, 200 - tint, (8, 8, 3), dtype=np.uint8)
    coarse[..., 0] += tint
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)
    return path


def truncate(path: Path) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def save(path: Path, side: int = 16, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (value, 255 - value, 7)).save(path)
    return path


def tree(root: Path, *names: str, side: int = 16) -> Path:
    for value, name in enumerate(names):
        save(root / name, side, value)
    return root


def table(root: Path, text: str, name: str = "list.csv") -> Path:
    (root / name).write_text(text, encoding="utf-8")
    return root / name


def pack(path: Path, members: dict[str, bytes]) -> None:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, content in members.items():
                zipped.writestr(name, content)
        return
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
