"""Second stages: keep the features of a finished run, make its classifier even-handed.

Representation and classifier want different sampling: features learn best from the data as they are, the classifier
from balanced classes. cRT retrains the linear classifier with class-balanced sampling, LWS learns one scale for each
class, tau-normalisation divides each class weight by its norm to the power tau, and MiSLAS trains classifier and scales
with label-aware smoothing and BatchNorm statistics shifted to the balanced sampling.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams, needed
from evenhand.errors import UserError
from evenhand.methods.common import Optim
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.methods.recognise.classifier import sampling_weights
from evenhand.nets import HeadedNet, ScaledHead
from evenhand.pieces import losses
from evenhand.pieces.player import Player
from evenhand.settings import Settings


class SecondStageSettings(Settings):
    """[method] of a second stage; the first one is named in [needs] as ``first``."""

    name: Literal["second-stage"] = "second-stage"
    rule: Literal["crt", "lws", "tau-norm", "mislas"] = "crt"
    batch: int = Field(128, gt=0, description="images per step, over all processes")
    optim: Optim = Optim(lr=0.05, schedule="cosine")
    tau: float = Field(0.7, ge=0, description="of tau-norm; choose it on validation")
    smooth_head: float = Field(0.3, ge=0, le=1, description="MiSLAS label smoothing of the largest class")
    smooth_tail: float = Field(0.0, ge=0, le=1, description="and of the smallest")

    @model_validator(mode="after")
    def _plain_optimiser(self) -> SecondStageSettings:
        if self.optim.name not in ("sgd", "adamw"):
            raise ValueError(f"a second stage trains a head: set optim.name to sgd or adamw, not {self.optim.name}")
        return self


class SecondStage(Recogniser):
    """Frozen features, a new or rescaled head."""

    table = SecondStageSettings
    player: Player

    def __init__(
        self, settings: SecondStageSettings, data: Data, *, seed: int, device: torch.device, first: Any = None
    ) -> None:
        if first is None:
            raise UserError("method 'second-stage' needs a first run: set needs.first to a recipe or a run's folder")
        views = {
            "train_view": first.data.train_view,
            "eval_view": first.data.eval_view,
        }
        self.settings, self.data, self.seed = settings, replace(data, **views), seed
        self.logit_scale = first.logit_scale
        if first.data.counts != data.counts:
            raise UserError("the first run was trained on other class counts: use the same [data] for both stages")
        self.counts = torch.tensor(data.counts, dtype=torch.float32, device=device)
        self.net: HeadedNet = copy.deepcopy(first.network()).requires_grad_(False)
        if getattr(self.net, "head_dist", None) is not None:
            raise UserError(
                "the first run has two heads, of which a second stage would train one: use a run with one head"
            )
        self.net.head = self._new_head(self.net.head).to(device)
        self.player = settings.optim.player(self.net, seed=seed)

    def _new_head(self, head: nn.Module) -> nn.Module:
        weight = getattr(head, "weight", None)  # (K, d)
        if not isinstance(weight, Tensor):
            raise UserError(
                "needs.first ends in several layers, as MDD does; a second stage replaces a linear one: name a run of "
                "another method, or one with head_hidden = 0"
            )
        K, d = weight.shape
        if len(self.counts) != K:
            raise UserError(f"the first run knows {K} classes, the data have {len(self.counts)}; use the same data")
        if self.settings.rule in ("crt", "tau-norm"):
            self.logit_scale = 1.0  # a plain linear head replaces the cosine one
        if self.settings.rule == "crt":
            return nn.Linear(d, K)
        if self.settings.rule == "tau-norm":
            plain = nn.Linear(d, K)
            plain.weight.data = weight / weight.norm(dim=1, keepdim=True) ** self.settings.tau
            plain.bias.data.zero_()
            return plain
        return ScaledHead(head.requires_grad_(self.settings.rule == "mislas"), K)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        labels = needed(streams, "labelled").labels
        assert labels is not None
        weights = sampling_weights("class-balanced", labels, self.data.counts, 0.0)
        return {"labelled": Feed("labelled", self.settings.batch, (self.data.train_view,), weights)}

    def schedule(self, at: Progress) -> None:
        self.settings.optim.apply(self.player, at)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        x, y = batch["labelled"].x, batch["labelled"].y
        net = self.net.eval()
        if self.settings.rule == "mislas":
            net.train()  # shifted BatchNorm: statistics follow the balanced sampling, weights stay
        with self.player.autocast():
            with torch.no_grad():
                features = net.features(x)
            logits = net.head(features).float() * self.logit_scale
        if self.settings.rule == "mislas":
            s = self.settings
            loss = losses.label_aware_smoothing_loss(logits, y, self.counts, head=s.smooth_head, tail=s.smooth_tail)
        else:
            loss = nn.functional.cross_entropy(logits, y)
        if self.settings.rule != "tau-norm":
            self.player.backward(loss * parallel.share(torch.tensor(float(len(y)), device=x.device)), last=True)
            self.player.step()
        return {"loss": loss.detach()}

    def state(self) -> dict[str, Any]:
        return self.player.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.player.load_state(state)
