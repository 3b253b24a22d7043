"""Which samples to label: the selectors S3VAADA is compared with, arrays in, indices in pick order out.

    p_c class probabilities (N, K), g features (N, d), y = argmax p; equal scores: lowest index first

| selector | picks |
|---|---|
| `entropy_select`, `confidence_select` | highest -sum p ln p; lowest max p |
| `margin_select` | lowest p_(1) - p_(2) (best versus second best) |
| `aada_select` | highest p(target) / p(source) times entropy |
| `dfal_select` | nearest to another class (`evenhand.pieces.deepfool`) |
| `coreset_select` | farthest g from all chosen or labelled ones, one by one |
| `badge_select` | k-means++ on gradients (p - e_y) g' of the last layer |
| `clue_select`, `kmeans_select` | nearest to the centres of k-means on g, weighted by entropy or not |
| `random_select` | anything |

VAP, diversity and representativeness, together or alone: `evenhand.pieces.submodular`.

>>> entropy_select(torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.7, 0.3]]), 2)
[1, 2]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenhand.pieces.kmeans import central_samples
from evenhand.pieces.pool import TINY, check_budget, check_matrix, check_probs, check_scores, draw, entropy, highest


def random_select(pool: int, budget: int, *, generator: torch.Generator) -> list[int]:
    """``budget`` of ``pool`` samples, all alike."""
    return torch.randperm(pool, generator=generator, device=generator.device)[: check_budget(budget, pool)].tolist()


def entropy_select(probs: Tensor, budget: int) -> list[int]:
    """Highest entropy of the prediction."""
    p = check_probs(probs)
    return highest(entropy(p), check_budget(budget, len(p)))


def confidence_select(probs: Tensor, budget: int) -> list[int]:
    """Lowest probability of the likeliest class."""
    p = check_probs(probs)
    return highest(-p.amax(1), check_budget(budget, len(p)))


def margin_select(probs: Tensor, budget: int) -> list[int]:
    """Smallest lead of the likeliest class over the second: best versus second best (BvSB)."""
    p = check_probs(probs)
    best, second = p.topk(2, 1).values.unbind(1)
    return highest(second - best, check_budget(budget, len(p)))


def aada_select(probs: Tensor, target_logit: Tensor, budget: int) -> list[int]:
    """Highest entropy times ``p(target) / p(source) = exp(target_logit)``, the domain discriminator's (N,).

    ``DomainDiscriminator`` gives the logit of "source": hand in its negative.
    """
    p = check_probs(probs)
    logit = check_scores("target_logit", target_logit, len(p)).to(p)
    return highest(logit + entropy(p).log(), check_budget(budget, len(p)))  # in logarithms, which cannot overflow


def dfal_select(norms: Tensor, budget: int) -> list[int]:
    """Smallest adversarial perturbation (N,), from ``evenhand.pieces.deepfool.deepfool_norm``."""
    norms = check_scores("norms", norms)
    return highest(-norms, check_budget(budget, len(norms)))


@torch.no_grad()
def coreset_select(features: Tensor, budget: int, *, labelled: Tensor | None = None) -> list[int]:
    """K-centre greedy: ``argmax_i min_j ||g_i - g_j||`` over j chosen or ``labelled`` (M, d), one by one.

    Without labelled ones it starts at index 0.
    """
    g = check_matrix("features", features)
    budget = check_budget(budget, len(g))
    distance = g.new_full((len(g),), math.inf)
    if labelled is not None and len(labelled):
        for part in check_matrix("labelled", labelled, columns=g.shape[1]).to(g).split(64):
            distance = torch.minimum(distance, _distances(g, part).amin(1))
    picks: list[int] = []
    while len(picks) < budget:
        picks.append(int(distance.argmax()))
        distance = torch.minimum(distance, _distances(g, g[picks[-1:]])[:, 0])
        distance[picks[-1]] = -math.inf  # not again, even if all that is left are copies of chosen ones
    return picks


@torch.no_grad()
def badge_select(probs: Tensor, features: Tensor, budget: int, *, generator: torch.Generator) -> list[int]:
    """k-means++ over gradient embeddings ``(p - e_y) g'`` (K d numbers, never built): the longest, then odds D^2.

    D is the distance to the nearest chosen one. When all that is left are copies of chosen ones, lowest index first.
    """
    p = check_probs(probs)
    g = check_matrix("features", features, rows=len(p))
    budget = check_budget(budget, len(p))
    residual = p - torch.nn.functional.one_hot(p.argmax(1), p.shape[1])
    free = torch.ones(len(p), dtype=torch.bool, device=p.device)
    odds = norm = residual.square().sum(1) * g.square().sum(1)  # squared, of the embeddings
    picks: list[int] = []
    nearest = torch.full_like(odds, math.inf)
    while len(picks) < budget:
        if not picks:
            pick = int(odds.argmax())
        else:
            nearest = torch.minimum(nearest, gradient_distances(residual, g, norm, picks[-1]))
            odds = nearest * free
            pick = draw(odds, generator) if odds.any() else int(free.nonzero()[0])
        picks.append(pick)
        free[pick] = False
    return picks


def gradient_distances(a: Tensor, b: Tensor, norm: Tensor, j: int) -> Tensor:
    """(N,) ``||a_i b_i' - a_j b_j'||^2 = norm_i + norm_j - 2 (a_i . a_j) (b_i . b_j)``, norm = ``|a|^2 |b|^2``."""
    square = norm + norm[j] - 2 * (a @ a[j]) * (b @ b[j])
    return square.where(square > 8 * torch.finfo(b.dtype).eps * (norm + norm[j]), 0.0)  # less is rounding of equal ones


@torch.no_grad()
def clue_select(
    probs: Tensor, features: Tensor, budget: int, *, temperature: float, generator: torch.Generator
) -> list[int]:
    """Nearest to the centres of ``budget`` clusters of the features, heaviest first, weighted by uncertainty.

    The weight is the entropy of ``softmax(logits / temperature)``, from the probabilities as ``p^(1 / temperature)``.
    """
    p = check_probs(probs)
    g = check_matrix("features", features, rows=len(p))
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: must be positive, the authors use 0.1 to 1")
    weights = entropy((p.clamp_min(TINY).log() / temperature).softmax(1))
    return central_samples(g, weights, check_budget(budget, len(p)), generator=generator)


@torch.no_grad()
def kmeans_select(features: Tensor, budget: int, *, generator: torch.Generator) -> list[int]:
    """Cold start, from frozen features and no model: nearest to the centres of ``budget`` clusters, largest first."""
    g = check_matrix("features", features)
    return central_samples(g, torch.ones(len(g)), check_budget(budget, len(g)), generator=generator)


def _distances(g: Tensor, centres: Tensor) -> Tensor:
    """(N, m) from differences: by products, copies of a chosen sample would not be at distance 0."""
    return torch.cdist(g, centres, compute_mode="donot_use_mm_for_euclid_dist")
