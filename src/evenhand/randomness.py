"""Random numbers as a function of a seed and a purpose, so that nothing touches or depends on a global state."""

from __future__ import annotations

import hashlib
import operator
from typing import TypeVar

import numpy as np
import torch

Bits = TypeVar("Bits", int, np.ndarray)
_MASK = 2**64 - 1


def scramble(x: Bits) -> Bits:
    """One step of splitmix64: a bijection of 64-bit integers; a Python int or a uint64 array."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def mix(seed: int, *parts: int | str) -> int:
    """A stable 63-bit hash of a seed and what it is for: ``mix(0, "augment", step)``.

    Folds ``h <- scramble(h ^ part)`` over seed and parts; a word counts as the first 8 bytes of its sha256.
    """
    h = 0
    for part in (seed, *parts):
        if isinstance(part, str):
            part = int.from_bytes(hashlib.sha256(part.encode()).digest()[:8], "little")
        h = scramble(h ^ (_whole(part) & _MASK))
    return h >> 1


def _whole(part: object) -> int:
    """Python's int of numpy's or torch's."""
    try:
        return operator.index(part)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"seed {part!r} is no whole number; use an int") from error


def dice(seed: int, *parts: int | str) -> torch.Generator:
    """A CPU generator of its own for each purpose, seeded by ``mix(seed, *parts)``."""
    return torch.Generator().manual_seed(mix(seed, *parts))


def reseed(seed: int) -> None:
    """Seed torch's global generators of the devices in use.

    ``torch.manual_seed`` also keeps a trace of the call for each kind of device that is not, 0.7 ms every time.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
