"""What callers may hand in: lists, arrays or tensors."""

from __future__ import annotations

from collections.abc import Mapping, ValuesView
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_tensor(values: Any, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """torch's, which also takes numpy's reversed views and wide unsigned integers, and refuses a dict or Counter."""
    if isinstance(values, Mapping):  # it would be read as the list of its keys, or not at all
        raise ValueError(f"a {type(values).__name__} where a list of numbers is asked for: give its values, in order")
    if isinstance(values, ValuesView):
        values = list(values)
    if isinstance(values, np.ndarray):
        if values.dtype.kind == "u" and values.dtype.itemsize > 1:
            values = values.astype(np.int64)
        if min(values.strides, default=0) < 0:
            values = values.copy()
    return torch.as_tensor(values, dtype=dtype, device=device)


def numbers(values: Any) -> Tensor:
    """A tensor of them; Python's floats keep their digits (float64), what has a type keeps it."""
    found = as_tensor(values)
    return found if _typed(values) or not found.is_floating_point() else as_tensor(values, dtype=torch.float64)


def narrowed(result: Tensor, *given: Any) -> Tensor:
    """In torch's default type, unless something given came with a type of its own."""
    return result if any(map(_typed, given)) else result.to(torch.get_default_dtype())


def _typed(values: Any) -> bool:
    return isinstance(values, Tensor) or hasattr(values, "__array__")
