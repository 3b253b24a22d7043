"""Whether two sets of samples are of one kind: a classifier two-sample test on features anybody can compute."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def told_apart(one: Tensor, other: Tensor, *, folds: int = 4, ridge: float = 1.0) -> float:
    """How often ridge regression guesses the set of rows (S, d), (T, d) that it was not fitted to; 0.5 is chance.

    Each set weighs half. ``measure.shift.proxy_a_distance`` asks the same of a network's features, by logistic
    regression, and takes longer.
    """
    rows, sets = torch.cat([one, other]).double(), (one, other)
    sign = torch.cat([torch.full((len(x),), s) for x, s in zip(sets, (1.0, -1.0), strict=True)]).double()
    weight = torch.cat([torch.full((len(x),), 0.5 / len(x)) for x in sets]).double()
    fold = torch.cat([torch.arange(len(x)) % folds for x in sets])
    guess = torch.empty_like(sign)
    for held in range(folds):
        fitted = fold != held
        x = rows[fitted]
        centre, spread = x.mean(0), x.std(0).clamp_min(1e-6)
        z = torch.cat([(rows - centre) / spread, torch.ones(len(rows), 1, dtype=torch.float64)], 1)
        weighed = z[fitted] * weight[fitted, None]
        gram = weighed.T @ z[fitted] + ridge / len(x) * torch.eye(z.shape[1], dtype=torch.float64)
        guess[~fitted] = z[~fitted] @ torch.linalg.solve(gram, weighed.T @ sign[fitted])
    return float(((guess * sign > 0) * weight).sum())


def simple_features(small: np.ndarray, sizes: Sequence[tuple[int, int]]) -> Tensor:
    """(N, d) of thumbnails (N, H, W, 3): colours of a 4 x 4 mosaic, their spread, sharpness, and the shape."""
    x = torch.from_numpy(small).permute(0, 3, 1, 2) / 255
    mosaic = F.adaptive_avg_pool2d(x, 4).flatten(1)
    sharp = torch.stack([x.diff(dim=2).abs().mean((1, 2, 3)), x.diff(dim=3).abs().mean((1, 2, 3))], 1)
    shape = torch.tensor([[math.log(width), math.log(height)] for width, height in sizes])
    return torch.cat([mosaic, x.std((2, 3)), sharp, shape], 1)
