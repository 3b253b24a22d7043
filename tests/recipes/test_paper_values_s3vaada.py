"""Every value that spec 08 fixes (sections 2.6, 3, 4 and 6), against what our recipes resolve to."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from evenhand.data.splits import stratified_holdout
from evenhand.run.recipe import load_recipe
from evenhand.run.settings import Cycles
from evenhand.run.tables import flatten

Values = dict[str, Any]

SGD: Values = {"method.optim.name": "sgd", "method.optim.momentum": 0.9, "method.optim.weight_decay": 5e-4}
LOSSES: Values = {
    "method.name": "vaada", "method.domain_weight": 0.01, "method.labelled_vat": 1.0, "method.target_weight": 0.01,
    "method.vat.epsilon": 5.0, "method.bottleneck": 256, "method.hidden": 1024, "method.target_labels": True,
    "method.target_share": None, "method.centre": True,
}  # fmt: skip
VAADA: Values = {
    **SGD, **LOSSES, "method.optim.lr": 0.01, "method.optim.nesterov": False, "method.optim.clip": 1.0,
    "method.optim.clip_apart": True, "method.optim.ema": None, "method.optim.schedule": "constant",
    "method.backbone_factor": 1.0, "method.batch": 16, "run.epochs": 100, "run.steps": None,
}  # fmt: skip
ALL: Values = {
    "data.size": 224, "data.normalise": "imagenet", "data.augment": [], "data.val_share": 0, "data.split_seed": 42,
    "data.target_test_share": 0.2, "method.net.name": "resnet50", "run.select": "last", "cycles.by": "s3vaada",
    "cycles.count": 5, "cycles.budget": 0.02, "cycles.alpha": 0.5, "cycles.beta": 0.3, "cycles.starts": 5,
    "cycles.epsilon": 5.0,
}  # fmt: skip
ADAM: Values = {
    "method.optim.name": "adam", "method.optim.lr": 1e-4, "method.optim.clip": 0, "method.optim.ema": 0.998,
}  # fmt: skip
# DANN: reversal 2 / (1 + exp(-10 p)) - 1 over its 10,000 steps, decay (1 + 10 p)^-0.75, a backbone ten times slower
# (it brings weights); cross-entropies of both domains are added, so twice our mean of the two.
DANN: Values = {
    **SGD, "method.name": "domain-adversarial", "method.adversary": "dann", "method.batch": 36, "run.steps": 10_000,
    "method.optim.lr": 0.01, "method.optim.nesterov": False, "method.optim.schedule": "inverse-progress",
    "method.optim.inverse_alpha": None, "method.optim.inverse_power": 0.75, "method.backbone_factor": None,
    "method.reversal.alpha": 10, "method.reversal.steps": 10_000, "method.reversal.high": 1.0, "method.trade_off": 2.0,
    "method.discriminator.batchnorm": False, "method.discriminator.dropout": False, "method.bottleneck": 256,
    "method.discriminator.hidden": 1024, "method.bottleneck_linear": True, "method.target_labels": True,
}  # fmt: skip
MME: Values = {
    "method.name": "mme", "method.temperature": 0.05, "method.entropy_weight": 0.1, "run.steps": 20_000,
    "cycles.by": "random",
}  # fmt: skip
FINE: Values = {"method.name": "domain-adversarial", "method.adversary": "none", "method.target_labels": True}
DECAY: Values = {"method.optim.schedule": "inverse-progress"}
VARIANTS: dict[str, Values] = {
    "vaada": VAADA,
    "no-clip": VAADA | {"method.optim.clip": 0},
    "slow-backbone": VAADA | {"method.backbone_factor": 0.1},
    "vada": LOSSES | ADAM,
    "dann": DANN,
    "mme": MME,
    "fine-tune": FINE,
    "source-only": FINE | {"method.target_labels": False},
}
BIG: Values = {"method.batch": 128}
CASES: dict[str, tuple[Values, dict[str, Values]]] = {
    "active-office-home": ({"data.source": ["Art"], "data.target": "Clipart"}, VARIANTS),
    "active-office-31": ({"data.source": ["webcam/images"], "data.target": "amazon/images"}, VARIANTS),
    "active-visda": (
        {"data.source": ["synthetic"], "data.target": "real"},
        VARIANTS
        | {
            "vaada": VAADA | DECAY | BIG,
            "no-clip": VARIANTS["no-clip"] | DECAY | BIG,
            "slow-backbone": VARIANTS["slow-backbone"] | DECAY | BIG,
        },
    ),
    "active-domainnet": (
        {"data.target": "txt/sketch_train.txt", "data.test_list": "txt/sketch_test.txt", "data.target_test_share": 0},
        VARIANTS
        | {
            name: VARIANTS[name] | DECAY | {"method.batch": 36, "run.epochs": 30, "method.optim.clip": clip}
            for name, clip in (("vaada", 10), ("no-clip", 0), ("slow-backbone", 10))
        },
    ),
}


@pytest.mark.parametrize(("name", "variant"), [(n, v) for n, (_, variants) in CASES.items() for v in variants])
def test_recipe_has_the_papers_values(name: str, variant: str) -> None:
    shared, variants = CASES[name]
    found = flatten(load_recipe(f"{name}:{variant}").model_dump())
    wanted = ALL | shared | variants[variant]
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize("name", CASES)
def test_every_variant_is_pinned(name: str) -> None:
    assert load_recipe(name).variants.keys() == CASES[name][1].keys()


@pytest.mark.parametrize(
    ("target", "pool", "labels"),
    [(2817, 2253, 45), (4365, 3492, 69), (4439, 3551, 71), (55_388, 44_310, 886)],
)
def test_pools_and_budgets_of_the_paper(target: int, pool: int, labels: int) -> None:
    """10a.13, through the very split that recipes make."""
    y = (torch.arange(target) ** 2) % 31
    rest, held = stratified_holdout(y, 0.2, 42, 31)
    assert len(rest) == pool
    assert Cycles().labels(len(rest)) == labels
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(target))
    shares = torch.bincount(y[held], minlength=31) / torch.bincount(y, minlength=31)
    there = torch.bincount(y, minlength=31) > 0
    assert (shares[there] - 0.2).abs().max() <= 1 / torch.bincount(y)[torch.bincount(y) > 0].min()


def test_reversal_of_dann() -> None:
    """10a.14: 0, 0.462117, 0.986614, 0.999909 at p = 0, 0.1, 0.5, 1."""
    from evenhand.pieces.domain import reversal_coefficient

    found = load_recipe("active-office-home:dann").method.reversal
    for p, value in ((0.0, 0.0), (0.1, 0.462117), (0.5, 0.986614), (1.0, 0.999909)):
        step = round(p * 10_000)
        assert math.isclose(
            reversal_coefficient(step, alpha=found.alpha, steps=found.steps, high=found.high), value, abs_tol=1e-6
        )


@pytest.mark.parametrize(("count", "number"), [(0.02, 20), (5.0, 5), (1.0, 1), (0.0001, 1), (0.29, 290)])
def test_a_budget_is_a_share_or_a_number(count: float, number: int) -> None:
    assert Cycles(budget=count).labels(1000) == number
