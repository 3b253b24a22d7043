"""What a vision transformer attends to, and how many directions its tokens use (spec 05, section 8).

Attention matrices are (N, heads, L, L) with rows summing to 1; the first ``special`` tokens are CLS and DIST, the
others patches, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def attention_distance(attention: Tensor, special: int, rows: int, columns: int, patch: int) -> Tensor:
    """Mean distance in pixels at which each head looks, (heads,): ``mean_i sum_j A_ij |place_i - place_j|``.

    Rows and columns of special tokens are left out, and what remains is not scaled up again.

    >>> uniform = torch.full((1, 1, 196, 196), 1 / 196)
    >>> round(attention_distance(uniform, 0, 14, 14, 16).item(), 2)
    116.49
    """
    patches = attention[..., special:, special:]
    if patches.shape[-1] != rows * columns:
        raise ValueError(
            f"attention is among {patches.shape[-1]} patches, not {rows} x {columns}; give the image's grid"
        )
    place = patch * torch.cartesian_prod(torch.arange(float(rows)), torch.arange(float(columns)))  # (P, 2)
    apart = torch.cdist(place, place).to(patches)
    return (patches * apart).sum(-1).mean((0, 2))


def rollout(attentions: Sequence[Tensor]) -> Tensor:
    """(N, L, L): how much each token at the end draws on each at the start, over all blocks.

    The product of ``(mean over heads + identity) / 2``, last block first; rows sum to 1.
    """
    if not attentions:
        raise ValueError("attentions is empty; give at least one block's")
    total = None
    for attention in attentions:
        mean = attention.float().mean(1)  # (N, L, L)
        step = (mean + torch.eye(mean.shape[-1], device=mean.device)) / 2
        step = step / step.sum(-1, keepdim=True)
        total = step if total is None else step @ total
    assert total is not None
    return total


def feature_rank(every: Tensor, some: Tensor, *, residual: float = 0.01, centre_both: bool = True) -> int:
    """Principal directions of ``every`` (N, d) that hold all but ``residual`` of the energy of ``some`` (n, d).

    Both are centred at the mean of ``every``; the thesis centres that alone (``centre_both=False``).
    """
    if every.ndim != 2 or some.ndim != 2 or every.shape[1] != some.shape[1] or not len(some) or not len(every):
        raise ValueError(f"features of shapes {tuple(every.shape)} and {tuple(some.shape)}; give (N, d) and (n, d)")
    every, some = every.double(), some.double()
    mean = every.mean(0)
    some = some - mean if centre_both else some
    centred = every - mean
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)  # (d, d), largest first
    held = (some @ directions).square().sum(0).cumsum(0)  # (d,)
    energy = some.square().sum()
    if energy == 0:
        return 0
    return int((1 - held / energy > residual).sum()) + 1


def entropies(logits: Tensor) -> Tensor:
    """-sum p log p of each row's softmax, in nats, (N,)."""
    log = logits.float().log_softmax(1)
    return -(log.exp() * log).sum(1)
