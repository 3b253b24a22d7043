"""Mean teacher for detection: what the averaged detector is sure of in plain target images teaches the student.

The teacher, an average of the student's past weights, looks at a plain view of the target; boxes above a threshold are
what the student must find in a strong view of the same image, beside the labelled source. It is today's reference for
detection under shift, and needs no adversary.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.stream import Streams
from evenhand.data.target import Found
from evenhand.errors import UserError
from evenhand.methods.adapt.detector import Detector, DetectorOptim, DetectorTable, Scalars
from evenhand.randomness import dice


class TeacherOptim(DetectorOptim):
    """A mean teacher is an average."""

    ema: float | None = Field(0.999, gt=0, lt=1, description="decay of the teacher's weights")


class MeanTeacherSettings(DetectorTable):
    """[method] of the mean teacher."""

    name: Literal["mean-teacher"] = "mean-teacher"
    optim: TeacherOptim = TeacherOptim()
    views: Literal["weak", "strong"] = Field("strong", description="of labelled images: data.augment or data.strong")
    threshold: float = Field(
        0.7,
        ge=0.05,
        le=1,
        description="score from which a box of the teacher's is believed; detectors tell none below 0.05",
    )
    weight: float = Field(1.0, ge=0, description="of the loss on the target")
    start: float = Field(0.2, ge=0, lt=1, description="share of the run that sees the source alone")


class MeanTeacher(Detector):
    """One player; its average is the teacher, and what is judged."""

    table: Any = MeanTeacherSettings

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        if not self.settings.optim.ema:
            raise UserError("the teacher is the average: set method.optim.ema")
        return {**super().feeds(streams), "target": Feed("target", self.settings.batch, (self.data.eval_view,))}

    def update(self, batch: dict[str, Batch]) -> Scalars:
        s = self.settings
        seen = self.forward(*self.labelled(batch))
        loss, heard = seen.classification + seen.regression, {}
        if self.at.fraction >= s.start:
            plain = batch["target"].x
            believed = self.believed(plain)
            strong, moved = self.strong(plain, believed)
            # A teacher's box is rough, so only the classes are learnt from it.
            taught = self.forward(strong, moved).classification
            loss = loss + s.weight * taught
            count = sum(len(found.labels) for found in believed) / len(believed)
            heard = {"taught": taught.detach(), "believed": torch.tensor(float(count))}
        self.player.backward(loss, last=True)
        self.player.step()
        return {"loss": loss.detach(), **seen.said, **heard}

    @torch.no_grad()
    def believed(self, images: list[Tensor]) -> list[Found]:
        """The teacher's boxes above the threshold."""
        teacher: Any = self.player.judged()
        found = teacher(images)
        sure = [one["scores"] >= self.settings.threshold for one in found]
        return [Found(one["boxes"][keep], one["labels"][keep] - 1) for one, keep in zip(found, sure, strict=True)]

    def strong(self, images: list[Tensor], objects: list[Found]) -> tuple[list[Tensor], list[Found]]:
        """A strong view of the same images; boxes move along."""
        chance = dice(self.seed, "strong", self.at.step, parallel.rank())
        raw = [(image * 255).round().byte() for image in images]
        return self.data.strong_view.see(raw, objects, chance)
