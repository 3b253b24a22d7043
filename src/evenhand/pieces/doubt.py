"""Other reasons to look at a sample: it may be of a rare class, or its label may be wrong."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenhand.given import as_tensor
from evenhand.pieces.pool import check_budget, check_probs, highest


def rare_select(probs: Tensor, counts: Sequence[int] | Tensor, budget: int) -> list[int]:
    """Likely members of rare classes: highest ``sum_k p_k min(n) / n_k``; counts (K,) are those of training.

    A sample that is surely of the rarest class scores 1, one of a class ten times as frequent 0.1.
    """
    p, n = check_probs(probs), as_tensor(counts, dtype=torch.float64)
    if n.shape != (p.shape[1],) or not (n > 0).all():
        raise ValueError(f"counts of {len(n)} classes, least {n.min():g}: give one above 0 for each of {p.shape[1]}")
    return highest(p @ (n.min() / n).to(p), check_budget(budget, len(p)))


def suspicious_labels(probs: Tensor, labels: Tensor, budget: int | None = None) -> list[int]:
    """Samples whose label the model doubts, most doubtful first; at most ``budget``.

    ``probs`` (N, K) must come from a model that was trained without these labels. Its usual confidence differs from
    class to class, and is low for rare ones; so each is judged by its own threshold (confident learning, Northcutt et
    al. 2021): ``t_k``, the mean of ``p_k`` over samples labelled k. A sample labelled y is suspicious if another class
    k reaches its own threshold, ``p_k >= t_k``, while y does not; the larger ``max_k p_k / t_k - p_y / t_y``, the more.
    """
    p = check_probs(probs)
    if labels.shape != (len(p),):
        raise ValueError(f"labels of shape {tuple(labels.shape)}: give one for each of the {len(p)} samples")
    y = labels.to(p.device)
    there = torch.bincount(y, minlength=p.shape[1]) > 0
    own = p.gather(1, y[:, None])[:, 0]
    sums = p.new_zeros(p.shape[1]).index_add_(0, y, own)
    usual = sums / torch.bincount(y, minlength=p.shape[1]).clamp_min(1)  # (K,)
    ratio = (p / usual.clamp_min(1e-12)).masked_fill(~there, 0.0)  # a class that nobody is labelled as has no threshold
    of_label = ratio.gather(1, y[:, None])[:, 0]
    other = ratio.scatter(1, y[:, None], 0.0).amax(1)
    doubt = torch.where((other >= 1) & (of_label < 1), other - of_label, torch.zeros_like(other))
    found = highest(doubt, int((doubt > 0).sum()))
    return found if budget is None else found[: check_budget(budget, len(p))]
