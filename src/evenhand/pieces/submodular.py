"""S3VAADA's choice of a batch to label: uncertain samples, unlike each other, that stand for many of the pool.

Gain of sample i when S is chosen already, h the predictions (spec 08, 2.4), each term scaled to [0, 1] over the pool:

    alpha VAP(i) + beta min_{j in S} KL(h_j || h_i) + (1 - alpha - beta) mean_k [s_ki - max_{j in S} s_kj]_+
    s_ij = -ln(1 - sum_c sqrt(h_ic h_jc) + 1e-6)

With diversity (``beta > 0``) greedy maximisation has no guarantee: the sum of its gains depends on the order of picks,
so it is no function of the set. What holds for all alpha and beta is that after the first pick no gain ever grows.

>>> images, net = torch.randn(50, 6), nn.Linear(6, 3)
>>> picks = submodular_select(net(images).softmax(1), vap_score(net, images, epsilon=1.0), budget=5)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.nets.modes import evaluating
from evenhand.pieces.pairwise import OFFSET, Pairs
from evenhand.pieces.pool import check_budget, check_probs, check_scores
from evenhand.pieces.vat import Predictor, adversarial_direction
from evenhand.precision import without_tf32

TIE = 1e-9  # gains this close are equal: similarities of like predictions are exact to about 1e-11


def vap_score(
    model: Predictor,
    x: Tensor,
    *,
    starts: int = 5,
    epsilon: float = 5.0,
    xi: float | None = None,
    iterations: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """(N,) virtual adversarial pairwise score: how far small changes move a prediction, and how differently.

    ``starts`` random starts give each sample as many perturbations of norm ``epsilon``, see ``adversarial_direction``;
    their score is ``pairwise_divergence``. ``model`` maps x to logits (N, K); it is in eval mode meanwhile, and nothing
    of it changes. Costs 1 + (2 + iterations) starts forward and iterations starts backward passes over x: give a large
    pool in batches, with one generator.
    """
    if starts < 1:
        raise ValueError(f"starts={starts}: must be at least 1, the authors use 5")
    generator = generator or torch.Generator().manual_seed(0)  # one for all, or every start would be the same
    with evaluating(model), torch.no_grad(), torch.autocast(x.device.type, enabled=False), without_tf32():
        moved = []
        for _ in range(starts):
            r = adversarial_direction(model, x, epsilon=epsilon, xi=xi, iterations=iterations, generator=generator)
            moved.append(model(x + r))
        return pairwise_divergence(model(x), torch.stack(moved))


def pairwise_divergence(clean: Tensor, moved: Tensor) -> Tensor:
    """(N,) ``[sum_i KL(h || h_i) + sum_{i != j} KL(h_i || h_j)] / R^2`` of logits (N, K) and R perturbed (R, N, K)."""
    starts, h, hs = len(moved), clean.double().log_softmax(1), moved.double().log_softmax(2)
    from_clean = (h.exp() * (h - hs)).sum((0, 2))
    among = (hs.exp() * (starts * hs - hs.sum(0))).sum((0, 2))  # all R^2 pairs: i = j adds nothing
    return ((from_clean + among) / starts**2).clamp_min(0).to(clean.dtype)


def submodular_select(
    probs: Tensor,
    uncertainty: Tensor,
    budget: int,
    *,
    alpha: float = 0.5,
    beta: float = 0.3,
    block: int = 1024,
    progress: Callable[[int, int], object] | None = None,
) -> list[int]:
    """``budget`` indices in pick order, from predictions (N, K) and any score of uncertainty (N,), such as VAP.

    ``alpha=1`` is uncertainty alone, ``alpha=0, beta=1`` diversity, ``alpha=beta=0`` representativeness. The first pick
    is the most uncertain; with ``alpha=0`` the most representative. Memory grows with N and with ``block``, not with
    N^2; ``block`` changes no pick. Equal gains (to 1e-9): lowest index first. ``progress(picked, budget)`` is called
    after each pick.
    """
    picks: list[int] = []
    for pick in submodular_picks(probs, uncertainty, budget, alpha=alpha, beta=beta, block=block):
        picks.append(pick.index)
        if progress is not None:
            progress(len(picks), budget)
    return picks


@dataclass(frozen=True)
class Pick:
    """A sample and why: its three terms when it was picked, each in [0, 1] before alpha and beta weigh it.

    A term of weight 0 is 0, and so are the last two of the first pick, unless ``alpha`` is 0.
    """

    index: int
    uncertainty: float
    diversity: float
    representativeness: float


@torch.no_grad()
def submodular_picks(
    probs: Tensor, uncertainty: Tensor, budget: int, *, alpha: float = 0.5, beta: float = 0.3, block: int = 1024
) -> Iterator[Pick]:
    """The picks of ``submodular_select`` one by one, with their reasons."""
    p = check_probs(probs)
    pairs = Pairs(p / p.sum(1, keepdim=True), block)
    u = check_scores("uncertainty", uncertainty, len(probs)).to(p)
    if not (alpha >= 0 and beta >= 0 and alpha + beta <= 1 + 1e-9):
        raise ValueError(f"alpha={alpha}, beta={beta}: both must be at least 0 and their sum at most 1")
    if not check_budget(budget, len(u)):
        return
    gamma = 1 - alpha - beta if alpha + beta < 1 - 1e-9 else 0.0
    # Min-max scaling; the smallest divergence is 0 and the smallest gap OFFSET, a sample's to itself.
    u = (u - u.min()) / (u.max() - u.min()) if u.max() > u.min() else torch.zeros_like(u)
    per_divergence = _inverse(pairs.largest_divergence(), noise=1e-12) if beta else 0.0
    widest = pairs.largest_gap() if gamma or not alpha else OFFSET
    per_cover = _inverse(math.log(widest / OFFSET), noise=1e-6) / len(u)

    divergence, nearest = torch.full_like(u, math.inf), torch.full_like(u, widest)
    diversity, cover = torch.zeros_like(u), torch.zeros_like(u)
    free = torch.ones_like(u, dtype=torch.bool)
    if not alpha:
        cover = per_cover * pairs.cover(nearest)
    index = int(u.argmax()) if alpha else _first(cover, TIE)
    for count in range(1, budget + 1):
        free[index] = False
        yield Pick(index, float(u[index]), float(diversity[index]), float(cover[index]))
        if count == budget:
            return
        if beta:
            divergence = torch.minimum(divergence, pairs.divergence(index))
            diversity = per_divergence * divergence
        if gamma:
            nearest = torch.minimum(nearest, pairs.gap(index))
            most = per_cover * (nearest / OFFSET).log().sum()  # of a sample as near to every k as k itself
            cover = torch.full_like(u, float(most)) if count == 1 and alpha else cover.clamp_max(most)
        # From here on representativeness only shrinks, so an old one is a bound: renew it where it might still win.
        rest = (alpha * u + beta * diversity).masked_fill(~free, -math.inf)
        fresh, few = torch.zeros_like(free), 16
        while gamma:
            gain = rest + gamma * cover
            best = gain[fresh].max() if fresh.any() else -math.inf
            bounds, rows = gain.masked_fill(fresh | ~free, -math.inf).topk(min(few, len(gain)))
            rows = rows[(bounds >= best - TIE) & free[rows] & ~fresh[rows]]
            if not len(rows):
                break
            cover[rows] = per_cover * pairs.cover(nearest, rows)
            fresh[rows] = True
            few *= 2
        index = _first(rest + gamma * cover, TIE * (1 - alpha))


def _first(gain: Tensor, tie: float) -> int:
    """The lowest index whose gain is the largest, or as good as."""
    return int((gain >= gain.max() - tie).nonzero()[0])


def _inverse(width: float, noise: float) -> float:
    """1 / width; 0 if that is but the rounding of equal predictions, which scaling must not blow up."""
    return 1 / width if width > noise else 0.0
