"""Group spectral regularisation of a conditional GAN (spec 02).

On a long tail, conditional GANs collapse class by class: a rare class begins to draw a single pattern, just when the
spectral norm of its conditional-BatchNorm gains, written as a matrix, explodes. The discriminator shows nothing of
it. So the generator's loss gets the square of that norm, of every class's gain and bias at every layer, rare classes
weighted more; discriminator-side help (DiffAugment, LeCam) adds to it.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Stream, Streams
from evenhand.methods.generate.gan import GAN
from evenhand.methods.generate.players import Condition, GANTable, Nets
from evenhand.methods.protocol import Progress
from evenhand.pieces.spectral import conditional_parameters, gsr_loss, gsrip_loss


class GSRSettings(GANTable):
    """[method] of gSR; ``net.group_normalised`` of a plain GAN is the baseline gSN."""

    name: Literal["gsr-gan"] = "gsr-gan"
    net: Nets = Nets(name="sngan")
    condition: Condition = Field("projection", description="who knows the class: the generator alone, or both")
    rule: Literal["gsr", "gsrip"] = Field("gsr", description="the paper's, or the baseline on Gram matrices")
    strength: float = Field(0.5, ge=0, description="weight of the penalty; 0: plain GAN")
    alpha: float = Field(0.99, ge=0, lt=1, description="of the effective number of samples; 0: all classes alike")
    form: Literal["mean", "sum"] = Field("mean", description="over layers and classes, as released, or the thesis' sum")
    iterations: int = Field(4, gt=0, description="of power iteration at each step")

    @model_validator(mode="after")
    def _conditional(self) -> GSRSettings:
        if self.condition == "none":
            raise ValueError("gSR acts on class parameters: set condition to projection, acgan or generator")
        return self


class GroupSpectral:
    """A conditional GAN whose class parameters are kept from exploding."""

    table = GSRSettings

    def __init__(
        self, settings: GSRSettings, data: Data, *, seed: int, device: torch.device, annotator: Any = None
    ) -> None:
        self.settings = settings
        self.gan = GAN(settings, data, seed=seed, device=device, annotator=annotator)
        self.counts = torch.tensor(data.counts, dtype=torch.float64, device=device)
        self.vectors: dict[str, Tensor] = {}  # of the power iteration, warm from step to step

    check = staticmethod(GAN.check)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        return self.gan.feeds(streams)

    def schedule(self, at: Progress) -> None:
        self.gan.schedule(at)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        gan = self.gan
        for real, labels in gan.parts(batch["labelled"]):
            said = gan.discriminate(real, labels)
        fakes, asked = gan.generate(len(real))
        loss = gan.fooling_loss(fakes, asked, real, labels)
        if not self.settings.strength:
            return said | gan.improve(loss, said)
        penalty = self._penalty()
        said |= gan.improve(loss + self.settings.strength * penalty, said)
        return said | {"penalty": penalty.detach()}

    def _penalty(self) -> Tensor:
        """Of all classes, not only those of the batch."""
        s = self.settings
        gains, biases = conditional_parameters(self.gan.generator.net)
        if s.rule == "gsrip":
            return gsrip_loss(gains, biases, self.counts, alpha=s.alpha, form=s.form)
        return gsr_loss(
            gains, biases, self.counts, alpha=s.alpha, form=s.form, iterations=s.iterations, state=self.vectors
        )

    def sample(self, count: int, labels: Tensor | None = None, *, generator: torch.Generator) -> Tensor:
        """Images, uint8 (N, C, H, W), by the averaged generator."""
        return self.gan.sample(count, labels, generator=generator)

    def judge(self, stream: Stream, *, batch: int = 512) -> dict[str, float]:
        return self.gan.judge(stream, batch=batch)

    def examine(self, stream: Stream, groups: dict[str, list[int]], *, batch: int = 512) -> dict[str, Any]:
        return self.gan.examine(stream, groups, batch=batch)

    def state(self) -> dict[str, Any]:
        return {"gan": self.gan.state(), "vectors": dict(self.vectors)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.gan.load_state(state["gan"])
        self.vectors = dict(state["vectors"])
