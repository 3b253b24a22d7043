"""Calibration: of the predictions made with confidence 0.8, are 80% right?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: one entry per bin, all 0 in an empty bin."""

    confidence: Tensor  # (B,) mean confidence
    accuracy: Tensor  # (B,) share predicted right
    count: Tensor  # (B,) samples


def reliability(probs: Tensor, target: Tensor, bins: int = 15) -> Reliability:
    """Samples in ``bins`` equal intervals (lo, hi] of confidence, a row's largest probability of (N, K)."""
    if bins < 1:
        raise ValueError(f"bins={bins}: use at least 1, commonly 15")
    if probs.ndim != 2 or not len(probs) or target.shape != probs.shape[:1]:
        shapes = f"probs {tuple(probs.shape)} and target {tuple(target.shape)}"
        raise ValueError(f"{shapes}: expected (N, K) and (N,), N >= 1")
    probs = probs.detach().double()
    # Loose, since rows in half precision sum to 1 only roughly: this is to catch logits and nan.
    if not (probs.min() >= 0 and (probs.sum(1) - 1).abs().max() <= 0.05):
        raise ValueError("probs: some row is not a probability distribution; apply softmax(dim=1) to logits")
    confidence, predicted = probs.max(1)
    return binned(confidence, predicted == target.to(predicted.device), bins)


def binned(confidence: Tensor, right: Tensor, bins: int = 15) -> Reliability:
    """The same from each sample's confidence (N,) and whether it was right."""
    confidence = confidence.double()
    edges = torch.arange(1, bins, device=confidence.device, dtype=confidence.dtype) / bins
    bin_of = torch.bucketize(confidence, edges)  # (N,)
    count = torch.bincount(bin_of, minlength=bins)
    sure, hits = (torch.bincount(bin_of, x, minlength=bins) for x in (confidence, right.double()))
    return Reliability(sure / count.clamp_min(1), hits / count.clamp_min(1), count)


def expected_calibration_error(probs: Tensor, target: Tensor, bins: int = 15) -> float:
    """ECE ``sum_b n_b / N |accuracy_b - confidence_b|``, in [0, 1]; 0 is perfect calibration."""
    r = reliability(probs, target, bins)
    return float((r.count * (r.accuracy - r.confidence).abs()).sum() / r.count.sum())


def fit_temperature(logits: Tensor, target: Tensor, *, within: tuple[float, float] = (0.01, 100.0)) -> float:
    """The T > 0 for which ``softmax(logits / T)`` has the least cross-entropy (Guo et al. 2017); on held-out logits.

    Cross-entropy is convex in b = 1/T, with mean E_p[z] - z_y as slope and mean Var_p[z] as curvature: Newton's steps,
    kept inside a bracket. Logits that separate all samples have no best T; they get the nearest one ``within``.

    >>> round(fit_temperature(torch.tensor([[2.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])), 4)  # 2 / log 3
    1.8205
    """
    if logits.ndim != 2 or not len(logits) or target.shape != logits.shape[:1]:
        shapes = f"logits {tuple(logits.shape)} and target {tuple(target.shape)}"
        raise ValueError(f"{shapes}: expected (N, K) and (N,), N >= 1")
    z = logits.detach().double()
    z = z - z.gather(1, target.to(z.device)[:, None])  # (N, K), 0 for the truth

    def bend(b: float) -> tuple[float, float]:
        p = (b * z).softmax(1)
        mean = (p * z).sum(1)  # (N,)
        return float(mean.mean()), float(((p * z.square()).sum(1) - mean.square()).mean())

    low, high = 1 / within[1], 1 / within[0]
    if not z.any():  # all classes alike: any T is as good
        return 1.0
    if bend(high)[0] <= 0:
        return within[0]
    if bend(low)[0] >= 0:
        return within[1]
    b = min(max(1.0, low), high)
    for turn in range(200):
        slope, curvature = bend(b)
        low, high = (b, high) if slope < 0 else (low, b)
        new = b - slope / curvature if curvature > 0 else low
        if turn % 3 == 2 or not low < new < high:  # Newton crawls where the loss is all but 0
            new = (low * high) ** 0.5
        elif abs(new - b) <= 1e-9 * b:
            break
        b = new
    return 1 / b
