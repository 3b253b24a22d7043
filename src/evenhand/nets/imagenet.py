"""ResNet-18/34/50/101 for large images, with torchvision's parameter names so that its files load."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.nets.cifar import conv3x3
from evenhand.nets.heads import HeadedNet, HeadKind, make_head
from evenhand.nets.pointwise import conv1x1


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _downsample(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu_(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu_(out.add_(self.downsample(x) if self.downsample else x))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1; the stride sits in the 3x3 ("V1.5"), as in torchvision's weights."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = conv1x1(inputs, planes)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = conv1x1(planes, outputs)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu_(self.bn1(self.conv1(x)))
        out = F.relu_(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu_(out.add_(self.downsample(x) if self.downsample else x))


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


LAYOUTS: dict[int, tuple[type[BasicBlock | Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}


class ImageNetResNet(HeadedNet):
    """The ImageNet ResNet: 7x7 stem, four stages of ``width``, 2x, 4x, 8x planes, then the mean.

    Features: 512 for ResNet-18/34, 2048 for ResNet-50/101. ``zero_init_residual`` starts each block as
    the identity (the last BatchNorm gain of every branch is 0).
    """

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int,
        channels: int = 3,
        head: HeadKind = "linear",
        width: int = 64,
        zero_init_residual: bool = False,
    ) -> None:
        if depth not in LAYOUTS:
            raise ValueError(f"depth is {depth}; choose one of {', '.join(map(str, LAYOUTS))}")
        block, blocks = LAYOUTS[depth]
        super().__init__(num_features=8 * width * block.expansion)
        self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        planes = [width * 2**i for i in range(4)]
        inputs = [width] + [p * block.expansion for p in planes[:3]]
        self.layer1 = _stage(block, inputs[0], planes[0], blocks[0], stride=1)
        self.layer2 = _stage(block, inputs[1], planes[1], blocks[1], stride=2)
        self.layer3 = _stage(block, inputs[2], planes[2], blocks[2], stride=2)
        self.layer4 = _stage(block, inputs[3], planes[3], blocks[3], stride=2)
        self.fc = make_head(head, self.num_features, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_residual and isinstance(module, BasicBlock | Bottleneck):
                last = module.bn2 if isinstance(module, BasicBlock) else module.bn3
                nn.init.zeros_(last.weight)

    def features(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu_(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (N, d, H/32, W/32)
        return x.mean((2, 3))


def _stage(block: type[BasicBlock | Bottleneck], inputs: int, planes: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (block(planes * block.expansion, planes, 1) for _ in range(blocks - 1))
    return nn.Sequential(block(inputs, planes, stride), *rest)
