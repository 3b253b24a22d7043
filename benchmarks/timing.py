"""How long a step takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

CPU = torch.device("cpu")


def timed(step: Callable[[], object], device: torch.device = CPU) -> float:
    """Milliseconds: of processor on a CPU, where others may be at work, else of the clock."""
    on_gpu = device.type == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    clock = time.perf_counter if on_gpu else time.process_time
    wait()
    start = clock()
    step()
    wait()
    return 1e3 * (clock() - start)
