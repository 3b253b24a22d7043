"""Policies of pairs and their regret, the aim's multipliers, and whether gains come true."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.measure.confusion import confusion_matrix, coverages, h_mean, mean_recall, recalls
from evenhand.pieces.selmix import pair_distribution, pair_gain
from evenhand.pieces.selmix_aim import Aim
from evenhand.pieces.selmix_fidelity import gain_fidelity, spread_pairs
from evenhand.pieces.selmix_objectives import under_coverage
from evenhand.pieces.selmix_policies import Policy, bounded, has_settled, hedge_scale, next_distribution

K = 4


def gains(seed: int, rounds: int, low: float, high: float, classes: int = K) -> Tensor:
    draw = torch.rand(rounds, classes, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drift = torch.linspace(0, 1, rounds, dtype=torch.float64)[:, None, None] * draw[:1].flip(1)  # the best pair changes
    return low + (high - low) * (0.5 * draw + 0.5 * drift)


def played(policy: Policy, path: Tensor, scale: float) -> Tensor:
    """The expected gain of each round."""
    past, won = torch.zeros_like(path[0]), []
    for gain in path:
        P, past = next_distribution(policy, gain, past, scale=scale)
        won.append((P * gain).sum())
    torch.testing.assert_close(past, path.sum(0))
    return torch.stack(won)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_accumulated_gains_leave_little_regret(scale: float) -> None:
    """Spec 2.8, 10a.12: on every path the average gain + 2 log K / (s T) is at least any fixed distribution's."""
    for seed in range(70):
        path = gains(seed, rounds=3 + seed, low=-1.0, high=1.0)
        best = path.sum(0).max() / len(path)
        assert played("accumulated", path, scale).mean() + 2 * math.log(K) / (scale * len(path)) >= best - 1e-12


def test_hedge_leaves_little_regret() -> None:
    """Spec 2.8: gains in 0..1, of the rounds before alone, come within 2 sqrt(log K / T) of the best pair."""
    for seed in range(200):
        rounds = 1 + seed % 60
        path = gains(seed, rounds, low=0.0, high=1.0)
        bound = 2 * math.sqrt(math.log(K) / rounds)
        assert played("hedge", path, hedge_scale(K, rounds)).mean() + bound >= path.sum(0).max() / rounds - 1e-12


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_regret_is_small_on_hostile_paths(rows: list[list[float]]) -> None:
    path, T = torch.tensor(rows, dtype=torch.float64).view(-1, 2, 2), len(rows)
    best = path.sum(0).max() / T
    assert played("hedge", path, hedge_scale(2, T)).mean() + 2 * math.sqrt(math.log(2) / T) >= best - 1e-12
    assert played("accumulated", path, 3.0).mean() + 2 * math.log(2) / (3 * T) >= best - 1e-12


def test_the_bounds_tell_policies_apart() -> None:
    """Uniform pairs break both bounds, and hedge, which looks back alone, that of accumulated gains."""
    path = torch.zeros(200, 2, 2, dtype=torch.float64)
    path[:, 0, 0] = 1.0
    slack = 2 * math.log(2) / (50 * 200)
    assert played("accumulated", path, 50.0).mean() + slack >= 1
    assert played("hedge", path, 50.0).mean() + slack < 1  # its first round knows nothing
    assert played("uniform", path, 50.0).mean() + 2 * math.sqrt(math.log(2) / 200) < 1


def test_each_policy_literally() -> None:
    path = gains(3, 3, -1.0, 1.0)
    total = path[:2].sum(0)
    expected: dict[str, Tensor] = {
        "selmix": pair_distribution(path[2], 2.0, floor=0.01),
        "uniform": torch.full((K, K), 1 / K**2, dtype=torch.float64),
        "greedy": F.one_hot(path[2].argmax(), K * K).view(K, K).double(),
        "accumulated": torch.exp(2 * (total + path[2])) / torch.exp(2 * (total + path[2])).sum(),
        "hedge": torch.exp(2 * total) / torch.exp(2 * total).sum(),
    }
    assert expected.keys() == set(get_args(Policy))
    for policy, wanted in expected.items():
        P, past = next_distribution(policy, path[2], total, scale=2.0, floor=0.01)  # type: ignore[arg-type]
        torch.testing.assert_close(P, wanted)
        torch.testing.assert_close(past, path.sum(0))


def test_defaults_are_no_floor_and_a_tolerance_of_a_hundredth() -> None:
    gain = -torch.eye(K, dtype=torch.float64)
    gain[0, 1] = 1.0
    P, _ = next_distribution("selmix", gain, torch.zeros_like(gain), scale=5.0)
    assert P[0, 1] == P.sum() == 1  # the one pair of positive gain has it all
    C = torch.tensor([[0.4, 0.1], [0.137, 0.363]], dtype=torch.float64)  # coverages 0.537 and 0.463, floor 0.475
    dual = 100 * (1 - math.exp((0.463 - 0.475) / 0.01))
    expected = (float(mean_recall(C)) + dual * (0.463 - 0.475)) / (1 + dual)
    assert float(under_coverage(mean_recall)(C)) == pytest.approx(expected, rel=1e-4)


def test_relative_gains_are_bounded_before_they_are_summed() -> None:
    gain, none = torch.tensor([[3.0, -6.0], [0.0, 1.5]]), torch.zeros(2, 2)
    assert bounded(gain).tolist() == [[0.5, -1.0], [0.0, 0.25]]
    assert bounded(gain, positive=True).tolist() == [[0.75, 0.0], [0.5, 0.625]]
    assert bounded(none).tolist() == none.tolist()
    for policy, wanted in (("accumulated", bounded(gain)), ("hedge", bounded(gain, positive=True))):
        _, past = next_distribution(policy, gain, none, scale=1.0, relative=True)  # type: ignore[arg-type]
        torch.testing.assert_close(past, wanted)


def test_settled_gains() -> None:
    """Spec 2.7: the last within 5 % of the mean of the last ten."""
    assert not has_settled(torch.ones(9))
    assert has_settled(torch.ones(10))
    falling = torch.linspace(1.0, 0.5, 10)
    assert not has_settled(falling)
    assert has_settled(torch.cat([falling, torch.full((10,), 0.5)]))
    assert has_settled(torch.tensor([1.0] * 9 + [1.05]))
    assert not has_settled(torch.tensor([1.0] * 9 + [1.06]))


def test_bad_policies_say_what_to_do() -> None:
    gain = torch.ones(2, 2)
    for call, said in (
        (lambda: next_distribution("best", gain, gain, scale=1.0), "policy 'best' is unknown"),  # type: ignore[arg-type]
        (lambda: next_distribution("hedge", gain, gain[:1], scale=1.0), r"past of shape \(1, 2\)"),
        (lambda: next_distribution("greedy", gain * math.nan, gain, scale=1.0), r"gain\[0, 0\]=nan"),
        (lambda: hedge_scale(0, 3), "classes=0"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


# the aim


def some_confusion(seed: int = 0, classes: int = 5) -> Tensor:
    C = torch.rand(classes, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.05
    C = C + torch.diag(torch.linspace(0.1, 2, classes, dtype=torch.float64))
    return C / C.sum()


HEAD_TAIL = [[0, 1, 2, 3], [4]]


@pytest.mark.parametrize("groups", [None, HEAD_TAIL])
def test_multipliers_without_memory_are_the_closed_forms(groups: Any) -> None:
    aim = Aim(groups=groups, cover=True, cover_groups=groups, sharpness=7.0, cap=50.0, tolerance=0.05, floor=0.3)
    C, members = some_confusion(), groups or [[k] for k in range(5)]
    for start in (aim.start(5), {"recall": torch.ones(len(members)), "coverage": torch.ones(len(members))}):
        found = aim.follow(C, start)  # whatever was before
        r = np.array([float(recalls(C)[g].mean()) for g in members])
        cov = np.array([float(coverages(C)[g].mean()) for g in members])
        assert found["recall"].tolist() == pytest.approx(list(np.exp(-7 * r) / np.exp(-7 * r).sum()))
        wanted = [max(0.0, 50 * (1 - math.exp((c - 0.3) / 0.05))) for c in cov]
        assert found["coverage"].tolist() == pytest.approx(wanted)
        assert max(wanted) > 1


@pytest.mark.parametrize("groups", [None, HEAD_TAIL])
def test_multipliers_with_memory_go_on(groups: Any) -> None:
    """lambda <- lambda exp(-omega r), normalised; lambda <- max(0, lambda - step (cov - floor)), capped."""
    aim = Aim(groups=groups, cover=True, cover_groups=groups, sharpness=2.0, memory=True, step=30.0, cap=4.0)
    members = groups or [[k] for k in range(5)]
    duals = aim.start(5)
    assert duals["recall"].tolist() == pytest.approx([1 / len(members)] * len(members))
    assert duals["coverage"].tolist() == [0.0] * len(members)
    worst, cover = np.full(len(members), 1 / len(members)), np.zeros(len(members))
    for seed in range(4):
        C = some_confusion(seed)
        r = np.array([float(recalls(C)[g].mean()) for g in members])
        cov = np.array([float(coverages(C)[g].mean()) for g in members])
        worst = worst * np.exp(-2 * r)
        worst /= worst.sum()
        cover = np.minimum(np.maximum(cover - 30 * (cov - 0.95 / 5), 0), 4.0)
        duals = aim.follow(C, duals)
        assert duals["recall"].tolist() == pytest.approx(list(worst), rel=1e-5)
        assert duals["coverage"].tolist() == pytest.approx(list(cover), rel=1e-5)
    assert cover.max() == 4.0 or groups


def test_the_aim_holds_its_multipliers() -> None:
    C, other = some_confusion(0), some_confusion(1)
    aim = Aim(h_mean, cover=True, tolerance=0.1)
    duals = aim.follow(C, aim.start(5))
    assert float(aim.at(duals)(C)) == pytest.approx(float(under_coverage(h_mean, tolerance=0.1)(C)))
    excess = (duals["coverage"] * (coverages(other) - 0.95 / 5)).sum()
    assert float(aim.at(duals)(other)) == pytest.approx(float((h_mean(other) + excess) / (1 + duals["coverage"].max())))
    worst = Aim(sharpness=3.0)
    held = worst.follow(C, worst.start(5))
    assert float(worst.at(held)(other)) == pytest.approx(float((held["recall"] * recalls(other)).sum()))
    assert [len(part) for part in Aim(mean_recall).start(5).values()] == [0, 0]


# fidelity


def test_fidelity_is_exact_where_the_theory_is() -> None:
    """One sample per class: soft predictions are the theory's, so a tiny step changes the metric as predicted."""
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(5, 4, generator=chance, dtype=torch.float64)
    W, b = torch.randn(5, 4, generator=chance).double(), torch.randn(5, generator=chance).double()
    y = torch.arange(5)
    C = F.linear(x, W, b).softmax(1) / 5
    gain = pair_gain(mean_recall, C, x, W, bias=b)
    pairs = [(i, j) for i in range(5) for j in range(5)]
    found = gain_fidelity(mean_recall, gain, x, y, W, b, pairs=pairs, move=1e-7)
    assert float(found[:, 0].abs().max()) > 0
    torch.testing.assert_close(found[:, 1], found[:, 0], rtol=1e-4, atol=1e-12)
    i, j = 3, 1  # and one pair by hand, with a large step
    mixed = (0.8 * x[i] + 0.2 * x[j]).requires_grad_(False)
    head, shift = W.clone().requires_grad_(), b.clone().requires_grad_()
    F.cross_entropy(F.linear(mixed, head, shift)[None], torch.tensor([i])).backward()
    assert head.grad is not None
    assert shift.grad is not None
    eta = 0.5 * W.norm() / head.grad.norm()
    moved = F.linear(x, W - eta * head.grad, b - eta * shift.grad)
    before = [C, confusion_matrix(F.linear(x, W, b).argmax(1), y, 5)]
    after = [moved.softmax(1) / 5, confusion_matrix(moved.argmax(1), y, 5)]
    wanted = [eta * gain[i, j], *(mean_recall(a) - mean_recall(c) for a, c in zip(after, before, strict=True))]
    (row,) = gain_fidelity(mean_recall, gain, x, y, W, b, pairs=[(i, j)], move=0.5)
    torch.testing.assert_close(row, torch.stack(wanted))
    bare = pair_gain(mean_recall, F.linear(x, W).softmax(1) / 5, x, W)  # a head without bias, where none moves
    found = gain_fidelity(mean_recall, bare, x, y, W, None, pairs=pairs, move=1e-7)
    torch.testing.assert_close(found[:, 1], found[:, 0], rtol=1e-4, atol=1e-12)


def test_pairs_are_spread_over_the_gains() -> None:
    gain = torch.arange(25.0).flip(0).view(5, 5)
    assert spread_pairs(gain, 3) == [(4, 4), (2, 2), (0, 0)]
    assert spread_pairs(gain, 0) == []
    assert len(spread_pairs(gain, 100)) == 25
