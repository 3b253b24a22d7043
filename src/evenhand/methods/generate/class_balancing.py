"""Class balancing of a GAN by a classifier in the loop (spec 01): a term of the generator's loss.

An unconditional GAN trained on a long tail draws rare classes rarely; conditional ones collapse on them. Here the GAN
stays unconditional, and a frozen classifier adds a term to the generator's loss: the negative entropy of its mean
prediction on a batch of fakes, each class weighted by the inverse of how often it was drawn lately. Classes drawn too
often are held back, rare ones encouraged, until all are drawn about equally.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from evenhand.data.prepared import Data
from evenhand.errors import UserError
from evenhand.measure.judging import same_classes
from evenhand.methods.generate.term import Term
from evenhand.pieces.balance import EffectiveFrequency, Normalise, balance_loss, form_ratio, mean_prediction
from evenhand.settings import Settings

Rule = Literal["balance", "entropy", "classify"]
RELEASED = 2.5, 10.0  # trade-offs of the released configurations, all of them with mean-one weights


class BalanceSettings(Settings):
    """[method.balance] of any GAN; the classifier is named in [needs] as ``classifier``."""

    rule: Rule = Field("balance", description="the paper's; DeGAN's, N equal; or cross-entropy to the label asked for")
    trade_off: float = Field(0.5, ge=0, description="weight of the term; the authors' 0.5 to 10 are mean-one; 0: off")
    form: Normalise = Field(
        "share", description="class weights 1 / (K N), the thesis'; or mean-one, the code's, weaker"
    )
    cycle: int = Field(2000, gt=0, description="steps between refreshes of the frequencies")
    forget: float = Field(0.5, gt=0, le=1, description="share of the old frequencies lost at a refresh")
    weight: float = Field(1.0, gt=0, description="of the new counts at a refresh; equal to forget: moving average")
    floor: float = Field(0.01, ge=0, lt=1, description="smallest frequency over the mean one")
    labels: Literal["even", "inverse"] = Field("even", description="asked for: evenly, or by inverse frequency")


class Balance(Term):
    """A frozen classifier, and the memory of what was drawn."""

    def __init__(self, settings: BalanceSettings, data: Data, classifier: Any, device: torch.device) -> None:
        same_classes(classifier.data, data, "classifier")
        self.settings, self.strength = settings, settings.trade_off
        self.labelled = settings.rule == "classify"
        self.seen = EffectiveFrequency(len(data.classes), settings.forget, settings.weight, floor=settings.floor)
        self.classifier = copy.deepcopy(classifier.network()).to(device).requires_grad_(False)
        self.logit_scale: float = classifier.logit_scale
        view = classifier.data.eval_view  # x * scale + shift of 0..255
        self.scale, self.shift = view.scale.to(device), view.shift.to(device)

    def __call__(self, fakes: Tensor, asked: Tensor | None) -> Tensor:
        """What it sees is counted."""
        logits = self.classify(fakes)  # (N, K)
        self.seen.count(logits.detach().argmax(1))
        if self.settings.rule == "classify":
            assert asked is not None
            return cross_entropy(logits, asked)
        K = logits.shape[1]
        frequencies = torch.ones(K) if self.settings.rule == "entropy" else self.seen.distribution
        term = balance_loss(mean_prediction(logits), frequencies, normalise=self.settings.form)
        return term / K if self.settings.form == "share" else term

    def classify(self, fakes: Tensor) -> Tensor:
        """Logits (N, K) of fakes in [-1, 1], which the classifier sees normalised as it was trained."""
        pixels = (fakes + 1) * 127.5
        return self.classifier.eval()(pixels * self.scale + self.shift).float() * self.logit_scale

    def after(self, step: int) -> None:
        if (step + 1) % self.settings.cycle == 0:
            self.seen.refresh()

    def frequencies(self) -> Tensor | None:
        return self.seen.distribution if self.settings.labels == "inverse" else None

    def by_class(self) -> dict[str, Tensor]:
        return {"frequency": self.seen.distribution}

    def state(self) -> dict[str, Any]:
        return self.seen.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        self.seen.load_state_dict(state)


def check_balance(s: BalanceSettings, counts: list[int], batch: int, *, classified: bool) -> None:
    """Refuse what cannot work and warn of what may not, before a classifier is trained for it."""
    num_classes, remembered = len(counts), batch * s.cycle / s.forget
    if s.trade_off and not classified:
        raise UserError(
            "the balance term needs a classifier: set needs.classifier to a recipe or a run's folder, "
            "or method.balance.trade_off = 0 for a plain GAN"
        )
    if s.rule != "balance" or not s.trade_off:
        return
    if remembered < num_classes:
        raise UserError(
            f"frequencies of {num_classes} classes from the last {remembered:.0f} images or so would be noise: "
            "raise method.balance.cycle or method.batch, or lower method.balance.forget"
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
