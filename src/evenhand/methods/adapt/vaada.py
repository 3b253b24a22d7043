"""VAADA: virtual adversarial active domain adaptation, the training behind S3VAADA (spec 08).

As labelled target samples join, adaptation must keep learning from them. So the features fool a domain discriminator
for which labelled target counts as source, predictions are kept steady under virtual adversarial changes and sure on
the target (VADA's losses), and all layers learn at one high rate, with the gradients of features, classifier and
discriminator clipped each by its own norm. The choice of what to label is in evenhand.pieces.submodular.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.methods.adapt.labelled import two_feeds
from evenhand.methods.adapt.tables import AdaptOptim, LabelledTable
from evenhand.methods.common import Net, Schedule
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.nets.bottleneck import Bottlenecked
from evenhand.nets.heads import HeadedNet
from evenhand.pieces.player import Player
from evenhand.pieces.vat import vat_loss
from evenhand.randomness import dice
from evenhand.settings import Settings

SOURCE, TARGET = 0, 1  # what the discriminator's two logits stand for


class VAADAOptim(AdaptOptim):
    """SGD at one constant rate, each part clipped by its own norm; ``schedule = "inverse-progress"``: DANN's decay."""

    nesterov: bool = False
    weight_decay: float = Field(5e-4, ge=0)
    schedule: Schedule = Field("constant", description="of the learning rate; inverse-progress: (1 + 10 p)^-0.75")
    clip: float | None = Field(1.0, ge=0, description="largest gradient norm; 0: no clipping")
    clip_apart: bool = Field(True, description="each part (features, classifier, discriminator) by its own norm")

    def player(self, net: nn.Module, *, seed: int, groups: list[dict[str, Any]] | None = None) -> Player:
        player = super().player(net, seed=seed, groups=groups)
        player.clip = self.clip or None
        return player


class Perturbed(Settings):
    """Virtual adversarial changes of inputs."""

    epsilon: float = Field(5.0, gt=0, description="their norm, of normalised inputs")
    xi: float | None = Field(None, gt=0, description="finite-difference step; default: what float32 can resolve")


class VAADASettings(LabelledTable):
    """[method] of VAADA; VADA: optim = adam at 1e-4 with ema and clip = 0."""

    name: Literal["vaada"] = "vaada"
    batch: int = Field(16, gt=0, description="labelled samples per step, over all processes; as many unlabelled ones")
    net: Net = Net(name="resnet50")
    bottleneck: int = Field(256, ge=0, description="width of a linear layer before the classes; 0: none")
    hidden: int = Field(1024, gt=0, description="width of the discriminator's two hidden layers")
    optim: VAADAOptim = VAADAOptim()
    backbone_factor: float = Field(1.0, gt=0, description="of its learning rate; the method's point is 1")
    domain_weight: float = Field(0.01, ge=0, description="of fooling the discriminator")
    labelled_vat: float = Field(1.0, ge=0, description="of steady predictions of labelled samples")
    target_weight: float = Field(0.01, ge=0, description="of steady and sure predictions of unlabelled ones")
    vat: Perturbed = Perturbed()
    centre: bool = Field(True, description="large images: their centre in training, too, instead of random crops")


class VAADA(Recogniser):
    """Three parts, features g and classifier f (one player, clipped apart) and discriminator D (another)."""

    table = VAADASettings
    tells = True
    player: Player

    def __init__(self, settings: VAADASettings, data: Data, *, seed: int, device: torch.device) -> None:
        s, K = settings, len(data.classes)
        if s.batch % parallel.world():
            raise ValueError(f"batch = {s.batch} cannot be shared by {parallel.world()} processes alike; round it")
        self.settings, self.data, self.seed, self.device = s, data, seed, device
        self.net = s.net.build(K, data.inputs)
        if s.bottleneck:
            self.net = Bottlenecked(self.net, s.bottleneck, K, linear=True)
        self.net = self.net.to(device)
        self.player = s.optim.player(self.net, seed=seed, groups=parts(self.net, s.backbone_factor))
        d, h = self.net.num_features, s.hidden
        critic = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 2)).to(device)
        self.critic = s.optim.model_copy(update={"ema": None}).player(critic, seed=seed)
        self.at = Progress(0, 1, 1)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        s = self.settings
        return two_feeds(s, streams, s.batch, self.data.train_view, self.seed, short=True)

    def schedule(self, at: Progress) -> None:
        self.at = at
        for player in (self.player, self.critic):
            self.settings.optim.apply(player, at)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        s, x, y, u = self.settings, batch["source"].x, batch["source"].y, batch["target"].x
        self.net.train()
        with self.player.autocast():
            labelled, unlabelled = self.net.features(x), self.net.features(u)  # each by its own BatchNorm statistics
        told = self._tell_apart(labelled.detach(), unlabelled.detach())

        with self.player.autocast():
            logits, others = self.net.head(labelled).float(), self.net.head(unlabelled).float()
            with _constant(self.critic.net):
                fooled = _domain_loss(self.critic.net(labelled), self.critic.net(unlabelled), TARGET, SOURCE)
        task = F.cross_entropy(logits, y)
        entropy = torch.special.entr(others.softmax(1)).sum(1).mean()
        steady = self._steadiness(x, "labelled") if s.labelled_vat else entropy.new_zeros(())
        steady_u = self._steadiness(u, "target") if s.target_weight else entropy.new_zeros(())
        loss = task + s.domain_weight * fooled + s.labelled_vat * steady + s.target_weight * (steady_u + entropy)
        self.player.backward(loss, last=True)
        self.player.step()
        said = {"loss": loss, "task": task, "fooled": fooled, "vat": steady, "target_vat": steady_u}
        return {key: value.detach() for key, value in said.items()} | {"target_entropy": entropy.detach(), **told}

    def _tell_apart(self, labelled: Tensor, unlabelled: Tensor) -> dict[str, Tensor]:
        """The discriminator's own step, on features that stay as they are."""
        self.critic.net.train()
        with self.critic.autocast():
            ours, theirs = self.critic.net(labelled), self.critic.net(unlabelled)
        loss = _domain_loss(ours, theirs, SOURCE, TARGET)
        self.critic.backward(loss, last=True)
        self.critic.step()
        right = ((ours.argmax(1) == SOURCE).float().mean() + (theirs.argmax(1) == TARGET).float().mean()) / 2
        return {"domain": loss.detach(), "domain_accuracy": right}

    def _steadiness(self, x: Tensor, purpose: str) -> Tensor:
        """KL(h(x) || h(x + r)); BatchNorm's running statistics stay, and no process has another's random starts."""
        chance = dice(self.seed, "vat", purpose, self.at.step)
        for _ in range(parallel.rank()):
            torch.randn(x.shape, generator=chance)
        return vat_loss(self.net, x, epsilon=self.settings.vat.epsilon, xi=self.settings.vat.xi, generator=chance)

    @torch.no_grad()
    def tell(self, x: Any) -> Tensor:
        logits = self.critic.judged()(self.embed(x))
        return logits[:, SOURCE] - logits[:, TARGET]

    def state(self) -> dict[str, Any]:
        return {"player": self.player.state(), "critic": self.critic.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.player.load_state(state["player"])
        self.critic.load_state(state["critic"])


def _domain_loss(labelled: Tensor, unlabelled: Tensor, ours: int, theirs: int) -> Tensor:
    """CE(D(g(x_l)), ours) + CE(D(g(x_u)), theirs), of logits (N, 2)."""
    wanted = [torch.full((len(z),), k, device=z.device) for z, k in ((labelled, ours), (unlabelled, theirs))]
    return F.cross_entropy(labelled.float(), wanted[0]) + F.cross_entropy(unlabelled.float(), wanted[1])


@contextmanager
def _constant(net: nn.Module) -> Iterator[None]:
    """Gradients pass through the network but do not reach its weights."""
    net.requires_grad_(False)
    try:
        yield
    finally:
        net.requires_grad_(True)


def parts(net: HeadedNet, backbone_factor: float) -> list[dict[str, Any]]:
    """Features (of which the backbone may learn slower) and classifier, to be clipped apart."""
    head = set(net.head.parameters())
    backbone = set(net.backbone.parameters()) if isinstance(net, Bottlenecked) else set(net.parameters()) - head
    groups = [
        {"params": [p for p in net.parameters() if p in backbone], "lr_factor": backbone_factor, "part": 0},
        {"params": [p for p in net.parameters() if p not in backbone | head], "lr_factor": 1.0, "part": 0},
        {"params": [p for p in net.parameters() if p in head], "lr_factor": 1.0, "part": 1},
    ]
    return [group for group in groups if group["params"]]
