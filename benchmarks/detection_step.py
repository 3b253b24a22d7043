"""Time of a detector's step ÷ the bare passes it needs, in the same run.

    OMP_NUM_THREADS=1 python benchmarks/detection_step.py [--repeats 20] [--device cpu]

Bare passes are torchvision's own, with its losses, sampling and suppression, forward and backward, and the optimiser's
step: one over the labelled images for the source alone; besides one over the target's, whose features and regions feed
domain classifiers, for DA-Faster; and a second one over the labelled images for SDAT. All are interleaved, so that a
busy machine slows them alike; a ratio is the median over the repeats of the ratio within one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from evenhand.data.loader import Loader
from evenhand.methods.protocol import Progress
from evenhand.run.opening import build_method, read_data
from evenhand.run.recipe import load_recipe

ROWS = {
    "source only": "source-only",
    "DA-Faster": "da-faster",
    "SDAT on classification": "sdat",
    "SDAT on all losses": "sdat-all",
}


def prepared(variant: str, device: torch.device) -> tuple[Any, dict[str, Any]]:
    """A method of the recipe and a batch for it."""
    recipe = load_recipe(f"emoji-scenes:{variant}")
    data = read_data(recipe)
    method: Any = build_method(recipe, data, device, {})
    method.schedule(Progress(500, 200, 2400))
    feeds = method.feeds(data.streams)
    loaders = {key: Loader(data.streams[feed.stream], feed, seed=0, device=device) for key, feed in feeds.items()}
    return method, {key: next(iter(loader.iterate(0, 1))) for key, loader in loaders.items()}


def bare(variant: str, device: torch.device) -> Callable[[], None]:
    """torchvision's training passes, as many as the variant needs."""
    method, batch = prepared(variant, device)
    net: Any = method.net.train()
    images, objects = method.labelled(batch)
    wanted = [{"boxes": found.boxes.float(), "labels": found.labels + 1} for found in objects]

    def labelled() -> None:
        sum(net(images, wanted).values()).backward()

    def target() -> None:
        framed, _ = net.transform(batch["target"].x)
        guess = method.guess(framed)  # torchvision's own asks for boxes in training
        boxes = [some[: method.settings.net.regions] for some in method.propose(framed, guess)]
        vectors = net.roi_heads.box_head(net.roi_heads.box_roi_pool(guess.maps, boxes, framed.image_sizes))
        heads, levels = method.adversary.net, guess.maps.values()
        (heads.instance(vectors).mean() + sum(heads.image(level).mean() for level in levels)).backward()

    def passes() -> None:
        for _ in range(2 if "sdat" in variant else 1):
            method.player.optimizer.zero_grad()
            labelled()
        if "target" in batch:
            target()
        method.player.optimizer.step()

    return passes


def timed(step: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds: of processor on a CPU, where others may be at work, else of the clock."""
    on_gpu = device.type == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    clock = time.perf_counter if on_gpu else time.process_time
    wait()
    start = clock()
    step()
    wait()
    return 1e3 * (clock() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="a detector's step as a ratio")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {args.repeats} repeats\n")
    print("| method | bare passes | step | step ÷ bare | ÷ the source's step |")
    print("|---|---|---|---|---|")
    steps: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for title, variant in ROWS.items():
        method, batch = prepared(variant, device)
        steps[title] = bare(variant, device), lambda method=method, batch=batch: method.update(batch)
    for _ in range(3):
        for pair in steps.values():
            pair[0](), pair[1]()
    rows = [{title: [timed(one, device) for one in pair] for title, pair in steps.items()} for _ in range(args.repeats)]
    for title in steps:
        passes, step = (statistics.median(row[title][i] for row in rows) for i in (0, 1))
        ratio = statistics.median(row[title][1] / row[title][0] for row in rows)
        source = statistics.median(row[title][1] / row["source only"][1] for row in rows)
        print(f"| {title} | {passes:.0f} ms | {step:.0f} ms | {ratio:.3f} | {source:.2f} |")


if __name__ == "__main__":
    main()
