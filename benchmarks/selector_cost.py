"""Seconds and extra memory of each selector, on one core: random predictions of 12 classes, 256 features, 2% picked.

    python benchmarks/selector_cost.py 5000 20000 50000

Each selector runs in a process of its own, so that its peak is its own. Processor seconds are given beside those of the
clock, since machines are shared. Scores from a model (VAP, DeepFool) are not part of this: they cost passes, not picks.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.pieces import selection
from evenhand.pieces.submodular import submodular_select

CLASSES, FEATURES = 12, 256


@dataclass
class Case:
    probs: Tensor
    features: Tensor
    score: Tensor
    budget: int
    generator: torch.Generator


SELECTORS: dict[str, Callable[[Case], list[int]]] = {
    "random": lambda c: selection.random_select(len(c.probs), c.budget, generator=c.generator),
    "entropy": lambda c: selection.entropy_select(c.probs, c.budget),
    "margin": lambda c: selection.margin_select(c.probs, c.budget),
    "least confidence": lambda c: selection.confidence_select(c.probs, c.budget),
    "AADA": lambda c: selection.aada_select(c.probs, c.score, c.budget),
    "DFAL": lambda c: selection.dfal_select(c.score, c.budget),
    "VAP alone": lambda c: submodular_select(c.probs, c.score, c.budget, alpha=1, beta=0),
    "diversity alone": lambda c: submodular_select(c.probs, c.score, c.budget, alpha=0, beta=1),
    "S3VAADA (0.5, 0.3)": lambda c: submodular_select(c.probs, c.score, c.budget),
    "CoreSet": lambda c: selection.coreset_select(c.features, c.budget),
    "BADGE": lambda c: selection.badge_select(c.probs, c.features, c.budget, generator=c.generator),
    "representativeness alone": lambda c: submodular_select(c.probs, c.score, c.budget, alpha=0, beta=0),
    "k-means": lambda c: selection.kmeans_select(c.features, c.budget, generator=c.generator),
    "CLUE": lambda c: selection.clue_select(c.probs, c.features, c.budget, temperature=1.0, generator=c.generator),
}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(name: str, n: int) -> tuple[float, float, float]:
    """(seconds of the clock, of the processor, extra MB at the peak)"""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(n, CLASSES, generator=g)
    p, features = logits.softmax(1), torch.randn(n, FEATURES, generator=g)
    u = torch.special.entr(p).sum(1) + 0.1 * torch.rand(n, generator=g)  # VAP goes along with the entropy
    SELECTORS[name](Case(p[:200], features[:200], u[:200], 4, g))
    before, clock, busy = peak(), time.perf_counter(), time.process_time()
    picks = SELECTORS[name](Case(p, features, u, n // 50, g))
    assert len(set(picks)) == n // 50
    return time.perf_counter() - clock, time.process_time() - busy, peak() - before


def main() -> None:
    sizes = [int(a) for a in sys.argv[1:]] or [5000, 20000, 50000]
    where = f"{os.cpu_count()} cores of {platform.machine()}, of which one used, load {os.getloadavg()[0]:.0f}"
    print(f"{datetime.date.today()}, {where}, torch {torch.__version__}\n\n    python {shlex.join(sys.argv)}\n")
    print("| selector |" + "".join(f" N = {n:,}: s (processor s) | MB |" for n in sizes))
    print("|---" * (1 + 2 * len(sizes)) + "|", flush=True)
    for name in SELECTORS:
        cells = []
        for n in sizes:
            with multiprocessing.get_context("spawn").Pool(1) as worker:
                clock, busy, extra = worker.apply(one, (name, n))
            cells.append(f" {clock:.3g} ({busy:.3g}) | {extra:.0f} |")
        print(f"| {name} |" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
