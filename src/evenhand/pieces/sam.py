"""Sharpness-aware minimisation (SAM) around any optimiser: descend with the gradient at ``w + rho g / |g|``.

    opt = SAM(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), rho=0.05)
    for x, y in loader:
        loss_fn(net(x), y).backward()
        with opt.ascent(net):               # weights at w + e, BatchNorm statistics frozen
            loss_fn(net(x), y).backward()
        opt.step()                          # back at w exactly, then the base optimiser's step
        opt.zero_grad()

Both passes use the same batch, the same augmentation and the same loss weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from evenhand.nets.modes import frozen_statistics
from evenhand.pieces.norms import global_norm
from evenhand.pieces.wrapped import Wrapped

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes per number -> integers of that size


class SAM(Wrapped):
    """Sharpness-aware minimisation around the instance ``base_optimizer``; a schedule may set ``rho``."""

    def __init__(self, base_optimizer: torch.optim.Optimizer, rho: float = 0.05) -> None:
        super().__init__(base_optimizer)
        is_number = isinstance(rho, Real | Tensor)
        if not (is_number and 0 <= rho < math.inf):
            raise ValueError(f"rho={rho!r}: use a radius of at least 0, 0.05 to begin with")
        self.rho: float | Tensor = rho
        self._climbed = self._warned = False

    @contextmanager
    def ascent(self, net: nn.Module | None = None) -> Iterator[Tensor]:
        """Weights at ``w + rho g / |g|`` inside the block, exactly ``w`` after it; yields the norm ``|g|``.

        The present gradients are used up: the block starts without any and accumulates the second pass's. One
        global norm makes the direction free of the loss scale; parameters without gradient stay. With ``net``
        its BatchNorm layers normalise by the batch but keep their running statistics; without, these move in
        both passes, as in the authors' code. A zero or non-finite gradient leaves the weights unperturbed:
        the second pass repeats the first, and a loss scaler sees the overflow and skips the step.
        """
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not params:
            raise ValueError("ascent() found no gradient: call loss.backward() before `with opt.ascent(net)`")
        with self._snapshot.restored(params), frozen_statistics(net):
            length = _climb(params, self.rho, wait=params[0].device.type == "cpu")
            self.zero_grad()
            self._climbed = True
            yield length

    def step(self, closure: Any = None) -> Any:
        """The base's step with the second pass's gradients.

        A ``closure`` (zeroes gradients, computes the loss, calls backward, returns it) is called for both passes, which
        both move BatchNorm's statistics; the loss of the first is returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
                with self.ascent():
                    closure()
        elif not self._climbed and not self._warned:
            self._warned = True
            warnings.warn("step() without ascent is the base's: put `with opt.ascent(net)` before it", stacklevel=2)
        super().step()
        self._climbed = False
        return loss


def relative_radius(parameters: Iterable[Tensor], fraction: float) -> Tensor:
    """``fraction * |w|``: a radius that carries over between architectures (the paper's 0.5 is 0.9% on ResNet-32)."""
    return fraction * global_norm(p.detach() for p in parameters)


@torch.no_grad()
def _climb(params: list[Tensor], rho: float | Tensor, *, wait: bool) -> Tensor:
    """Add ``rho g / |g|`` in place, or nothing if ``|g|`` is not finite; without ``wait`` never read the device."""
    direction = [p.grad for p in params if p.grad is not None]
    length = global_norm(direction)
    scale = rho / (length + 1e-12)
    if wait:
        if length.isfinite():
            torch._foreach_add_(params, direction, alpha=scale.item())
    else:
        torch._foreach_mul_(direction, scale)
        bits = [d.view(_BITS[d.element_size()]) for d in direction]  # as integers, because 0 * nan is nan
        torch._foreach_mul_(bits, length.isfinite().to(bits[0].dtype))
        torch._foreach_add_(params, direction)
    return length
