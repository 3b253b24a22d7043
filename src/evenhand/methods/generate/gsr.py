"""Group spectral regularisation of a conditional GAN (spec 02): a term of the generator's loss.

On a long tail, conditional GANs collapse class by class: a rare class begins to draw a single pattern, just when the
spectral norm of its conditional-BatchNorm gains, written as a matrix, explodes. The discriminator shows nothing of
it. So the generator's loss gets the square of that norm, of every class's gain and bias at every layer, rare classes
weighted more; discriminator-side help (DiffAugment, LeCam) adds to it.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from evenhand.methods.generate.term import Term
from evenhand.pieces.spectral import class_spectral_norms, conditional_parameters, gsr_loss, gsrip_loss
from evenhand.settings import Settings


class SpectralSettings(Settings):
    """[method.gsr] of any conditional GAN."""

    rule: Literal["gsr", "gsrip"] = Field("gsr", description="the paper's, or the baseline on Gram matrices")
    strength: float = Field(0.5, ge=0, description="weight of the penalty; 0: plain GAN")
    alpha: float = Field(0.99, ge=0, lt=1, description="of the effective number of samples; 0: all classes alike")
    form: Literal["mean", "sum"] = Field("mean", description="over layers and classes, as released, or the thesis' sum")
    iterations: int = Field(4, gt=0, description="of power iteration at each step")


class Spectral(Term):
    """The penalty on a generator's class parameters: of all classes, not only those of the batch."""

    def __init__(self, settings: SpectralSettings, counts: list[int], draws: nn.Module, device: torch.device) -> None:
        self.settings, self.strength, self.draws = settings, settings.strength, draws
        self.counts = torch.tensor(counts, dtype=torch.float64, device=device)
        self.vectors: dict[str, Tensor] = {}  # of the power iteration, warm from step to step

    def __call__(self, fakes: Tensor, asked: Tensor | None) -> Tensor:
        s = self.settings
        gains, biases = conditional_parameters(self.draws)
        if s.rule == "gsrip":
            return gsrip_loss(gains, biases, self.counts, alpha=s.alpha, form=s.form)
        return gsr_loss(
            gains, biases, self.counts, alpha=s.alpha, form=s.form, iterations=s.iterations, state=self.vectors
        )

    def state(self) -> dict[str, Any]:
        return dict(self.vectors)

    def load_state(self, state: dict[str, Any]) -> None:
        self.vectors = dict(state)


@torch.no_grad()
def spectral_norms(draws: nn.Module) -> dict[str, Tensor]:
    """What explodes: largest singular values of every layer's grouped class gains and biases, (layers, K) each."""
    gains, biases = conditional_parameters(draws)
    found = {"sigma_gain": gains, "sigma_bias": biases}
    return {name: class_spectral_norms(tables).cpu() for name, tables in found.items() if tables}
