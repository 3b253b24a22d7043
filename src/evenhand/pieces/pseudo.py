"""Pseudo-labels of self-training: which to keep, how to correct them.

    mask = confidence_mask(probs, 0.95)                                       # FixMatch
    mask = flex.mask(probs, indices)                                          # FlexMatch
    target = sharpen(probs, 0.4)                                              # UDA
    target = align(probs, wanted=sharpen(priors, 1 / t), predicted=average)   # CReST+, t falls from 1 to 0.5
    picked = pick_per_class(probs, crest_rates(counts))                       # CReST
    target = refine_to_marginals(probs, priors)                               # DARP

All of it is constant to autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand import parallel
from evenhand.pieces.gain import class_priors
from evenhand.pieces.losses import PerClass


def confidence_mask(probs: Tensor, threshold: float | Tensor) -> Tensor:
    """(N,) bool: the largest of the probabilities (N, K) reaches ``threshold``, one number or one per sample."""
    return probs.detach().amax(1) >= threshold


class FlexThresholds:
    """FlexMatch: a class confidently predicted less often gets a lower threshold ``curve(beta_c) threshold``.

    ``beta_c = sigma_c / max sigma``, sigma_c the unlabelled samples whose last confident prediction was c. While
    most samples had none, ``warmup`` divides by their number instead, if larger. ``convex`` is the authors' curve
    ``x / (2 - x)``; without it the threshold is ``beta_c threshold``.
    """

    def __init__(
        self, unlabelled: int, num_classes: int, threshold: float = 0.95, *, warmup: bool = True, convex: bool = True
    ) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold={threshold} is outside (0, 1]: it is a probability, use 0.95 to begin with")
        self.num_classes = num_classes
        self.threshold = threshold
        self.warmup = warmup
        self.convex = convex
        self.last = torch.full((unlabelled,), -1)  # last confident prediction of each sample, -1: none yet

    def thresholds(self) -> Tensor:
        """(K,) at present; all 0 before anything was predicted."""
        counts = torch.bincount(self.last + 1, minlength=self.num_classes + 1)
        most = counts.max() if self.warmup else counts[1:].max()
        beta = counts[1:] / most.clamp_min(1)
        return self.threshold * (beta / (2 - beta) if self.convex else beta)

    @torch.no_grad()
    def mask(self, probs: Tensor, indices: Tensor) -> Tensor:
        """(N,) bool under the present thresholds; then remembers these predictions of samples ``indices`` (N,)."""
        self.last = self.last.to(probs.device)
        top, predicted = probs.max(1)
        kept = top >= self.thresholds()[predicted]
        # All processes remember what any of them predicted, so their thresholds stay equal.
        seen = parallel.gather(indices.to(probs.device))
        sure = parallel.gather(torch.where(top >= self.threshold, predicted, -1))
        self.last = remember(self.last, seen[sure >= 0], sure[sure >= 0])
        return kept

    def state_dict(self) -> dict[str, Tensor]:
        return {"last": self.last}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state["last"].shape != self.last.shape:
            sizes = f"{len(state['last'])} unlabelled samples, this run has {len(self.last)}"
            raise ValueError(f"last holds {sizes}: resume with the same data")
        self.last = state["last"].to(self.last.device, copy=True)


@torch.no_grad()
def remember(memory: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    """A copy of ``memory`` with rows ``indices`` (N,) set to ``values`` (N, ...); of repeated ones the last counts.

    Assignment by index leaves that open on a GPU, and processes would come to disagree.
    """
    order = torch.arange(len(indices), device=indices.device)
    last = order.new_full((len(memory),), -1).scatter_reduce_(0, indices, order, "amax")
    changed = memory.clone()
    changed[last >= 0] = values[last[last >= 0]]
    return changed


@torch.no_grad()
def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """``p^(1/T)`` normalised over the last axis: T below 1 sharpens, above 1 flattens (CReST+'s priors^t: T = 1/t)."""
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: must be positive, 0.4 to 1 sharpens")
    return (probs.log() / temperature).softmax(-1)


@torch.no_grad()
def align(probs: Tensor, wanted: PerClass, predicted: Tensor) -> Tensor:
    """(N, K) ``p wanted / predicted`` normalised: distribution alignment.

    predicted (K,) is the running mean of the model's probabilities on unlabelled data, which the method keeps.
    """
    tilted = probs * class_priors(wanted, "wanted").to(probs) / predicted.to(probs).clamp_min(1e-6)
    return tilted / tilted.sum(1, keepdim=True)


@torch.no_grad()
def refine_to_marginals(
    probs: Tensor, marginals: PerClass, *, iterations: int = 100, tolerance: float = 1e-6
) -> Tensor:
    """(N, K) nearest to ``probs`` in KL whose rows sum to 1 and whose class means are ``marginals`` (DARP).

    Alternating scaling of columns and rows: the result is ``u_n p_nk v_k``. It stops when the class means are
    within ``tolerance``; rows are exact always. DARP's entropy weights are not used.
    """
    wanted = class_priors(marginals, "marginals").to(probs.device, torch.float64)
    if probs.ndim != 2 or probs.shape[1] != len(wanted):
        raise ValueError(
            f"probs of shape {tuple(probs.shape)}: expected (N, {len(wanted)}) for {len(wanted)} marginals"
        )
    x = probs.double().clamp_min(1e-12)  # a class nobody predicts could not be scaled up
    x = x / x.sum(1, keepdim=True)
    for _ in range(iterations):
        means = x.mean(0)
        if (means - wanted).abs().max() <= tolerance:
            break
        x = x * (wanted / means)
        x = x / x.sum(1, keepdim=True)
    return x.to(probs.dtype)


def estimate_priors(C: Tensor, predicted: PerClass) -> Tensor:
    """(K,) class shares of unlabelled data, from the shares ``predicted`` there and the confusion matrix C elsewhere.

    Solves ``R^T priors = predicted`` with R the row-normalised C (Lipton et al.), then clips to the simplex.
    """
    rates = C / C.sum(1, keepdim=True).clamp_min(1e-12)
    seen = torch.as_tensor(predicted).to(C)
    priors = (torch.linalg.pinv(rates.T) @ (seen / seen.sum())).clamp_min(1e-6)
    return priors / priors.sum()


def crest_rates(counts: PerClass, alpha: float = 1 / 3) -> Tensor:
    """(K,) share of pseudo-labels CReST adds per class: ``(N_(K+1-l) / N_1)^alpha`` for the l-th largest class.

    The rarest class keeps all of its few, precise pseudo-labels, the largest the fewest.
    """
    n = class_priors(counts, "counts")
    order = n.argsort(descending=True, stable=True)
    rates = torch.empty_like(n)
    rates[order] = (n[order].flip(0) / n.max()) ** alpha
    return rates


@torch.no_grad()
def pick_per_class(probs: Tensor, rates: PerClass) -> Tensor:
    """Sorted indices of the ``rates[k]`` most confident share of the samples whose argmax is k, for every class k."""
    top, predicted = probs.max(1)
    picked = []
    for k, rate in enumerate(torch.as_tensor(rates).tolist()):
        members = (predicted == k).nonzero().squeeze(1)
        best = top[members].argsort(descending=True, stable=True)
        picked.append(members[best[: round(rate * len(members))]])
    return torch.cat(picked).sort().values
