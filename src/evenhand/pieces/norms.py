"""One norm over many tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def global_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Euclidean norm over all numbers of all tensors, in float32 at least."""
    tensors = list(tensors)
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, 2, dtype)))
