"""Distances between domains and label-free scores, against literal sums, closed forms and known failures."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.measure.shift import (
    REMEDIES,
    SCORES,
    _logistic,
    _split,
    adaptation_troubles,
    density_score,
    domain_accuracy,
    effective_classes,
    entropy_score,
    infomax_score,
    largest_share,
    principal_plane,
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


@pytest.mark.parametrize(
    ("row", "kinds"),
    [
        ({}, []),
        ({"domain_accuracy": 0.95}, ["wins"]),
        ({"domain_accuracy": 0.949}, []),
        ({"domain_accuracy": 0.45, "domain_loss": math.log(2) + 0.019, "a_distance": 1.0}, ["dead"]),
        ({"domain_accuracy": 0.5499, "domain_loss": math.log(2) - 0.019, "a_distance": 2.0}, ["dead"]),
        ({"domain_accuracy": 0.56, "domain_loss": math.log(2), "a_distance": 1.5}, []),
        ({"domain_accuracy": 0.44, "domain_loss": math.log(2), "a_distance": 1.5}, []),
        ({"domain_accuracy": 0.5, "domain_loss": math.log(2) + 0.021, "a_distance": 1.5}, []),
        ({"domain_accuracy": 0.5, "domain_loss": math.log(2) - 0.021, "a_distance": 1.5}, []),
        ({"domain_accuracy": 0.5, "domain_loss": math.log(2), "a_distance": 0.99}, []),
        ({"domain_accuracy": 0.5, "domain_loss": math.log(2)}, []),
        ({"domain_accuracy": 0.5, "a_distance": 1.5}, []),
        ({"domain_loss": math.log(2), "a_distance": 1.5}, []),
        ({"effective_classes": 2.5, "possible_classes": 10.0}, ["collapse"]),
        ({"effective_classes": 2.6, "possible_classes": 10.0}, []),
        ({"effective_classes": 1.5, "possible_classes": 2.0}, ["collapse"]),
        ({"effective_classes": 1.6, "possible_classes": 2.0}, []),
        ({"effective_classes": 1.0, "possible_classes": 1.0}, []),
        ({"effective_classes": 1.0}, []),
        ({"domain_accuracy": 1.0, "effective_classes": 1.0, "possible_classes": 5.0}, ["wins", "collapse"]),
    ],
)
def test_troubles_begin_at_their_thresholds(row: dict[str, float], kinds: list[str]) -> None:
    assert list(adaptation_troubles(row)) == kinds


def test_troubles_are_told_with_numbers_and_the_remedies_of_the_method() -> None:
    row = {"domain_accuracy": 0.97, "effective_classes": 1.26, "possible_classes": 12.0, "largest_share": 0.935}
    said = adaptation_troubles(row, ("lr", "domain_weight"))
    assert said["wins"] == (
        "the discriminator wins (domain accuracy 0.97, chance 0.5): the features do not mix; raise method.domain_weight"
    )
    assert "94% are one class, about 1.3 of 12 are in use; lower method.domain_weight or" in said["collapse"]
    assert "100% are one class" in adaptation_troubles({"effective_classes": 1.0, "possible_classes": 5.0})["collapse"]
    dead = {"domain_accuracy": 0.52, "domain_loss": math.log(2), "a_distance": 1.234}
    assert "(domain accuracy 0.52, loss log 2)" in adaptation_troubles(dead)["dead"]
    assert "(A-distance 1.23 of 2); raise method.optim_d.lr" in adaptation_troubles(dead)["dead"]
    assert adaptation_troubles(dead, ())["dead"].endswith("(A-distance 1.23 of 2)")
    assert adaptation_troubles(row, ("entropy_weight",))["wins"].endswith("the features do not mix")
    assert list(REMEDIES) == ["trade_off", "domain_weight", "entropy_weight"]


def test_shares_of_predicted_classes_by_hand() -> None:
    logits = torch.eye(4)[[0, 0, 0, 1]]
    assert largest_share(logits) == 0.75
    assert effective_classes(logits) == pytest.approx(math.exp(literal_entropy([0.75, 0.25])))
    assert effective_classes(torch.eye(4)) == pytest.approx(4)


def test_the_principal_plane_is_that_of_the_largest_variance_and_points_to_its_largest_entry() -> None:
    points = torch.tensor([[3.0, 0, 1], [-3, 0, 1], [0, -1, 1], [0, 1, 1]])
    for flip in (1, -1):
        flipped = points * torch.tensor([flip, 1, 1])
        torch.testing.assert_close(principal_plane(flipped), flipped[:, :2], atol=1e-6, rtol=0)
    line = torch.tensor([[1.0], [3.0]])
    assert principal_plane(line).tolist() == [[-1, 0], [1, 0]]
    assert principal_plane(line).dtype == torch.float32
    with pytest.raises(ValueError, match="N >= 2"):
        principal_plane(torch.zeros(1, 3))


def test_a_share_of_the_rows_is_split_off_and_both_parts_have_one() -> None:
    rows = torch.arange(10.0)[:, None]
    held, rest = _split(rows, 0.25, torch.Generator().manual_seed(0))
    assert (len(held), len(rest)) == (2, 8)  # round half to even
    assert sorted(torch.cat([held, rest]).flatten().tolist()) == list(range(10))
    assert torch.equal(held.flatten().long(), torch.randperm(10, generator=torch.Generator().manual_seed(0))[:2])
    assert held.dtype == torch.float64
    for share, sizes in ((0.01, (1, 9)), (0.99, (9, 1)), (0.3, (3, 7))):
        assert tuple(map(len, _split(rows, share, torch.Generator()))) == sizes


@pytest.mark.parametrize("penalty", [0.01, 1.0])
def test_the_line_between_domains_is_the_least_penalised_loss(penalty: float) -> None:
    """Each domain weighs half, however many rows it has; the bias is not penalised."""
    source, target = normal(30, 2) + 3, normal(10, 2, seed=1) + 2
    w = _logistic(source, target, penalty)
    p, q = torch.sigmoid(-(source @ w[:2] + w[2])), torch.sigmoid(target @ w[:2] + w[2])
    slope = (-(p[:, None] * source).mean(0) + (q[:, None] * target).mean(0)) / 2 + penalty * w[:2]
    assert slope.tolist() == pytest.approx([0, 0], abs=1e-5)
    assert float(q.mean() - p.mean()) == pytest.approx(0, abs=1e-5)
    assert float((source @ w[:2]).mean()) > float((target @ w[:2]).mean())


def test_options_of_the_a_distance_are_used() -> None:
    source, target = normal(40, 3), normal(30, 3, seed=1) + 0.8
    usual = proxy_a_distance(source, target)
    assert usual == proxy_a_distance(
        source, target, held_out=0.2, penalty=1e-2, generator=torch.Generator().manual_seed(0)
    )
    assert usual != proxy_a_distance(source, target, held_out=0.37)
    tilted = torch.stack([normal(400), 10 * normal(400, seed=1)], 1)
    moved = tilted + torch.tensor([0.5, 10.0])
    assert proxy_a_distance(tilted, moved, penalty=1e4) != proxy_a_distance(tilted, moved)
    constant = torch.ones(20, 1)
    assert proxy_a_distance(constant, constant) == 0
    near, far = torch.zeros(20, 1), torch.ones(20, 1)
    assert proxy_a_distance(near, far) == proxy_a_distance(far, near) == 2
    with pytest.raises(ValueError, match="held_out=0"):
        proxy_a_distance(near, far, held_out=0)
    with pytest.raises(ValueError, match="block=0"):
        soft_neighbourhood_density(near, block=0)
    with pytest.raises(ValueError, match="temperature=0"):
        soft_neighbourhood_density(near, temperature=0)
    rows = normal(300, 3)
    assert soft_neighbourhood_density(rows) == pytest.approx(literal_density(rows.tolist(), 0.05))


def test_scores_are_called_as_recipes_call_them() -> None:
    assert list(SCORES) == ["entropy", "infomax", "density"]
    assert target_entropy(torch.zeros(1, 4)) == pytest.approx(math.log(4))
    assert density_score(torch.zeros(2, 3)) == 0


def test_the_line_lies_halfway_however_uneven_the_domains_are() -> None:
    """Means two deviations apart: an error of Phi(-1), though nine in ten rows are of the source."""
    source, target = normal(3600, 2), normal(400, 2, seed=1)
    target[:, 0] += 2
    error = 0.5 * math.erfc(1 / math.sqrt(2))
    assert proxy_a_distance(source, target) == pytest.approx(2 * (1 - 2 * error), abs=0.15)
    assert proxy_a_distance(target, source) == pytest.approx(2 * (1 - 2 * error), abs=0.15)
