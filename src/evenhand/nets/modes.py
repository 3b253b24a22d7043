"""A network's modes for a while: BatchNorm's running statistics left alone, or all of it in eval mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


@contextmanager
def frozen_statistics(net: nn.Module | None) -> Iterator[None]:
    """Inside, layers in train mode normalise by the batch, as before, and keep running statistics and counter."""
    layers = [] if net is None else [m for m in net.modules() if isinstance(m, _NormBase)]
    layers = [m for m in layers if m.training and m.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every submodule is back in its own mode, frozen ones too."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
