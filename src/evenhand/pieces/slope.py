"""The derivative of a metric in the confusion matrix C (K, K), and in the logits of its rows.

>>> from evenhand.measure.confusion import accuracy
>>> C = torch.tensor([[0.4, 0.1], [0.1, 0.4]])
>>> metric_slope(accuracy, C).tolist()
[[1.0, 0.0], [0.0, 1.0]]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def metric_slope(metric: Callable[[Tensor], Tensor], confusion: Tensor) -> Tensor:
    """(K, K) derivative of ``metric`` at ``confusion``: one number, made of torch operations, with a finite slope."""
    C = confusion.detach().requires_grad_()
    with torch.enable_grad():
        value = metric(C)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) and value.numel() != 1 else repr(value)
        raise ValueError(f"metric returned {found}: expected one number, computed from C by torch operations")
    if not value.isfinite().all():
        raise ValueError(f"metric returned {value.item():g}: guard its division or root, or give every class samples")
    (slope,) = torch.autograd.grad(value, C, torch.ones_like(value))  # works under no_grad too
    if not slope.isfinite().all():
        i, j = (~slope.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"metric: derivative {slope[i, j]:g} at C[{i}, {j}]={C[i, j]:g}: guard its division or root")
    return slope


def logit_slope(metric: Callable[[Tensor], Tensor], confusion: Tensor) -> Tensor:
    """(K, K) derivative A of ``metric`` in the logits of C's rows, ``C_i = prior_i softmax(logits_i)``.

    With P the derivative in C and R_il = C_il / prior_i: ``A_ij = C_ij (P_ij - sum_l P_il R_il)``; rows sum to 0.
    A metric of the recalls r gives ``A_ij = psi'_i r_i ([i = j] - R_ij)``: nothing where r_i is 0, so smooth C.
    """
    slope = metric_slope(metric, confusion)
    prior = confusion.sum(1, keepdim=True)
    share = confusion / torch.where(prior > 0, prior, 1.0)  # a class without samples has no say
    return confusion * (slope - (slope * share).sum(1, keepdim=True))
