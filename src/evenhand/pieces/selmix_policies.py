r"""From the gains of class pairs to the distribution that training draws from: SelMix's, the theory's and their rivals.

``selmix`` and ``greedy`` know the present gain G_t alone. ``accumulated`` is the thesis' theory, softmax(s sum_{u<=t}
G_u): its average gain over T rounds, plus log(K^2) / (s T), is at least that of any fixed distribution. ``hedge`` looks
at the rounds before (u < t) of gains in 0..1 and comes, with :func:`hedge_scale`, within 2 sqrt(log K / T) of the best
pair. Both hold on every path of gains, not only in expectation.

>>> gain = torch.tensor([[0.1, 0.4], [-0.2, 0.0]])
>>> P, past = next_distribution("greedy", gain, torch.zeros(2, 2), scale=10.0)
>>> P.tolist()
[[0.0, 1.0], [0.0, 0.0]]
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from evenhand.pieces.selmix import pair_distribution

Policy = Literal["selmix", "uniform", "greedy", "accumulated", "hedge"]
EARLIER = 10  # refreshes that a gain is compared with


def next_distribution(
    policy: Policy, gain: Tensor, past: Tensor, *, scale: float, relative: bool = False, floor: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The pairs' distribution P (K, K), and ``past``, the sum of gains so far, with this one added.

    selmix: one masked softmax of the present gain, see :func:`pair_distribution`, which explains ``relative`` and
    ``floor``. uniform: all pairs alike. greedy: the pair of largest gain. accumulated: softmax of ``scale`` times the
    sum of all gains up to this one. hedge: of all before it. These two mask nothing, and sum what :func:`bounded` makes
    of a gain where it is ``relative``.
    """
    if policy not in get_args(Policy):
        raise ValueError(f"policy '{policy}' is unknown: choose one of {', '.join(get_args(Policy))}")
    if past.shape != gain.shape:
        raise ValueError(f"past of shape {tuple(past.shape)}: expected that of the gain, {tuple(gain.shape)}")
    P = pair_distribution(gain, scale, relative=relative, floor=floor)  # also checks the gain
    rewards = bounded(gain, positive=policy == "hedge") if relative else gain
    total = past + rewards.to(past)
    if policy == "uniform":
        P = torch.full_like(P, 1 / P.numel())
    elif policy == "greedy":
        P = torch.zeros_like(P).flatten().index_fill(0, gain.argmax(), 1.0).view_as(P)
    elif policy in ("accumulated", "hedge"):
        seen = total if policy == "accumulated" else past
        P = (scale * seen.double()).flatten().softmax(0).view_as(seen).to(P)
    return P, total


def bounded(gain: Tensor, *, positive: bool = False) -> Tensor:
    """The gain over its largest size, in -1..1; or, moved and halved, in 0..1."""
    sized = gain / gain.abs().amax().clamp_min(1e-30)
    return (1 + sized) / 2 if positive else sized


def hedge_scale(classes: int, rounds: int) -> float:
    """``log(1 + 2 sqrt(log K / T))``: the scale for which hedge's bound holds."""
    if classes < 1 or rounds < 1:
        raise ValueError(f"classes={classes}, rounds={rounds}: expected at least 1 of each")
    return math.log1p(2 * math.sqrt(math.log(classes) / rounds))


def has_settled(largest: Tensor, within: float = 0.05) -> bool:
    """Whether the last of the largest gains of each refresh (T,) is within 5 % of the mean of the last ten."""
    if len(largest) < EARLIER:
        return False
    mean = largest[-EARLIER:].mean()
    return bool((largest[-1] - mean).abs() <= within * mean.abs())
