"""D2D-CE and 2C against their papers' equations, image by image, values and gradients; what the margin lets go."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from evenhand.pieces.class_contrast import conditional_contrast_loss, d2d_ce_loss
from helpers import seeded

LABELS = torch.tensor([0, 1, 0, 2, 1, 0])


def images() -> tuple[Tensor, Tensor]:
    chance = seeded()
    f, v = (torch.randn(6, 4, dtype=torch.float64, generator=chance) for _ in range(2))
    return normalize(f).requires_grad_(), normalize(v).requires_grad_()


def literal_d2d_ce(f: Tensor, v: Tensor, y: Tensor, m: float, tau: float) -> Tensor:
    terms = []
    for i in range(len(f)):
        own = torch.exp(torch.clamp(f[i] @ v[i] - m, max=0) / tau)
        far = sum(torch.exp(torch.clamp(f[i] @ f[j] - (1 - m), min=0) / tau) for j in range(len(f)) if y[j] != y[i])
        terms.append(-torch.log(own / (own + far)))
    return torch.stack(terms).mean()


def literal_2c(f: Tensor, v: Tensor, y: Tensor, tau: float) -> Tensor:
    terms = []
    for i in range(len(f)):
        own = torch.exp(f[i] @ v[i] / tau)
        near = [(int(y[j]), torch.exp(f[i] @ f[j] / tau)) for j in range(len(f)) if j != i]
        same = sum(e for k, e in near if k == int(y[i]))
        terms.append(-torch.log((own + same) / (own + sum(e for _, e in near))))
    return torch.stack(terms).mean()


CASES: list[tuple[Any, Any, dict[str, float]]] = [
    (d2d_ce_loss, lambda f, v: literal_d2d_ce(f, v, LABELS, 0.98, 0.25), {}),
    (d2d_ce_loss, lambda f, v: literal_d2d_ce(f, v, LABELS, 0.3, 0.5), {"margin": 0.3, "temperature": 0.5}),
    (conditional_contrast_loss, lambda f, v: literal_2c(f, v, LABELS, 0.25), {}),
    (conditional_contrast_loss, lambda f, v: literal_2c(f, v, LABELS, 1.5), {"temperature": 1.5}),
]


@pytest.mark.parametrize(("ours", "written", "options"), CASES)
def test_values_and_gradients_are_the_equations(ours: Any, written: Any, options: dict[str, float]) -> None:
    f, v = images()
    found, expected = ours(f, v, LABELS, **options), written(f, v)
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad(found, [f, v]), torch.autograd.grad(expected, [f, v]), strict=True):
        torch.testing.assert_close(a, b)


def test_what_is_near_enough_moves_nothing_more() -> None:
    f = normalize(torch.tensor([[1.0, 0.05], [-1.0, 0.05]])).requires_grad_()
    v = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    slope = torch.autograd.grad(d2d_ce_loss(f, v, torch.tensor([0, 1])), f)[0]
    assert torch.equal(slope, torch.zeros_like(f))
    assert torch.autograd.grad(conditional_contrast_loss(f, v, torch.tensor([0, 1])), f)[0].abs().sum() > 0


def test_a_batch_of_one_class_has_nothing_to_contrast_by_d2d_ce() -> None:
    f, v = images()
    assert float(d2d_ce_loss(f, v, torch.zeros(6, dtype=torch.long))) == 0.0


@pytest.mark.parametrize("loss", [d2d_ce_loss, conditional_contrast_loss])
def test_bad_arguments_name_their_remedy(loss: Any) -> None:
    f, v = images()
    with pytest.raises(ValueError, match="temperature=0: use one above 0"):
        loss(f, v, LABELS, temperature=0)
    with pytest.raises(ValueError, match=r"proxies \(3, 4\).*a proxy for each image"):
        loss(f, v[:3], LABELS)
    with pytest.raises(ValueError, match=r"margin=2"):
        d2d_ce_loss(f, v, LABELS, margin=2)
