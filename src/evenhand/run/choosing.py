"""``evenhand train FOLDER``: a recipe chosen from what was found there, sized for the machine and the time one has."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from evenhand import parallel
from evenhand.data.sets.catalogue import obtain_weights
from evenhand.data.sources import formats
from evenhand.data.stream import Stream
from evenhand.errors import UserError
from evenhand.nets import build_net
from evenhand.run.advice import Advice, advise
from evenhand.run.check import clock, time_steps
from evenhand.run.findings import Findings, find, reading_of
from evenhand.run.looking import SHOWN, facts, problems
from evenhand.run.opening import build_method, read_data
from evenhand.run.recipe import Recipe, load_recipe, recipe_names
from evenhand.run.tables import parse_override

TABLES = (".csv", ".tsv", ".jsonl", ".npz", ".json")
SIDES = (224, 160, 128, 96)
BACKBONE = "mobilenet_v2"
LEAST = 3  # epochs; rather smaller images than fewer of them
CALIBRATE = 20  # images of the smallest class from which some can be spared for it
HEAD = 0.002  # seconds a step of a small head on features takes, about
SMALL = 32  # pixels, of which a network for photographs, that halves an image five times, leaves one
PASSES, FEWEST = 64, 500  # CSST saw its samples that often on Fashion-MNIST (csst-fashion); steps at least
ERROR = "error: "
BALANCE = {"method.sampling": "instance", "method.weighting": "none"}  # what balances classes besides the loss
VALIDATION = ("data.val_per_class", "data.val_share")  # only one of them may be set


def is_data(name: str) -> bool:
    """Whether a command's argument names data rather than a recipe or a run."""
    path = Path(name)
    if name in recipe_names() or (path / "recipe.toml").is_file():
        return False
    return path.is_dir() or (path.is_file() and path.suffix.lower() in TABLES)


def seconds_of(budget: str) -> float:
    """``90s``, ``10m`` or ``1.5h`` in seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h)\s*", budget)
    if found is None or not float(found[1]):
        raise UserError(f"--budget {budget}: write a number with s, m or h, such as 10m")
    return float(found[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600}[found[2]]


@dataclass
class Choice:
    """A recipe in the making: its name, what is set, by us and by the user, who wins, and what is said about it."""

    name: str
    values: dict[str, str]
    own: dict[str, str]
    say: Console

    @property
    def splits(self) -> bool:
        """Whether the user says what is held out as validation."""
        return any(key in self.own for key in VALIDATION)

    def load(self) -> Recipe:
        ours = self.values | (dict.fromkeys(VALIDATION, "0") if self.splits else {})
        return load_recipe(self.name, [f"{key}={value}" for key, value in {**ours, **self.own}.items()])

    def tell(self, line: str) -> None:
        self.say.print(line, highlight=False, markup=False, soft_wrap=True)


def choose(
    path: str, overrides: Sequence[str] = (), *, budget: float | None = None, fine_tune: bool = False, seed: int = 0
) -> Recipe:
    """Look at the data, say what is found and what will be done, and return the recipe for it.

    ``overrides`` are the user's own ``key=value`` and win.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"'{path}' is data: its recipe is chosen by measuring, in one process; then train the recipe")
    say = Console()
    for text in overrides:
        parse_override(text)  # says what is wrong with it
    own = {key.strip(): value for key, value in (text.split("=", 1) for text in overrides)}
    kind = "fine-tune" if fine_tune else "first"
    place = Path(path).resolve()
    stem = f"{place.stem}-{place.suffix[1:]}" if place.is_file() else place.name  # a table may have a namesake
    own.setdefault("run.folder", f"runs/{stem}-{kind}-{seed}")
    if (Path(own["run.folder"]) / "last.pt").exists():
        raise UserError(
            f"{own['run.folder']} already holds a run: continue it with "
            f"{shlex.join(['evenhand', 'train', own['run.folder'], '--resume'])}, or set another run.folder"
        )
    method = re.compile(r"\s*method\s*[.=]")  # what else is misspelt is refused before the data are looked at
    asked = load_recipe("folder", [text for text in overrides if not method.match(text)]).data
    findings = find(path, asked)
    found = list(problems(findings))
    for line in (*facts(findings), *(line for line in found if not line.startswith(ERROR))):
        say.print(line, highlight=False, markup=False, soft_wrap=True)
    _refuse(findings, [line.removeprefix(ERROR) for line in found if line.startswith(ERROR)])
    advice = advise(findings, sources=asked.source, target=asked.target)[0]
    values = dict(text.split("=", 1) for text in advice.set) | {"run.seed": str(seed)}
    choice = Choice(advice.recipe, values, own, say)
    reason = _explain(choice, advice)
    if "pretrained" in advice.recipe:
        _pretrained(choice, findings, fine_tune)
    elif fine_tune:
        raise UserError(f"--fine-tune is for photographs; for {findings.kind} as found here leave it out")
    recipe = _sized(choice, findings, budget)
    return recipe.changed({"about": f"{recipe.about} (chosen for {path}: {reason})"[:400]})


def _explain(choice: Choice, advice: Advice) -> str:
    """Say what is chosen and why; the reason. What the user decides otherwise has hers, and no measurement of ours."""
    given = dict(map(parse_override, (f"{key}={value}" for key, value in choice.own.items())))
    ours = dict(map(parse_override, advice.set))
    hers = {
        key: given[key] for key, value in ours.items() if key.startswith("method.") and given.get(key, value) != value
    }
    instead = [*hers]
    balanced = {key: given[key] for key, usual in BALANCE.items() if given.get(key, usual) != usual}
    if balanced and "method.loss" not in given and choice.values.pop("method.loss", ""):  # else rare ones count twice
        hers, instead = balanced, ["method.loss"]
    if not hers:
        choice.tell(f"\nrecipe: {advice.recipe}, for {advice.reason}")
        choice.tell(f"measured: {advice.evidence}")
        return advice.reason
    asked = ", ".join(f"{key}={value}" for key, value in hers.items())
    other = ", ".join(f"{key}={ours[key]}" for key in instead)
    choice.tell(f"\nrecipe: {advice.recipe} with {asked}, as you set it")
    choice.tell(f"without that it would be {other}: {advice.reason}")
    return f"{asked} was set"


def _refuse(findings: Findings, errors: Sequence[str]) -> None:
    """What ``look`` calls an error stops training; the first is told, and where the others are."""
    if not errors:
        return
    if count := len(findings.unreadable):
        first = errors[0] if count == 1 else f"{count} files cannot be read, such as: {errors[0]}"
        errors = [first, *errors[min(count, SHOWN) :]]
    where = f"{findings.path}: " * (findings.path not in errors[0])
    more = f" ({len(errors) - 1} more: {shlex.join(['evenhand', 'look', findings.path])})" * (len(errors) > 1)
    raise UserError(f"{where}{errors[0]}{more}")


def _pretrained(choice: Choice, findings: Findings, fine_tune: bool) -> None:
    """Weights first, so that it is known at once whether they can be had."""
    try:
        obtain_weights(BACKBONE)
    except UserError as error:
        choice.name = "folder"
        choice.tell(
            f"the weights of {BACKBONE} cannot be had ({error}); a ResNet-18 is trained from scratch instead: expect "
            "much worse results from few images"
        )
        return
    if fine_tune:
        choice.name = "pretrained:fine-tune"
        choice.tell(f"all of {BACKBONE} is tuned, from ImageNet weights")
    else:
        choice.tell(
            f"a linear classifier on frozen features of {BACKBONE}: the quick answer; --fine-tune is the slow one"
        )
    brought = any(key.rpartition("/")[2] == "val" for key in findings.counts)
    if min(findings.train.values()) >= CALIBRATE and not brought and not choice.splits:
        choice.values["data.val_share"] = "0.1"
        choice.tell("a tenth of every class is held out, to calibrate confidences on")
    samples = sum(findings.train.values())
    choice.values["method.batch"] = str(32 if samples < 1000 or fine_tune else 64)


def _sized(choice: Choice, findings: Findings, budget: float | None) -> Recipe:
    """Image side and length so that the run fits the data and the budget; says how long it will take."""
    recipe = choice.load()
    if recipe.data.embed:
        return _frozen(choice, findings, budget)
    if findings.kind != "images":
        return _fitted(choice, recipe, budget)
    sides = _sides(choice, findings)
    if hasattr(recipe.method, "unlabelled_ratio"):
        choice.values["run.steps"] = str(_steps(recipe, findings))
    for side in sides:
        choice.values["data.size"] = str(side)
        recipe = _fitted(choice, choice.load(), budget, last=side == sides[-1])
        if recipe.run.steps is not None or recipe.run.epochs >= LEAST or side == sides[-1]:
            return recipe
        choice.tell(f"too slow at {side} pixels for {LEAST} epochs: smaller images")
    return recipe


def _sides(choice: Choice, findings: Findings) -> Sequence[int]:
    """Sides to try, the largest first; enlarged images are only of use to a network that has learnt from large ones."""
    net = getattr(choice.load().method, "net", None)  # a method that the user names may have none, or others
    name, scratch = getattr(net, "name", ""), not getattr(net, "weights", None)
    sides: Sequence[int] = SIDES if torch.cuda.is_available() else SIDES[1:]
    if "data.size" in choice.own:
        sides = (int(choice.own["data.size"]),)
    elif findings.pictures is not None and scratch:
        stored = min(findings.pictures.median)
        sides = tuple(dict.fromkeys(min(side, stored) for side in sides))
    if max(sides) <= SMALL and scratch and name == "resnet18" and "method.net.name" not in choice.own:
        choice.values |= {"method.net.name": "small-cnn", "data.normalise": "data"}
        choice.tell(f"the network is small-cnn, made for images this small ({max(sides)} pixels), not {name}")
    return sides


def _steps(recipe: Recipe, findings: Findings) -> int:
    """Of self-training: as many as show each sample about as often as where it was measured, at most the recipe's."""
    labelled, hidden = sum(findings.train.values()), sum(findings.unlabelled.values())
    passes = max(labelled, hidden / recipe.method.unlabelled_ratio) / recipe.method.batch
    return min(recipe.run.steps or FEWEST, max(FEWEST, round(PASSES * passes)))


def _frozen(choice: Choice, findings: Findings, budget: float | None) -> Recipe:
    recipe = choice.load()
    streams = formats.read(findings.path, memory=False, size=224, **reading_of(recipe.data))
    total = sum(map(len, streams.values()))
    some = next(iter(streams.values()))
    sides = (int(choice.own["data.embed_size"]),) if "data.embed_size" in choice.own else SIDES
    head = HEAD * recipe.run.epochs * sum(findings.train.values()) / recipe.method.batch
    for side in sides:
        each = seconds_to_embed(some, side)
        seconds = each * total + head
        if budget is None or seconds <= budget:
            break
    else:
        choice.tell(f"a budget of {clock(budget or 0)} is not enough for {total} images at {side} pixels")
    choice.values["data.embed_size"] = str(side)
    choice.tell(
        f"about {clock(seconds)}: {total} images at {side} pixels once, {1000 * each:.0f} ms each, then the head"
    )
    return choice.load()


def seconds_to_embed(stream: Stream, side: int, count: int = 8) -> float:
    """Per image: decoding and one pass, measured; the weights do not matter for it."""
    rows = torch.arange(min(count, len(stream)))
    began = time.perf_counter()
    stream.fetch(rows)
    decoding = time.perf_counter() - began
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        net = build_net(BACKBONE, num_classes=2).eval().to(device)
        net.features(torch.zeros(2, 3, side, side, device=device))
        began = time.perf_counter()
        net.features(torch.zeros(len(rows), 3, side, side, device=device)).sum().item()
    return (decoding + time.perf_counter() - began) / len(rows)


def _fitted(choice: Choice, recipe: Recipe, budget: float | None, *, last: bool = True) -> Recipe:
    """The recipe with as many epochs as fit, from the measured time of a step."""
    data = read_data(recipe)
    device = parallel.local_device(recipe.run.device)
    seconds, total, _ = time_steps(build_method(recipe, data, device, {}), data.streams, recipe, device)
    whole = 1.1 * seconds * total  # and the evaluations
    fixed = "run.epochs" in choice.own or "run.steps" in choice.own
    if budget is not None and whole > budget and not fixed:
        share = budget / whole
        if recipe.run.steps is not None:
            recipe = recipe.changed({"run.steps": max(1, int(recipe.run.steps * share))})
        else:
            epochs = round(recipe.run.epochs * share, 2)
            if epochs < LEAST and not last:
                return recipe.changed({"run.epochs": epochs})
            recipe = recipe.changed({"run.epochs": max(epochs, 0.1), "run.eval_every": max(1.0, epochs / 4)})
        whole = budget
    length = f"{recipe.run.steps} steps" if recipe.run.steps is not None else f"{recipe.run.epochs:g} epochs"
    side = f" at {data.facts.size[-1]} pixels" if data.facts.size else ""
    choice.tell(f"about {clock(whole)}: {length}{side}, {1000 * seconds:.0f} ms a step, measured on {device}")
    return recipe
