"""Wide ResNet for small images, as the semi-supervised methods use it (spec 06, section 3)."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.nets.cifar import conv3x3
from evenhand.nets.heads import HeadedNet, HeadKind, make_head
from evenhand.nets.pointwise import conv1x1

SLOPE = 0.1
# Slow running statistics, of one pace with the EMA of the weights (decay 0.999).
BatchNorm = partial(nn.BatchNorm2d, momentum=0.001)


class WideBlock(nn.Module):
    """Pre-activation block; where the shape changes, the shortcut is a 1x1 conv of the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = BatchNorm(inputs)
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn2 = BatchNorm(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = conv1x1(inputs, outputs, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.leaky_relu_(self.bn1(x), SLOPE)
        out = self.conv2(F.leaky_relu_(self.bn2(self.conv1(active)), SLOPE))
        return out.add_(self.shortcut(active) if self.shortcut else x)


class WideResNet(HeadedNet):
    """WRN-28-k: four blocks in each of three stages with ``factor`` times 16, 32, 64 channels.

    LeakyReLU 0.1 throughout, He initialisation (fan out), head bias 0. WRN-28-2 has 1,467,610 parameters
    for 10 classes.
    """

    def __init__(
        self,
        factor: int,
        *,
        num_classes: int,
        channels: int = 3,
        head: HeadKind = "linear",
        width: int = 16,
        stem_stride: int = 1,
    ) -> None:
        super().__init__(num_features=4 * width * factor)
        sizes = [width, width * factor, 2 * width * factor, 4 * width * factor]
        self.conv1 = conv3x3(channels, width, stem_stride)
        self.layer1 = _stage(sizes[0], sizes[1], stride=1)
        self.layer2 = _stage(sizes[1], sizes[2], stride=2)
        self.layer3 = _stage(sizes[2], sizes[3], stride=2)
        self.bn1 = BatchNorm(sizes[3])
        self.fc = make_head(head, self.num_features, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(self.fc, nn.Linear):
            nn.init.zeros_(self.fc.bias)

    def features(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return F.leaky_relu_(self.bn1(x), SLOPE).mean((2, 3))


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    rest = (WideBlock(outputs, outputs, 1) for _ in range(3))
    return nn.Sequential(WideBlock(inputs, outputs, stride), *rest)
