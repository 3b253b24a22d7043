"""Runs that start from others: from the one that is named, and not from one that has seen the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenhand.errors import UserError
from evenhand.run import train
from evenhand.run.needs import needed_recipe
from evenhand.run.opening import holds_need
from evenhand.run.recipe import Need, Recipe, load_recipe, validate

Make = Callable[..., Recipe]


@pytest.fixture
def second(tmp_path: Path, tiny_text: str) -> Callable[[Path], Recipe]:
    """A second stage on the tiny recipe's data, from a run's folder."""
    data, run = tiny_text.partition("[method]")[0], tiny_text.partition("[run]")[2]
    file = tmp_path / "second.toml"
    file.write_text(f'{data}[method]\nname = "second-stage"\nbatch = 16\n[run]{run}')

    def make(first: Path) -> Recipe:
        places = {"needs.first": first, "run.folder": tmp_path / "second"}
        return load_recipe(file, ["run.epochs=0", *(f"{key}={json.dumps(str(p))}" for key, p in places.items())])

    return make


def test_a_run_of_another_split_is_refused(tmp_path: Path, tiny: Make, second: Any) -> None:
    other = train(tiny("run.epochs=0", "data.split_seed=1", folder="other"))
    with pytest.raises(UserError, match=r"needs\.first.*another split.*set data\.split_seed = 1") as caught:
        train(second(other))
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "second" / "needs").exists()
    train(second(train(tiny("run.epochs=0", folder="same"))))


def test_what_a_failed_attempt_needed_is_not_used_for_another(
    tmp_path: Path, tiny: Make, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = train(tiny("run.epochs=0", "method.net.width=3", folder="wide"))
    narrow = train(tiny("run.epochs=0", folder="narrow"))

    def failing(*_: Any, **__: Any) -> None:
        raise UserError("the attempt failed")

    with monkeypatch.context() as patch:
        patch.setattr("evenhand.run.training.fit", failing)
        with pytest.raises(UserError, match="the attempt failed"):
            train(second(wide))
    kept = tmp_path / "second" / "needs" / "first"
    assert load_recipe(kept).method.net.width == 3
    train(second(narrow))
    assert load_recipe(kept).method.net.width == 2
    (tmp_path / "second" / "last.pt").unlink()
    train(second(kept))  # the copy itself
    assert load_recipe(kept).method.net.width == 2


def test_an_annotator_learns_from_all_of_every_class_and_is_the_same_for_all_seeds() -> None:
    runs = [load_recipe("cbgan-fashion", [f"run.seed={seed}"]) for seed in (3, 4)]
    judges = [needed_recipe("annotator", run.needs["annotator"], run) for run in runs]
    assert [(one.data.imbalance, one.data.n_max, one.run.seed) for one in judges] == [(1.0, None, 0)] * 2
    assert judges[0].run.folder == judges[1].run.folder
    others = [needed_recipe("classifier", run.needs["classifier"], run) for run in runs]
    assert [(one.data.imbalance, one.data.n_max, one.run.seed) for one in others] == [(100, 2000, 3), (100, 2000, 4)]


def test_a_needed_recipe_has_these_samples_and_an_annotator_all_of_them(tiny: Make, tmp_path: Path) -> None:
    recipe = tiny("run.seed=4", "run.threads=1", "data.augment=['flip']", "data.test_per_class=1")
    need = Need(recipe="annotator", set={"run.epochs": 2})
    written = load_recipe("annotator")
    judge, other = (needed_recipe(name, need, recipe) for name in ("annotator", "first"))
    assert (judge.run.seed, judge.data.imbalance, judge.data.n_max) == (0, 1.0, None)
    assert (other.run.seed, other.data.imbalance, other.data.n_max) == (4, recipe.data.imbalance, recipe.data.n_max)
    for one in (judge, other):
        assert (one.run.epochs, one.run.threads, one.run.progress, one.run.resume) == (2, 1, False, True)
        assert (one.data.set, one.data.test_per_class) == ("shapes", 1)
        assert (one.data.augment, one.data.normalise) == (written.data.augment, written.data.normalise)
        assert Path(one.run.folder) == tmp_path / "needs" / f"annotator-{one.digest()[:8]}"
    assert needed_recipe("first", need, recipe, smoke=True).method != other.method


def test_what_a_need_sets_brings_the_defaults_that_follow_from_it(tiny: Make) -> None:
    need = Need(recipe="adapt", set={"method.adversary": "mdd", "data.augment": [], "run.seed": 7})
    other, written = needed_recipe("first", need, tiny()), load_recipe("adapt", ["method.adversary=mdd"])
    assert other.method == written.method
    assert other.method.reversal.high == 0.1
    assert (other.data.set, other.data.augment, other.run.seed) == ("shapes", [], 7)


def test_a_needed_recipe_has_no_expectations_of_other_data(tiny: Make) -> None:
    need = Need(recipe="fashion-lt:ce-drw")
    assert load_recipe(need.recipe).expect
    assert not needed_recipe("first", need, tiny()).expect


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("copied", [True, False])
def test_a_run_holds_what_it_needed_once_both_are_saved(tmp_path: Path, own: bool, copied: bool) -> None:
    folder = tmp_path / "run"
    (folder / "needs" / "annotator").mkdir(parents=True)
    for there, file in ((own, "last.pt"), (copied, "needs/annotator/last.pt")):
        if there:
            (folder / file).touch()
    tree = {"data": {"set": "shapes"}, "method": {"name": "classifier"}, "run": {"folder": str(folder)}}
    assert holds_need(validate(tree, "test"), "annotator") == (own and copied)
