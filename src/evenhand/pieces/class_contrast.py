"""What a critic knows of classes, as a contrast: images find their class among the other images of the batch.

Of unit features f (N, d) and unit proxies v (N, d), row i of which is that of image i's own class. In several processes
each has the joint batch's loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand import parallel


def d2d_ce_loss(
    features: Tensor, proxies: Tensor, labels: Tensor, *, margin: float = 0.98, temperature: float = 0.25
) -> Tensor:
    """Data-to-data cross-entropy of ReACGAN (Kang et al. 2021): only other classes' images compete with the proxy.

    Mean of ``-log e^p / (e^p + sum_{j: y_j != y_i} e^n_j)`` with ``p = min(f_i v_i - margin, 0) / temperature`` and
    ``n_j = max(f_i f_j - (1 - margin), 0) / temperature``: what is near enough, or far enough, no longer counts.
    """
    if not 0 <= margin <= 1:
        raise ValueError(f"margin={margin}: a cosine that is near enough lies in 0 ... 1, such as 0.98")
    features, proxies, labels = _joint(features, proxies, labels, temperature)
    own = ((features * proxies).sum(1, keepdim=True) - margin).clamp(max=0) / temperature  # (N, 1)
    others = (features @ features.T - (1 - margin)).clamp(min=0) / temperature  # (N, N)
    others = others.masked_fill(labels[:, None] == labels, -torch.inf)
    return (torch.cat([own, others], 1).logsumexp(1) - own[:, 0]).mean()


def conditional_contrast_loss(
    features: Tensor, proxies: Tensor, labels: Tensor, *, temperature: float = 0.25
) -> Tensor:
    """2C of ContraGAN (Kang, Park 2020): the proxy and images of the same class, against these and all others.

    Mean of ``-log (e^p + sum_{j != i, y_j = y_i} e^n_j) / (e^p + sum_{j != i} e^n_j)`` with
    ``p = f_i v_i / temperature`` and ``n_j = f_i f_j / temperature``.
    """
    features, proxies, labels = _joint(features, proxies, labels, temperature)
    own = (features * proxies).sum(1, keepdim=True) / temperature  # (N, 1)
    itself = torch.eye(len(features), dtype=torch.bool, device=features.device)
    others = (features @ features.T / temperature).masked_fill(itself, -torch.inf)  # (N, N)
    same = others.masked_fill(labels[:, None] != labels, -torch.inf)
    return (torch.cat([own, others], 1).logsumexp(1) - torch.cat([own, same], 1).logsumexp(1)).mean()


def _joint(features: Tensor, proxies: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of all processes, in float32 or better."""
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: use one above 0, such as 0.25")
    if features.shape != proxies.shape or features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            f"features {tuple(features.shape)}, proxies {tuple(proxies.shape)}, labels {tuple(labels.shape)}: expected "
            "(N, d), (N, d) and (N,), a proxy for each image"
        )
    wide = torch.promote_types(features.dtype, torch.float32)
    rows = (parallel.stack(x.to(wide)).flatten(0, 1) for x in (features, proxies))
    return *rows, parallel.gather(labels)  # type: ignore[return-value]
