"""What optimisers that move the weights for a while stand on: exact restoring, and a wrapper around the base."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


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
        if closure is not None:  # the base would compute plain gradients with it
            raise ValueError(f"{type(self).__name__}.step takes no closure: call backward() first, then step()")
        if self._snapshot.active:
            raise RuntimeError("step() inside the perturbed block would be undone: call it after the block")
        return self.base.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.base.add_param_group(param_group)
