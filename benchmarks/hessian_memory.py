"""Peak memory and time of `hessian_spectrum`: with a basis, without one, and with the data in chunks.

    python benchmarks/hessian_memory.py

Every line is a fresh process; memory is the growth of its peak resident set over building net and data. A
residual net (BatchNorm in eval mode, float32, random weights) sees 64 images of 32 x 32; one probe.

Measured once on one core of a busy machine (so the times are rough), at 16 and at 128 steps:
    47,210 weights    basis            105, 127 MB    112,  111 ms per product
                      no basis         109, 106 MB    131,   68
                      chunks, no basis  75,  76 MB    119,  192
    418,090 weights   basis            246, 410 MB    697,  418
                      no basis         213, 219 MB    409,  548
                      chunks, no basis 131, 132 MB   1020,  838
What is left without a basis is the graph of the 64 images, which chunks of 16 make smaller for one to three times
the time. At equal steps minimum, maximum and trace agree between the three to the four digits printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evenhand.measure.hessian import hessian_spectrum


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def residual_net(width: int) -> nn.Sequential:
    """Two stages; width 16 gives 47,210 weights, width 48 gives 418,090."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), Block(width),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), Block(2 * width), Block(2 * width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
    )  # fmt: skip


def peak() -> float:
    """Megabytes: Linux counts kilobytes, macOS bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def one(width: int, steps: int, mode: str) -> dict[str, float]:
    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(0)
    net = residual_net(width).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=source) / max(1, p[0].numel()) ** 0.5)
    x, y = torch.randn(64, 3, 32, 32, generator=source), torch.arange(64) % 10
    parts = [(lambda s=s: cross_entropy(net(x[s]), y[s]), len(s) / 64) for s in torch.arange(64).split(16)]
    before, start = peak(), time.perf_counter()
    spectrum = hessian_spectrum(
        parts if mode == "chunks, no basis" else lambda: cross_entropy(net(x), y),
        net.parameters(),
        steps=steps,
        probes=1,
        reorthogonalise=mode == "basis",
    )
    seconds = time.perf_counter() - start
    size = sum(p.numel() for p in net.parameters())
    return {
        "weights": size, "memory": peak() - before, "seconds": seconds,
        "minimum": spectrum.minimum, "maximum": spectrum.maximum, "trace": spectrum.trace,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=3, metavar=("WIDTH", "STEPS", "MODE"), help="measure in this process")
    chosen = parser.parse_args().one
    if chosen:
        print(json.dumps(one(int(chosen[0]), int(chosen[1]), chosen[2])))
        return
    print("| weights | steps | mode | MB | seconds | ms / product | minimum | maximum | trace |")
    print("|---|---|---|---|---|---|---|---|---|")
    for width in (16, 48):
        for mode in ("basis", "no basis", "chunks, no basis"):
            for steps in (16, 128):
                command = [sys.executable, __file__, "--one", str(width), str(steps), mode]
                row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                print(
                    f"| {row['weights']:,} | {steps} | {mode} | {row['memory']:.0f} | {row['seconds']:.1f} "
                    f"| {1000 * row['seconds'] / steps:.0f} | {row['minimum']:.4g} | {row['maximum']:.4g} "
                    f"| {row['trace']:.4g} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
