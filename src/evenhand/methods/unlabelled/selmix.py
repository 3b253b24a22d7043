"""SelMix: fine-tune a trained classifier for the metric it is judged by (spec 07).

Validation shows, for every pair of classes, how much a step on features of class i mixed with some of class j under
label i would raise the metric, be it worst recall, H-mean or recall under coverage floors. Training draws pairs in
proportion to the softmax of these gains, looks again every few steps, and takes partners from unlabelled samples by
their pseudo-labels. A short fine-tuning then trades what the metric does not count for what it does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.nn.modules.batchnorm import _NormBase

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.pairs import ClassPairs
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.errors import UserError, users_mistake
from evenhand.measure.classification import predict_all
from evenhand.measure.confusion import confusion_matrix
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.methods.unlabelled.selmix_table import (
    SelMixSettings,
    aim_of,
    check_validation,
    multipliers_by_name,
    wants_unlabelled,
    warn_of_few,
)
from evenhand.methods.unlabelled.selmix_watch import Diary
from evenhand.methods.unlabelled.tails import warn_of_another_tail
from evenhand.nets import folded
from evenhand.pieces.mixing import paste
from evenhand.pieces.player import Player
from evenhand.pieces.selmix import pair_gain
from evenhand.pieces.selmix_aim import Aim
from evenhand.pieces.selmix_fidelity import gain_fidelity, spread_pairs
from evenhand.pieces.selmix_objectives import smoothed
from evenhand.pieces.selmix_policies import has_settled, hedge_scale, next_distribution
from evenhand.randomness import dice, mix


class SelMix(Recogniser):
    """Validation -> gains -> pairs of classes -> mixed features under the first one's label."""

    table = SelMixSettings
    player: Player

    def __init__(
        self, settings: SelMixSettings, data: Data, *, seed: int, device: torch.device, first: Any = None
    ) -> None:
        if first is None or first.network() is None:
            raise UserError("method 'selmix' fine-tunes a network: set needs.first to a classifier's recipe or folder")
        if first.data.classes != data.classes:
            raise UserError("the first run knows other classes than the data: use the same [data] for both")
        if settings.mix == "cutmix" and data.facts.kind != "images":
            raise UserError(f"mix = 'cutmix' cuts images, the data are {data.facts.kind}: set mix = 'features'")
        self.settings, self.seed, s = settings, seed, settings
        self.data = replace(data, train_view=first.data.train_view, eval_view=first.data.eval_view)
        self.net = copy.deepcopy(first.network()).requires_grad_(True)
        if getattr(self.net, "head_dist", None) is not None:
            raise UserError("needs.first has two heads (distilled): SelMix needs one linear head, take another run")
        with users_mistake("needs.first, for SelMix"):
            self.net.head = folded(self.net.head, first.logit_scale).to(device)
        self._freeze_norms()
        if s.freeze_backbone:
            self.net.requires_grad_(False)
            self.net.head.requires_grad_(True)
        head = list(self.net.head.parameters())
        backbone = [p for p in self.net.parameters() if p.requires_grad and all(p is not own for own in head)]
        groups = [{"params": backbone, "lr_factor": s.backbone_factor}] if backbone else []
        self.player = s.optim.player(self.net, seed=seed, groups=[*groups, {"params": head}])
        self.pursue(aim_of(s, data))

    def pursue(self, aim: Aim) -> None:
        """Aim at another metric, such as one's own function of C, before training."""
        K = len(self.data.classes)
        self.aim, self.duals = aim, aim.start(K)
        self.distribution, self.past = torch.full((K, K), 1 / K**2), torch.zeros(K, K)
        self.pseudo = torch.empty(0, dtype=torch.int64)  # the unlabelled samples' classes, as last predicted
        self.stopped = -1  # the step from which nothing is learnt any more
        self.diary = Diary(self.data.counts)
        self.at = 0

    @staticmethod
    def check(settings: Any, data: Data, given: Collection[str]) -> None:
        if "first" not in given:
            raise UserError("method 'selmix' fine-tunes a network: set needs.first to a classifier's recipe or folder")
        wants_unlabelled(settings, data.streams)
        check_validation(data.streams)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        """Pairs of classes by their distribution, then a sample of each; partners by pseudo-label, if unlabelled."""
        s, labels = self.settings, streams["labelled"].labels
        check_validation(streams)
        warn_of_few(streams)
        warn_of_another_tail(self.aim.groups or self.aim.cover_groups, self.data)
        assert labels is not None
        apart, view = wants_unlabelled(s, streams), (self.data.train_view,)
        if apart and not len(self.pseudo):  # nothing was looked at yet: the first refresh comes before the first step
            even = [torch.ones(len(streams[name])) for name in ("labelled", "unlabelled")]
            return {
                name: Feed(name, s.batch, view, w) for name, w in zip(("labelled", "unlabelled"), even, strict=True)
            }
        pairs = ClassPairs(
            self.distribution, labels, self.pseudo if apart else labels, s.batch, mix(self.seed, "selmix"),
            rank=parallel.rank(), world=parallel.world(),
        )  # fmt: skip
        if not apart:
            return {"labelled": Feed("labelled", 2 * s.batch, view, picks=pairs.both())}
        return {
            "labelled": Feed("labelled", s.batch, view, picks=pairs.side(0)),
            "unlabelled": Feed("unlabelled", s.batch, view, picks=pairs.side(1)),
        }

    def refresh(self, at: Progress, streams: Streams) -> dict[str, Feed] | None:
        """At each cycle's start: validation -> multipliers -> gains -> distribution; then pseudo-labels."""
        s, (turn, inside) = self.settings, divmod(at.step, self.settings.cycle)
        if inside or self.stopped >= 0:
            return None
        features, labels = self._validation(streams)
        with users_mistake(f"objective '{s.objective}'"):
            self._weigh(features, labels, at, turn)
        if s.early_stop and has_settled(self.diary.largest):
            self.stopped = at.step
        if wants_unlabelled(s, streams) and turn % s.pseudo_every == 0:
            self.pseudo = predict_all(self.predict, streams["unlabelled"]).argmax(1)
        return self.feeds(streams)

    @torch.no_grad()
    def _validation(self, streams: Streams) -> tuple[Tensor, Tensor]:
        """Features and labels in evaluation mode, of the images and, if asked for, of their mirror images."""
        val = streams["val"]
        assert val.labels is not None
        found = [predict_all(self.embed, val)]
        if self.settings.flip_val:
            if val.kind != "images":
                raise UserError(f"flip_val mirrors images, the data are {val.kind}: leave it out")
            found.append(predict_all(lambda x: self.embed(x.flip(-1)), val))
        return torch.cat(found), val.labels.repeat(len(found))

    @torch.no_grad()
    def _weigh(self, features: Tensor, labels: Tensor, at: Progress, turn: int) -> None:
        s, head, K = self.settings, self._judged().head, len(self.data.classes)
        turns, keep = math.ceil(at.total_steps / s.cycle), (1 + s.least_kept) / 2
        assert isinstance(head, nn.Linear)
        W, b = head.weight.cpu(), None if head.bias is None else head.bias.cpu()
        predicted = linear(features, W, b).argmax(1)
        C = smoothed(confusion_matrix(predicted, labels, K), len(labels), s.smoothing)  # with validation's own priors
        found = self.aim.follow(C, self.duals)
        self.duals = {key: value.float() for key, value in found.items()}
        objective = self.aim.at(found)
        prototypes = torch.zeros(K, features.shape[1]).double().index_add_(0, labels, features.double())
        prototypes /= torch.bincount(labels, minlength=K)[:, None]
        gain = pair_gain(objective, C, prototypes, W, bias=b, keep=keep, legacy=s.legacy)
        explore = 1 / K**3 if s.explore == "released" else s.explore
        scale = hedge_scale(K, turns) if s.policy == "hedge" else s.scale
        P, past = next_distribution(s.policy, gain, self.past, scale=scale, relative=s.relative, floor=explore)
        self.distribution, self.past = P.float(), past.float()
        self.diary.note(at.step, gain, P)
        if self.diary.wanted(turn, turns):
            pairs = spread_pairs(gain, s.fidelity)
            tried = gain_fidelity(objective, gain, features, labels, W, b, pairs=pairs, keep=keep) if pairs else None
            self.diary.show(at.step, gain, P, torch.empty(0, 3) if tried is None else tried)

    def schedule(self, at: Progress) -> None:
        self.settings.optim.apply(self.player, at)
        self.at = at.step

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        x, y = batch["labelled"].x, batch["labelled"].y
        if self.stopped >= 0:
            return {"stopped": torch.ones(())}
        if "unlabelled" in batch:
            other = batch["unlabelled"].x
        else:
            (x, other), y = x.chunk(2), y[: len(y) // 2]
        net = self.net.train()
        self._freeze_norms()
        with self.player.autocast():
            if self.settings.mix == "cutmix":
                logits = net(paste(x, other, 1.0, dice(self.seed, "cutmix", self.at, parallel.rank())))
            else:
                kept = self._kept(len(y)).to(x.device)[:, None]
                first, second = net.features(x), net.features(other)
                logits = net.head(kept.to(first) * first + (1 - kept).to(second) * second)
        loss = cross_entropy(logits.float(), y)  # the first one's label alone
        self.player.backward(loss, last=True)
        self.player.step()
        return {"loss": loss.detach()}

    def _kept(self, count: int) -> Tensor:
        """This process's part of the joint batch's mixing coefficients, uniform between ``least_kept`` and 1."""
        draw = torch.rand(count * parallel.world(), generator=dice(self.seed, "kept", self.at))
        least = self.settings.least_kept
        return (least + (1 - least) * draw)[count * parallel.rank() :][:count]

    def _freeze_norms(self) -> None:
        """BatchNorm normalises by the statistics it came with, and neither these nor its weights move."""
        for module in self.net.modules():
            if isinstance(module, _NormBase):
                module.eval().requires_grad_(False)

    def traces(self) -> dict[str, float]:
        k = self.diary.kept
        if not len(k["steps"]):
            return {}
        said = {"pair_entropy": float(k["entropy"][-1]), "largest_gain": float(k["largest"][-1])}
        return said | multipliers_by_name(self.duals, self.aim, self.data)

    def details(self) -> dict[str, Any]:
        found = self.diary.details()
        found["selmix"] |= {"stopped": self.stopped} if self.stopped >= 0 else {}
        return found

    def state(self) -> dict[str, Any]:
        found = {"player": self.player.state(), "duals": self.duals, "distribution": self.distribution}
        return found | {
            "past": self.past, "pseudo": self.pseudo, "stopped": self.stopped, "diary": self.diary.state(),
        }  # fmt: skip

    def load_state(self, state: dict[str, Any]) -> None:
        self.player.load_state(state["player"])
        self.duals, self.distribution, self.past = state["duals"], state["distribution"], state["past"]
        self.pseudo, self.stopped = state["pseudo"], state["stopped"]
        self.diary.load_state(state["diary"])
