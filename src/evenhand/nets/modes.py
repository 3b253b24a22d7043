"""A network's modes for a while: BatchNorm's running statistics left alone, or all of it in eval mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


@contextmanager
def frozen_statistics(net: Any) -> Iterator[None]:
    """Inside, layers in train mode normalise by the batch, as before, and keep running statistics and counter."""
    layers = [m for m in net.modules() if isinstance(m, _NormBase)] if isinstance(net, nn.Module) else []
    layers = [m for m in layers if m.training and m.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


@contextmanager
def evaluating(net: Any) -> Iterator[None]:
    """Eval mode inside; afterwards every submodule is back in its own mode, frozen ones too.

    What is no module, such as a function, has no modes.
    """
    modes = {module: module.training for module in net.modules()} if isinstance(net, nn.Module) else {}
    for module in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
