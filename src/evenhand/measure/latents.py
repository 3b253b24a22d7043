"""What a generator's latent space says of its classes, without drawing an image."""

from __future__ import annotations

import torch
from torch import Tensor


def z_sensitivity(w: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(K,) ``tr Cov(w | y) / tr Cov(w)`` of latents (N, d): 0 for a class whose latents ignore the noise.

    The same number of latents of each class makes the mean over classes a share of variance. A class with fewer than
    two is NaN.
    """
    if w.ndim != 2 or labels.shape != w.shape[:1]:
        raise ValueError(f"w {tuple(w.shape)} and labels {tuple(labels.shape)}: expected (N, d) and (N,)")
    wide = w.double()
    whole = wide.var(0, correction=0).sum().clamp_min(torch.finfo(torch.float64).tiny)
    of_class = [wide[labels == k] for k in range(num_classes)]
    spreads = [x.var(0, correction=0).sum() if len(x) > 1 else torch.tensor(torch.nan) for x in of_class]
    return torch.stack([spread.to(whole) for spread in spreads]) / whole
