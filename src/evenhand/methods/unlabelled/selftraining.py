"""What self-training methods share: one network, labelled and twice-viewed unlabelled batches, what was kept.

A method of this family writes ``schedule`` and ``update``. Labels of unlabelled samples are out of reach: the stream
does not carry them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams, needed
from evenhand.errors import UserError
from evenhand.methods.common import Net, Optim, Schedule, Spared
from evenhand.methods.protocol import Recogniser
from evenhand.nets import HeadedNet
from evenhand.pieces.player import Player
from evenhand.settings import Settings

WATCHED = 0.99  # decay of the counts behind the share kept: about the last hundred steps


class SelfTrainingOptim(Optim):
    """Spec 06, section 3: Nesterov SGD, LR cos(7 pi t / 16), no decay of normalisation layers, EMA 0.999."""

    lr: float = Field(0.03, gt=0, description="base learning rate")
    nesterov: bool = True
    weight_decay: float = Field(5e-4, ge=0)
    no_decay: list[Spared] = Field(["norms"], description="spared by weight decay: norms, biases, tokens, positions")
    schedule: Schedule = Field("fixmatch", description="of the learning rate")
    ema: float | None = Field(
        0.999, ge=0, lt=1, description="decay of the averaged weights used for evaluation; 0: none"
    )


class SelfTrainingTable(Settings):
    """What [method] has in every self-training method."""

    batch: int = Field(64, gt=0, description="labelled samples per step, over all processes")
    unlabelled_ratio: int = Field(4, gt=0, description="unlabelled samples per labelled one")
    unlabelled_weight: float = Field(1.0, ge=0, description="of the consistency loss; 0: labelled samples only")
    net: Net = Net(name="wrn28-2")
    optim: SelfTrainingOptim = SelfTrainingOptim()
    consistency: Literal["fixmatch", "uda"] = Field("fixmatch", description="pseudo-labels: hard, or sharpened")
    temperature: float = Field(0.4, gt=0, description="of uda's sharpening")
    one_pass: bool = Field(True, description="false: the weak view apart and without gradients, see docs")

    @field_validator("optim")
    @classmethod
    def _plain_optimiser(cls, value: SelfTrainingOptim) -> SelfTrainingOptim:
        if value.name not in ("sgd", "adamw") or value.accumulate > 1:
            raise ValueError("self-training takes one pass per step: set name to sgd or adamw and accumulate to 1")
        return value


class SelfTraining(Recogniser):
    """The network, its passes, its predictions and the share of pseudo-labels kept."""

    player: Player

    def __init__(self, settings: SelfTrainingTable, data: Data, *, seed: int, device: torch.device) -> None:
        self.settings, self.data, self.seed = settings, data, seed
        self.net = self.build(settings.net, data).to(device)
        self.player = settings.optim.player(self.net, seed=seed)
        counts = torch.tensor(data.counts, device=device).float()
        self.priors = counts / counts.sum()  # (K,)
        self.tally = torch.zeros(2, len(counts), device=device)  # lately: pseudo-labels of each class; those kept

    def build(self, net: Net, data: Data) -> HeadedNet:
        """The network with fresh weights; a method that needs a second head adds it here."""
        return net.build(len(data.classes), data.inputs)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        """Draws with replacement (spec 06, training loop, step 2)."""
        s, data = self.settings, self.data
        feeds = {
            "labelled": Feed("labelled", s.batch, (data.train_view,), torch.ones(len(needed(streams, "labelled"))))
        }
        if s.unlabelled_weight:
            _check_unlabelled(streams)
            views, even = (data.train_view, data.strong_view), torch.ones(len(streams["unlabelled"]))
            feeds["unlabelled"] = Feed("unlabelled", s.unlabelled_ratio * s.batch, views, even)
        return feeds

    def passes(self, batch: dict[str, Batch]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the labelled, weak and strong views; the latter two are empty where no unlabelled are drawn.

        All go through the network together. With ``one_pass = false`` the weak view goes first, alone and without
        gradients, a third to two fifths cheaper; BatchNorm then normalises it by its own statistics, and its running
        statistics move twice a step. Without BatchNorm both ways are the same.
        """
        net = self.net.train()
        x = batch["labelled"].x
        weak, strong = batch["unlabelled"].views if "unlabelled" in batch else (x[:0], x[:0])
        with self.player.autocast():
            if self.settings.one_pass:
                logits = net(torch.cat([x, weak, strong])).float()
                first, guess, last = logits.split([len(x), len(weak), len(strong)])
                return first, guess, last
            with torch.no_grad():
                guess = net(weak).float() if len(weak) else x.new_zeros(0, len(self.priors))
            first, last = net(torch.cat([x, strong])).float().split([len(x), len(strong)])
        return first, guess, last

    def learn(self, labelled: Tensor, consistency: Tensor) -> dict[str, Tensor]:
        """One step on ``labelled + unlabelled_weight * consistency``."""
        loss = labelled + self.settings.unlabelled_weight * consistency
        self.player.backward(loss, last=True)
        self.player.step()
        said = {"loss": loss.detach(), "labelled_loss": labelled.detach()}
        return said | {"consistency_loss": consistency.detach()} if self.settings.unlabelled_weight else said

    def watch(self, target: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """Count what was kept, by pseudo-class (the largest of a soft label)."""
        pseudo = target.argmax(1) if target.is_floating_point() else target
        classes = len(self.priors)
        counts = torch.stack([torch.bincount(part, minlength=classes) for part in (pseudo, pseudo[kept])])  # (2, K)
        self.tally = WATCHED * self.tally + parallel.total(counts.float())
        return {"kept": kept.float().mean()}

    def traces(self) -> dict[str, float]:
        if not self.settings.unlabelled_weight:
            return {}
        seen, kept = self.tally
        return self.by_name("kept", kept / seen.clamp_min(1e-6), self.data.classes)

    def by_name(self, key: str, values: Tensor, names: Sequence[str]) -> dict[str, float]:
        """Values as the log and the report take them: ``kept:shirt``."""
        return {f"{key}:{name}": value for name, value in zip(names, values.tolist(), strict=True)}

    def state(self) -> dict[str, Any]:
        return {"player": self.player.state(), "tally": self.tally}

    def load_state(self, state: dict[str, Any]) -> None:
        self.player.load_state(state["player"])
        self.tally = state["tally"].to(self.priors)


def _check_unlabelled(streams: Streams) -> None:
    remedy = "add an 'unlabelled' folder, set data.unlabelled_max, or learn without (unlabelled_weight = 0)"
    if "unlabelled" not in streams or not len(streams["unlabelled"]):
        state = "is empty" if "unlabelled" in streams else "is not there"
        raise UserError(f"the stream of unlabelled samples {state}: {remedy}")
    first = torch.tensor([0])
    found, wanted = (tuple(streams[name].fetch(first).shape[1:]) for name in ("unlabelled", "labelled"))
    if found != wanted:
        remedy = "bring both to one shape (data.size does it for image files)"
        raise UserError(f"unlabelled samples are {found}, labelled ones {wanted}: {remedy}")
