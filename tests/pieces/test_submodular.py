"""S3VAADA's selection against a literal transcription with N x N matrices, and spec 08 section 10a."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenhand.pieces.pairwise import Pairs
from evenhand.pieces.submodular import Pick, pairwise_divergence, submodular_picks, submodular_select, vap_score
from evenhand.pieces.vat import adversarial_direction
from helpers import seeded

P, A, B = (torch.tensor([p], dtype=torch.float64) for p in ([0.5, 0.5], [0.9, 0.1], [0.1, 0.9]))


def pool(n: int, classes: int = 5, seed: int = 0, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    """Predictions (n, classes) and uncertainties (n,) in float64."""
    g = seeded(seed)
    logits = sharpness * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits.softmax(1), torch.rand(n, generator=g, dtype=torch.float64)


def kl_matrix(p: Tensor) -> Tensor:
    """(N, N): row j, column i is KL(h_j || h_i), by loops over classes."""
    n, k = p.shape
    total = torch.zeros(n, n, dtype=torch.float64)
    for c in range(k):
        total += p[:, c, None] * (p[:, c, None].log() - p[None, :, c].log())
    return total


def similarity_matrix(p: Tensor) -> Tensor:
    bc = (p[:, None] * p[None]).sqrt().sum(2)
    return -torch.log(1 - bc.clamp_max(1) + 1e-6)


def scaled(x: Tensor) -> Tensor:
    width = x.max() - x.min()
    return (x - x.min()) / width if width > 1e-12 else torch.zeros_like(x)


def gains(kl: Tensor, s: Tensor, u: Tensor, chosen: list[int], alpha: float, beta: float) -> Tensor:
    """(N,) of spec 2.4, S not empty, matrices scaled already."""
    diversity = kl[chosen].min(0).values
    covered = s[:, chosen].max(1).values
    return alpha * u + beta * diversity + (1 - alpha - beta) * (s - covered[:, None]).clamp_min(0).mean(0)


def lowest_best(gain: Tensor, chosen: list[int]) -> int:
    gain = gain.clone()
    gain[chosen] = -math.inf
    return next(i for i in range(len(gain)) if gain[i] >= gain.max() - 1e-9)


def naive(p: Tensor, u: Tensor, budget: int, alpha: float, beta: float) -> list[int]:
    kl, s, u = scaled(kl_matrix(p)), scaled(similarity_matrix(p)), scaled(u)
    chosen = [int(u.argmax()) if alpha else lowest_best(s.mean(0), [])]
    while len(chosen) < budget:
        chosen.append(lowest_best(gains(kl, s, u, chosen, alpha, beta), chosen))
    return chosen


WEIGHTS = [(0.5, 0.3), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (0.2, 0.0), (0.0, 0.4), (0.7, 0.3), (0.05, 0.05)]


@pytest.mark.parametrize(("alpha", "beta"), WEIGHTS)
def test_picks_are_those_of_the_literal_algorithm(alpha: float, beta: float) -> None:
    for seed in range(4):
        p, u = pool(90, seed=seed)
        expected = naive(p, u, 40, alpha, beta)
        assert submodular_select(p, u, 40, alpha=alpha, beta=beta) == expected


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    classes=st.integers(2, 6),
    copies=st.integers(1, 4),
    weights=st.sampled_from(WEIGHTS),
    block=st.integers(1, 50),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_same_picks_with_copies_and_with_any_block(
    n: int, classes: int, copies: int, weights: tuple[float, float], block: int, seed: int, data: st.DataObject
) -> None:
    p, u = pool(n, classes, seed)
    p, u = p.repeat(copies, 1), (4 * u).round().repeat(copies)  # many exact ties
    alpha, beta = weights
    budget = data.draw(st.integers(0, len(p)))
    picks = submodular_select(p, u, budget, alpha=alpha, beta=beta, block=block)
    assert len(picks) == len(set(picks)) == budget
    assert picks == (naive(p, u, budget, alpha, beta) if budget else [])


def test_block_and_float32_change_no_pick() -> None:
    p, u = pool(300, 12, sharpness=3.0)
    expected = submodular_select(p, u, 60)
    for block in (7, 37, 299, 300, 5000):
        assert submodular_select(p, u, 60, block=block) == expected
    assert submodular_select(p.float(), u.float(), 60) == expected


def test_uncertainty_alone_is_its_ranking_even_beside_an_outlier() -> None:
    p, u = pool(50)
    assert submodular_select(p, u, 50, alpha=1, beta=0) == u.argsort(descending=True).tolist()
    u[7] = 1e12
    assert submodular_select(p, u, 50, alpha=1, beta=0) == u.argsort(descending=True).tolist()


def test_diversity_alone_is_k_centre_greedy_under_kl() -> None:
    p, u = pool(60)
    picks = submodular_select(p, u, 20, alpha=0, beta=1)
    kl = kl_matrix(p)
    for i in range(1, 20):
        rest = kl[picks[:i]].min(0).values
        rest[picks[:i]] = -1
        assert picks[i] == int(rest.argmax())


def test_representativeness_alone_starts_at_the_most_representative() -> None:
    p, u = pool(60)
    assert submodular_select(p, u, 1, alpha=0, beta=0) == [int(similarity_matrix(p).mean(0).argmax())]


def test_divergence_and_similarity_10a_1_and_2() -> None:
    pairs = Pairs(torch.cat([P, A, B]))
    assert pairs.divergence(0)[1].item() == pytest.approx(0.510826, abs=1e-6)
    assert pairs.divergence(1)[2].item() == pytest.approx(1.757780, abs=1e-6)
    assert 1 + 1e-6 - pairs.gap(0)[1].item() == pytest.approx(0.894427, abs=1e-6)
    assert -math.log(pairs.gap(0)[1].item()) == pytest.approx(2.248345, abs=1e-6)
    p, _ = pool(30)
    pairs = Pairs(p)
    kl, bc = kl_matrix(p), (p[:, None] * p[None]).sqrt().sum(2)
    for j in range(30):
        torch.testing.assert_close(pairs.divergence(j), kl[j].clamp_min(0), atol=1e-13, rtol=0)
        torch.testing.assert_close(pairs.gap(j), 1 - bc[:, j] + 1e-6, atol=1e-14, rtol=0)
        assert pairs.divergence(j)[j] < 1e-14
        assert -math.log(pairs.gap(j)[j]) == pytest.approx(13.815511, abs=1e-6)
    assert (bc >= 0).all()
    assert (bc < 1 + 1e-12).all()


@pytest.mark.parametrize(("classes", "sharpness"), [(2, 1.0), (5, 0.1), (12, 3.0), (12, 30.0), (60, 1.0)])
def test_largest_values_over_all_pairs_are_found_without_all_pairs(classes: int, sharpness: float) -> None:
    for seed in range(3):
        p, _ = pool(200, classes, seed, sharpness)
        p = p.clamp_min(1e-38)
        pairs = Pairs(p, block=48)
        assert pairs.largest_divergence() == pytest.approx(float(kl_matrix(p).max()), rel=1e-12)
        least = float((p[:, None] * p[None]).sqrt().sum(2).min())
        assert pairs.largest_gap() == pytest.approx(1 - least + 1e-6, rel=1e-12)


def test_cover_sums_to_the_facility_location_value_in_any_order() -> None:
    p, _ = pool(40)
    s = similarity_matrix(p)
    base = -math.log(1 + 1e-6)  # the similarity of predictions without a common class, which counts 0
    pairs = Pairs(p)
    for order in itertools.permutations([3, 17, 30, 8]):
        nearest, total = torch.full((40,), 1 + 1e-6, dtype=torch.float64), 0.0
        for i in order:
            total += float(pairs.cover(nearest, torch.tensor([i])))
            nearest = torch.minimum(nearest, pairs.gap(i))
        assert total == pytest.approx(float((s[:, list(order)].max(1).values - base).sum()), rel=1e-9)


def test_greedy_without_diversity_keeps_the_guarantee_on_small_pools() -> None:
    for seed in range(5):
        p, u = pool(9, seed=seed)
        s, u = scaled(similarity_matrix(p)), scaled(u)
        for alpha in (0.0, 0.3):

            def value(chosen: tuple[int, ...] | list[int], alpha: float = alpha, s: Tensor = s, u: Tensor = u) -> float:
                cover = s[:, list(chosen)].max(1).values.mean()
                return float(alpha * u[list(chosen)].sum() + (1 - alpha) * cover)

            best = max(value(c) for c in itertools.combinations(range(9), 3))
            assert value(submodular_select(p, u, 3, alpha=alpha, beta=0)) >= (1 - 1 / math.e) * best


@pytest.mark.parametrize(("alpha", "beta"), WEIGHTS)
def test_no_gain_grows_after_the_first_pick(alpha: float, beta: float) -> None:
    p, u = pool(7, 3)
    kl, s, u = scaled(kl_matrix(p)), scaled(similarity_matrix(p)), scaled(u)
    for size in (1, 2, 3, 4):
        for chosen in itertools.combinations(range(7), size):
            before = gains(kl, s, u, list(chosen), alpha, beta)
            for more in set(range(7)) - set(chosen):
                assert (gains(kl, s, u, [*chosen, more], alpha, beta) <= before + 1e-12).all()
    found = [
        alpha * k.uncertainty + beta * k.diversity + (1 - alpha - beta) * k.representativeness
        for k in submodular_picks(p, u, 7, alpha=alpha, beta=beta)
    ]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(found[1:]))


def test_sum_of_diversity_depends_on_the_order_so_there_is_no_guarantee_with_it() -> None:
    p, _ = pool(3, 3)
    kl = kl_matrix(p)
    totals = {
        round(float(kl[a, b] + torch.minimum(kl[a, c], kl[b, c])), 9) for a, b, c in itertools.permutations(range(3))
    }
    assert len(totals) > 1


def test_reasons_are_the_terms_of_the_gain() -> None:
    p, u = pool(50)
    kl, s, v = scaled(kl_matrix(p)), scaled(similarity_matrix(p)), scaled(u)
    picks = list(submodular_picks(p, u, 10))
    assert picks[0] == Pick(int(u.argmax()), 1.0, 0.0, 0.0)
    for i in range(1, 10):
        chosen, k = [q.index for q in picks[:i]], picks[i]
        assert k.uncertainty == pytest.approx(float(v[k.index]))
        assert k.diversity == pytest.approx(float(kl[chosen, k.index].min()), abs=1e-12)
        covered = (s[:, k.index] - s[:, chosen].max(1).values).clamp_min(0).mean()
        assert k.representativeness == pytest.approx(float(covered), abs=1e-10)


def test_identical_predictions_do_not_blow_up() -> None:
    p = torch.full((30, 3), 1 / 3)
    assert submodular_select(p, torch.zeros(30), 30) == list(range(30))
    assert submodular_select(p, torch.arange(30.0), 3) == [29, 28, 27]
    # float32 would see 1 - BC of copies as +-1e-7 beside 1e-6: copies must look alike wherever they stand
    q = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]).repeat(100, 1)
    assert submodular_select(q, torch.zeros(200), 4) == [0, 1, 2, 3]
    assert submodular_select(q, torch.zeros(200), 4, alpha=0, beta=0)[:2] in ([0, 1], [1, 0])


def test_probabilities_of_exactly_zero_are_finite() -> None:
    p = torch.eye(4).repeat(3, 1)
    picks = list(submodular_picks(p, torch.zeros(12), 12))
    assert {k.index for k in picks[:4]} == {0, 1, 2, 3}
    assert all(math.isfinite(k.diversity) and math.isfinite(k.representativeness) for k in picks)


def test_progress_is_told() -> None:
    p, u = pool(10)
    told: list[tuple[int, int]] = []
    submodular_select(p, u, 3, progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_trap_6_selector_of_a_large_pool_never_holds_pairs_of_it() -> None:
    """N = 20,000: one N x N matrix would be 3,200 MB in float64, 400 MB even as bytes."""
    p, u = pool(20_000, 12, sharpness=3.0)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(x, Tensor):
                    largest = max(largest, x.numel() * x.element_size())
            return out

    with Watch():
        picks = submodular_select(p.float(), u.float(), 20)
    assert len(set(picks)) == 20
    assert largest <= 20_000 * 12 * 8, f"{largest / 1e6:.0f} MB in one tensor"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"budget": 6}, "budget=6"),
        ({"budget": -1}, "budget=-1"),
        ({"budget": 2.5}, "budget=2.5"),
        ({"probs": torch.randn(5, 3)}, "softmax"),
        ({"probs": torch.ones(5) / 5}, "probs of shape"),
        ({"probs": torch.full((5, 3), torch.nan)}, "probs: 5 rows"),
        ({"uncertainty": torch.ones(4)}, "uncertainty of shape"),
        ({"uncertainty": torch.tensor([0, 1, torch.inf, 0, 0])}, "uncertainty: 1 rows are not finite, first row 2"),
        ({"alpha": 0.8}, "alpha=0.8"),
        ({"beta": -0.1}, "beta=-0.1"),
        ({"block": 0}, "block=0"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], named: str) -> None:
    given = {"probs": torch.full((5, 3), 1 / 3), "uncertainty": torch.rand(5), "budget": 2} | change
    with pytest.raises(ValueError, match=named) as error:
        submodular_select(**given)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_pairwise_divergence_10a_2_and_3() -> None:
    assert pairwise_divergence(P.log(), torch.stack([A.log(), B.log()])).item() == pytest.approx(1.134303, abs=1e-6)
    assert pairwise_divergence(P.log(), torch.stack([B.log(), A.log()])).item() == pytest.approx(1.134303, abs=1e-6)
    assert pairwise_divergence(A.log(), A.log().expand(4, 1, 2)).item() == pytest.approx(0, abs=1e-15)
    assert pairwise_divergence(P.log(), A.log()[None]).item() == pytest.approx(0.510826, abs=1e-6)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4))


def test_vap_is_the_formula_over_independent_starts_in_eval_mode() -> None:
    net, x = network(), torch.randn(8, 6)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    score = vap_score(net, x, starts=3, epsilon=1.5, generator=seeded(4))
    assert net.training
    assert net[1].training
    assert net[3].training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(w.grad is None for w in net.parameters())
    net.eval()
    g = seeded(4)
    h = [net(x).softmax(1).double()]
    h += [net(x + adversarial_direction(net, x, epsilon=1.5, generator=g)).softmax(1).double() for _ in range(3)]
    expected = torch.zeros(8, dtype=torch.float64)
    for i, j in [(0, 1), (0, 2), (0, 3), *itertools.permutations([1, 2, 3], 2)]:
        expected += (h[i] * (h[i] / h[j]).log()).sum(1) / 9
    assert score.shape == (8,)
    assert score.dtype == torch.float32
    torch.testing.assert_close(score.double(), expected.detach(), rtol=1e-4, atol=1e-6)


def test_vap_without_a_generator_repeats_itself_and_its_starts_differ() -> None:
    net, x = network().eval(), torch.randn(8, 6)
    assert torch.equal(vap_score(net, x), vap_score(net, x))
    one = vap_score(net, x, starts=1)
    same_start_each_time = one * 5 / 25  # no divergence among equal perturbations
    assert not torch.allclose(vap_score(net, x, starts=5), same_start_each_time, rtol=1e-3)


def test_vap_of_a_constant_model_is_zero_and_starts_is_checked() -> None:
    net = nn.Linear(6, 3)
    nn.init.zeros_(net.weight)
    assert torch.equal(vap_score(net, torch.randn(4, 6)), torch.zeros(4))
    with pytest.raises(ValueError, match="starts=0"):
        vap_score(net, torch.randn(4, 6), starts=0)


def test_uncertainties_of_any_size_are_scaled() -> None:
    p, u = pool(60)
    expected = submodular_select(p, u, 20)
    assert submodular_select(p, 2.0**-60 * u, 20) == submodular_select(p, 2.0**60 * u, 20) == expected
