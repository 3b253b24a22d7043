"""SelMix' learning rate on QuickDraw, chosen on training images that neither train nor steer it.

    python benchmarks/selmix_rate.py

Split 0, which the tables do not use. The ten validation images of a class steer SelMix and so flatter high rates; the
images of the training split that the long tail leaves over, as many of each class, judge instead. Uniform pairs are
asked, too: theirs is a rate of their own.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch

from evenhand.data.sets.catalogue import load
from evenhand.data.stream import Stream
from evenhand.measure.classification import predict_all
from evenhand.measure.confusion import confusion_matrix, group_mean_recall, mean_recall
from evenhand.process import keep_freed
from evenhand.run.opening import open_run, read_data
from evenhand.run.recipe import load_recipe
from evenhand.run.training import train

RATES = (3e-3, 1e-2, 3e-2, 1e-1)
ROWS = {
    "SelMix for mean recall": ("mean-recall", []),
    "SelMix for min head-tail recall": ("min-head-tail-recall", []),
    "uniform pairs": ("mean-recall", ["method.policy=uniform"]),
}


def left_over(used: list[Stream]) -> Stream:
    """As many images of every class as the class with the fewest has, none of them in ``used``."""
    whole = load("quickdraw")["train"]
    assert whole.labels is not None
    known = {stream.samples.name(row) for stream in used for row in range(len(stream))}
    free = defaultdict(list)
    for row, label in enumerate(whole.labels.tolist()):
        if whole.samples.name(row) not in known:
            free[label].append(row)
    fewest = min(map(len, free.values()))
    return whole.subset(torch.tensor([row for rows in free.values() for row in rows[:fewest]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/selmix-rate"))
    out = parser.parse_args().out.resolve()
    keep_freed()
    judges, data = None, None
    print("| row | rate | mean recall | min head-tail recall |\n|:--|--:|--:|--:|")
    for name, (variant, more) in ROWS.items():
        for rate in RATES:
            folder = out / f"{name.replace(' ', '-')}-{rate}"
            place = [f"run.folder={json.dumps(str(folder))}", "run.resume=true", "run.progress=false", "run.threads=1"]
            recipe = load_recipe(f"selmix-quickdraw:{variant}", [*place, *more, f"method.optim.lr={rate}"])
            if not (folder / "measure.json").exists():
                train(recipe)
            data = data or read_data(recipe)
            judges = judges or left_over([data.streams["labelled"], data.streams["val"]])
            assert judges.labels is not None
            predicted = predict_all(open_run(folder).method.predict, judges).argmax(1)
            C = confusion_matrix(predicted, judges.labels, len(judges.classes))
            groups = [data.groups["head"], data.groups["tail"]]
            numbers = (float(mean_recall(C)), float(group_mean_recall(C, groups).min()))
            print(f"| {name} | {rate} | " + " | ".join(f"{100 * number:.1f}" for number in numbers) + " |", flush=True)


if __name__ == "__main__":
    main()
