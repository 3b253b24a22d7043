"""What a chosen batch is like: why each sample stands there, how alike they are, how well they cover the pool."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from evenhand.pieces.pairwise import OFFSET, Pairs
from evenhand.pieces.pool import check_probs, check_scores
from evenhand.pieces.submodular import Pick


@torch.no_grad()
def explained(probs: Tensor, uncertainty: Tensor, picks: Sequence[int], *, block: int = 1024) -> list[Pick]:
    """The three terms of S3VAADA (see ``submodular``) of picks that anything has made, in their order.

    ``probs`` (N, K) and ``uncertainty`` (N,) are the pool's. The first pick has no diversity, and covers what it can:
    before it every sample is as badly covered as by the one least like it in the pool.
    """
    p = check_probs(probs)
    pairs = Pairs(p / p.sum(1, keepdim=True), block)
    u = check_scores("uncertainty", uncertainty, len(p)).to(p)
    u = (u - u.min()) / (u.max() - u.min()) if len(u) and u.max() > u.min() else torch.zeros_like(u)
    most = pairs.largest_divergence() if picks else 0.0
    widest = pairs.largest_gap() if picks else OFFSET
    reach = math.log(widest / OFFSET)
    divergence, nearest = torch.full_like(u, math.inf), torch.full_like(u, widest)
    found: list[Pick] = []
    for i in picks:
        apart = float(divergence[i]) / most if found and most > 1e-12 else 0.0
        gain = float(pairs.cover(nearest, torch.tensor([i], device=u.device))[0]) / len(u)
        found.append(Pick(i, float(u[i]), apart, gain / reach if reach > 1e-6 else 0.0))
        divergence = torch.minimum(divergence, pairs.divergence(i))
        nearest = torch.minimum(nearest, pairs.gap(i))
    return found


@torch.no_grad()
def batch_numbers(probs: Tensor, uncertainty: Tensor, picks: Sequence[int]) -> dict[str, float]:
    """Of a batch of at least one sample, each in [0, 1] but the count (spec 08, section 5):

    - ``spacing``: mean over the batch of the divergence to the nearest other pick; 0: all alike, so redundant;
    - ``coverage``: facility location, the mean over the pool of the similarity to the nearest pick, from 0 for the two
      least alike of the pool to 1 for copies;
    - ``uncertainty``: mean score, scaled over the pool; ``entropy``: mean of the predictions, as a share of ln K;
    - ``classes``: how many different classes are predicted.
    """
    if not picks:
        raise ValueError("picks is empty: a batch needs at least one sample")
    p = check_probs(probs)
    told = explained(p, uncertainty, picks)
    pairs, chosen = Pairs(p / p.sum(1, keepdim=True)), torch.tensor(list(picks), device=p.device)
    apart = torch.stack([pairs.divergence(i)[chosen] for i in picks])  # (B, B): first argument down
    nearest = apart.fill_diagonal_(math.inf).amin(1)
    most = pairs.largest_divergence()
    entropy = torch.special.entr(p[chosen]).sum(1).mean() / math.log(p.shape[1])
    return {
        "spacing": float(nearest.mean()) / most if len(picks) > 1 and most > 1e-12 else 0.0,
        "coverage": sum(pick.representativeness for pick in told),
        "uncertainty": sum(pick.uncertainty for pick in told) / len(told),
        "entropy": float(entropy),
        "classes": float(len(set(p[chosen].argmax(1).tolist()))),
    }
