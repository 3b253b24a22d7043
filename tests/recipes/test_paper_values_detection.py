"""Values of spec 09, section 6, for detection, against the resolved recipes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evenhand.run.recipe import load_recipe, recipe_text, smoke_recipe

ALL = {
    "method.batch": 1, "method.views": "weak", "method.optim.lr": 0.001, "method.optim.momentum": 0.9,
    "method.optim.weight_decay": 5e-4, "method.optim.milestones": [5 / 7], "method.optim.factors": [1.0, 0.1],
    "method.net.short_side": 600, "method.net.long_side": 1200, "run.steps": 70_000, "data.augment": ["flip"],
    "data.val_share": 0, "run.select": "last",
}  # fmt: skip
ADAPTED = {
    "method.name": "da-faster", "method.reversal": 0.1, "method.hidden": 1024, "method.image": True,
    "method.instance": True, "method.consistency": True,
}  # fmt: skip
SETTINGS = {
    "voc-clipart": ("resnet101-c4", "VOC", "clipart"),
    "cityscapes-foggy": ("resnet50-c4", "cityscapes", "foggy"),
}
PAPER = {
    "da-faster": {**ADAPTED, "method.smooth": "none"},
    "sdat": {**ADAPTED, "method.smooth": "classification", "method.rho": 0.15},
    "sdat-all": {**ADAPTED, "method.smooth": "all", "method.rho": 0.15},
    # rows beside the paper's, with the same views and schedule
    "source-only": {"method.name": "detector", "method.optim.ema": None},
    "mean-teacher": {"method.name": "mean-teacher", "method.optim.ema": 0.999},
    "oracle": {"method.name": "detector", "method.optim.ema": None},
}


def at(recipe: Any, place: str) -> Any:
    for key in place.split("."):
        recipe = getattr(recipe, key)
    return recipe


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("variant", PAPER)
def test_paper_values(name: str, variant: str) -> None:
    net, source, target = SETTINGS[name]
    domains = (target, "") if variant == "oracle" else (source, target)
    wanted = {**ALL, **PAPER[variant], "method.net.name": net, "data.set": domains[0], "data.target": domains[1]}
    recipe = load_recipe(f"{name}:{variant}")
    assert {place: at(recipe, place) for place in wanted} == wanted


@pytest.mark.parametrize("name", SETTINGS)
def test_every_variant_is_pinned_and_has_a_smoke_run(name: str) -> None:
    assert load_recipe(name).variants.keys() == PAPER.keys()
    for variant in PAPER:
        assert smoke_recipe(f"{name}:{variant}").method.net.name == "mobilenet_v2"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["detect", "trees", "emoji-scenes"])
def test_small_recipes_have_the_rows_of_the_docs(name: str) -> None:
    known = load_recipe(name).variants
    assert {"source-only", "da-faster", "sdat", "sdat-all", "mean-teacher"} <= known.keys()
    both: list[Any] = [load_recipe(f"{name}:{variant}").method for variant in ("sdat", "sdat-all")]
    assert [(m.smooth, m.rho, m.hidden) for m in both] == [("classification", 0.005, 256), ("all", 0.005, 256)]


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
