"""A run's model looks at a pool and says which samples to label: every selector by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from evenhand.data.loader import in_order
from evenhand.data.stream import Stream
from evenhand.errors import UserError, did_you_mean, users_mistake
from evenhand.measure.classification import predict_all
from evenhand.methods.protocol import Recogniser
from evenhand.pieces import selection
from evenhand.pieces.batches import explained
from evenhand.pieces.deepfool import deepfool_norm
from evenhand.pieces.pool import check_budget, entropy
from evenhand.pieces.submodular import Pick, submodular_picks, vap_score
from evenhand.randomness import dice


@dataclass(frozen=True)
class How:
    """What selectors can be told."""

    seed: int = 0
    alpha: float = 0.5
    beta: float = 0.3
    starts: int = 5
    epsilon: float = 5.0
    xi: float | None = None
    temperature: float = 1.0  # of CLUE
    batch: int = 256


@dataclass
class Sight:
    """What a model sees of a pool; each part is computed when a selector asks for it."""

    method: Recogniser
    pool: Stream
    how: How = field(default_factory=How)
    labelled: Stream | None = None  # of the target, which CoreSet counts as chosen

    @cached_property
    def probs(self) -> Tensor:
        """(N, K)"""
        return predict_all(self.method.predict, self.pool, batch=self.how.batch).softmax(1)

    @cached_property
    def features(self) -> Tensor:
        """(N, d)"""
        if not self.method.embeds:
            raise UserError(f"{type(self.method).__name__} has no features: select by entropy, margin or random")
        return predict_all(self.method.embed, self.pool, batch=self.how.batch)

    @cached_property
    def vap(self) -> Tensor:
        """(N,)"""
        chance, h = dice(self.how.seed, "vap"), self.how
        return self._score(
            "perturbing",
            lambda x: vap_score(
                self.model, x, starts=h.starts, epsilon=h.epsilon, xi=h.xi, generator=chance
            ),
        )  # fmt: skip

    @cached_property
    def distance(self) -> Tensor:
        """(N,) to another class, by DeepFool."""
        return self._score("DeepFool", lambda x: deepfool_norm(self.model, x))

    @cached_property
    def uncertainty(self) -> Tensor:
        """Entropy, where no selector has asked for another score."""
        return self.__dict__.get("vap", entropy(self.probs.double()))

    @cached_property
    def model(self) -> nn.Module:
        """From inputs as they are viewed to logits."""
        net = self.method.network()
        if net is None or self.pool.kind == "tokens":
            what = "texts" if self.pool.kind == "tokens" else f"{type(self.method).__name__} without a network"
            raise UserError(f"inputs of {what} cannot be perturbed: select by entropy, margin, badge, clue or random")
        return _Scaled(net, self.method.logit_scale)

    def _score(self, what: str, score: Callable[[Tensor], Tensor]) -> Tensor:
        device = next(self.model.parameters()).device
        found, err = [], Console(stderr=True)
        with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
            task = bar.add_task(what, total=len(self.pool))
            for rows, raw in in_order(self.pool, torch.arange(len(self.pool)), self.how.batch):
                found.append(score(self.method.data.see(raw.to(device))).float().cpu())
                bar.advance(task, len(rows))
        return torch.cat(found)


class _Scaled(nn.Module):
    def __init__(self, net: nn.Module, scale: float) -> None:
        super().__init__()
        self.net, self.scale = net, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.scale


def _submodular(alpha: float | None = None, beta: float | None = None) -> Callable[[Sight, int], Iterator[Pick]]:
    def picks(sight: Sight, budget: int) -> Iterator[Pick]:
        a, b = (sight.how.alpha if alpha is None else alpha), (sight.how.beta if beta is None else beta)
        score = sight.vap if a else torch.zeros(len(sight.pool))
        return submodular_picks(sight.probs, score, budget, alpha=a, beta=b)

    return picks


def _chance(sight: Sight) -> torch.Generator:
    return dice(sight.how.seed, "select")


def _aada(sight: Sight, budget: int) -> list[int]:
    if not sight.method.tells:
        raise UserError("aada needs a domain discriminator: train with dann, cdan or vaada, or select by another")
    return selection.aada_select(
        sight.probs, -predict_all(sight.method.tell, sight.pool, batch=sight.how.batch), budget
    )


def _coreset(sight: Sight, budget: int) -> list[int]:
    known = sight.labelled
    before = None if known is None else predict_all(sight.method.embed, known, batch=sight.how.batch)
    return selection.coreset_select(sight.features, budget, labelled=before)


Chooser = Callable[[Sight, int], "list[int] | Iterator[Pick]"]
SELECTORS: dict[str, Chooser] = {
    "s3vaada": _submodular(),
    "random": lambda s, n: selection.random_select(len(s.pool), n, generator=_chance(s)),
    "entropy": lambda s, n: selection.entropy_select(s.probs, n),
    "confidence": lambda s, n: selection.confidence_select(s.probs, n),
    "margin": lambda s, n: selection.margin_select(s.probs, n),
    "coreset": _coreset,
    "badge": lambda s, n: selection.badge_select(s.probs, s.features, n, generator=_chance(s)),
    "clue": lambda s, n: selection.clue_select(
        s.probs, s.features, n, temperature=s.how.temperature, generator=_chance(s)
    ),
    "aada": _aada,
    "dfal": lambda s, n: selection.dfal_select(s.distance, n),
    "kmeans": lambda s, n: selection.kmeans_select(s.features, n, generator=_chance(s)),
    "vap": _submodular(1.0, 0.0),
    "diversity": _submodular(0.0, 1.0),
    "representativeness": _submodular(0.0, 0.0),
}


USES = {"alpha": ("s3vaada",), "beta": ("s3vaada",), "epsilon": ("s3vaada", "vap")}  # which heed what they are told


def refuse_unused(by: str, given: Iterable[str]) -> None:
    """What a user has told a selector that does not heed it."""
    for key in given:
        if by not in USES[key]:
            raise UserError(f"--{key} has no effect on {by}, only on {' and '.join(USES[key])}: leave it out")


def check_selector(by: str) -> None:
    if by not in SELECTORS:
        raise UserError(f"no selector is called '{by}'; {did_you_mean(by, SELECTORS)}")


def choose(sight: Sight, budget: int, by: str = "s3vaada") -> list[Pick]:
    """``budget`` samples of the pool in pick order, with their reasons, whatever picked them: see ``explained``."""
    check_selector(by)
    with users_mistake("select"):
        check_budget(budget, len(sight.pool))
        if not budget:
            return []
        chosen: Iterable[int | Pick] = SELECTORS[by](sight, budget)
        err = Console(stderr=True)
        with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
            rows = [
                pick if isinstance(pick, int) else pick.index
                for pick in bar.track(chosen, total=budget, description="picking")
            ]
        # The selector's own reasons leave out terms of weight 0: all picks are told of in the same way.
        return explained(sight.probs, sight.uncertainty, rows)
