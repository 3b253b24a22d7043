"""Learning for a gain matrix G (K, K): ``G_ij`` is the reward for predicting j where the truth is i.

Maximising ``sum_ij G_ij C_ij`` while the multipliers inside G follow validation recalls or coverages maximises the
worst recall, or recall under coverage floors (pieces/objectives.py: any function of the confusion matrix). The best
softmax at posterior eta is ``norm(G^T eta)``; a constant added to a row of G changes no decision.

Targets and gains are constants: no gradient flows through them. They are cast to the logits' type (float32 at
least), and their values are checked on the CPU only, where that does not wait for a device.

>>> duals = update_min_recall_duals([0.3, 0.3, 0.4], recalls=[0.9, 0.7, 0.2], step=0.25)
>>> gain = min_recall_gain(duals, priors=[0.6, 0.3, 0.1])
>>> loss = hybrid_loss(torch.zeros(2, 3), torch.tensor([0, 2]), gain).mean()
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.given import as_tensor, narrowed, numbers
from evenhand.pieces.gain import Gain, Groups, checked_gain
from evenhand.pieces.losses import PerClass

DUAL_FLOOR = 1e-12  # a multiplier of 0 could never return under multiplicative updates


def min_recall_gain(duals: PerClass, priors: PerClass, groups: Groups | None = None) -> Tensor:
    """(K, K) ``diag(lambda_i / prior_i)``; with groups, one dual each: ``diag(lambda_g(i) / (prior_i |g(i)|))``.

    Priors are those of the labelled training data; counts serve as well. ``Gain.min_recall`` is the same in O(K).
    """
    return narrowed(Gain.min_recall(duals, priors, groups).dense(), duals, priors)


def coverage_gain(duals: PerClass, priors: PerClass, groups: Groups | None = None, *, balanced: bool = False) -> Tensor:
    """(K, K) ``[i = j] / (K prior_i) + lambda_j``; with groups, one dual each: ``lambda_g(j) / |g(j)|``.

    The paper's multipliers reward coverage under the training mix, while floors are checked on balanced validation
    data; ``balanced`` rewards what is checked: ``([i = j] + lambda_j) / (K prior_i)``.
    """
    return narrowed(Gain.coverage(duals, priors, groups, balanced=balanced).dense(), duals, priors)


def update_min_recall_duals(duals: PerClass, recalls: PerClass, step: float) -> Tensor:
    """``lambda_i exp(-step recall_i)``, normalised to sum 1 (exponentiated gradient): the worst gains weight.

    One number per class, or per group with the groups' mean recalls; start at ``1/K``. None falls below 1e-12, from
    where it can return in time.
    """
    old, seen = _pair(duals, "recalls", recalls, step)
    new = F.log_softmax(old.log() - step * seen, 0).clamp_min(math.log(DUAL_FLOOR)).softmax(0)
    return narrowed(new, duals)


def update_coverage_duals(duals: PerClass, coverages: PerClass, step: float, floor: float | PerClass) -> Tensor:
    """``max(0, lambda_j - step (coverage_j - floor_j))`` (projected gradient): the paper's floor is ``0.95/K``.

    One number per class, or per group with the groups' mean coverages; start at ``1/K``.
    """
    old, seen = _pair(duals, "coverages", coverages, step)
    least = numbers(floor).to(old)
    if least.numel() not in (1, len(old)):
        raise ValueError(f"floor of shape {tuple(least.shape)}: expected one number or ({len(old)},)")
    return narrowed((old - step * (seen - least)).clamp_min(0), duals)


def hybrid_loss(logits: Tensor, target: Tensor, gain: Tensor | Gain) -> Tensor:
    """(N,) ``-sum_i (M^T target)_i log softmax(z - log D)_i`` with ``D = diag(G)`` and ``M = G D^-1``.

    logits z (N, K) are raw, and predict as they are: training leaves them higher by ``log D``. target (N,) classes
    or (N, K) probabilities. A diagonal gain gives the logit-adjusted loss, the identity cross-entropy.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    target = _checked_target(target, logits)
    gain = checked_gain(gain, logits)
    diagonal = gain.diagonal()
    adjusted = logits - diagonal.log()
    if isinstance(gain, Gain) and gain.shared is None:  # M is the identity
        return F.cross_entropy(adjusted, target, reduction="none")
    return F.cross_entropy(adjusted, _rewards(target, gain) / diagonal, reduction="none")


def kl_mask(probs: Tensor, gain: Tensor | Gain, threshold: float, target: Tensor | None = None) -> Tensor:
    """(N,) bool: ``kl_to_optimum <= threshold``; with a diagonal gain this is confidence ``>= exp(-threshold)``."""
    if not threshold >= 0:
        raise ValueError(f"threshold={threshold}: a divergence is at least 0, use 0.05 to begin with")
    return kl_to_optimum(probs, gain, target) <= threshold


@torch.no_grad()
def kl_to_optimum(probs: Tensor, gain: Tensor | Gain, target: Tensor | None = None) -> Tensor:
    """(N,) ``KL(norm(G^T target) || probs)``: how far the outputs are from the best ones if the target is true.

    probs (N, K) is the unadjusted softmax of the weak view; target (N,) or (N, K) is its argmax unless given.
    """
    probs = probs.to(torch.promote_types(probs.dtype, torch.float32))
    target = _checked_target(probs.argmax(-1) if target is None else target, probs)
    rewards = _rewards(target, checked_gain(gain, probs))
    best = rewards / rewards.sum(1, keepdim=True)
    return (torch.xlogy(best, best) - torch.xlogy(best, probs)).sum(1)


def _rewards(target: Tensor, gain: Tensor | Gain) -> Tensor:
    """(N, K) ``G^T target``: what each prediction is worth."""
    with torch.autocast(target.device.type, enabled=False):
        if isinstance(gain, Tensor):
            return target @ gain if target.is_floating_point() else gain[target]
        if not target.is_floating_point():
            target = F.one_hot(target, len(gain.own)).to(gain.own)
        own = target * gain.own
        return own if gain.shared is None else torch.addr(own, target @ gain.shared[0], gain.shared[1])


def _checked_target(target: Any, logits: Tensor) -> Tensor:
    if logits.ndim != 2:
        raise ValueError(f"logits or probs of shape {tuple(logits.shape)}: expected (N, K), one row per sample")
    target = as_tensor(target, device=logits.device)
    soft = target.is_floating_point()
    if target.shape != (logits.shape if soft else logits.shape[:1]):
        found = f"target of shape {tuple(target.shape)} and type {target.dtype}"
        raise ValueError(f"{found}: expected ({len(logits)},) class indices or {tuple(logits.shape)} probabilities")
    if not soft and target.device.type == "cpu" and len(target):
        low, high = (int(t) for t in target.aminmax())
        if low < 0 or high >= logits.shape[1]:
            wrong = low if low < 0 else high
            raise ValueError(f"target holds {wrong}: labels run from 0 to {logits.shape[1] - 1}, remap or drop it")
    return target.detach().to(logits.dtype if soft else torch.long)


def _pair(duals: PerClass, name: str, seen: PerClass, step: float) -> tuple[Tensor, Tensor]:
    """Multipliers and what they answer to, both in the multipliers' type."""
    if not (math.isfinite(step) and step >= 0):
        raise ValueError(f"step={step}: must be a finite number of at least 0, the paper uses 0.25")
    old = numbers(duals)
    old = old if old.is_floating_point() else old.to(torch.get_default_dtype())
    given = numbers(seen).to(old)
    if old.ndim != 1 or given.shape != old.shape:
        shapes = f"duals {tuple(old.shape)} and {name} {tuple(given.shape)}"
        raise ValueError(f"{shapes}: expected equal shapes, one number per class or group")
    for what, values, fine in (("duals", old, old >= 0), (name, given, given.isfinite())):
        if values.device.type == "cpu" and not fine.all():
            first = int((~fine).nonzero()[0])
            raise ValueError(f"{what}[{first}]={values[first]:g}: must be finite, duals >= 0; an absent class has 0")
    return old, given
