"""Losses against literal transcriptions of their equations and the numbers of spec 04, section 10a."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from evenhand.pieces.losses import (
    class_balanced_weights,
    deferred_weights,
    focal_loss,
    influence_balanced_loss,
    label_aware_smoothing_loss,
    ldam_loss,
    logit_adjusted_loss,
    vs_loss,
)

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
COUNTS = [40, 9, 4, 1]
WEIGHT = [0.5, 1.0, 2.0, 0.5]


def features_for(logits: Tensor) -> Tensor:
    return torch.linspace(-1, 2, logits.shape[0] * 3, dtype=torch.float64).view(-1, 3)


# Every loss as (logits, target, counts, weight) -> scalar.
LOSSES: dict[str, Callable[..., Tensor]] = {
    "ldam": lambda g, y, n, w=None: ldam_loss(g, y, n, scale=5.0, weight=w),
    "vs": lambda g, y, n, w=None: vs_loss(g, y, n, gamma=0.2, weight=w),
    "logit_adjusted": lambda g, y, n, w=None: logit_adjusted_loss(g, y, n, tau=1.3, weight=w),
    "focal": lambda g, y, _, w=None: focal_loss(g, y, gamma=1.7, weight=w),
    "influence_balanced": lambda g, y, n, w=None: influence_balanced_loss(
        g, y, features_for(g), n, scale=10.0, weight=w
    ),
    "label_aware_smoothing": lambda g, y, n, w=None: label_aware_smoothing_loss(g, y, n, head=0.4, tail=0.1, weight=w),
}


def literal(name: str, logits: Tensor, target: Tensor, counts: list[int], weight: list[float] | None) -> Tensor:
    """One sample, one class at a time, straight from the equations."""
    K, total = len(counts), sum(counts)
    terms, weights = [], []
    for i, y in enumerate(target.tolist()):
        g = [logits[i, j] for j in range(K)]
        if name == "ldam":
            delta = 0.5 * counts[y] ** -0.25 / max(n**-0.25 for n in counts)
            g = [5.0 * (g[j] - delta) if j == y else 5.0 * g[j] for j in range(K)]
        elif name == "vs":
            g = [g[j] / (max(counts) / counts[j]) ** 0.2 + 0.75 * math.log(counts[j] / total) for j in range(K)]
        elif name == "logit_adjusted":
            g = [g[j] + 1.3 * math.log(counts[j] / total) for j in range(K)]
        z = sum(torch.exp(v) for v in g)
        p = [torch.exp(v) / z for v in g]
        w = 1.0 if weight is None else weight[y]
        loss = -torch.log(p[y])
        if name == "focal":
            loss = loss * (1 - p[y]) ** 1.7
        elif name == "influence_balanced":
            h = sum(abs(v) for v in features_for(logits)[i].tolist())
            error = sum(abs(p[j].item() - (j == y)) for j in range(K))
            loss = loss * 10.0 / (error * h + 1e-3)
            if weight is None:
                w = K / counts[y] / sum(1 / n for n in counts)
        elif name == "label_aware_smoothing":
            span = 2 * (max(counts) - min(counts))
            e = 0.1 + 0.3 * math.sin((counts[y] - min(counts)) * math.pi / span)
            loss = sum(-torch.log(p[j]) * (1 - e if j == y else e / (K - 1)) for j in range(K))
        terms.append(w * loss)
        weights.append(w)
    plain_mean = name in ("focal", "influence_balanced")
    return sum(terms) / (len(terms) if plain_mean else sum(weights))


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("target", [[0, 1, 2, 3, 0], [0, 0, 2], [3]], ids=["all", "class_missing", "one_sample"])
@pytest.mark.parametrize("name", LOSSES)
def test_parity_with_the_equation(name: str, target: list[int], weight: list[float] | None) -> None:
    y = torch.tensor(target)
    logits = torch.randn(len(y), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    value, expected = LOSSES[name](ours, y, COUNTS, weight), literal(name, theirs, y, COUNTS, weight)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("name", LOSSES)
def test_trap_09_two_classes_one_sample_extreme_logits_stay_finite(name: str) -> None:
    for scale in (0.0, 1.0, 80.0):
        logits = torch.tensor([[scale, -scale]], requires_grad=True)
        for y in (0, 1):
            loss = LOSSES[name](logits, torch.tensor([y]), [100, 1])
            assert loss.isfinite()
            assert torch.autograd.grad(loss, logits)[0].isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_half_precision_is_computed_in_float32_and_double_stays(name: str, dtype: torch.dtype) -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    loss = LOSSES[name](logits, y, COUNTS, WEIGHT)
    wide = torch.promote_types(dtype, torch.float32)
    assert loss.dtype == wide
    torch.testing.assert_close(loss, LOSSES[name](logits.detach().to(wide), y, COUNTS, WEIGHT))
    assert torch.autograd.grad(loss, logits)[0].dtype == dtype


@pytest.mark.parametrize("name", LOSSES)
def test_lists_arrays_and_tensors_are_the_same(name: str) -> None:
    logits, y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 3])
    expected = LOSSES[name](logits, y, COUNTS, WEIGHT)
    for kind in (np.array, torch.tensor, lambda v: torch.tensor(v, dtype=torch.float64)):
        assert LOSSES[name](logits, y.int(), kind(COUNTS), kind(WEIGHT)) == expected


def test_deferred_weights_of_cifar10_lt() -> None:
    expected = [0.05061, 0.0769, 0.12113, 0.19504, 0.31881, 0.52459, 0.86835, 1.44263, 2.40922, 3.99272]
    weights = deferred_weights(CIFAR10_LT, epoch=160, start=160)
    torch.testing.assert_close(weights, torch.tensor(expected), atol=1e-5, rtol=0)
    assert weights.sum().item() == pytest.approx(10, rel=1e-6)
    assert (weights.max() / weights.min()).item() == pytest.approx(78.9, abs=0.05)
    assert torch.equal(deferred_weights(CIFAR10_LT, epoch=159, start=160), torch.ones(10))
    assert torch.equal(class_balanced_weights(CIFAR10_LT, beta=0), torch.ones(10))
    inverse = class_balanced_weights(CIFAR10_LT, beta=1 - 1e-9)
    assert [inverse[0].item(), inverse[9].item()] == pytest.approx([0.04024, 4.02365], abs=2e-5)


def test_weighted_mean_divides_by_the_weights_of_the_batch() -> None:
    weight = class_balanced_weights(CIFAR10_LT)
    logits = torch.zeros(2, 10)
    logits[0, 0] = 2
    loss = vs_loss(logits, torch.tensor([0, 9]), CIFAR10_LT, gamma=0, tau=0, weight=weight)
    assert loss.item() == pytest.approx(2.283735, abs=2e-6)
    for y in (0, 9):
        one_class = logit_adjusted_loss(torch.zeros(3, 10), torch.full((3,), y), [1] * 10, weight=weight)
        assert one_class.item() == pytest.approx(math.log(10), abs=1e-6)


def test_ldam_numbers() -> None:
    margins = [0.15811, 0.1797, 0.20424, 0.23209, 0.26383, 0.29977, 0.34068, 0.38722, 0.4405, 0.5]
    for y, margin in enumerate(margins):
        loss = ldam_loss(torch.zeros(1, 10, dtype=torch.float64), torch.tensor([y]), CIFAR10_LT).item()
        assert math.log((math.exp(loss) - 1) / 9) / 30 == pytest.approx(margin, abs=5e-6)
        if y in (0, 9):
            assert loss == pytest.approx({0: 6.941608, 9: 17.197225}[y], abs=1e-6)


def test_vs_numbers() -> None:
    zero = torch.zeros(1, 10)
    assert vs_loss(zero, torch.tensor([0]), CIFAR10_LT).item() == pytest.approx(1.121450, abs=1e-6)
    assert vs_loss(zero, torch.tensor([9]), CIFAR10_LT).item() == pytest.approx(4.575328, abs=1e-6)
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 3, 9, 9])
    plain = torch.nn.functional.cross_entropy(logits, y)
    torch.testing.assert_close(vs_loss(logits, y, CIFAR10_LT, gamma=0, tau=0), plain)
    adjusted = logit_adjusted_loss(logits, y, CIFAR10_LT, tau=0.75)
    torch.testing.assert_close(vs_loss(logits, y, CIFAR10_LT, gamma=0), adjusted)


def test_focal_and_smoothing_limits() -> None:
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 3, 9, 9])
    plain = torch.nn.functional.cross_entropy(logits, y)
    torch.testing.assert_close(focal_loss(logits, y, gamma=0), plain)
    torch.testing.assert_close(label_aware_smoothing_loss(logits, y, CIFAR10_LT, head=0, tail=0), plain)
    equal = label_aware_smoothing_loss(logits, y, [7] * 10, head=0.3)
    # torch spreads its smoothing over all K classes, the paper over the other K - 1
    torch.testing.assert_close(equal, torch.nn.functional.cross_entropy(logits, y, label_smoothing=0.3 * 10 / 9))


def test_focal_gradient_is_finite_where_the_probability_rounds_to_one() -> None:
    logits = torch.tensor([[80.0, 0.0]], requires_grad=True)
    focal_loss(logits, torch.tensor([0]), gamma=0.5).backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ldam_loss(torch.zeros(1, 3), torch.tensor([0]), [1, 2]), r"counts of shape \(2,\).*\(3,\)"),
        (lambda: vs_loss(torch.zeros(1, 2), torch.tensor([0]), [1, 0]), r"counts\[1\]=0: must be positive"),
        (lambda: class_balanced_weights([3, -1]), r"counts\[1\]=-1"),
        (lambda: class_balanced_weights([3, 1], beta=1.0), r"beta=1.0 is outside \[0, 1\)"),
        (lambda: logit_adjusted_loss(torch.zeros(1, 2), torch.tensor([0]), [0, 1.0]), r"priors\[0\]=0"),
        (lambda: focal_loss(torch.zeros(1, 2), torch.tensor([2])), "target holds 2: labels run from 0 to 1"),
        (lambda: focal_loss(torch.zeros(1, 2), torch.tensor([-100])), "target holds -100"),
        (lambda: focal_loss(torch.zeros(1, 2), torch.tensor([0.0])), "target of shape .*float32"),
        (lambda: focal_loss(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)), r"logits of shape \(0, 2\)"),
        (lambda: focal_loss(torch.zeros(1, 2), torch.tensor([0]), weight=[1.0, -1.0]), r"weight\[1\]=-1"),
        (
            lambda: label_aware_smoothing_loss(torch.zeros(1, 2), torch.tensor([0]), [1, 1], head=1.0),
            "head=1.0",
        ),
        (lambda: class_balanced_weights(Counter([0, 0, 1])), "a Counter where a list of numbers is asked for"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_named(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
