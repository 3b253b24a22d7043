r"""Which classes to mix for a metric: the gain of every class pair, and the distribution to draw pairs from (SelMix).

A step on "features of class i mixed with features of class j, label i" moves the head, and with it the confusion
matrix C. With prototypes z_k (each class's mean feature on validation data), zeta_ij = keep z_i + (1 - keep) z_j and
p_ij = softmax(W zeta_ij + b), the metric psi changes per unit of that step by

    G_ij = sum_k (zeta_ij . z_k) (A_ki - sum_l A_kl p_ij,l),     A = d psi / d logits of C's rows.

>>> from evenhand.measure.confusion import h_mean
>>> C = torch.tensor([[0.5, 0.0], [0.3, 0.2]])           # rows are the truth: class 1 is right 2 times in 5
>>> gain = pair_gain(h_mean, C, prototypes=torch.eye(2), head_weight=torch.eye(2))
>>> pair_distribution(gain, scale=10.0, relative=True).argmax().item()        # pair (1, 0): label 1, mixed with class 0
2
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from evenhand.given import as_tensor
from evenhand.pieces.slope import logit_slope

ZERO = 1e-7  # what a share of 0 on the diagonal counts as, the released code's
UNDERFLOW = 1e-200  # below, a product of exponentials has lost its digits


def pair_gain(
    metric: Callable[[Tensor], Tensor],
    confusion: Tensor,
    prototypes: Tensor,
    head_weight: Tensor,
    *,
    bias: Tensor | None = None,
    keep: float = 0.8,
    legacy: bool = False,
) -> Tensor:
    """(K, K) float64: G_ij, the metric's change per unit step on class i mixed with class j under label i.

    metric: any differentiable function of C, larger is better. confusion (K, K): rows are the truth, entries sum to
    1. prototypes (K, d). head_weight (K, d) and bias (K,) as in ``nn.Linear``; with a bias its gradient counts too.
    keep: share of class i in the mix (the mean of the coefficients drawn in training). All are constants here. A class
    of recall 0, which no small step can change, counts as one of nearly 0, so that the metric can ask for it.

    Exact, in three products of (K, K) matrices. ``legacy`` is the authors' released code, which is not the
    derivative: it takes z_i for zeta_ij where the label's logit rises, and leaves the gradient of the bias out.
    """
    C, Z, W, b = _checked(confusion, prototypes, head_weight, bias)
    if not 0 <= keep <= 1:
        raise ValueError(f"keep={keep}: expected a share in 0..1, the paper's is 0.8")
    near = Z @ Z.T  # (K, K) how far a step at one prototype moves the logits at another
    if bias is not None and not legacy:
        near = near + 1  # the bias is a weight of a feature that is 1
    M = near @ logit_slope(metric, _told(C))  # (m, l): the metric's rise if logit l rises by a step at z_m
    own = M.diagonal()[:, None]
    rise = own if legacy else keep * own + (1 - keep) * M.T  # of the label's logit
    L = Z @ W.T + b
    L = L - L.amax(1, keepdim=True)
    a, c = (keep * L).exp(), ((1 - keep) * L).exp()  # p_ij,l is proportional to a_il c_jl
    total = a @ c.T
    fall = (keep * (a * M) @ c.T + (1 - keep) * a @ (c * M).T) / total  # of all logits in proportion to p_ij
    for i in (total < UNDERFLOW).any(1).nonzero()[:, 0].tolist():
        p = (keep * L[i] + (1 - keep) * L).softmax(1)
        fall[i] = (p * (keep * M[i] + (1 - keep) * M)).sum(1)
    return rise - fall


def pair_distribution(gain: Tensor, scale: float, *, relative: bool = False, floor: float = 0.0) -> Tensor:
    """(K, K) summing to 1: one softmax of ``scale * gain`` over all pairs of positive gain, 0 elsewhere.

    Without a positive gain it is uniform. ``relative`` divides by the largest gain first, whose size depends on
    feature norms, K and the metric. ``floor`` is added to every pair before normalising (released code: 1 / K^3).
    """
    given = as_tensor(gain).detach()
    G = given.double()
    if G.ndim != 2 or G.shape[0] != G.shape[1] or not G.numel():
        raise ValueError(f"gain of shape {tuple(G.shape)}: expected (K, K), as pair_gain returns")
    if not G.isfinite().all():
        i, j = (~G.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"gain[{i}, {j}]={G[i, j]:g}: must be finite, check prototypes and metric")
    for name, value in (("scale", scale), ("floor", floor)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value}: expected a finite number of at least 0")
    if not (positive := G > 0).any():
        G, positive = torch.zeros_like(G), ~positive
    elif relative:
        G = G / G.amax()
    P = torch.where(positive, scale * G, -math.inf).flatten().softmax(0).view_as(G) + floor
    return (P / P.sum()).to(given.dtype if given.is_floating_point() else torch.float64)


def pair_entropy(distribution: Tensor) -> Tensor:
    """Entropy in nats: log K^2 if uniform, 0 if one pair has it all; to tune ``scale`` by."""
    return torch.special.entr(distribution).sum()


def _told(C: Tensor) -> Tensor:
    """C with recalls of 0, whose logits have no slope, raised a little; classes without samples stay so."""
    lost = (C.diagonal() <= 0) & (C.sum(1) > 0)
    return C + (ZERO * lost.to(C)).diag()


def _checked(
    confusion: Tensor, prototypes: Tensor, head_weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All in float64 on the prototypes' device, without gradient."""
    Z = as_tensor(prototypes).detach().double()
    C, W = (as_tensor(given).detach().to(Z) for given in (confusion, head_weight))
    if C.ndim != 2 or C.shape[0] != C.shape[1] or not C.numel():
        raise ValueError(f"confusion of shape {tuple(C.shape)}: expected (K, K), as confusion_matrix returns")
    b = C.new_zeros(len(C)) if bias is None else as_tensor(bias).detach().to(Z)
    width = Z.shape[1] if Z.ndim == 2 else "d"
    for name, given, wanted in (
        ("prototypes", Z, (len(C), width)),
        ("head_weight", W, (len(C), width)),
        ("bias", b, (len(C),)),
    ):
        if given.shape != wanted:
            raise ValueError(f"{name} of shape {tuple(given.shape)}: expected {wanted} for {len(C)} classes")
        if not (fine := given.isfinite().flatten(1).all(1) if given.ndim > 1 else given.isfinite()).all():
            k = int((~fine).nonzero()[0])
            raise ValueError(f"{name}[{k}] is not finite: give class {k} validation samples, or check the network")
    if not ((C >= 0).all() and abs(float(C.sum()) - 1) < 1e-3):
        raise ValueError(f"confusion sums to {float(C.sum()):g}: expected shares of at least 0 that sum to 1")
    return C, Z, W, b
