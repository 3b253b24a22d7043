"""Several processes as one, over ``torch.distributed``; without it every function is the plain identity.

Networks are not wrapped. A step may run two passes, two players or second derivatives, so the gradients are
averaged by hand just before they are used (:func:`average_gradients`), BatchNorm layers see the joint batch
(:func:`join_batchnorm`) and weighted means are shared by weight (:func:`share`). With these three, R processes
with 1/R of the batch each compute what one process computes with the joint batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from evenhand.errors import UserError


def start(device: torch.device) -> None:
    """Join the process group that ``torchrun`` describes; do nothing in an ordinary process."""
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")


def local_device(name: str) -> torch.device:
    """``auto`` is this process's GPU if there is one, else the CPU; ``cuda`` is this process's GPU."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        index, count = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if index >= count:
            raise UserError(f"{count} GPU(s) for more processes: start torchrun with --nproc-per-node {count}")
        return torch.device("cuda", index)
    if name == "auto":
        return torch.device("cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{name}' is not to be had here: use auto or cpu") from error
    return torch.device(name)


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_writer() -> bool:
    """Whether this process writes files and draws progress."""
    return rank() == 0


@contextmanager
def first_on_machine() -> Iterator[None]:
    yield


def barrier() -> None:
    if world() > 1:
        dist.barrier()


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        joint = x.clone()
        dist.all_reduce(joint)
        return joint

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> Tensor:
        return total(grads[0].contiguous())  # itself differentiable: second derivatives stay right


def total(x: Tensor) -> Tensor:
    """Sum over processes; gradients flow to every process's ``x``."""
    return _Sum.apply(x) if world() > 1 else x


def mean(x: Tensor) -> Tensor:
    """Mean over processes, for statistics (no gradient)."""
    return total(x.detach()) / world()


def share(weight: Tensor) -> Tensor:
    """This process's weight over the mean weight of all: turns local weighted means into the joint one."""
    return weight.detach() / mean(weight)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its mean over processes, in one flat message."""
    if world() == 1:
        return
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= world()
    for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))


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


def any_process(flag: bool) -> bool:
    """Whether the flag is up anywhere, so that all processes take the same branch."""
    if world() == 1:
        return flag
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
    raised = torch.tensor(float(flag), device=device)
    dist.all_reduce(raised)
    return bool(raised > 0)


class _JointBatchNorm(_BatchNorm):
    """BatchNorm over the joint batch of all processes (torch's SyncBatchNorm refuses the CPU)."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"BatchNorm needs at least 2 axes, got {input.ndim}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or world() == 1:
            return super().forward(input)
        axes = [0, *range(2, input.ndim)]
        shape = [1, -1] + [1] * (input.ndim - 2)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        count = total(x.new_full((), x.numel() / x.shape[1]))
        centre = total(x.sum(axes)) / count  # (C,)
        variance = total((x - centre.view(shape)).square().sum(axes)) / count  # (C,)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
            rate = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
            self.running_mean.lerp_(centre.detach(), rate)
            self.running_var.lerp_(variance.detach() * count / (count - 1), rate)
        y = (x - centre.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)


def join_batchnorm(net: nn.Module) -> nn.Module:
    """Make every BatchNorm of ``net`` use joint statistics; parameters, buffers and their names stay."""
    for module in net.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            module.__class__ = _JointBatchNorm
    return net
