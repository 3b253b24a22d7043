"""Self-training on confident pseudo-labels: FixMatch, and the baselines that change one line of it (spec 06).

A confident prediction on a weakly augmented sample is made the label of its strongly augmented view. On long-tailed
data the confident predictions are those of frequent classes, so the tail gains little. UDA sharpens predictions
instead of deciding; FlexMatch lowers the threshold of classes that are seldom confident; FixMatch(LA) adjusts the
labelled loss by the priors; distribution alignment and DARP push pseudo-labels towards wanted class shares.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.errors import UserError
from evenhand.measure.classification import evaluate, predict_all
from evenhand.methods.protocol import Progress
from evenhand.methods.unlabelled.selftraining import SelfTraining, SelfTrainingTable
from evenhand.pieces.losses import logit_adjusted_loss
from evenhand.pieces.pseudo import (
    FlexThresholds,
    align,
    confidence_mask,
    estimate_priors,
    refine_to_marginals,
    remember,
    sharpen,
)
from evenhand.pieces.schedules import milestone

ALIGNED = 0.99  # decay of the running mean of predictions: about a hundred batches


class FixMatchTable(SelfTrainingTable):
    """What FixMatch and methods built on it have in common."""

    loss: Literal["ce", "la"] = Field("ce", description="on labelled samples; la: logit-adjusted by their priors")
    threshold: float = Field(0.95, gt=0, le=1, description="confidence from which a pseudo-label counts")
    thresholds: Literal["fixed", "flexmatch"] = Field("fixed", description="or lower where a class is seldom confident")
    align: bool = Field(False, description="tilt predictions so that their mean follows the labelled priors")
    refine: Literal["none", "labelled", "estimated"] = Field(
        "none", description="DARP: class shares to refine pseudo-labels to; estimated: from val, at refine_start"
    )
    refine_start: float = Field(0.4, ge=0, description="epoch at which DARP begins, or share of the run when below 1")
    refine_every: int = Field(10, gt=0, description="steps between refinements")

    @model_validator(mode="after")
    def _combinable(self) -> FixMatchTable:
        if self.thresholds == "flexmatch" and self.refine != "none":
            raise ValueError("flexmatch and DARP both correct pseudo-labels: set thresholds or refine, not both")
        return self


class FixMatchSettings(FixMatchTable):
    """[method] of FixMatch; ERM and LA are ``unlabelled_weight = 0`` with loss ce or la."""

    name: Literal["fixmatch"] = "fixmatch"


class FixMatch(SelfTraining):
    """Pseudo-labels from the weak view, learnt on the strong one."""

    table: Any = FixMatchSettings
    settings: FixMatchTable

    def __init__(self, settings: FixMatchTable, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        K = len(data.classes)
        self.flex: FlexThresholds | None = None
        self.wanted = self.priors  # (K,) what alignment aims at
        self.predicted = self.priors.clone()  # (K,) running mean of predictions
        self.marginals = self.priors.clone()  # (K,) what DARP aims at
        self.guesses = torch.empty(0, K, device=device)  # last predictions, (M, K) under DARP
        self.refined = self.guesses
        self.refines = False

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        feeds, s = super().feeds(streams), self.settings
        K, M = len(self.priors), len(streams["unlabelled"]) if s.unlabelled_weight else 0
        if s.thresholds == "flexmatch" and self.flex is None:
            self.flex = FlexThresholds(M, K, s.threshold)
        if s.refine != "none" and not len(self.guesses):
            self.guesses = self.guesses.new_full((M, K), 1 / K)
            self.refined = self.guesses.clone()
        if s.refine == "estimated" and "val" not in streams:
            raise UserError("refine = 'estimated' needs a val stream: set data.val_per_class, or refine = 'labelled'")
        return feeds

    def schedule(self, at: Progress) -> None:
        self.settings.optim.apply(self.player, at)

    def refresh(self, at: Progress, streams: Streams) -> None:
        s = self.settings
        start = math.ceil(milestone(s.refine_start, at.epochs) * at.steps_per_epoch)
        self.refines = s.refine != "none" and at.step >= start
        if self.refines and at.step == start and s.refine == "estimated":
            confusion = evaluate(self.predict, streams["val"]).confusion
            guessed = predict_all(self.predict, streams["unlabelled"]).argmax(1)
            shares = torch.bincount(guessed, minlength=len(self.priors))
            self.marginals = estimate_priors(confusion, shares).to(self.priors)
        if self.refines and (at.step - start) % s.refine_every == 0:
            self.refined = refine_to_marginals(self.guesses, self.marginals)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        first, weak, strong = self.passes(batch)
        labelled = self.labelled_loss(first, batch["labelled"].y)
        if not len(weak):
            return self.learn(labelled, first.new_zeros(()))
        target, kept = self.pseudo_labels(weak, batch["unlabelled"].indices)
        consistency = (kept * self.disagreement(strong, target)).mean()  # of all, not only of those kept
        return self.learn(labelled, consistency) | self.watch(target, kept)

    def labelled_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        if self.settings.loss == "la":
            return logit_adjusted_loss(logits, y, self.priors)
        return cross_entropy(logits, y)

    @torch.no_grad()
    def pseudo_labels(self, weak: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Targets, (N,) or under UDA (N, K), and which of them count."""
        s = self.settings
        probs = weak.softmax(1)
        if s.align:
            self.predicted = torch.lerp(parallel.mean(probs.mean(0)), self.predicted, ALIGNED)
            probs = align(probs, self.wanted, self.predicted)
        if s.refine != "none":
            drawn, guessed = parallel.gather(indices.to(probs.device)), parallel.gather(probs)
            self.guesses = remember(self.guesses, drawn, guessed)
            probs = self.refined[indices.to(probs.device)] if self.refines else probs
        kept = confidence_mask(probs, s.threshold) if self.flex is None else self.flex.mask(probs, indices)
        return sharpen(probs, s.temperature) if s.consistency == "uda" else probs.argmax(1), kept

    def disagreement(self, strong: Tensor, target: Tensor) -> Tensor:
        """(N,) ``CE(pseudo-label, strong)``; under UDA ``KL(target || softmax(strong))``."""
        if target.is_floating_point():
            return kl_div(strong.log_softmax(1), target, reduction="none").sum(1)
        return cross_entropy(strong, target, reduction="none")

    def state(self) -> dict[str, Any]:
        moved = {"predicted": self.predicted, "marginals": self.marginals, "guesses": self.guesses}
        flex = {} if self.flex is None else self.flex.state_dict()
        return super().state() | moved | {"refined": self.refined, "flex": flex}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.predicted, self.marginals = state["predicted"].to(self.priors), state["marginals"].to(self.priors)
        self.guesses, self.refined = state["guesses"].to(self.priors), state["refined"].to(self.priors)
        if state["flex"]:
            self.flex = FlexThresholds(len(state["flex"]["last"]), len(self.priors), self.settings.threshold)
            self.flex.load_state_dict(state["flex"])
