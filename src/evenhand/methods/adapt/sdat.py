"""Smooth domain-adversarial training, SDAT (spec 09).

Low curvature of the task loss goes with stable adversarial training and better accuracy on the target, while smoothing
the adversarial loss hurts. So sharpness-aware minimisation acts on the task loss alone: the source's cross-entropy and
whatever else is not adversarial. It wraps every method of adversarial.py, for one more pass a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.build import Data
from evenhand.data.loader import Batch
from evenhand.methods.adapt.adversarial import AdaptTable, DomainAdversarial, Scalars
from evenhand.methods.protocol import Progress
from evenhand.pieces.sam import SAM, relative_radius

Climb = tuple[SAM, nn.Module, float]  # perturbs its optimiser's parameters, which are this module's, by this radius


class SDATSettings(AdaptTable):
    """[method] of SDAT; ``optim.freeze_bn = false`` moves BatchNorm statistics in both passes, as the authors do."""

    name: Literal["sdat"] = "sdat"
    smooth: Literal["task", "adversary", "both", "all"] = Field(
        "task", description="task: SDAT; adversary, both: ablations; all: SAM on everything, one norm"
    )
    rho: float = Field(0.02, ge=0, description="radius for the classifier, and for all")
    rho_adversary: float = Field(0.02, ge=0, description="radius for the discriminator, with adversary and both")
    rho_relative: bool = Field(False, description="radii are shares of the weight norm")
    adv_at: Literal["perturbed", "clean"] = Field(
        "perturbed",
        description="weights at which the adversarial gradient is taken: as released, or as in the equation",
    )

    @model_validator(mode="after")
    def _smoothable(self) -> SDATSettings:
        if self.adversary == "none" and self.smooth != "task":
            raise ValueError(f"smooth = '{self.smooth}' needs an adversary: set adversary, or smooth = 'task'")
        if self.adv_at == "clean" and self.smooth != "task":
            raise ValueError(f"adv_at = 'clean' goes with smooth = 'task', got '{self.smooth}'")
        return self


class SDAT(DomainAdversarial):
    """DomainAdversarial whose second pass, the one that counts, is taken at the worst weights nearby."""

    settings = SDATSettings
    set: SDATSettings

    def __init__(self, settings: SDATSettings, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        self.climbs = self._climbs()

    def _climbs(self) -> list[Climb]:
        s, theta, phi = self.set, self.player, self.adversary
        if s.smooth == "all" and phi is not None:
            joint = torch.optim.SGD([*theta.parameters, *phi.parameters])  # climbs, never steps
            return [(SAM(joint), nn.ModuleList([theta.net, phi.net]), s.rho)]
        task: list[Climb] = [(SAM(theta.optimizer), theta.net, s.rho)] if s.smooth in ("task", "both") else []
        smoothed = phi is not None and s.smooth in ("adversary", "both")
        return task + ([(SAM(phi.optimizer), phi.net, s.rho_adversary)] if smoothed and phi is not None else [])

    def schedule(self, at: Progress) -> None:
        super().schedule(at)
        for sam, net, rho in self.climbs:
            sam.rho = relative_radius(net.parameters(), rho) if self.set.rho_relative else rho

    def update(self, batch: dict[str, Batch]) -> Scalars:
        s, held = self.set, []
        x, y = self.rows(batch)
        features, logits = self.forward(x)
        task, said = self.task_loss(x, logits, y)
        if s.adv_at == "clean":
            adversarial, heard = self.adversarial_loss(features, logits, len(y))
            held = self._gradient(s.trade_off * adversarial)
        self.player.backward(self._climbed(task, features, logits, len(y)))
        with self._ascent():  # the weights stand at theta + rho g / |g|
            if s.smooth != "adversary":  # else theta is where it was
                features, logits = self.forward(x)
                task, said = self.task_loss(x, logits, y)
            if s.adv_at == "perturbed":
                adversarial, heard = self.adversarial_loss(features, logits, len(y))
            loss = task + s.trade_off * adversarial
            self.player.backward(task if held else loss)
        for p, gradient in held:
            p.grad = gradient if p.grad is None else p.grad + gradient
        self.step()
        return {"loss": loss.detach(), **said, **heard}

    def _climbed(self, task: Tensor, features: Tensor, logits: Tensor, n: int) -> Tensor:
        """The loss along whose gradient the weights are perturbed; under ``task`` the discriminator is not even run."""
        s = self.set
        if s.smooth == "task":
            return task
        if s.smooth == "all":
            return task + s.trade_off * self.adversarial_loss(features, logits, n)[0]
        adversarial, _ = self.adversarial_loss(features.detach(), logits.detach(), n)
        return adversarial if s.smooth == "adversary" else task + adversarial

    @contextmanager
    def _ascent(self) -> Iterator[None]:
        with ExitStack() as stack:
            for sam, net, _ in self.climbs:
                parallel.average_gradients(net.parameters())
                stack.enter_context(sam.ascent(net if self.set.optim.freeze_bn else None))
            yield

    def _gradient(self, loss: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """Of a loss at the weights as they are, for both players; its graph stays."""
        if self.adversary is None:
            return []
        params = [*self.player.parameters, *self.adversary.parameters]
        found = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        return [(p, g) for p, g in zip(params, found, strict=True) if g is not None]
