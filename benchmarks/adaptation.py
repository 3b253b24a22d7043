"""Adaptation over seeds: target accuracy by honest and oracle selection, domain accuracy, curvature of the task loss.

    python benchmarks/adaptation.py digits-shift --pair mnist:optdigits --pair mnist:font-digits
    python benchmarks/adaptation.py emoji-home --pair noto:twemoji --pair openmoji:noto

Runs go to runs/adaptation/SOURCE-TARGET/VARIANT-SEED and are kept; repeat the command to go on. "last" is the final
checkpoint; "infomax" and "density" choose one without target labels, "oracle" with the test labels. λ max is that of
the source's cross-entropy on 256 training images, evaluation mode; "above" counts the seeds that gain over the row's
base variant.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

from evenhand.run.curvature import of_all_classes
from evenhand.run.opening import open_run
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.reproduce import train_all

BASE = {
    "source-only": "",
    "dann": "source-only",
    "dann-sdat": "dann",
    "cdan": "source-only",
    "cdan-sdat": "cdan",
    "sdat-adv": "cdan",
    "cdan-mcc": "source-only",
    "cdan-mcc-sdat": "cdan-mcc",
}
ALSO = ("label-free:infomax", "label-free:density", "oracle:accuracy")


def recipe_for(name: str, variant: str, pair: str, seed: int, out: Path, more: list[str]) -> Recipe:
    source, _, target = pair.partition(":")
    domains = [f"data.target={target}"]
    if load_recipe(name).data.source:
        domains.append(f"data.source={json.dumps([source])}")
    folder = out / f"{source}-{target}" / f"{variant}-{seed}"
    place = [f"run.folder={json.dumps(str(folder))}", f"run.seed={seed}", "run.resume=true", "run.progress=false"]
    return load_recipe(f"{name}:{variant}", [*domains, *place, f"run.select_also={json.dumps(ALSO)}", *more])


def numbers(folder: Path) -> dict[str, float]:
    """One run's row; the curvature is worked out once and kept beside it."""
    table: dict[str, Any] = json.loads((folder / "measure.json").read_text())
    kept = folder / "curvature.json"
    if not kept.exists():
        run = open_run(folder)
        kept.write_text(json.dumps(of_all_classes(run, run.data(), steps=32, max_samples=256).spectrum.maximum))
    chosen = {rule.partition(":")[2]: table["also"][rule]["accuracy"] for rule in ALSO}
    return {
        "last": 100 * table["accuracy"],
        **{"oracle" if name == "accuracy" else name: 100 * value for name, value in chosen.items()},
        "domain accuracy": 100 * table["adaptation"].get("domain_accuracy", float("nan")),
        "λ max": json.loads(kept.read_text()),
    }


def cell(values: list[float]) -> str:
    if any(value != value for value in values):
        return "none"
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--pair", action="append", required=True, help="source:target")
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/adaptation"))
    given = parser.parse_args()
    variants = given.variant or list(BASE)
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, {given.recipe}, seeds {given.seeds}")
    print(f"\n    python {shlex.join(sys.argv)}")
    for pair in given.pair:
        runs = {
            (v, s): recipe_for(given.recipe, v, pair, s, given.out, given.set) for s in given.seeds for v in variants
        }
        train_all([r for r in runs.values() if not (Path(r.run.folder) / "measure.json").exists()], given.jobs)
        found = {v: [numbers(Path(runs[v, s].run.folder)) for s in given.seeds] for v in variants}
        columns = list(found[variants[0]][0])
        print(f"\n{pair.replace(':', ' to ')}, target accuracy in %\n")
        print("| run | " + " | ".join(columns) + " | above |")
        print("|:--|" + "--:|" * (len(columns) + 1))
        for variant, rows in found.items():
            base = found.get(BASE.get(variant, ""), [])
            gains = [mine["last"] > theirs["last"] for mine, theirs in zip(rows, base, strict=False)]
            above = f"{sum(gains)} of {len(gains)} over {BASE[variant]}" if gains else ""
            cells = [cell([row[column] for row in rows]) for column in columns]
            print(f"| {variant} | " + " | ".join(cells) + f" | {above} |")


if __name__ == "__main__":
    main()
