"""Losses for long-tailed labels: functions of logits (N, K), integer targets (N,) and class counts (K,).

Targets, counts, priors and weights may be lists, arrays or tensors; a (K,) tensor on the logits' device costs nothing
per step. Half-precision logits are computed, and their loss returned, in float32. Unless said otherwise a
loss is PyTorch's weighted mean ``sum w_y l / sum w_y``. Values (positive counts, targets below K) are checked
on the CPU only: elsewhere that would wait for the device, and an index out of range is left to torch.

>>> counts = [5000, 500, 50]
>>> weight = deferred_weights(counts, epoch=160, start=160)
>>> loss = ldam_loss(torch.zeros(4, 3), torch.tensor([0, 0, 1, 2]), counts, weight=weight)
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.given import as_tensor, narrowed, numbers

PerClass = Any  # list, array or tensor with one number per class


def class_balanced_weights(counts: PerClass, beta: float = 0.9999) -> Tensor:
    """(K,) weights ``(1 - beta) / (1 - beta^n_j)`` scaled to mean 1: ones at ``beta=0``, 1/n near 1."""
    if not 0 <= beta < 1:
        raise ValueError(f"beta={beta} is outside [0, 1): use 0 for equal weights, 0.9999 for nearly 1/n")
    n = _positive("counts", counts)
    effective = -torch.expm1(n * math.log(beta)) if beta else torch.ones_like(n)
    return narrowed((1 / effective) / (1 / effective).mean(), counts)


def deferred_weights(counts: PerClass, epoch: float, start: float, beta: float = 0.9999) -> Tensor:
    """Deferred re-weighting (DRW): ones before the 0-based epoch ``start``, class-balanced from it on."""
    weights = class_balanced_weights(counts, beta)
    return weights if epoch >= start else torch.ones_like(weights)


def ldam_loss(
    logits: Tensor,
    target: Tensor,
    counts: PerClass,
    *,
    max_margin: float = 0.5,
    scale: float = 30.0,
    weight: PerClass | None = None,
) -> Tensor:
    """Label-distribution-aware margins: cross-entropy of ``scale (g_j - [j = y] margin_y)``, g cosines.

    ``margin_j = max_margin (n_min / n_j)^(1/4)``: the rarest class gets ``max_margin``.
    """
    if not (max_margin >= 0 and scale > 0):
        raise ValueError(f"max_margin={max_margin}, scale={scale}: the margin is at least 0, the scale above 0")
    logits, target = _checked(logits, target)
    n = _positive("counts", counts, logits)
    margins = max_margin * (n.min() / n) ** 0.25  # (K,)
    lowered = logits.scatter_add(1, target[:, None], -margins[target][:, None])  # (N, K)
    return F.cross_entropy(scale * lowered, target, _weight(weight, logits))


def vs_loss(
    logits: Tensor,
    target: Tensor,
    counts: PerClass,
    *,
    gamma: float = 0.05,
    tau: float = 0.75,
    weight: PerClass | None = None,
) -> Tensor:
    """Vector scaling: cross-entropy of ``(n_j / n_max)^gamma g_j + tau log(n_j / N)``; plain g at test."""
    _finite(gamma=gamma, tau=tau)
    logits, target = _checked(logits, target)
    n = _positive("counts", counts, logits)
    adjusted = logits * (n / n.max()) ** gamma + tau * torch.log(n / n.sum())
    return F.cross_entropy(adjusted, target, _weight(weight, logits))


def logit_adjusted_loss(
    logits: Tensor, target: Tensor, priors: PerClass, *, tau: float = 1.0, weight: PerClass | None = None
) -> Tensor:
    """Cross-entropy of ``g_j + tau log prior_j``; counts serve as priors, a common factor cancels."""
    _finite(tau=tau)
    logits, target = _checked(logits, target)
    adjusted = logits + tau * torch.log(_positive("priors", priors, logits))
    return F.cross_entropy(adjusted, target, _weight(weight, logits))


def focal_loss(logits: Tensor, target: Tensor, *, gamma: float = 1.0, weight: PerClass | None = None) -> Tensor:
    """Plain mean of ``w_y (1 - p_y)^gamma (-log p_y)``: samples already fitted count less."""
    if not gamma >= 0:
        raise ValueError(f"gamma={gamma}: must be at least 0, which is cross-entropy")
    logits, target = _checked(logits, target)
    loss = F.cross_entropy(logits, target, reduction="none")  # (N,)
    # The floor keeps the gradient of x^gamma finite for gamma < 1 where p rounds to 1.
    unfitted = (-torch.expm1(-loss)).clamp_min(torch.finfo(loss.dtype).tiny)
    return (_weight(weight, logits)[target] * unfitted**gamma * loss).mean()


def influence_balanced_loss(
    logits: Tensor,
    target: Tensor,
    features: Tensor,
    counts: PerClass,
    *,
    scale: float = 1000.0,
    weight: PerClass | None = None,
) -> Tensor:
    """IB: plain mean of ``w_y l scale / (|p - e_y|_1 |h|_1 + 1e-3)``, h (N, d) the classifier's input.

    The factor, one over a sample's influence on the classifier, is a weight: no gradient flows through it.
    ``w`` is 1/n scaled to mean 1 unless ``weight`` is given.
    """
    logits, target = _checked(logits, target)
    n = _positive("counts", counts, logits)
    w = _weight((1 / n) / (1 / n).mean() if weight is None else weight, logits)
    loss = F.cross_entropy(logits, target, reduction="none")  # (N,)
    with torch.no_grad():
        error = -2 * torch.expm1(-loss)  # |p - e_y|_1 = 2 (1 - p_y)
        factor = scale / (error * features.to(logits.dtype).flatten(1).abs().sum(1) + 1e-3)
    return (w[target] * factor * loss).mean()


def label_aware_smoothing_loss(
    logits: Tensor,
    target: Tensor,
    counts: PerClass,
    *,
    head: float = 0.3,
    tail: float = 0.0,
    weight: PerClass | None = None,
) -> Tensor:
    """MiSLAS stage 2: cross-entropy with ``1 - e_y`` on the target, ``e_y / (K - 1)`` on each other class.

    ``e_j = tail + (head - tail) sin(pi/2 (n_j - n_min) / (n_max - n_min))``: more images, more smoothing.
    Equal counts all get ``head``. The authors use (head, tail) = (0.3, 0) and (0.4, 0.1).
    """
    for name, value in (("head", head), ("tail", tail)):
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value} is outside [0, 1): it is the share taken from the target")
    logits, target = _checked(logits, target)
    n = _positive("counts", counts, logits)
    span = n.max() - n.min()
    place = torch.where(span > 0, (n - n.min()) / span, 1.0)  # (K,) 0 at the rarest class, 1 at the largest
    smoothing = (tail + (head - tail) * torch.sin(place * (math.pi / 2)))[target]  # (N,)
    log_probs = F.log_softmax(logits, 1)
    hit = log_probs.gather(1, target[:, None]).squeeze(1)
    others = (log_probs.sum(1) - hit) / (logits.shape[1] - 1)
    loss = -(1 - smoothing) * hit - smoothing * others
    w = _weight(weight, logits)[target]
    return (w * loss).sum() / w.sum()


def _checked(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in float32 at least and targets as int64."""
    if logits.ndim != 2 or logits.shape[0] == 0 or logits.shape[1] < 2:
        raise ValueError(f"logits of shape {tuple(logits.shape)}: expected (N, K) with N >= 1 and K >= 2")
    samples, classes = logits.shape
    target = as_tensor(target, device=logits.device)
    if target.shape != (samples,) or target.is_floating_point():
        found = f"target of shape {tuple(target.shape)} and type {target.dtype}"
        raise ValueError(f"{found}: expected ({samples},) class indices")
    if target.device.type == "cpu":
        low, high = (int(t) for t in target.aminmax())
        if low < 0 or high >= classes:
            wrong = low if low < 0 else high
            raise ValueError(f"target holds {wrong}: labels run from 0 to {classes - 1}, remap or drop it")
    return logits.to(torch.promote_types(logits.dtype, torch.float32)), target.long()


def _finite(**options: float) -> None:
    for name, value in options.items():
        if not math.isfinite(value):
            raise ValueError(f"{name}={value}: use a finite number")


def _positive(name: str, values: PerClass, logits: Tensor | None = None) -> Tensor:
    given = _per_class(name, values, logits)
    if given.device.type == "cpu" and not (fine := (given > 0) & given.isfinite()).all():
        first = int((~fine).nonzero()[0])
        raise ValueError(f"{name}[{first}]={given[first]:g}: must be positive, drop or merge the empty class")
    return given if logits is None else given.to(logits.device, logits.dtype)


def _weight(values: PerClass | None, logits: Tensor) -> Tensor:
    if values is None:
        return logits.new_ones(logits.shape[1])
    given = _per_class("weight", values, logits)
    if given.device.type == "cpu" and not (given >= 0).all():
        first = int((~(given >= 0)).nonzero()[0])
        raise ValueError(f"weight[{first}]={given[first]:g}: must be at least 0")
    return given.to(logits.device, logits.dtype)


def _per_class(name: str, values: PerClass, logits: Tensor | None) -> Tensor:
    given = numbers(values)
    wanted = given.shape[:1] if logits is None else logits.shape[1:]
    if given.ndim != 1 or given.shape != wanted or not len(given):
        size = "K" if logits is None else logits.shape[1]
        raise ValueError(f"{name} of shape {tuple(given.shape)}: expected ({size},), one number per class")
    return given if given.is_floating_point() else given.to(torch.get_default_dtype())
