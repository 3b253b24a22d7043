"""StyleGAN2's equalised layers, which keep their weights at unit variance and scale them at run time, so that Adam
moves all layers alike; and the mapping network, which both players have."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.given import as_tensor
from evenhand.nets.stylegan2_ops import GAIN, activated, binomial, blur, downsample, normalised, pointwise

MAPPING_RATE = 0.01  # of the mapping networks' learning rate
LOWEST = 4  # the side at which images begin and the critic ends


class Linear(nn.Module):
    """Equalised linear layer; ``rate`` multiplies its learning rate."""

    def __init__(self, inputs: int, outputs: int, *, active: bool = False, rate: float = 1.0, bias: float = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / rate)
        self.bias = nn.Parameter(torch.full((outputs,), float(bias)))
        self.active, self.rate, self.scale = active, rate, rate / math.sqrt(inputs)

    def forward(self, x: Tensor) -> Tensor:
        gain = GAIN if self.active else 1.0
        y = torch.addmm(self.bias * (self.rate * gain), x, self.weight.t(), alpha=self.scale * gain)
        return activated(y) if self.active else y


class ClassEmbedding(Linear):
    """The equalised linear layer of one-hot labels, as a table: labels (N,) -> (N, d)."""

    def forward(self, labels: Tensor) -> Tensor:
        return F.embedding(labels, self.weight.t()) * self.scale + self.bias

    def class_parameters(self) -> tuple[Tensor, None]:
        """The embeddings of all classes, (K, d), for gSR; there is no second table."""
        return self.weight.t() * self.scale + self.bias, None


class Conv(nn.Module):
    """Equalised convolution, leaky ReLU if ``active``; ``down`` halves the side, after the filter."""

    resample_filter: Tensor

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, active: bool = True, bias: bool = True, down: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.register_buffer("resample_filter", binomial())
        self.active, self.down, self.kernel = active, down, kernel
        self.scale = 1 / math.sqrt(inputs * kernel**2)

    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        gain *= GAIN if self.active else 1.0
        stride, padding = 1, self.kernel // 2
        if self.down and self.kernel == 1:
            x = downsample(x, self.resample_filter)
        elif self.down:
            x, stride, padding = blur(x, self.resample_filter, padding + 1), 2, 0
        weight, bias = self.weight * (self.scale * gain), self.bias * gain if self.bias is not None else None
        y = pointwise(x, weight, bias) if self.kernel == 1 else F.conv2d(x, weight, bias, stride, padding)
        return activated(y) if self.active else y


class Mapping(nn.Module):
    """Linear layers on noise and embedded label, each normalised; ``latent`` 0: on the label alone.

    ``embed`` takes labels (N,) and its output is normalised afterwards: what is added to it is noise on the class.
    """

    def __init__(self, latent: int, num_classes: int, width: int, layers: int) -> None:
        super().__init__()
        if num_classes < 0 or layers < 1 or latent + num_classes < 1:
            given = f"latent={latent}, num_classes={num_classes}, {layers} mapping layers"
            raise ValueError(f"{given}: noise or classes are needed, and at least one layer")
        self.latent, self.num_classes = latent, num_classes
        if num_classes:
            self.embed = ClassEmbedding(num_classes, width)
        sizes = [latent + (width if num_classes else 0)] + [width] * layers
        self.names = [f"fc{number}" for number in range(layers)]
        for name, (inputs, outputs) in zip(self.names, pairwise(sizes), strict=True):
            self.add_module(name, Linear(inputs, outputs, active=True, rate=MAPPING_RATE))

    def styles(self, z: Tensor | None, labels: Any, count: int | None = None) -> Tensor:
        """Of noise and labels; ``count`` labels are expected where there is no noise to count."""
        parts = [self._of_noise(z)] if z is not None else []
        if self.num_classes:
            parts.append(self._of_class(labels, count if z is None else len(z)))
        return self._through(torch.cat(parts, 1), self.names)

    def _of_noise(self, z: Tensor) -> Tensor:
        if z.ndim != 2 or z.shape[1] != self.latent:
            raise ValueError(f"z has shape {tuple(z.shape)}; this network takes (N, {self.latent})")
        return normalised(z.to(next(self.parameters()).dtype))

    def _of_class(self, labels: Any, count: int | None) -> Tensor:
        return normalised(self.embed(self._checked(labels, count)))

    def _through(self, x: Tensor, names: list[str]) -> Tensor:
        for name in names:
            x = self.get_submodule(name)(x)
        return x  # (N, width)

    def _checked(self, labels: Any, count: int | None) -> Tensor:
        """(N,) classes on this network's device; values are checked on the CPU only, where that costs no waiting."""
        if labels is None:
            raise ValueError(f"labels are missing; this network has {self.num_classes} classes: give (N,) ints")
        y = as_tensor(labels, device=self.embed.weight.device)
        if y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool or (count is not None and len(y) != count):
            wanted = f"({'N' if count is None else count},) ints"
            raise ValueError(f"labels of shape {tuple(y.shape)} and type {y.dtype}: expected {wanted}")
        if y.device.type == "cpu" and len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes:
            wrong = int(y.min()) if int(y.min()) < 0 else int(y.max())
            raise ValueError(f"labels hold {wrong}: classes run from 0 to {self.num_classes - 1}")
        return y.long()


def widths_of(size: int, base: int, widest: int) -> dict[int, int]:
    """Channels of each resolution, 4 to ``size``."""
    if size < 2 * LOWEST or size & (size - 1):
        lower = max(2 * LOWEST, 1 << (max(size, 1).bit_length() - 1))
        raise ValueError(f"size {size} is no power of two from 8 on; resize the images to {lower} or {2 * lower}")
    if base < size or widest < 1:
        raise ValueError(f"base {base} and widest {widest} leave no channels at {size} pixels; base must be >= {size}")
    return {2**power: min(base // 2**power, widest) for power in range(2, size.bit_length())}
