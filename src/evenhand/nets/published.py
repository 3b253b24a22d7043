"""ResNets as others have published their weights: BatchNorm folded away, or Caffe's order of strides and colours.

Both take images as all our ImageNet networks do, RGB normalised by ImageNet's statistics; what their weights
want instead is done inside, so that data, views and exports need not know.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evenhand.nets.heads import HeadKind
from evenhand.nets.imagenet import Bottleneck, ImageNetResNet

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # RGB, of pixels in 0..1
CAFFE_MEAN = (103.939, 116.779, 123.68)  # BGR, of pixels in 0..255


class FoldedResNet(ImageNetResNet):
    """A ResNet whose BatchNorm layers have become biases of their convolutions.

    In use it computes what the original does. Fine-tuned, it behaves like one with frozen BatchNorm: nothing is
    normalised by the batch, and no statistics follow the new images.
    """

    def __init__(
        self, depth: int, *, num_classes: int, channels: int = 3, head: HeadKind = "linear", width: int = 64
    ) -> None:
        super().__init__(depth, num_classes=num_classes, channels=channels, head=head, width=width)
        for module in list(self.modules()):
            for name, part in list(module.named_children()):
                if isinstance(part, nn.BatchNorm2d):
                    setattr(module, name, nn.Identity())
                elif isinstance(part, nn.Conv2d):
                    part.bias = nn.Parameter(torch.zeros(part.out_channels))


class CaffeResNet(ImageNetResNet):
    """The ResNet of 2015: the stride in a block's first 1x1, BatchNorm's epsilon 0.001, BGR images less their mean."""

    scale: Tensor
    shift: Tensor

    def __init__(
        self, depth: int, *, num_classes: int, channels: int = 3, head: HeadKind = "linear", width: int = 64
    ) -> None:
        if channels != 3:
            raise ValueError(
                f"inputs is {channels}; a ResNet of Caffe's takes colour images (3): set data.grey = false"
            )
        super().__init__(depth, num_classes=num_classes, head=head, width=width)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-3
            elif isinstance(module, Bottleneck):
                module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
        mean, std, own = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD, CAFFE_MEAN[::-1]))
        self.register_buffer("scale", 255 * std, persistent=False)
        self.register_buffer("shift", 255 * mean - own, persistent=False)

    def features(self, x: Tensor) -> Tensor:
        return super().features((x * self.scale + self.shift).flip(1))
