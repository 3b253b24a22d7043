"""A finished classifier asked about another network's images: frozen, in eval mode, at its own size and classes."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.data.prepared import Data
from evenhand.data.views.view import View
from evenhand.errors import UserError
from evenhand.methods.protocol import Recogniser
from evenhand.nets import HeadedNet

Statistics = Literal["own", "student"]


class Teacher:
    """``teacher(x)``: logits (N, K), in the student's order of classes, of what the student's views have made.

    The images are resized to what the teacher was trained on, and normalised by its ``statistics``, or left as the
    student's. Nothing of the teacher moves: neither weights nor BatchNorm statistics.
    """

    def __init__(
        self, method: Any, student: Data, *, statistics: Statistics = "own", antialias: bool = False
    ) -> None:  # fmt: skip
        net = method.network() if isinstance(method, Recogniser) else None
        if net is None:
            raise UserError("needs.teacher must be a run that classifies by a network; choose a classifier's")
        data: Data = method.data
        for what, theirs, ours in (
            ("kind of samples", data.facts.kind, student.facts.kind),
            ("channels", data.inputs, student.inputs),
        ):
            if theirs != ours:
                raise UserError(f"the teacher's {what}: {theirs}, the student's: {ours}; train a teacher on these data")
        self.net: HeadedNet = net.requires_grad_(False)
        self.scale, self.order = method.logit_scale, class_order(data.classes, student.classes)
        self.side, self.weak_view, self.antialias = data.side, data.train_view, antialias
        self.views: Any = (student.eval_view, data.eval_view) if statistics == "own" else None

    weak_view: View  # its own training view, in its own statistics and size

    def __call__(self, x: Tensor) -> Tensor:
        """Of images as the student sees them."""
        if x.shape[-2:] != (self.side, self.side):
            x = F.interpolate(x, (self.side, self.side), mode="bicubic", antialias=self.antialias)
        if self.views is not None:
            x = self.views[0].translated(x, self.views[1])
        return self.of_own_view(x)

    @torch.no_grad()
    def of_own_view(self, x: Tensor) -> Tensor:
        """Of images as its own views show them."""
        logits = self.net.eval()(x) * self.scale
        return logits.index_select(1, self.order.to(logits.device))


def class_order(theirs: tuple[str, ...], ours: tuple[str, ...]) -> Tensor:
    """Where each of our classes stands among theirs: the same names, perhaps in another order."""
    if sorted(theirs) != sorted(ours) or len(set(ours)) < len(ours):
        strange = sorted(set(theirs) ^ set(ours))[:3]
        raise UserError(
            f"the teacher knows {len(theirs)} classes, the student's data have {len(ours)}, and they differ "
            f"({', '.join(strange) or 'a name twice'}): train the teacher on the same classes"
        )
    return torch.tensor([theirs.index(name) for name in ours])
