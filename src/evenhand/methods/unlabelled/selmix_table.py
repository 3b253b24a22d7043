"""The [method] table of SelMix, and what follows from it: the aim, its multipliers by name, what the data must have."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Literal

from pydantic import Field, field_validator, model_validator
from torch import Tensor

from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.errors import UserError, did_you_mean
from evenhand.measure import confusion as metric
from evenhand.methods.common import Optim, Schedule, Spared
from evenhand.pieces.selmix_aim import Aim, Duals
from evenhand.pieces.selmix_policies import Policy
from evenhand.settings import Settings

METRICS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "mean-recall": metric.mean_recall, "g-mean": metric.g_mean, "h-mean": metric.h_mean, "min-recall": None,
    "min-head-tail-recall": None,
}  # fmt: skip
TRACED = 10  # classes from either end of the tail whose multipliers are logged
LEAST, FEW = 2, 10  # validation samples of a class: without that many, refused; with fewer than that, warned


class SelMixOptim(Optim):
    """Spec 07, section 3: SGD without momentum, no decay of biases, cosine to 0 over all steps."""

    lr: float = Field(3e-4, gt=0, description="base learning rate, of the head")
    momentum: float = Field(0.0, ge=0, lt=1, description="of SGD")
    weight_decay: float = Field(5e-4, ge=0)
    no_decay: list[Spared] = Field(["biases"], description="spared by weight decay: norms, biases, tokens, positions")
    schedule: Schedule = Field("cosine", description="of the learning rate")
    schedule_by: Literal["epoch", "step"] = Field("step", description="when warm-up and cosine move")


class SelMixSettings(Settings):
    """[method] of selective mixup; the classifier to fine-tune is named in [needs] as ``first``."""

    name: Literal["selmix"] = "selmix"
    objective: str = Field(
        "mean-recall", description="mean-recall, g-mean, h-mean, min-recall, min-head-tail-recall, or module:function"
    )
    floors: Literal["none", "coverage", "head-tail-coverage"] = Field("none", description="least coverage to keep to")
    floor: float | None = Field(None, gt=0, lt=1, description="that coverage; default 0.95/K")
    policy: Policy = Field("selmix", description="how pairs are drawn, given their gains; see docs")
    scale: float = Field(10.0, ge=0, description="of the gains in the softmax; hedge has its own")
    relative: bool = Field(True, description="gains count by their share of the largest; false: as in the paper")
    explore: float | Literal["released"] = Field("released", description="added to each pair's share; released: 1/K^3")
    legacy: bool = Field(False, description="the released code's gain, which is not the derivative")
    smoothing: float = Field(1.0, ge=0, description="samples found and missed that are added to each class of C")
    sharpness: float = Field(40.0, ge=0, description="of the soft worst recall (omega)")
    cap: float = Field(100.0, gt=0, description="largest multiplier of a coverage floor (Lambda max)")
    tolerance: float = Field(0.01, gt=0, description="coverage missed at which it nears the cap (tau)")
    memory: bool = Field(False, description="multipliers go on from their last value, not from C alone")
    step: float = Field(100.0, gt=0, description="of coverage multipliers with memory")
    tail: float = Field(0.1, gt=0, lt=1, description="share of classes that are tail, in head-tail objectives")
    mix: Literal["features", "cutmix"] = Field("features", description="what is mixed: features, or images")
    least_kept: float = Field(0.6, ge=0, le=1, description="least share of the labelled sample's features in a mix")
    partners: Literal["auto", "unlabelled", "labelled"] = Field(
        "auto", description="second samples: pseudo-labelled ones where there are any, or labelled ones"
    )
    cycle: int = Field(50, gt=0, description="steps between looks at validation")
    pseudo_every: int = Field(1, gt=0, description="looks between new pseudo-labels")
    flip_val: bool = Field(False, description="look at validation images mirrored, too")
    early_stop: bool = Field(False, description="learn no more once the largest gain has settled")
    fidelity: int = Field(16, ge=0, description="pairs whose gain is tried out, at five looks; 0: none")
    batch: int = Field(64, gt=0, description="pairs per step, over all processes")
    backbone_factor: float = Field(0.1, gt=0, description="learning rate of the backbone over the head's")
    freeze_backbone: bool = Field(False, description="the head alone learns")
    optim: SelMixOptim = SelMixOptim()

    @field_validator("objective")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in METRICS and ":" not in value:
            raise ValueError(f"'{value}' is no objective; {did_you_mean(value, METRICS)}, or module:function")
        return value

    @model_validator(mode="after")
    def _plain_optimiser(self) -> SelMixSettings:
        if self.optim.name not in ("sgd", "adam", "adamw") or self.optim.accumulate > 1:
            raise ValueError("selmix takes one pass per step: set optim.name to sgd, adam or adamw, accumulate to 1")
        return self


def aim_of(s: SelMixSettings, data: Data) -> Aim:
    """The objective of the settings; the tail are the rarest classes, as many as ``tail`` says, at least one."""
    K = len(data.classes)
    ranked = sorted(range(K), key=lambda k: -data.counts[k])
    cut = min(max(int((1 - s.tail) * K + 1e-9), 1), K - 1)
    head_tail = [ranked[:cut], ranked[cut:]]
    return Aim(
        METRICS[s.objective] if s.objective in METRICS else _own(s.objective),
        groups=head_tail if s.objective == "min-head-tail-recall" else None,
        cover=s.floors != "none",
        cover_groups=head_tail if s.floors == "head-tail-coverage" else None,
        sharpness=s.sharpness, floor=s.floor, cap=s.cap, tolerance=s.tolerance, memory=s.memory, step=s.step,
    )  # fmt: skip


def _own(place: str) -> Callable[[Tensor], Tensor]:
    """The function behind ``module:function``, which may lie where the user works."""
    module, _, name = place.partition(":")
    if "" not in sys.path:
        sys.path.append("")
    try:
        found: Callable[[Tensor], Tensor] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"method.objective = '{place}' cannot be imported ({error}); is its module here?") from error

    def guarded(C: Tensor) -> Tensor:
        try:
            return found(C)
        except (IndexError, RuntimeError, TypeError, ZeroDivisionError) as error:
            told = next(iter(str(error).splitlines()), type(error).__name__)
            raise ValueError(f"it fails on a confusion matrix of {len(C)} classes ({told}): correct it") from error

    return guarded


def multipliers_by_name(duals: Duals, aim: Aim, data: Data) -> dict[str, float]:
    """As the log takes them: ``multiplier:shirt``, of the largest and the rarest classes, or of head and tail."""
    ranked = sorted(range(len(data.classes)), key=lambda k: -data.counts[k])
    few = ranked if len(ranked) <= 2 * TRACED else ranked[:TRACED] + ranked[-TRACED:]
    found: dict[str, float] = {}
    for key, prefix, groups in (
        ("recall", "multiplier", aim.groups),
        ("coverage", "coverage_multiplier", aim.cover_groups),
    ):
        values = duals[key].tolist()
        if groups is None:  # there may be as many groups as classes
            named = {data.classes[k]: values[k] for k in few} if values else {}
        else:
            named = dict(zip(("head", "tail"), values, strict=True)) if len(values) == 2 else {}
        found |= {f"{prefix}:{name}": value for name, value in named.items()}
    return found


def wants_unlabelled(s: SelMixSettings, streams: Streams) -> bool:
    """Whether partners are unlabelled samples."""
    there = "unlabelled" in streams and len(streams["unlabelled"]) > 0
    if s.partners == "unlabelled" and not there:
        raise UserError("partners = 'unlabelled' but the data have none: set data.unlabelled_max, or partners")
    return there and s.partners != "labelled"


def check_validation(streams: Streams) -> None:
    """Refuse validation that leaves a class out."""
    if "val" not in streams:
        raise UserError("selmix is steered by validation, which the data do not have: set data.val_per_class")
    val = streams["val"]
    few = [name for name, count in zip(val.classes, val.counts, strict=True) if count < LEAST]
    if few:
        raise UserError(
            f"validation has fewer than {LEAST} samples of {', '.join(few[:5])}: every class needs some, "
            "set data.val_per_class to 50 or more, or add them"
        )


def warn_of_few(streams: Streams) -> None:
    few = min(streams["val"].counts)
    if few < FEW:
        warnings.warn(
            f"validation has {few} samples of a class: a recall moves in steps of 1/{few}, "
            "so what SelMix follows is mostly chance; 50 a class are better",
            stacklevel=2,
        )
