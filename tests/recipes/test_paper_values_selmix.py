"""Every value that the thesis fixes for SelMix (spec 07, sections 4 and 6), against what the recipes resolve to.

Where we differ from the thesis on purpose, a comment says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from evenhand.data import longtail_counts, unlabelled_counts
from evenhand.run.needs import needed_recipe
from evenhand.run.recipe import load_recipe, validate
from evenhand.run.tables import flatten

Values = dict[str, Any]


def wrong(found: Mapping[str, Any], written: Values) -> list[str]:
    """The keys that are missing or differ."""
    flat = flatten(found)
    return [f"{key} is {flat.get(key, 'missing')}, not {value}" for key, value in written.items()
            if key not in flat or flat[key] != value]  # fmt: skip


# Section 3: SGD without momentum, decay on weights alone, cosine by step, the backbone at a tenth. Sections 2.1, 2.2:
# 50 steps a cycle, beta from 0.6, validation with its mirror images. Smoothing is ours: a clip silences lost classes.
COMMON: Values = {
    "method.name": "selmix", "method.cycle": 50, "method.policy": "selmix", "method.relative": False,
    "method.explore": "released", "method.legacy": False, "method.smoothing": 1.0, "method.memory": False,
    "method.mix": "features", "method.least_kept": 0.6, "method.partners": "auto", "method.pseudo_every": 1,
    "method.flip_val": True, "method.early_stop": False, "method.backbone_factor": 0.1, "method.tail": 0.1,
    "method.freeze_backbone": False, "method.cap": 100.0, "method.floor": None, "method.optim.name": "sgd",
    "method.optim.momentum": 0.0, "method.optim.weight_decay": 5e-4, "method.optim.no_decay": ["biases"],
    "method.optim.schedule": "cosine", "method.optim.schedule_by": "step", "method.optim.min_lr": 0.0,
    "method.optim.warmup": 0, "method.optim.ema": None, "run.select": "last",
}  # fmt: skip


def tuned(scale: float, sharpness: float, lr: float, batch: int, steps: int, tolerance: float = 0.01) -> Values:
    return COMMON | {
        "method.scale": scale, "method.sharpness": sharpness, "method.optim.lr": lr, "method.batch": batch,
        "run.steps": steps, "method.tolerance": tolerance,
    }  # fmt: skip


# FixMatch(LA): 2^20 steps of 64 labelled and 128 unlabelled images, Nesterov SGD 0.03, confidence 0.95; ImageNet-100
# has its own. Their BatchNorm momentum of 0.001 is not set: BatchNorm's own 0.1 is.
FIXMATCH: Values = {
    "method.name": "fixmatch", "method.loss": "la", "method.batch": 64, "method.unlabelled_ratio": 2,
    "method.threshold": 0.95, "method.unlabelled_weight": 1.0, "method.net.name": "wrn28-2", "method.optim.lr": 0.03,
    "method.optim.momentum": 0.9, "method.optim.nesterov": True, "method.optim.weight_decay": 5e-4,
    "method.optim.no_decay": ["norms"], "method.optim.schedule": "fixmatch", "method.optim.ema": 0.999,
    "method.optim.ema_warm": False, "run.steps": 2**20,
}  # fmt: skip
IMAGENET100: Values = FIXMATCH | {
    "method.batch": 256, "method.threshold": 0.7, "method.unlabelled_weight": 10.0, "method.net.name": "resnet50",
    "method.optim.lr": 0.4, "method.optim.weight_decay": 3e-4,
}  # fmt: skip
# MiSLAS' first stage: mixup on the data as they are; its coefficient is not in the thesis.
MIXUP: Values = {"method.name": "classifier", "method.loss": "ce", "method.weighting": "none", "method.mixup": 1.0}

PAPERS: dict[str, tuple[Values, Values]] = {  # SelMix's values, its base's
    "selmix-cifar10": (
        tuned(10.0, 40.0, 3e-4, 64, 10_000)
        | {"data.imbalance": 100, "data.n_max": 1500, "data.unlabelled_max": 3000, "data.val_per_class": 500}, FIXMATCH,
    ),
    "selmix-cifar100": (
        tuned(10.0, 20.0, 3e-4, 64, 10_000)
        | {"data.imbalance": 10, "data.n_max": 150, "data.unlabelled_max": 300, "data.val_per_class": 50}, FIXMATCH,
    ),
    "selmix-stl10": (
        tuned(2.0, 20.0, 3e-4, 64, 10_000)
        | {"data.imbalance": 10, "data.n_max": 450, "data.unlabelled_max": None, "data.val_per_class": 50,
           "data.size": 32}, FIXMATCH,
    ),
    "selmix-imagenet100": (
        tuned(10.0, 20.0, 0.1, 64, 10_000)
        | {"data.imbalance": 10, "data.n_max": 433, "data.unlabelled_max": 866, "data.size": 224}, IMAGENET100,
    ),
    "selmix-cifar10-labelled": (
        tuned(10.0, 50.0, 3e-3, 128, 2_000) | {"data.imbalance": 100, "data.n_max": 4500, "data.val_per_class": 500},
        MIXUP | {"method.net.name": "resnet32"},
    ),
    "selmix-cifar100-labelled": (
        tuned(10.0, 25.0, 3e-3, 128, 2_000) | {"data.imbalance": 100, "data.n_max": 450, "data.val_per_class": 50},
        MIXUP | {"method.net.name": "resnet32"},
    ),
    "selmix-imagenet-lt": (
        tuned(10.0, 100.0, 0.1, 256, 2_500, tolerance=0.001) | {"data.size": 224, "data.by_frequency": True},
        MIXUP | {"method.net.name": "resnet50", "method.mixup": 0.2},
    ),
}  # fmt: skip
OBJECTIVES: dict[str, tuple[str, str]] = {
    "mean-recall": ("mean-recall", "none"), "min-recall": ("min-recall", "none"), "h-mean": ("h-mean", "none"),
    "g-mean": ("g-mean", "none"), "min-head-tail-recall": ("min-head-tail-recall", "none"),
    "mean-recall-coverage": ("mean-recall", "coverage"), "h-mean-coverage": ("h-mean", "coverage"),
}  # fmt: skip
HEAD_TAIL = ("selmix-cifar100", "selmix-imagenet100", "selmix-cifar100-labelled", "selmix-imagenet-lt")
CASES = [
    (name, variant) for name in PAPERS for variant in load_recipe(name).variants
    if load_recipe(f"{name}:{variant}").method.name == "selmix"
]  # fmt: skip


@pytest.mark.parametrize(("name", "variant"), CASES, ids=lambda text: text)
def test_values_of_the_thesis(name: str, variant: str) -> None:
    recipe = load_recipe(f"{name}:{variant}")
    kind, _, objective = variant.partition("-")
    if kind not in ("uniform", "inverted"):
        kind, objective = "equal", variant
    aim, floors = OBJECTIVES[objective]
    floors = f"head-tail-{floors}" if floors != "none" and name in HEAD_TAIL else floors
    own = {"method.objective": aim, "method.floors": floors, "data.unlabelled_kind": kind}
    assert wrong(recipe.model_dump(), PAPERS[name][0] | own) == []


@pytest.mark.parametrize("name", PAPERS)
def test_values_of_the_base(name: str) -> None:
    recipe = load_recipe(f"{name}:mean-recall")
    base = needed_recipe("first", recipe.needs["first"], recipe)
    assert wrong(base.model_dump(), PAPERS[name][1]) == []
    assert base.data.model_dump(exclude={"augment", "strong", "normalise"}) == recipe.data.model_dump(
        exclude={"augment", "strong", "normalise"}
    )


@pytest.mark.parametrize(("name", "batch", "steps"), [
    ("selmix-cifar10-labelled", 128, 2_000), ("selmix-cifar100-labelled", 128, 2_000),
    ("selmix-imagenet-lt", 256, 2_500),
])  # fmt: skip
def test_values_of_mislas_second_stage(name: str, batch: int, steps: int) -> None:
    """On SelMix's base and images, for as many steps; learning rate and smoothing are ours, the thesis gives none."""
    recipe, beside = load_recipe(f"{name}:mislas"), load_recipe(f"{name}:mean-recall")
    written = {
        "method.name": "second-stage", "method.rule": "mislas", "method.batch": batch, "method.optim.name": "sgd",
        "method.optim.lr": 0.05, "method.optim.momentum": 0.9, "method.optim.weight_decay": 5e-4,
        "method.optim.schedule": "cosine", "method.smooth_head": 0.3, "method.smooth_tail": 0.0, "run.steps": steps,
    }  # fmt: skip
    assert wrong(recipe.model_dump(), written) == []
    assert (recipe.needs, recipe.data) == (beside.needs, beside.data)


@pytest.mark.parametrize("name", PAPERS)
def test_base_and_fine_tuning_are_normalised_alike(name: str) -> None:
    """SelMix looks through its base's eyes: what its recipe says must be the same."""
    recipe = load_recipe(f"{name}:mean-recall")
    assert needed_recipe("first", recipe.needs["first"], recipe).data.normalise == recipe.data.normalise


def test_the_profiles_fit_into_what_validation_leaves() -> None:
    """Section 4: 4500 and 450 images of a class, of which a third is labelled."""
    for name, K, left in (("selmix-cifar10", 10, 4500), ("selmix-cifar100", 100, 450)):
        for kind in ("equal", "uniform", "inverted"):
            d = load_recipe(name).data
            assert d.n_max is not None
            assert d.unlabelled_max is not None
            labelled = longtail_counts(d.n_max, K, d.imbalance)
            more = unlabelled_counts(d.unlabelled_max, K, d.imbalance, kind)  # type: ignore[arg-type]
            assert max(a + b for a, b in zip(labelled, more, strict=True)) <= left
            assert left + d.val_per_class == 50_000 // K


def test_every_objective_has_a_row() -> None:
    """18 for three mixes of unlabelled images; 6, 5 or 3 otherwise, as in the tables."""
    found = {name: sum(n == name for n, _ in CASES) for name in PAPERS}
    assert found == {
        "selmix-cifar10": 18, "selmix-cifar100": 18, "selmix-stl10": 6, "selmix-imagenet100": 3,
        "selmix-cifar10-labelled": 5, "selmix-cifar100-labelled": 5, "selmix-imagenet-lt": 3,
    }  # fmt: skip


def test_the_authors_numbers() -> None:
    for name, key, value in (
        ("selmix-cifar10:min-recall", "min_recall", 0.791), ("selmix-cifar10:mean-recall", "mean_recall", 0.854),
        ("selmix-cifar10:inverted-min-recall", "min_recall", 0.743),
        ("selmix-cifar10:uniform-mean-recall", "mean_recall", 0.914),
        ("selmix-cifar10:mean-recall-coverage", "min_coverage", 0.095),
        ("selmix-cifar100:min-head-tail-recall", "min_head_tail_recall", 0.578),
        ("selmix-stl10:min-recall", "min_recall", 0.685), ("selmix-imagenet100:min-recall", "min_recall", 0.24),
        ("selmix-cifar10-labelled:min-recall", "min_recall", 0.792),
        ("selmix-cifar10-labelled:mislas", "mean_recall", 0.819),
        ("selmix-cifar100-labelled:min-head-tail-recall", "min_head_tail_recall", 0.413),
        ("selmix-imagenet-lt:min-head-tail-recall", "min_head_tail_recall", 0.451),
    ):  # fmt: skip
        expected = load_recipe(name).expect[key]
        assert (expected.value, expected.source) == (value, "authors"), name


def test_defaults() -> None:
    written = {
        "cycle": 50, "least_kept": 0.6, "scale": 10.0, "sharpness": 40.0, "cap": 100.0, "tolerance": 0.01, "batch": 64,
        "backbone_factor": 0.1, "optim.lr": 3e-4, "optim.momentum": 0.0, "optim.weight_decay": 5e-4,
        "relative": True,  # ours: the size of gains is arbitrary
    }  # fmt: skip
    assert wrong(validate({"method": {"name": "selmix"}}, "selmix").method.model_dump(), written) == []
