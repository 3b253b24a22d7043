"""What a detector refuses: a start from nothing, and options that would do nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evenhand.errors import UserError
from evenhand.run import checkpoint, train
from evenhand.run.check import check_recipe
from evenhand.run.opening import open_run
from evenhand.run.recipe import Recipe, load_recipe, validate

SMALL = {"short_side": 64, "long_side": 64, "proposals": 20, "regions": 8}


def recipe(folder: Path = Path("run"), *, net: dict[str, Any] | None = None, **method: Any) -> Recipe:
    tree = {
        "method": {"name": "detector", "batch": 2, **method, "net": {**SMALL, **(net or {})}},
        "data": {"set": "shape-scenes", "source": ["plain"], "target": "negative"},
        "run": {"folder": str(folder), "steps": 2, "progress": False, "threads": 1},
    }
    return validate(tree, "mine")


@pytest.mark.parametrize("asked", [check_recipe, train])
@pytest.mark.parametrize(
    ("name", "file"), [("voc-clipart:sdat", "resnet101.pth"), ("cityscapes-foggy:da-faster", "resnet50.pth")]
)
def test_a_resnet_without_weights_is_refused_before_data_are_read(
    asked: Any, name: str, file: str, tmp_path: Path
) -> None:
    given = load_recipe(name, {"run.folder": str(tmp_path / "run"), "data.set": str(tmp_path / "nowhere")})
    with pytest.raises(UserError, match=f"--set method.net.weights={file}, torchvision's ImageNet file"):
        asked(given)


@pytest.mark.usefixtures("tv")
def test_a_run_that_has_begun_is_not_asked_for_weights(tmp_path: Path) -> None:
    begun = recipe(tmp_path, net={"name": "resnet18-fpn", "pyramid": 8, "head": 8}).changed({"run.stop_after": 1})
    train(begun, smoke=True)
    train(begun.changed({"run.stop_after": None, "run.resume": True}))
    assert checkpoint.load(tmp_path / "last.pt")["step"] == 2
    assert open_run(tmp_path).step == 2
