"""CReST: generations of FixMatch that take over pseudo-labels, of rare classes most (a baseline of specs 06 and 07).

Pseudo-labels of rare classes are few but precise. So after each generation the most confident share of every
predicted class joins the labelled set, all of the rarest class and least of the largest, and the network starts
afresh. CReST+ also tilts predictions towards ever flatter class shares (progressive distribution alignment).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.measure.classification import predict_all
from evenhand.methods.protocol import Progress
from evenhand.methods.unlabelled.fixmatch import FixMatch, FixMatchTable
from evenhand.pieces.pseudo import crest_rates, pick_per_class, sharpen
from evenhand.pieces.schedules import linear
from evenhand.randomness import mix


class CReSTSettings(FixMatchTable):
    """[method] of CReST; ``align = true`` is CReST+."""

    name: Literal["crest"] = "crest"
    generations: int = Field(6, gt=0, description="networks trained one after another; they share the run's steps")
    alpha: float = Field(1 / 3, gt=0, description="of the rate (N_(K+1-l) / N_1)^alpha at which class l is added")
    align_last: float = Field(0.5, gt=0, le=1, description="CReST+: power of the priors in the last generation")

    @model_validator(mode="after")
    def _needs_the_weak_view(self) -> CReSTSettings:
        if not self.one_pass or not self.unlabelled_weight:
            raise ValueError("CReST learns from weak views of unlabelled samples: keep one_pass and unlabelled_weight")
        return self


class CReST(FixMatch):
    """FixMatch whose labelled loss covers the samples taken over so far."""

    table = CReSTSettings
    settings: CReSTSettings

    def __init__(self, settings: CReSTSettings, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        self.added = torch.empty(0, dtype=torch.int64, device=device)  # label taken over of each unlabelled, or -1

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        feeds = super().feeds(streams)
        if not len(self.added):
            self.added = self.added.new_full((len(streams["unlabelled"]),), -1)
        return feeds

    def _within(self, at: Progress) -> tuple[int, Progress]:
        """The generation, and how far it is."""
        length = math.ceil(at.total_steps / self.settings.generations)
        generation, inside = divmod(at.step, length)
        return generation, Progress(inside, at.steps_per_epoch, length)

    def refresh(self, at: Progress, streams: Streams) -> None:
        generation, inside = self._within(at)
        if generation and inside.step == 0:
            self._take_over(generation, streams)
        super().refresh(inside, streams)

    def schedule(self, at: Progress) -> None:
        s, (generation, inside) = self.settings, self._within(at)
        past = generation / max(1, s.generations - 1)
        self.wanted = sharpen(self.priors, 1 / linear(past, 1.0, s.align_last))
        super().schedule(inside)

    def _take_over(self, generation: int, streams: Streams) -> None:
        """Add the most confident of each class, then begin with fresh weights."""
        probs = predict_all(self.predict, streams["unlabelled"]).softmax(1)
        picked = pick_per_class(probs, crest_rates(self.data.counts, self.settings.alpha))
        added, device = torch.full_like(self.added, -1), self.player.device
        added[picked.to(device)] = probs[picked].argmax(1).to(device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(mix(self.seed, "weights", generation))
            self.__init__(self.settings, self.data, seed=self.seed, device=device)  # type: ignore[misc]
        self.added = added
        self.feeds(streams)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        first, weak, strong = self.passes(batch)
        indices = batch["unlabelled"].indices
        labelled = self._joint_loss(first, batch["labelled"].y, weak, self.added[indices.to(self.added.device)])
        target, kept = self.pseudo_labels(weak, indices)
        consistency = (kept * self.disagreement(strong, target)).mean()
        return self.learn(labelled, consistency) | self.watch(target, kept)

    def _joint_loss(self, first: Tensor, y: Tensor, weak: Tensor, taken: Tensor) -> Tensor:
        """Mean over labelled and added samples alike, without bias though no batch is drawn of the added ones:

        N labelled ones count by their batch's mean, and those of the M unlabelled that were added by their share of
        the unlabelled batch, ``(N mean_labelled + M mean_unlabelled [added] loss) / (N + number added)``.
        """
        labelled = self.labelled_loss(first, y)
        chosen = taken >= 0
        if not chosen.any():
            joined = weak.new_zeros(())
        else:
            joined = self.labelled_loss(weak[chosen], taken[chosen]) * chosen.float().mean()
        N, M, count = sum(self.data.counts), len(self.added), (self.added >= 0).sum()
        return (N * labelled + M * joined) / (N + count)

    def state(self) -> dict[str, Any]:
        return super().state() | {"added": self.added}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.added = state["added"].to(self.added.device)
