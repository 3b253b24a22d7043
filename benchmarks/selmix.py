"""SelMix and its baselines over seeds: objective x method, from bases that all rows of a seed share.

    python benchmarks/selmix.py                                  # Fashion-MNIST-LT, seeds 1 to 5
    python benchmarks/selmix.py --table mismatch
    python benchmarks/selmix.py --table policies --jobs 2
    python benchmarks/selmix.py --recipe selmix-cifar10-small --seeds 1 2 3
    python benchmarks/selmix.py --recipe selmix-quickdraw

Runs go to runs/selmix/RECIPE/SEED/ROW and are kept; repeat the command to go on. Every seed splits the data anew. A
base is trained once for each seed and mix of unlabelled samples. Numbers are mean ± standard deviation over seeds in %;
differences are paired within seeds, against the base, ± their standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from evenhand.run.needs import needed_recipe
from evenhand.run.recipe import Recipe, load_recipe

METRICS = ("mean_recall", "min_recall", "g_mean", "h_mean", "min_coverage", "ece")
HEAD_TAIL = ("mean_recall", "min_head_tail_recall", "g_mean", "h_mean", "min_head_tail_coverage", "ece")
OBJECTIVES = ("mean-recall", "min-recall", "g-mean", "h-mean", "mean-recall-coverage", "h-mean-coverage")
OTHERS = ("mean-recall", "min-head-tail-recall", "g-mean", "h-mean", "mean-recall-coverage", "h-mean-coverage")


def policy(name: str, objective: str) -> dict[str, dict[str, Any]]:
    return {f"{objective}, {name}": {"from": objective, "set": {"method.policy": name}}}


def fashion(table: str) -> dict[str, dict[str, Any]]:
    """Rows by name: which variant, what is set besides, or which recipe instead of SelMix's."""
    csst: dict[str, dict[str, Any]] = {
        f"csst, {name}": {"recipe": f"csst-fashion:csst-{name}", "set": {"data.groups": "9/1"}}
        for name in ("min-recall", "coverage")
    }
    csst |= {
        name: {"recipe": f"csst-fashion:{name}", "set": {"data.groups": "9/1"}} for name in ("abc", "cossl", "daso")
    }
    stages = {"cRT": {"from": "crt"}, "MiSLAS stage 2": {"from": "mislas"}}
    if table == "objectives":
        rows: dict[str, dict[str, Any]] = dict(csst) | stages | policy("uniform", "mean-recall")
        for objective in OBJECTIVES:
            rows |= {f"{objective}, selmix": {"from": objective}} | policy("greedy", objective)
        return rows
    if table == "policies":
        rows = {f"min-recall, {name}": {"from": f"{name}-min-recall"} for name in (
            "uniform", "greedy", "accumulated", "hedge", "frozen", "cutmix", "legacy", "memory", "labelled", "absolute",
        )}  # fmt: skip
        rows |= {
            f"min-recall, scale {scale:g}": {"from": "min-recall", "set": {"method.scale": scale}}
            for scale in (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
        }
        return rows | {"min-recall from FixMatch": {"from": "fixmatch-min-recall"}}
    rows = {}
    for kind in ("uniform", "inverted"):
        mixed = {"data.unlabelled_kind": kind}
        rows |= {f"{kind}: base": {"base": True, "from": f"unlabelled-{kind}"}}
        for name in ("mean-recall", "min-recall", "mean-recall-coverage"):
            rows[f"{kind}: {name}"] = {"from": name, "set": mixed}
        rows[f"{kind}: uniform pairs"] = {"from": "mean-recall", "set": mixed | {"method.policy": "uniform"}}
        rows[f"{kind}: csst"] = {
            "recipe": "csst-fashion:csst-min-recall", "set": mixed | {"data.groups": "9/1"},
        }  # fmt: skip
    return rows


def plain(objectives: tuple[str, ...], also: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {"cRT": {"from": "crt"}, "MiSLAS stage 2": {"from": "mislas"}}
    rows |= policy("uniform", "mean-recall")
    for objective in objectives:
        rows |= {f"{objective}, selmix": {"from": objective}}
    return rows | {name: {"from": name} for name in also}


TABLES: dict[str, dict[str, Any]] = {
    "selmix-fashion": {name: fashion(name) for name in ("objectives", "policies", "mismatch")},
    "selmix-cifar10-small": {
        "objectives": plain(OBJECTIVES, ("greedy-min-recall", "unlabelled-uniform", "unlabelled-inverted")),
    },
    "selmix-quickdraw": {"objectives": plain(OTHERS, ("greedy-min-head-tail-recall",))},
}  # fmt: skip


def recipe_for(name: str, row: str, asked: dict[str, Any], seed: int, out: Path) -> Recipe:
    folder = out / name / str(seed) / row.replace(", ", "-").replace(": ", "-").replace(" ", "-")
    here = {"run.seed": seed, "data.split_seed": seed, "run.folder": str(folder), "run.threads": 1}
    here |= {"run.progress": False, "run.resume": True}
    recipe = load_recipe(asked.get("recipe") or f"{name}:{asked['from']}", {**here, **asked.get("set", {})})
    return needed_recipe("first", recipe.needs["first"], recipe) if asked.get("base") else recipe


def train(recipe: Recipe) -> None:
    """In a process of its own, which repeats what is settled: the recipe written down."""
    folder = Path(recipe.run.folder)
    if (folder / "measure.json").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    written = folder.with_name(f"{folder.name}.toml")
    written.write_text(recipe.toml())
    command = [sys.executable, "-m", "evenhand", "train", str(written)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True, check=False)
    if said.returncode:
        sys.exit(f"{folder}: {said.stderr.strip()[-2000:]}")


def numbers(folder: Path, metrics: tuple[str, ...]) -> list[float]:
    table = json.loads((folder / "measure.json").read_text())
    return [100 * float(table[key]) for key in metrics]


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def paired(values: list[float], base: list[float]) -> str:
    gaps = [a - b for a, b in zip(values, base, strict=True)]
    error = f" ± {statistics.stdev(gaps) / len(gaps) ** 0.5:.1f}" if len(gaps) > 1 else ""
    return f"{statistics.mean(gaps):+.1f}{error}"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--recipe", default="selmix-fashion", choices=TABLES)
    ask.add_argument("--table", default="objectives", help="objectives, policies or mismatch")
    ask.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    ask.add_argument("--rows", nargs="+", help="only rows whose name contains one of these")
    ask.add_argument("--jobs", type=int, default=1, help="runs at a time")
    ask.add_argument("--out", type=Path, default=Path("runs/selmix"))
    ask.add_argument("--write", type=Path, help="also write the table to this file")
    args = ask.parse_args()
    if args.table not in TABLES[args.recipe]:
        sys.exit(f"{args.recipe} has the tables {', '.join(TABLES[args.recipe])}, not '{args.table}'")
    rows = TABLES[args.recipe][args.table]
    if args.rows:
        rows = {name: asked for name, asked in rows.items() if any(part in name for part in args.rows)}
    rows = {"base": {"base": True, "from": "mean-recall"}} | rows
    recipes = {(row, seed): recipe_for(args.recipe, row, asked, seed, args.out)
               for row, asked in rows.items() for seed in args.seeds}  # fmt: skip
    needed = {}  # bases first, each once, so that no two rows wait for one another
    for recipe in recipes.values():
        for key, need in recipe.needs.items():
            base = needed_recipe(key, need, recipe)
            needed[base.run.folder] = base
    with ThreadPoolExecutor(args.jobs) as pool:
        for wave in (list(needed.values()), list(recipes.values())):
            for number, _ in enumerate(pool.map(train, wave), 1):
                print(f"\r{number} of {len(wave)} runs", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
    metrics = HEAD_TAIL if args.recipe == "selmix-quickdraw" else METRICS
    found = {
        row: list(zip(*(numbers(Path(recipes[row, s].run.folder), metrics) for s in args.seeds), strict=True))
        for row in rows
    }
    lines = [
        f"{args.recipe}, {args.table}, seeds {', '.join(map(str, args.seeds))}, each with its own split.\n",
        "| run | " + " | ".join(m.replace("_", " ") for m in metrics) + " |", "|:--|" + "--:|" * len(metrics),
    ]  # fmt: skip
    lines += [f"| {row} | " + " | ".join(spread(list(v)) for v in columns) + " |" for row, columns in found.items()]
    lines += ["\nDifference to the base, paired within seeds, ± standard error:\n", *lines[1:3]]
    for row, columns in found.items():
        against = (
            found[f"{row.partition(':')[0]}: base"] if f"{row.partition(':')[0]}: base" in found else found["base"]
        )
        cells = (paired(list(v), list(b)) for v, b in zip(columns, against, strict=True))
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.write:
        args.write.write_text(text)


if __name__ == "__main__":
    main()
