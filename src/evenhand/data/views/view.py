"""What a view is: raw samples in, normalised samples of the same shape out, with whatever happens to their target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from evenhand.data.sources.frames import Cuts


class View(ABC):
    """A view of samples alone writes ``__call__``; one that moves the target too, such as boxes, writes ``see``."""

    reframes = False  # chooses its own part of a picture, so decoding must not
    mirrors = False  # shows some samples mirrored
    cuts: Cuts | None = None  # the random parts it shows, where decoding may cut them instead

    @abstractmethod
    def __call__(self, x: Any, chance: torch.Generator | None = None) -> Any:
        """Samples as a network takes them; random steps draw from the given CPU generator."""

    def see(self, x: Any, y: Any, chance: torch.Generator) -> tuple[Any, Any]:
        """Samples and target together."""
        return self(x, chance), y

    def unboxed(self) -> View:
        """This view of samples that are such parts already."""
        return self

    def normalised_as(self, other: Any) -> View:
        """This view's steps with another's statistics, for a network that has learnt on those."""
        return self


class OfSamples(View):
    """Any function of samples and a generator as a view."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def __call__(self, x: Any, chance: torch.Generator | None = None) -> Any:
        return self.function(x, chance)
