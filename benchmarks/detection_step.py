"""Time of a detector's step ÷ the bare passes it needs, in the same run.

    OMP_NUM_THREADS=1 python benchmarks/detection_step.py [--repeats 20] [--device cpu]

Bare is, forward and backward, with the optimiser's step: for the source alone torchvision's own training pass; for
DA-Faster one pass over the labelled and one over the target's images, each with one look of both domain classifiers at
maps and regions; for SDAT the labelled pass a second time. All are interleaved, so that a busy machine slows them
alike; a ratio is the median over the repeats of the ratio within one.
"""

from __future__ import annotations

import argparse
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
    """The passes that the variant needs, plainly."""
    method, batch = prepared(variant, device)
    net: Any = method.net.train()
    images, objects = method.labelled(batch)
    wanted = [{"boxes": found.boxes.float(), "labels": found.labels + 1} for found in objects]
    step, clear = method.player.optimizer.step, method.player.optimizer.zero_grad

    def alone() -> None:
        clear()
        sum(net(images, wanted).values()).backward()
        step()

    def told(maps: dict[str, torch.Tensor], proposals: list[torch.Tensor], sizes: Any) -> torch.Tensor:
        boxes = [some[: method.settings.net.regions] for some in proposals]
        vectors, heads = method.vectors(maps, boxes, sizes), method.adversary.net
        return heads.instance(vectors).mean() + sum(heads.image(level).mean() for level in maps.values())

    def adapted() -> None:
        if "sdat" in variant:
            clear()
            first = method.forward(images, objects)
            (first.classification + first.regression).backward()
        clear()
        seen = method.forward(images, objects)
        framed, _ = net.transform(batch["target"].x)
        guess = method.guess(framed)
        theirs = told(guess.maps, method.propose(framed, guess), framed.image_sizes)
        ours = told(seen.maps, seen.regions.proposals, seen.sizes)
        (seen.classification + seen.regression + ours + theirs).backward()
        step()

    return adapted if "target" in batch else alone


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
