"""What a detector refuses: a start from nothing, and options that would do nothing."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"optim": {"accumulate": 2}}, "accumulate has no effect on a detector; leave it out"),
        ({"optim": {"rho": 0.1}}, "rho has no effect on a detector, whose radius is method.rho of da-faster"),
        ({"optim": {"rho_relative": True}}, "rho_relative has no effect"),
        ({"optim": {"freeze_bn": False}}, "freeze_bn has no effect"),
        ({"optim": {"clip_apart": True}}, "clip_apart has no effect"),
        ({"optim": {"eps": 1e-4}}, "eps has no effect"),
        ({"name": "mean-teacher", "optim": {"accumulate": 2}}, "accumulate has no effect"),
        ({"net": {"pyramid": 64}}, "net.pyramid has no effect on 'mobilenet_v2', which has none; leave it out"),
        ({"net": {"name": "resnet50-c4", "pyramid": 64}}, "net.pyramid has no effect on 'resnet50-c4'"),
        ({"net": {"name": "resnet50-c4", "head": 64}}, "net.head has no effect on 'resnet50-c4', whose head is the"),
        ({"name": "da-faster", "rho": 0.1}, "rho has no effect with smooth = 'none'"),
        ({"name": "da-faster", "rho_relative": True}, "rho_relative has no effect with smooth = 'none'"),
    ],
)
def test_an_option_without_effect_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        recipe(**table)


def test_options_with_effect_are_taken() -> None:
    recipe(net={"name": "resnet18-fpn", "pyramid": 64, "head": 64}, optim={"clip": 1.0, "ema": 0.9})
    recipe(net={"head": 64}, name="da-faster", smooth="all", rho=0.01, rho_relative=True)


@pytest.mark.usefixtures("tv")
def test_a_teacher_cannot_believe_what_detectors_do_not_tell() -> None:
    least = recipe(name="mean-teacher", threshold=0.05)
    assert least.method.net.build(3).roi_heads.score_thresh == least.method.threshold
    with pytest.raises(UserError, match=r"method\.threshold"):
        recipe(name="mean-teacher", threshold=0.04)
