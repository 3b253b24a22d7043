"""Transitional-cGAN (Shahbazi et al., ICLR 2022) on StyleGAN2, the few-shot baseline of spec 03.

With few images a conditional StyleGAN2 collapses where an unconditional one does not. So both players begin without
classes: the critic's score of an image alone always counts, its score for the label counts ``transition`` times, and
so much of the label enters the generator's styles. The share grows from 0 to 1 between two marks and stays there. With
[method.twins] it is NoisyTwins' last row: noise on the class embeddings, and their loss on the styles.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import softplus

from evenhand.methods.generate.stylegan import Part, StyleGAN2
from evenhand.methods.generate.stylegan_tables import StyleTable
from evenhand.methods.protocol import Progress
from evenhand.nets.transitional import TransitionalDiscriminator, TransitionalGenerator
from evenhand.settings import Settings


class Transition(Settings):
    """[method.transition]: from no classes to classes, in thousands of images seen."""

    start: float = Field(2000.0, ge=0, description="thousand images before classes begin to count")
    end: float = Field(4000.0, ge=0, description="thousand images from which on they count in full")

    @model_validator(mode="after")
    def _ordered(self) -> Transition:
        if self.end < self.start:
            raise ValueError(f"the transition ends at {self.end:g} thousand images, before it starts at {self.start:g}")
        return self

    def share(self, images: float) -> float:
        """Of the classes, after so many images."""
        gone, length = images / 1000 - self.start, self.end - self.start
        return min(1.0, max(0.0, gone / length)) if length else float(gone >= 0)


class TransitionalSettings(StyleTable):
    """[method] of Transitional-cGAN."""

    name: Literal["transitional-gan"] = "transitional-gan"
    condition: Literal["projection"] = Field("projection", description="how the second score knows classes: projection")
    transition: Transition = Transition()

    def build(self, size: int, channels: int, num_classes: int) -> tuple[nn.Module, nn.Module]:
        return self.net.build(TransitionalGenerator, TransitionalDiscriminator, size, channels, num_classes)


class TransitionalGAN(StyleGAN2):
    """StyleGAN2 that learns to draw before it learns classes."""

    table = TransitionalSettings

    def schedule(self, at: Progress) -> None:
        super().schedule(at)
        share = self.settings.transition.share(at.step * self.images_a_step)
        nets: list[Any] = [self.generator.net.mapping, self.discriminator.net]
        for net in nets:
            net.transition.fill_(share)

    def _judged(
        self, images: Tensor, labels: Tensor | None, part: Part, *, learning: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Scores of the images alone, and the transition's share of the same loss for their labels."""
        net: Any = self.discriminator.net.train().requires_grad_(learning)
        score, of_class = net.scores(self._augmented(images), labels)
        sign = 1 if part == "fake" else -1
        return score, net.transition * softplus(sign * of_class.float()).mean()

    def _draw(
        self, count: int, chance: torch.Generator, frequencies: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Labels are asked for as often as the data have them, as the authors do."""
        return super()._draw(count, chance, 1 / torch.tensor(self.data.counts, dtype=torch.float64))

    def traces(self) -> dict[str, float]:
        return super().traces() | {"transition": float(self.discriminator.net.transition)}  # type: ignore[arg-type]
