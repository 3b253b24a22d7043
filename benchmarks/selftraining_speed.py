"""What a self-training step costs over the bare passes of its batch, and what validation feedback adds.

    OMP_NUM_THREADS=1 python benchmarks/selftraining_speed.py [--repeats 30] [--net small-cnn] [--batch 32]

Bare: forward and backward of the same concatenated batch [labelled; weak; strong] with cross-entropy, and SGD's step.
Everything is interleaved, so that a busy machine slows all alike; a ratio is the median over the repeats of the ratio
within one. Making the views is not part of a step; its share is shown. Feedback is one pass over validation.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from evenhand.data.loader import Batch, Loader
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods import method_class
from evenhand.methods.protocol import Progress

CPU = torch.device("cpu")
VARIANTS: dict[str, dict[str, Any]] = {
    "fixmatch": {"name": "fixmatch"},
    "csst, min recall": {"name": "csst"},
    "csst, coverage": {"name": "csst", "objective": "coverage"},
    "csst, weak view apart": {"name": "csst", "one_pass": False},
}


def build(data: Data, settings: dict[str, Any], arguments: argparse.Namespace) -> Any:
    cls = method_class(settings["name"])
    tree = {"batch": arguments.batch, "net": {"name": arguments.net}, **settings}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = cls(cls.settings(**tree), data, seed=0, device=CPU)
    method.schedule(Progress(0, 100, 1000))
    return method


def bare(data: Data, arguments: argparse.Namespace) -> Callable[[dict[str, Batch]], None]:
    method = build(data, VARIANTS["fixmatch"], arguments)
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.03, momentum=0.9, nesterov=True, fused=True)

    def step(batch: dict[str, Batch]) -> None:
        x = torch.cat([batch["labelled"].x, *batch["unlabelled"].views])
        cross_entropy(method.net.train()(x), torch.zeros(len(x), dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--net", default="small-cnn")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--set", default="shapes", help="data set; shapes needs no download")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = prepare_data(DataSettings(set=arguments.set, n_max=10, unlabelled_max=30, imbalance=10, val_per_class=10))
    methods = {name: build(data, settings, arguments) for name, settings in VARIANTS.items()}
    plain, listener = bare(data, arguments), methods["csst, min recall"]
    feeds = listener.feeds(data.streams)
    loaders = {k: Loader(data.streams[f.stream], f, seed=0, device=CPU) for k, f in feeds.items()}
    iterators = {k: loader.iterate(0, arguments.repeats + 3) for k, loader in loaders.items()}
    times: dict[str, list[float]] = {}
    for repeat in range(arguments.repeats + 3):
        batch: dict[str, Batch] = {}
        found = {"views": seconds(lambda batch=batch: batch.update({k: next(it) for k, it in iterators.items()}))}
        found["bare"] = seconds(lambda batch=batch: plain(batch))
        for name, method in methods.items():
            found[name] = seconds(lambda method=method, batch=batch: method.update(batch))
        found["feedback"] = seconds(lambda: listener.schedule(Progress(0, 100, 1000)))
        if repeat >= 3:  # warm
            for name, value in found.items():
                times.setdefault(name, []).append(value / found["bare"])
    val, every = len(data.streams["val"]), listener.set.feedback_every
    samples = (1 + 2 * 4) * arguments.batch
    print(f"{arguments.net}, {samples} samples a step, {arguments.repeats} repeats; over bare passes of the same batch")
    for name, ratios in times.items():
        print(f"{name:<24}{statistics.median(ratios):6.2f}")
    step, look = statistics.median(times["csst, min recall"]), statistics.median(times["feedback"])
    share = look / (every * step + look)
    print(f"feedback: {val} samples every {every} steps: {100 * share:.1f} % of steps and feedback together")
    print(f"          5,000 samples: {100 * (f := look * 5000 / val) / (every * step + f):.0f} %")


if __name__ == "__main__":
    main()
