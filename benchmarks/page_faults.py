"""What freed memory costs when it goes back to the system: processor time with `keep_freed` ÷ without.

    python benchmarks/page_faults.py

Each case runs in a process of its own, on one thread, the two ways in turn, three times; the least time counts.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import torch
from torch.nn.functional import cross_entropy

from evenhand.nets import build_net
from evenhand.process import keep_freed

CASES = {
    "embed photographs, MobileNetV2, 32 at 224 px": ("mobilenet_v2", 32, 224, False),
    "fine-tune MobileNetV2, 32 at 96 px": ("mobilenet_v2", 32, 96, True),
    "train ResNet-32, 128 at 32 px": ("resnet32", 128, 32, True),
    "train WRN-28-2, 64 at 32 px": ("wrn28-2", 64, 32, True),
}


def processor_time(name: str, batch: int, side: int, training: bool, steps: int = 5) -> tuple[float, int]:
    """Seconds of a step, and its page faults."""
    net = build_net(name, num_classes=10).to(memory_format=torch.channels_last).train(training)
    x = torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    y = torch.zeros(batch, dtype=torch.long)

    def step() -> None:
        with torch.set_grad_enabled(training):
            loss = cross_entropy(net(x), y)
        if training:
            loss.backward()

    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(steps):
        step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds / steps, (after.ru_minflt - before.ru_minflt) // steps


def main() -> None:
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        if sys.argv[1] == "keep" and not keep_freed():
            sys.exit("memory cannot be kept here: another C library, or MALLOC_... is set")
        print(*processor_time(*CASES[sys.argv[2]]))
        return
    print("| case | time kept ÷ not | page faults a step, not kept | kept |\n|:--|--:|--:|--:|")
    for case in CASES:
        found: dict[str, list[tuple[float, int]]] = {"plain": [], "keep": []}
        for how in ("plain", "keep") * 3:
            said = subprocess.run([sys.executable, __file__, how, case], stdout=subprocess.PIPE, text=True, check=True)
            seconds, faults = said.stdout.split()
            found[how].append((float(seconds), int(faults)))
        (plain, many), (kept, few) = min(found["plain"]), min(found["keep"])
        print(f"| {case} | {kept / plain:.2f} | {many:,} | {few:,} |", flush=True)


if __name__ == "__main__":
    main()
