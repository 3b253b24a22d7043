"""What callers may hand in: lists, arrays or tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def numbers(values: Any) -> Tensor:
    """A tensor of them; Python's floats keep their digits (float64), what has a type keeps it."""
    found = torch.as_tensor(values)
    return found if _typed(values) or not found.is_floating_point() else torch.as_tensor(values, dtype=torch.float64)


def narrowed(result: Tensor, *given: Any) -> Tensor:
    """In torch's default type, unless something given came with a type of its own."""
    return result if any(map(_typed, given)) else result.to(torch.get_default_dtype())


def _typed(values: Any) -> bool:
    return isinstance(values, Tensor) or hasattr(values, "__array__")
