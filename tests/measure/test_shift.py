"""Distances between domains and label-free scores, against literal sums, closed forms and known failures."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.measure.shift import (
    SCORES,
    density_score,
    domain_accuracy,
    entropy_score,
    infomax_score,
    proxy_a_distance,
    soft_neighbourhood_density,
    target_entropy,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_domain_accuracy_counts_each_domain_half() -> None:
    source, target = torch.tensor([1.0, 2.0, -1.0, 0.0]), torch.tensor([-3.0, 1.0])
    assert domain_accuracy(source, target) == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert domain_accuracy(torch.zeros(9), torch.zeros(3)) == 0.5  # a dead discriminator, whatever the sizes
    assert domain_accuracy(torch.ones(3), -torch.ones(5)) == 1.0


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_a_distance_of_two_gaussians_is_the_closed_form(shift: float) -> None:
    # The best line between N(0, I) and N(shift e1, I) errs with probability Phi(-shift / 2).
    source, target = normal(6000, 5), normal(4000, 5, seed=1)
    target[:, 0] += shift
    error = 0.5 * math.erfc(shift / 2 / math.sqrt(2))
    assert proxy_a_distance(source, target) == pytest.approx(2 * (1 - 2 * error), abs=0.1)


def test_a_distance_of_separable_domains_is_two_in_any_units() -> None:
    source, target = normal(50, 8), normal(70, 8, seed=1)
    target[:, 3] += 20
    units = torch.tensor([1e-4, 1, 1e3, 1e4, 1, 1, 1, 0])  # also a constant feature
    assert proxy_a_distance(source, target) == 2
    assert proxy_a_distance(source * units, target * units) == 2


def test_a_distance_depends_on_its_generator_alone() -> None:
    source, target = normal(60, 3), normal(60, 3, seed=1) + 0.5
    torch.manual_seed(1)
    first, rng = proxy_a_distance(source, target), torch.get_rng_state()
    with torch.no_grad():
        assert proxy_a_distance(source, target) == first
    assert torch.equal(torch.get_rng_state(), rng)
    splits = {proxy_a_distance(source, target, generator=torch.Generator().manual_seed(s)) for s in range(5)}
    assert len(splits) > 1


def test_a_distance_of_the_smallest_domains() -> None:
    assert proxy_a_distance(normal(2, 3), normal(2, 3, seed=1)) in (-2.0, 0.0, 2.0)


def literal_entropy(probs: list[float]) -> float:
    return -sum(p * math.log(p) for p in probs if p > 0)


def test_entropy_and_infomax_equal_their_literal_sums() -> None:
    logits = 3 * normal(7, 4)
    rows = [[math.exp(v) / sum(math.exp(u) for u in row) for v in row] for row in logits.tolist()]
    mean_entropy = sum(literal_entropy(row) for row in rows) / 7
    average = [sum(column) / 7 for column in zip(*rows, strict=True)]
    assert target_entropy(logits) == pytest.approx(mean_entropy)
    assert entropy_score(logits) == pytest.approx(-mean_entropy)
    assert infomax_score(logits) == pytest.approx(literal_entropy(average) - mean_entropy)


def literal_density(features: list[list[float]], temperature: float) -> float:
    lengths = [math.sqrt(sum(v * v for v in f)) for f in features]
    total = 0.0
    for i, f in enumerate(features):
        powers = [
            math.exp(sum(a * b for a, b in zip(f, g, strict=True)) / lengths[i] / lengths[j] / temperature)
            for j, g in enumerate(features)
            if j != i
        ]
        total += literal_entropy([p / sum(powers) for p in powers])
    return total / len(features)


@pytest.mark.parametrize("block", [1, 4, 9, 100])
def test_density_equals_its_literal_sum_in_blocks_of_any_size(block: int) -> None:
    features = normal(9, 3)
    expected = literal_density(features.tolist(), 0.2)
    for rows, accuracy in ((features, 1e-12), (features.float(), 1e-5)):
        found = soft_neighbourhood_density(rows, temperature=0.2, block=block)
        assert found == pytest.approx(expected, rel=accuracy)


def test_density_score_is_the_density_of_the_probabilities() -> None:
    logits = normal(9, 4)
    assert density_score(logits) == pytest.approx(literal_density(logits.softmax(1).tolist(), 0.05))


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(2, 20), classes=st.integers(2, 6), scale=st.floats(0, 200), seed=st.integers(0, 999))
def test_scores_stay_in_their_ranges(rows: int, classes: int, scale: float, seed: int) -> None:
    logits = scale * normal(rows, classes, seed=seed).float()
    slack = 1e-5
    assert -math.log(classes) - slack <= entropy_score(logits) <= 0
    assert -slack <= infomax_score(logits) <= math.log(classes) + slack
    assert -slack <= density_score(logits) <= math.log(rows - 1) + slack


def clustered(sure: float, classes: int = 5, each: int = 40) -> Tensor:
    labels = torch.arange(classes).repeat_interleave(each)
    return sure * torch.eye(classes, dtype=torch.float64)[labels] + normal(classes * each, classes)


@pytest.mark.parametrize("name", SCORES)
def test_every_score_prefers_tight_clusters_to_blurred_ones(name: str) -> None:
    values = [SCORES[name](clustered(sure)) for sure in (3.0, 6.0, 12.0)]
    assert values == sorted(values)
    assert values[-1] > values[0] + 0.1


def test_only_infomax_sees_a_collapse() -> None:
    good, collapsed, clueless = clustered(12.0), torch.zeros(200, 5), torch.zeros(200, 5)
    collapsed[:, 0] = 30.0
    assert entropy_score(collapsed) > entropy_score(good) > entropy_score(clueless)
    for useless in (collapsed, clueless):
        assert density_score(useless) == pytest.approx(math.log(199))
        assert density_score(useless) > density_score(good)
        assert infomax_score(useless) == pytest.approx(0, abs=1e-6)
    assert infomax_score(good) > 1


def test_bad_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"target of shape \(0,\)"):
        domain_accuracy(torch.zeros(3), torch.zeros(0))
    with pytest.raises(ValueError, match=r"logits of shape \(4,\)"):
        entropy_score(torch.zeros(4))
    with pytest.raises(ValueError, match="N >= 2"):
        soft_neighbourhood_density(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="source has 3 features, target 4"):
        proxy_a_distance(torch.zeros(5, 3), torch.zeros(5, 4))
    with pytest.raises(ValueError, match=r"held_out=1\.5"):
        proxy_a_distance(torch.zeros(5, 3), torch.zeros(5, 3), held_out=1.5)
