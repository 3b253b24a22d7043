"""Any network of the timm package, where that is installed."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from evenhand.errors import UserError
from evenhand.nets.heads import HeadedNet, HeadKind, make_head


class TimmNet(HeadedNet):
    """``timm:NAME``: timm's network without its classes as backbone, pooled features, then ours.

    ``pretrained`` lets timm fetch its weights; ``drop_path`` is its ``drop_path_rate``, where the network has one.
    """

    def __init__(
        self, name: str, *, num_classes: int, channels: int = 3, head: HeadKind = "linear", pretrained: bool = False,
        drop_path: float | None = None,
    ) -> None:  # fmt: skip
        try:
            timm: Any = importlib.import_module("timm")
        except ImportError as error:
            raise UserError(f"net 'timm:{name}' needs the extra: pip install 'evenhand[timm]'") from error
        if not timm.is_model(name):
            raise UserError(f"timm has no network '{name}'; see timm.list_models()")
        more = {} if drop_path is None else {"drop_path_rate": drop_path}
        backbone = timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=channels, **more)
        super().__init__(num_features=backbone.num_features)
        self.backbone = backbone
        self.fc = make_head(head, self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.backbone(x)
