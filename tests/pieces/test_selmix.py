"""Pair gains against finite differences, literal loops and closed forms, and the numbers of spec 07, section 10a."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.data import longtail_counts, unlabelled_counts
from evenhand.measure.confusion import coverages, f_beta, g_mean, h_mean, mean_recall, min_recall, recalls
from evenhand.pieces.cost_sensitive import update_min_recall_duals
from evenhand.pieces.selmix import pair_distribution, pair_entropy, pair_gain
from evenhand.pieces.selmix_objectives import coverage_duals, smoothed, soft_min_duals, soft_min_recall, under_coverage
from evenhand.pieces.slope import logit_slope

Metric = Callable[[Tensor], Tensor]
K, D = 5, 4
HEAD_TAIL = [[0, 1, 2, 3], [4]]


def soft_min(C: Tensor) -> Tensor:
    return soft_min_recall(C, sharpness=4.0)


def soft_min_head_tail(C: Tensor) -> Tensor:
    return soft_min_recall(C, sharpness=4.0, groups=HEAD_TAIL)


PLAIN: dict[str, Metric] = {
    "mean": mean_recall,
    "g-mean": g_mean,
    "h-mean": h_mean,
    "min": soft_min,
    "min-head-tail": soft_min_head_tail,
}
COVERED = {f"{name}+coverage": under_coverage(metric, tolerance=0.1) for name, metric in PLAIN.items()}
GROUP_COVERED = {
    f"{name}+head-tail-coverage": under_coverage(metric, groups=HEAD_TAIL, tolerance=0.1)
    for name, metric in PLAIN.items()
}
OBJECTIVES = PLAIN | COVERED | GROUP_COVERED
each_objective = pytest.mark.parametrize("metric", OBJECTIVES.values(), ids=OBJECTIVES)


class Problem:
    """One point per class, so that C(W) = prior softmax(W z + b) is differentiable and the gain is exact."""

    def __init__(self, seed: int = 0, classes: int = K, width: int = D) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.Z = torch.randn(classes, width, generator=chance, dtype=torch.float64)
        self.W = self.Z * 0.3 + 0.3 * torch.randn(classes, width, generator=chance, dtype=torch.float64)
        self.b = torch.randn(classes, generator=chance, dtype=torch.float64)
        self.prior = torch.rand(classes, generator=chance, dtype=torch.float64).add(0.2)
        self.prior /= self.prior.sum()

    def confusion(self, W: Tensor, b: Tensor | None) -> Tensor:
        return self.prior[:, None] * F.linear(self.Z, W, b).softmax(1)

    def directions(self, keep: float, b: Tensor | None) -> Tensor:
        """(K, K, K, d + 1): minus autograd's gradient of the mixed prototypes' loss, weights then bias."""
        W, free = self.W.clone().requires_grad_(), torch.zeros_like(self.b).requires_grad_()
        found = []
        for i, j in itertools.product(range(len(self.Z)), repeat=2):
            mixed = keep * self.Z[i] + (1 - keep) * self.Z[j]
            loss = F.cross_entropy(F.linear(mixed, W, free if b is None else b + free), torch.tensor(i))
            found.append(-torch.cat([g.view(len(W), -1) for g in torch.autograd.grad(loss, (W, free))], 1))
        return torch.stack(found).view(len(W), len(W), len(W), -1)

    def literal(self, metric: Metric, C: Tensor, b: Tensor | None, keep: float) -> Tensor:
        """G_ij = sum_kl A_kl (V_ij^T z_k)_l, A by autograd through C = prior softmax(logits)."""
        logits = C.log().requires_grad_()
        (A,) = torch.autograd.grad(metric(C.sum(1, keepdim=True) * logits.softmax(1)), logits)
        V = self.directions(keep, b)
        G = torch.zeros(len(C), len(C), dtype=torch.float64)
        for i, j, k in itertools.product(range(len(C)), repeat=3):
            moved = V[i, j, :, :-1] @ self.Z[k] + (0 if b is None else V[i, j, :, -1])  # (K,) logits at z_k
            G[i, j] += (A[k] * moved).sum()
        return G


def some_confusion(seed: int = 1, classes: int = K) -> Tensor:
    C = torch.rand(classes, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.05
    C = C + torch.diag(torch.linspace(0.1, 2, classes, dtype=torch.float64))
    return C / C.sum()


def frozen(metric: Metric, C: Tensor) -> Metric:
    """The objective with its multipliers held at C, which is what a step sees."""
    name = next(name for name, known in OBJECTIVES.items() if known is metric)
    base, _, floors = name.partition("+")
    groups = HEAD_TAIL if base == "min-head-tail" else None
    values = recalls(C) if groups is None else torch.stack([recalls(C)[g].mean() for g in groups])
    duals = torch.exp(-4 * values) / torch.exp(-4 * values).sum()
    plain = PLAIN[base] if "min" not in base else lambda C: soft_min_recall(C, groups=groups, duals=duals)
    if not floors:
        return plain
    cover = HEAD_TAIL if "head-tail" in floors else [[k] for k in range(len(C))]
    rule = [max(0.0, 100 * (1 - math.exp((float(coverages(C)[g].mean()) - 0.95 / K) / 0.1))) for g in cover]

    def constrained(C: Tensor) -> Tensor:
        excess = sum(r * (coverages(C)[g].mean() - 0.95 / K) for r, g in zip(rule, cover, strict=True))
        return (plain(C) + excess) / (1 + max(rule))

    return constrained


@each_objective
@pytest.mark.parametrize("with_bias", [False, True])
def test_trap_15_the_gain_matches_finite_differences(metric: Metric, with_bias: bool) -> None:
    """Spec 10a.3: the change of the metric per small step on the mix of class i with class j under label i."""
    at = Problem()
    b = at.b if with_bias else None
    C = at.confusion(at.W, b)
    held = frozen(metric, C)
    gain, V, step = pair_gain(metric, C, at.Z, at.W, bias=b, keep=0.8), at.directions(0.8, b), 1e-6
    assert float(gain.abs().max()) > 1e-3
    for i, j in itertools.product(range(K), repeat=2):
        moves = (step * V[i, j], -step * V[i, j])
        up, down = (held(at.confusion(at.W + m[:, :-1], None if b is None else b + m[:, -1])) for m in moves)
        assert float(gain[i, j]) == pytest.approx(float(up - down) / (2 * step), abs=1e-8)


@each_objective
@pytest.mark.parametrize(("with_bias", "keep"), [(True, 0.8), (False, 0.5)])
def test_fast_form_is_the_literal_one(metric: Metric, with_bias: bool, keep: float) -> None:
    at, C = Problem(3), some_confusion()
    b = at.b if with_bias else None
    found = pair_gain(metric, C, at.Z, at.W, bias=b, keep=keep)
    torch.testing.assert_close(found, at.literal(metric, C, b, keep), atol=1e-12, rtol=0)


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(1, 6), st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_any_size(seed: int, classes: int, width: int, keep: float) -> None:
    at, C = Problem(seed, classes, width), some_confusion(seed, classes)
    found = pair_gain(f_beta, C, at.Z, at.W, bias=at.b, keep=keep)
    torch.testing.assert_close(found, at.literal(f_beta, C, at.b, keep), atol=1e-12, rtol=0)


def test_einsum_form_and_bias_as_a_feature() -> None:
    at, C, keep = Problem(5), some_confusion(), 0.8
    Z, W = torch.cat([at.Z, torch.ones(K, 1)], 1), torch.cat([at.W, at.b[:, None]], 1)
    mixed = keep * Z[:, None] + (1 - keep) * Z  # (i, j, d)
    change = torch.eye(K)[:, None] - (mixed @ W.T).softmax(-1)  # (i, j, l)
    einsum = torch.einsum("kl,ijd,kd,ijl->ij", logit_slope(h_mean, C), mixed, Z, change)
    torch.testing.assert_close(pair_gain(h_mean, C, at.Z, at.W, bias=at.b), einsum, atol=1e-12, rtol=0)
    torch.testing.assert_close(pair_gain(h_mean, C, Z, W), einsum, atol=1e-12, rtol=0)


def test_directions_of_the_mixed_loss() -> None:
    """Spec 10a.6: V_ij = zeta_ij (e_i - p_ij)^T, whose columns sum to 0."""
    at, keep = Problem(), 0.8
    V = at.directions(keep, at.b)
    for i, j in itertools.product(range(K), repeat=2):
        mixed = keep * at.Z[i] + (1 - keep) * at.Z[j]
        change = torch.eye(K, dtype=torch.float64)[i] - F.linear(mixed, at.W, at.b).softmax(0)
        torch.testing.assert_close(V[i, j, :, :-1], torch.outer(change, mixed))
    assert float(V.sum(2).abs().max()) < 1e-12


@each_objective
def test_slope_in_the_logits(metric: Metric) -> None:
    """Spec 10a.1 and 10a.2: central differences under uneven priors; rows sum to 0."""
    C, step = some_confusion(), 1e-5
    held, A, prior = frozen(metric, C), logit_slope(metric, C), C.sum(1, keepdim=True)
    assert float(A.sum(1).abs().max()) < 1e-15
    for i, j in itertools.product(range(K), repeat=2):
        nudge = torch.zeros_like(C)
        nudge[i, j] = step
        up, down = (held(prior * (C.log() + n).softmax(1)) for n in (nudge, -nudge))
        assert float(A[i, j]) == pytest.approx(float(up - down) / (2 * step), abs=1e-8)


def test_slope_in_closed_form() -> None:
    """The table of spec 2.3."""
    C = some_confusion()
    prior, r, cov = C.sum(1, keepdim=True), recalls(C), coverages(C)
    R = C / prior
    away = torch.eye(K) - R
    lam = soft_min_duals(r, 4.0)
    torch.testing.assert_close(logit_slope(mean_recall, C), r[:, None] / K * away)
    torch.testing.assert_close(logit_slope(g_mean, C), g_mean(C) / K * away)
    torch.testing.assert_close(logit_slope(h_mean, C), h_mean(C) ** 2 / (K * r[:, None]) * away)
    torch.testing.assert_close(logit_slope(soft_min, C), (lam * r)[:, None] * away)
    head, tail = soft_min_duals(torch.stack([r[:4].mean(), r[4]]), 4.0)
    both = torch.tensor([head / 4] * 4 + [tail], dtype=torch.float64)
    torch.testing.assert_close(logit_slope(soft_min_head_tail, C), (both * r)[:, None] * away)
    lam = coverage_duals(cov, 0.95 / K, tolerance=0.1)
    pulled = C * (lam - (R * lam).sum(1, keepdim=True))
    wanted = (r[:, None] / K * away + pulled) / (1 + lam.max())
    torch.testing.assert_close(logit_slope(COVERED["mean+coverage"], C), wanted)
    head, tail = coverage_duals(torch.stack([cov[:4].mean(), cov[4]]), 0.95 / K, tolerance=0.1)
    lam = torch.tensor([head / 4] * 4 + [tail], dtype=torch.float64)
    pulled = C * (lam - (R * lam).sum(1, keepdim=True))
    wanted = (h_mean(C) ** 2 / (K * r[:, None]) * away + pulled) / (1 + max(head, tail))
    torch.testing.assert_close(logit_slope(GROUP_COVERED["h-mean+head-tail-coverage"], C), wanted)


@pytest.mark.parametrize("metric", PLAIN.values(), ids=PLAIN)
def test_nothing_to_gain_once_perfect(metric: Metric) -> None:
    C = torch.diag(torch.tensor([0.4, 0.3, 0.1, 0.1, 0.1], dtype=torch.float64))
    assert not logit_slope(metric, C).any()
    assert not pair_gain(metric, C, Problem().Z, Problem().W).any()


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_a_plain_step_cannot_hurt_where_prototypes_are_orthogonal(seed: int) -> None:
    """Spec 10a.5."""
    W = torch.randn(K, K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert (pair_gain(mean_recall, some_confusion(seed), torch.eye(K), W).diagonal() >= 0).all()


def test_legacy_is_the_released_formula() -> None:
    """Their tensor [i, j, q, l]: -(zeta_ij . z_q) p_ij,l, plus z_i . z_q where l = i; the bias only predicts."""
    at, C, keep = Problem(7), some_confusion(), 0.8
    mixed = keep * at.Z[:, None] + (1 - keep) * at.Z
    rate = -torch.einsum("ijd,qd,ijl->ijql", mixed, at.Z, F.linear(mixed, at.W, at.b).softmax(-1))
    for i, q in itertools.product(range(K), repeat=2):
        rate[i, :, q, i] += at.Z[i] @ at.Z[q]
    wanted = torch.einsum("ql,ijql->ij", logit_slope(mean_recall, C), rate)
    found = pair_gain(mean_recall, C, at.Z, at.W, bias=at.b, keep=keep, legacy=True)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    exact = pair_gain(mean_recall, C, at.Z, at.W, keep=keep)
    off = (pair_gain(mean_recall, C, at.Z, at.W, keep=keep, legacy=True) - exact).abs() / exact.abs().max()
    assert float(off.diagonal().max()) < 1e-12  # unmixed pairs agree
    assert float(off.max()) > 0.01  # mixed ones do not


@pytest.mark.parametrize("size", [1e3, 1e5])
def test_extreme_logits(size: float) -> None:
    at, C = Problem(), some_confusion()
    found = pair_gain(mean_recall, C, at.Z, at.W * size, bias=at.b)
    torch.testing.assert_close(found, at_scale(at, size).literal(mean_recall, C, at.b, 0.8), atol=1e-11, rtol=0)


def at_scale(problem: Problem, size: float) -> Problem:
    problem.W = problem.W * size
    return problem


def test_inputs_are_constants_of_any_kind() -> None:
    at, C = Problem(), some_confusion()
    head = torch.nn.Linear(D, K)
    found = pair_gain(mean_recall, C.float(), at.Z.float(), head.weight, bias=head.bias)
    assert found.dtype == torch.float64
    assert not found.requires_grad
    with torch.no_grad():
        listed = pair_gain(mean_recall, C.tolist(), at.Z.numpy(), head.weight, bias=head.bias.tolist())
    torch.testing.assert_close(found, listed, atol=1e-5, rtol=0)


def test_one_class() -> None:
    gain = pair_gain(mean_recall, torch.ones(1, 1), torch.ones(1, 3), torch.ones(1, 3))
    assert gain.tolist() == [[0.0]]
    assert pair_distribution(gain, 10.0).tolist() == [[1.0]]
    assert smoothed(torch.ones(1, 1), 5).tolist() == [[1.0]]


@each_objective
def test_a_class_absent_from_validation_has_no_say(metric: Metric) -> None:
    at, C = Problem(), some_confusion()
    C[2] = 0
    C = C / C.sum()
    assert not logit_slope(metric, C)[2].any()
    gain = pair_gain(metric, C, at.Z, at.W, bias=at.b)
    assert gain.isfinite().all()
    assert float(pair_distribution(gain, 10.0, relative=True).sum()) == pytest.approx(1)


def test_the_soft_minimum_leaves_absent_classes_and_groups_out() -> None:
    C = torch.tensor([[0.3, 0.2, 0.0], [0.1, 0.4, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert float(soft_min_recall(C, sharpness=1e6)) == pytest.approx(0.6)
    assert float(soft_min_recall(C, sharpness=1e6, groups=[[1, 2], [0]])) == pytest.approx(0.6)
    assert float(soft_min_recall(C, sharpness=1e6, groups=[[0, 1], [2]])) == pytest.approx(0.7)
    assert logit_slope(lambda C: soft_min_recall(C, groups=[[0, 1], [2]]), C).isfinite().all()


def label_share(metric: Metric, C: Tensor, label: int, **options: float) -> float:
    Z = F.normalize(Problem(0, len(C), 16).Z, dim=1) * 3
    return float(pair_distribution(pair_gain(metric, C, Z, Z), 10.0, relative=True, **options)[label].sum())


def never_found() -> Tensor:
    R = torch.full((10, 10), 0.02, dtype=torch.float64).fill_diagonal_(0.82)
    R[9] = torch.tensor([0.5, 0.5] + [0.0] * 8)
    return R / 10


@pytest.mark.parametrize("metric", [g_mean, h_mean, soft_min_recall])
def test_zero_recall_does_not_silence(metric: Metric) -> None:
    """Class 9 is never found: as counted it would have no say, but a share of 0 counts as nearly 0."""
    C = never_found()
    assert not logit_slope(metric, C)[9].any()
    assert label_share(metric, C, 9) > 0.9
    assert label_share(metric, smoothed(C, samples=1000), 9) > 0.9


def test_mean_recall_leaves_a_class_at_zero_recall_to_the_floor() -> None:
    """Its gain is near 0 there whatever the count: a first-order truth about mean recall, not a lost class."""
    C = smoothed(never_found(), samples=1000)
    assert logit_slope(mean_recall, C)[9, 9] > 0
    assert label_share(mean_recall, C, 9) < 0.01
    assert label_share(mean_recall, C, 9, floor=1 / 10**3) > 0.009


def test_smoothing_counts_one_found_and_one_missed() -> None:
    counts = torch.tensor([[6.0, 2.0, 0.0], [0.0, 0.0, 4.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    C = smoothed(counts / 12, samples=12)
    torch.testing.assert_close(C[0] * 12 / 8, torch.tensor([7.0, 2.5, 0.5], dtype=torch.float64) / 10)
    torch.testing.assert_close(C[1] * 12 / 4, torch.tensor([0.5, 1.0, 4.5], dtype=torch.float64) / 6)
    torch.testing.assert_close(C.sum(1), counts.sum(1) / 12)  # priors stay, an absent class stays absent
    torch.testing.assert_close(smoothed(counts / 12, 12, count=0)[:2], counts[:2] / 12)


def random_gain(seed: int = 0) -> Tensor:
    return torch.randn(K, K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distribution_is_one_masked_softmax() -> None:
    """Spec 10a.7."""
    G = random_gain()
    P = pair_distribution(G, 2.0)
    wanted = torch.exp(2 * G) * (G > 0)
    torch.testing.assert_close(P, wanted / wanted.sum())
    assert float(P.sum()) == pytest.approx(1)
    assert (P[G <= 0] == 0).all()
    torch.testing.assert_close(pair_distribution(G, 0.0), (G > 0) / (G > 0).sum().double())
    assert int(pair_distribution(G, 1e6).argmax()) == int(G.argmax())
    assert float(pair_distribution(G, 1e6).max()) == 1
    torch.testing.assert_close(pair_distribution(torch.where(G > 0, G + 3, G), 2.0), P)
    for none in (-G.abs(), torch.zeros(K, K)):
        assert pair_distribution(none, 10.0).flatten().tolist() == pytest.approx([1 / K**2] * K**2)
        assert pair_distribution(none, 10.0, relative=True).flatten().tolist() == pytest.approx([1 / K**2] * K**2)


def test_relative_scale_is_free_of_the_gain_s_size() -> None:
    G = random_gain()
    torch.testing.assert_close(pair_distribution(G, 3.0, relative=True), pair_distribution(G / G.max(), 3.0))
    torch.testing.assert_close(
        pair_distribution(G * 1e-9, 3.0, relative=True), pair_distribution(G, 3.0, relative=True)
    )


def test_floor_is_a_uniform_part() -> None:
    """Spec 2.6: the released sampler's 1 / K^3 is a uniform component of mass 1 / (K + 1), 9.1 % for K = 10."""
    G = torch.randn(10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    P, floored = pair_distribution(G, 2.0), pair_distribution(G, 2.0, floor=1 / 10**3)
    torch.testing.assert_close(floored, P * 10 / 11 + 1 / 11 / 100)
    assert float(floored[G <= 0].min()) * 100 == pytest.approx(0.0909, abs=1e-4)


def test_entropy() -> None:
    assert float(pair_entropy(torch.full((K, K), 1 / K**2))) == pytest.approx(math.log(K**2), abs=1e-5)
    assert float(pair_entropy(pair_distribution(random_gain(), 1e6))) == 0
    low, high = (float(pair_entropy(pair_distribution(random_gain(), s))) for s in (10.0, 1.0))
    assert low < high < math.log(K**2)


def test_multipliers() -> None:
    """Spec 10a.8 and 10a.11."""
    two = torch.tensor([0.9, 0.5], dtype=torch.float64)
    assert float(soft_min_duals(two, 40.0)[1]) == pytest.approx(1 / (1 + math.exp(-16)), abs=1e-15)
    covered = torch.tensor([0.085, 0.095, 0.2, 0.0], dtype=torch.float64)
    found = coverage_duals(covered, 0.95 / 10, cap=100.0, tolerance=0.01).tolist()
    assert found == pytest.approx([63.212, 0, 0, 99.9925], abs=1e-3)
    C = some_confusion()
    assert float(soft_min_recall(C, sharpness=0.0)) == pytest.approx(float(mean_recall(C)))
    assert float(soft_min_recall(C, sharpness=1e5)) == pytest.approx(float(min_recall(C)))
    even = torch.full((K,), 1 / K, dtype=torch.float64)
    torch.testing.assert_close(update_min_recall_duals(even, recalls(C), 20.0), soft_min_duals(recalls(C), 20.0))


def test_multipliers_with_memory_are_taken_as_given() -> None:
    C = some_confusion()
    duals = [0.1, 0.2, 0.3, 0.4, 0.0]
    assert float(soft_min_recall(C, duals=duals)) == pytest.approx(float((torch.tensor(duals) * recalls(C)).sum()))
    both = under_coverage(mean_recall, groups=HEAD_TAIL, floor=0.2, duals=[0.5, 3.0])
    seen = torch.stack([coverages(C)[:4].mean(), coverages(C)[4]])
    wanted = (mean_recall(C) + 0.5 * (seen[0] - 0.2) + 3 * (seen[1] - 0.2)) / 4
    assert float(both(C)) == pytest.approx(float(wanted))


def test_metrics_of_two_recalls() -> None:
    """Spec 10a.9."""
    C = torch.tensor([[0.5, 0.0], [0.25, 0.25]], dtype=torch.float64)
    found = [float(metric(C)) for metric in (mean_recall, g_mean, h_mean, min_recall)]
    assert found == pytest.approx([0.75, 0.7071, 0.6667, 0.5], abs=1e-4)
    none = torch.tensor([[0.5, 0.0], [0.5, 0.0]], dtype=torch.float64)
    assert float(g_mean(none)) == float(h_mean(none)) == 0
    for seed in range(20):
        h, g, m = (float(metric(some_confusion(seed))) for metric in (h_mean, g_mean, mean_recall))
        assert h <= g <= m


def test_counts_of_the_papers_data() -> None:
    """Spec 10a.10, the table of section 4."""
    assert longtail_counts(1500, 10, 100) == [1500, 899, 539, 323, 193, 116, 69, 41, 25, 15]
    assert unlabelled_counts(3000, 10, 100) == [3000, 1798, 1078, 646, 387, 232, 139, 83, 50, 30]
    assert unlabelled_counts(3000, 10, 100, "uniform") == [3000] * 10
    inverted = unlabelled_counts(3000, 10, 100, "inverted")
    assert inverted == [30, 50, 83, 139, 232, 387, 646, 1078, 1798, 3000]  # the table's 2999 is a rounding error
    assert [sum(longtail_counts(n, 100, 10)) for n in (150, 300, 433, 866)] == [5835, 11720, 16945, 33939]
    assert longtail_counts(450, 10, 10) == [450, 348, 269, 208, 161, 125, 96, 75, 58, 45]


def test_bad_arguments_say_what_to_do() -> None:
    at, C = Problem(), some_confusion()
    unknown = at.Z.clone()
    unknown[3] = math.nan
    for call, said in (
        (lambda: pair_gain(lambda C: C.trace() * math.nan, C, at.Z, at.W), "metric returned nan: guard its division"),
        (lambda: pair_gain(lambda C: C.trace().item(), C, at.Z, at.W), "metric returned .*: expected one number"),
        (lambda: pair_gain(lambda C: (C - C).sum().sqrt(), C, at.Z, at.W), "metric: derivative .* at C"),
        (lambda: pair_gain(recalls, C, at.Z, at.W), "metric returned .*: expected one number"),
        (lambda: pair_gain(mean_recall, C * 500, at.Z, at.W), "confusion sums to 500: expected shares"),
        (lambda: pair_gain(mean_recall, C[:4], at.Z, at.W), r"confusion of shape \(4, 5\)"),
        (lambda: pair_gain(mean_recall, C, at.Z[:4], at.W), r"prototypes of shape \(4, 4\): expected \(5, 4\)"),
        (lambda: pair_gain(mean_recall, C, at.Z[0], at.W), r"prototypes of shape \(4,\): expected \(5, 'd'\)"),
        (lambda: pair_gain(mean_recall, C, at.Z, at.W.T), r"head_weight of shape \(4, 5\): expected \(5, 4\)"),
        (lambda: pair_gain(mean_recall, C, at.Z, at.W, bias=at.b[:2]), r"bias of shape \(2,\): expected \(5,\)"),
        (lambda: pair_gain(mean_recall, C, unknown, at.W), r"prototypes\[3\] is not finite: give class 3 validation"),
        (lambda: pair_gain(mean_recall, C, at.Z, at.W, keep=1.2), "keep=1.2: expected a share"),
        (lambda: pair_distribution(torch.tensor([[math.nan]]), 1.0), r"gain\[0, 0\]=nan: must be finite"),
        (lambda: pair_distribution(torch.ones(3), 1.0), r"gain of shape \(3,\)"),
        (lambda: pair_distribution(torch.ones(3, 3), -1.0), "scale=-1.0: expected a finite number"),
        (lambda: pair_distribution(torch.ones(3, 3), math.inf), "scale=inf: expected a finite number"),
        (lambda: soft_min_recall(C, duals=[0.5, 0.5]), r"duals of shape \(2,\): expected \(5,\)"),
        (lambda: under_coverage(mean_recall, floor=[0.1] * 3)(C), r"floor of shape \(3,\): expected \(5,\)"),
        (lambda: smoothed(C, 0), "samples=0"),
    ):
        with pytest.raises(ValueError, match=said) as found:
            call()
        assert "\n" not in str(found.value)


@pytest.mark.parametrize("metric", [g_mean, h_mean])
def test_a_class_of_zero_recall_is_asked_for(metric: Metric) -> None:
    """Spec 07, 2.3: C is clipped at 1e-7, or its row would have no slope and the class would never be drawn."""
    C = torch.tensor([[0.3, 0.03, 0.0], [0.05, 0.28, 0.0], [0.2, 0.14, 0.0]], dtype=torch.float64)
    Z, W = 2 * torch.eye(3).double(), torch.eye(3).double()
    gain = pair_gain(metric, C, Z, W)
    clipped = C.clone()
    clipped[2, 2] = 1e-7
    torch.testing.assert_close(gain, pair_gain(metric, clipped, Z, W), rtol=1e-9, atol=0)
    assert (gain[2] > 0).all()
    assert float(pair_distribution(gain, 50, relative=True)[2].sum()) == pytest.approx(1, abs=1e-6)


def test_a_class_without_samples_stays_silent() -> None:
    C = torch.tensor([[0.5, 0.1, 0.0], [0.1, 0.3, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    Z = W = torch.eye(3).double()
    assert (pair_gain(mean_recall, C, Z, W)[2] <= 0).all()  # there is nothing to gain
