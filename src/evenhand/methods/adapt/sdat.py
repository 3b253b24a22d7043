"""Smooth domain-adversarial training, SDAT (spec 09).

Low curvature of the task loss goes with stable adversarial training and better accuracy on the target, while smoothing
the adversarial loss hurts. So sharpness-aware minimisation acts on the task loss alone: the source's cross-entropy and
whatever else is not adversarial. It wraps every method of adversarial.py, for one more pass a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.loader import Batch, Loader
from evenhand.data.prepared import Data
from evenhand.methods.adapt.adversarial import DomainAdversarial, Scalars
from evenhand.methods.adapt.tables import AdaptTable
from evenhand.methods.protocol import Progress
from evenhand.pieces.radius import pick_rho
from evenhand.pieces.sam import SAM, relative_radius
from evenhand.randomness import mix
from evenhand.settings import Settings

Climb = tuple[SAM, nn.Module]  # perturbs its optimiser's parameters, which are this module's


class Auto(Settings):
    """How ``rho = "auto"`` picks the radius: short trainings on the source, judged on its validation."""

    steps: int = Field(200, gt=0, description="of each training")
    shares: list[float] = Field(
        [5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2], description="radii to try, as shares of the weight norm, rising"
    )
    tolerance: float = Field(0.02, ge=0, description="accuracy that the radius may cost")


class SDATSettings(AdaptTable):
    """[method] of SDAT; ``optim.freeze_bn = false`` moves BatchNorm statistics in both passes, as the authors do."""

    name: Literal["sdat"] = "sdat"
    smooth: Literal["task", "adversary", "both", "all"] = Field(
        "task", description="task: SDAT; adversary, both: ablations; all: SAM on everything, one norm"
    )
    rho: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        0.02, description="radius for the classifier, and for all; auto: the largest that source validation bears"
    )
    auto: Auto = Auto()
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
        if self.rho == "auto" and (self.rho_relative or self.smooth == "adversary"):
            raise ValueError("rho = 'auto' finds a radius for the classifier: leave out rho_relative and this smooth")
        return self


class SDAT(DomainAdversarial):
    """DomainAdversarial whose second pass, the one that counts, is taken at the worst weights nearby."""

    table = SDATSettings
    settings: SDATSettings

    def __init__(self, settings: SDATSettings, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        if settings.rho == "auto" and "val" not in data.streams:
            raise ValueError("rho = 'auto' needs validation of the source: set data.val_share above 0")
        self.rho = None if settings.rho == "auto" else settings.rho
        theta, phi = self.player, self.adversary
        self.task_climb: Climb | None = None
        self.adversary_climb: Climb | None = None
        if settings.smooth == "all" and phi is not None:
            joint = torch.optim.SGD([*theta.parameters, *phi.parameters])  # climbs, never steps
            self.task_climb = SAM(joint), nn.ModuleList([theta.net, phi.net])
        elif settings.smooth != "adversary":
            self.task_climb = SAM(theta.optimizer), theta.net
        if settings.smooth in ("adversary", "both") and phi is not None:
            self.adversary_climb = SAM(phi.optimizer), phi.net

    def schedule(self, at: Progress) -> None:
        super().schedule(at)
        if self.rho is None:
            self.rho = find_rho(self)
        for climb, rho in ((self.task_climb, self.rho), (self.adversary_climb, self.settings.rho_adversary)):
            if climb is not None:
                sam, net = climb
                sam.rho = relative_radius(net.parameters(), rho) if self.settings.rho_relative else rho

    def update(self, batch: dict[str, Batch]) -> Scalars:
        s, held = self.settings, []
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
        picked = {"rho": torch.tensor(self.rho)} if s.rho == "auto" else {}
        return {"loss": loss.detach(), **said, **heard, **picked}

    def _climbed(self, task: Tensor, features: Tensor, logits: Tensor, n: int) -> Tensor:
        """The loss along whose gradient the weights are perturbed; under ``task`` the discriminator is not even run."""
        s = self.settings
        if s.smooth == "task":
            return task
        if s.smooth == "all":
            return task + s.trade_off * self.adversarial_loss(features, logits, n)[0]
        adversarial, _ = self.adversarial_loss(features.detach(), logits.detach(), n)
        return adversarial if s.smooth == "adversary" else task + adversarial

    @contextmanager
    def _ascent(self) -> Iterator[None]:
        with ExitStack() as stack:
            for climb in (self.task_climb, self.adversary_climb):
                if climb is not None:
                    sam, net = climb
                    parallel.average_gradients(net.parameters())
                    stack.enter_context(sam.ascent(net if self.settings.optim.freeze_bn else None))
            yield

    def _gradient(self, loss: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """Of a loss at the weights as they are, for both players; its graph stays."""
        if self.adversary is None:
            return []
        params = [*self.player.parameters, *self.adversary.parameters]
        found = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        return [(p, g) for p, g in zip(params, found, strict=True) if g is not None]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rho": self.rho}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.rho = state["rho"]


def find_rho(method: SDAT) -> float:
    """``pick_rho`` from the method's present weights, on source images alone; a function of weights, data and seed."""
    s, data, seed = method.settings, method.data, mix(method.seed, "rho")
    alone = {"adversary": "none", "mcc": 0.0, "map_size": 0, "entropy": False, "average_every": 0}
    norm = float(relative_radius(method.net.parameters(), 1.0))

    def accuracy(rho: float) -> float:
        table = s.model_copy(update={**alone, "smooth": "task", "adv_at": "perturbed", "rho": rho})
        probe = SDAT(table, data, seed=seed, device=method.device)
        probe.net.load_state_dict(method.net.state_dict())
        feed = probe.feeds(data.streams)["source"]
        loader = Loader(data.streams["source"], feed, seed=seed, device=method.device)
        for step, batch in enumerate(loader.iterate(0, s.auto.steps)):
            probe.schedule(Progress(step, s.auto.steps, s.auto.steps))
            probe.update({"source": batch})
        return probe.judge(data.streams["val"])["accuracy"]

    devices = [method.device] if method.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        return pick_rho(accuracy, [share * norm for share in s.auto.shares], tolerance=s.auto.tolerance)
