"""Class-balancing GAN with a classifier in the loop (spec 01).

An unconditional GAN trained on a long tail draws rare classes rarely; conditional ones collapse on them. Here the GAN
stays unconditional, and a frozen classifier adds a term to the generator's loss: the negative entropy of its mean
prediction on a batch of fakes, each class weighted by the inverse of how often it was drawn lately. Classes drawn too
often are held back, rare ones encouraged, until all are drawn about equally.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Collection
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError
from evenhand.methods.generate.gan import GAN
from evenhand.methods.generate.judging import same_task
from evenhand.methods.generate.players import GANTable
from evenhand.methods.protocol import Progress
from evenhand.pieces.balance import EffectiveFrequency, Normalise, balance_loss, form_ratio, mean_prediction
from evenhand.pieces.gan_losses import Adversarial

RELEASED = 2.5, 10.0  # trade-offs of the released configurations, all of them with mean-one weights


class ClassBalancingSettings(GANTable):
    """[method] of the class-balancing GAN; the classifier is named in [needs] as ``classifier``."""

    name: Literal["class-balancing-gan"] = "class-balancing-gan"
    loss: Adversarial = "relativistic"
    ema_start: int = Field(20_000, ge=0, description="step from which on it averages; before, it follows")
    rule: Literal["balance", "entropy", "classify"] = Field(
        "balance", description="the paper's; DeGAN's, all frequencies equal; or cross-entropy to the label asked for"
    )
    trade_off: float = Field(
        0.5, ge=0, description="weight of the classifier's term; the authors' 0.5 to 10 go with mean-one; 0: plain GAN"
    )
    form: Normalise = Field(
        "share", description="class weights 1 / (K N), as the thesis; or scaled to mean-one, weaker, as released"
    )
    cycle: int = Field(2000, gt=0, description="steps between refreshes of the frequencies")
    forget: float = Field(0.5, gt=0, le=1, description="share of the old frequencies lost at a refresh")
    weight: float = Field(1.0, gt=0, description="of the new counts at a refresh; equal to forget: moving average")
    floor: float = Field(0.01, ge=0, lt=1, description="smallest frequency over the mean one")
    labels: Literal["even", "inverse"] = Field(
        "even", description="labels asked of a conditional generator: evenly, or by inverse frequency (many classes)"
    )


class ClassBalancing:
    """A GAN, a frozen classifier, and the memory of what was drawn."""

    table = ClassBalancingSettings

    def __init__(
        self, settings: ClassBalancingSettings, data: Data, *, seed: int, device: torch.device, classifier: Any = None,
        annotator: Any = None,
    ) -> None:  # fmt: skip
        K = len(data.classes)
        _sensible(settings, data.counts, classifier is not None)
        if classifier is not None:
            same_task(classifier, data, "classifier")
        self.settings = settings
        self.gan = GAN(settings, data, seed=seed, device=device, annotator=annotator)
        self.gan.labelled |= settings.rule == "classify"
        self.seen = EffectiveFrequency(K, settings.forget, settings.weight, floor=settings.floor)
        if classifier is not None:
            self.classifier = copy.deepcopy(classifier.judged()).to(device).requires_grad_(False)
            self.logit_scale: float = classifier.logit_scale
            view = classifier.data.eval_view  # x * scale + shift of 0..255
            self.scale, self.shift = view.scale.to(device), view.shift.to(device)

    @staticmethod
    def check(settings: ClassBalancingSettings, data: Data, given: Collection[str]) -> None:
        """Refuse what cannot work before a network that is ``given`` is trained for it."""
        GAN.check(settings, data, given)
        _sensible(settings, data.counts, "classifier" in given)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        return self.gan.feeds(streams)

    def schedule(self, at: Progress) -> None:
        self.gan.schedule(at)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        gan, s = self.gan, self.settings
        for real, labels in gan.parts(batch["labelled"]):
            said = gan.discriminate(real, labels)
        fakes, asked = gan.generate(len(real), self._frequencies())
        loss = gan.fooling_loss(fakes, asked, real, labels)
        if not s.trade_off:
            return said | gan.improve(loss, said)
        logits = self.classify(fakes)  # (N, K)
        term = self._term(logits, asked)
        said |= {"term": term.detach(), **gan.improve(loss + s.trade_off * term, said)}
        self.seen.count(logits.detach().argmax(1))
        if (gan.step + 1) % s.cycle == 0:
            self.seen.refresh()
        return said

    def classify(self, fakes: Tensor) -> Tensor:
        """Logits (N, K) of fakes in [-1, 1], which the classifier sees normalised as it was trained."""
        pixels = (fakes + 1) * 127.5
        return self.classifier.eval()(pixels * self.scale + self.shift).float() * self.logit_scale

    def _term(self, logits: Tensor, asked: Tensor | None) -> Tensor:
        if self.settings.rule == "classify":
            assert asked is not None
            return cross_entropy(logits, asked)
        K = logits.shape[1]
        frequencies = torch.ones(K) if self.settings.rule == "entropy" else self.seen.distribution
        term = balance_loss(mean_prediction(logits), frequencies, normalise=self.settings.form)
        return term / K if self.settings.form == "share" else term

    def _frequencies(self) -> Tensor | None:
        return self.seen.distribution if self.settings.labels == "inverse" else None

    def sample(self, count: int, labels: Tensor | None = None, *, generator: torch.Generator) -> Tensor:
        """Images, uint8 (N, C, H, W), by the averaged generator."""
        return self.gan.sample(count, labels, generator=generator, frequencies=self._frequencies())

    def judge(self, stream: Stream, *, batch: int = 512) -> dict[str, float]:
        found = self.gan.judge(stream, batch=batch, frequencies=self._frequencies())
        shares, names = self.seen.distribution, self.gan.data.classes
        return found | {f"frequency:{names[k]}": float(shares[k]) for k in self.gan.judged_by.traced}

    def examine(self, stream: Stream, groups: dict[str, list[int]], *, batch: int = 512) -> dict[str, Any]:
        found = self.gan.examine(stream, groups, batch=batch, frequencies=self._frequencies())
        return found | {"frequency": self.seen.distribution.tolist()}

    def state(self) -> dict[str, Any]:
        return {"gan": self.gan.state(), "seen": self.seen.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.gan.load_state(state["gan"])
        self.seen.load_state_dict(state["seen"])


def _sensible(s: ClassBalancingSettings, counts: list[int], classified: bool) -> None:
    num_classes = len(counts)
    if s.trade_off and not classified:
        raise UserError(
            "method 'class-balancing-gan' needs a classifier: set needs.classifier to a recipe or a run's folder, "
            "or trade_off = 0 for a plain GAN"
        )
    if s.condition == "none" and (s.rule == "classify" or s.labels == "inverse"):
        raise UserError(
            f"rule = '{s.rule}' with labels = '{s.labels}' asks the generator for classes: set condition = 'generator'"
        )
    if s.rule != "balance" or not s.trade_off:
        return
    remembered = s.batch * s.cycle / s.forget
    if remembered < num_classes:
        raise UserError(
            f"frequencies of {num_classes} classes from the last {remembered:.0f} images or so would be noise: "
            "raise method.cycle or method.batch, or lower method.forget"
        )
    if s.form == "share" and s.trade_off >= RELEASED[0] and min(counts) and (times := form_ratio(counts)) >= 2:
        warnings.warn(
            f"trade_off = {s.trade_off:g} with form = 'share': the released {RELEASED[0]:g} to {RELEASED[1]:g} are "
            f"meant for 'mean-one', {times:.1f} times weaker where classes are drawn as unevenly as these data",
            stacklevel=3,
        )
    if num_classes < 3:
        warnings.warn("with two classes the balancing term still favours the larger one", stacklevel=3)
    if s.forget * math.log(num_classes) >= 2:
        warnings.warn(
            f"forget = {s.forget:g} with {num_classes} classes may make the shares oscillate; "
            f"keep it below {1 / math.log(num_classes):.2g}",
            stacklevel=3,
        )
