"""What may be asked of a method (one paper, one class): ``fit``, tasks and commands ask this and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.measure.judging import Judge
from evenhand.nets import HeadedNet
from evenhand.pieces.player import Player
from evenhand.randomness import dice
from evenhand.tasks import Scores, Task
from evenhand.tasks.classify import CLASSIFY
from evenhand.tasks.detect import DETECT
from evenhand.tasks.generate import GENERATE


@dataclass(frozen=True)
class Progress:
    """Where training stands before a step. Epochs are passes over the method's first feed, counted from 0.

    ``measured`` holds the scores of an evaluation that has just been made, stream by stream; else it is empty.
    """

    step: int
    steps_per_epoch: int
    total_steps: int
    measured: Mapping[str, Scores] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        return self.step // self.steps_per_epoch

    @property
    def time(self) -> float:
        """Epochs with their fraction."""
        return self.step / self.steps_per_epoch

    @property
    def epochs(self) -> float:
        return self.total_steps / self.steps_per_epoch

    @property
    def fraction(self) -> float:
        return self.step / max(1, self.total_steps)


class Method(ABC):
    """Owns its networks and optimisers. ``__init__(settings, data, *, seed, device, **needs)`` builds them.

    A finished run is opened without its data: what needs streams belongs into ``feeds`` or ``refresh``, and
    ``data.streams`` may be empty in ``__init__``. Each entry of [needs] arrives as a keyword, an opened ``Method``.
    """

    table: Any  # the [method] table of a recipe, a class of Settings
    task: ClassVar[Task]
    data: Data
    seed: int

    @staticmethod
    def check_start(settings: Any) -> None:  # noqa: ARG004
        """Refuse what cannot learn, before any data are read; not asked of a run that goes on or is opened."""
        return

    @staticmethod
    def check(settings: Any, data: Data, given: Collection[str]) -> None:  # noqa: ARG004
        """Refuse what cannot work, before the runs ``given`` in [needs] are trained for it."""
        return

    @abstractmethod
    def feeds(self, streams: Streams) -> dict[str, Feed]:
        """The data each step needs, as things stand; the first feed defines the epoch."""

    def refresh(self, at: Progress, streams: Streams) -> dict[str, Feed] | None:
        """Asked before every step: look at streams (validation, pseudo-labels); new feeds reopen the loaders."""
        return None

    @abstractmethod
    def schedule(self, at: Progress) -> None:
        """Set what depends on time alone: learning rates, radii, class weights."""

    @abstractmethod
    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        """One training step; returns the scalars to log."""

    def traces(self) -> dict[str, float]:
        """What the log keeps of the method at each evaluation, such as ``multiplier:shirt``."""
        return {}

    def details(self) -> dict[str, Any]:
        """What the final table shows of the method, as plain values."""
        return {}

    def size(self) -> int:
        """Trainable parameters."""
        players = [part for part in vars(self).values() if isinstance(part, Player)]
        return sum(p.numel() for player in players for p in player.parameters)

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that changes during training, as tensors and plain values."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None: ...


class Recogniser(Method):
    """A method that predicts classes."""

    task = CLASSIFY
    logit_scale: float = 1.0  # by which a network's cosine logits are multiplied in training
    tells: bool = False  # whether ``tell`` can
    player: Player | None = None

    @property
    def embeds(self) -> bool:
        """Whether ``embed`` can."""
        return self.network() is not None

    def network(self) -> HeadedNet | None:
        """The network that predicts, in eval mode: the ``player``'s; a method without one writes ``predict``."""
        return None if self.player is None else cast(HeadedNet, self.player.judged())

    @torch.no_grad()
    def predict(self, x: Any) -> Tensor:
        """Logits (N, K) of raw samples as a stream fetches them, in eval mode."""
        net = self._judged()
        return net(self._viewed(net, x)) * self.logit_scale

    @torch.no_grad()
    def embed(self, x: Any) -> Tensor:
        """The network's features (N, d) of raw samples, in eval mode."""
        net = self._judged()
        return net.features(self._viewed(net, x))

    def experts(self) -> dict[str, Callable[[Any], Tensor]]:
        """Further answers (logits of raw samples) that the final table measures beside ``predict``, by name."""
        return {}

    def tell(self, x: Any) -> Tensor:
        """Logits (N,) of raw samples being the source domain's."""
        raise TypeError(f"{type(self).__name__} has no domain discriminator")

    def _judged(self) -> HeadedNet:
        net = self.network()
        if net is None:
            raise TypeError(f"{type(self).__name__} has no network: write its predict")
        return net

    def _viewed(self, net: HeadedNet, x: Any) -> Any:
        return self.data.see(x.to(next(net.parameters()).device))


class Drawer(Method):
    """A method that draws images."""

    task = GENERATE
    judge: Judge  # compares what is drawn with real images
    labelled: bool  # whether a label asked for is the label drawn
    truncation: float | None = None  # below 1 more typical images, 0 one of each class; None: it has no such thing

    @abstractmethod
    def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator) -> Tensor:
        """Images, uint8 (N, C, H, W), by the averaged generator; labels are drawn unless given."""

    def latents(self) -> tuple[Tensor, Tensor] | None:
        """What images are drawn from, (N, d), as many of each class, and their labels; None: it has no classes."""
        return None

    def exhibit(self, count: int, purpose: str) -> tuple[Tensor, Tensor | None]:
        """Images to be judged, with as many of each class as can be if the labels mean something."""
        labels = torch.arange(count) % len(self.data.classes) if self.labelled else None
        return self.sample(count, labels, chance=dice(self.seed, purpose)), labels


class Finder(Method):
    """A method that finds objects."""

    task = DETECT

    @abstractmethod
    def detect(self, images: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each raw image, as a stream fetches it: boxes (n, 4), scores (n,) falling, classes (n,)."""
