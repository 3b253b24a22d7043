"""The contract every method keeps. A new method joins with a line in ``CASES``.

A case is a recipe: [method], and where the method asks for them [needs] (names of other cases), [data] and [run].
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evenhand.data.loader import Batch
from evenhand.data.prepared import Data
from evenhand.data.stream import Stream
from evenhand.methods import METHODS, method_class
from evenhand.methods.protocol import Method, Progress, Recogniser
from evenhand.run import checkpoint, opening
from evenhand.run.recipe import Recipe, validate
from evenhand.run.training import fit_recipe, prepare_method
from helpers import batches

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

STEPS, PAUSE = 5, 3  # two steps an epoch, so the pause falls inside one
CPU = torch.device("cpu")
Tree = dict[str, Any]


def classifier(optim: Tree | None = None, **method: Any) -> Tree:
    tree = {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 4}, **method}
    return {"method": {**tree, "optim": {"lr": 0.05, **(optim or {})}}}


def second_stage(rule: str, first: str = "ce", **optim: Any) -> Tree:
    method = {"name": "second-stage", "rule": rule, "batch": 16, "optim": {"lr": 0.05, **optim}}
    return {"method": method, "needs": {"first": first}}


def deit(teacher: str | None = "ldam-drw-sam", optim: Tree | None = None, **method: Any) -> Tree:
    net = {"name": "vit-tiny", "width": 8, "depth": 1, "heads": 2, "drop_path": 0.2}
    tree = {"name": "deit-lt", "batch": 16, "net": net, "drw_start": 1, "repeats": 2, **method}
    needs = {} if teacher is None else {"teacher": teacher}
    return {"method": {**tree, "optim": {"lr": 1e-3, "warmup": 1, **(optim or {})}}, "needs": needs}


def gan(name: str, needs: tuple[str, ...] = (), **method: Any) -> Tree:
    tree = {
        "name": name, "batch": 8, "net": {"name": "sndcgan", "width": 4, "latent": 8}, "ema": 0.9, "ema_start": 2,
        "measure": {"judge_samples": 20, "samples": 20, "neighbours": 3}, **method,
    }  # fmt: skip
    return {"method": tree, "needs": dict.fromkeys(("annotator", *needs), "ce"), "run": {"select": "last"}}


def style(name: str, **method: Any) -> Tree:
    net = {"base": 64, "widest": 6, "latent": 6, "style": 6, "mapping_layers": 2, "group": 2}
    small = {"net": net, "ema_kimg": 0.02, "ema_rampup": 0.5, "r1_every": 2, "path_every": 2}
    tree = gan(name, **small, **method)
    del tree["method"]["ema"], tree["method"]["ema_start"]
    return tree


def adapt(name: str = "sdat", optim: Tree | None = None, **method: Any) -> Tree:
    tree = {
        "name": name, "batch": 16, "net": {"name": "small-cnn", "width": 4}, "bottleneck": 8,
        "discriminator": {"hidden": 16}, "reversal": {"steps": 4}, **method,
    }  # fmt: skip
    return {"method": {**tree, "optim": {"lr": 0.05, **(optim or {})}}, "data": {"target": "shapes-negative"}}


def active(name: str, optim: Tree | None = None, **method: Any) -> Tree:
    """With some of the target's samples labelled."""
    tree = {"name": name, "batch": 16, "net": {"name": "small-cnn", "width": 4}, "bottleneck": 8, **method}
    tree |= {"hidden": 16} if name == "vaada" else {}
    data = {"target": "shapes-negative", "labels": str(Path(__file__).with_name("labels.csv"))}
    return {"method": {**tree, "optim": {"lr": 0.05, **(optim or {})}}, "data": data}


def detection(name: str, optim: Tree | None = None, **method: Any) -> Tree:
    net = {"short_side": 64, "long_side": 64, "anchors": [16, 24], "proposals": 20, "regions": 8, "head": 8}
    tree = {"name": name, "batch": 4, "net": net, **method, "optim": {"lr": 0.02, **(optim or {})}}
    scenes = {"set": "shape-scenes", "source": ["plain"], "target": "negative"}
    plain = {"n_max": None, "imbalance": 1.0, "val_per_class": 0}
    return {"method": tree, "data": {**scenes, **plain}, "run": {"select": "val:map50"}}


def self_training(name: str, **method: Any) -> Tree:
    tree = {"name": name, "batch": 8, "unlabelled_ratio": 2, "net": {"name": "small-cnn", "width": 4}, **method}
    return {"method": {**tree, "optim": {"lr": 0.05, "ema": 0.9}}, "data": {"unlabelled_max": 24}}


def selmix(first: str, unlabelled: int = 0, optim: Tree | None = None, **method: Any) -> Tree:
    tree = {"name": "selmix", "batch": 8, "cycle": 2, "fidelity": 3, "optim": {"lr": 0.05, **(optim or {})}, **method}
    return {"method": tree, "needs": {"first": first}, "data": {"unlabelled_max": unlabelled or None}}


CASES: dict[str, Tree] = {
    "ce": classifier(),
    "ce-drw-sam": classifier({"name": "sam"}, weighting="drw", drw_start=1),
    "ldam-drw-sam": classifier(
        {"name": "sam", "rho": 0.01, "rho_relative": True}, loss="ldam", weighting="drw", drw_start=1
    ),
    "ce-drw-sam-auto": classifier(
        {"name": "sam", "rho": "auto", "ema": 0.9}, weighting="drw",
        auto={"steps": 2, "shares": [1e-3, 1e30], "tolerance": 1.0},
    ),
    "vs-pgd": classifier({"name": "pgd", "sigma": 0.01}, loss="vs"),
    "la-lpf": classifier({"name": "lpf-sgd", "lpf_parts": 2}, loss="la"),
    "focal-adamw": classifier({"name": "adamw", "lr": 1e-3}, loss="focal", weighting="always"),
    "ib": classifier(loss="ib", ib_start=1, ib_scale=10.0),
    "mixup-ema": classifier({"ema": 0.9, "nesterov": True}, mixup=1.0),
    "accumulate-clip": classifier({"name": "sam", "accumulate": 2, "clip": 0.5, "freeze_bn": False}, weighting="drw"),
    "balanced-resnet": classifier(sampling="class-balanced", net={"name": "resnet8", "width": 4, "stem_stride": 2}),
    "text": {
        **classifier({"name": "adamw", "lr": 1e-3}, net={"name": "text-transformer", "width": 32, "depth": 1}),
        "data": {"set": "phrases", "text": {"length": 12, "augment": ["swap", "word-dropout"]}},
    },
    "crt": second_stage("crt"),
    "lws": second_stage("lws", first="ldam-drw-sam"),
    "tau-norm": second_stage("tau-norm"),
    "mislas": second_stage("mislas", first="mixup-ema", ema=0.9),
    "deit-lt": deit(),
    "deit-lt-soft": deit("ce", {"accumulate": 2}, distil="soft", teacher_view="weak", mix_late=True, repeats=1),
    "vit": deit(None, distil="off", weighting="none", loss="bce"),
    "fixmatch": self_training("fixmatch", threshold=0.2, loss="la"),
    "uda": self_training("fixmatch", threshold=0.2, consistency="uda", align=True, one_pass=False),
    "flexmatch": self_training("fixmatch", thresholds="flexmatch", threshold=0.3),
    "darp": self_training("fixmatch", threshold=0.2, refine="estimated", refine_start=1, refine_every=2),
    "crest": self_training("crest", threshold=0.2, generations=2, align=True),
    "abc": self_training("abc", threshold=0.2),
    "cossl": self_training("cossl", threshold=0.2, loss="la"),
    "daso": self_training("daso", threshold=0.2),
    "csst-min-recall": self_training("csst", feedback_every=2, threshold=1.5),
    "csst-coverage": self_training("csst", objective="coverage", consistency="uda", feedback_every=2, threshold=1.0),
    "csst-h-mean": self_training("csst", objective="h-mean", feedback_every=1, feedback_parts=2, threshold=2.0),
    "csl": self_training("csst", unlabelled_weight=0.0, feedback_every=2),
    "selmix": selmix("fixmatch", 24, objective="min-recall", memory=True),
    "selmix-labelled": selmix("ce", objective="h-mean", floors="coverage", cycle=1, optim={"momentum": 0.9}),
    "selmix-frozen": selmix("mislas", policy="accumulated", objective="min-head-tail-recall", freeze_backbone=True),
    "selmix-cutmix": selmix("fixmatch", 24, mix="cutmix", policy="hedge", flip_val=True, pseudo_every=2),
    "gan": gan("gan", condition="projection", lecam=0.1, lecam_start=1, r1=0.1, r1_every=2, diffaugment=["colour"]),
    "class-balancing-gan": gan("class-balancing-gan", ("classifier",), balance={"cycle": 2}),
    "gsr-gan": gan("gsr-gan"),
    "gsr-balance-gan": gan("gan", ("classifier",), condition="generator", gsr={}, balance={"cycle": 2}),
    "stylegan2": style("stylegan2", diffaugment=["colour"], lecam=0.1, gsr={}),
    "noisy-twins": style("noisy-twins", twins={"start": 2, "sigma": 0.2}, ada={"p": 0.3, "kimg": 0.1, "every": 2}),
    "transitional-gan": style("transitional-gan", transition={"start": 0.0, "end": 0.02}, twins={"sigma": 0.2}),
    "source-only": adapt("domain-adversarial", adversary="none", bottleneck=0),
    "dann": adapt("domain-adversarial", adversary="dann", optim_d={"lr": 0.1, "nesterov": False}),
    "cdan-entropy-randomised": adapt("domain-adversarial", entropy=True, map_size=12),
    "mdd": adapt("domain-adversarial", adversary="mdd", backbone_factor=0.1),
    "vat-smoothing-adamw": adapt(
        "domain-adversarial", {"name": "adamw", "lr": 1e-3}, adversary="dann", vat={"weight": 0.1}, smoothing=0.1
    ),
    "swad": adapt("domain-adversarial", average_every=1, average_start=0.3),
    "cdan-mcc-sdat": adapt(mcc=1.0),
    "mcc-sdat": adapt(adversary="none", mcc=1.0, rho=0.01, rho_relative=True),
    "sdat-auto": adapt(adversary="dann", rho="auto", auto={"steps": 2, "shares": [0.001, 0.01], "tolerance": 1.0}),
    "sdat-clean": adapt("sdat-ablation", adversary="dann", adv_at="clean"),
    "sdat-adversary": adapt("sdat-ablation", smooth="adversary", discriminator={"hidden": 16, "batchnorm": False}),
    "sdat-both": adapt("sdat-ablation", smooth="both", optim={"freeze_bn": False}),
    "sdat-all": adapt("sdat-ablation", smooth="all"),
    "vaada": active("vaada"),
    "vada": active("vaada", {"name": "adam", "lr": 1e-3, "ema": 0.9, "clip": 0}, target_share=0.25),
    "mme": active("mme"),
    "detector": detection("detector", views="strong"),
    "da-faster-sdat": detection("da-faster", hidden=8, smooth="classification", rho=0.05),
    "mean-teacher": detection("mean-teacher", {"ema": 0.9}, start=0.3, threshold=0.2),
}  # fmt: skip

if importlib.util.find_spec("torchvision") is None:
    CASES = {name: case for name, case in CASES.items() if case["data"].get("set") != "shape-scenes"}

every_case = pytest.mark.parametrize("name", CASES)


def test_every_method_has_a_case() -> None:
    assert {case["method"]["name"] for case in CASES.values()} == set(METHODS)


# how a case is run


class Bench:
    """Runs cases in folders of their own; whole runs with the default seed are kept for comparison."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept, self.used = folder, {}, 0  # type: ignore[var-annotated]

    def recipe(self, name: str, precision: str | None = None, **run: Any) -> Recipe:
        case = copy.deepcopy(CASES[name])
        if precision is not None:
            case["method"] = method_class(case["method"]["name"]).table(**case["method"]).model_dump()
            assert set_everywhere(case["method"], "precision", precision) > 0
        tree = {
            **case,
            "data": {"set": "shapes", "n_max": 12, "imbalance": 10, "val_per_class": 2, **case.get("data", {})},
            "needs": {key: str(self.whole(other)) for key, other in case.get("needs", {}).items()},
            "run": {
                "folder": str(self.new()), "steps": STEPS, "log_every": 1, "select": "val:mean_recall",
                "progress": False, **case.get("run", {}), **run,
            },
        }  # fmt: skip
        return validate(tree, name)

    def new(self) -> Path:
        self.used += 1
        return self.folder / str(self.used)

    def run(self, recipe: Recipe) -> Path:
        fit_recipe(recipe)
        return Path(recipe.run.folder)

    def whole(self, name: str) -> Path:
        if name not in self.kept:
            self.kept[name] = self.run(self.recipe(name))
        return self.kept[name]


def set_everywhere(tree: Tree, key: str, value: Any) -> int:
    """In how many tables the key was there to be set: a two-player method has two optimisers."""
    if key in tree:
        tree[key] = value
    return (key in tree) + sum(set_everywhere(v, key, value) for v in tree.values() if isinstance(v, dict))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("contract"))


@pytest.fixture
def fresh(bench: Bench) -> Callable[..., tuple[Method, Data]]:
    def make(name: str, **run: Any) -> tuple[Method, Data]:
        recipe = bench.recipe(name, **run)
        data = opening.read_data(recipe)
        return prepare_method(recipe, data, CPU), data

    return make


def advance(method: Method, data: Data, batches: list[dict[str, Batch]], start: int = 0) -> list[dict[str, float]]:
    """Steps as ``fit`` takes them."""
    scalars = []
    for step, batch in enumerate(batches, start):
        method.refresh(Progress(step, 2, STEPS), data.streams)
        method.schedule(Progress(step, 2, STEPS))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step)
            scalars.append({key: float(value) for key, value in method.update(batch).items()})
    return scalars


def rows(folder: Path, kind: str = "train") -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in lines if row["kind"] == kind]


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Where two nested states are not the same bits."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
        return [] if same else [where]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [d for key in a for d in differences(a[key], b[key], f"{where}/{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{where}/{i}")]
    return [] if type(a) is type(b) and a == b else [f"{where}: {a!r} and {b!r}"]


def state_of(method: Method) -> Any:
    return copy.deepcopy(method.state())


def scalars(row: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key not in ("kind", "step", "epoch")}


def same_runs(a: Path, b: Path) -> None:
    files = [{path.name for path in folder.glob("*.pt")} for folder in (a, b)]
    assert files[0] == files[1] >= {"last.pt"}
    for name in files[0]:
        assert differences(checkpoint.load(a / name), checkpoint.load(b / name)) == []
    for kind in ("train", "val"):
        assert rows(a, kind) == rows(b, kind)


# the contract


@every_case
def test_is_a_method(name: str, fresh: Any) -> None:
    method, data = fresh(name)
    assert isinstance(method, Method)
    feeds = method.feeds(data.streams)
    assert feeds
    assert all(feed.views for feed in feeds.values())
    assert all(isinstance(feed.stream, Stream) or feed.stream in data.streams for feed in feeds.values())


@every_case
def test_trains_with_finite_losses(name: str, bench: Bench) -> None:
    written = rows(bench.whole(name))
    assert [row["step"] for row in written] == list(range(1, STEPS + 1))
    assert all(scalars(row) for row in written)
    assert all(math.isfinite(value) for row in written for value in scalars(row).values())


@every_case
def test_same_seed_same_numbers_other_seed_others(name: str, bench: Bench) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)  # the global generator has no say
        again = bench.run(bench.recipe(name))
    same_runs(bench.whole(name), again)
    other = bench.run(bench.recipe(name, seed=1))
    assert scalars(rows(other)[0]) != scalars(rows(again)[0])


@every_case
def test_resumed_run_equals_the_uninterrupted_bit_for_bit(name: str, bench: Bench) -> None:
    recipe = bench.recipe(name, stop_after=PAUSE)
    folder = bench.run(recipe)
    assert checkpoint.load(folder / "last.pt")["step"] == PAUSE
    run = recipe.run.model_copy(update={"stop_after": None, "resume": True})
    bench.run(recipe.model_copy(update={"run": run}))
    same_runs(bench.whole(name), folder)


@pytest.mark.parametrize(
    "name",
    ["ldam-drw-sam", "vs-pgd", "mislas", "flexmatch", "darp", "crest", "csst-h-mean", "selmix", "selmix-labelled"],
)
@pytest.mark.parametrize("pause", [1, 4])
def test_trap_04_statistics_survive_a_pause_at_any_step(name: str, pause: int, bench: Bench) -> None:
    """Class weights, BatchNorm statistics, momentum, moving average and noise generators, where there are any."""
    recipe = bench.recipe(name, stop_after=pause)
    run = recipe.run.model_copy(update={"stop_after": None, "resume": True})
    bench.run(recipe)
    bench.run(recipe.model_copy(update={"run": run}))
    same_runs(bench.whole(name), Path(recipe.run.folder))


@every_case
def test_state_moves_to_another_method_whole(name: str, bench: Bench, fresh: Any) -> None:
    """Read with ``weights_only``, put into a method that trained otherwise: the same state, the same next step."""
    saved = checkpoint.load(bench.whole(name) / "last.pt")["method"]
    (one, data), (two, _) = fresh(name), fresh(name)
    methods, steps = (one, two), batches(one, data, 3)
    two.feeds(data.streams)
    advance(two, data, steps[:2])
    for method in methods:
        method.load_state(copy.deepcopy(saved))
        assert differences(state_of(method), saved) == []
    said = [advance(method, data, steps[2:], start=4) for method in methods]
    assert said[0] == said[1]
    assert differences(*map(state_of, methods)) == []


@every_case
def test_judging_is_deterministic_and_disturbs_nothing(name: str, fresh: Any) -> None:
    (method, data), (undisturbed, _) = fresh(name), fresh(name)
    steps = batches(method, data, 3)
    undisturbed.feeds(data.streams)
    for each in (method, undisturbed):
        advance(each, data, steps[:2])
    before = state_of(method)
    judged = method.task.score(method, data.streams["val"], batch=7)
    assert all(math.isfinite(value) for value in judged.values())
    assert method.task.score(method, data.streams["val"], batch=7) == judged
    examined = method.task.table(method, data.streams["test"], batch=64)
    plain = {key: value for key, value in examined.items() if not isinstance(value, np.ndarray | bytes)}
    assert json.loads(json.dumps(plain)) == plain  # the report reads it from a file; arrays and bytes have their own
    assert differences(state_of(method), before) == []
    assert advance(method, data, steps[2:], start=2) == advance(undisturbed, data, steps[2:], start=2)
    assert differences(state_of(method), state_of(undisturbed)) == []


@pytest.mark.parametrize("name", [n for n in CASES if issubclass(method_class(CASES[n]["method"]["name"]), Recogniser)])
def test_predict_answers_each_sample_for_itself(name: str, fresh: Any) -> None:
    method, data = fresh(name)
    advance(method, data, batches(method, data, 2))
    images = data.streams["test"].fetch(torch.arange(0, len(data.streams["test"]), 50))
    logits = method.predict(images)
    assert logits.shape == (len(images), len(data.classes))
    assert not logits.requires_grad
    assert torch.equal(method.predict(images), logits)
    singly = torch.cat([method.predict(image[None]) for image in images])
    torch.testing.assert_close(singly, logits, rtol=1e-4, atol=1e-4)


@every_case
@pytest.mark.parametrize("only", ["first", "last"], ids=lambda which: f"{which}-class")
def test_trap_09_a_batch_of_one_class(name: str, only: str, fresh: Any) -> None:
    """All other classes are absent, in turn the largest and the rarest, before and after weights start."""
    method, data = fresh(name)
    label = 0 if only == "first" else len(data.classes) - 1
    steps = [{key: with_label(batch, label) for key, batch in step.items()} for step in batches(method, data, 4)]
    losses = advance(method, data, steps)
    assert all(math.isfinite(value) for step in losses for value in step.values())
    assert checkpoint.is_finite(method.state())
    assert all(math.isfinite(value) for value in method.task.score(method, data.streams["val"], batch=16).values())


def with_label(batch: Batch, label: int) -> Batch:
    return replace(batch, targets=tuple(None if y is None else all_of(y, label) for y in batch.targets))


def all_of(y: Any, label: int) -> Any:
    if isinstance(y, Tensor):
        return torch.full_like(y, label)
    return [found._replace(labels=torch.full_like(found.labels, label)) for found in y]


@every_case
def test_bfloat16_trains(name: str, bench: Bench) -> None:
    folder = bench.run(bench.recipe(name, precision="bfloat16"))
    exact, half = ([scalars(row) for row in rows(where)] for where in (bench.whole(name), folder))
    assert all(math.isfinite(value) for row in half for value in row.values())
    assert half[0].keys() == exact[0].keys()
    for key, value in exact[0].items():  # an accuracy moves by whole rows
        assert half[0][key] == pytest.approx(value, rel=0.05, abs=0.1 if key.endswith("accuracy") else 0.01), key
    state = checkpoint.load(folder / "last.pt")["method"]
    assert checkpoint.is_finite(state)
    floating = [t.dtype for t in checkpoint._tensors(state) if t.is_floating_point()]
    assert set(floating) == {torch.float32}  # weights and statistics stay exact


@every_case
def test_bfloat16_is_used(name: str, bench: Bench) -> None:
    """Autocast that is asked for must show in the numbers, or the setting must be refused."""
    folder = bench.run(bench.recipe(name, precision="bfloat16", steps=1))
    assert scalars(rows(folder)[0]) != scalars(rows(bench.whole(name))[0])
