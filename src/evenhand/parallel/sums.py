"""Sums and stacks over processes, as often differentiable as what is around them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from evenhand.parallel.group import rank, world


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        joint = x.clone()
        dist.all_reduce(joint)
        return joint

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> Tensor:
        return total(grads[0].contiguous())  # itself differentiable: second derivatives stay right


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x)
        return torch.stack(parts)

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> Tensor:
        return total(grads[0].contiguous())[rank()]


def total(x: Tensor) -> Tensor:
    """Sum over processes; gradients flow to every process's ``x``."""
    return _Sum.apply(x) if world() > 1 else x


def stack(x: Tensor) -> Tensor:
    """``x`` of every process, (world, ...); one message, and one for its gradients, which flow to every process."""
    return _Stack.apply(x.contiguous()) if world() > 1 else x[None]


def gather(x: Tensor) -> Tensor:
    """Rows of every process, one process after the other; row counts may differ."""
    if world() == 1:
        return x
    rows = torch.zeros(world(), dtype=torch.long, device=x.device)
    rows[rank()] = len(x)
    dist.all_reduce(rows)
    longest = int(rows.max())
    padded = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])])
    parts = [torch.empty_like(padded) for _ in range(world())]
    dist.all_gather(parts, padded.contiguous())
    return torch.cat([part[:n] for part, n in zip(parts, rows.tolist(), strict=True)])
