"""What a batch is like, and doubtful labels, against slow sums over all pairs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from evenhand.pieces.batches import batch_numbers, explained
from evenhand.pieces.doubt import rare_select, suspicious_labels
from evenhand.pieces.submodular import submodular_picks
from helpers import seeded


def pool(n: int = 24, k: int = 4) -> tuple[Tensor, Tensor]:
    g = seeded()
    return (2 * torch.randn(n, k, generator=g)).double().softmax(1), torch.rand(n, generator=g)


def literal(p: Tensor, picks: list[int]) -> tuple[list[float], list[float], float]:
    """Diversity and representativeness of each pick, and the mean distance to the nearest other pick."""
    n = len(p)
    kl = torch.tensor([[float((a * (a / b).log()).sum()) for b in p] for a in p])
    s = torch.tensor([[-math.log(max(1 - float((a * b).sqrt().sum()), 0) + 1e-6) for b in p] for a in p])
    low, high = float(s.min()), float(s.max())
    s = (s - low) / (high - low)
    kl = kl / kl.max()
    apart = [0.0] + [min(float(kl[j, i]) for j in picks[:at]) for at, i in enumerate(picks) if at]
    cover = []
    for at, i in enumerate(picks):
        best = s[:, picks[:at]].max(1).values if at else torch.zeros(n)
        cover.append(float((s[:, i] - best).clamp_min(0).mean()))
    spacing = sum(min(float(kl[i, j]) for j in picks if j != i) for i in picks) / len(picks)
    return apart, cover, spacing


def test_terms_of_any_picks_are_the_equations() -> None:
    p, u = pool()
    picks = [5, 17, 2, 9]
    told = explained(p, u, picks)
    apart, cover, spacing = literal(p, picks)
    assert [t.index for t in told] == picks
    assert [t.diversity for t in told] == pytest.approx(apart, abs=1e-5)
    assert [t.representativeness for t in told] == pytest.approx(cover, abs=1e-5)
    scaled = (u - u.min()) / (u.max() - u.min())
    assert [t.uncertainty for t in told] == pytest.approx(scaled[picks].tolist(), abs=1e-6)
    numbers = batch_numbers(p, u, picks)
    assert numbers["spacing"] == pytest.approx(spacing, abs=1e-5)
    assert numbers["coverage"] == pytest.approx(sum(t.representativeness for t in told))
    assert numbers["classes"] == len(set(p[picks].argmax(1).tolist()))
    entropy = -(p[picks] * p[picks].log()).sum(1).mean() / math.log(4)
    assert numbers["entropy"] == pytest.approx(float(entropy))


def test_they_are_those_that_the_selector_gives() -> None:
    p, u = pool()
    own = list(submodular_picks(p, u, 6))
    told = explained(p, u, [pick.index for pick in own])
    for mine, theirs in zip(told[1:], own[1:], strict=True):
        assert mine.diversity == pytest.approx(theirs.diversity, abs=1e-9)
        assert mine.representativeness == pytest.approx(theirs.representativeness, abs=1e-9)


def test_copies_are_redundant_and_cover_nothing() -> None:
    p = torch.tensor([[0.7, 0.3]] * 3 + [[0.2, 0.8]] * 3, dtype=torch.float64)
    u = torch.zeros(6)
    same, other = batch_numbers(p, u, [0, 1, 2]), batch_numbers(p, u, [0, 3])
    assert same["spacing"] == pytest.approx(0, abs=1e-9)
    assert other["spacing"] > 0.5
    assert other["coverage"] > same["coverage"]
    with pytest.raises(ValueError, match="picks is empty"):
        batch_numbers(p, u, [])


def test_coverage_is_a_share_also_where_all_predictions_are_alike() -> None:
    """Alike, but no copies: every one is near to any, so that plain similarities are far from 0."""
    p = torch.tensor([[0.5 + 1e-4 * i, 0.5 - 1e-4 * i] for i in range(8)], dtype=torch.float64)
    for picks in ([3], [0, 7], list(range(8))):
        assert 0 <= batch_numbers(p, torch.zeros(8), picks)["coverage"] <= 1 + 1e-9
    assert batch_numbers(p, torch.zeros(8), list(range(8)))["coverage"] == pytest.approx(1)
    first = next(submodular_picks(p, torch.zeros(8), 1, alpha=0, beta=0))
    assert 0 <= first.representativeness <= 1


def test_rare_classes_come_first() -> None:
    p = torch.tensor([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9], [0.4, 0.2, 0.4]])
    assert rare_select(p, [1000, 10, 100], 4) == [1, 3, 2, 0]
    assert rare_select(p, [10, 1000, 100], 2) == [0, 3]
    with pytest.raises(ValueError, match="give one above 0 for each of 3"):
        rare_select(p, [5, 0, 1], 1)


def test_a_wrong_label_is_suspected_and_a_rare_class_is_not_accused_as_a_whole() -> None:
    """Class 1 is rare, and the model is never sure of it: by one threshold all of it would be accused."""
    sure = torch.tensor([[0.95, 0.05]]).repeat(20, 1)
    unsure = torch.tensor([[0.55, 0.45]]).repeat(4, 1)
    p, y = torch.cat([sure, unsure]), torch.tensor([0] * 20 + [1] * 4)
    assert suspicious_labels(p, y) == []
    assert (p.argmax(1) != y).sum() == 4  # what a plain disagreement would accuse
    y[3] = 1  # a wrong label
    found = suspicious_labels(p, y)
    assert found[0] == 3
    assert len(suspicious_labels(p, y, 1)) == 1


def test_suspicion_is_the_equation() -> None:
    p, _ = pool(40, 3)
    y = torch.randint(3, (40,), generator=seeded(1))
    t = [float(p[y == k][:, k].mean()) for k in range(3)]
    doubt = {}
    for i in range(40):
        k = max((k for k in range(3) if k != y[i]), key=lambda k: float(p[i, k]) / t[k])
        mine, other = float(p[i, y[i]]) / t[int(y[i])], float(p[i, k]) / t[k]
        if other >= 1 > mine:
            doubt[i] = other - mine
    assert suspicious_labels(p, y) == sorted(doubt, key=lambda i: -doubt[i])
    assert 0 < len(doubt) < 40
