"""Time of a StyleGAN2's steps with noise, twins, gSR or augmentation ÷ the baseline's, in the same run.

    OMP_NUM_THREADS=1 python benchmarks/stylegan2_step.py [--repeats 5] [--device cpu]

The small recipe as it is (`noisytwins-fashion`: 32 channels at 32 pixels, batch 32), 16 steps each: as often as R1
comes once. All are interleaved, so that a busy machine slows them alike; a ratio is the median over the repeats of the
ratio within one. Process time on CPUs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch

from evenhand.data.loader import Loader
from evenhand.methods.protocol import Progress
from evenhand.run.opening import build_method, read_data
from evenhand.run.recipe import load_recipe
from timing import timed

ROWS = {
    "StyleGAN2": "stylegan2",
    "+ noise": "noise",
    "+ twins": "twins",
    "NoisyTwins": "noisy-twins",
    "+ gSR": "gsr",
    "+ DiffAugment": "diffaugment",
    "+ ADA": "ada",
}
STEPS = 16


def steps_of(variant: str, device: torch.device) -> Callable[[], None]:
    """Goes on with the variant's training, a few steps at a time."""
    unjudged = ["method.measure.features=mobilenet_v2"]  # or an annotator would be needed
    recipe = load_recipe(f"noisytwins-fashion:{variant}", unjudged)
    data = read_data(recipe)
    method: Any = build_method(recipe, data, device, {})
    feed = method.feeds(data.streams)["labelled"]
    (batch,) = Loader(data.streams[feed.stream], feed, seed=0, device=device).iterate(0, 1)
    counted = itertools.count()

    def steps() -> None:
        for step in itertools.islice(counted, STEPS):
            method.schedule(Progress(step, 200, 6000))
            method.update({"labelled": batch})

    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description="StyleGAN2's step time as ratios")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    rows = {name: steps_of(variant, device) for name, variant in ROWS.items()}
    for steps in rows.values():
        timed(steps, device)
    times = [{name: timed(steps, device) / STEPS for name, steps in rows.items()} for _ in range(args.repeats)]
    print(f"torch {torch.__version__}, {args.device}, {args.repeats} × {STEPS} steps\n")
    print("| | ms a step | ÷ StyleGAN2 |\n|---|---|---|")
    for name in rows:
        ratio = statistics.median(one[name] / one["StyleGAN2"] for one in times)
        print(f"| {name} | {statistics.median(one[name] for one in times):.0f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
