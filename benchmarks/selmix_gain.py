"""Time of SelMix's pair gain ÷ the naive form, at 10, 100 and 1000 classes.

    OMP_NUM_THREADS=1 python benchmarks/selmix_gain.py [--repeats 3] [--width 2048] [--device cpu]

The naive form is the sum over k and l of the definition, one pair at a time and vectorised within it (the released
code fills a K^4 tensor, which 1000 classes forbid). At 1000 classes it is timed on 200 of the million pairs and
scaled up. On the CPU the process's own time is taken, so that a busy machine matters little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from evenhand.measure.confusion import h_mean
from evenhand.pieces.selmix import pair_gain
from evenhand.pieces.slope import logit_slope


def naive(C: Tensor, Z: Tensor, W: Tensor, b: Tensor, pairs: list[tuple[int, int]], keep: float = 0.8) -> Tensor:
    A = logit_slope(h_mean, C)
    gains = []
    for i, j in pairs:
        mixed = keep * Z[i] + (1 - keep) * Z[j]
        change = -(W @ mixed + b).softmax(0)
        change[i] += 1
        moved = torch.outer(Z @ mixed + 1, change)  # (k, l) logits at every prototype
        gains.append((A * moved).sum())
    return torch.stack(gains)


def timed(work: Callable[[], Tensor], device: str) -> tuple[float, Tensor]:
    if device == "cpu":
        start = time.process_time()
        found = work()
        return time.process_time() - start, found
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = work()
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--repeats", type=int, default=3)
    ask.add_argument("--width", type=int, default=2048)
    ask.add_argument("--device", default="cpu")
    args = ask.parse_args()
    print("| classes | gain | naive | naive ÷ gain | largest difference |\n|---|---|---|---|---|")
    for K in (10, 100, 1000):
        chance = torch.Generator().manual_seed(0)
        Z = torch.randn(K, args.width, generator=chance, dtype=torch.float64).to(args.device) / args.width**0.5
        W, b = 3 * Z + 0.01, torch.zeros(K, dtype=torch.float64, device=args.device)
        C = ((Z @ W.T).softmax(1) + 1e-3 / K) / (K * (1 + 1e-3))
        every = [(i, j) for i in range(K) for j in range(K)]
        pairs = every[:: max(len(every) // 200, 1)] if K > 100 else every
        picked = torch.tensor(pairs).T
        fast, slow, worst = [], [], 0.0
        for _ in range(args.repeats + 1):
            taken, gain = timed(lambda C=C, Z=Z, W=W, b=b: pair_gain(h_mean, C, Z, W, bias=b), args.device)
            fast.append(taken)
            taken, wanted = timed(lambda C=C, Z=Z, W=W, b=b, pairs=pairs: naive(C, Z, W, b, pairs), args.device)
            slow.append(taken * len(every) / len(pairs))
            worst = max(worst, float((gain[picked[0], picked[1]] - wanted).abs().max() / gain.abs().max()))
        ratio = statistics.median(s / f for s, f in zip(slow[1:], fast[1:], strict=True))
        own, other = statistics.median(fast[1:]), statistics.median(slow[1:])
        print(f"| {K} | {own:.3g} s | {other:.3g} s | {ratio:.0f} | {worst:.0e} |", flush=True)


if __name__ == "__main__":
    main()
