"""StyleGAN2's operations: FIR resampling, modulated convolution, minibatch standard deviation.

The leaky ReLU is positively homogeneous, gain * lrelu(x) = lrelu(gain * x): its gain of sqrt(2), and the residual
blocks' sqrt(1/2), go into weights and biases, which are small, instead of one more pass over the images.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

GAIN = math.sqrt(2)  # of the leaky ReLU
EPS = 1e-8


def binomial() -> Tensor:
    """The filter [1, 3, 3, 1] in two dimensions, sum 1; a buffer of every block and layer, as in released files."""
    taps = torch.tensor([1.0, 3.0, 3.0, 1.0])
    return torch.outer(taps, taps) / 64


class _Gather(Function):
    """Depthwise correlation with constant taps. Backward is `_Spread`, whose backward is this: differentiating twice
    costs one pass more, where torch's double backward of a depthwise convolution costs more than ten on CPUs."""

    @staticmethod
    def forward(x: Tensor, taps: Tensor, stride: int, padding: int) -> Tensor:
        return F.conv2d(x, _depthwise(taps, x), stride=stride, padding=padding, groups=x.shape[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        _, taps, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(taps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _Spread.apply(grad, *ctx.saved_tensors, ctx.stride, ctx.padding), None, None, None


class _Spread(Function):
    """The transpose of `_Gather`."""

    @staticmethod
    def forward(x: Tensor, taps: Tensor, stride: int, padding: int) -> Tensor:
        return F.conv_transpose2d(x, _depthwise(taps, x), stride=stride, padding=padding, groups=x.shape[1])

    setup_context = _Gather.setup_context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _Gather.apply(grad, *ctx.saved_tensors, ctx.stride, ctx.padding), None, None, None


def _depthwise(taps: Tensor, x: Tensor) -> Tensor:
    return taps.to(x.dtype).expand(x.shape[1], 1, -1, -1)


def blur(x: Tensor, taps: Tensor, padding: int, gain: float = 1.0) -> Tensor:
    """Convolution of every channel with ``taps``, zeros outside: side + 2 * padding - 3."""
    return _Gather.apply(x, taps.flip(0, 1) * gain, 1, padding)


def downsample(x: Tensor, taps: Tensor) -> Tensor:
    """Filter, then every second pixel: half the side, which must be even."""
    return _Gather.apply(x, taps.flip(0, 1), 2, 1)


def upsample(x: Tensor, taps: Tensor) -> Tensor:
    """Zeros between the pixels, then the filter, times 4 to keep the brightness: twice the side."""
    return _Spread.apply(x, taps * 4, 2, 1)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A 1 x 1 convolution as one product over the channels; what comes out is channels_last."""
    return F.linear(x.movedim(1, -1), weight.flatten(1), bias).movedim(-1, 1)


def modulated_conv2d(
    x: Tensor, weight: Tensor, styles: Tensor, *, demodulate: bool = True, gain: float = 1.0, up: Tensor | None = None
) -> Tensor:
    """Convolution of sample n with weights ``w * styles[n]``, scaled to norm 1 for each output channel.

    A style scales input channels and its norm output channels, so that images are scaled instead of weights and the
    whole batch shares one convolution. up: taps of the filter, where the side doubles. x (N, I, H, W), styles (N, I).
    """
    y = x * styles[:, :, None, None]
    if up is not None:
        y = blur(F.conv_transpose2d(y, weight.transpose(0, 1), stride=2), up, padding=1, gain=4.0)
    elif weight.shape[2] == 1:
        y = pointwise(y, weight)
    else:
        y = F.conv2d(y, weight, padding=weight.shape[2] // 2)
    if not demodulate:
        return y
    energy = styles.square() @ weight.square().sum((2, 3)).t()  # (N, O)
    return y * ((energy + EPS).rsqrt() * gain)[:, :, None, None]


def normalised(x: Tensor) -> Tensor:
    """Each row (N, d) divided by the root of its mean square."""
    return x * (x.square().mean(1, keepdim=True) + EPS).rsqrt()


def minibatch_std(x: Tensor, group: int) -> Tensor:
    """One channel more: the standard deviation within a group, averaged over channels and places.

    Sample i is in group i mod (N / group). If the group's size does not divide N, the next smaller one that does.
    """
    size = next(g for g in range(min(group, len(x)), 0, -1) if len(x) % g == 0)
    grouped = x.unflatten(0, (size, -1))  # (size, N / size, C, H, W)
    spread = (grouped.var(0, correction=0) + EPS).sqrt().mean((1, 2, 3))  # (N / size,)
    return torch.cat([x, spread.repeat(size)[:, None, None, None].expand(-1, 1, *x.shape[2:])], 1)


def activated(x: Tensor) -> Tensor:
    """Leaky ReLU, in place: nothing that precedes it here needs its output. Of a view, whose gradient would be copied
    to and fro, a new tensor."""
    return F.leaky_relu(x, 0.2, inplace=not x._is_view())
