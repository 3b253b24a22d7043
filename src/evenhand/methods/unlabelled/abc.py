"""ABC: FixMatch beside an auxiliary balanced classifier on the same features (a baseline of spec 07).

FixMatch's features are good where its classifier is biased. So a second head learns from losses that are masked at
random, the more often the more frequent the class, labelled by its truth and unlabelled by what the head predicts;
masking grows from none to the full inverse of the class counts over training. The second head predicts.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy

from evenhand import parallel
from evenhand.data.loader import Batch
from evenhand.data.prepared import Data
from evenhand.methods.common import Net
from evenhand.methods.protocol import Progress
from evenhand.methods.unlabelled.fixmatch import FixMatch, FixMatchTable
from evenhand.nets import HeadedNet, make_head
from evenhand.pieces.pseudo import confidence_mask
from evenhand.randomness import dice


class TwoHeadedTable(FixMatchTable):
    """What methods with a second head ask of FixMatch."""

    @model_validator(mode="after")
    def _one_pass(self) -> TwoHeadedTable:
        if not self.one_pass or not self.unlabelled_weight:
            raise ValueError("a second head learns beside FixMatch: keep one_pass and unlabelled_weight")
        return self


class ABCSettings(TwoHeadedTable):
    """[method] of ABC."""

    name: Literal["abc"] = "abc"


class TwoHeaded(FixMatch):
    """FixMatch on a head of its own, ``plain``; the network's head, which predicts, is left to the method."""

    def build(self, net: Net, data: Data) -> HeadedNet:
        built = super().build(net, data)
        built.plain = make_head("linear", built.num_features, len(data.classes))
        return built

    def both(self, batch: dict[str, Batch]) -> dict[str, list[Tensor]]:
        """Each head's logits of the labelled, weak and strong views."""
        x, (weak, strong) = batch["labelled"].x, batch["unlabelled"].views
        net: Any = self.net.train()
        with self.player.autocast():
            features = net.features(torch.cat([x, weak, strong]))
            logits = {"plain": net.plain(features).float(), "own": net.head(features).float()}
        sizes = [len(x), len(weak), len(strong)]
        return {name: list(z.split(sizes)) for name, z in logits.items()}

    def fixmatch(self, logits: list[Tensor], batch: dict[str, Batch]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """FixMatch's two losses, its pseudo-labels and which of them count."""
        first, weak, strong = logits
        target, kept = self.pseudo_labels(weak, batch["unlabelled"].indices)
        consistency = (kept * self.disagreement(strong, target)).mean()
        return self.labelled_loss(first, batch["labelled"].y), consistency, target, kept


class ABC(TwoHeaded):
    """Masks by class, drawn anew at each step."""

    table = ABCSettings

    def __init__(self, settings: ABCSettings, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        self.at = Progress(0, 1, 1)

    def schedule(self, at: Progress) -> None:
        super().schedule(at)
        self.at = at

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        logits = self.both(batch)
        labelled, consistency, target, kept = self.fixmatch(logits["plain"], batch)
        first, weak, strong = logits["own"]
        y, threshold = batch["labelled"].y, self.settings.threshold
        with torch.no_grad():
            probs = weak.softmax(1)
            guess = probs.argmax(1)
            sure = confidence_mask(probs, threshold) & self.drawn(guess, "unlabelled")
        balanced = (self.drawn(y, "labelled") * cross_entropy(first, y, reduction="none")).mean()
        agreeing = (sure * cross_entropy(strong, guess, reduction="none")).mean()
        said = self.learn(labelled + balanced, consistency + agreeing) | self.watch(target, kept)
        return said | {"balanced_loss": balanced.detach()}

    def drawn(self, classes: Tensor, which: str) -> Tensor:
        """(N,) bool: kept with probability ``1 - t/T (1 - prior_rarest / prior_class)``."""
        keep = 1 - self.at.fraction * (1 - self.priors.min() / self.priors[classes])
        chance = dice(self.seed, "abc", which, self.at.step)
        draw = torch.rand(len(classes) * parallel.world(), generator=chance)[len(classes) * parallel.rank() :]
        return draw[: len(classes)].to(keep.device) < keep
