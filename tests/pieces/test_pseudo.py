"""Masks and targets of self-training against their definitions."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from evenhand.measure.confusion import confusion_matrix
from evenhand.pieces.pseudo import (
    FlexThresholds,
    align,
    confidence_mask,
    crest_rates,
    estimate_priors,
    pick_per_class,
    refine_to_marginals,
    remember,
    sharpen,
)


def some_probs(samples: int, classes: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(samples, classes, generator=rng, dtype=torch.float64)).softmax(1)


def test_confidence_mask_keeps_the_threshold_itself() -> None:
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.1, 0.9]], requires_grad=True)
    mask = confidence_mask(probs, 0.75)
    assert mask.tolist() == [True, False, True]
    assert confidence_mask(probs, torch.tensor([0.8, 0.5, 0.95])).tolist() == [False, True, False]


@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("convex", [False, True])
def test_flexmatch_against_a_literal_count(warmup: bool, convex: bool) -> None:
    """``T_c = M(sigma_c / max sigma) tau`` with sigma from a plain dictionary, over 30 batches with replacement."""
    K, samples, tau = 3, 40, 0.7
    flex = FlexThresholds(samples, K, tau, warmup=warmup, convex=convex)
    last: dict[int, int] = {}
    rng = torch.Generator().manual_seed(3)
    for step in range(30):
        indices = torch.randint(samples, (8,), generator=rng)
        probs = some_probs(8, K, seed=step) * torch.tensor([1.0, 0.6, 0.2])
        probs = probs / probs.sum(1, keepdim=True)
        sigma = Counter(last.values())
        most = max([*sigma.values(), samples - len(last) if warmup else 0, 1])
        beta = [sigma[c] / most for c in range(K)]
        limits = [tau * (b / (2 - b) if convex else b) for b in beta]
        wanted = [max(p) >= limits[p.index(max(p))] for p in probs.tolist()]
        torch.testing.assert_close(flex.thresholds(), torch.tensor(limits))
        assert flex.mask(probs, indices).tolist() == wanted
        last.update(
            {i: p.index(max(p)) for i, p in zip(indices.tolist(), probs.tolist(), strict=True) if max(p) >= tau}
        )
    assert len(set(limits)) > 1
    assert max(limits) == pytest.approx(tau)


def test_of_a_sample_drawn_twice_the_last_value_is_remembered() -> None:
    memory = torch.zeros(4, 2)
    found = remember(memory, torch.tensor([2, 0, 2, 3, 2]), torch.arange(1.0, 11).view(5, 2))
    assert found.tolist() == [[3, 4], [0, 0], [9, 10], [7, 8]]
    assert not memory.any()
    assert torch.equal(remember(found, torch.tensor([], dtype=torch.long), torch.zeros(0, 2)), found)


def test_trap_04_flexmatch_statistics_survive_a_resume() -> None:
    flex = FlexThresholds(20, 3, 0.6)
    for step in range(5):
        flex.mask(some_probs(10, 3, step), torch.arange(step, step + 10))
    state = {k: v.clone() for k, v in flex.state_dict().items()}
    resumed = FlexThresholds(20, 3, 0.6)
    assert not torch.equal(resumed.thresholds(), flex.thresholds())
    resumed.load_state_dict(state)
    for step in range(5, 8):
        a, b = (f.mask(some_probs(10, 3, step), torch.arange(10)) for f in (flex, resumed))
        assert torch.equal(a, b)
    assert torch.equal(resumed.last, flex.last)
    with pytest.raises(ValueError, match="20 unlabelled samples, this run has 21"):
        FlexThresholds(21, 3).load_state_dict(state)


def test_sharpen_is_the_power() -> None:
    probs = some_probs(6, 4)
    for temperature in (0.4, 1.0, 2.0):
        power = probs ** (1 / temperature)
        torch.testing.assert_close(sharpen(probs, temperature), power / power.sum(1, keepdim=True))
    assert sharpen(torch.tensor([0.0, 0.2, 0.8]), 0.5)[0] == 0
    torch.testing.assert_close(sharpen(torch.tensor([0.64, 0.36]), 2.0), torch.tensor([0.8, 0.6]) / 1.4)


def test_alignment_brings_the_mean_towards_the_wanted_and_is_idle_when_they_agree() -> None:
    probs = some_probs(500, 4, spread=0.3) * torch.tensor([8.0, 4.0, 2.0, 1.0])
    probs = probs / probs.sum(1, keepdim=True)
    even = torch.full((4,), 0.25)
    aligned = align(probs, even, probs.mean(0))
    torch.testing.assert_close(aligned.sum(1), torch.ones(500, dtype=torch.float64))
    assert (aligned.mean(0) - 0.25).abs().max() < 0.1 * (probs.mean(0) - 0.25).abs().max()
    torch.testing.assert_close(align(probs, [3, 1, 1, 1], torch.tensor([0.5, 1 / 6, 1 / 6, 1 / 6])), probs)
    wanted = [p * w / q for p, w, q in zip([0.5, 0.5], [0.8, 0.2], [0.4, 0.6], strict=True)]
    found = align(torch.tensor([[0.5, 0.5]]), [0.8, 0.2], torch.tensor([0.4, 0.6]))
    torch.testing.assert_close(found, torch.tensor([wanted]) / sum(wanted))


def test_darp_is_the_projection_a_general_solver_finds() -> None:
    probs, wanted = some_probs(5, 3), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

    def divergence(flat):  # type: ignore[no-untyped-def]
        x = torch.from_numpy(flat).view(5, 3)
        return (x * (x / probs).log()).sum().item(), ((x / probs).log() + 1).flatten().numpy()

    constraints = [  # the last class mean follows from the others
        {"type": "eq", "fun": lambda flat: flat.reshape(5, 3).sum(1) - 1},
        {"type": "eq", "fun": lambda flat: (flat.reshape(5, 3).mean(0) - wanted.numpy())[:2]},
    ]
    start = wanted.repeat(5, 1).flatten().numpy()
    bounds = [(1e-9, 1)] * 15
    solved = minimize(divergence, start, jac=True, bounds=bounds, constraints=constraints, tol=1e-12)
    assert solved.success
    found = refine_to_marginals(probs, wanted, iterations=1000, tolerance=1e-10)
    torch.testing.assert_close(found, torch.from_numpy(solved.x).view(5, 3), atol=1e-4, rtol=0)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 6), samples=st.integers(5, 60))
def test_darp_meets_rows_and_class_means_by_scaling_alone(seed: int, classes: int, samples: int) -> None:
    probs = some_probs(samples, classes, seed)
    wanted = some_probs(1, classes, seed + 1, spread=1.0)[0]
    found = refine_to_marginals(probs, wanted, iterations=3000, tolerance=1e-9)
    torch.testing.assert_close(found.sum(1), torch.ones(samples, dtype=torch.float64))
    torch.testing.assert_close(found.mean(0), wanted, atol=1e-6, rtol=0)
    factors = (found / probs).log()  # u_n + v_k: all 2 x 2 differences vanish
    crossed = factors - factors[:1] - factors[:, :1] + factors[:1, :1]
    assert crossed.abs().max() < 1e-6


def test_darp_with_a_class_nobody_predicts_is_finite() -> None:
    probs = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.2, 0.8, 0.0]])
    found = refine_to_marginals(probs, [1, 1, 1], iterations=2000)
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    torch.testing.assert_close(found.mean(0), torch.full((3,), 1 / 3), atol=1e-2, rtol=0)


def test_estimated_priors_undo_the_confusion() -> None:
    rates = torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.1, 0.2, 0.7]], dtype=torch.float64)
    wanted = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    torch.testing.assert_close(estimate_priors(rates / 3, wanted @ rates), wanted)
    never_third = confusion_matrix([0, 1, 1, 0], [0, 1, 2, 2], 3)
    found = estimate_priors(never_third, [0.5, 0.5, 0.0])
    assert found.isfinite().all()
    assert found.sum().item() == pytest.approx(1)


def test_estimated_shares_depend_on_no_scale() -> None:
    """Counts of any total or shares: a class that nobody predicts gets the same small share."""
    shares = estimate_priors(torch.eye(2, dtype=torch.float64), [1.0, 0.0])
    assert shares[1].item() == pytest.approx(1e-6, rel=1e-3)
    torch.testing.assert_close(estimate_priors(50 * torch.eye(2, dtype=torch.float64), [800.0, 0.0]), shares)


def test_crest_rates_mirror_the_counts() -> None:
    found = crest_rates([100, 1000, 10], alpha=0.5)  # order of size: class 1, 0, 2
    torch.testing.assert_close(found, torch.tensor([math.sqrt(0.1), math.sqrt(0.01), 1.0]))
    assert crest_rates([7, 7, 7]).tolist() == pytest.approx([1, 1, 1])


def test_picks_are_the_most_confident_share_of_each_class() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3], [0.8, 0.2], [0.4, 0.6]])
    assert pick_per_class(probs, [0.5, 1.0]).tolist() == [0, 2, 4, 5]
    assert pick_per_class(probs, torch.tensor([0.25, 0.0])).tolist() == [0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FlexThresholds(10, 3, 1.5), r"threshold=1.5 is outside \(0, 1\]"),
        (lambda: sharpen(torch.ones(1, 2) / 2, 0.0), "temperature=0.0: must be positive"),
        (lambda: refine_to_marginals(torch.ones(4, 3) / 3, [0.5, 0.5]), r"probs of shape \(4, 3\)"),
        (lambda: refine_to_marginals(torch.ones(4, 2) / 2, [1.0, 0.0]), r"marginals\[1\]=0: must be positive"),
        (lambda: crest_rates([10, 0]), r"counts\[1\]=0"),
    ],
)
def test_mistakes_are_named(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
