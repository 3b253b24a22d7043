"""What stands in for NoisyTwins' Barlow loss in ablations: VICReg's three terms, and SimCLR's contrast of pairs.

All of them ask twins (rows i of both halves) to agree; they differ in what keeps everything else from agreeing too.
In several processes each has the joint batch's loss, as ``twins_loss``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, relu

from evenhand import parallel

EPSILON = 1e-4  # added to variances


def vicreg_loss(
    first: Tensor, second: Tensor, *, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0
) -> Tensor:
    """Bardes, Ponce, LeCun (2022), eq. 1 to 6, of latents (N, d), with the paper's weights.

    ``invariance mean_i |a_i - b_i|^2 + variance (v(a) + v(b)) + covariance (c(a) + c(b))`` with
    ``v(x) = mean_j relu(1 - sqrt(var x_j + eps))`` and ``c(x) = sum_{j != k} cov(x)_jk^2 / d``.
    """
    first, second = _joint(first), _joint(second)
    loss = invariance * (first - second).square().sum(1).mean()
    for x in (first, second):
        centred = x - x.mean(0)
        cov = centred.T @ centred / (len(x) - 1)  # (d, d)
        own = cov.diagonal()
        spread = relu(1 - (own + EPSILON).sqrt()).mean()
        loss = loss + variance * spread + covariance * (cov - own.diag()).square().sum() / len(own)
    return loss


def simclr_loss(first: Tensor, second: Tensor, *, temperature: float = 0.5) -> Tensor:
    """NT-Xent of Chen et al. (2020), eq. 1: each of the 2N rows is to find its twin among all others, by cosine."""
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: use one above 0, SimCLR's 0.1 to 1")
    rows = normalize(torch.cat([_joint(first), _joint(second)]), dim=1)  # (2N, d)
    n = len(rows) // 2
    itself = torch.eye(2 * n, dtype=torch.bool, device=rows.device)
    alike = (rows @ rows.T / temperature).masked_fill(itself, -torch.inf)
    return cross_entropy(alike, torch.arange(2 * n, device=rows.device).roll(n))


def _joint(x: Tensor) -> Tensor:
    """Rows of all processes, in float32 or better."""
    if x.ndim != 2 or (len(x) < 2 and parallel.world() == 1):
        raise ValueError(f"twins of shape {tuple(x.shape)}: expected (N, d) with N of at least 2")
    return parallel.stack(x.to(torch.promote_types(x.dtype, torch.float32))).flatten(0, 1)
