"""The Hessian of a loss as something to multiply by, and the Lanczos iteration over it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from evenhand.precision import without_tf32

Closure = Callable[[], Tensor]
Loss = Closure | Sequence[tuple[Closure, float]]
"""A scalar on fixed data; or (scalar, weight) pairs, summed, when the graph of all data exceeds memory."""


class Hessian:
    """`hessian @ v` for flat float64 v (P,); also the loss and its gradient at these weights."""

    def __init__(self, loss: Loss, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        frozen = [tuple(p.shape) for p in self.parameters if not p.requires_grad]
        if frozen or not self.parameters:
            what = f"requires_grad=False for shapes {frozen}" if frozen else "none"
            raise ValueError(f"parameters must be trainable tensors, got {what}; pass only those")
        self.sizes = [p.numel() for p in self.parameters]
        self.size = sum(self.sizes)
        self.device = self.parameters[0].device
        self.dtype = torch.promote_types(torch.float32, self.parameters[0].dtype)  # precision of the products
        self.parts = [(loss, 1.0)] if callable(loss) else list(loss)
        keep = len(self.parts) == 1
        self.loss, self.gradient = 0.0, torch.zeros(self.size, dtype=torch.float64, device=self.device)
        for closure, weight in self.parts:
            value, gradients = self._differentiate(closure, create_graph=keep)
            self.loss += weight * value
            self.gradient += weight * _flat(gradients)
        self.kept = gradients if keep else None
        if not (math.isfinite(self.loss) and self.gradient.isfinite().all()):
            raise ValueError(f"loss is {self.loss} or its gradient is not finite; the weights have diverged")

    def __matmul__(self, vector: Tensor) -> Tensor:
        pieces = zip(vector.split(self.sizes), self.parameters, strict=True)
        directions = [piece.view_as(p).to(p.dtype) for piece, p in pieces]
        total = torch.zeros_like(vector)
        for closure, weight in self.parts:
            gradients = self.kept or self._differentiate(closure, create_graph=True)[1]
            curved = [(g, d) for g, d in zip(gradients, directions, strict=True) if g.requires_grad]
            if curved:  # else the loss is linear
                outputs, seeds = zip(*curved, strict=True)
                with without_tf32():
                    product = torch.autograd.grad(
                        outputs, self.parameters, seeds, retain_graph=bool(self.kept), materialize_grads=True
                    )
                total += weight * _flat(product)
        return total

    def _differentiate(self, closure: Closure, create_graph: bool) -> tuple[float, tuple[Tensor, ...]]:
        # Fused attention kernels have no second derivative; the plain formula has.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), without_tf32():
            value = closure()
            if value.numel() != 1 or not value.requires_grad:
                raise ValueError(
                    f"loss must return one number that depends on parameters, got shape {tuple(value.shape)} "
                    f"with requires_grad={value.requires_grad}; average it, outside no_grad"
                )
            return value.item(), torch.autograd.grad(
                value.sum(), self.parameters, create_graph=create_graph, materialize_grads=True
            )


def lanczos(hessian: Hessian, start: Tensor, steps: int, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, weights, and each node's distance bound to an eigenvalue of H; fewer than `steps` when exact.

    `basis` (steps, P) receives the orthonormal vectors, each new one freed twice of them; (0, P) keeps none.
    """
    vector, previous = start / start.norm(), torch.zeros_like(start)
    diagonal: list[float] = []
    beside: list[float] = []  # beside[-1] is the norm left over by the last step
    scale = 0.0
    for step in range(steps):
        image = hessian @ vector
        diagonal.append(float(vector @ image))
        image -= diagonal[-1] * vector + (beside[-1] if beside else 0.0) * previous
        if len(basis):
            basis[step] = vector
            known = basis[: step + 1]
            for _ in range(2):
                image -= known.T @ (known @ image.to(known.dtype))
        beside.append(float(image.norm()))
        scale = max(scale, abs(diagonal[-1]) + beside[-1])
        if not math.isfinite(scale):
            raise ValueError(f"Hessian product not finite at Lanczos step {step}; is the loss twice smooth?")
        if beside[-1] <= 10 * torch.finfo(hessian.dtype).eps * scale:  # the space is invariant: T is exact
            beside[-1] = 0.0
            break
        previous, vector = vector, image / beside[-1]
    off = torch.diag(torch.tensor(beside[:-1], dtype=torch.float64), 1)
    nodes, vectors = torch.linalg.eigh(torch.diag(torch.tensor(diagonal, dtype=torch.float64)) + off + off.T)
    return nodes, vectors[0] ** 2, beside[-1] * vectors[-1].abs()


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1).double() for t in tensors])
