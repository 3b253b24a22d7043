"""Values of spec 09, section 6, for detection, against the resolved recipes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evenhand.run.recipe import load_recipe, recipe_text, smoke_recipe

SHARED = {
    "method.name": "da-faster", "method.batch": 1, "method.reversal": 0.1, "method.hidden": 1024, "method.image": True,
    "method.instance": True, "method.consistency": True, "method.optim.lr": 0.001, "method.optim.momentum": 0.9,
    "method.optim.weight_decay": 5e-4, "method.optim.milestones": [5 / 7], "method.optim.factors": [1.0, 0.1],
    "method.net.short_side": 600, "method.net.long_side": 1200, "run.steps": 70_000, "data.augment": ["flip"],
}  # fmt: skip
PAPER = {
    "voc-clipart:da-faster": {"method.net.name": "resnet101-c4", "method.smooth": "none"},
    "voc-clipart:sdat": {"method.net.name": "resnet101-c4", "method.smooth": "classification", "method.rho": 0.15},
    "voc-clipart:sdat-all": {"method.net.name": "resnet101-c4", "method.smooth": "all", "method.rho": 0.15},
    "cityscapes-foggy:da-faster": {"method.net.name": "resnet50-c4", "method.smooth": "none"},
    "cityscapes-foggy:sdat": {"method.net.name": "resnet50-c4", "method.smooth": "classification", "method.rho": 0.15},
    "cityscapes-foggy:sdat-all": {"method.net.name": "resnet50-c4", "method.smooth": "all", "method.rho": 0.15},
}


def at(recipe: Any, place: str) -> Any:
    for key in place.split("."):
        recipe = getattr(recipe, key)
    return recipe


@pytest.mark.parametrize("name", PAPER)
def test_paper_values(name: str) -> None:
    recipe = load_recipe(name)
    wanted = {**SHARED, **PAPER[name]}
    assert {place: at(recipe, place) for place in wanted} == wanted


@pytest.mark.usefixtures("tv")
@pytest.mark.parametrize(("ours", "paper"), [(1, 2), (4, 8)])
def test_the_paper_s_batches_count_source_and_target(ours: int, paper: int) -> None:
    from evenhand.data.scenes import prepare_scenes
    from evenhand.methods import method_class

    recipe: Any = smoke_recipe("voc-clipart").changed({"method.batch": ours})
    data = prepare_scenes(recipe.data)
    method = method_class("da-faster")(recipe.method, data, seed=0, device=torch.device("cpu"))
    assert sum(feed.batch for feed in method.feeds(data.streams).values()) == paper
    assert load_recipe("voc-clipart").method.batch == 1
    assert "--set method.batch=4 " in recipe_text("voc-clipart")


def test_the_learning_rate_drops_at_step_50_000() -> None:
    from evenhand.methods.protocol import Progress

    optim: Any = load_recipe("voc-clipart").method.optim  # type: ignore[attr-defined]
    factors = [optim.factor(Progress(step, 16_551, 70_000)) for step in (49_999, 50_000)]
    assert factors == [1.0, 0.1]
