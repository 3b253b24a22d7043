"""Which loss to smooth, in seconds: scikit-learn's digits, upright to turned by 30 degrees (spec 09, section 10b).

    python benchmarks/rotated_digits.py --seeds 1 2 3 4 5

900 labelled images, 897 turned ones without labels, perceptrons of 64 units, 3,000 steps; a loop of one's own from
evenhand's pieces. Target accuracy and domain accuracy are means over the last 1,000 steps (every 20th); λ max and trace
are those of the source's cross-entropy at the end. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shlex
import statistics
import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from evenhand.measure.hessian import hessian_spectrum
from evenhand.measure.shift import domain_accuracy
from evenhand.pieces.domain import domain_loss, reversal_coefficient, reverse_gradient
from evenhand.pieces.sam import SAM

STEPS, TAIL, BATCH, LR = 3000, 1000, 64, 0.03
# name: adversary, what is smoothed, radius, label noise
MODES = {
    "source only": (False, "none", 0.0, 0.0),
    "source only, SAM 0.2": (False, "task", 0.2, 0.0),
    "DANN": (True, "none", 0.0, 0.0),
    "SDAT 0.1": (True, "task", 0.1, 0.0),
    "SDAT 0.2": (True, "task", 0.2, 0.0),
    "SDAT 0.5": (True, "task", 0.5, 0.0),
    "smooth adversary 0.5": (True, "adversary", 0.5, 0.0),
    "DANN, 40 % label noise": (True, "none", 0.0, 0.4),
    "SDAT 0.2, 40 % label noise": (True, "task", 0.2, 0.4),
}


def domains() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source images and labels, turned target images and labels; images (N, 64) in [0, 1]."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    angle = torch.deg2rad(torch.tensor(30.0))
    turn = torch.tensor([[angle.cos(), -angle.sin(), 0.0], [angle.sin(), angle.cos(), 0.0]])
    grid = F.affine_grid(turn.expand(len(x) - 900, 2, 3), [len(x) - 900, 1, 8, 8], align_corners=False)
    turned = F.grid_sample(x[900:].view(-1, 1, 8, 8), grid, align_corners=False).flatten(1)
    return x[:900], y[:900], turned, y[900:]


def perceptron(out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, out))


def train(mode: str, seed: int) -> list[float]:
    adversary, smoothed, rho, noise = MODES[mode]
    torch.manual_seed(seed)
    xs, ys, xt, yt = domains()
    ys = torch.where(torch.rand(len(ys)) < noise, torch.randint(10, ys.shape), ys)
    net, judge = perceptron(10), perceptron(1)
    features, head = net[:4], net[4]
    optimizers = [torch.optim.SGD(m.parameters(), lr=LR, momentum=0.9, weight_decay=1e-3) for m in (net, judge)]
    climb = {"task": SAM(optimizers[0], rho), "adversary": SAM(optimizers[1], rho)}.get(smoothed)

    def losses(x: Tensor, y: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        f = features(x)
        guess = judge(reverse_gradient(f, strength))[:, 0] if adversary else torch.zeros(len(x))
        return F.cross_entropy(head(f[:BATCH]), y), domain_loss(guess[:BATCH], guess[BATCH:])

    accuracies, told = [], []
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = LR * (1 + 0.001 * step) ** -0.75
            optimizer.zero_grad()
        own, other = torch.randint(len(xs), (BATCH,)), torch.randint(len(xt), (BATCH,))
        x, y, strength = torch.cat([xs[own], xt[other]]), ys[own], reversal_coefficient(step)
        if climb is not None:
            losses(x, y, 0.0)[smoothed == "adversary"].backward()
        with climb.ascent() if climb is not None else contextlib.nullcontext():
            net.zero_grad()
            judge.zero_grad()
            sum(losses(x, y, strength)).backward()
        for optimizer in optimizers:
            optimizer.step()
        if step >= STEPS - TAIL and step % 20 == 0:
            with torch.no_grad():
                accuracies.append(float((net(xt).argmax(1) == yt).float().mean()))
                told.append(domain_accuracy(judge(features(xs))[:, 0], judge(features(xt))[:, 0]))
    spectrum = hessian_spectrum(lambda: F.cross_entropy(net(xs), ys), net.parameters(), steps=40, probes=4)
    return [100 * statistics.fmean(accuracies), 100 * statistics.fmean(told), spectrum.maximum, spectrum.trace]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, seeds {given.seeds}\n")
    print(f"    python {shlex.join(sys.argv)}\n")
    print("| run | target accuracy | domain accuracy | λ max | trace |\n|:--|--:|--:|--:|--:|")
    for mode in MODES:
        columns = zip(*(train(mode, seed) for seed in given.seeds), strict=True)
        cells = [
            f"{statistics.fmean(c):.1f} ± {statistics.stdev(c):.1f}" if len(c) > 1 else f"{c[0]:.2f}" for c in columns
        ]
        if not MODES[mode][0]:
            cells[1] = "none"
        print(f"| {mode} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
