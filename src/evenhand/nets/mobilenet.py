"""MobileNetV2 with torchvision's parameter names, so that its file loads: the small ImageNet net for adaptation."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from evenhand.nets.heads import CosineHead, HeadedNet, HeadKind, make_head

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel by 3x3, project back by 1x1 without ReLU; a shortcut where shapes agree."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        expand = [] if expansion == 1 else [_conv(inputs, inner, 1)]
        project = nn.Conv2d(inner, outputs, 1, bias=False)
        self.conv = nn.Sequential(*expand, _conv(inner, inner, 3, stride, inner), project, nn.BatchNorm2d(outputs))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetV2(HeadedNet):
    """17 inverted residuals between two convolutions (Sandler et al. 2018); 1280 features, stride 32.

    ``width`` is the number of channels after the first layer and scales all others.
    """

    def __init__(self, *, num_classes: int, channels: int = 3, head: HeadKind = "linear", width: int = 32) -> None:
        super().__init__(num_features=1280 * width // 32)
        layers: list[nn.Module] = [_conv(channels, width, 3, 2)]
        inputs = width
        for expansion, planes, blocks, stride in STAGES:
            outputs = max(1, planes * width // 32)
            for block in range(blocks):
                layers.append(InvertedResidual(inputs, outputs, expansion, stride if block == 0 else 1))
                inputs = outputs
        layers.append(_conv(inputs, self.num_features, 1))
        # The pooling at the end has no weights, so the file's names are not disturbed by it.
        self._modules["features"] = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        # In torchvision's dropout's place nothing, because net(x) is net.head(net.features(x)).
        self.classifier = nn.Sequential(nn.Identity(), make_head(head, self.num_features, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
        if name == "head":
            self.classifier[1] = cast(nn.Module, value)
        else:
            super().__setattr__(name, value)

    @property
    def features(self) -> nn.Sequential:
        """x (N, 3, H, W) -> (N, 1280): a module, because torchvision calls its layers so."""
        return cast(nn.Sequential, self._modules["features"])

    @property
    def head(self) -> nn.Linear | CosineHead:
        return cast("nn.Linear | CosineHead", self.classifier[1])

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
