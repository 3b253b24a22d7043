"""What SDAT could have been: SAM on the adversary, on both players or on everything, or the equation to the letter.

The paper's claim rests on these (spec 09): smoothing the task helps, smoothing the adversary hurts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.loader import Batch
from evenhand.data.prepared import Data
from evenhand.methods.adapt.adversarial import Scalars
from evenhand.methods.adapt.sdat import SDAT, SDATTable
from evenhand.methods.protocol import Progress
from evenhand.pieces.norms import global_norm
from evenhand.pieces.sam import SAM


class SDATAblationSettings(SDATTable):
    """[method] of an ablation of SDAT."""

    name: Literal["sdat-ablation"] = "sdat-ablation"
    smooth: Literal["task", "adversary", "both", "all"] = Field(
        "task", description="what SAM acts on; all: everything, under one norm"
    )
    rho_adversary: float = Field(0.02, ge=0, description="radius for the discriminator, with adversary and both")
    adv_at: Literal["perturbed", "clean"] = Field(
        "perturbed",
        description="weights at which the adversarial gradient is taken: as released, or as in the equation",
    )

    @model_validator(mode="after")
    def _smoothable(self) -> SDATAblationSettings:
        if self.adversary == "none" and self.smooth != "task":
            raise ValueError(f"smooth = '{self.smooth}' needs an adversary: set adversary, or smooth = 'task'")
        if self.adv_at == "clean" and self.smooth != "task":
            raise ValueError(f"adv_at = 'clean' goes with smooth = 'task', got '{self.smooth}'")
        if self.rho == "auto" and self.smooth == "adversary":
            raise ValueError("rho = 'auto' finds a radius for the classifier: choose another smooth")
        return self


class SDATAblation(SDAT):
    """SDAT with other players climbing, or the adversarial gradient taken elsewhere."""

    table = SDATAblationSettings
    settings: SDATAblationSettings

    def __init__(self, settings: SDATAblationSettings, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        theta, phi = self.player, self.adversary
        self.climbers: list[tuple[SAM, nn.Module]] = []
        self.rival = SAM(phi.optimizer) if phi is not None else self.sam
        if settings.smooth == "all" and phi is not None:
            joint = torch.optim.SGD([*theta.parameters, *phi.parameters])  # climbs, never steps
            self.sam = SAM(joint)
            self.climbers = [(self.sam, nn.ModuleList([theta.net, phi.net]))]
            return
        if settings.smooth != "adversary":
            self.climbers.append((self.sam, theta.net))
        if settings.smooth in ("adversary", "both") and phi is not None:
            self.climbers.append((self.rival, phi.net))

    def schedule(self, at: Progress) -> None:
        super().schedule(at)
        assert self.rho is not None
        for sam, net in self.climbers:
            rho = self.settings.rho_adversary if sam is self.rival and sam is not self.sam else self.rho
            sam.rho = self.radius(rho, net.parameters())

    def update(self, batch: dict[str, Batch]) -> Scalars:
        s, held = self.settings, []
        x, y = self.rows(batch)
        features, logits = self.forward(x)
        task, said = self.task_loss(x, logits, y)
        if s.adv_at == "clean":
            adversarial, heard = self.adversarial_loss(features, logits, len(y))
            held = self._gradient(s.trade_off * adversarial)
        self.player.backward(self._climbed(task, features, logits, len(y)))
        with self._ascent() as norms:
            if s.smooth != "adversary":  # else theta is where it was
                features, logits = self.forward(x)
                task, said = self.task_loss(x, logits, y)
            if s.adv_at == "perturbed":
                adversarial, heard = self.adversarial_loss(features, logits, len(y))
            loss = task + s.trade_off * adversarial
            self.player.backward(task if held else loss, last=not held)
        for p, gradient in held:
            p.grad = gradient if p.grad is None else p.grad + gradient
        self.step()
        return {"loss": loss.detach(), **said, **heard, **norms, **self.picked()}

    def _climbed(self, task: Tensor, features: Tensor, logits: Tensor, n: int) -> Tensor:
        """The loss along whose gradient the weights are perturbed."""
        s = self.settings
        if s.smooth == "task":
            return task
        if s.smooth == "all":
            return task + s.trade_off * self.adversarial_loss(features, logits, n)[0]
        adversarial, _ = self.adversarial_loss(features.detach(), logits.detach(), n)
        return adversarial if s.smooth == "adversary" else task + adversarial

    @contextmanager
    def _ascent(self) -> Iterator[Scalars]:
        """All climbers at their worst weights; yields the norms of the first."""
        norm, lengths = global_norm(p.detach() for p in self.climbers[0][1].parameters()), []
        with ExitStack() as stack:
            for sam, net in self.climbers:
                parallel.average_gradients(net.parameters())
                lengths.append(stack.enter_context(sam.ascent(net if self.settings.optim.freeze_bn else None)))
            yield {"gradient_norm": lengths[0], "weight_norm": norm}

    def _gradient(self, loss: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """Of a loss at the weights as they are, for both players; its graph stays."""
        if self.adversary is None:
            return []
        params = [*self.player.parameters, *self.adversary.parameters]
        found = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        return [(p, g) for p, g in zip(params, found, strict=True) if g is not None]
