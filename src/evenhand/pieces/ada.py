"""Adaptive discriminator augmentation (ADA): as much augmentation as keeps the discriminator from overfitting.

Everything it judges, real and drawn, is changed with probability p (``evenhand.pieces.ada_changes``). An overfitting
discriminator scores nearly all real images above 0, so p follows the mean sign of their scores: up while it is over the
target, down while it is under. Its speed is counted in images, not in steps.

>>> ada = ADA(target=0.6, kimg=0.002)
>>> ada.observe(torch.tensor([1.0, 2.0, 3.0, 0.5])), ada.adjust()
(None, None)
>>> ada.p
1.0
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenhand import parallel
from evenhand.pieces.ada_changes import augmented


class ADA:
    """``observe`` the scores of all real images, ``adjust`` every few steps; calling it augments a batch.

    kimg: thousand images in which p can go from 0 to 1; 0: it stays. Everything that changes is in ``state_dict``.
    """

    def __init__(self, target: float = 0.6, kimg: float = 500.0, p: float = 0.0) -> None:
        if not -1 <= target <= 1 or not kimg >= 0 or not 0 <= p <= 1:
            raise ValueError(f"target={target}, kimg={kimg}, p={p}: use a mean sign, 0.6, kimg >= 0 and p in [0, 1]")
        self.target, self.kimg, self.p = target, kimg, p
        self.seen = torch.zeros(2, dtype=torch.int64)  # sum of signs, images

    def __call__(self, images: Tensor, chance: torch.Generator) -> Tensor:
        return augmented(images, self.p, chance)

    def observe(self, scores: Tensor) -> None:
        signs = scores.detach().sign().long()
        self.seen = self.seen.to(signs.device) + torch.stack([signs.sum(), signs.new_tensor(signs.numel())])

    def adjust(self) -> None:
        """``p + sign(r - target) * images / (1000 kimg)`` in [0, 1], r the mean sign since last, over processes."""
        total, count = parallel.total(self.seen).tolist()
        if count and self.kimg:
            way = (total / count > self.target) - (total / count < self.target)
            self.p = min(1.0, max(0.0, self.p + way * count / (1000 * self.kimg)))
        self.seen = torch.zeros_like(self.seen)

    def state_dict(self) -> dict[str, Any]:
        return {"p": self.p, "seen": self.seen.clone()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.p, self.seen = float(state_dict["p"]), state_dict["seen"].clone()
