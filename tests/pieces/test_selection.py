"""Each selector against a slow literal version; spec 08 section 10a (16), and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenhand.pieces.deepfool import deepfool_norm
from evenhand.pieces.kmeans import central_samples
from evenhand.pieces.pool import check_matrix, draw
from evenhand.pieces.selection import (
    aada_select,
    badge_select,
    clue_select,
    confidence_select,
    coreset_select,
    dfal_select,
    entropy_select,
    gradient_distances,
    kmeans_select,
    margin_select,
    random_select,
)
from helpers import seeded


def pool(n: int, classes: int = 4, d: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Predictions (n, classes) and features (n, d)."""
    g = seeded(seed)
    return (2 * torch.randn(n, classes, generator=g)).softmax(1), torch.randn(n, d, generator=g)


def ranked(scores: list[float], budget: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:budget]  # stable: lowest index first


def entropies(p: Tensor) -> list[float]:
    return [-sum(sorted(q * math.log(q) for q in row if q > 0)) for row in p.tolist()]


SELECTORS: dict[str, Callable[[Tensor, Tensor, int], list[int]]] = {
    "entropy": lambda p, _, b: entropy_select(p, b),
    "margin": lambda p, _, b: margin_select(p, b),
    "confidence": lambda p, _, b: confidence_select(p, b),
    "aada": lambda p, g, b: aada_select(p, g[:, 0], b),
    "dfal": lambda _, g, b: dfal_select(g[:, 0].abs(), b),
    "coreset": lambda _, g, b: coreset_select(g, b),
    "badge": lambda p, g, b: badge_select(p, g, b, generator=seeded(1)),
    "clue": lambda p, g, b: clue_select(p, g, b, temperature=0.5, generator=seeded(1)),
    "kmeans": lambda _, g, b: kmeans_select(g, b, generator=seeded(1)),
    "random": lambda p, _, b: random_select(len(p), b, generator=seeded(1)),
}


@pytest.mark.parametrize("name", SELECTORS)
@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 30), copies=st.integers(1, 3), seed=st.integers(0, 999), data=st.data())
def test_as_many_as_asked_distinct_and_repeatable(
    name: str, n: int, copies: int, seed: int, data: st.DataObject
) -> None:
    p, g = (x.repeat(copies, 1) for x in pool(n, seed=seed))
    if data.draw(st.booleans()):  # sure predictions: zero entropies and zero gradients
        p = nn.functional.one_hot(p.argmax(1), 4).float()
    budget = data.draw(st.integers(0, len(p)))
    picks = SELECTORS[name](p, g, budget)
    assert len(picks) == len(set(picks)) == budget
    assert all(type(i) is int and 0 <= i < len(p) for i in picks)
    assert picks == SELECTORS[name](p, g, budget)


@pytest.mark.parametrize("name", ["entropy", "margin", "confidence", "aada", "dfal", "coreset"])
def test_a_smaller_budget_takes_the_first_picks(name: str) -> None:
    p, g = pool(30)
    assert SELECTORS[name](p, g, 7) == SELECTORS[name](p, g, 30)[:7]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), classes=st.integers(2, 6), seed=st.integers(0, 999), data=st.data())
def test_scores_against_literal_versions(n: int, classes: int, seed: int, data: st.DataObject) -> None:
    p, g = pool(n, classes, seed=seed)
    p = p.double()
    budget = data.draw(st.integers(0, n))
    rows = [sorted(row, reverse=True) for row in p.tolist()]
    assert entropy_select(p, budget) == ranked(entropies(p), budget)
    assert confidence_select(p, budget) == ranked([-row[0] for row in rows], budget)
    assert margin_select(p, budget) == ranked([row[1] - row[0] for row in rows], budget)
    ratio = [math.exp(z) * h for z, h in zip(g[:, 0].double().tolist(), entropies(p), strict=True)]
    assert aada_select(p, g[:, 0], budget) == ranked(ratio, budget)


def test_ties_go_to_the_lowest_index() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.4, 0.3, 0.3], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])
    for select in (entropy_select, margin_select, confidence_select):
        assert select(p, 5) == [2, 4, 0, 1, 3]
    assert aada_select(p, torch.zeros(5), 5) == [2, 4, 0, 1, 3]
    assert dfal_select(torch.tensor([2.0, 1.0, 1.0, 2.0]), 4) == [1, 2, 0, 3]
    assert coreset_select(torch.tensor([[0.0], [1.0], [-1.0], [0.0]]), 4) == [0, 1, 2, 3]


def test_aada_at_even_odds_is_entropy_and_no_ratio_overflows_10a_16() -> None:
    p, _ = pool(50)
    assert aada_select(p, torch.zeros(50), 50) == entropy_select(p, 50)
    assert aada_select(p, torch.full((50,), 1000.0), 50) == entropy_select(p, 50)
    alike = p[:1].repeat(3, 1)
    assert aada_select(alike, torch.tensor([-1.0, 2.0, 0.0]), 3) == [1, 2, 0]  # the most target-like first


def test_two_classes_rank_alike_by_entropy_margin_and_confidence_10a_16() -> None:
    q = torch.rand(60, generator=seeded())
    p = torch.stack([q, 1 - q], 1)
    assert entropy_select(p, 60) == margin_select(p, 60) == confidence_select(p, 60)
    assert margin_select(torch.tensor([[1.0, 0.0], [0.6, 0.4]]), 2) == [1, 0]


def literal_coreset(g: Tensor, budget: int, labelled: Tensor | None) -> list[int]:
    picks: list[int] = []
    while len(picks) < budget:
        best, where = -1.0, -1
        for i in range(len(g)):
            if i not in picks:
                centres = [g[j] for j in picks] + ([] if labelled is None else list(labelled))
                near = min((float((g[i] - c).norm()) for c in centres), default=0.0)
                if near > best:
                    best, where = near, i
        picks.append(where)
    return picks


@pytest.mark.parametrize("known", [None, 0, 1, 70])
def test_coreset_is_k_centre_greedy_and_counts_what_is_labelled(known: int | None) -> None:
    _, g = pool(25, seed=3)
    labelled = None if known is None else torch.randn(known, 5, generator=seeded(9))
    picks = coreset_select(g, 12, labelled=labelled)
    assert picks == literal_coreset(g, 12, labelled)
    assert known or picks[0] == 0


def test_badge_distances_are_those_of_explicit_gradients_10a_16() -> None:
    p, g = (x.double() for x in pool(20, seed=2))
    residual = p - nn.functional.one_hot(p.argmax(1), 4)
    explicit = (residual[:, :, None] * g[:, None, :]).flatten(1)
    norm = residual.square().sum(1) * g.square().sum(1)
    for j in range(20):
        torch.testing.assert_close(gradient_distances(residual, g, norm, j), (explicit - explicit[j]).square().sum(1))
    # and these are the gradients of the last layer for the predicted class
    head = nn.Linear(5, 4, bias=False, dtype=torch.float64)
    x = torch.randn(1, 5, dtype=torch.float64)
    z = head(x)
    nn.functional.cross_entropy(z, z.argmax(1)).backward()
    q = z.softmax(1).detach()
    assert head.weight.grad is not None
    torch.testing.assert_close(head.weight.grad, (q - nn.functional.one_hot(q.argmax(1), 4)).T @ x)


def test_badge_against_k_means_plus_plus_on_explicit_gradients() -> None:
    p, g = (x.double() for x in pool(40, seed=5))
    v = ((p - nn.functional.one_hot(p.argmax(1), 4))[:, :, None] * g[:, None, :]).flatten(1)
    random = seeded(8)
    picks = [int(v.norm(dim=1).argmax())]
    while len(picks) < 15:
        odds = torch.stack([(v - v[j]).square().sum(1) for j in picks]).min(0).values
        aim = float(torch.rand((), generator=random, dtype=torch.float64) * odds.sum())
        picks.append(next(i for i in range(40) if float(odds[: i + 1].sum()) > aim))
    assert badge_select(p, g, 15, generator=seeded(8)) == picks


def test_badge_of_copies_does_not_pick_a_copy_while_others_are_left() -> None:
    p, g = pool(6, seed=1)
    picks = badge_select(p.repeat(50, 1), g.repeat(50, 1), 8, generator=seeded())
    assert {i % 6 for i in picks[:6]} == set(range(6))


def test_draws_follow_the_weights_and_never_hit_a_zero() -> None:
    g, weights = seeded(), torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0])
    found = torch.bincount(torch.tensor([draw(weights, g) for _ in range(4000)]), minlength=5) / 4000
    torch.testing.assert_close(found, weights / 4, atol=0.03, rtol=0)
    assert found[0] == found[2] == found[4] == 0


def blobs(sizes: list[int], spread: float = 0.1) -> Tensor:
    g = seeded(3)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    return torch.cat([c + spread * torch.randn(n, 2, generator=g) for c, n in zip(centres, sizes, strict=False)])


def test_k_means_takes_the_centre_of_each_blob_largest_first() -> None:
    sizes = [20, 60, 40]
    x = blobs(sizes)
    picks = kmeans_select(x, 3, generator=seeded())
    ends = [0, 20, 80, 120]
    assert [next(b for b in range(3) if ends[b] <= i < ends[b + 1]) for i in picks] == [1, 2, 0]
    for i, b in zip(picks, [1, 2, 0], strict=True):
        part = x[ends[b] : ends[b + 1]]
        assert i - ends[b] == int((part - part.mean(0)).norm(dim=1).argmin())


def test_k_means_against_a_literal_version() -> None:
    """From the same seeds (all weight on as many samples as clusters), Lloyd's iterations in loops."""
    x = torch.randn(60, 3, generator=seeded(2), dtype=torch.float64)
    w = torch.rand(60, generator=seeded(3), dtype=torch.float64)
    from evenhand.pieces.kmeans import _seeds

    centred = x - x.mean(0)
    centres = list(_seeds(centred, w, 5, seeded(7)))
    for _ in range(50):
        near = [min(range(5), key=lambda c: float((row - centres[c]).norm())) for row in centred]
        centres = [
            sum(w[i] * centred[i] for i in range(60) if near[i] == c) / sum(w[i] for i in range(60) if near[i] == c)
            for c in range(5)
        ]
    mass = [float(sum(w[i] for i in range(60) if near[i] == c)) for c in range(5)]
    expected = [min(range(60), key=lambda i: float((centred[i] - centres[c]).norm())) for c in ranked(mass, 5)]
    assert len(set(expected)) == 5
    assert central_samples(x, w, 5, generator=seeded(7)) == expected


def test_clue_leans_to_the_uncertain_and_weighs_at_its_temperature() -> None:
    x = torch.linspace(0, 1, 11)[:, None]
    p = torch.full((11, 2), 0.5)
    p[:8] = torch.tensor([1.0, 0.0])  # sure: weightless
    assert clue_select(p, x, 1, temperature=1.0, generator=seeded()) == [9]  # centre of 8, 9, 10
    assert kmeans_select(x, 1, generator=seeded()) == [5]
    # As temperature falls the weight of 0.6 / 0.4 falls against that of even odds: the centre moves there.
    q = torch.tensor([[0.6, 0.4]] * 10 + [[0.5, 0.5]])
    assert clue_select(q, x, 1, temperature=1.0, generator=seeded()) == [5]
    assert clue_select(q, x, 1, temperature=0.05, generator=seeded()) == [10]


def test_random_is_even_and_its_generators() -> None:
    g = seeded()
    counts = torch.bincount(torch.tensor([random_select(10, 3, generator=g) for _ in range(2000)]).flatten())
    torch.testing.assert_close(counts / 2000, torch.full((10,), 0.3), atol=0.04, rtol=0)


def test_deepfool_of_a_linear_model_is_the_distance_to_the_nearest_boundary() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(6, 4).double(), torch.randn(12, 6, dtype=torch.float64)
    with torch.no_grad():
        z = net(x)
        expected = []
        for i in range(12):
            y = int(z[i].argmax())
            ways = [float((z[i, y] - z[i, k]) / (net.weight[y] - net.weight[k]).norm()) for k in range(4) if k != y]
            expected.append(min(ways))
    torch.testing.assert_close(deepfool_norm(net, x), torch.tensor(expected, dtype=torch.float64))


def test_deepfool_goes_on_from_where_the_longer_step_led() -> None:
    """``z = (x^2 + x, 0)`` from 2: a Newton step from 2 + 1.02 r at a time, until 2 + 1.02 r < 0."""

    class Curved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x**2 + x, torch.zeros_like(x)], 1)

    r, steps = 0.0, 0
    while (at := 2 + 1.02 * r) > 0 and steps < 50:
        r, steps = r - (at**2 + at) / (2 * at + 1), steps + 1
    assert 3 < steps < 50
    (found,) = deepfool_norm(Curved(), torch.tensor([[2.0]], dtype=torch.float64))
    assert float(found) == pytest.approx(-r, rel=1e-9)


def test_deepfool_reaches_another_class_of_a_network_and_leaves_it_alone() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 3))
    x = torch.randn(10, 3, 2, 2)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    norms = deepfool_norm(net, x)
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(w.grad is None for w in net.parameters())
    net.eval()
    # No random direction of a hundredth of that length changes a class, and ranking by it puts the nearest first.
    with torch.no_grad():
        noise = torch.randn(50, *x.shape)
        noise *= 0.01 * norms.view(1, -1, 1, 1, 1) / noise.flatten(2).norm(dim=2)[..., None, None, None]
        assert all(torch.equal(net(x + r).argmax(1), net(x).argmax(1)) for r in noise)
    assert dfal_select(norms, 3) == norms.argsort()[:3].tolist()


def test_a_wrong_shape_is_told_with_the_one_expected() -> None:
    for sizes, wanted in (({}, r"\(N, d\)"), ({"rows": 2}, r"\(2, d\)"), ({"rows": 2, "columns": 5}, r"\(2, 5\)")):
        with pytest.raises(ValueError, match=rf"x of shape \(3,\): expected {wanted}"):
            check_matrix("x", torch.zeros(3), **sizes)


def test_deepfool_where_nothing_leads_anywhere() -> None:
    net = nn.Linear(3, 2)
    nn.init.zeros_(net.weight)
    norms = deepfool_norm(net, torch.randn(4, 3))
    assert (norms == torch.finfo(torch.float32).max).all()
    assert dfal_select(norms, 2) == [0, 1]
    with pytest.raises(ValueError, match="iterations=0"):
        deepfool_norm(net, torch.randn(4, 3), iterations=0)


P, G = torch.full((5, 3), 1 / 3), torch.ones(5, 2)


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("budget", [6, -1, 1.5])
def test_budget_outside_the_pool_is_named(name: str, budget: int) -> None:
    with pytest.raises(ValueError, match=f"budget={budget}"):
        SELECTORS[name](P, G, budget)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: entropy_select(torch.randn(5, 3), 2), "softmax"),
        (lambda: margin_select(torch.ones(5, 1), 2), "2 or more classes"),
        (lambda: confidence_select(P[0], 2), "probs of shape"),
        (lambda: entropy_select(P.index_fill(0, torch.tensor([3]), torch.nan), 2), "probs: 1 rows .* first row 3"),
        (lambda: aada_select(P, torch.ones(4), 2), "target_logit of shape"),
        (lambda: aada_select(P, torch.full((5,), torch.inf), 2), "target_logit: 5 rows"),
        (lambda: coreset_select(G * torch.nan, 2), "features: 5 rows"),
        (lambda: coreset_select(G, 2, labelled=torch.ones(3, 4)), "labelled of shape"),
        (lambda: badge_select(P, G[:4], 2, generator=seeded()), "features of shape"),
        (lambda: clue_select(P, G[:4], 2, temperature=1.0, generator=seeded()), "features of shape"),
        (lambda: clue_select(P, G, 2, temperature=0.0, generator=seeded()), "temperature=0.0"),
        (lambda: kmeans_select(G[0], 2, generator=seeded()), "features of shape"),
        (lambda: dfal_select(torch.tensor([1.0, torch.nan]), 1), "norms: 1 rows"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named) as error:
        call()
    assert "\n" not in str(error.value)
