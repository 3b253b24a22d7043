"""A narrow layer between a network's features and its classes, as domain adaptation uses it."""

from __future__ import annotations

from torch import Tensor, nn

from evenhand.nets.heads import HeadedNet, make_head


class Bottlenecked(HeadedNet):
    """``fc(bottleneck(backbone.features(x)))``: Linear, BatchNorm, ReLU to ``width`` features, then new classes.

    ``batchnorm=False`` leaves the normalisation out, for networks without any; ``linear`` leaves the ReLU out, too.
    """

    def __init__(
        self, backbone: HeadedNet, width: int, num_classes: int, *, batchnorm: bool = True, linear: bool = False
    ) -> None:
        super().__init__(num_features=width)
        layer = nn.Linear(backbone.num_features, width)
        backbone.head = nn.Identity()  # type: ignore[misc, assignment]
        self.backbone = backbone
        behind = [] if linear else [*([nn.BatchNorm1d(width)] if batchnorm else []), nn.ReLU()]
        self.bottleneck = nn.Sequential(layer, *behind)
        self.fc = make_head("linear", width, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.bottleneck(self.backbone.features(x))
