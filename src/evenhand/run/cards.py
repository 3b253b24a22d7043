"""A model's card in Markdown: what it was made of, how good it is on which class, how to show it a sample."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.data.sets.catalogue import DATASETS
from evenhand.errors import UserError
from evenhand.measure.intervals import wilson
from evenhand.nets import PRETRAINED, TIMM
from evenhand.run.folder import told_streams
from evenhand.run.predicting import Model
from evenhand.run.recipe import Recipe

MOST_CLASSES = 200  # rows of the table; the others are in measure.json


def card(model: Model, files: Sequence[str], told: dict[str, str]) -> str:
    """The page on the files of one model.

    Numbers are those of the run's measure.json, and what was not measured is called so.
    """
    recipe, measured = model.run.recipe, _json(model.run.folder / "measure.json")
    parts = [
        f"# {', '.join(files)}",
        _about(model),
        "## Using it\n\n" + _using(files, told),
        "## Data\n\n" + _data(model),
        "## Results\n\n" + _results(model, measured),
        "## How it was chosen\n\n" + _chosen(model),
        "## Licences\n\n"
        + f"Weights it started from: {told['licence_of_weights']}. The data's own terms apply besides.",
        "## Recipe\n\n```toml\n" + recipe.toml().strip() + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def licence_of(recipe: Recipe) -> str:
    """Of the weights that a run began with, as far as it is known."""
    net: Any = getattr(recipe.method, "net", None)
    names = [recipe.data.embed, getattr(net, "weights", None) or ""]
    found = [_licence(name) for name in names if name]
    return "; ".join(found) or "none, it was trained from scratch"


def _licence(name: str) -> str:
    if name in PRETRAINED:
        return f"{name}, {DATASETS[name].licence}, trained on ImageNet"
    if name.startswith(TIMM) or name == "pretrained":
        return f"{name}, see the model's page in timm"
    return f"{Path(name.rpartition(':')[2]).name}, a file of the user's, licence not known"


def _about(model: Model) -> str:
    recipe = model.run.recipe
    net: Any = getattr(recipe.method, "net", None)
    network = f", network `{net.name}`" if net is not None else ""
    on = f" on features of the frozen `{recipe.data.embed}`" if recipe.data.embed else ""
    count = len(model.classes)
    return f"A classifier of {count} classes by evenhand's method `{recipe.method.name}`{network}{on}."


def _using(files: Sequence[str], told: dict[str, str]) -> str:
    graphs = [file for file in files if not file.endswith(".safetensors")]
    lines = [f"- file: `{file}`{'' if file in graphs else ', the weights alone'}" for file in files]
    lines += [f"- {key}: {told[key]}" for key in ("shape", "preprocessing", "mode", "calibrated") if key in told]
    if graphs:
        lines.append("- output: probabilities (N, K), classes in the order of the table below")
    return "\n".join(lines)


def _data(model: Model) -> str:
    said = [f"{name} {part.samples:,}" for name, part in told_streams(model.run.folder).items()]
    counts = model.facts.counts
    uneven = f"Training samples by class: {max(counts):,} at most, {min(counts):,} at least."
    return f"`{Path(model.run.recipe.data.set).name}`: samples {', '.join(said) or 'not recorded'}. {uneven}"


def _results(model: Model, measured: dict[str, Any]) -> str:
    if "recall" not in measured:
        return "Not measured."
    confusion = model.run.folder / "confusion.npz"
    C = np.load(confusion)["confusion"] if confusion.is_file() else None
    tested, predicted = (None, None) if C is None else (C.sum(1).tolist(), C.sum(0).tolist())
    before = "" if model.temperature is None else " before the temperature"
    lines = [
        f"On the {measured['split']} split ({measured['samples']:,} samples): accuracy {measured['accuracy']:.1%}, "
        f"mean recall {measured['mean_recall']:.1%}, worst recall {measured['min_recall']:.1%}, "
        f"calibration error {measured['ece']:.1%}{before}. Brackets are Wilson's 95 % intervals.",
        "",
        "| class | trained on | tested on | recall | precision |",
        "|---|---|---|---|---|",
    ]
    for k, name in enumerate(model.classes[:MOST_CLASSES]):
        recall, count = measured["recall"][k], tested[k] if tested else None
        shown = "not tested" if recall is None else f"{recall:.1%}"
        if recall is not None and count:
            low, high = wilson(recall, count)
            shown += f" [{low:.0%}, {high:.0%}]"
        precision = f"{measured['precision'][k]:.1%}" if not predicted or predicted[k] else "never predicted"
        cells = [name.replace("|", "\\|"), model.facts.counts[k], "?" if count is None else count, shown, precision]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    if len(model.classes) > MOST_CLASSES:
        lines.append(f"\n{len(model.classes) - MOST_CLASSES} more classes are in the run's measure.json.")
    return "\n".join(lines)


def _chosen(model: Model) -> str:
    rule = model.run.recipe.run.select
    text = f"Checkpoint `{model.run.checkpoint}` of step {model.run.step}, by the rule `{rule}`."
    if rule.startswith("oracle"):
        return f"{text} It was chosen on the test split: the results above are too good."
    return f"{text} The test split had no part in it."


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: measure the run again, evenhand measure {path.parent}")
    return found
