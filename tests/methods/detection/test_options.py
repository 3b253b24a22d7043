"""What a detector refuses: a start from nothing, and options that would do nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from evenhand.errors import UserError
from evenhand.methods.adapt import detector
from evenhand.methods.adapt.detector import DetectorNet
from evenhand.methods.protocol import Progress
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
        (
            {"optim": {"rho_milestones": [0.5]}},
            "rho_milestones has no effect on a detector, whose radius is method.rho",
        ),
        ({"optim": {"rho_last": 0.1}}, "rho_last has no effect on a detector, whose radius is method.rho"),
        ({"optim": {"rho_values": [0.1], "rho_milestones": []}}, "rho_values has no effect on a detector, whose"),
        ({"optim": {"eps": 1e-4}}, "eps has no effect on a detector; leave it out"),
        ({"optim": {"betas": [0.5, 0.9]}}, "betas has no effect"),
        ({"optim": {"sigma": 0.1}}, "sigma has no effect"),
        ({"optim": {"lpf_gamma": 0.1}}, "lpf_gamma has no effect"),
        ({"optim": {"lpf_parts": 2}}, "lpf_parts has no effect"),
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


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked for of a network and of its weights, in place of both."""
    asked: list[Any] = []
    monkeypatch.setattr(detector, "build_detector", lambda *given, **how: asked.append((given, how)) or "a net")
    monkeypatch.setattr(detector, "obtain_weights", lambda name: f"fetched {name}")
    monkeypatch.setattr(detector, "load_backbone", lambda *given: asked.append(given))
    return asked


def test_every_size_reaches_the_network(built: list[Any]) -> None:
    sizes = {"short_side": 11, "long_side": 12, "anchors": [13], "proposals": 14, "regions": 15, "pyramid": 16}
    assert DetectorNet(name="resnet18-fpn", head=17, **sizes).build(3) == "a net"
    assert built == [(("resnet18-fpn", 3), {**sizes, "fresh": 17})]  # and no weights


def test_weights_are_a_file_or_those_that_can_be_fetched(built: list[Any], tmp_path: Path) -> None:
    (tmp_path / "own.pth").touch()
    DetectorNet(weights=str(tmp_path / "own.pth")).build(3)
    DetectorNet(weights="mobilenet_v2").build(3)
    assert built[1::2] == [("a net", str(tmp_path / "own.pth")), ("a net", "fetched mobilenet_v2")]
    with pytest.raises(
        UserError, match=r"net.weights = 'resnet50' is neither a file nor weights we know: mobilenet_v2"
    ):
        DetectorNet(weights="resnet50").build(3)


def test_detectors_have_the_papers_values_where_nothing_is_said() -> None:
    """Spec 09, 2.8: SGD at 1e-3, a tenth of it after 50,000 of 70,000 steps; rho = 0.15, reversal 0.1."""
    plain, adapted, taught = (
        validate({"method": {"name": name}, "data": {"set": "shape-scenes"}}, "it").method
        for name in ("detector", "da-faster", "mean-teacher")
    )
    for table in (plain, adapted, taught):
        optim = table.optim
        assert (optim.lr, optim.momentum, optim.weight_decay, optim.nesterov) == (1e-3, 0.9, 5e-4, False)
        assert [optim.factor(Progress(step, 10, 70_000)) for step in (0, 49_999, 50_000)] == [1.0, 1.0, 0.1]
        assert (table.batch, table.net.name, table.net.short_side, table.net.long_side) == (
            2,
            "mobilenet_v2",
            600,
            1200,
        )
        assert (table.net.anchors, table.net.proposals, table.net.regions) == ([32, 64, 128, 256, 512], 1000, 512)
        assert (table.net.pyramid, table.net.head, table.net.weights) == (256, 0, "")
    assert (plain.optim.ema, adapted.optim.ema, taught.optim.ema) == (None, None, 0.999)
    assert (plain.views, adapted.views, taught.views) == ("weak", "weak", "strong")
    assert (adapted.image, adapted.instance, adapted.consistency) == (True, True, True)
    assert (adapted.reversal, adapted.hidden, adapted.smooth, adapted.rho) == (0.1, 1024, "none", 0.15)
    assert (taught.threshold, taught.weight, taught.start) == (0.7, 1.0, 0.2)
