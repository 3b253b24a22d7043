"""What selectors are told, on a method made by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.run import picking
from evenhand.run.picking import How, Sight, choose, refuse_unused
from evenhand.run.settings import Cycles


class Toy:
    """Classes by the nearest of two corners; notes how many samples it is asked about at a time."""

    embeds = tells = True
    logit_scale = 3.0

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.data = self
        self.net = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.net.weight)

    def see(self, x: Tensor) -> Tensor:
        return x

    def network(self) -> nn.Module:
        return self.net

    def predict(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return 3 * x

    embed = predict

    def tell(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return x[:, 0]


def sight(how: How, labelled: Stream | None = None, count: int = 5) -> Any:
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(0))
    return Sight(Toy(), Stream(Memory(x), None, ("a", "b"), "pool"), how, labelled)  # type: ignore[arg-type]


def test_defaults_are_those_of_cycles() -> None:
    ours = asdict(How())
    assert (ours.pop("seed"), ours.pop("xi"), ours.pop("batch")) == (0, None, 256)
    assert ours == {"alpha": 0.5, "beta": 0.3, "starts": 5, "epsilon": 5.0, "temperature": 1.0}
    assert ours == {key: value for key, value in Cycles().model_dump().items() if key in ours}
    assert sight(How()).how == Sight(Toy(), sight(How()).pool).how  # type: ignore[arg-type]


def test_perturbations_are_as_told_and_of_scaled_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def score(model: nn.Module, x: Tensor, **given: Any) -> Tensor:
        told.append((model(x), x, given))
        return torch.zeros(len(x))

    monkeypatch.setattr(picking, "vap_score", score)
    seen = sight(How(starts=2, epsilon=0.5, xi=0.25, batch=3))
    assert len(seen.vap) == 5
    assert [len(x) for _, x, _ in told] == [3, 2]
    for logits, x, given in told:
        assert torch.equal(logits, 3 * x)
        assert isinstance(given.pop("generator"), torch.Generator)
        assert given == {"starts": 2, "epsilon": 0.5, "xi": 0.25}


def test_a_pool_is_looked_at_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("probs", "features"):
        one = sight(How(batch=2))
        assert len(getattr(one, part)) == 5
        assert one.method.sizes == [2, 2, 1]
    one = sight(How(batch=2))
    choose(one, 2, "aada")
    assert max(one.method.sizes) == 2
    known = Stream(Memory(torch.ones(5, 2)), None, ("a", "b"), "known")
    told: list[Any] = []
    monkeypatch.setattr(picking.selection, "coreset_select", lambda *_, labelled: told.append(labelled) or [0])
    for labelled in (None, known):
        one = sight(How(batch=2), labelled)
        picking._coreset(one, 1)
        assert max(one.method.sizes) == 2
    assert told[0] is None
    assert torch.equal(told[1], 3 * torch.ones(5, 2))


@pytest.mark.parametrize(
    ("by", "weights"),
    [("s3vaada", (0.0, 0.7)), ("vap", (1.0, 0.0)), ("diversity", (0.0, 1.0)), ("representativeness", (0.0, 0.0))],
)
def test_terms_of_weight_nought_are_not_reckoned(
    by: str, weights: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(picking, "vap_score", lambda _, x, **__: torch.ones(len(x)))
    monkeypatch.setattr(
        picking,
        "submodular_picks",
        lambda _, score, n, **given: told.append((score.tolist(), n, given)) or iter([1, 0]),
    )
    picks = choose(sight(How(alpha=0.0, beta=0.7)), 2, by)
    assert [pick.index for pick in picks] == [1, 0]
    alpha, beta = weights
    assert told == [([1.0 if alpha else 0.0] * 5, 2, {"alpha": alpha, "beta": beta})]


def test_nothing_is_picked_of_a_budget_of_nought_and_mistakes_are_named() -> None:
    assert choose(sight(How()), 0) == []
    with pytest.raises(UserError, match="choose between 0 and the 5 samples"):
        choose(sight(How()), 6)
    refuse_unused("vap", ["epsilon"])
    with pytest.raises(UserError, match="--alpha has no effect on vap, only on s3vaada"):
        refuse_unused("vap", ["epsilon", "alpha"])
