"""SDAT on all twelve pairs of Emoji-Home, the split of emoji varied with the seed.

    python benchmarks/emoji_pairs.py                    # every pair, with equal compute and SAM on the source alone
    python benchmarks/emoji_pairs.py --study rho        # four pairs: target accuracy over the radius
    python benchmarks/emoji_pairs.py --study noise      # four pairs: over the share of wrong source labels

Frozen MobileNetV2 features, 400 steps; a run takes seconds. Seed s trains with seed s on split s. Accuracies are kept
in results/kept/emoji-pairs.jsonl; repeat the command to go on. A difference is paired: of two rows on one pair and
seed. Its standard error is over seeds, of the means over pairs, since the pairs of one seed share their emoji.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import statistics
from pathlib import Path

import numpy as np
import torch

from evenhand.data.sets.catalogue import load
from evenhand.data.sets.shifted import STYLES
from evenhand.randomness import dice
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.reproduce import train_all
from table import Table

PAIRS = [*itertools.permutations(STYLES, 2)]
CYCLE = [*zip(STYLES, (*STYLES[1:], STYLES[0]), strict=True)]
LEDGER = Table("emoji-pairs", columns={}, rows={}, seeds=[])
ROWS = {
    "source-only": ("source-only", []),
    "source-only-sam": ("source-only-sam", []),
    "cdan": ("cdan", []),
    "cdan, twice the steps": ("cdan", ["run.steps=800"]),
    "cdan-sdat": ("cdan-sdat", []),
}
SDAT = {f"rho {rho}": ("cdan-sdat", [f"method.rho={rho}"]) for rho in (0.02, 0.05, 0.2, 0.5)}


def write_noisy(seed: int, noise: float, out: Path) -> dict[str, Path]:
    """A file for each style, split by that seed, with a share of the training labels replaced at random."""
    streams, files = load("emoji-home", split_seed=seed), {}
    for style in STYLES:
        files[style] = out / f"split-{seed}" / f"noise-{noise}" / f"{style}.npz"
        if files[style].exists():
            continue
        parts = {split: streams[f"{style}/{split}"] for split in ("train", "val", "test")}
        arrays = {f"x_{split}": s.fetch(torch.arange(len(s))).permute(0, 2, 3, 1) for split, s in parts.items()}
        arrays |= {f"y_{split}": s.labels.clone() for split, s in parts.items() if s.labels is not None}
        chance, told = dice(seed, "label noise"), arrays["y_train"]  # the same emoji in every style
        wrong = torch.rand(len(told), generator=chance) < noise
        told[wrong] = torch.randint(len(parts["train"].classes), told.shape, generator=chance)[wrong]
        files[style].parent.mkdir(parents=True, exist_ok=True)
        np.savez(files[style], classes=np.array(parts["train"].classes), **{k: v.numpy() for k, v in arrays.items()})
    return files


def recipe_for(
    row: tuple[str, list[str]], noise: float, pair: tuple[str, str], folder: Path, seed: int, out: Path
) -> Recipe:
    source, target = pair
    data = [f"data.source={json.dumps([source])}", f"data.target={target}", f"data.split_seed={seed}"]
    if noise:
        files = write_noisy(seed, noise, out)
        data = [f"data.set={json.dumps(str(files[source]))}", "data.source=[]"]
        data += [f"data.target={json.dumps(str(files[target]))}"]
    place = [f"run.folder={json.dumps(str(folder))}", f"run.seed={seed}", "run.resume=true", "run.progress=false"]
    return load_recipe(f"emoji-home:{row[0]}", [*data, *place, *row[1]])


def study(given: argparse.Namespace, rows: dict[str, tuple[str, list[str]]], pairs: list, noise: float) -> dict:
    """{row: (seeds, pairs) accuracies in %}; what is missing is trained, a seed at a time."""

    def digest(name: str, seed: int, pair: tuple[str, str]) -> str:
        clean = recipe_for(rows[name], 0.0, pair, given.out, seed, given.out)
        return clean.digest() + (f" {noise:.0%} noise" if noise else "")

    for seed in given.seeds:
        known, wanted = LEDGER.kept(), {}
        for pair, name in itertools.product(pairs, rows):
            if (key := digest(name, seed, pair)) not in known:
                folder = given.out / f"noise-{noise}" / "-".join(pair) / f"{''.join(filter(str.isalnum, name))}-{seed}"
                wanted[key, pair, name] = recipe_for(rows[name], noise, pair, folder, seed, given.out / "data")
        train_all([*wanted.values()], given.jobs)
        for (key, pair, name), recipe in wanted.items():
            measured = json.loads((Path(recipe.run.folder) / "measure.json").read_text())
            LEDGER.keep(f"{' to '.join(pair)}: {name}", seed, key, {"accuracy": round(measured["accuracy"], 6)})

    known = LEDGER.kept()
    return {
        name: np.array([[100 * known[digest(name, s, pair)]["accuracy"] for pair in pairs] for s in given.seeds])
        for name in rows
    }


def with_error(values: np.ndarray) -> str:
    """Mean ± standard error over seeds."""
    means = values.mean(1)
    return f"{means.mean():.1f} ± {statistics.stdev(means) / len(means) ** 0.5:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=["pairs", "rho", "noise"], default="pairs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/emoji-pairs"))
    given = parser.parse_args()
    given.out = given.out.resolve()
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, seeds {given.seeds}, study {given.study}\n")
    if given.study == "pairs":
        found = study(given, ROWS, PAIRS, 0.0)
        print("| pair | " + " | ".join(ROWS) + " | SDAT - CDAN |\n|:--|" + "--:|" * (len(ROWS) + 1))
        for column, pair in enumerate(PAIRS):
            gain = found["cdan-sdat"][:, [column]] - found["cdan"][:, [column]]
            cells = [f"{values[:, column].mean():.1f}" for values in found.values()]
            print(f"| {' to '.join(pair)} | " + " | ".join(cells) + f" | {with_error(gain)} |")
        print("| all | " + " | ".join(with_error(v) for v in found.values()) + " | |\n")
        for first, second in itertools.combinations(reversed(ROWS), 2):
            gain = found[first] - found[second]
            better = (gain.mean(0) > 0).sum()
            print(f"- {first} - {second}: {with_error(gain)}; better on {better} of {len(PAIRS)} pairs")
        return
    if given.study == "rho":
        rows = {"rho 0": ROWS["cdan"], **SDAT, "rho 0.1": ROWS["cdan-sdat"]}
        rows = dict(sorted(rows.items(), key=lambda row: float(row[0].split()[1])))
        tables = {"target accuracy": study(given, rows, CYCLE, 0.0)}
    else:
        rows = {name: ROWS[name] for name in ("source-only", "cdan", "cdan-sdat")}
        tables = {f"{noise:.0%} wrong labels": study(given, rows, CYCLE, noise) for noise in (0.0, 0.2, 0.4)}
    print("| | " + " | ".join(rows) + " |\n|:--|" + "--:|" * len(rows))
    base = "rho 0" if given.study == "rho" else "cdan"
    for name, found in tables.items():
        print(f"| {name} | " + " | ".join(with_error(v) for v in found.values()) + " |")
        print("| - " + base + " | " + " | ".join(with_error(v - found[base]) for v in found.values()) + " |")


if __name__ == "__main__":
    main()
