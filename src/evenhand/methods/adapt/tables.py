"""The [method] table that domain-adversarial methods share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from evenhand.methods.common import Net, Optim, Schedule
from evenhand.settings import Settings

# MDD as published, where it differs from the others: the rest of [method] is laid over it.
MDD: dict[str, Any] = {
    "bottleneck": 1024,
    "head_hidden": 1024,
    "reversal": {"high": 0.1},
    "optim": {"lr": 0.004, "inverse_alpha": 2e-4, "weight_decay": 5e-4},
}


class AdaptOptim(Optim):
    """SGD as adaptation uses it: Nesterov, ``lr (1 + 0.001 step)^-0.75``."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.01, gt=0, description="base learning rate")
    nesterov: bool = True
    weight_decay: float = Field(1e-3, ge=0)
    schedule: Schedule = Field("inverse", description="of the learning rate")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="autocast type: float32, bfloat16")

    @model_validator(mode="after")
    def _nothing_ignored(self) -> AdaptOptim:
        for key in ("rho", "rho_relative", "rho_milestones", "rho_values", "rho_last", "accumulate"):
            if getattr(self, key) != Optim.model_fields[key].default:
                raise ValueError(f"{key} has no effect here: the radius is method.rho of sdat; leave it out")
        return self


class Discriminator(Settings):
    """The domain discriminator, or MDD's rival head."""

    hidden: int = Field(1024, gt=0, description="width of its hidden layers")
    batchnorm: bool = Field(True, description="BatchNorm between them; false: dropout 0.5")
    dropout: bool = Field(True, description="false, with batchnorm = false: nothing between them")


class Reversal(Settings):
    """Coefficient of the reversed gradient: ``high tanh(alpha step / (2 steps))``."""

    alpha: float = Field(1.0, gt=0)
    steps: int = Field(1000, gt=0, description="with alpha: how slowly it grows")
    high: float = Field(1.0, ge=0, description="what it grows to")


class VAT(Settings):
    """Virtual adversarial training on source images."""

    weight: float = Field(0.0, ge=0, description="0: off; the authors' baseline has 0.1")
    epsilon: float = Field(15.0, gt=0, description="norm of the input's change")
    xi: float | None = Field(None, gt=0, description="finite-difference step; default: what float32 can resolve")


class LabelledTable(Settings):
    """How labelled samples of the target (data.labels) are fed together with the source's."""

    target_labels: bool = Field(True, description="learn from labelled target samples, too, where there are some")
    target_share: float | None = Field(
        None, gt=0, lt=1, description="of a batch, from the labelled target; default: its batches, then the source's"
    )
    centre: bool = Field(False, description="large images: their centre in training, too, instead of random crops")


class SlowBackbone(Settings):
    """A backbone that comes with weights learns slower than what is new; one without is new itself."""

    net: Net = Net(name="resnet50")
    backbone_factor: float | None = Field(
        None, gt=0, description="of its learning rate; default 0.1 with weights, else 1"
    )

    @property
    def backbone_rate(self) -> float:
        return self.backbone_factor or (0.1 if self.net.weights else 1.0)


class AdaptTable(SlowBackbone, LabelledTable):
    """What the [method] tables of domain-adversarial methods have in common."""

    takes_after: ClassVar = {"optim_d": "optim"}

    batch: int = Field(32, gt=0, description="source images per step, over all processes; as many target images")
    bottleneck: int = Field(256, ge=0, description="width of the layer before the classes; 0: none")
    bottleneck_batchnorm: bool = Field(True, description="false for networks without BatchNorm")
    bottleneck_linear: bool = Field(False, description="nothing behind that layer, neither BatchNorm nor ReLU")
    head_hidden: int = Field(
        0, ge=0, description="width of a hidden layer in the head, with dropout 0.5 behind both; 0: none; mdd: 1024"
    )
    optim: AdaptOptim = AdaptOptim()
    optim_d: AdaptOptim | None = Field(None, description="of the discriminator; what it leaves out is as in optim")
    adversary: Literal["none", "dann", "cdan", "mdd"] = Field("cdan", description="mdd: with defaults of its own")
    trade_off: float = Field(1.0, ge=0, description="weight of the adversarial loss")
    discriminator: Discriminator = Discriminator()
    reversal: Reversal = Reversal()
    entropy: bool = Field(False, description="cdan: sure predictions weigh more (CDAN+E)")
    map_size: int = Field(0, ge=0, description="cdan: size of the randomised map, for many classes; 0: outer product")
    margin: float = Field(4.0, gt=0, description="mdd: weight of the source term")
    mcc: float = Field(0.0, ge=0, description="weight of minimum class confusion; 0: off")
    temperature: float = Field(2.5, gt=0, description="of mcc")
    smoothing: float = Field(0.0, ge=0, le=0.5, description="of labels: the share that the wrong classes get")
    vat: VAT = VAT()
    average_every: int = Field(0, ge=0, description="SWAD: steps between snapshots whose mean is judged; 0: off")
    average_start: float = Field(0.5, ge=0, lt=1, description="SWAD: share of the run before the first snapshot")

    @model_validator(mode="before")
    @classmethod
    def _discriminator_as_the_rest(cls, table: Any) -> Any:
        """What ``optim_d`` leaves out is as in ``optim``."""
        if isinstance(table, dict) and isinstance(table.get("optim_d"), dict) and isinstance(table.get("optim"), dict):
            table = {**table, "optim_d": {**table["optim"], **table["optim_d"]}}
        return table

    @model_validator(mode="before")
    @classmethod
    def _of_the_adversary(cls, table: Any) -> Any:
        """Defined last, so it runs first: ``optim_d`` takes after what stands in ``optim`` then."""
        return _laid_over(cls.following(table), table) if isinstance(table, dict) else table

    @classmethod
    def following(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return MDD if given.get("adversary") == "mdd" else {}

    @model_validator(mode="after")
    def _combinable(self) -> AdaptTable:
        if self.adversary != "cdan" and (self.entropy or self.map_size):
            raise ValueError(f"entropy and map_size belong to adversary = 'cdan', got '{self.adversary}'")
        return self


def _laid_over(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    inside = {
        key: _laid_over(defaults[key], value)
        for key, value in given.items()
        if isinstance(value, dict) and isinstance(defaults.get(key), dict)
    }
    return {**defaults, **given, **inside}
