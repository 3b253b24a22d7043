"""SDAT's radius: the automatic choice, from source data alone, against a grid judged by the target's labels.

    python benchmarks/adapt_radius.py emoji-home --pair noto:twemoji --pair openmoji:noto

"source" is validation accuracy on the source, "target" test accuracy on the target, both of the last checkpoint. Radius
0 is the method without SDAT. Runs are kept as those of adaptation.py; repeat the command to go on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from adaptation import cell, recipe_for
from evenhand.run.reproduce import train_all

GRID = (0.02, 0.05, 0.1, 0.2, 0.5)


def logged(folder: Path, kind: str, key: str) -> list[Any]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line[key] for line in lines if line["kind"] == kind and key in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--pair", action="append", required=True, help="source:target")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--grid", type=float, nargs="+", default=GRID)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/adapt-radius"))
    given = parser.parse_args()
    rows = {"0": ("cdan", [])} | {f"{rho:g}": ("cdan-sdat", [f"method.rho={rho}"]) for rho in given.grid}
    rows["auto"] = ("sdat-auto", [])
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, {given.recipe}, seeds {given.seeds}")
    print(f"\n    python {shlex.join(sys.argv)}")
    for pair in given.pair:
        runs = {
            (name, seed): recipe_for(given.recipe, variant, pair, seed, given.out / name, more)
            for seed in given.seeds
            for name, (variant, more) in rows.items()
        }
        folders = {key: Path(recipe.run.folder) for key, recipe in runs.items()}
        train_all([runs[key] for key, folder in folders.items() if not (folder / "measure.json").exists()], given.jobs)
        print(f"\n{pair.replace(':', ' to ')}, accuracy in %\n\n| radius | source | target |\n|:--|--:|--:|")
        for name in rows:
            mine = [folders[name, seed] for seed in given.seeds]
            source = [100 * logged(folder, "val", "accuracy")[-1] for folder in mine]
            target = [100 * json.loads((folder / "measure.json").read_text())["accuracy"] for folder in mine]
            print(f"| {name} | {cell(source)} | {cell(target)} |")
        picked = [logged(folders["auto", seed], "train", "rho")[-1] for seed in given.seeds]
        print(f"\nauto picked {', '.join(f'{rho:.3f}' for rho in picked)}")


if __name__ == "__main__":
    main()
