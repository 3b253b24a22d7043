"""Labels bought in rounds: pairs of domains x selectors x trainings x seeds, against random under the same training.

    python benchmarks/active.py active-emoji --pair noto:twemoji --seeds 1 2 3
    python benchmarks/active.py active-digits --training vaada --training dann --by s3vaada --by random
    python benchmarks/active.py active-emoji --pair noto:twemoji --ablation

Experiments go to runs/active/RECIPE/SOURCE-TARGET/TRAINING-SELECTOR-SEED and are kept; repeat the command to go on.
Seed s trains with seed s on split s.
"mean of rounds" is the mean accuracy after each round of labels, last checkpoints; differences to random are paired by
seed, ± is one standard error. ``--ablation`` takes S3VAADA's three terms apart and its training, too. The training with
no labels yet is shared by all selectors of a seed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import shutil
import sys
import time
from concurrent.futures import as_completed
from pathlib import Path

from evenhand.process import workers
from evenhand.report.cycles import accuracy_table, batch_table, difference_table, group_experiments, rule_table
from evenhand.run.cycles import cycle_recipe, run_cycles
from evenhand.run.recipe import Recipe, load_recipe

SELECTORS = (
    "random", "s3vaada", "badge", "clue", "coreset", "margin", "entropy", "confidence", "aada", "dfal", "kmeans",
)  # fmt: skip
TERMS = ("random", "s3vaada", "vap", "diversity", "representativeness")
TRAININGS = ("vaada", "no-clip", "slow-backbone", "vada", "dann", "mme", "fine-tune", "source-only")
NO_CRITIC = ("mme", "fine-tune", "source-only")  # trainings without a discriminator, which AADA asks


def experiment(name: str, pair: str, training: str, by: str, seed: int, out: Path, more: list[str]) -> Recipe:
    source, _, target = pair.partition(":")
    domains = [f"data.source={json.dumps([source])}", f"data.target={target}"] if pair else []
    folder = out / name / (f"{source}-{target}" if pair else "as-written") / f"{training}-{by}-{seed}"
    place = [f"run.folder={json.dumps(str(folder))}", f"run.seed={seed}", f"data.split_seed={seed}"]
    here = [*place, "run.resume=true", "run.progress=false", "run.threads=1"]
    return load_recipe(f"{name}:{training}", [*domains, *here, f"cycles.by={by}", *more])


def share_first(recipe: Recipe, done: Path) -> None:
    """The training without labels is the same for all selectors: a finished one is copied."""
    first, theirs = Path(cycle_recipe(recipe, 0).run.folder), done / "cycle-0"
    if done.is_dir() and not first.exists() and (theirs / "measure.json").is_file():
        partial = first.with_name(".copying")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(theirs, partial)
        partial.rename(first)


def one(recipes: list[Recipe]) -> tuple[str, float]:
    """All selectors of a training and seed, one after another."""
    began = time.process_time()
    for recipe in recipes:
        share_first(recipe, Path(recipes[0].run.folder))
        run_cycles(recipe)
    return Path(recipes[0].run.folder).name, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--pair", action="append", default=[], help="source:target; default: as the recipe has it")
    parser.add_argument("--by", action="append", default=[], help="selectors; default: all")
    parser.add_argument("--training", action="append", default=[], help="variants of the recipe; default: vaada")
    parser.add_argument("--ablation", action="store_true", help="the three terms alone, then trainings under s3vaada")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/active"))
    given = parser.parse_args()
    wanted = [(t, by) for t in given.training or ["vaada"] for by in given.by or SELECTORS]
    if given.ablation:
        wanted = [("vaada", by) for by in TERMS]
        wanted += [(t, by) for t in TRAININGS[1:] for by in ("random", "s3vaada") if (t, by) != ("mme", "s3vaada")]
    wanted = [(t, by) for t, by in wanted if not (by == "aada" and t in NO_CRITIC)]
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, seeds {given.seeds}\n\n    python {shlex.join(sys.argv)}")
    for pair in given.pair or [""]:
        runs = {
            (t, by, s): experiment(given.recipe, pair, t, by, s, given.out, given.set)
            for s in given.seeds
            for t, by in wanted
        }
        bundles: dict[tuple[str, int], list[Recipe]] = {}
        for (training, _, seed), recipe in runs.items():
            bundles.setdefault((training, seed), []).append(recipe)
        if given.jobs == 1:
            for bundle in bundles.values():
                print("{}: {:.0f} processor seconds".format(*one(bundle)), file=sys.stderr, flush=True)
        else:
            with workers(given.jobs) as pool:
                for finished in as_completed([pool.submit(one, bundle) for bundle in bundles.values()]):
                    print("{}: {:.0f} processor seconds".format(*finished.result()), file=sys.stderr, flush=True)
        groups = group_experiments([Path(recipe.run.folder) for recipe in runs.values()])
        print(f"\n## {given.recipe}, {pair.replace(':', ' to ') or 'as written'}")
        for table in (accuracy_table(groups), difference_table(groups), rule_table(groups), batch_table(groups)):
            print(f"\n{table.caption}\n\n{table.to_markdown()}", flush=True)


if __name__ == "__main__":
    main()
