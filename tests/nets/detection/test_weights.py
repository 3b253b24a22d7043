"""Files of torchvision's networks in our detectors: random weights under their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.errors import UserError
from evenhand.methods.adapt.detector import DetectorNet
from evenhand.nets.detection.faster_rcnn import build_detector, load_backbone
from evenhand.run.recipe import load_recipe

pytestmark = pytest.mark.usefixtures("tv")
SMALL = {"short_side": 32, "long_side": 32, "fresh": 8, "pyramid": 8}


@pytest.fixture(scope="module")
def published(tv: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``published("resnet50")``: the network with random weights and statistics, and its file."""
    place, made = tmp_path_factory.mktemp("weights"), {}

    def make(name: str) -> tuple[nn.Module, Path]:
        if name not in made:
            net = getattr(tv.models, name)(weights=None).eval()
            for part in net.modules():
                if isinstance(part, nn.BatchNorm2d):
                    part.running_mean.normal_(std=0.1)
                    part.running_var.uniform_(0.5, 1.5)
            torch.save(net.state_dict(), place / f"{name}.pth")
            made[name] = net, place / f"{name}.pth"
        return made[name]

    return make


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and float((a - b).norm() / b.norm()) < 1e-4


def stages(net: Any, x: Tensor) -> list[Tensor]:
    x = net.maxpool(net.relu(net.bn1(net.conv1(x))))
    found = []
    for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
        x = stage(x)
        found.append(x)
    return found


@pytest.mark.parametrize("recipe", ["voc-clipart", "cityscapes-foggy"])
@torch.no_grad()
def test_backbones_of_the_paper_recipes_load(published: Any, recipe: str) -> None:
    name = load_recipe(recipe).method.net.name  # type: ignore[attr-defined]
    theirs, file = published(name.removesuffix("-c4"))
    ours: Any = build_detector(name, 3, **SMALL).eval()
    load_backbone(ours, file)
    x = torch.rand(1, 3, 32, 32)
    *_, third, _ = stages(theirs, x)
    assert same(ours.backbone(x), third)
    regions = torch.rand(2, 1024, 6, 6)
    assert same(ours.roi_heads.box_head(regions), theirs.layer4(regions).mean((2, 3)))


@torch.no_grad()
def test_a_pyramid_stands_on_the_file_s_stages(published: Any) -> None:
    theirs, file = published("resnet18")
    ours: Any = build_detector("resnet18-fpn", 3, **SMALL).eval()
    load_backbone(ours, file)
    x = torch.rand(1, 3, 32, 32)
    for mine, stage in zip(ours.backbone.body(x).values(), stages(theirs, x), strict=True):
        assert same(mine, stage)


@torch.no_grad()
def test_mobilenet_loads_as_far_as_it_is_used(published: Any) -> None:
    theirs, file = published("mobilenet_v2")
    ours: Any = build_detector("mobilenet_v2", 3, **SMALL).eval()
    load_backbone(ours, file)
    x = torch.rand(1, 3, 32, 32)
    assert same(ours.backbone(x), theirs.features[:14](x))


def test_a_whole_detector_loads_but_for_its_classes(tmp_path: Path) -> None:
    theirs = build_detector("resnet18-fpn", 90, **SMALL)
    torch.save(theirs.state_dict(), tmp_path / "coco.pth")
    ours = build_detector("resnet18-fpn", 3, **SMALL)
    before = ours.state_dict()["roi_heads.box_predictor.cls_score.weight"].clone()
    load_backbone(ours, tmp_path / "coco.pth")
    mine, wanted = ours.state_dict(), theirs.state_dict()
    for name in ("rpn.head.conv.0.0.weight", "roi_heads.box_head.fc6.weight", "backbone.fpn.inner_blocks.0.0.weight"):
        assert torch.equal(mine[name], wanted[name])
    assert torch.equal(mine["roi_heads.box_predictor.cls_score.weight"], before)


@pytest.mark.parametrize(
    ("backbone", "other", "said"),
    [
        ("resnet50-c4", "resnet101", "the detector has no layer3.6"),
        ("resnet101-c4", "resnet50", "they lack layer3.6"),
        ("resnet50-c4", "resnet18", "size mismatch"),
        ("resnet18-fpn", "mobilenet_v2", "they lack conv1"),
    ],
)
def test_a_file_of_another_network_is_refused(published: Any, backbone: str, other: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_backbone(build_detector(backbone, 3, **SMALL), published(other)[1])


@pytest.mark.parametrize("name", ["resnet50", "mnist", "nowhere.pth"])
def test_names_that_are_no_weights_for_a_detector(name: str) -> None:
    with pytest.raises(UserError, match="neither a file nor weights we know"):
        DetectorNet(weights=name, short_side=32, long_side=32, head=8).build(3)
