"""Does the gain of a class pair come true? The metric's change after one small step of the head on real features.

The gain lets a class's mean feature stand for all its samples, twice: in the step's gradient and in the logits that the
step moves. Here both are taken over all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.measure.confusion import confusion_matrix


def gain_fidelity(
    metric: Callable[[Tensor], Tensor],
    gain: Tensor,
    features: Tensor,
    labels: Tensor,
    head_weight: Tensor,
    bias: Tensor | None = None,
    *,
    pairs: Sequence[tuple[int, int]],
    keep: float = 0.8,
    move: float = 0.01,
) -> Tensor:
    """(P, 3) for each pair (i, j): the change predicted, that of soft predictions, and that of hard ones.

    The head (K, d), with its bias, goes ``eta`` along the negative gradient of the mean loss of features (N, d) of
    class i mixed with some of class j, label i; ``eta`` moves the weight by ``move`` of its norm. Predicted is ``eta
    G_ij``. Soft: C counts probabilities; hard: it counts argmaxes, so a small step often changes nothing.
    """
    x, W = features.detach().double(), head_weight.detach().double()
    b = W.new_zeros(len(W)) if bias is None else bias.detach().double()
    y = labels.to(x.device)
    before = [metric(C) for C in _confusions(x, y, W, b)]
    rows = []
    for i, j in pairs:
        own, other = x[y == i], x[y == j]
        mixed = keep * own + (1 - keep) * other[torch.arange(len(own), device=x.device) % len(other)]
        error = (F.one_hot(y.new_full((len(own),), i), len(W)) - F.linear(mixed, W, b).softmax(1)) / len(own)
        weight, shift = error.T @ mixed, error.sum(0) if bias is not None else torch.zeros_like(b)  # minus gradients
        eta = move * W.norm() / weight.norm().clamp_min(1e-30)
        after = [metric(C) for C in _confusions(x, y, W + eta * weight, b + eta * shift)]
        changes = [new - old for new, old in zip(after, before, strict=True)]
        rows.append(torch.stack([eta * gain[i, j].to(eta), *changes]))
    return torch.stack(rows)


def spread_pairs(gain: Tensor, count: int) -> list[tuple[int, int]]:
    """Pairs at even ranks from the smallest gain to the largest."""
    order = gain.flatten().argsort()
    chosen = order[torch.linspace(0, len(order) - 1, min(count, len(order))).round().long()]
    return [divmod(int(flat), len(gain)) for flat in chosen]


def _confusions(x: Tensor, y: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """C of soft and of hard predictions."""
    logits = F.linear(x, W, b)
    soft = torch.zeros_like(W[:, :1]).expand(-1, len(W)).contiguous().index_add_(0, y, logits.softmax(1)) / len(y)
    return soft, confusion_matrix(logits.argmax(1), y, len(W)).to(soft)
