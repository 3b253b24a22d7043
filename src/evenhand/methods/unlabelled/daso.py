"""DASO: pseudo-labels blended from the classifier and from nearest class means, by class (a baseline of spec 07).

The classifier's pseudo-labels lean to frequent classes, those by similarity to class means to rare ones. The more
often a class is predicted of late, the more its pseudo-labels are taken from the means; strong views also align with
the means that their weak views are near to.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from evenhand import parallel
from evenhand.data.loader import Batch
from evenhand.data.prepared import Data
from evenhand.methods.unlabelled.fixmatch import FixMatch, FixMatchTable
from evenhand.pieces.pseudo import confidence_mask

REMEMBERED = 0.99  # decay of the running pseudo-label shares: about a hundred batches


class DASOSettings(FixMatchTable):
    """[method] of DASO."""

    name: Literal["daso"] = "daso"
    proto_temperature: float = Field(0.05, gt=0, description="of the similarities to class means")
    dist_temperature: float = Field(0.3, gt=0, description="of the pseudo-label shares that weigh the blend")
    alignment: float = Field(1.0, ge=0, description="weight of the semantic alignment loss")
    momentum: float = Field(0.99, ge=0, lt=1, description="of the class means")

    @model_validator(mode="after")
    def _own_pseudo_labels(self) -> DASOSettings:
        others = self.thresholds != "fixed" or self.align or self.refine != "none" or self.consistency != "fixmatch"
        if others or not self.one_pass or not self.unlabelled_weight:
            raise ValueError("DASO makes its own hard pseudo-labels: leave thresholds, align, refine, consistency, "
                             "one_pass and unlabelled_weight as they are")  # fmt: skip
        return self


class DASO(FixMatch):
    """Class means of labelled features, and the shares of pseudo-labels, both running."""

    table = DASOSettings
    settings: DASOSettings

    def __init__(self, settings: DASOSettings, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        K = len(self.priors)
        self.means = torch.zeros(K, self.net.num_features, device=device)  # (K, d); 0 before a class was seen
        self.shares = torch.full((K,), 1 / K, device=device)  # of pseudo-labels, lately

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        x, y = batch["labelled"].x, batch["labelled"].y
        weak, strong = batch["unlabelled"].views
        sizes, net = [len(x), len(weak), len(strong)], self.net.train()
        with self.player.autocast():
            features = net.features(torch.cat([x, weak, strong]))
            logits = net.head(features).float()
        own, near, far = features.float().split(sizes)
        first, guess, last = logits.split(sizes)
        self.follow(own.detach(), y)
        with torch.no_grad():
            similar = self.similarity(near).softmax(1)  # (N, K)
            blended = self.blend(guess.softmax(1), similar)
            target, kept = blended.argmax(1), confidence_mask(blended, self.settings.threshold)
        consistency = (kept * self.disagreement(last, target)).mean()
        aligned = cross_entropy(self.similarity(far), similar)
        said = self.learn(self.labelled_loss(first, y) + self.settings.alignment * aligned, consistency)
        return said | self.watch(target, kept) | {"alignment_loss": aligned.detach()}

    def similarity(self, features: Tensor) -> Tensor:
        """(N, K) cosines to the class means over the temperature."""
        return normalize(features) @ normalize(self.means).T / self.settings.proto_temperature

    def blend(self, probs: Tensor, similar: Tensor) -> Tensor:
        """``(1 - v_k) p + v_k q``, k the classifier's guess, v the shares to the power 1/T, over the largest."""
        guess = probs.argmax(1)
        counts = torch.bincount(guess, minlength=len(self.shares)).to(self.shares)
        counts = parallel.total(counts)
        self.shares = torch.lerp(counts / counts.sum(), self.shares, REMEMBERED)
        weight = self.shares ** (1 / self.settings.dist_temperature)
        v = (weight / weight.max())[guess][:, None]
        return (1 - v) * probs + v * similar

    def follow(self, features: Tensor, y: Tensor) -> None:
        """Means move towards those of the joint batch; a class seen for the first time takes its mean."""
        sums = torch.zeros_like(self.means).index_add_(0, y, features)
        counts = parallel.total(torch.bincount(y, minlength=len(self.means)).to(sums))
        fresh = parallel.total(sums) / counts.clamp_min(1)[:, None]
        new = (self.means == 0).all(1)
        rate = torch.where(counts == 0, 0.0, torch.where(new, 1.0, 1 - self.settings.momentum))[:, None]
        self.means = self.means + rate * (fresh - self.means)

    def state(self) -> dict[str, Any]:
        return super().state() | {"means": self.means, "shares": self.shares}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.means, self.shares = state["means"].to(self.priors), state["shares"].to(self.priors)
