"""Samples that are copies of each other, or nearly: they must not lie on both sides of a split.

Pictures are compared by grey thumbnails, whatever brightness and contrast: candidates are alike at 16 x 16 pixels,
near copies at 32 x 32 and in the edges there. Texts are compared by the words in a row that they share.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from evenhand.data.progress import shown
from evenhand.data.sources.files import load_image
from evenhand.data.stream import Stream
from evenhand.errors import UserError

SIDE = 32
# Least correlations of near copies. 437 solar cells (ELPV), made smaller and saved as JPEG of quality 60, correlate
# with themselves by 0.999 (all but one in a hundred; edges 0.986), with the most similar other cell by 0.994 at most.
ALIKE, EDGES = 0.997, 0.97
FLAT = 4.0  # deviation of a thumbnail, of 255 levels, below which there is nothing to compare
BLANK = 0.5
CHAIN = 10  # more near copies than that in one group are pictures that are alike by nature
PAIRWISE = 30_000  # beyond it near copies are looked for within classes only
WORDS, SHARED, PERMUTATIONS = 5, 0.8, 24  # words in a row; share of common ones that makes a near copy


def copies(stream: Stream) -> Tensor:
    """(N,) the same number for samples that are copies or near copies of each other; blank images are no copies."""
    exact = numbered(fingerprints(stream))
    if stream.kind == "texts":
        return joined_up(exact, near_texts(stream.samples.texts))  # type: ignore[attr-defined]
    if stream.kind != "images":
        return exact
    repeated = torch.bincount(exact, minlength=len(exact))[exact] > 1
    if stream.samples.frame is None:
        some = [row for row in repeated.nonzero()[:, 0].tolist() if _is_blank(stream, row)]
        return exact.index_put((torch.tensor(some, dtype=torch.long),), torch.tensor(some, dtype=torch.long))
    small = thumbnails(stream)
    blank = torch.from_numpy(np.nan_to_num(small, nan=1e3).std((1, 2)) < BLANK)
    exact = torch.where(blank, torch.arange(len(exact)), exact)
    return without_chains(exact, joined_up(exact, near_pictures(small, stream.labels)))


def _is_blank(stream: Stream, row: int) -> bool:
    image = stream.fetch(torch.tensor([row]))[0]
    return bool((image == image[:, :1, :1]).all())


def fingerprints(stream: Stream) -> Iterator[bytes]:
    """Of each sample's content: of the file, the array, or the words of a text."""
    samples = stream.samples
    for row in range(len(stream)):
        path = samples.path(row)
        if path is not None:
            content = Path(path).read_bytes() if Path(path).is_file() else path.encode()
        elif stream.kind == "texts":
            content = " ".join(words_of(samples.texts[row])).encode()  # type: ignore[attr-defined]
        else:
            content = samples.fetch(torch.tensor([row]))[0].numpy().tobytes()
        yield hashlib.sha256(content).digest()


def thumbnails(stream: Stream) -> np.ndarray:
    """(N, 32, 32) grey levels of the whole pictures, stretched; NaN where one cannot be read."""
    small = np.full((len(stream), SIDE, SIDE), np.nan, np.float32)
    for row in shown(range(len(stream)), f"comparing {stream.name or 'pictures'}"):
        path = stream.samples.path(row)
        try:
            if path is not None:
                small[row] = thumbnail(load_image(path, "L", SIDE, lambda w, h: (0, 0, w, h)))
            else:
                pixels = stream.fetch(torch.tensor([row]))[0].permute(1, 2, 0).numpy()
                small[row] = thumbnail(Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels))
        except UserError:
            continue
    return small


def thumbnail(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.float32)


def near_pictures(small: np.ndarray, labels: Tensor | None = None) -> list[tuple[int, int]]:
    """Pairs of near copies; flat thumbnails have none."""
    usable = np.flatnonzero(np.nan_to_num(small).std((1, 2)) > FLAT)
    parts = [usable]
    if len(usable) > PAIRWISE and labels is not None:
        y = labels.numpy()[usable]
        parts = [usable[y == k] for k in np.unique(y)]
    return [pair for part in parts for pair in _near(small[part], part)]


def _near(small: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, int]]:
    thumbs = torch.from_numpy(small)
    coarse = _standard(torch.nn.functional.avg_pool2d(thumbs[:, None], SIDE // 16).flatten(1))  # (N, 256)
    fine = _standard(thumbs.flatten(1))
    edges = _standard(torch.cat([thumbs.diff(dim=1).flatten(1), thumbs.diff(dim=2).flatten(1)], 1))
    for start in range(0, len(rows), 1024):
        first, second = (coarse[start : start + 1024] @ coarse.T >= ALIKE - 0.002).nonzero().unbind(1)
        first = first + start
        ahead = first < second
        first, second = first[ahead], second[ahead]
        for some, other in zip(first.split(4096), second.split(4096), strict=True):
            same = (fine[some] * fine[other]).sum(1) >= ALIKE
            same &= (edges[some] * edges[other]).sum(1) >= EDGES
            yield from zip(rows[some[same].numpy()].tolist(), rows[other[same].numpy()].tolist(), strict=True)


def _standard(x: Tensor) -> Tensor:
    """Rows of mean 0 and length 1, so that a product is a correlation."""
    x = x - x.mean(1, keepdim=True)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-6)


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def near_texts(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of texts that share most of their runs of five words: by min-wise hashing, then by the runs themselves."""
    chance = np.random.default_rng(0)
    factor = chance.integers(1, 2**61, PERMUTATIONS, dtype=np.uint64) | np.uint64(1)
    marks, runs = np.zeros((len(texts), PERMUTATIONS), np.uint64), []
    for row, text in enumerate(texts):
        words = words_of(text)
        runs.append({hash_of(" ".join(words[at : at + WORDS])) for at in range(len(words) - WORDS + 1)})
        if len(words) >= 2 * WORDS:
            marks[row] = (np.fromiter(runs[-1], np.uint64)[:, None] * factor).min(0)
    found = set()
    for band in range(0, PERMUTATIONS, 3):  # alike in three permutations at once
        keys: dict[bytes, int] = {}
        for row in np.flatnonzero(marks.any(1)).tolist():
            other = keys.setdefault(marks[row, band : band + 3].tobytes(), row)
            if other != row and len(runs[row] & runs[other]) >= SHARED * len(runs[row] | runs[other]):
                found.add((other, row))
    return sorted(found)


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def joined_up(numbers: Tensor, pairs: Iterable[tuple[int, int]]) -> Tensor:
    """Numbers of groups once the members of each pair are in one."""
    parent = list(range(len(numbers)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    first: dict[int, int] = {}
    for row, number in enumerate(numbers.tolist()):
        parent[row] = first.setdefault(number, row)
    for one, other in pairs:
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return torch.tensor([root(row) for row in range(len(parent))], dtype=torch.int64)


def without_chains(exact: Tensor, near: Tensor) -> Tensor:
    """Groups of near copies, but for those so large that the pictures are merely of one kind: there, exact copies."""
    contents = torch.bincount(near[exact.unique()], minlength=len(near))  # different contents in each group
    return torch.where(contents[near] > CHAIN, exact, near)


def numbered(marks: Iterable[Any]) -> Tensor:
    """(N,) the place of the first that is equal."""
    first: dict[Any, int] = {}
    return torch.tensor([first.setdefault(mark, row) for row, mark in enumerate(marks)], dtype=torch.int64)
