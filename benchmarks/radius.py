"""Tail recall over SAM's radius, on validation: the curve from which the recipes' radius was chosen.

    python benchmarks/radius.py fashion-lt --seeds 100 101
    python benchmarks/radius.py cifar10-lt-small --seeds 100 --set data.n_max=4900 --set data.val_per_class=100

Radii are shares of the weight norm; 0 is plain SGD. Only the validation split is read here. Resumable.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import statistics
import sys
from pathlib import Path

from evenhand.report.charts.plots import plot_line_with_band
from evenhand.run.measuring import measure
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.reproduce import train_all

SHARES = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)


def recipe_for(name: str, variant: str, share: float, seed: int, overrides: list[str], out: Path) -> Recipe:
    sam = [f"method.optim.rho={share}", "method.optim.rho_relative=true"]
    chosen = sam if share else ["method.optim.name=sgd"]
    folder = out / f"{variant}-{share}-{seed}"
    place = [f"run.seed={seed}", f'run.folder="{folder}"', "run.resume=true"]
    return load_recipe(f"{name}:{variant}", [*overrides, *chosen, *place])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--variant", default="ce-drw-sam")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    out = Path("runs") / f"radius-{given.recipe}"
    recipes = {
        (share, seed): recipe_for(given.recipe, given.variant, share, seed, given.set, out)
        for seed in given.seeds
        for share in given.shares
    }
    train_all([r for r in recipes.values() if not (Path(r.run.folder) / "measure.json").exists()], given.jobs)
    rows: dict[float, dict[str, list[float]]] = {}
    for (share, _), recipe in recipes.items():
        found = measure(recipe.run.folder, split="val")
        values = {"mean": found["mean_recall"], **found["group_recall"]}
        for name, value in values.items():
            rows.setdefault(share, {}).setdefault(name, []).append(100 * value)
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, {given.recipe}:{given.variant}, validation split")
    print(f"\n    python {shlex.join(sys.argv)}\n")
    names = list(next(iter(rows.values())))
    print("| radius / weight norm | " + " | ".join(f"{n} recall, %" for n in names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for share, row in rows.items():
        cells = [f"{statistics.fmean(row[n]):.1f} ({min(row[n]):.1f}-{max(row[n]):.1f})" for n in names]
        print(f"| {share} | " + " | ".join(cells) + " |")
    series = {n: [[row[n][i] for row in rows.values()] for i in range(len(given.seeds))] for n in names}
    picture = plot_line_with_band(list(rows), series, xlabel="SAM radius / weight norm", ylabel="recall, %")
    (out / f"{given.variant}.svg").write_text(picture)


if __name__ == "__main__":
    main()
