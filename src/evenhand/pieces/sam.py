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

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes per number -> integers of that size


class Snapshot:
    """Lets tensors be changed in place for a while; memory for the copies is allocated once and reused."""

    def __init__(self) -> None:
        self.active = False
        self._copies: dict[Tensor, Tensor] = {}

    @contextmanager
    def restored(self, tensors: list[Tensor]) -> Iterator[None]:
        """On leaving the block, also by an exception, ``tensors`` hold their former bits again."""
        if self.active:
            raise RuntimeError("the weights are perturbed already: leave the first block before the next")
        copies = [self._copy_of(t) for t in tensors]
        with torch.no_grad():
            torch._foreach_copy_(copies, tensors)
        self.active = True
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(tensors, copies)
            self.active = False

    def _copy_of(self, tensor: Tensor) -> Tensor:
        copy = self._copies.get(tensor)
        # net.to(...) gives the same parameter another type or device.
        if copy is None or copy.dtype != tensor.dtype or copy.device != tensor.device:
            copy = self._copies[tensor] = torch.empty_like(tensor, requires_grad=False)
        return copy


class Wrapped(torch.optim.Optimizer):
    """An optimiser acting through another instance: groups, state, hooks and ``state_dict`` are the base's.

    It is a ``torch.optim.Optimizer`` so that schedulers and ``GradScaler`` accept it, but owns no state: what
    is not found here (``param_groups``, ``state``, ``defaults``) is looked up in the base.
    """

    # GradScaler would leave the scale on the wrapper, where a fused base does not look for it.
    _step_supports_amp_scaling = False

    def __init__(self, base: torch.optim.Optimizer) -> None:
        if not isinstance(base, torch.optim.Optimizer):
            raise ValueError(f"base_optimizer={base!r}: wrap an instance, as SGD(net.parameters(), lr=0.1)")
        self.base = base
        self._snapshot = Snapshot()

    def __getattr__(self, name: str) -> Any:
        if name == "base":  # not there yet while copy or pickle builds the object
            raise AttributeError(name)
        return getattr(self.base, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_snapshot": Snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base!r})"

    def step(self, closure: Any = None) -> Any:
        """The base's step with the gradients as they are."""
        if self._snapshot.active:
            raise RuntimeError("step() inside the perturbed block would be undone: call it after the block")
        return self.base.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.base.add_param_group(param_group)


class SAM(Wrapped):
    """Sharpness-aware minimisation around the instance ``base_optimizer``; a schedule may set ``rho``."""

    def __init__(self, base_optimizer: torch.optim.Optimizer, rho: float = 0.05) -> None:
        if not rho >= 0:
            raise ValueError(f"rho={rho}: use a radius of at least 0, 0.05 to begin with")
        super().__init__(base_optimizer)
        self.rho: float | Tensor = rho

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
            yield length


def relative_radius(parameters: Iterable[Tensor], fraction: float) -> Tensor:
    """``fraction * |w|``: a radius that carries over between architectures (the paper's 0.5 is 0.9% on ResNet-32)."""
    return fraction * _global_norm([p.detach() for p in parameters])


@torch.no_grad()
def _climb(params: list[Tensor], rho: float | Tensor, *, wait: bool) -> Tensor:
    """Add ``rho g / |g|`` in place, or nothing if ``|g|`` is not finite; without ``wait`` never read the device."""
    direction = [p.grad for p in params if p.grad is not None]
    length = _global_norm(direction)
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


def _global_norm(tensors: list[Tensor]) -> Tensor:
    """Euclidean norm over all tensors, in float32 at least."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, 2, dtype)))


@contextmanager
def frozen_statistics(net: nn.Module | None) -> Iterator[None]:
    layers = [] if net is None else [m for m in net.modules() if isinstance(m, _NormBase)]
    layers = [m for m in layers if m.training and m.track_running_stats]
    for layer in layers:  # in train mode: batch statistics as before, running ones and counter untouched
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
