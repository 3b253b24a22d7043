"""StyleGAN2's operations as `evenhand.nets` has them ÷ as they are usually written, in the same run.

    OMP_NUM_THREADS=1 python benchmarks/stylegan2_ops.py [--repeats 7] [--device cpu]

Modulated convolution: the batch of 16 shares one convolution ÷ a weight for each sample and groups = N. Filter: twice
differentiable by its own transpose ÷ torch's depthwise convolution. Process time on CPUs; both are interleaved, and a
ratio is the median over the repeats of the ratio within one. "Twice" is the gradient of a gradient's square, as in R1
and path length.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.nets.stylegan2_ops import binomial, blur, modulated_conv2d

Operation = Callable[..., Tensor]


def grouped(x: Tensor, weight: Tensor, styles: Tensor) -> Tensor:
    own = weight[None] * styles[:, None, :, None, None]  # (N, O, I, 3, 3)
    own = own * (own.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    y = F.conv2d(x.reshape(1, -1, *x.shape[2:]), own.flatten(0, 1), padding=1, groups=len(x))
    return y.view(len(x), -1, *y.shape[2:])


def depthwise(x: Tensor) -> Tensor:
    taps = binomial().to(x).expand(x.shape[1], 1, -1, -1)
    return F.conv2d(x, taps, padding=2, groups=x.shape[1])


def once(operation: Operation, inputs: list[Tensor], depth: int) -> None:
    if depth == 0:
        with torch.no_grad():
            operation(*inputs)
        return
    loss = operation(*inputs).square().sum()
    gradients = torch.autograd.grad(loss, inputs, create_graph=depth == 2)
    if depth == 2:
        torch.autograd.grad(gradients[0].square().sum(), inputs)


def seconds(operation: Operation, inputs: list[Tensor], depth: int) -> float:
    clock = time.perf_counter if inputs[0].is_cuda else time.process_time  # other people's work does not count
    start = clock()
    once(operation, inputs, depth)
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    return clock() - start


def compare(title: str, ours: Operation, usual: Operation, inputs: list[Tensor], repeats: int) -> None:
    for depth, name in enumerate(("forward", "and backward", "and twice")):
        pairs = []
        for number in range(repeats + 2):
            pair = (seconds(ours, inputs, depth), seconds(usual, inputs, depth))
            pairs += [pair] if number >= 2 else []  # the first two warm up
        ratio = statistics.median(a / b for a, b in pairs)
        mine, theirs = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        print(f"{title:22} {name:14} ours {mine:8.1f} ms   usual {theirs:8.1f} ms   ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.get_num_threads()} thread(s), torch {torch.__version__}")
    for channels, side in ((64, 32), (64, 16), (128, 8), (512, 8)):
        shapes = ((16, channels, side, side), (channels, channels, 3, 3), (16, channels))
        inputs = [torch.randn(*shape, device=options.device, requires_grad=True) for shape in shapes]
        compare(f"modulated {channels} x {side} px", modulated_conv2d, grouped, inputs, options.repeats)
    x, taps = torch.randn(16, 64, 32, 32, device=options.device, requires_grad=True), binomial().to(options.device)
    compare("filter 64 x 32 px", lambda x: blur(x, taps, 2), depthwise, [x], options.repeats)


if __name__ == "__main__":
    main()
