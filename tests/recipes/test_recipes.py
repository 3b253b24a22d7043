"""Every recipe that we ship, as far as seconds without a network can tell."""

from __future__ import annotations

import json
import socket
import tomllib
from pathlib import Path

import pytest

from evenhand.run import train
from evenhand.run.recipe import explained, load_recipe, recipe_names, recipe_text, smoke_recipe

EACH_VARIANT = [f"{name}:{variant}" for name in recipe_names() for variant in load_recipe(name).variants]


def test_there_are_recipes() -> None:
    assert {"fashion-lt", "cifar10-lt"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_says_what_it_does_and_how_to_run_it(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.about
    assert f"evenhand train {name}" in recipe_text(name) or f"evenhand reproduce {name}" in recipe_text(name)
    assert tomllib.loads(explained(recipe))["about"] == recipe.about


@pytest.mark.parametrize("name", [*recipe_names(), *EACH_VARIANT])
def test_recipe_and_variant_parse(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.run.folder == f"runs/{name.replace(':', '-')}-0"
    assert not recipe.run.select.startswith("oracle"), "a recipe of ours never selects on test"
    for expected in recipe.expect.values():
        assert expected.tolerance > 0


@pytest.mark.parametrize("name", recipe_names())
def test_variants_differ_from_each_other(name: str) -> None:
    variants = list(load_recipe(name).variants)
    digests = {load_recipe(f"{name}:{variant}").digest() for variant in variants}
    assert len(digests) == len(variants)


@pytest.mark.parametrize("name", recipe_names())
def test_trap_17_smoke_run_needs_no_network(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError(f"{name} opens a connection")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "no-data"))
    recipe = smoke_recipe(name)
    run = recipe.run.model_copy(update={"folder": str(tmp_path / "run"), "progress": False, "threads": 1})
    folder = train(recipe.model_copy(update={"run": run}), smoke=True)
    result = json.loads((folder / "measure.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert result["split"] == "test"
    if "mean_recall" in result:  # a classifier, not a generator
        assert 0 <= result["min_recall"] <= result["mean_recall"] <= 1
        assert {"head", "tail"} <= result["group_recall"].keys()
