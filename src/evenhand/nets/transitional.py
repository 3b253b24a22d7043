"""StyleGAN2 whose generator learns to draw before it learns classes: Transitional-cGAN's pair of networks.

``transition`` is the share of the label that counts, 0 to 1, and is set by whoever trains. Names of parameters are
those of the released networks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from evenhand.nets.stylegan2 import Discriminator, DiscriminatorEpilogue, Generator, StyleMapping
from evenhand.nets.stylegan2_layers import LOWEST, MAPPING_RATE, ClassEmbedding, Linear, widths_of


class TransitionalMapping(StyleMapping):
    """The label is added to what the first layer makes of the noise; at 0 the styles are of the noise alone."""

    transition: Tensor

    def __init__(self, latent: int, num_classes: int, width: int, layers: int, *, copies: int) -> None:
        super().__init__(latent, 0, width, layers, copies=copies)
        _has_classes(num_classes)
        self.num_classes = num_classes
        self.embed = ClassEmbedding(num_classes, width)
        self.proj_embedd = Linear(width, width, active=True, rate=MAPPING_RATE)
        self.register_buffer("transition", torch.zeros(()))

    def styles(self, z: Tensor | None, labels: Any, count: int | None = None) -> Tensor:
        assert z is not None  # a generator's
        first, *others = self.names
        of_noise = self._through(self._of_noise(z), [first])
        of_class = self.proj_embedd(self._of_class(labels, len(z)))
        return self._through(of_noise + self.transition * of_class, others)


class TransitionalGenerator(Generator):
    """Called with labels from the first, whatever they count."""

    mapping_kind = TransitionalMapping


class TwoScores(DiscriminatorEpilogue):
    """Features are scored alone (``out_uc``), and by their product with a label's vector (``out_c``)."""

    def __init__(self, width: int, group: int) -> None:
        super().__init__(width, 1, group)
        del self.out
        self.out_uc, self.out_c = Linear(width, 1), Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_uc(self.features(x))


class TransitionalDiscriminator(Discriminator):
    """Scores (N,) of images alone; ``scores`` has those for their labels besides."""

    b4: TwoScores
    transition: Tensor

    def __init__(
        self, size: int, channels: int, num_classes: int, *, base: int = 32768, widest: int = 512, group: int = 4,
        residual: bool = True,
    ) -> None:  # fmt: skip
        _has_classes(num_classes)
        super().__init__(size, channels, num_classes, base=base, widest=widest, group=group, residual=residual)
        self.projects = False
        self.b4 = TwoScores(widths_of(size, base, widest)[LOWEST], group)
        self.register_buffer("transition", torch.zeros(()))

    def scores(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.b4.features(self._lowest(images))
        of_class = self.b4.out_c(x) * self.mapping(labels, len(x))
        return self.b4.out_uc(x)[:, 0], of_class.sum(1) / math.sqrt(of_class.shape[1])


def _has_classes(count: int) -> None:
    if count < 1:
        raise ValueError(f"num_classes={count}: a transition to classes needs some; without, use nets.stylegan2")
