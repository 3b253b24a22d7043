"""Two optimisers that leave saddles by noise: PGD (noise in the gradient) and LPF-SGD (noise in the weights).

Both wrap an optimiser instance and draw from ``generator``, by default one of their own, seeded 0, on the
parameters' device. ``state_dict()`` is the base's plus the key ``generator`` with that generator's state, so
a resumed run draws what the uninterrupted one would; one without the key (the bare base's) loads too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from evenhand.pieces.wrapped import Wrapped


class _Noisy(Wrapped):
    def __init__(self, base: torch.optim.Optimizer, generator: torch.Generator | None) -> None:
        super().__init__(base)
        device = self.param_groups[0]["params"][0].device
        self.generator = torch.Generator(device).manual_seed(0) if generator is None else generator

    def state_dict(self) -> dict[str, Any]:
        return {**self.base.state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict({k: v for k, v in state_dict.items() if k != "generator"})
        kept = state_dict.get("generator", torch.empty(0)).cpu()
        if len(kept) == len(self.generator.get_state()):  # else it is that of another kind of device
            self.generator.set_state(kept)

    def _normal_like(self, tensors: list[Tensor]) -> list[Tensor]:
        """Standard normal noise of the tensors' shapes, in one draw."""
        sizes = [t.numel() for t in tensors]
        flat = torch.randn(sum(sizes), generator=self.generator, device=self.generator.device)
        parts = flat.to(tensors[0].device).split(sizes)
        return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


class PGD(_Noisy):
    """Perturbed gradient descent: ``step()`` adds N(0, sigma^2) to the gradients, then steps the base."""

    def __init__(
        self,
        base_optimizer: torch.optim.Optimizer,
        sigma: float = 1e-4,
        generator: torch.Generator | None = None,
    ) -> None:
        if not sigma >= 0:
            raise ValueError(f"sigma={sigma}: use a standard deviation of at least 0, such as 1e-4")
        super().__init__(base_optimizer, generator)
        self.sigma = sigma

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            raise ValueError("PGD.step takes no closure, which would undo the noise: call backward() first")
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if grads:
            with torch.no_grad():
                torch._foreach_add_(grads, self._normal_like(grads), alpha=self.sigma)
        return super().step()


class LPFSGD(_Noisy):
    """Low-pass-filtered SGD: each of ``parts`` slices of the batch meets freshly perturbed weights.

    >>> for i in torch.arange(len(x)).chunk(opt.parts):  # doctest: +SKIP
    ...     with opt.perturbed():
    ...         (loss_fn(net(x[i]), y[i]) * len(i) / len(x)).backward()
    >>> opt.step()  # doctest: +SKIP
    """

    def __init__(
        self,
        base_optimizer: torch.optim.Optimizer,
        gamma: float = 0.001,
        parts: int = 8,
        generator: torch.Generator | None = None,
    ) -> None:
        if not gamma >= 0 or parts < 1:
            raise ValueError(f"gamma={gamma}, parts={parts}: use gamma >= 0, such as 0.001, and parts >= 1")
        super().__init__(base_optimizer, generator)
        self.gamma, self.parts = gamma, parts

    @contextmanager
    def perturbed(self) -> Iterator[None]:
        """Weights plus noise of standard deviation ``gamma |w_filter|`` inside, exactly the weights after.

        A filter is a slice along the first axis; a 1-D parameter is one filter. Gradients accumulate.
        """
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        with self._snapshot.restored(params):
            with torch.no_grad():
                for p, noise in zip(params, self._normal_like(params), strict=True):
                    within = tuple(range(1, p.ndim)) or None
                    p.add_(noise * torch.linalg.vector_norm(p, dim=within, keepdim=True), alpha=self.gamma)
            yield
