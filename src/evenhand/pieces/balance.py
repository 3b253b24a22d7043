"""Class balancing for a generator, judged by a frozen classifier: rare classes are asked for, frequent ones held back.

Minimised together with the generator's loss, the term ``sum_k p_k log p_k / N_k`` is a weighted negative entropy of
what the batch looks like on average: ``p`` is the classifier's mean softmax on the fakes, ``N_k`` how often class k
was drawn lately. Average first, then take the logarithm: the mean of per-sample entropies is another objective.

    seen = EffectiveFrequency(num_classes)
    for step in range(steps):
        logits = classifier(generator(z))   # frozen, in eval mode, but not under no_grad
        balance = balance_loss(mean_prediction(logits), seen.distribution)
        (adversarial + trade_off / num_classes * balance).backward()
        seen.count(logits.argmax(1))
        if (step + 1) % cycle == 0:
            seen.refresh()

With two classes the fixed-N optimum still favours the larger one, and ``forget * log(num_classes)`` near 2 makes
the shares oscillate: keep it below 1, so with many classes refresh often and forget little.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from evenhand import parallel
from evenhand.given import as_tensor, numbers
from evenhand.pieces.losses import PerClass

Normalise = Literal["share", "mean-one"]


def mean_prediction(logits: Tensor) -> Tensor:
    """Softmax averaged over the batch of all processes, (N, K) -> (K,), in float32 at least; gradients flow."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return parallel.total(logits.softmax(1, dtype=wide).mean(0)) / parallel.world()


def balance_loss(mean_probs: Tensor, frequencies: PerClass, *, normalise: Normalise = "share") -> Tensor:
    """``sum_k w_k p_k log p_k``, to be minimised; no gradient reaches ``frequencies``, of which any multiple will do.

    ``"share"``, the thesis' form, has ``w_k = 1 / N_k`` with N summing to 1 and goes with a coefficient
    ``trade_off / K``; ``"mean-one"``, that of the released code, scales the weights to mean 1 and goes with
    ``trade_off`` itself. At equal frequencies both come to the same; else "share" is ``form_ratio`` times stronger.
    """
    mean_probs = numbers(mean_probs)
    if mean_probs.ndim != 1 or len(mean_probs) < 2:
        raise ValueError(f"mean_probs of shape {tuple(mean_probs.shape)}: average the softmax over the batch to (K,)")
    if normalise not in ("share", "mean-one"):
        raise ValueError(f"normalise='{normalise}': choose 'share' or 'mean-one'")
    p = mean_probs.to(torch.promote_types(mean_probs.dtype, torch.float32))
    n = numbers(frequencies).detach().to(p)
    if n.shape != p.shape:
        raise ValueError(f"frequencies of shape {tuple(n.shape)}: expected ({len(p)},), one number per class")
    if p.device.type == "cpu":
        if (p < 0).any():
            raise ValueError(f"mean_probs holds {p.min():g}: give probabilities, as mean_prediction(logits) does")
        if not (n > 0).all():
            first = int((~(n > 0)).nonzero()[0])
            raise ValueError(f"frequencies[{first}]={n[first]:g}: must be positive, EffectiveFrequency takes a floor")
    weight = n.sum() / n if normalise == "share" else (1 / n) / (1 / n).mean()
    # The floor makes a class without any mass count 0, with a finite gradient.
    return (weight * p * p.clamp_min(torch.finfo(p.dtype).tiny).log()).sum()


def form_ratio(frequencies: PerClass) -> float:
    """Share form over mean-one form at the same ``trade_off``: arithmetic over harmonic mean of the frequencies.

    1 at balance; 1.67 for the shares of CIFAR-10-LT at imbalance 10, 6.17 at 100.
    """
    n = as_tensor(frequencies, dtype=torch.float64)
    return float(n.mean() * (1 / n).mean())


class EffectiveFrequency:
    """How often each class was drawn, older cycles counting less: ``N <- (1 - forget) N + weight * counts``.

    weight: 1 for decayed counts, equal to ``forget`` for a moving average; start: N of every class before the first
    refresh; floor: smallest N over the mean N. Without a floor a class that is never drawn gets an ever larger
    weight; with more classes than a batch holds, 0.01 keeps it in bounds.
    """

    def __init__(
        self, num_classes: int, forget: float = 0.5, weight: float = 1.0, start: float = 1.0, *, floor: float = 0.0
    ) -> None:
        if num_classes < 2:
            raise ValueError(f"num_classes={num_classes}: balancing needs at least 2 classes")
        if not 0 <= forget <= 1:
            raise ValueError(f"forget={forget} is outside [0, 1]: use 0.5 per cycle, about 0.005 per step")
        if not (weight > 0 and start > 0):
            raise ValueError(f"weight={weight}, start={start}: both must be positive")
        if not 0 <= floor < 1:
            raise ValueError(f"floor={floor} is outside [0, 1): it is a share of the mean frequency")
        self.forget, self.weight, self.floor = forget, weight, floor
        self.frequency = torch.full((num_classes,), float(start))
        self.counts = torch.zeros(num_classes)

    def count(self, labels: Any) -> None:
        """Add this step's labels (N,), of all processes; only those of training fakes, not of evaluation."""
        classes, labels = len(self.counts), as_tensor(labels)
        if labels.ndim != 1 or (labels.is_floating_point() and len(labels)):
            raise ValueError(f"labels of shape {tuple(labels.shape)} and type {labels.dtype}: expected (N,) integers")
        if labels.device.type == "cpu" and len(labels):
            low, high = (int(t) for t in labels.aminmax())
            if low < 0 or high >= classes:
                raise ValueError(f"labels hold {low if low < 0 else high}: they run from 0 to {classes - 1}")
        drawn = torch.zeros(classes, device=labels.device)
        drawn.index_add_(0, labels.long(), torch.ones(len(labels), device=labels.device))
        self.counts = self.counts.to(labels.device) + parallel.total(drawn)

    def refresh(self) -> None:
        """End of a cycle: fold the counts in and start counting anew. Where nothing would be left, nothing changes."""
        old = self.frequency.to(self.counts.device)
        n = (1 - self.forget) * old + self.weight * self.counts
        self.frequency = torch.where(n.sum() > 0, n.clamp_min(self.floor * n.mean()), old)
        self.counts = torch.zeros_like(self.counts)

    @property
    def distribution(self) -> Tensor:
        """Shares of the classes as of the last refresh, (K,), sum 1."""
        return self.frequency / self.frequency.sum()

    def state_dict(self) -> dict[str, Tensor]:
        return {"frequency": self.frequency, "counts": self.counts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in ("frequency", "counts"):
            if name not in state_dict:
                raise ValueError(f"state_dict has no '{name}': give what state_dict() returned")
            if state_dict[name].shape != self.counts.shape:
                raise ValueError(f"{name} of {len(state_dict[name])} classes: expected {len(self.counts)}")
        self.frequency, self.counts = state_dict["frequency"].clone(), state_dict["counts"].clone()
