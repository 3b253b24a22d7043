"""Domain-adversarial adaptation: DANN, CDAN, MDD, MCC, or the source alone (spec 09).

A classifier learned on one domain fails on another whose features lie elsewhere. So a discriminator learns to tell
source from target features while reversed gradients teach the features to fool it, and the labelled source keeps them
useful. CDAN shows the discriminator the predictions too, MDD replaces it by a rival classifier, and MCC needs no
adversary: it asks that target predictions confuse no two classes.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

from evenhand import parallel
from evenhand.data.loader import Batch, Feed, Loader
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.methods.adapt.labelled import two_feeds
from evenhand.methods.adapt.tables import AdaptTable
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.nets.bottleneck import Bottlenecked
from evenhand.nets.heads import HeadedNet
from evenhand.pieces.domain import (
    DomainDiscriminator,
    RandomisedMap,
    cdan_features,
    domain_loss,
    entropy_weights,
    mcc_loss,
    mdd_loss,
    reversal_coefficient,
    reverse_gradient,
)
from evenhand.pieces.player import Player
from evenhand.pieces.vat import vat_loss
from evenhand.randomness import dice, mix

REFRESH = 16  # batches that renew the BatchNorm statistics of averaged weights

Scalars = dict[str, Tensor]


class DomainAdversarialSettings(AdaptTable):
    """[method] of domain-adversarial training; ``adversary = "none"`` with ``mcc = 0`` sees the source alone."""

    name: Literal["domain-adversarial"] = "domain-adversarial"


class DomainAdversarial(Recogniser):
    """Two players: the classifier, and the discriminator (or rival) whose gradient reaches it reversed."""

    table: Any = DomainAdversarialSettings
    player: Player

    def __init__(self, settings: AdaptTable, data: Data, *, seed: int, device: torch.device) -> None:
        s, K = settings, len(data.classes)
        if s.batch % parallel.world():
            raise ValueError(f"batch = {s.batch} cannot be shared by {parallel.world()} processes alike; round it")
        if s.batch == 1 and s.adversary == "none" and not s.mcc:
            raise ValueError("batch = 1 leaves BatchNorm a single row without target images; give 2 or more")
        self.settings, self.data, self.seed, self.device = s, data, seed, device
        self.net = _network(s, K, data.inputs).to(device)
        self.player = s.optim.player(self.net, seed=seed, groups=_groups(s, self.net))
        d = self.net.num_features
        self.map = RandomisedMap(d, K, s.map_size, generator=dice(seed, "map")).to(device) if s.map_size else None
        self.adversary: Player | None = None
        self.discriminator: DomainDiscriminator | None = None
        if s.adversary != "none":
            inputs = d if s.adversary == "dann" else s.map_size or d * K
            judge = s.discriminator
            rival: nn.Module = DomainDiscriminator(inputs, judge.hidden, judge.batchnorm, judge.dropout)
            if s.adversary == "mdd":
                rival = _deep_head(d, s.discriminator.hidden, K)
            self.adversary = (s.optim_d or s.optim).player(rival.to(device), seed=seed)
            self.discriminator = rival if isinstance(rival, DomainDiscriminator) else None
        self.average = AveragedModel(self.net) if s.average_every else None
        self.streams: Streams = {}
        self.at = Progress(0, 1, 1)
        self.reversal = 0.0

    @property
    def needs_target(self) -> bool:
        return self.adversary is not None or self.settings.mcc > 0

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        self.streams = streams
        feeds = two_feeds(self.settings, streams, self.settings.batch, self.data.train_view, self.seed)
        return feeds if self.needs_target else {"source": feeds["source"]}

    def schedule(self, at: Progress) -> None:
        s, self.at = self.settings, at
        s.optim.apply(self.player, at)
        if self.adversary is not None:
            (s.optim_d or s.optim).apply(self.adversary, at)
        r = s.reversal
        self.reversal = reversal_coefficient(at.step, alpha=r.alpha, steps=r.steps, high=r.high)

    def update(self, batch: dict[str, Batch]) -> Scalars:
        x, y = self.rows(batch)
        features, logits = self.forward(x)
        task, said = self.task_loss(x, logits, y)
        adversarial, heard = self.adversarial_loss(features, logits, len(y))
        loss = task + self.settings.trade_off * adversarial
        self.player.backward(loss, last=True)
        self.step()
        return {"loss": loss.detach(), **said, **heard}

    # parts of a step, from which sdat.py composes its own

    def rows(self, batch: dict[str, Batch]) -> tuple[Tensor, Tensor]:
        """Source rows, then target rows, in one tensor, so that BatchNorm sees both; labels of the former."""
        self.net.train()
        if self.adversary is not None:
            self.adversary.net.train()
        return torch.cat([part.x for part in batch.values()]), batch["source"].y

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, d) and logits (N, K)."""
        with self.player.autocast():
            features = self.net.features(x)
            return features, self.net.head(features)

    def task_loss(self, x: Tensor, logits: Tensor, y: Tensor) -> tuple[Tensor, Scalars]:
        """All that is not adversarial: cross-entropy of the source rows, MCC of the target rows, VAT."""
        s, n, K = self.settings, len(y), logits.shape[1]
        source, target = logits[:n].float(), logits[n:].float()
        # Torch spreads its share over all K classes, the true one too; here the K - 1 wrong ones get `smoothing`.
        task = F.cross_entropy(source, y, label_smoothing=s.smoothing * K / (K - 1))
        said: Scalars = {}
        if s.mcc:
            said["mcc"] = mcc_loss(target, s.temperature)
            task = task + s.mcc * said["mcc"]
        if s.vat.weight:
            chance = dice(self.seed, "vat", self.at.step, parallel.rank())
            said["vat"] = vat_loss(self.net, x[:n], epsilon=s.vat.epsilon, xi=s.vat.xi, generator=chance)
            task = task + s.vat.weight * said["vat"]
        if len(target):
            said["target_entropy"] = torch.special.entr(target.softmax(1)).sum(1).mean()
        return task, {"task": task.detach(), **{key: value.detach() for key, value in said.items()}}

    def adversarial_loss(self, features: Tensor, logits: Tensor, n: int) -> tuple[Tensor, Scalars]:
        """What the adversary minimises and, through the reversed gradient, the features maximise; ``n`` source rows."""
        if self.adversary is None:
            return features.new_zeros(()), {}
        s, said = self.settings, {"reversal": torch.tensor(self.reversal)}
        probs = logits.detach().float().softmax(1)
        with self.player.autocast():
            if s.adversary == "mdd":
                rival = self.adversary.net(reverse_gradient(features, self.reversal))  # (N, K)
                loss = mdd_loss(logits[:n], logits[n:], rival[:n], rival[n:], s.margin)
                return loss, {"adversarial": loss.detach(), **said}
            guess = self.adversary.net(reverse_gradient(self._shown(features, probs), self.reversal))  # (N,)
        loss = domain_loss(guess[:n], guess[n:], entropy_weights(probs) if s.entropy else None)
        told = ((guess[:n] >= 0).float().mean() + (guess[n:] < 0).float().mean()) / 2
        return loss, {"adversarial": loss.detach(), "domain_accuracy": told, **said}

    def _shown(self, features: Tensor, probs: Tensor) -> Tensor:
        """What the discriminator looks at."""
        if self.settings.adversary == "dann":
            return features
        return self.map(features, probs) if self.map is not None else cdan_features(features, probs)

    def step(self) -> None:
        """Both players step with the gradients they have."""
        if self.adversary is not None:
            self.adversary.step()
        self.player.step()
        due = self.settings.average_every and (self.at.step + 1) % self.settings.average_every == 0
        if self.average is not None and due and self.at.fraction >= self.settings.average_start:
            self.average.update_parameters(self.net)
            seed, feeds = mix(self.seed, "average", self.at.step), self.feeds(self.streams).values()
            loaders = [Loader(self.streams, feed, seed=seed, device=self.device) for feed in feeds]
            parts = zip(*(loader.iterate(0, REFRESH) for loader in loaders), strict=True)
            update_bn((torch.cat([batch.x for batch in rows]) for rows in parts), self.average)
            parallel.average_statistics(self.average)

    # what is learned

    def network(self) -> HeadedNet:
        """The average of SWAD once there is one."""
        averaged = self.average is not None and int(self.average.n_averaged) > 0
        net: Any = self.average.module.eval() if self.average is not None and averaged else self.player.judged()
        return net

    @property
    def tells(self) -> bool:  # type: ignore[override]
        return self.discriminator is not None

    @torch.no_grad()
    def tell(self, x: Tensor) -> Tensor:
        if self.discriminator is None:
            raise ValueError(f"adversary = '{self.settings.adversary}' has no domain discriminator: use dann or cdan")
        features = self.embed(x)
        return self.discriminator.eval()(self._shown(features, self.network().head(features).softmax(1)))

    def state(self) -> dict[str, Any]:
        return {
            "player": self.player.state(),
            "adversary": None if self.adversary is None else self.adversary.state(),
            "map": None if self.map is None else self.map.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.player.load_state(state["player"])
        if self.adversary is not None:
            self.adversary.load_state(state["adversary"])
        if self.map is not None:
            self.map.load_state_dict(state["map"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])


def _network(s: AdaptTable, classes: int, channels: int) -> HeadedNet:
    net = s.net.build(classes, channels)
    if s.bottleneck:
        how = {"batchnorm": s.bottleneck_batchnorm, "linear": s.bottleneck_linear}
        net = Bottlenecked(net, s.bottleneck, classes, **how)
    if s.head_hidden:
        net.head = _deep_head(net.num_features, s.head_hidden, classes)  # type: ignore[misc, assignment]
        if isinstance(net, Bottlenecked):
            net.bottleneck.append(nn.Dropout(0.5))
    return net


def _deep_head(d: int, hidden: int, classes: int) -> nn.Sequential:
    """MDD's, for the classifier and for its rival."""
    return nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, classes))


def _groups(s: AdaptTable, net: HeadedNet) -> list[dict[str, Any]]:
    new = nn.ModuleList([net.bottleneck, net.head] if isinstance(net, Bottlenecked) else [net.head])
    fresh = set(new.parameters())
    return [
        {"params": [p for p in net.parameters() if p not in fresh], "lr_factor": s.backbone_rate},
        {"params": list(new.parameters()), "lr_factor": 1.0},
    ]
