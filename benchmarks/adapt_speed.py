"""Time of one SDAT step ÷ the bare passes it needs, in the same run.

    OMP_NUM_THREADS=1 python benchmarks/adapt_speed.py [--repeats 20] [--device cpu]

Bare: two forward and backward passes of the classifier over source and target rows, one of the discriminator, and both
optimisers' steps, written plainly. All are interleaved, so that a busy machine slows them alike; a ratio is the median
over the repeats of the ratio within one. "CDAN" is one pass of everything, the method that SDAT wraps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from evenhand.data.loader import Batch, Loader
from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.methods import method_class
from evenhand.methods.protocol import Progress
from evenhand.pieces.domain import cdan_features, domain_loss, reverse_gradient

NETS: dict[str, dict[str, Any]] = {
    "small-cnn, 64 + 64 of 28 px": {"batch": 64, "size": 28, "bottleneck": 128, "net": {"name": "small-cnn"}},
    "mobilenet_v2, 8 + 8 of 64 px": {"batch": 8, "size": 64, "bottleneck": 256, "net": {"name": "mobilenet_v2"}},
    "vit-tiny, 16 + 16 of 32 px": {"batch": 16, "size": 32, "bottleneck": 128, "net": {"name": "vit-tiny"}},
}


def prepared(name: str, table: dict[str, Any], device: torch.device) -> tuple[Any, dict[str, Batch]]:
    """A method of that name and a batch for it."""
    given = dict(table)
    data = prepare_data(DataSettings(set="shapes", target="shapes-negative", size=given.pop("size"), augment=[]))
    cls = method_class(name)
    settings = cls.settings.model_validate(
        {"name": name, **given, "discriminator": {"hidden": 256}, "optim": {"lr": 1e-3}}
    )
    torch.manual_seed(0)
    method = cls(settings, data, seed=0, device=device)
    method.schedule(Progress(500, 10, 1000))
    feeds = method.feeds(data.streams)
    loaders = {key: Loader(data.streams[feed.stream], feed, seed=0, device=device) for key, feed in feeds.items()}
    return method, {key: next(iter(loader.iterate(0, 1))) for key, loader in loaders.items()}


def steps_of(table: dict[str, Any], device: torch.device) -> list[Callable[[], Any]]:
    """The bare passes, SDAT, CDAN; each with networks of its own."""
    bare, batch = prepared("domain-adversarial", table, device)
    x, y = torch.cat([batch["source"].x, batch["target"].x]), batch["source"].y
    net, critic, n = bare.net.train(), bare.adversary.net.train(), len(y)
    players = (bare.player.optimizer, bare.adversary.optimizer)

    def passes() -> None:
        features = net.features(x)
        F.cross_entropy(net.head(features)[:n], y).backward()
        players[0].zero_grad()
        features = net.features(x)
        logits = net.head(features)
        joint = cdan_features(features, logits.detach().softmax(1))
        guess = critic(reverse_gradient(joint, 0.5))
        (F.cross_entropy(logits[:n], y) + domain_loss(guess[:n], guess[n:])).backward()
        for optimizer in players:
            optimizer.step()
            optimizer.zero_grad()

    found: list[Callable[[], Any]] = [passes]
    for name in ("sdat", "domain-adversarial"):
        method, rows = prepared(name, table, device)
        found.append(lambda method=method, rows=rows: method.update(rows))
    return found


def timed(step: Callable[[], Any], device: torch.device) -> float:
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    step()
    wait()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="SDAT step time as a ratio")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {args.repeats} repeats\n")
    print("| network, rows | bare passes | SDAT | SDAT ÷ bare | CDAN ÷ bare |")
    print("|---|---|---|---|---|")
    for name, table in NETS.items():
        steps = steps_of(table, device)
        for step in steps * 3:
            step()
        rows = [[timed(step, device) for step in steps] for _ in range(args.repeats)]
        bare, sdat = (statistics.median(row[i] for row in rows) for i in (0, 1))
        ratios = [statistics.median(row[i] / row[0] for row in rows) for i in (1, 2)]
        print(f"| {name} | {bare:.1f} ms | {sdat:.1f} ms | {ratios[0]:.3f} | {ratios[1]:.3f} |")


if __name__ == "__main__":
    main()
