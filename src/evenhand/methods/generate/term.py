"""What a paper adds to a generator's loss. Terms stack: a GAN has any number of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


class Term(ABC):
    """A scalar that counts ``strength`` times; what changes in training is in ``state``."""

    strength: float
    labelled = False  # whether it teaches the generator to draw the label asked for

    @abstractmethod
    def __call__(self, fakes: Tensor, asked: Tensor | None) -> Tensor:
        """Of the generator's fakes in [-1, 1] and the labels asked for, (N,), in a training step."""

    def after(self, step: int) -> None:
        """What follows the generator's step, such as a refresh of what was counted."""
        return

    def frequencies(self) -> Tensor | None:
        """Labels shall be asked for with chances ``1 / frequencies``, (K,); None: it does not mind."""
        return None

    def by_class(self) -> dict[str, Tensor]:
        """Numbers of each class, (K,), for the log and the final table."""
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        return
