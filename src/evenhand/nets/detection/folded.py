"""Frozen BatchNorm taken into the convolution before it: the same numbers without two passes over every map.

w * x scaled and shifted by constants is (scale w) * x + shift. Names and tensors of both layers stay, so weights load
and train as before; the scaled weights are made anew in each pass, for w may have moved.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import Tensor, nn


class FoldedConv(nn.Conv2d):
    """A convolution that does the work of the frozen norm behind it."""

    norm: tuple[Any]  # not a child: it keeps its own name beside the convolution

    def forward(self, x: Tensor) -> Tensor:
        (norm,) = self.norm
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        return self._conv_forward(x, self.weight * scale.view(-1, 1, 1, 1), norm.bias - norm.running_mean * scale)


def fold_norms(net: nn.Module) -> None:
    """Fold every frozen norm that directly follows a convolution without bias among a module's children."""
    from torchvision.ops import FrozenBatchNorm2d

    for parent in net.modules():
        for conv, norm in pairwise(parent.children()):
            if type(conv) is nn.Conv2d and conv.bias is None and isinstance(norm, FrozenBatchNorm2d):
                conv.__class__ = FoldedConv
                conv.norm = (norm,)  # type: ignore[assignment]
                norm.forward = _same


def _same(x: Tensor) -> Tensor:
    return x
