"""Time of one SAM step ÷ two bare forward/backward passes + one base step, in the same run.

    OMP_NUM_THREADS=1 python benchmarks/sam_step.py [--repeats 30] [--device cpu]

The reference is SAM written plainly, a Python loop over the parameters. All are interleaved, so that a busy
machine slows them alike; a ratio is the median over the repeats of the ratio within one. "Own work" is the
time of leaving and returning to w, without passes and base step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from evenhand.pieces.sam import SAM


def convnet() -> tuple[nn.Module, Tensor]:
    """18 convolutions with BatchNorm, 32 channels: little arithmetic per parameter tensor."""
    layers: list[nn.Module] = []
    for width in [3] + [32] * 17:
        layers += [nn.Conv2d(width, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*layers, *head), torch.randn(32, 3, 16, 16)


def perceptron() -> tuple[nn.Module, Tensor]:
    """8.5 million parameters and a batch of 128: much memory to move per arithmetic."""
    hidden = [m for _ in range(8) for m in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(1024, 10)), torch.randn(128, 1024)


Step = tuple[Callable[[], None], Callable[[], None]]  # what comes before, what is timed


class Plain:
    """SAM as one would write it first: per parameter, with fresh memory each step."""

    def __init__(self, base: torch.optim.Optimizer, rho: float) -> None:
        self.base, self.rho = base, rho

    @torch.no_grad()
    def climb(self) -> None:
        params = [p for group in self.base.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        self.old = [(p, p.clone()) for p in params]
        for p in params:
            p.add_(p.grad * (self.rho / (norm + 1e-12)))
        self.base.zero_grad()

    @torch.no_grad()
    def back(self) -> None:
        for p, old in self.old:
            p.copy_(old)


def nothing() -> None:
    pass


def steps_of(make: Callable[[], tuple[nn.Module, Tensor]], device: str) -> list[Step]:
    """Two bare passes, SAM, plain SAM, and the last two's own work; each with its own copy of the network."""

    def prepare() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
        torch.manual_seed(0)
        net, x = make()
        net, x = net.to(device), x.to(device)
        y = torch.randint(10, (len(x),), device=device)
        base = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        return net, base, lambda: nn.functional.cross_entropy(net(x), y).backward()

    _, bare_base, bare_pass = prepare()
    net, base, sam_pass = prepare()
    _, plain_base, plain_pass = prepare()
    sam, plain = SAM(base, rho=0.05), Plain(plain_base, rho=0.05)

    def bare() -> None:
        bare_pass()
        bare_base.zero_grad()
        bare_pass()
        bare_base.step()
        bare_base.zero_grad()

    def ours() -> None:
        sam_pass()
        with sam.ascent(net):
            sam_pass()
        sam.step()
        sam.zero_grad()

    def reference() -> None:
        plain_pass()
        plain.climb()
        plain_pass()
        plain.back()
        plain_base.step()
        plain_base.zero_grad()

    def ours_alone() -> None:
        with sam.ascent(net):
            pass

    def reference_alone() -> None:
        plain.climb()
        plain.back()

    return [
        (nothing, bare),
        (nothing, ours),
        (nothing, reference),
        (sam_pass, ours_alone),
        (plain_pass, reference_alone),
    ]


def timed(step: Step, device: str) -> float:
    before, work = step
    wait = torch.cuda.synchronize if device.startswith("cuda") else nothing
    before()
    wait()
    start = time.perf_counter()
    work()
    wait()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="SAM step time as a ratio")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {args.device}, {threads} threads, {args.repeats} repeats\n")
    print("| network | tensors | parameters | two passes + step | SAM | plain SAM | own work | plain's own work |")
    print("|---|---|---|---|---|---|---|---|")
    for make in (convnet, perceptron):
        sizes = [p.numel() for p in make()[0].parameters()]
        steps = steps_of(make, args.device)
        for step in steps * 3:
            timed(step, args.device)
        rows = [[timed(step, args.device) for step in steps] for _ in range(args.repeats)]
        ratios = [statistics.median(row[i] / row[0] for row in rows) for i in (1, 2)]
        base, own, plain = (statistics.median(row[i] for row in rows) for i in (0, 3, 4))
        print(f"| {make.__name__} | {len(sizes)} | {sum(sizes):,} | {base:.1f} ms ", end="")
        print(f"| {ratios[0]:.3f} | {ratios[1]:.3f} | {own:.2f} ms | {plain:.2f} ms |")


if __name__ == "__main__":
    main()
