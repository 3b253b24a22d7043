"""What a newcomer types first: --version, list, show, and the recipes for data of her own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from evenhand import __version__
from evenhand.cli.listing import JOBS
from evenhand.data.settings import STEPS, DataSettings
from evenhand.data.tokenising import TextSettings
from evenhand.data.views.images import build
from evenhand.data.views.texts import build_text_view
from evenhand.methods import METHODS, method_class
from evenhand.run.recipe import Recipe, load_recipe, recipe_names
from evenhand.run.settings import Run
from evenhand.run.tables import choices

Cli = Callable[..., Any]


def test_version(cli: Cli) -> None:
    assert cli("--version").fine() == f"evenhand {__version__}\n"


def test_list_is_short_and_by_job(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = cli("list").fine()
    assert len(text.splitlines()) < 36
    assert max(map(len, text.splitlines())) <= 110
    parts = dict(zip(JOBS, text.split("your own data")[1:], strict=True))
    for name in recipe_names():
        job = METHODS[load_recipe(name).method.name].split(".")[2]
        words = parts[job].replace(",", " ").split()
        assert name in words, f"{name} is not among those of {job}"
    for name in METHODS:
        assert name in parts[METHODS[name].split(".")[2]]


def test_every_job_has_a_recipe_for_data_of_ones_own() -> None:
    for job, (_, name, named) in JOBS.items():
        recipe = load_recipe(name, named.replace("--set", "").split())
        assert METHODS[recipe.method.name].split(".")[2] == job
        assert "your own" in recipe.about
        assert f"evenhand train {name}" in (Path(__file__).parents[2] / "docs" / "starting.md").read_text()
    assert set(JOBS) == {place.split(".")[2] for place in METHODS.values()}


@pytest.mark.parametrize(
    ("what", "some"),
    [
        ("methods", ["sdat-ablation", "adapt"]),
        ("recipes", ["imdb-lt", "variants: ", "ce-drw-sam"]),
        ("nets", ["text-mean", "vit-b16", "timm:NAME"]),
        ("data", ["quickdraw", "phrases"]),
    ],
)
def test_list_of_one_kind(cli: Cli, what: str, some: list[str]) -> None:
    text = cli("list", what).fine()
    for name in some:
        assert name in text
    others = {"methods": "sdat-ablation", "recipes": "imdb-lt", "nets": "wrn28-8", "data": "fid-inception"}
    for other, name in others.items():
        assert (name in text) == (other == what), name


def test_list_of_what_there_is_not(cli: Cli) -> None:
    assert "did you mean 'recipes'" in cli("list", "recipe").mistake()


def tables(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A table and those inside it."""
    yield model
    for field in model.model_fields.values():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from tables(part)


def vars_of(bound: Any) -> list[float]:
    return [getattr(bound, sign) for sign in ("gt", "ge", "lt", "le") if hasattr(bound, sign)]


def literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in literals(part)]


@pytest.mark.parametrize("model", [DataSettings, Run, *(method_class(name).table for name in METHODS)])
def test_show_names_the_choices_of_every_key(model: type[BaseModel]) -> None:
    for table in tables(model):
        for key, field in table.model_fields.items():
            said = f"{field.description or ''} {choices(field)}"
            missing = [word for word in literals(field.annotation) if word not in said and key != "name"]
            assert not missing, f"{table.__name__}.{key} does not say {missing}"
            bounds = [entry for entry in field.metadata if any(hasattr(entry, s) for s in ("gt", "ge", "lt", "le"))]
            small = [b for b in bounds if min(abs(v) for v in vars_of(b)) < 1e9]
            assert not small or choices(field), f"{table.__name__}.{key}"


def test_choices_are_words_or_bounds() -> None:
    class Table(BaseModel):
        word: Literal["a", "b"] = "a"

    assert choices(Table.model_fields["word"]) == "one of a, b"
    assert choices(Run.model_fields["batchnorm"]) == "one of joint, local"
    assert choices(DataSettings.model_fields["val_share"]) == "at least 0 and below 1"
    assert choices(DataSettings.model_fields["labelled_share"]) == "above 0 and at most 1"
    assert choices(DataSettings.model_fields["n_max"]) == "above 0"
    assert choices(Recipe.model_fields["about"]) == ""
    assert choices(method_class("classifier").table.model_fields["name"]) == ""


def test_show_in_the_terminal(cli: Cli) -> None:
    text = cli("show", "folder").fine()
    assert "# see evenhand list methods" in text
    assert "one of ce, focal, ldam, vs, la, ib" in text
    assert "at least 0 and below 1" in text


def test_the_steps_that_show_names_are_those_there_are() -> None:
    view = {"size": 8, "mean": (0.5,), "std": (0.5,)}
    build(list(STEPS), **view)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="known: ") as caught:
        build(["?"], **view)  # type: ignore[arg-type]
    assert set(str(caught.value).partition("known: ")[2].split(", ")) == set(STEPS)
    said = str(TextSettings.model_fields["augment"].description).partition(": ")[2].split(", ")
    with pytest.raises(ValueError, match="known: ") as caught:
        build_text_view(["?"], length=3)
    assert set(str(caught.value).partition("known: ")[2].split(", ")) == set(said)


def test_few_labels_reads_a_folder_with_unlabelled_images(tmp_path: Path) -> None:
    from PIL import Image

    from evenhand.run.opening import read_data

    for place, count in {
        "train/a": 8,
        "train/b": 7,
        "val/a": 3,
        "val/b": 2,
        "test/a": 2,
        "test/b": 2,
        "unlabelled": 9,
    }.items():
        (tmp_path / place).mkdir(parents=True)
        for i in range(count):
            pixels = np.random.default_rng(len(place) * 100 + i).integers(0, 255, (40, 40, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / place / f"{i}.png")
    data = read_data(load_recipe("few-labels", {"data.set": str(tmp_path), "data.size": 32, "data.groups": "halves"}))
    sizes = {name: len(stream) for name, stream in data.streams.items()}
    assert sizes == {"labelled": 15, "val": 5, "test": 4, "unlabelled": 9}
    assert data.streams["unlabelled"].fetch(torch.tensor([0])).shape == (1, 3, 32, 32)


def test_scenes_are_listed_and_fetched(cli: Cli) -> None:
    assert "trees from the air" in " ".join(cli("list", "data").fine().split())
    said = cli("data", "get", "shape-scenes").fine()
    assert "shape-scenes plain/train: 24 samples, 3 classes" in said
    assert "shape-scenes negative/test: 8 samples" in said
