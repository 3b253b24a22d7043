"""DeiT-LT: a vision transformer from scratch on long-tailed data, taught by a small flat CNN (spec 05).

The student has two tokens with a head each: CLS learns the labels, DIST the hard answers of a frozen teacher. The
teacher was trained on weak views, yet is asked about the student's strongly augmented and mixed images, which are out
of its distribution; from a late epoch on the DIST loss is weighted by class. So DIST becomes the expert for rare
classes, CLS for frequent ones, and the average of their logits is better than both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.samplers import repeated
from evenhand.data.stream import Streams
from evenhand.errors import UserError
from evenhand.methods.common import Net, Optim, warn_of_late
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.methods.recognise.teacher import Statistics, Teacher
from evenhand.nets import HeadedNet
from evenhand.nets.vit import VisionTransformer
from evenhand.pieces import losses
from evenhand.pieces.mixing import mixup_or_cutmix, soft_targets
from evenhand.pieces.player import Player
from evenhand.pieces.schedules import milestone
from evenhand.randomness import dice
from evenhand.settings import Settings

DEIT = Optim(
    name="adamw", lr=5e-4, weight_decay=0.05, no_decay=["norms", "biases", "tokens", "positions"], schedule="cosine",
    schedule_by="step", warmup=5, warmup_lr=1e-6, min_lr=1e-5,
)  # fmt: skip
TAUGHT = ("hard", "soft")


class DeiTLTSettings(Settings):
    """[method] of DeiT-LT; the teacher is named in [needs] as ``teacher``."""

    name: Literal["deit-lt"] = "deit-lt"
    batch: int = Field(1024, gt=0, description="images per step, over all processes and parts")
    net: Net = Net(name="vit-b16")
    optim: Optim = DEIT
    distil: Literal["hard", "soft", "truth", "off"] = Field(
        "hard", description="DIST learns the teacher's label, its probabilities, or the truth; off: one head, any net"
    )
    alpha: float = Field(0.5, ge=0, le=1, description="share of the DIST loss")
    temperature: float = Field(1.0, gt=0, description="of soft distillation")
    teacher_view: Literal["same", "weak"] = Field(
        "same", description="what the teacher is asked about: the student's images, or its own weak views of them"
    )
    teacher_statistics: Statistics = Field("own", description="by which its images are normalised: own or student")
    teacher_antialias: bool = Field(False, description="when images are made smaller for the teacher")
    weighting: Literal["drw", "none"] = Field("drw", description="of the DIST loss, by the label DIST learns")
    drw_start: float = Field(0.9, ge=0, description="epoch at which weights begin, or share of the run when below 1")
    beta: float = Field(0.9999, ge=0, lt=1, description="of the effective number of samples")
    mixup: float = Field(0.8, gt=0, description="Beta(a, a) of Mixup")
    cutmix: float = Field(1.0, gt=0, description="Beta(a, a) of CutMix")
    switch: float = Field(0.5, ge=0, le=1, description="share of CutMix among mixed batches")
    smoothing: float = Field(0.1, ge=0, lt=1, description="of labels, wherever images are mixed")
    mix: bool = Field(True, description="mix images at all")
    mix_late: bool = Field(False, description="and go on mixing from drw_start")
    repeats: int = Field(3, gt=0, description="views of an image in a batch (repeated augmentation); 1: one")
    loss: Literal["ce", "bce"] = Field("ce", description="of CLS; bce as in DeiT III")

    @model_validator(mode="after")
    def _combinable(self) -> DeiTLTSettings:
        if self.optim.name in ("sam", "lpf-sgd"):
            raise ValueError(f"optim.name = '{self.optim.name}' takes passes of its own: use adamw, adam, sgd or pgd")
        if self.distil == "off" and self.weighting != "none":
            raise ValueError("distil = 'off' has no DIST loss to weight: set weighting = 'none'")
        return self


class Part(NamedTuple):
    """Some of a step's images, as the student sees them, and what its two heads should say."""

    x: Tensor
    target: Tensor  # (n, K) for CLS
    dist: Tensor | None  # (n, K) for DIST
    mass: Tensor  # (n,) what each weighs in the DIST loss


class DeiTLT(Recogniser):
    """A student under AdamW and, unless it learns alone, a frozen teacher."""

    table = DeiTLTSettings
    player: Player

    def __init__(
        self, settings: DeiTLTSettings, data: Data, *, seed: int, device: torch.device,
        teacher: Recogniser | None = None,
    ) -> None:  # fmt: skip
        self.check(settings, data, () if teacher is None else ("teacher",))
        self.settings, self.data, self.seed = settings, data, seed
        self.net: HeadedNet = fitting(settings.net, data).build(
            len(data.classes), data.inputs, distilled=settings.distil != "off"
        )
        self.player = settings.optim.player(self.net.to(device), seed=seed)
        how = {"statistics": settings.teacher_statistics, "antialias": settings.teacher_antialias}
        self.teacher = None if teacher is None else Teacher(teacher, data, **how)  # type: ignore[arg-type]
        self.counts = torch.tensor(data.counts, dtype=torch.float32, device=device)  # (K,)
        self.weights = torch.ones_like(self.counts)
        self.mixes, self.chance = settings.mix, dice(seed)

    @staticmethod
    def check(settings: DeiTLTSettings, data: Data, given: Collection[str]) -> None:
        if settings.distil in TAUGHT and "teacher" not in given:
            raise UserError(
                f"method.distil = '{settings.distil}' needs a teacher: set needs.teacher to a recipe or a run's "
                "folder, or method.distil to 'truth' or 'off'"
            )
        if settings.distil not in TAUGHT and "teacher" in given:
            raise UserError(f"method.distil = '{settings.distil}' asks no teacher: remove needs.teacher")
        fitting(settings.net, data)
        if settings.distil != "off" and not settings.net.name.startswith("vit-"):
            raise UserError(f"method.net.name = '{settings.net.name}' has no DIST token: use vit-b16 or another vit")

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        s, views = self.settings, [self.data.train_view]
        if self.teacher is not None and s.teacher_view == "weak":
            views.append(self.teacher.weak_view)
        picks = repeated(len(streams["labelled"]), s.batch, self.seed, s.repeats) if s.repeats > 1 else None
        return {"labelled": Feed("labelled", s.batch, tuple(views), picks=picks)}

    def schedule(self, at: Progress) -> None:
        s = self.settings
        warn_of_late(at, {"method.drw_start": [s.drw_start] * (s.weighting == "drw")} | s.optim.times)
        s.optim.apply(self.player, at)
        start = milestone(s.drw_start, at.epochs)
        if s.weighting == "drw":
            self.weights = losses.deferred_weights(self.counts, at.time, start, s.beta)
        self.mixes = s.mix and (s.mix_late or at.time < start)
        self.chance = dice(self.seed, "mixing", at.step, parallel.rank())

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        x, y = batch["labelled"].x, batch["labelled"].y
        weak = batch["labelled"].views[1] if len(batch["labelled"].views) > 1 else None
        count = min(self.settings.optim.accumulate, len(x))
        rows = [slice(i, None, count) for i in range(count)]
        parts = [self._part(x[mine], y[mine], None if weak is None else weak[mine]) for mine in rows]
        self.net.train()
        joint = parallel.mean(sum(part.mass.sum() for part in parts))  # type: ignore[arg-type]
        size = parallel.mean(torch.tensor(float(len(x)), device=x.device))
        sums = {"loss": torch.zeros((), device=x.device)}
        for i, part in enumerate(parts):
            with self.player.autocast():
                loss, said = self._loss(part, size, joint)
            self.player.backward(loss, last=i == count - 1)
            for key, value in {"loss": loss, **said}.items():
                sums[key] = sums.get(key, 0) + value.detach()
        self.player.step()
        if self.teacher is not None:
            told = torch.cat([part.dist.argmax(1) for part in parts if part.dist is not None])
            sums["teacher_accuracy"] = (told == torch.cat([y[mine] for mine in rows])).float().mean()
        return sums

    def _part(self, x: Tensor, y: Tensor, weak: Tensor | None) -> Part:
        """Mix, then ask the teacher about the very tensor that the student will see."""
        s, K = self.settings, len(self.counts)
        target = soft_targets(y, K)
        if self.mixes:
            x, target = mixup_or_cutmix(
                x, y, self.chance, K, mixup_alpha=s.mixup, cutmix_alpha=s.cutmix, switch=s.switch, smoothing=s.smoothing
            )
        if s.distil == "off":
            return Part(x, target, None, x.new_zeros(len(x)))
        if self.teacher is None:  # DIST learns the truth, each class by its weight
            return Part(x, target, target * self.weights, target @ self.weights)
        with self.player.autocast():
            logits = self.teacher(x) if weak is None else self.teacher.of_own_view(weak)  # (n, K)
        label = logits.argmax(1)
        dist = soft_targets(label, K) if s.distil == "hard" else (logits.float() / s.temperature).softmax(1)
        return Part(x, target, dist * self.weights[label][:, None], self.weights[label])

    def _loss(self, part: Part, size: Tensor, joint: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(1 - alpha) CE(CLS, mixed label) + alpha sum w_t CE(DIST, t) / sum w_t, t what DIST learns."""
        s = self.settings
        if part.dist is None:
            return self._of_classes(self.net(part.x), part.target).sum() / size, {}
        tokens = cast(VisionTransformer, self.net).tokens(part.x)
        cls, dist = cast(VisionTransformer, self.net).read(tokens)
        own = self._of_classes(cls, part.target).sum() / size
        heat = s.temperature if s.distil == "soft" else 1.0
        learnt = -(part.dist * (dist.float() / heat).log_softmax(1)).sum() / joint
        if s.distil == "soft":  # the Kullback-Leibler divergence, less than cross-entropy by what does not move
            learnt = heat**2 * (learnt + torch.special.xlogy(part.dist, self._plain(part)).sum() / joint)
        alike = F.cosine_similarity(tokens[:, 0].float(), tokens[:, 1].float()).sum() / size
        said = {"loss_cls": own, "loss_dist": learnt, "cosine": alike}
        return (1 - s.alpha) * own + s.alpha * learnt, said

    @staticmethod
    def _plain(part: Part) -> Tensor:
        """The teacher's probabilities, without the weights of their rows."""
        assert part.dist is not None
        return part.dist / part.mass[:, None]

    def _of_classes(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of CLS for each image (n,)."""
        if self.settings.loss == "bce":
            return F.binary_cross_entropy_with_logits(logits.float(), target, reduction="none").mean(1)
        return -(target * logits.float().log_softmax(1)).sum(1)

    def experts(self) -> dict[str, Callable[[Any], Tensor]]:
        if self.settings.distil == "off":
            return {}
        return {"cls": lambda x: self._head(x, 0), "dist": lambda x: self._head(x, 1)}

    @torch.no_grad()
    def _head(self, x: Any, which: int) -> Tensor:
        net = cast(VisionTransformer, self._judged())
        return net.heads(self._viewed(net, x))[which]

    def state(self) -> dict[str, Any]:
        return self.player.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.player.load_state(state)


def fitting(net: Net, data: Data) -> Net:
    """A transformer's positions are learned for the images it gets; those must divide into its patches."""
    if not net.name.startswith("vit-"):
        return net
    patch = net.patch or (4 if net.name == "vit-tiny" else 16)
    if data.facts.kind != "images" or data.side % patch:
        raise UserError(
            f"images of {data.side} x {data.side} cannot be cut into patches of {patch}: set method.net.patch, "
            f"data.size or data.enlarge, such as to {(data.side // patch + 1) * patch}"
        )
    return net if net.size else net.model_copy(update={"size": data.side})
