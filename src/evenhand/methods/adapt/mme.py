"""MME, minimax entropy (Saito et al., 2019): the semi-supervised baseline of S3VAADA (spec 08, section 3).

A few labelled target samples pull a cosine classifier's prototypes towards the target when the classifier maximises the
entropy of unlabelled predictions, while the features minimise it and so gather around the prototypes.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.methods.adapt.labelled import two_feeds
from evenhand.methods.adapt.tables import AdaptOptim, LabelledTable, SlowBackbone
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.nets.bottleneck import Bottlenecked
from evenhand.nets.heads import make_head
from evenhand.pieces.domain import reverse_gradient
from evenhand.pieces.player import Player


class MMESettings(SlowBackbone, LabelledTable):
    """[method] of MME."""

    name: Literal["mme"] = "mme"
    batch: int = Field(24, gt=0, description="labelled samples per step, over all processes; as many unlabelled ones")
    bottleneck: int = Field(256, ge=0, description="width of a linear layer before the classes; 0: none")
    optim: AdaptOptim = AdaptOptim(weight_decay=5e-4, inverse_alpha=1e-4)
    temperature: float = Field(0.05, gt=0, description="that cosines are divided by")
    entropy_weight: float = Field(0.1, ge=0, description="of the entropy that classifier and features fight over")


class MME(Recogniser):
    """One network; the entropy's gradient reaches the features reversed."""

    table = MMESettings
    player: Player

    def __init__(self, settings: MMESettings, data: Data, *, seed: int, device: torch.device) -> None:
        s, K = settings, len(data.classes)
        if s.batch % parallel.world():
            raise ValueError(f"batch = {s.batch} cannot be shared by {parallel.world()} processes alike; round it")
        self.settings, self.data, self.seed, self.device = s, data, seed, device
        net = s.net.build(K, data.inputs)
        if s.bottleneck:
            net = Bottlenecked(net, s.bottleneck, K, linear=True)
        net.head = make_head("cosine", net.num_features, K)  # type: ignore[misc]
        self.net, self.logit_scale = net.to(device), 1 / s.temperature
        inside = set(self.net.parameters()) - set(self.net.head.parameters())
        if isinstance(self.net, Bottlenecked):
            inside = set(self.net.backbone.parameters())
        groups = [
            {"params": [p for p in self.net.parameters() if p in inside], "lr_factor": s.backbone_rate},
            {"params": [p for p in self.net.parameters() if p not in inside], "lr_factor": 1.0},
        ]
        self.player = s.optim.player(self.net, seed=seed, groups=groups)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        return two_feeds(self.settings, streams, self.settings.batch, self.data.train_view, self.seed)

    def schedule(self, at: Progress) -> None:
        self.settings.optim.apply(self.player, at)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        self.net.train()
        with self.player.autocast():
            logits = self.net(batch["source"].x) * self.logit_scale
            features = self.net.features(batch["target"].x)
            others = self.net.head(reverse_gradient(features, 1.0)) * self.logit_scale
        task = F.cross_entropy(logits.float(), batch["source"].y)
        entropy = torch.special.entr(others.float().softmax(1)).sum(1).mean()
        loss = task - self.settings.entropy_weight * entropy  # the classifier raises it, the features lower it
        self.player.backward(loss, last=True)
        self.player.step()
        return {"loss": loss.detach(), "task": task.detach(), "target_entropy": entropy.detach()}

    def state(self) -> dict[str, Any]:
        return {"player": self.player.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.player.load_state(state["player"])
