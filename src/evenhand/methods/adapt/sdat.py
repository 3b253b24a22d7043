"""Smooth domain-adversarial training, SDAT (spec 09).

Low curvature of the task loss goes with stable adversarial training and better accuracy on the target, while smoothing
the adversarial loss hurts. So sharpness-aware minimisation acts on the task loss alone: the source's cross-entropy and
whatever else is not adversarial. It wraps every method of adversarial.py, for one more pass a step.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator

from evenhand import parallel
from evenhand.data.loader import Batch
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.errors import UserError
from evenhand.measure.classification import evaluate
from evenhand.methods.adapt.adversarial import DomainAdversarial, Scalars
from evenhand.methods.adapt.tables import AdaptTable
from evenhand.methods.probing import Auto, search_rho
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.pieces.norms import global_norm
from evenhand.pieces.sam import SAM, relative_radius


class SDATTable(AdaptTable):
    """What SDAT and its ablations have in common."""

    rho: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        0.02, description="radius for the classifier; auto: the largest that source validation bears"
    )
    auto: Auto = Auto()
    rho_relative: bool = Field(False, description="radii are shares of the weight norm")

    @model_validator(mode="after")
    def _absolute(self) -> SDATTable:
        if self.rho == "auto" and self.rho_relative:
            raise ValueError("rho = 'auto' finds an absolute radius for the classifier: leave out rho_relative")
        return self


class SDATSettings(SDATTable):
    """[method] of SDAT; ``optim.freeze_bn = false`` moves BatchNorm statistics in both passes, as the authors do."""

    name: Literal["sdat"] = "sdat"


class SDAT(DomainAdversarial):
    """DomainAdversarial whose second pass, the one that counts, is taken at the worst weights nearby."""

    table: Any = SDATSettings
    settings: SDATTable

    def __init__(self, settings: SDATTable, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        self.rho = None if settings.rho == "auto" else settings.rho
        self.sam = SAM(self.player.optimizer)

    @staticmethod
    def check(settings: SDATTable, data: Data, given: Collection[str]) -> None:  # noqa: ARG004
        _need_validation(settings, data.streams)

    def feeds(self, streams: Streams) -> dict[str, Any]:
        _need_validation(self.settings, streams)
        return super().feeds(streams)

    def refresh(self, at: Progress, streams: Streams) -> None:
        if self.rho is None:
            self.rho = find_rho(self, streams)

    def schedule(self, at: Progress) -> None:
        super().schedule(at)
        assert self.rho is not None
        self.sam.rho = self.radius(self.rho, self.player.parameters)

    def radius(self, rho: float, parameters: Any) -> Any:
        return relative_radius(parameters, rho) if self.settings.rho_relative else rho

    def update(self, batch: dict[str, Batch]) -> Scalars:
        x, y = self.rows(batch)
        _, logits = self.forward(x)
        self.player.backward(self.task_loss(x, logits, y)[0])  # the discriminator is not even run
        parallel.average_gradients(self.player.parameters)
        with self.sam.ascent(self.still) as length:  # the weights stand at theta + rho g / |g|
            features, logits = self.forward(x)
            task, said = self.task_loss(x, logits, y)
            adversarial, heard = self.adversarial_loss(features, logits, len(y))
            loss = task + self.settings.trade_off * adversarial
            self.player.backward(loss, last=True)
        norm = global_norm(p.detach() for p in self.player.parameters)
        self.step()
        return {
            "loss": loss.detach(), **said, **heard, "gradient_norm": length, "weight_norm": norm, **self.picked(),
        }  # fmt: skip

    @property
    def still(self) -> torch.nn.Module | None:
        """Whose BatchNorm statistics the second pass leaves alone."""
        return self.net if self.settings.optim.freeze_bn else None

    def picked(self) -> Scalars:
        return {"rho": torch.tensor(self.rho)} if self.settings.rho == "auto" else {}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rho": self.rho}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.rho = state["rho"]


def _need_validation(settings: SDATTable, streams: Streams) -> None:
    if settings.rho == "auto" and "val" not in streams:
        raise UserError("rho = 'auto' needs validation of the source: set data.val_share above 0")


def find_rho(method: SDAT, streams: Streams) -> float:
    """``pick_rho`` from the method's present weights, on source images alone; a function of weights, data and seed."""
    s = method.settings
    alone = {"adversary": "none", "mcc": 0.0, "map_size": 0, "entropy": False, "average_every": 0}
    tree = {key: getattr(s, key) for key in SDATTable.model_fields}
    norm = float(relative_radius(method.net.parameters(), 1.0))

    def probe(rho: float, seed: int) -> SDAT:
        return SDAT(SDATSettings(**{**tree, **alone, "rho": rho}), method.data, seed=seed, device=method.device)

    def accuracy(one: Recogniser) -> float:
        return float(evaluate(one.predict, streams["val"]).confusion.trace())

    def clock(step: int) -> Progress:
        return Progress(step, s.auto.steps, s.auto.steps)

    commonest = max(streams["val"].counts) / len(streams["val"])
    return search_rho(method, s.auto, probe, accuracy, streams, clock, norm, commonest)
