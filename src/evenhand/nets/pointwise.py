"""Convolutions of single pixels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Without a bias, as before a BatchNorm."""
    kind = Thinned if stride > 1 and inputs < 16 else nn.Conv2d
    return kind(inputs, outputs, 1, stride, bias=False)


class Thinned(nn.Conv2d):
    """A strided 1 x 1 convolution that leaves pixels out first, and then convolves without a stride.

    With fewer than 16 channels in ``channels_last``, the plain form's gradient of the weights makes oneDNN 3.12
    (torch 2.13) write where it must not on CPUs with AVX-512, and the process dies. Wider ones are sound, and faster
    in the plain form.
    """

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.stride
        return F.conv2d(x[:, :, ::rows, ::columns], self.weight, self.bias)
