"""Virtual adversarial training: the small input change that moves a prediction most, found without labels.

``KL(h(x) || h(x + r))`` has neither value nor gradient at r = 0; near it is ``r' H r / 2``. Its gradient at a short
random d is therefore H d, a step of power iteration towards the top eigenvector of H, at the price of two passes.

>>> net = nn.Linear(6, 3)
>>> loss = vat_loss(net, torch.randn(4, 6), epsilon=1.0, generator=torch.Generator().manual_seed(0))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from evenhand.nets.modes import frozen_statistics
from evenhand.precision import without_tf32

Predictor = nn.Module | Callable[[Tensor], Tensor]
STEP = 1e-3  # default size of d's elements: the authors' |d| = 1e-6 is rounding noise in float32


def adversarial_direction(
    model: Predictor,
    x: Tensor,
    *,
    epsilon: float,
    xi: float | None = None,
    iterations: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """r of x's shape, each sample's norm ``epsilon`` (0 where the gradient is), by ``iterations`` power steps.

    ``model`` maps x to logits (N, K); ``xi`` is the norm of d, by default ``0.001 sqrt(elements of a sample)``, which
    suits normalised inputs. No parameter's ``.grad`` changes. In these passes dropout and the like are off, BatchNorm
    layers that train normalise by the batch but keep their running statistics, and nothing is autocast. Without a
    generator the random start is that of seed 0, the same at every call.
    """
    with _steady(model, x):
        with torch.no_grad():
            clean = model(x)
        return _direction(model, x, clean, epsilon, xi, iterations, generator)


def vat_loss(
    model: Predictor,
    x: Tensor,
    *,
    epsilon: float,
    xi: float | None = None,
    iterations: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mean over samples of ``KL(h(x) || h(x + r))``, r from ``adversarial_direction``; h(x) and r are constants.

    The passes are those of ``adversarial_direction``: running statistics and dropout's random numbers stay.
    """
    with _steady(model, x):
        with torch.no_grad():
            clean = model(x)
        r = _direction(model, x, clean, epsilon, xi, iterations, generator)
        return F.kl_div(F.log_softmax(model(x + r), 1), F.log_softmax(clean, 1), reduction="batchmean", log_target=True)


def _direction(
    model: Predictor,
    x: Tensor,
    clean: Tensor,
    epsilon: float,
    xi: float | None,
    iterations: int,
    generator: torch.Generator | None,
) -> Tensor:
    xi = STEP * math.sqrt(x[0].numel()) if xi is None else xi
    if clean.ndim != 2:
        raise ValueError(f"model returned shape {tuple(clean.shape)}: expected logits (N, K), one row per sample")
    if not (0 <= epsilon < math.inf and 0 < xi < math.inf and iterations >= 1):
        given = f"epsilon={epsilon}, xi={xi}, iterations={iterations}"
        raise ValueError(f"{given}: use epsilon >= 0, xi > 0 (or leave it out) and iterations >= 1")
    generator = generator or torch.Generator().manual_seed(0)
    x = x.detach()
    d = _unit(torch.randn(x.shape, generator=generator, device=generator.device).to(x))
    for _ in range(iterations):
        short = (xi * d).requires_grad_()
        with torch.enable_grad():
            moved = model(x + short)
        d = _unit(torch.autograd.grad(moved, short, _kl_gradient(clean, moved.detach()))[0])
    return epsilon * d


def _kl_gradient(clean: Tensor, moved: Tensor) -> Tensor:
    """(N, K) gradient q - p of KL(p || q) in the logits of q.

    The likeliest class gets minus the sum of the others: near 1 the difference of its own is rounding noise, which
    would drown the direction of every sample that the model is sure of.
    """
    top = clean.argmax(1, keepdim=True)
    others = (moved.softmax(1) - clean.softmax(1)).scatter(1, top, 0.0)
    return others.scatter(1, top, -others.sum(1, keepdim=True))


def _unit(v: Tensor) -> Tensor:
    """Each sample divided by its norm; 0 stays 0."""
    flat, tiny = v.flatten(1), torch.finfo(v.dtype).tiny
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(tiny)  # or the squares of a small gradient underflow
    return (flat / torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp_min(tiny)).view_as(v)


@contextmanager
def _steady(model: Predictor, x: Tensor) -> Iterator[None]:
    """A pass depends on x alone and leaves no trace: h(x) and h(x + r) may differ by r only."""
    if not x.is_floating_point() or x.ndim < 2 or not len(x):
        found = f"x of shape {tuple(x.shape)} and type {x.dtype}"
        raise ValueError(f"{found}: expected a float batch (N, ...) of at least 1 sample")
    parts = model.modules() if isinstance(model, nn.Module) else ()  # any other function has no modes
    training = [m for m in parts if m.training and not isinstance(m, _NormBase)]
    for module in training:
        module.training = False
    try:
        with frozen_statistics(model), torch.autocast(x.device.type, enabled=False), without_tf32():
            yield
    finally:
        for module in training:
            module.training = True
