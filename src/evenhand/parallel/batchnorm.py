"""BatchNorm in several processes: over the joint batch, or by each process's part with statistics that agree."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from evenhand.parallel import group
from evenhand.parallel.gradients import average_gradients
from evenhand.parallel.sums import stack


class JointBatchNorm(_BatchNorm):
    """BatchNorm over the joint batch on CPUs, which torch's SyncBatchNorm refuses; twice differentiable."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"BatchNorm needs at least 2 axes, got {input.ndim}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or group.world() == 1:
            return super().forward(input)
        axes = [0, *range(2, input.ndim)]
        shape = [1, -1] + [1] * (input.ndim - 2)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        rows = x.numel() // x.shape[1]
        own = x.sum(axes) / max(rows, 1)  # (C,)
        spread = (x - own.view(shape)).square().sum(axes)  # (C,)
        parts = stack(torch.cat([own.new_tensor([rows]), own, spread]))  # (R, 1 + 2C), the only message
        counts, centres, spreads = parts[:, :1].detach(), *parts[:, 1:].chunk(2, 1)
        count = counts.sum()
        centre = (counts * centres).sum(0) / count
        # Chan et al. 1983: no large squares cancel
        variance = (spreads + counts * (centres - centre).square()).sum(0) / count
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


def join_batchnorm(net: nn.Module, how: group.Joining | None = None) -> nn.Module:
    """``joint``: every BatchNorm of ``net`` uses joint statistics; parameters, buffers and their names stay.

    ``local``: each process normalises by its own part, without a message; who steps sends ``local_statistics``
    with the gradients, so that running statistics are the processes' mean. ``None``: as ``start`` was told.
    """
    if (how or group.joining) == "joint":
        for module in net.modules():
            if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                module.__class__ = nn.SyncBatchNorm if group.on_gpus() else JointBatchNorm
                module.process_group = None  # type: ignore[assignment]  # all of them
    return net


def local_statistics(net: nn.Module) -> list[Tensor]:
    """Running means and variances that each process moves by its own part of the batch."""
    if group.world() == 1:
        return []
    layers = [m for m in net.modules() if isinstance(m, _BatchNorm)]
    own = [m for m in layers if not isinstance(m, JointBatchNorm | nn.SyncBatchNorm)]
    return [s for m in own for s in (m.running_mean, m.running_var) if s is not None]


def average_statistics(net: nn.Module) -> None:
    """Give local running statistics their mean, after passes without a step; nothing where they are joint."""
    average_gradients((), local_statistics(net))
