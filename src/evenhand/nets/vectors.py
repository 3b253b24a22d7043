"""A perceptron for samples that are vectors already: features of another network, tables."""

from __future__ import annotations

from torch import Tensor, nn

from evenhand.nets.heads import HeadedNet, HeadKind, make_head


class Perceptron(HeadedNet):
    """``depth`` hidden layers of ``width`` units, ReLU after each, BatchNorm before it if asked; x (N, inputs).

    Without any, it is a linear classifier.
    """

    def __init__(
        self, depth: int = 2, *, num_classes: int, inputs: int, head: HeadKind = "linear", width: int = 256,
        batch_norm: bool = False,
    ) -> None:  # fmt: skip
        last = width if depth else inputs
        super().__init__(num_features=last)
        layers: list[nn.Module] = []
        for before in [inputs, *[width] * (depth - 1)][:depth]:
            norm = [nn.BatchNorm1d(width)] if batch_norm else []
            layers += [nn.Linear(before, width, bias=not batch_norm), *norm, nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        self.fc = make_head(head, last, num_classes)

    def features(self, x: Tensor) -> Tensor:
        if x.ndim != 2:
            raise ValueError(f"samples of shape {tuple(x.shape)}: this net takes vectors (N, d); set data.embed")
        return self.layers(x)
