"""Networks for small images: the CIFAR ResNets of He et al. (6n+2 layers) and two plain convnets for CPUs."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.nets.heads import HeadedNet, HeadKind, make_head


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def kaiming_normal(net: nn.Module) -> None:
    """Kaiming-normal (fan in) weights on convolutions and linear layers; biases as PyTorch draws them."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)


def shortcut_a(x: Tensor, channels: int, stride: int) -> Tensor:
    """Option A: every ``stride``-th pixel, and zero channels added on both sides; no parameters."""
    extra = channels - x.shape[1]
    if stride == 1 and extra == 0:
        return x
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, extra // 2, extra - extra // 2))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.outputs, self.stride = outputs, stride

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu_(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu_(out.add_(shortcut_a(x, self.outputs, self.stride)))


class CifarResNet(HeadedNet):
    """ResNet-(6n+2) with option-A shortcuts: three stages of ``width``, 2x, 4x channels, then the mean.

    ResNet-32 with ``width=16`` has 464,154 parameters for 10 classes (spec 04, 3.1). ``stem_stride=2``
    halves the image in the first layer: a quarter of the work, for experiments on a CPU.
    """

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int,
        channels: int = 3,
        head: HeadKind = "linear",
        width: int = 16,
        stem_stride: int = 1,
    ) -> None:
        super().__init__(num_features=4 * width)
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth is {depth}; a CIFAR ResNet has 6n+2 layers: 8, 14, 20, 32, 44, 56")
        blocks = (depth - 2) // 6
        self.conv1 = conv3x3(channels, width, stem_stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, blocks, stride=1)
        self.layer2 = _stage(width, 2 * width, blocks, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, blocks, stride=2)
        self.fc = make_head(head, self.num_features, num_classes)
        kaiming_normal(self)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu_(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))  # (N, 4 width, H/4, W/4)
        return x.mean((2, 3))


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)))


class SmallCNN(HeadedNet):
    """Four convolutions with BatchNorm and ReLU, and the mean: made for 28x28 images on one core.

    The first three halve the image; the fourth lets each feature see all of it (31 pixels across).
    61,050 parameters for grey images and 10 classes at ``width=16``.
    """

    def __init__(self, *, num_classes: int, channels: int = 3, head: HeadKind = "linear", width: int = 16) -> None:
        super().__init__(num_features=4 * width)
        sizes = pairwise([channels, width, 2 * width, 4 * width, 4 * width])
        self.layers = nn.Sequential()
        for (inputs, outputs), stride in zip(sizes, (2, 2, 2, 1), strict=True):
            block = [conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            self.layers.extend(block)
        self.fc = make_head(head, self.num_features, num_classes)
        kaiming_normal(self)

    def features(self, x: Tensor) -> Tensor:
        return self.layers(x).mean((2, 3))


class LeNet(HeadedNet):
    """Two 5x5 convolutions, each max-pooled, and a hidden layer, with ReLU; no BatchNorm (after LeCun et al. 1998).

    The network of the digits in domain adaptation: it keeps where things are, and has no statistics that another domain
    would upset. 80,202 parameters for grey images and 10 classes at ``width=16``.
    """

    def __init__(self, *, num_classes: int, channels: int = 3, head: HeadKind = "linear", width: int = 16) -> None:
        super().__init__(num_features=8 * width)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 5), nn.MaxPool2d(2), nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 5), nn.AdaptiveMaxPool2d(4), nn.ReLU(inplace=True),
            nn.Flatten(), nn.Linear(32 * width, 8 * width), nn.ReLU(inplace=True),
        )  # fmt: skip
        self.fc = make_head(head, self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.layers(x)
