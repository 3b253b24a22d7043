"""Arrays of a user's as samples and labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.data.sources.paths import natural
from evenhand.data.sources.source import Memory
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError, did_you_mean

SKIPPED = 1000  # class numbers without a sample that any data may have; ten for each sample besides


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
    if 0 in array.shape[2:]:
        raise UserError(f"{where}: images of {array.shape[2]} x {array.shape[3]} pixels; give images that have some")
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def as_labels(values: Any, what: str) -> Tensor:
    """Integers (N,) or (N, 1), to int64 (N,)."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer) or array.ndim == 0 or array.size != len(array):
        raise UserError(f"{what} must be integers (N,), got {array.dtype} {array.shape}")
    return torch.from_numpy(array.reshape(-1).astype(np.int64))


def class_names(given: Sequence[str] | None, labels: Iterable[Tensor]) -> tuple[str, ...]:
    """The names given, or numbers up to the largest label unless most of them would have no sample."""
    if given:
        return tuple(str(name) for name in given)
    found = [y for y in labels if len(y)]
    largest, samples = max((int(y.max()) for y in found), default=-1), sum(map(len, found))
    if largest > SKIPPED + 10 * samples:
        raise UserError(
            f"label {largest} in {samples} samples makes {largest + 1} classes: renumber from 0 without gaps"
        )
    return tuple(map(str, range(largest + 1)))


def as_vectors(array: np.ndarray, where: str) -> Tensor:
    """Finite float arrays (N, d) as float32."""
    vectors = torch.from_numpy(array.astype(np.float32))
    if not vectors.isfinite().all():
        row = int((~vectors.isfinite()).any(1).nonzero()[0])
        raise UserError(f"{where}: vector {row} is not finite; remove it or fill it in")
    return vectors


def array_streams(pairs: Mapping[str, tuple[np.ndarray, Any]], classes: Sequence[str] | None, where: str) -> Streams:
    """Streams in memory, each from its images or vectors (floats (N, d)) and its labels or None."""
    samples = {
        name: as_vectors(x, f"{where}, {name}") if _is_vectors(x) else as_images(x, f"{where}, {name}")
        for name, (x, _) in pairs.items()
    }
    if empty := next((name for name, x in samples.items() if not len(x)), None):
        raise UserError(f"{where}, {empty}: there are no samples; add some, or leave that part out")
    given = {name: np.asarray(y) for name, (_, y) in pairs.items() if y is not None}
    if any(y.dtype.kind in "US" for y in given.values()):
        labels, classes = _named_labels(given, classes, where)
    else:
        labels = {name: as_labels(y, f"{where}, {name}: labels") for name, y in given.items()}
    try:
        names = class_names(classes, labels.values())
        return {
            name: Stream(Memory(x, [f"{name}/{row}" for row in range(len(x))]), labels.get(name), names, name)
            for name, x in samples.items()
        }
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _named_labels(
    given: Mapping[str, np.ndarray], classes: Sequence[str] | None, where: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Labels that are words as numbers, and the classes: those given, or all there are in natural order."""
    words: dict[str, list[str]] = {}
    for name, y in given.items():
        if y.dtype.kind not in "US" or y.ndim == 0 or y.size != len(y):
            raise UserError(f"{where}, {name}: labels are {y.dtype} {y.shape}; give words (N,) or numbers everywhere")
        words[name] = [word.decode() if isinstance(word, bytes) else word for word in y.reshape(-1).tolist()]
    known = list(classes or sorted({word for part in words.values() for word in part}, key=natural))
    number = {word: k for k, word in enumerate(known)}
    for name, part in words.items():
        if odd := next((word for word in part if word not in number), None):
            raise UserError(f"{where}, {name}: label '{odd}' is not among the classes; {did_you_mean(odd, known)}")
    return {name: torch.tensor([number[word] for word in part]) for name, part in words.items()}, known


def _is_vectors(array: np.ndarray) -> bool:
    return array.ndim == 2 and np.issubdtype(array.dtype, np.floating)
