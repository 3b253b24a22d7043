"""Extreme Hessian eigenvalues of each class's loss, SGD beside SAM, over the seeds of a reproduced recipe.

    python benchmarks/curvature.py runs/reproduce-fashion-lt ce-drw ce-drw-sam

Plain cross-entropy on the class's training images, eval mode, no augmentation; mean over seeds (and range).
"""

from __future__ import annotations

import datetime
import os
import shlex
import statistics
import sys
from pathlib import Path

from evenhand.measure.hessian import ClassSpectrum
from evenhand.run.curvature import of_run
from evenhand.run.opening import open_run

STEPS = 40


def cell(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    folder, variants = Path(sys.argv[1]), sys.argv[2:]
    found: dict[str, list[dict[str, ClassSpectrum]]] = {}
    counts: dict[str, int] = {}
    for variant in variants:
        for path in sorted(folder.glob(f"{variant}-[0-9]*")):
            run = open_run(path)
            data = run.data()
            counts = dict(zip(data.classes, data.counts, strict=True))
            found.setdefault(variant, []).append(of_run(run, data, steps=STEPS, max_samples=256))
    seeds = {variant: len(spectra) for variant, spectra in found.items()}
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, {STEPS} Lanczos steps, 1 probe, seeds {seeds}")
    print(f"\n    python {shlex.join(sys.argv)}\n")
    print("| class (images) | " + " | ".join(f"{v}: λ min | {v}: λ max | {v}: loss" for v in variants) + " |")
    print("|---" * (3 * len(variants) + 1) + "|")
    for name in sorted(counts, key=lambda n: -counts[n]):
        cells = []
        for variant in variants:
            spectra = [s[name] for s in found[variant]]
            cells += [cell([s.spectrum.minimum for s in spectra]), cell([s.spectrum.maximum for s in spectra])]
            cells.append(f"{statistics.fmean(s.loss for s in spectra):.3f}")
        print(f"| {name} ({counts[name]}) | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
