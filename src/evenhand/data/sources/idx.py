"""MNIST's file format."""

from __future__ import annotations

import numpy as np

from evenhand.errors import UserError


def parse_idx(data: bytes) -> np.ndarray:
    """An idx file (MNIST's format) of unsigned bytes: 0, 0, type 8, rank, big-endian sizes, values."""
    rank = data[3] if len(data) > 3 else 0
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank)]
    if data[:3] != b"\0\0\x08" or len(data) != 4 + 4 * rank + int(np.prod(shape)):
        raise UserError(f"not an idx file of unsigned bytes: {len(data)} bytes, beginning {data[:4].hex()}")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)
