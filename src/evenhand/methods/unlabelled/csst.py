"""Cost-sensitive self-training: the metric that counts, from few labels and many unlabelled samples (spec 06).

Worst recall, recall under coverage floors and other functions of the confusion matrix are maximised by a sequence of
gain matrices, whose multipliers follow a small balanced validation set. The labelled loss and the consistency loss of
FixMatch or UDA become the hybrid loss of the present gain, and a pseudo-label counts where the prediction is near, in
KL, to the best one for that gain: a confidence threshold would discard all but the rarest classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError
from evenhand.measure import confusion as metric
from evenhand.measure.classification import evaluate
from evenhand.methods.protocol import Progress
from evenhand.methods.unlabelled.selftraining import SelfTraining, SelfTrainingTable
from evenhand.methods.unlabelled.tails import warn_of_another_tail
from evenhand.pieces.cost_sensitive import hybrid_loss, kl_mask
from evenhand.pieces.objectives import AnyMetric, Coverage, FixedGain, MinRecall, Objective
from evenhand.pieces.pseudo import confidence_mask, sharpen

METRICS: dict[str, Callable[..., Tensor]] = {
    "mean-recall": metric.mean_recall,
    "g-mean": metric.g_mean,
    "h-mean": metric.h_mean,
    "q-mean": metric.q_mean,
    "f-beta": metric.f_beta,
}


class CSSTSettings(SelfTrainingTable):
    """[method] of cost-sensitive self-training; the baseline CSL is ``unlabelled_weight = 0``."""

    name: Literal["csst"] = "csst"
    objective: Literal[
        "min-recall", "min-head-tail-recall", "min-group-recall", "coverage", "head-tail-coverage", "mean-recall",
        "g-mean", "h-mean", "q-mean", "f-beta", "gain",
    ] = Field("min-recall", description="what to maximise, see docs; gain: the matrix given as gain")  # fmt: skip
    step: float = Field(0.25, gt=0, description="of the multipliers at each feedback (omega)")
    feedback_every: int = Field(32, gt=0, description="steps between looks at validation")
    feedback_parts: int = Field(1, gt=0, description="look at one of so many parts of it, and remember the others")
    mask: Literal["kl", "confidence"] = Field("kl", description="which pseudo-labels count")
    threshold: float = Field(0.05, ge=0, description="largest KL to the best prediction (tau)")
    confidence: float = Field(0.95, gt=0, le=1, description="of mask confidence, the ablation")
    floor: float | None = Field(None, gt=0, description="least coverage of a class; default 0.95/K")
    tail: float = Field(0.1, gt=0, lt=1, description="share of classes that are tail, in head-tail objectives")
    balanced_gain: bool = Field(False, description="reward coverage under the mix it is measured on, see docs")
    beta: float = Field(1.0, gt=0, description="of f-beta; above 1, recall counts more")
    gain: list[list[float]] = Field([], description="of objective gain: G[i][j] rewards predicting j for truth i")

    @model_validator(mode="after")
    def _whole(self) -> CSSTSettings:
        if (self.objective == "gain") != bool(self.gain):
            raise ValueError("objective = 'gain' and the matrix gain belong together: give both or neither")
        return self


class CSST(SelfTraining):
    """Gain, hybrid loss, KL mask; validation moves the multipliers between steps."""

    table = CSSTSettings
    settings: CSSTSettings

    def __init__(self, settings: CSSTSettings, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        self.parts: list[Stream] = []  # of validation
        self.pursue(_objective(settings, data), tuple(data.groups) if settings.objective == "min-group-recall" else ())

    def pursue(self, objective: Objective, names: Sequence[str] = ()) -> None:
        """Aim at another objective, such as ``AnyMetric`` of one's own function, before training.

        ``names`` are of its groups; two without are head and tail.
        """
        K = len(self.priors)
        self.objective = objective
        self.duals = objective.start(K).to(self.priors)
        self.confusions = self.priors.new_full(
            (self.settings.feedback_parts, K, K), K**-2.0
        )  # of the parts of validation
        self.confusion = self.confusions[0]
        groups = getattr(objective, "groups", None)
        self.names = self.data.classes
        if groups is not None or len(self.duals) != K:  # there may be as many groups as classes, in another order
            usual = ("head", "tail") if groups is not None and len(groups) == 2 else _numbered(len(self.duals))
            self.names = tuple(names) or usual
        self.gain = objective.gain(self.duals, self.confusion)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        self.parts = _validation(streams, self.settings.feedback_parts)
        if self.names == ("head", "tail"):
            warn_of_another_tail(getattr(self.objective, "groups", None), self.data)
        return super().feeds(streams)

    def refresh(self, at: Progress, streams: Streams) -> None:
        """Validation by the averaged network -> confusion matrix -> multipliers -> gain."""
        turn, inside = divmod(at.step, self.settings.feedback_every)
        if inside:
            return
        part = turn % len(self.parts)
        found = evaluate(self.predict, self.parts[part]).confusion.to(self.priors)
        self.confusions[part] = found / found.sum(1, keepdim=True).clamp_min(1e-12) / len(found)  # classes weigh alike
        self.confusion = self.confusions[: turn + 1].mean(0)
        self.duals = self.objective.update(self.duals, self.confusion)
        self.gain = self.objective.gain(self.duals, self.confusion)

    def schedule(self, at: Progress) -> None:
        self.settings.optim.apply(self.player, at)

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        first, weak, strong = self.passes(batch)
        labelled = hybrid_loss(first, batch["labelled"].y, self.gain).mean()
        if not len(weak):
            return self.learn(labelled, first.new_zeros(()))
        target, kept = self.pseudo_labels(weak)
        consistency = (kept * hybrid_loss(strong, target, self.gain)).mean()  # of all, not only of those kept
        return self.learn(labelled, consistency) | self.watch(target, kept)

    @torch.no_grad()
    def pseudo_labels(self, weak: Tensor) -> tuple[Tensor, Tensor]:
        """Targets, (N,) or under UDA (N, K), and which of them count: unadjusted outputs against the optimum."""
        s = self.settings
        probs = weak.softmax(1)
        target = sharpen(probs, s.temperature) if s.consistency == "uda" else probs.argmax(1)
        if s.mask == "confidence":
            return target, confidence_mask(probs, s.confidence)
        return target, kl_mask(probs, self.gain, s.threshold, target)

    def traces(self) -> dict[str, float]:
        return super().traces() | self.by_name("multiplier", self.duals, self.names)

    def state(self) -> dict[str, Any]:
        seen = {"confusion": self.confusion, "confusions": self.confusions}
        return super().state() | {"duals": self.duals} | seen

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.duals, self.confusion = state["duals"].to(self.priors), state["confusion"].to(self.priors)
        self.confusions = state["confusions"].to(self.priors, copy=True)
        self.gain = self.objective.gain(self.duals, self.confusion)


def _objective(s: CSSTSettings, data: Data) -> Objective:
    priors, K = data.counts, len(data.classes)
    rare = sorted(range(K), key=lambda k: -priors[k])
    cut = K - max(1, round(s.tail * K))
    head_tail = [rare[:cut], rare[cut:]]
    match s.objective:
        case "gain":
            if [len(row) for row in s.gain] != [K] * K:
                shape = f"rows of {', '.join(str(len(row)) for row in s.gain)}"
                raise UserError(f"method.gain has {shape} numbers; there are {K} classes: give {K} rows of {K}")
            return FixedGain(torch.tensor(s.gain))
        case "min-recall":
            return MinRecall(priors, s.step)
        case "min-head-tail-recall":
            return MinRecall(priors, s.step, head_tail)
        case "min-group-recall":
            return MinRecall(priors, s.step, list(data.groups.values()))
        case "coverage":
            return Coverage(priors, s.step, s.floor, balanced=s.balanced_gain)
        case "head-tail-coverage":
            return Coverage(priors, s.step, s.floor, head_tail, balanced=s.balanced_gain)
        case "f-beta":
            return AnyMetric(partial(metric.f_beta, beta=s.beta), priors, s.step)
    return AnyMetric(METRICS[s.objective], priors, s.step)


def _validation(streams: Streams, parts: int) -> list[Stream]:
    """Validation cut into parts with the same class mix."""
    if "val" not in streams:
        raise UserError(
            "csst is steered by validation, which the data do not have: set data.val_per_class to 50 or more"
        )
    val = streams["val"]
    absent = [name for name, count in zip(val.classes, val.counts, strict=True) if count == 0]
    if absent:
        warnings.warn(f"validation has no {', '.join(absent[:5])}: to csst's feedback recall is 0 there", stacklevel=2)
    assert val.labels is not None
    if parts > max(1, min(n for n in val.counts if n)):
        raise UserError(f"feedback_parts = {parts} leaves parts of validation without a class: lower it")
    by_class = val.labels.argsort(stable=True)
    return [val.subset(by_class[part::parts]) for part in range(parts)] if parts > 1 else [val]


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(count))
