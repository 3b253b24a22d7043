"""CoSSL: FixMatch's features, and a classifier of its own on enhanced features of rare classes (a baseline of spec 07).

Representation and classifier want different data. The features learn by FixMatch; the classifier sees class-balanced
labelled features, of rare classes mixed with features of random unlabelled samples under the label kept, so that few
examples spread over the space that the unlabelled ones fill. The features do not learn from the classifier.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.samplers import sample_weights
from evenhand.data.stream import Streams
from evenhand.methods.protocol import Progress
from evenhand.methods.unlabelled.abc import TwoHeaded, TwoHeadedTable
from evenhand.randomness import dice


class CoSSLSettings(TwoHeadedTable):
    """[method] of CoSSL."""

    name: Literal["cossl"] = "cossl"
    least_kept: float = Field(0.6, ge=0, le=1, description="least share of the labelled sample's features in a mix")


class CoSSL(TwoHeaded):
    """Tail-class feature enhancement."""

    table = CoSSLSettings
    settings: CoSSLSettings

    def __init__(self, settings: CoSSLSettings, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        self.at = 0

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        labels = streams["labelled"].labels
        assert labels is not None
        weights = sample_weights(labels, len(self.priors))
        balanced = Feed("labelled", self.settings.batch, (self.data.train_view,), weights)
        return super().feeds(streams) | {"balanced": balanced}

    def schedule(self, at: Progress) -> None:
        super().schedule(at)
        self.at = at.step

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        logits = self.both(batch)
        labelled, consistency, target, kept = self.fixmatch(logits["plain"], batch)
        y = batch["balanced"].y
        with self.player.autocast():
            with torch.no_grad():
                encoder = self.network()  # the averaged one, in eval mode
                assert encoder is not None
                own, others = (encoder.features(x).float() for x in (batch["balanced"].x, batch["unlabelled"].x))
            enhanced = cross_entropy(self.net.head(self.enhanced(own, y, others)).float(), y)
        said = self.learn(labelled + enhanced, consistency) | self.watch(target, kept)
        return said | {"classifier_loss": enhanced.detach()}

    def enhanced(self, features: Tensor, y: Tensor, others: Tensor) -> Tensor:
        """``keep f + (1 - keep) f_unlabelled`` with probability ``(N_1 - N_y) / N_1``, keep uniform; else as it is."""
        count, part = len(y), slice(len(y) * parallel.rank(), len(y) * (parallel.rank() + 1))
        draws = torch.rand(3, count * parallel.world(), generator=dice(self.seed, "cossl", self.at))[:, part].to(
            features
        )
        mixed = draws[0] < (1 - self.priors[y] / self.priors.max())
        least = self.settings.least_kept
        keep = torch.where(mixed, least + (1 - least) * draws[1], 1.0)[:, None]
        partner = others[(draws[2] * len(others)).long().clamp_max(len(others) - 1)]
        return keep * features + (1 - keep) * partner
