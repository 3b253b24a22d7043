"""Conditional BatchNorm, with a table of parameters for each class or with BigGAN's shared embedding.

Both compute ``(1 + gain_y) * BN(x) + bias_y`` and show all classes' residual gains and biases, (K, d) each, by
``class_parameters()``: what ``evenhand.pieces.spectral`` measures, penalises (gSR) or divides by (gSN).

>>> norm = ConditionalBatchNorm2d(16, num_classes=10)
>>> norm(torch.randn(4, 16, 8, 8), torch.tensor([0, 3, 3, 9])).shape
torch.Size([4, 16, 8, 8])
"""

from __future__ import annotations

from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from evenhand.nets.grouping import group_normalised

M = TypeVar("M", bound=nn.Module)


def spectral(module: M) -> M:
    """``module`` with its weight divided by an estimate of its largest singular value, refined at each forward pass.

    The vectors of the estimate are buffers: a checkpoint has them.
    """
    return cast(M, parametrizations.spectral_norm(module, eps=1e-6))


def settled_weight(module: nn.Module) -> Tensor:
    """The weight as the last forward pass saw it: spectrally normalised ones are not refined once more."""
    if not parametrize.is_parametrized(module, "weight"):
        return cast(Tensor, module.weight)
    chain = cast(nn.ModuleDict, module.parametrizations)["weight"]
    mode = chain.training
    try:
        return cast(Tensor, chain.eval()())
    finally:
        chain.train(mode)


class ConditionalBatchNorm2d(nn.Module):
    """Gains and biases from two (K, d) tables; ``condition`` holds the labels (N,).

    spectral_tables: the tables are spectrally normalised, as in generators that are so throughout;
    grouped: each class's vector is divided by its group spectral norm (the baseline gSN).
    """

    def __init__(
        self, channels: int, num_classes: int, *, spectral_tables: bool = False, grouped: bool = False
    ) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, eps=1e-4, affine=False)
        self.gain, self.bias = (nn.Embedding(num_classes, channels) for _ in range(2))
        for table in (self.gain, self.bias):
            orthogonal(table)
            if spectral_tables:
                spectral(table)
        self.grouped = grouped

    def class_parameters(self) -> tuple[Tensor, Tensor]:
        """Residual gain and bias of all classes, (K, d) each."""
        return settled_weight(self.gain), settled_weight(self.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        if self.grouped:
            gain, bias = (F.embedding(condition, group_normalised(t.weight)) for t in (self.gain, self.bias))
        else:
            gain, bias = self.gain(condition), self.bias(condition)  # (N, d)
        return _modulated(self.bn(x), gain, bias)


class SharedBatchNorm2d(nn.Module):
    """Gains and biases as linear maps of ``condition``, (N, e + c): the class's shared embedding, then noise.

    ``shared`` is the generator's embedding (K, e), which stays a part of the generator, not of this layer.
    """

    def __init__(self, channels: int, shared: nn.Embedding, noise: int, *, grouped: bool = False) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, eps=1e-4, affine=False)
        self.shared = (shared,)  # in a tuple, lest the embedding be registered once more for every layer
        inputs = shared.embedding_dim + noise
        self.gain, self.bias = (spectral(orthogonal(nn.Linear(inputs, channels, bias=False))) for _ in range(2))
        self.grouped = grouped

    def class_parameters(self) -> tuple[Tensor, Tensor]:
        """Residual gain and bias of all classes without noise, (K, d) each."""
        table = self.shared[0].weight  # (K, e)
        gain, bias = (F.linear(table, settled_weight(m)[:, : table.shape[1]]) for m in (self.gain, self.bias))
        return gain, bias

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        gain, bias = self.gain(condition), self.bias(condition)  # (N, d)
        if self.grouped:  # each sample has a vector of its own, because of the noise
            gain, bias = group_normalised(gain), group_normalised(bias)
        return _modulated(self.bn(x), gain, bias)


def orthogonal(module: M) -> M:
    """Orthogonal weight, zero bias: how the nets of these papers begin."""
    weight, bias = cast(Tensor, module.weight), getattr(module, "bias", None)
    if not weight.is_meta:
        nn.init.orthogonal_(weight)
        if isinstance(bias, Tensor):
            nn.init.zeros_(bias)
    return module


def _modulated(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    return torch.addcmul(bias[:, :, None, None], x, 1 + gain[:, :, None, None])
