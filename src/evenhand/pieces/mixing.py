"""Mixup and CutMix: convex pairs of images with the same convex pair of labels.

``x' = lam x + (1 - lam) x_partner`` and ``y' = lam s(y) + (1 - lam) s(y_partner)``, lam ~ Beta(alpha, alpha);
CutMix pastes a box of the partner instead and sets lam to the share of pixels that stayed. The partner of
sample i is sample N-1-i (``"reversed"``, so the middle of an odd batch stays) or random (``"permuted"``).

>>> generator = torch.Generator().manual_seed(0)
>>> x, target = mixup(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 1]), 0.8, generator, num_classes=3)
>>> target.sum(1)
tensor([1., 1., 1., 1.])
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Partner = Literal["reversed", "permuted"]


def soft_targets(target: Tensor, num_classes: int | None = None, smoothing: float = 0.0) -> Tensor:
    """Labels (N,) or probabilities (N, K) as probabilities (N, K), ``(1 - smoothing) y + smoothing / K``."""
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing is {smoothing}; give a share in [0, 1]")
    if target.ndim == 1:
        if num_classes is None:
            raise ValueError("target holds class numbers; give num_classes to turn them into probabilities")
        target = F.one_hot(target, num_classes).float()
    elif num_classes is not None and target.shape[1] != num_classes:
        raise ValueError(f"target has {target.shape[1]} columns, num_classes is {num_classes}; make them agree")
    return target * (1 - smoothing) + smoothing / target.shape[1]


def mixup(
    x: Tensor, target: Tensor, alpha: float, generator: torch.Generator, num_classes: int | None = None,
    *, smoothing: float = 0.0, partner: Partner = "reversed", per_sample: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mixed images and their (N, K) targets; one lambda for the batch unless ``per_sample``."""
    soft = soft_targets(target, num_classes, smoothing)
    lam = _beta(alpha, len(x) if per_sample else 1, generator).to(x)
    other = _partner(len(x), partner, generator).to(x.device)
    return _mix(x, x[other], lam), _mix(soft, soft[other], lam)


def cutmix(
    x: Tensor, target: Tensor, alpha: float, generator: torch.Generator, num_classes: int | None = None,
    *, smoothing: float = 0.0, partner: Partner = "reversed", per_sample: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As ``mixup``, pasting a box of the partner; a box cut by the border counts with its true area."""
    soft = soft_targets(target, num_classes, smoothing)
    box = _boxes(x, len(x) if per_sample else 1, alpha, generator)
    other = _partner(len(x), partner, generator).to(x.device)
    lam = 1 - box.float().mean((1, 2, 3))
    return torch.where(box, x[other], x), _mix(soft, soft[other], lam)


def paste(x: Tensor, other: Tensor, alpha: float, generator: torch.Generator) -> Tensor:
    """CutMix of two given batches without their labels: a box of each image of ``other`` over that of ``x``."""
    return torch.where(_boxes(x, len(x), alpha, generator), other, x)


def mixup_or_cutmix(
    x: Tensor, target: Tensor, generator: torch.Generator, num_classes: int | None = None,
    *, mixup_alpha: float = 0.8, cutmix_alpha: float = 1.0, switch: float = 0.5, smoothing: float = 0.1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """CutMix with probability ``switch``, Mixup otherwise, one choice per batch (spec 05)."""
    cut = float(torch.rand((), generator=generator)) < switch
    mix, alpha = (cutmix, cutmix_alpha) if cut else (mixup, mixup_alpha)
    return mix(x, target, alpha, generator, num_classes, smoothing=smoothing)


def _boxes(x: Tensor, count: int, alpha: float, generator: torch.Generator) -> Tensor:
    """(count, 1, H, W) True inside a box of area share 1 - lam around a random centre."""
    side = (1 - _beta(alpha, count, generator)).sqrt()  # (B,) box side over image side
    centre = torch.rand(2, count, generator=generator)
    rows, columns = (_span(c, side, size) for c, size in zip(centre, x.shape[-2:], strict=True))
    return (rows[:, None, :, None] & columns[:, None, None, :]).to(x.device)


def _beta(alpha: float, count: int, generator: torch.Generator) -> Tensor:
    if alpha <= 0:
        raise ValueError(f"alpha is {alpha}; give a value above 0, or skip mixing to switch it off")
    # torch's own beta draws ignore generators, so numpy draws from a seed that torch's generator supplies.
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, count)).float()


def _partner(count: int, partner: Partner, generator: torch.Generator) -> Tensor:
    if partner == "reversed":
        return torch.arange(count - 1, -1, -1)
    if partner == "permuted":
        return torch.randperm(count, generator=generator)
    raise ValueError(f"partner is '{partner}'; choose 'reversed' or 'permuted'")


def _span(centre: Tensor, side: Tensor, size: int) -> Tensor:
    """Which of ``size`` positions a box of relative ``side`` around relative ``centre`` covers, (B, size)."""
    half = (side * size).floor() / 2
    middle = (centre * size).floor()
    position = torch.arange(size)
    return (position >= (middle - half)[:, None].ceil()) & (position < (middle + half)[:, None].ceil())


def _mix(first: Tensor, second: Tensor, lam: Tensor) -> Tensor:
    weight = lam.to(first.dtype).view(-1, *[1] * (first.ndim - 1))
    return second + weight * (first - second)
