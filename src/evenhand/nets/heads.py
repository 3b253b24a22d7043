"""The last layer, linear or cosine, and the convention by which every classifier shows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.errors import did_you_mean

HeadKind = Literal["linear", "cosine"]


class CosineHead(nn.Module):
    """Cosines between features and class vectors: ``x·w_c / (|x| |w_c|)``, no bias.

    LDAM needs it (spec 04). ``weight`` is (K, d) as in ``nn.Linear``; rows start uniform in (-1, 1), then
    scaled to unit length. Outputs lie in [-1, 1]: a loss must multiply them by a scale.

    >>> CosineHead(64, 10)(torch.randn(8, 64)).shape
    torch.Size([8, 10])
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(F.normalize(torch.empty(out_features, in_features).uniform_(-1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x), F.normalize(self.weight))  # (N, K)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class ScaledHead(nn.Module):
    """A classifier, frozen or learning on, whose logits are multiplied by one learnt factor for each class."""

    def __init__(self, head: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.inner = head
        self.scale = nn.Parameter(torch.ones(num_classes))

    def forward(self, features: Tensor) -> Tensor:
        return self.inner(features) * self.scale  # (N, K)


class HeadedNet(nn.Module, ABC):
    """A network that is ``head(features(x))``; subclasses build the layers and write ``features``.

    ``features(x)`` is (N, num_features), ``head`` maps it to (N, K) logits. The head is stored as ``fc``,
    torchvision's name; assigning ``net.head`` replaces that very module.
    """

    fc: nn.Linear | CosineHead

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
        # nn.Module registers submodules before it looks at properties, so a property setter is never called.
        super().__setattr__("fc" if name == "head" else name, value)

    @property
    def head(self) -> nn.Linear | CosineHead:
        return self.fc

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """(N, d) inputs of the head."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))

    def fitted(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file as this network wants them: what can be resized is."""
        return state


def make_head(kind: HeadKind, num_features: int, num_classes: int) -> nn.Linear | CosineHead:
    """A new last layer for ``num_classes`` classes."""
    heads = {"linear": nn.Linear, "cosine": CosineHead}
    if kind not in heads:
        raise ValueError(f"head '{kind}' is unknown; {did_you_mean(str(kind), heads)}")
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}; a classifier needs at least 2 classes")
    return heads[kind](num_features, num_classes)


@torch.no_grad()
def folded(head: nn.Module, logit_scale: float = 1.0) -> nn.Linear:
    """The one linear layer that gives the same logits: learnt scales and ``logit_scale`` go into weight and bias.

    A cosine head has none, since it divides by the features' norm; nor has any other module but ``nn.Linear``.
    """
    scales: Tensor | float = logit_scale  # one, or one for each class
    while isinstance(head, ScaledHead):
        inner, scales = head.inner, scales * head.scale
        head = inner
    if not isinstance(head, nn.Linear):
        raise ValueError(f"the head is a {type(head).__name__}, not linear: give the network an nn.Linear and train it")
    shape = {"in_features": head.in_features, "out_features": head.out_features, "bias": head.bias is not None}
    plain: nn.Linear = nn.utils.skip_init(nn.Linear, **shape).to(head.weight)
    plain.weight.copy_(head.weight * (scales[:, None] if isinstance(scales, Tensor) else scales))
    if head.bias is not None:
        plain.bias.copy_(head.bias * scales)
    return plain
