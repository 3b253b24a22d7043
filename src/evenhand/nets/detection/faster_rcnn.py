"""Faster R-CNN of torchvision in the sizes that the papers and a laptop need.

Images come as floats in 0..1; the detector normalises and resizes them itself, so torchvision's checkpoints load as
they are. BatchNorm is frozen everywhere, as in detection it is, and folded into
the convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenhand.errors import UserError, did_you_mean
from evenhand.nets.detection.folded import fold_norms
from evenhand.nets.detection.torchvision import torchvision
from evenhand.nets.weights import read_tensors

BACKBONES = ("mobilenet_v2", "resnet18-fpn", "resnet50-c4", "resnet50-fpn", "resnet101-c4", "resnet101-fpn")


def build_detector(
    backbone: str,
    num_classes: int,
    *,
    short_side: int,
    long_side: int,
    proposals: int = 1000,
    regions: int = 512,
    anchors: Sequence[int] = (32, 64, 128, 256, 512),
    pyramid: int = 256,
    fresh: int = 0,
) -> nn.Module:
    """A detector of ``num_classes`` besides the background, which is its class 0.

    short_side, long_side: images are scaled to the first unless the second forbids it; proposals: kept of each image
    after suppression; regions: sampled of them in training; anchors: sides in pixels; pyramid: channels of an FPN;
    fresh: width of the box head (0: torchvision's own).
    """
    if backbone not in BACKBONES:
        raise UserError(f"no backbone '{backbone}' for a detector; {did_you_mean(backbone, BACKBONES)}")
    tv = torchvision()
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.rpn import AnchorGenerator

    ratios = (0.5, 1.0, 2.0)
    name, _, kind = backbone.partition("-")
    more: dict[str, Any] = {}
    body: Any
    sizes: tuple[tuple[int, ...], ...]
    if kind == "fpn":
        body = _pyramid(tv, name, pyramid)
        sizes = tuple((side,) for side in anchors)
        if len(sizes) != 5:
            raise UserError(f"a pyramid has five levels: give five anchors, not {len(sizes)}")
    else:
        body = _mobilenet(tv) if name == "mobilenet_v2" else _trunk(tv, name)
        sizes = (tuple(anchors),)
        more["box_roi_pool"] = tv.ops.MultiScaleRoIAlign(["0"], 14 if kind == "c4" else 7, 2)
        if kind == "c4":
            more["box_head"] = _Fifth(tv, name)
            more["box_predictor"] = FastRCNNPredictor(2048, num_classes + 1)
    if fresh and "box_head" not in more:
        more["box_head"] = TwoMLPHead(body.out_channels * 49, fresh)
        more["box_predictor"] = FastRCNNPredictor(fresh, num_classes + 1)
    net = FasterRCNN(
        body, None if "box_predictor" in more else num_classes + 1, min_size=short_side, max_size=long_side,
        rpn_anchor_generator=AnchorGenerator(sizes, (ratios,) * len(sizes)),
        rpn_pre_nms_top_n_train=2 * proposals, rpn_post_nms_top_n_train=proposals,
        rpn_pre_nms_top_n_test=2 * proposals, rpn_post_nms_top_n_test=proposals,
        box_batch_size_per_image=regions, **more,
    )  # fmt: skip
    fold_norms(net)
    return net


def load_backbone(net: nn.Module, file: str | Path) -> None:
    """Weights under torchvision's names: an ImageNet network's, or a whole Faster R-CNN's but for its last layer."""
    weights = read_tensors(Path(file))
    if any(name.startswith("rpn.") for name in weights):
        last = "roi_heads.box_predictor."
        _fit(net, {name: value for name, value in weights.items() if not name.startswith(last)}, file, without=last)
        return
    body: Any = net.backbone
    _fit(body.body if hasattr(body, "body") else body, weights, file)
    head: Any = net.roi_heads.box_head  # type: ignore[union-attr]
    if isinstance(head, _Fifth):
        _fit(head, weights, file)


def _fit(module: nn.Module, weights: dict[str, torch.Tensor], file: str | Path, without: str = "rpn.") -> None:
    """All of the module's layers, of a network that is as deep; the file may have other parts besides."""
    try:
        missing, unexpected = module.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # shapes
        what = str(error).splitlines()[1].strip()
        raise UserError(f"weights '{file}' do not fit the detector ({what}); name the backbone they are of") from error
    stages = {name for name, _ in module.named_children() if name.startswith("layer")}
    strange = [name for name in unexpected if name.partition(".")[0] in stages]
    missing = [name for name in missing if not name.startswith(without)]
    if missing or strange:
        what = f"they lack {missing[0]}" if missing else f"the detector has no {strange[0]}"
        raise UserError(f"weights '{file}' do not fit: {what}; give a file of this backbone with torchvision's names")


class _Numbered(nn.Sequential):
    """Layers under their torchvision names, with the channels that come out."""

    out_channels: int


class _Fifth(nn.Module):
    """The last stage of a ResNet on each region, then the mean: C4's box head."""

    def __init__(self, tv: Any, name: str) -> None:
        super().__init__()
        self.layer4 = getattr(tv.models, name)(weights=None, norm_layer=tv.ops.FrozenBatchNorm2d).layer4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer4(x).mean((2, 3))


def _mobilenet(tv: Any) -> nn.Module:
    """To stride 16, where MobileNetV2 has 96 channels."""
    whole = tv.models.mobilenet_v2(weights=None, norm_layer=tv.ops.FrozenBatchNorm2d)
    body = _Numbered()
    body.add_module("features", whole.features[:14])
    body.out_channels = 96
    return body


def _trunk(tv: Any, name: str) -> nn.Module:
    whole = getattr(tv.models, name)(weights=None, norm_layer=tv.ops.FrozenBatchNorm2d)
    body = _Numbered()
    for part in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3"):
        body.add_module(part, getattr(whole, part))
    for fixed in (whole.conv1, whole.layer1):  # as published: the stem and the first stage stay as they came
        fixed.requires_grad_(False)
    body.out_channels = 1024
    return body


def _pyramid(tv: Any, name: str, channels: int) -> nn.Module:
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    whole = getattr(tv.models, name)(weights=None, norm_layer=tv.ops.FrozenBatchNorm2d)
    for part in (whole.conv1, whole.layer1):
        part.requires_grad_(False)
    widths = [64, 128, 256, 512] if name == "resnet18" else [256, 512, 1024, 2048]
    returned = {f"layer{i}": str(i - 1) for i in range(1, 5)}
    return BackboneWithFPN(whole, returned, widths, channels)
