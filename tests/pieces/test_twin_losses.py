"""VICReg's and SimCLR's terms against their papers' equations, sum by sum; two processes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from evenhand import parallel
from evenhand.pieces import twin_losses
from evenhand.pieces.twin_losses import simclr_loss, vicreg_loss
from helpers import seeded


def pair(n: int = 5, d: int = 3) -> tuple[Tensor, Tensor]:
    chance = seeded()
    a, b = (torch.randn(n, d, dtype=torch.float64, generator=chance) for _ in range(2))
    return (0.6 * a).requires_grad_(), (0.5 * a.detach() + 0.4 * b).requires_grad_()


def literal_vicreg(a: Tensor, b: Tensor, lam: float, mu: float, nu: float) -> Tensor:
    """arXiv 2105.04906, eq. 1 to 6."""
    n, d = a.shape
    s = sum(sum((a[i, j] - b[i, j]) ** 2 for j in range(d)) for i in range(n)) / n
    total = lam * s
    for z in (a, b):
        mean = [sum(z[i, j] for i in range(n)) / n for j in range(d)]
        cov = [
            [sum((z[i, j] - mean[j]) * (z[i, k] - mean[k]) for i in range(n)) / (n - 1) for k in range(d)]
            for j in range(d)
        ]
        v = sum(torch.clamp(1 - torch.sqrt(cov[j][j] + 1e-4), min=0) for j in range(d)) / d
        c = sum(cov[j][k] ** 2 for j in range(d) for k in range(d) if j != k) / d
        total = total + mu * v + nu * c
    return total


def literal_simclr(a: Tensor, b: Tensor, tau: float) -> Tensor:
    """arXiv 2002.05709, eq. 1 and algorithm 1: rows 2k - 1 and 2k are a pair."""
    rows = [row for both in zip(a, b, strict=True) for row in both]

    def sim(i: int, j: int) -> Tensor:
        return rows[i] @ rows[j] / (rows[i].norm() * rows[j].norm())

    def one(i: int, j: int) -> Tensor:
        others = sum(torch.exp(sim(i, k) / tau) for k in range(len(rows)) if k != i)
        return -torch.log(torch.exp(sim(i, j) / tau) / others)

    return sum(one(2 * k, 2 * k + 1) + one(2 * k + 1, 2 * k) for k in range(len(a))) / len(rows)  # type: ignore[return-value]


CASES: list[tuple[Any, Any, dict[str, float]]] = [
    (vicreg_loss, lambda a, b: literal_vicreg(a, b, 25, 25, 1), {}),
    (vicreg_loss, lambda a, b: literal_vicreg(a, b, 2, 3, 5), {"invariance": 2, "variance": 3, "covariance": 5}),
    (simclr_loss, lambda a, b: literal_simclr(a, b, 0.5), {}),
    (simclr_loss, lambda a, b: literal_simclr(a, b, 0.2), {"temperature": 0.2}),
]


@pytest.mark.parametrize(("ours", "theirs", "options"), CASES)
def test_values_and_gradients_are_the_papers(ours: Any, theirs: Any, options: dict[str, float]) -> None:
    a, b = pair()
    torch.testing.assert_close(ours(a, b, **options), theirs(a, b))
    for got, wanted in zip(
        torch.autograd.grad(ours(a, b, **options), (a, b)), torch.autograd.grad(theirs(a, b), (a, b)), strict=True
    ):
        torch.testing.assert_close(got, wanted)


def test_equal_twins_that_are_spread_and_uncorrelated_cost_vicreg_nothing() -> None:
    corners = 2.0 * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert float(vicreg_loss(corners, corners)) == 0
    collapsed = torch.ones(4, 2)  # agree, and say nothing
    assert float(vicreg_loss(collapsed, collapsed)) == pytest.approx(2 * 25 * (1 - 0.01))
    assert float(simclr_loss(collapsed, collapsed)) == pytest.approx(math.log(7))


@pytest.mark.parametrize("loss", [vicreg_loss, simclr_loss])
def test_processes_have_the_joint_batchs_loss(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (x.detach() for x in pair(6))
    whole = loss(a, b)
    mine = a[:3], b[:3]

    def stack(x: Tensor) -> Tensor:
        joint = a if torch.equal(x, mine[0]) else b
        return joint.view(2, 3, -1)

    monkeypatch.setattr(twin_losses.parallel, "stack", stack)
    monkeypatch.setattr(parallel, "world", lambda: 2)
    torch.testing.assert_close(loss(*mine), whole)


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        vicreg_loss(torch.ones(1, 3), torch.ones(1, 3))
    with pytest.raises(ValueError, match="temperature=0"):
        simclr_loss(torch.ones(2, 3), torch.ones(2, 3), temperature=0)
    assert simclr_loss(torch.ones(2, 3).bfloat16(), torch.ones(2, 3).bfloat16()).dtype == torch.float32
