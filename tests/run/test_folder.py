"""What a run's folder tells of its data and its temperature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.run.folder import Model, _told, check_streams, describe, keep_temperature, read_model, told_streams
from evenhand.run.recipe import Recipe
from helpers import toy_data


def stream(name: str, count: int = 4, *, labelled: bool = True) -> Stream:
    images = torch.arange(4 * count, dtype=torch.uint8).view(count, 1, 2, 2)
    return Stream(Memory(images), torch.arange(count) % 2 if labelled else None, ("a", "b"), name)


def told(folder: Path, **streams: Stream) -> Path:
    (folder / "streams.json").write_text(json.dumps({name: _told(one) for name, one in streams.items()}))
    return folder


def test_streams_are_counted_where_they_have_labels(tmp_path: Path) -> None:
    assert _told(stream("x"))["counts"] == [2, 2]
    assert _told(stream("x", labelled=False))["counts"] is None
    assert told_streams(tmp_path) == {}
    told(tmp_path, x=stream("x", 3))
    assert told_streams(tmp_path)["x"].samples == 3


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"labelled": stream("labelled")}, "'val' had 4 samples, has 0,"),
        (
            {"labelled": stream("labelled"), "val": stream("val"), "test": stream("test", 3)},
            "'test' had 0 samples, has 3,",
        ),
        ({"labelled": stream("labelled", 5), "val": stream("val")}, "'labelled' had 4 samples, has 5,"),
    ],
)  # fmt: skip
def test_other_data_than_a_run_began_with_are_refused(tmp_path: Path, now: dict[str, Stream], said: str) -> None:
    before = {"labelled": stream("labelled"), "val": stream("val")}
    check_streams(told(tmp_path, **before), before)
    with pytest.raises(UserError, match=said):
        check_streams(tmp_path, now)


@pytest.mark.parametrize(("value", "kept"), [(None, None), (0.011, None), (0.012, 0.012), (1.5, 1.5)])
def test_a_temperature_is_kept_unless_validation_had_no_mistake(
    tmp_path: Path, tiny: Any, value: float | None, kept: float | None
) -> None:
    recipe: Recipe = tiny()
    model = Model(
        task="classify", digest=recipe.digest(), facts=toy_data("ab", size=[8, 8], mean=[0.5], std=[0.5]).facts
    )
    describe(tmp_path, recipe, model, {})
    written = (tmp_path / "model.json").stat().st_ino
    keep_temperature(tmp_path, value)
    assert read_model(tmp_path).temperature == kept
    assert ((tmp_path / "model.json").stat().st_ino == written) == (kept is None)  # nothing is written for nothing
