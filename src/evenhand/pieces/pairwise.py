"""Divergence and similarity among all samples of a pool, without the N x N matrices: a strip of tiles at a time.

    KL_ji = sum_c h_jc (ln h_jc - ln h_ic)        gap_ij = 1 - sum_c sqrt(h_ic h_jc) + 1e-6, similarity s = -ln gap

In float64: float32 would lose 1 - BC of like predictions beside the 1e-6. Memory is O(N K + block).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenhand.pieces.pool import TINY

OFFSET = 1e-6  # the authors'; a sample's similarity to itself is 13.8
FARTHEST = 1 + OFFSET  # gap of predictions that share no class
STRIP = 64  # candidates worked on together: STRIP x block numbers stay in the processor's cache
GROUP = 32  # ratios of gaps multiplied before one logarithm: at most 1e6 each, so their product is finite


class Pairs:
    """Of predictions (N, K), float64, rows summing to 1."""

    def __init__(self, probs: Tensor, block: int = 1024) -> None:
        if block < 1:
            raise ValueError(f"block={block}: must be at least 1, the number of samples compared at a time, e.g. 1024")
        self.probs, self.root, self.log = probs, probs.sqrt(), probs.clamp_min(TINY).log()
        self.own = (probs * self.log).sum(1)  # (N,) minus the entropies
        self.block = block

    def divergence(self, j: int) -> Tensor:
        """(N,) KL of sample j's prediction to each other one: j is the first argument."""
        return (self.own[j] - self.log @ self.probs[j]).clamp_min(0)

    def gap(self, j: int) -> Tensor:
        """(N,)"""
        return _gap(self.root, self.root[j : j + 1]).squeeze(1)

    def largest_divergence(self) -> float:
        """Over all pairs. ``KL_ji <= max_c -ln h_ic``: the i that may be far from others first, until none can be."""
        bound, largest = -self.log.amin(1), 0.0
        for rows in bound.argsort(descending=True).split(STRIP):
            if bound[rows[0]] <= largest:
                break
            for part in range(0, len(bound), self.block):
                own, probs = self.own[part : part + self.block, None], self.probs[part : part + self.block]
                largest = max(largest, float(torch.addmm(own, probs, self.log[rows].T, alpha=-1).max()))
        return largest

    def largest_gap(self) -> float:
        """Over all pairs. Square roots have norm 1, so that ``BC_ij >= min_c sqrt(h_ic)``: the smallest first."""
        bound, order = self.root.amin(1).sort()
        root, least = self.root[order], 1.0
        for start in range(0, len(root), STRIP):
            if bound[start] >= least:
                break
            for part in range(start, len(root), self.block):  # symmetric: earlier ones have met these already
                least = min(least, float((root[part : part + self.block] @ root[start : start + STRIP].T).min()))
        return FARTHEST - least

    def cover(self, nearest: Tensor, rows: Tensor | None = None) -> Tensor:
        """(n,) ``sum_k [s_ki - max_{j in S} s_kj]_+`` of candidates i = ``rows``, by default all of the pool.

        ``nearest`` (N,) is each sample's smallest gap to S.
        """
        rows = torch.arange(len(self.root), device=self.root.device) if rows is None else rows
        return torch.cat([self._cover(nearest, self.root[strip]) for strip in rows.split(STRIP)])

    def _cover(self, nearest: Tensor, candidates: Tensor) -> Tensor:
        total = candidates.new_zeros(len(candidates))
        for part in range(0, len(nearest), self.block):
            # [s_ki - max_j s_kj]_+ = ln max(1, nearest_k / gap_ki): the logarithm of a product of many, which is cheap.
            ratio = nearest[part : part + self.block, None] / _gap(self.root[part : part + self.block], candidates)
            grouped = ratio.clamp_min_(1).view(-1, math.gcd(len(ratio), GROUP), len(candidates))
            total += grouped.prod(1).log_().sum(0)
        return total


def _gap(first: Tensor, second: Tensor) -> Tensor:
    """(n, m) of square roots (n, K) and (m, K)."""
    return torch.addmm(first.new_full((1, 1), FARTHEST), first, second.T, alpha=-1).clamp_min_(OFFSET)
