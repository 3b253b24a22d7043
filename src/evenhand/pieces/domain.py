"""Domain-adversarial training: a discriminator tells source from target, reversed gradients make the features fool it.

One step of CDAN, source and target rows in one batch so that BatchNorm normalises them together:

    logits, features = ...                                            # (2B, K), (2B, d): source rows, then target
    joint = cdan_features(features, logits.detach().softmax(1))       # DANN: joint = features
    guess = discriminator(reverse_gradient(joint, reversal_coefficient(step)))
    loss = F.cross_entropy(logits[:B], labels) + domain_loss(guess[:B], guess[B:]) + mcc_loss(logits[B:])

The two regularisers without a domain discriminator, ``mcc_loss`` and ``mdd_loss``, stand at the end.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand import parallel


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficient: float) -> Tensor:
        ctx.coefficient = coefficient
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.coefficient * grads[0], None


def reverse_gradient(x: Tensor, coefficient: float) -> Tensor:
    """``x`` itself; its gradient is multiplied by ``-coefficient``, that of what follows is not."""
    if not math.isfinite(coefficient):
        raise ValueError(f"coefficient={coefficient}: must be finite, 1 reverses the gradient as it is")
    return _Reverse.apply(x, coefficient)


def reversal_coefficient(
    step: int, *, alpha: float = 1.0, steps: int = 1000, low: float = 0.0, high: float = 1.0
) -> float:
    """Warm start ``low + (high - low) (2 / (1 + exp(-alpha step / steps)) - 1)``: by default tanh(step / 2000).

    ``step`` counts evaluations of the adversarial loss from 0. DANN's own form is ``alpha=10, steps=total``.
    """
    return low + (high - low) * math.tanh(alpha * step / (2 * steps))


class DomainDiscriminator(nn.Sequential):
    """(N, d) -> (N,) logits of "source", two hidden layers; ``batchnorm=False`` uses dropout 0.5 instead, if at all."""

    def __init__(self, d: int, hidden: int = 1024, batchnorm: bool = True, dropout: bool = True) -> None:
        def layer(width: int) -> list[nn.Module]:
            linear = nn.Linear(width, hidden)
            if batchnorm:
                return [linear, nn.BatchNorm1d(hidden), nn.ReLU()]
            return [linear, nn.ReLU(), *([nn.Dropout(0.5)] if dropout else [])]

        super().__init__(*layer(d), *layer(hidden), nn.Linear(hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(1)


def cdan_features(features: Tensor, probs: Tensor) -> Tensor:
    """(N, K*d) outer product ``vec(g f')``, class-major: entry ``c d + j`` is ``g_c f_j``; detach ``probs`` first."""
    _same_rows(features, probs)
    return (probs[:, :, None] * features[:, None, :]).flatten(1)


class RandomisedMap(nn.Module):
    """``(f R_f) * (g R_g) / sqrt(out)``, (N, out): inner products of ``cdan_features`` in expectation, for large K d.

    The normal matrices are drawn once from ``generator`` and stay; ``state_dict`` keeps them.
    """

    features_matrix: Tensor
    probs_matrix: Tensor

    def __init__(self, d: int, K: int, out: int = 1024, *, generator: torch.Generator) -> None:
        super().__init__()
        for name, rows in (("features_matrix", d), ("probs_matrix", K)):
            drawn = torch.randn(rows, out, generator=generator, device=generator.device)
            self.register_buffer(name, drawn)

    def forward(self, features: Tensor, probs: Tensor) -> Tensor:
        _same_rows(features, probs)
        product = (features @ self.features_matrix) * (probs @ self.probs_matrix)
        return product / math.sqrt(self.features_matrix.shape[1])


@torch.no_grad()
def entropy_weights(probs: Tensor) -> Tensor:
    """(N,) ``1 + exp(-H(g))`` scaled to mean 1, no gradient: sure predictions count more (CDAN+E, MCC)."""
    if probs.ndim != 2:
        raise ValueError(f"probs of shape {tuple(probs.shape)}: expected (N, K), one row per sample")
    raw = 1 + torch.exp((probs * torch.log(probs + 1e-5)).sum(1))
    return raw / parallel.mean(raw.mean())


def domain_loss(source: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """``-d/2``: half the mean of -log D over source rows plus half that of -log(1 - D) over target rows.

    The arguments are discriminator logits, (S,) and (T,); log 2 is chance. ``weights`` (S + T,), source rows
    first, as from ``entropy_weights``, multiply the terms. With S = T this is the mean over all rows.
    """
    if not len(source) or not len(target):
        raise ValueError(f"{len(source)} source and {len(target)} target rows: a domain loss needs both in a batch")
    terms = F.softplus(_full(torch.cat([-source, target])))  # (S + T,)
    if weights is not None:
        _same_rows(terms, weights)
        terms = terms * weights
    return (terms[: len(source)].mean() + terms[len(source) :].mean()) / 2


def mcc_loss(logits: Tensor, temperature: float = 2.5) -> Tensor:
    """Minimum class confusion of target logits (N, K): mean off-diagonal of the row-normalised ``P' diag(w) P``.

    ``P = softmax(logits / temperature)``, ``w = entropy_weights(P)``. In [0, 1): 0 for sure predictions that cover
    every class, (K - 1) / K for uniform ones. Over several processes it is that of the joint batch.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: must be positive, the authors use 2.5")
    if logits.ndim != 2 or not len(logits):
        raise ValueError(f"logits of shape {tuple(logits.shape)}: expected (N, K), N >= 1")
    probs = F.softmax(_full(logits) / temperature, 1)
    w = entropy_weights(probs)[:, None]
    # Rows of P sum to 1, so row c of the matrix sums to sum_b w P_bc, of which sum_b w P_bc (1 - P_bc) is confused.
    confused, mass = parallel.total(torch.stack([(w * probs * (1 - probs)).sum(0), (w * probs).sum(0)]))  # (K,) each
    return (confused / (mass + 1e-12)).mean()  # a class without any mass counts 0


def mdd_loss(source: Tensor, target: Tensor, rival_source: Tensor, rival_target: Tensor, margin: float = 4.0) -> Tensor:
    """Margin disparity: ``margin * mean CE(f', y) over source + mean -log(1 - p'_y) over target``, y = argmax f.

    ``source`` and ``target`` are the classifier's logits (no gradient reaches them), the rivals those of a second
    head f' on ``reverse_gradient(features)``: f' minimises the loss, the features maximise it.
    """
    agree = F.cross_entropy(_full(rival_source), source.argmax(1))
    rival = _full(rival_target)
    others = rival.scatter(1, target.argmax(1, keepdim=True), -math.inf)
    differ = (rival.logsumexp(1) - others.logsumexp(1)).mean()  # -log(1 - p'_y), finite where p'_y rounds to 1
    return margin * agree + differ


def _full(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _same_rows(first: Tensor, second: Tensor) -> None:
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} rows: both must belong to the same samples")
