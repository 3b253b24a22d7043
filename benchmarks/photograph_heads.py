"""Which head for frozen features of photographs: validation mean recall of heads and learning rates.

    python benchmarks/photograph_heads.py

Three splits that benchmarks/photographs.py does not use; 30 % of the training images are held out as validation, and
only they are looked at. Runs are kept in runs/photograph-heads; repeat the command to go on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path

from evenhand.process import keep_freed
from evenhand.run.opening import read_data
from evenhand.run.training import train
from photographs import IMBALANCE, PACKAGES, class_folders, recipe_for

RATES = {"sgd": (0.1, 0.01, 0.001), "adamw": (1e-2, 1e-3, 1e-4)}
DECAY = {"sgd": 1e-4, "adamw": 1e-2}
SETTINGS = [(net, name, rate) for net in ("linear", "mlp") for name, rates in RATES.items() for rate in rates]
RULES = ("ce", "la")


def validated(name: str, seed: int, folder: Path, out: Path) -> dict[tuple, float]:
    """{(setting, rule): mean recall on validation, %} of one set and split; what is missing is trained."""
    found, data = {}, None
    most = int(0.68**2 * min(len(list(kind.iterdir())) for kind in folder.iterdir()))  # what both shares leave
    fewer = {"data.n_max": most, "data.imbalance": min(IMBALANCE[name], most)} if IMBALANCE[name] > 1 else {}
    for setting, rule in itertools.product(SETTINGS, RULES):
        net, optim, rate = setting
        run = out / name / f"{net}-{optim}-{rate}" / f"{rule}-{seed}"
        recipe = recipe_for(name, "frozen", rule, seed, folder, run).changed(
            {
                **fewer, "data.val_share": 0.3, "method.net.name": net, "method.optim.name": optim,
                "method.optim.lr": rate, "method.optim.weight_decay": DECAY[optim], "run.eval_every": 60,
            }
        )  # fmt: skip
        if not (run / "measure.json").exists():
            data = data or read_data(recipe)
            train(recipe, data=data)
        rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        found[setting, rule] = 100 * [row for row in rows if row["kind"] == "val"][-1]["mean_recall"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", default=list(PACKAGES), choices=list(PACKAGES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    parser.add_argument("--out", type=Path, default=Path("runs/photograph-heads"))
    given = parser.parse_args()
    out = given.out.resolve()
    keep_freed()
    columns = [(name, rule) for name in given.set for rule in RULES]
    found = {name: [validated(name, seed, class_folders(name, out), out) for seed in given.seeds] for name in given.set}
    print("| head | " + " | ".join(f"{name}, {rule}" for name, rule in columns) + " |\n|:--|" + "--:|" * len(columns))
    for setting in SETTINGS:
        means = [statistics.fmean(split[setting, rule] for split in found[name]) for name, rule in columns]
        print("| " + " ".join(map(str, setting)) + " | " + " | ".join(f"{mean:.1f}" for mean in means) + " |")


if __name__ == "__main__":
    main()
