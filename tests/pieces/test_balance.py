"""Class balancing against literal transcriptions and the numbers of spec 01, section 10a."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenhand import parallel
from evenhand.pieces.balance import EffectiveFrequency, Normalise, balance_loss, form_ratio, mean_prediction

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
CIFAR10_LT_10 = [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]
LSUN_LT = [50000, 15811, 5000, 1581, 500]
FORMS: list[Normalise] = ["share", "mean-one"]


def shares(counts: list[int] | list[float]) -> Tensor:
    n = torch.tensor(counts, dtype=torch.float64)
    return n / n.sum()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def literal(probs: list[Tensor], frequencies: list[float], normalise: str) -> Tensor:
    """Sample by sample, class by class; probs holds one softmax per sample."""
    K, total = len(frequencies), sum(frequencies)
    loss = torch.zeros((), dtype=torch.float64)
    for k in range(K):
        p = sum(row[k] for row in probs) / len(probs)
        share = total / frequencies[k]
        mean_one = K * (1 / frequencies[k]) / sum(1 / n for n in frequencies)
        loss = loss + (share if normalise == "share" else mean_one) * p * torch.log(p)
    return loss


def optimum(n: Tensor) -> tuple[float, Tensor]:
    """Proposition 1: the multiplier mu with sum_k exp(mu N_k - 1) = 1, and the minimiser."""
    low, high = -1e6, 1e3
    for _ in range(80):
        mu = (low + high) / 2
        low, high = (mu, high) if torch.exp(mu * n - 1).sum() < 1 else (low, mu)
    return mu, torch.exp(mu * n - 1)


def kl_to_uniform(p: Tensor) -> float:
    return float((p * torch.log(len(p) * p)).sum())


@pytest.mark.parametrize("normalise", FORMS)
@pytest.mark.parametrize("frequencies", [[5.0, 1.0, 0.25, 9.0], [3.0, 1.0]], ids=["four_classes", "two_classes"])
@pytest.mark.parametrize("samples", [6, 1], ids=["batch", "fewer_than_classes"])
def test_parity_with_the_equation(normalise: Normalise, frequencies: list[float], samples: int) -> None:
    logits = normal(samples, len(frequencies))
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    value = balance_loss(mean_prediction(ours), frequencies, normalise=normalise)
    rows = [torch.exp(row) / torch.exp(row).sum() for row in theirs]
    expected = literal(rows, frequencies, normalise)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_numbers_of_the_spec() -> None:
    p, n = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), [0.8, 0.1, 0.1]
    share, mean_one = balance_loss(p, n), balance_loss(p, n, normalise="mean-one")
    assert share.item() == pytest.approx(-7.264011, abs=1e-6)
    assert share.item() / 3 == pytest.approx(-2.421337, abs=1e-6)
    assert mean_one.item() == pytest.approx(-1.025508, abs=1e-6)
    assert (share / 3 / mean_one).item() == pytest.approx(21.25 / 9, abs=1e-6)
    assert balance_loss(p, [8, 1, 1]).item() == pytest.approx(share.item())  # any multiple
    for counts, expected in [(CIFAR10_LT_10, 1.67), (CIFAR10_LT, 6.17)]:  # arithmetic over harmonic mean of N
        p = shares([1] * 10)
        ratio = balance_loss(p, counts) / 10 / balance_loss(p, counts, normalise="mean-one")
        assert ratio.item() == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("normalise", FORMS)
@pytest.mark.parametrize("K", [2, 10])
def test_equal_frequencies_give_the_negative_entropy(normalise: Normalise, K: int) -> None:
    divide = K if normalise == "share" else 1
    uniform = torch.full((K,), 1 / K, dtype=torch.float64)
    assert balance_loss(uniform, [50] * K, normalise=normalise).item() / divide == pytest.approx(-math.log(K))
    one_hot = torch.eye(K, dtype=torch.float64)[0]
    assert balance_loss(one_hot, [50] * K, normalise=normalise).item() == 0
    for seed in range(20):
        p = normal(K, seed=seed).softmax(0)
        assert -math.log(K) - 1e-12 <= balance_loss(p, [50] * K, normalise=normalise).item() / divide <= 0


def test_optimum_and_minimum_are_the_propositions() -> None:
    for K, mu in [(10, -13.025851), (5, -3.047190), (100, -360.517019), (1010, -5976.882666)]:
        n = torch.full((K,), 1 / K, dtype=torch.float64)
        assert optimum(n)[0] == pytest.approx(mu, abs=2e-6)
        assert balance_loss(n, n).item() == pytest.approx(-K * math.log(K))
    for counts, mu, expected in [
        (CIFAR10_LT, -52.356316, [0, 0, 0.0002, 0.0039, 0.0242, 0.0718, 0.1382, 0.2046, 0.2592, 0.2979]),
        (LSUN_LT, -6.520211, [0.0042, 0.0894, 0.2352, 0.3194, 0.3518]),
        ([0.9, 0.1], None, [0.6108, 0.3892]),  # two classes: the larger is still favoured
        ([0.8, 0.1, 0.1], None, [0.2868, 0.3566, 0.3566]),
    ]:
        n = shares(counts)
        found, best = optimum(n)
        assert mu is None or found == pytest.approx(mu, abs=1e-5)
        np.testing.assert_allclose(best, expected, atol=6e-5)
        least = balance_loss(best, n).item()
        assert least == pytest.approx(found - float((best / n).sum()))  # Proposition 2
        for seed in range(10):
            assert balance_loss((best.log() + 0.1 * normal(len(n), seed=seed)).softmax(0), n).item() > least
    assert balance_loss(optimum(shares(CIFAR10_LT))[1], CIFAR10_LT).item() == pytest.approx(-193.474828, abs=1e-5)


def test_descent_on_logits_reaches_the_optimum_below_the_bound() -> None:
    n = shares(LSUN_LT)
    logits = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = balance_loss(mean_prediction(logits), n)
        loss.backward()
        return loss

    optimizer.step(objective)
    p = mean_prediction(logits).detach()
    torch.testing.assert_close(p, optimum(n)[1], rtol=1e-3, atol=1e-5)
    assert (p <= torch.exp(-5 * (math.log(5) - 1) * n - 1) * (1 + 1e-6)).all()  # Proposition 1


def test_a_class_without_frequency_saturates_at_one_over_e() -> None:
    best = optimum(shares([1e-9, 1, 1, 1]))[1]
    assert best[0].item() == pytest.approx(math.exp(-1), rel=1e-6)


def test_gradient_on_logits_is_the_specs_and_reaches_nothing_else() -> None:
    logits, n = normal(6, 4).requires_grad_(), shares([8, 4, 2, 1]).requires_grad_()
    balance_loss(mean_prediction(logits), n).backward()
    P = logits.detach().softmax(1)
    g = (1 + P.mean(0).log()) / n.detach()
    expected = P * (g - (P * g).sum(1, keepdim=True)) / 6
    torch.testing.assert_close(logits.grad, expected)
    assert logits.grad.sum(1).abs().max() < 1e-12
    assert n.grad is None


def test_frozen_classifier_passes_gradient_and_stays() -> None:
    classifier = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).requires_grad_(False).eval()
    before = {name: t.clone() for name, t in classifier.state_dict().items()}
    images = torch.randn(8, 3, requires_grad=True)
    balance_loss(mean_prediction(classifier(images)), [4, 3, 2, 1]).backward()
    assert images.grad.abs().sum() > 0
    assert all(p.grad is None for p in classifier.parameters())
    assert all(torch.equal(t, before[name]) for name, t in classifier.state_dict().items())


@pytest.mark.parametrize("normalise", FORMS)
def test_trap_09_a_class_without_mass_is_finite(normalise: Normalise) -> None:
    logits = torch.tensor([[200.0, 0.0, -200.0]], requires_grad=True)
    loss = balance_loss(mean_prediction(logits), [1, 1, 1e-6], normalise=normalise)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_half_precision_is_computed_in_float32() -> None:
    logits = normal(64, 10).bfloat16().requires_grad_()
    loss = balance_loss(mean_prediction(logits), CIFAR10_LT)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, balance_loss(mean_prediction(logits.detach().float()), np.array(CIFAR10_LT)))
    assert torch.autograd.grad(loss, logits)[0].dtype == torch.bfloat16


def counted(frequency: EffectiveFrequency, counts: list[int]) -> EffectiveFrequency:
    frequency.count(torch.repeat_interleave(torch.tensor(counts)))
    return frequency


@pytest.mark.parametrize(("weight", "expected"), [(1.0, [125, 85, 65]), (0.5, [75, 55, 45])])
def test_refresh_is_the_specs(weight: float, expected: list[int]) -> None:
    frequency = EffectiveFrequency(3, forget=0.5, weight=weight, start=50)
    torch.testing.assert_close(frequency.distribution, torch.full((3,), 1 / 3))
    counted(counted(frequency, [60, 60, 0]), [40, 0, 40])
    torch.testing.assert_close(frequency.distribution, torch.full((3,), 1 / 3))  # only a refresh moves it
    frequency.refresh()
    assert frequency.frequency.tolist() == expected
    torch.testing.assert_close(frequency.distribution, torch.tensor(expected) / sum(expected))
    frequency.refresh()  # nothing counted since: shares stay
    torch.testing.assert_close(frequency.distribution, torch.tensor(expected) / sum(expected))


@pytest.mark.parametrize(("forget", "weight"), [(0.5, 1.0), (0.5, 0.5), (0.005, 0.005)])
def test_constant_counts_are_approached_at_the_forgetting_rate(forget: float, weight: float) -> None:
    frequency = EffectiveFrequency(3, forget, weight, start=50)
    limit = torch.tensor([100.0, 60.0, 0.0]) * weight / forget
    for _ in range(5):
        before = frequency.frequency - limit
        counted(frequency, [100, 60, 0]).refresh()
        torch.testing.assert_close(frequency.frequency - limit, (1 - forget) * before, rtol=1e-4, atol=1e-3)
    assert math.log(0.5) / math.log(1 - 0.005) == pytest.approx(138.3, abs=0.05)


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=12),
    forget=st.floats(0.01, 1.0),
    weight=st.floats(0.01, 2.0),
)
def test_any_history_is_the_recurrence(batches: list[list[int]], forget: float, weight: float) -> None:
    frequency, expected = EffectiveFrequency(6, forget, weight), [1.0] * 6
    for labels in batches:  # fewer labels than classes, none at times
        frequency.count(torch.tensor(labels, dtype=torch.long))
        frequency.refresh()
        expected = [(1 - forget) * n + weight * labels.count(k) for k, n in enumerate(expected)]
    np.testing.assert_allclose(frequency.frequency, expected, rtol=1e-4, atol=1e-6)
    if sum(expected):
        assert frequency.distribution.sum().item() == pytest.approx(1, abs=1e-5)


def test_floor_bounds_the_weight_of_a_class_never_drawn() -> None:
    frequency = EffectiveFrequency(1010, forget=0.005, weight=0.005, floor=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(1500):
        frequency.count(torch.randint(1000, (256,), generator=generator))  # the last ten never come
        frequency.refresh()
    n = frequency.distribution * 1010
    assert n[1000:].min().item() == pytest.approx(0.01, rel=0.02)
    assert n[:1000].min() > 0.2
    assert balance_loss(torch.full((1010,), 1 / 1010), frequency.distribution).isfinite()


def test_trap_04_state_round_trip_in_the_middle_of_a_cycle() -> None:
    frequency = EffectiveFrequency(4, forget=0.3)
    counted(frequency, [5, 3, 0, 1]).refresh()
    counted(frequency, [1, 0, 2, 2])
    file = io.BytesIO()
    torch.save(frequency.state_dict(), file)
    file.seek(0)
    resumed = EffectiveFrequency(4, forget=0.3)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for each in (frequency, resumed):
        counted(each, [0, 4, 0, 0]).refresh()
    assert torch.equal(frequency.distribution, resumed.distribution)
    saved = {name: t.clone() for name, t in frequency.state_dict().items()}
    kept = frequency.state_dict()
    counted(frequency, [9, 9, 9, 9]).refresh()
    assert all(torch.equal(kept[name], saved[name]) for name in saved)  # a state taken earlier does not move


@pytest.mark.parametrize(
    ("K", "forget", "converges"), [(10, 0.5, True), (10, 0.9, False), (100, 0.5, False), (100, 0.4, True)]
)
def test_ideal_response_converges_iff_forgetting_is_slow(K: int, forget: float, converges: bool) -> None:
    n = shares([0.01 ** (k / (K - 1)) for k in range(K)])
    for _ in range(100):
        best = optimum(n)[1]
        n = (1 - forget) * n + forget * best
    assert (kl_to_uniform(best) < 1e-3) is converges


@pytest.mark.parametrize(
    ("counts", "normalise", "trade_off", "expected"),
    [
        (CIFAR10_LT, "mean-one", 5, 0.0071),
        (CIFAR10_LT_10, "mean-one", 1, 0.026),
        (CIFAR10_LT, "share", 1, 0.093),
    ],
)
def test_mean_field_generator_gets_balanced(
    counts: list[int], normalise: Normalise, trade_off: float, expected: float
) -> None:
    """A generator that minimises KL(p | data) + trade_off * balance, with the cycle loop around it."""
    data, seen = shares(counts), EffectiveFrequency(10)
    logits = data.log().requires_grad_()
    coefficient = trade_off / 10 if normalise == "share" else trade_off

    def objective() -> Tensor:
        p = mean_prediction(logits[None])
        balance = balance_loss(p, seen.distribution, normalise=normalise)
        loss = (p * (p / data).log()).sum() + coefficient * balance
        (logits.grad,) = torch.autograd.grad(loss, logits)
        return loss

    for _ in range(15):
        torch.optim.LBFGS([logits], max_iter=12, line_search_fn="strong_wolfe").step(objective)
        p = mean_prediction(logits[None])
        seen.count(torch.repeat_interleave((p.detach() * 20000).round().long()))
        seen.refresh()
    assert kl_to_uniform(data) == pytest.approx({5000 / 50: 0.6589, 10: 0.2321}[counts[0] / counts[-1]], abs=1e-4)
    assert kl_to_uniform(p.detach()) == pytest.approx(expected, rel=0.03)


def test_the_batch_of_all_processes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a batch here, half in another process; the real thing runs in the contract tests of the methods."""
    logits = normal(8, 3)
    here, there = logits.chunk(2)
    expected = balance_loss(mean_prediction(logits), [1, 2, 3])
    joint = EffectiveFrequency(3)
    joint.count(logits.argmax(1))
    monkeypatch.setattr(parallel, "world", lambda: 2)
    monkeypatch.setattr(parallel, "total", lambda x: x + there.softmax(1).mean(0))
    torch.testing.assert_close(balance_loss(mean_prediction(here), [1, 2, 3]), expected)
    monkeypatch.setattr(parallel, "total", lambda x: x + torch.bincount(there.argmax(1), minlength=3))
    seen = EffectiveFrequency(3)
    seen.count(here.argmax(1))
    assert torch.equal(seen.counts, joint.counts)


def test_bad_arguments_name_the_remedy() -> None:
    p, seen = torch.full((3,), 1 / 3), EffectiveFrequency(3)
    other = EffectiveFrequency(4).state_dict()
    for call, message in [
        (lambda: balance_loss(torch.full((2, 3), 1 / 3), [1, 1, 1]), r"mean_probs of shape \(2, 3\): average"),
        (lambda: balance_loss(torch.tensor([-1.0, 2.0]), [1, 1]), "mean_probs holds -1: give probabilities"),
        (lambda: balance_loss(p, [1, 1]), r"frequencies of shape \(2,\): expected \(3,\)"),
        (lambda: balance_loss(p, {0: 1, 1: 1, 2: 1}), "a dict where a list of numbers is asked for"),
        (lambda: balance_loss(p, [1, 0, 1]), r"frequencies\[1\]=0: must be positive"),
        (
            lambda: balance_loss(p, [1, 1, 1], normalise="mean_one"),
            "normalise='mean_one': choose 'share' or 'mean-one'",
        ),
        (lambda: seen.count(torch.tensor([0, 3])), "labels hold 3: they run from 0 to 2"),
        (lambda: seen.count(torch.tensor([0, -1])), "labels hold -1"),
        (lambda: seen.count(torch.tensor([0.0])), "expected \\(N,\\) integers"),
        (lambda: seen.load_state_dict(other), "frequency of 4 classes: expected 3"),
        (lambda: EffectiveFrequency(1), "num_classes=1"),
        (lambda: EffectiveFrequency(3, forget=1.5), r"forget=1.5 is outside \[0, 1\]"),
        (lambda: EffectiveFrequency(3, start=0), "start=0: both must be positive"),
        (lambda: EffectiveFrequency(3, floor=1), r"floor=1 is outside \[0, 1\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_form_ratio_is_what_the_share_form_is_stronger_by() -> None:
    assert form_ratio([0.8, 0.1, 0.1]) == pytest.approx(21.25 / 9)
    assert form_ratio(CIFAR10_LT_10) == pytest.approx(1.67, abs=0.005)
    assert form_ratio(CIFAR10_LT) == pytest.approx(6.17, abs=0.005)
    p, n = shares([5, 3, 2]), shares([8, 1, 1])
    ratio = balance_loss(p, n) / 3 / balance_loss(p, n, normalise="mean-one")
    assert float(ratio) == pytest.approx(form_ratio(n))


def test_frequencies_survive_a_cycle_without_counts() -> None:
    """Trap 09: all forgotten and nothing counted would be 0 / 0."""
    seen = EffectiveFrequency(3, forget=1.0)
    seen.count([0, 0, 1, 2])
    seen.refresh()
    seen.count([])
    seen.refresh()
    assert seen.distribution.tolist() == pytest.approx([0.5, 0.25, 0.25])


def test_nothing_may_be_forgotten() -> None:
    seen = EffectiveFrequency(2, forget=0.0)
    for _ in range(2):
        seen.count([0])
        seen.refresh()
    assert seen.frequency.tolist() == [3.0, 1.0]
