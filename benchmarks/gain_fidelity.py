"""Do SelMix' gains come true? Correlation of predicted and true change of the metric, from runs of the tables.

    python benchmarks/gain_fidelity.py runs/tables/*/selmix-*

At five moments of a run, 16 pairs from the smallest gain to the largest are tried: one small step of the head each, and
the metric of soft predictions before and after it (``pair_fidelity.npz``). Means of a row; the worst run in brackets.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np


def main() -> None:
    found, steps = defaultdict(list), {}
    for folder in map(Path, sys.argv[1:]):
        if (folder / "pair_fidelity.npz").is_file():
            row = re.sub(r"-[0-9a-f]{8}$", "", folder.name)
            steps[row] = json.loads((folder / "measure.json").read_text())["selmix"]["shown"]
            tried = np.load(folder / "pair_fidelity.npz")["pair_fidelity"]  # (T, P, 3): predicted, soft, hard
            found[row].append([np.corrcoef(pairs[:, 0], pairs[:, 1])[0, 1] for pairs in tried])
    for row, runs in found.items():
        cells = [f"{m:.2f} ({w:.2f})" for m, w in zip(np.mean(runs, 0), np.min(runs, 0), strict=True)]
        print(f"| {row} | {len(runs)} | " + " | ".join(cells) + f" | at steps {', '.join(map(str, steps[row]))}")


if __name__ == "__main__":
    main()
