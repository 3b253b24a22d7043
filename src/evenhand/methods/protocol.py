"""What ``fit`` asks of a method: one paper, one class, no base class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from evenhand.data.loader import Batch, Feed
from evenhand.data.stream import Stream, Streams
from evenhand.measure.classification import evaluate
from evenhand.pieces.player import Player


@dataclass(frozen=True)
class Progress:
    """Where training stands before a step. Epochs are passes over the method's first feed, counted from 0."""

    step: int
    steps_per_epoch: int
    total_steps: int

    @property
    def epoch(self) -> int:
        return self.step // self.steps_per_epoch

    @property
    def epochs(self) -> float:
        return self.total_steps / self.steps_per_epoch

    @property
    def fraction(self) -> float:
        return self.step / max(1, self.total_steps)


@runtime_checkable
class Method(Protocol):
    """Owns its networks and optimisers. ``state`` holds everything that changes during training."""

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        """The data each step needs; the first feed defines the epoch."""
        ...

    def schedule(self, at: Progress) -> None:
        """Set everything that depends on time: learning rates, radii, class weights."""
        ...

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        """One training step; returns the scalars to log."""
        ...

    def judge(self, stream: Stream, *, batch: int) -> dict[str, float]:
        """One number per name on a held-out stream: what selection and feedback may use."""
        ...

    def examine(self, stream: Stream, groups: dict[str, list[int]], *, batch: int) -> dict[str, Any]:
        """Everything the report shows of a held-out stream, as plain values."""
        ...

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: dict[str, Any]) -> None: ...


class Recogniser(ABC):
    """How methods that predict classes are judged; they write ``predict``."""

    player: Player

    def judged(self) -> nn.Module:
        """The network that predicts, in eval mode."""
        return self.player.judged()

    @abstractmethod
    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, K) for raw samples as a stream fetches them."""

    def judge(self, stream: Stream, *, batch: int = 512) -> dict[str, float]:
        return evaluate(self.predict, stream, batch=batch).scalars()

    def examine(self, stream: Stream, groups: dict[str, list[int]], *, batch: int = 512) -> dict[str, Any]:
        return evaluate(self.predict, stream, batch=batch).table(groups)


@runtime_checkable
class Listens(Protocol):
    """A method steered by validation (dual variables, mixing policy) hears every evaluation."""

    def feedback(self, measured: dict[str, float], streams: Streams) -> None: ...
