"""Domain-adversarial pieces against literal transcriptions and the numbers of spec 09 10a (5, 7-10) and 08 10a (14)."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, local

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenhand import parallel
from evenhand.pieces.domain import (
    DomainDiscriminator,
    RandomisedMap,
    cdan_features,
    domain_loss,
    entropy_weights,
    mcc_loss,
    mdd_loss,
    reversal_coefficient,
    reverse_gradient,
)
from evenhand.pieces.sam import SAM


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs, retain_graph=True)


def literal_softmax(row: Tensor, temperature: float = 1.0) -> list[Tensor]:
    powers = [torch.exp(v / temperature) for v in row]
    return [v / sum(powers) for v in powers]


def literal_weights(rows: list[list[Tensor]]) -> list[float]:
    raw = [1 + math.exp(sum(g * math.log(g + 1e-5) for g in map(float, torch.stack(row).detach()))) for row in rows]
    return [len(rows) * w / sum(raw) for w in raw]


def test_reversal_is_the_identity_forward_and_minus_the_coefficient_backward() -> None:
    x, weight = normal(4, 3).requires_grad_(), normal(3, seed=1).requires_grad_()
    y = reverse_gradient(x, 0.3)
    assert torch.equal(y, x)
    plain_x, plain_weight = gradient((torch.tanh(x) @ weight).sum(), x, weight)
    reversed_x, reversed_weight = gradient((torch.tanh(y) @ weight).sum(), x, weight)
    assert torch.allclose(reversed_x, -0.3 * plain_x)
    assert torch.equal(reversed_weight, plain_weight)
    assert not gradient((reverse_gradient(x, reversal_coefficient(0)) @ weight).sum(), x)[0].any()


def test_reversal_can_be_differentiated_twice() -> None:
    x = normal(3).requires_grad_()
    (first,) = torch.autograd.grad((reverse_gradient(x, 0.5) ** 3).sum(), x, create_graph=True)
    # Twice through the reversal: (-0.5)^2 from the cube's second derivative.
    assert torch.allclose(gradient(first.sum(), x)[0], 0.25 * 6 * x)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.0), (500, 0.244919), (1000, 0.462117), (2000, 0.761594), (5000, 0.986614)]
)
def test_warm_start_of_spec_09(step: int, expected: float) -> None:
    assert reversal_coefficient(step) == pytest.approx(expected, abs=1e-6)
    assert reversal_coefficient(step) == pytest.approx(math.tanh(step / 2000))


@pytest.mark.parametrize(("progress", "expected"), [(0, 0.0), (0.1, 0.462117), (0.5, 0.986614), (1, 0.999909)])
def test_warm_start_of_spec_08(progress: float, expected: float) -> None:
    assert reversal_coefficient(int(400 * progress), alpha=10, steps=400) == pytest.approx(expected, abs=1e-6)


@given(step=st.integers(0, 10**6), alpha=st.floats(0.1, 20), low=st.floats(-1, 1), high=st.floats(-1, 1))
def test_warm_start_equals_the_printed_form(step: int, alpha: float, low: float, high: float) -> None:
    printed = 2 * (high - low) / (1 + math.exp(-alpha * step / 1000)) - (high - low) + low
    assert reversal_coefficient(step, alpha=alpha, low=low, high=high) == pytest.approx(printed, abs=1e-12)


def test_discriminator_layers() -> None:
    def kinds(net: nn.Module) -> list[str]:
        return [type(m).__name__ for m in net.children()]

    block = ["Linear", "BatchNorm1d", "ReLU"]
    assert kinds(DomainDiscriminator(6, 8)) == [*block, *block, "Linear"]
    assert kinds(DomainDiscriminator(6, 8, batchnorm=False)) == ["Linear", "ReLU", "Dropout"] * 2 + ["Linear"]
    assert sum(p.numel() for p in DomainDiscriminator(256).parameters()) == 256 * 1024 + 1024**2 + 1024 * 7 + 1
    assert DomainDiscriminator(6, 8)(torch.zeros(5, 6)).shape == (5,)


def test_reversed_step_moves_features_against_and_discriminator_with_its_loss() -> None:
    torch.manual_seed(0)
    discriminator = DomainDiscriminator(4, 8).double()
    features = normal(12, 4).requires_grad_()

    def loss(x: Tensor) -> Tensor:
        guess = discriminator(x)
        return domain_loss(guess[:6], guess[6:])

    parameters = list(discriminator.parameters())
    plain = gradient(loss(features), features, *parameters)
    turned = gradient(loss(reverse_gradient(features, 0.7)), features, *parameters)
    assert torch.allclose(turned[0], -0.7 * plain[0])
    assert all(torch.equal(a, b) for a, b in zip(turned[1:], plain[1:], strict=True))


@pytest.mark.parametrize("weighted", [False, True])
def test_domain_loss_equals_the_literal_one(weighted: bool) -> None:
    source, target, probs = normal(5).requires_grad_(), normal(5, seed=1).requires_grad_(), normal(10, 3).softmax(1)
    weights = literal_weights([list(row) for row in probs]) if weighted else [1.0] * 10
    probability = [1 / (1 + torch.exp(-z)) for z in [*source, *target]]
    terms = [-torch.log(p if i < 5 else 1 - p) * weights[i] for i, p in enumerate(probability)]
    literal = sum(terms) / 10
    ours = domain_loss(source, target, entropy_weights(probs) if weighted else None)
    assert torch.allclose(ours, literal)
    for a, b in zip(gradient(ours, source, target), gradient(literal, source, target), strict=True):
        assert torch.allclose(a, b)


def test_domain_loss_is_half_the_discrepancy_for_domains_of_any_size() -> None:
    source, target = normal(3), normal(7, seed=1)
    d = source.sigmoid().log().mean() + (1 - target.sigmoid()).log().mean()
    assert float(domain_loss(source, target)) == pytest.approx(float(-d / 2))


def test_domain_loss_at_chance_and_for_a_perfect_or_the_best_discriminator() -> None:
    assert float(domain_loss(torch.zeros(4), torch.zeros(4))) == pytest.approx(0.693147, abs=1e-6)
    assert float(domain_loss(torch.full((4,), 200.0), torch.full((4,), -200.0))) == 0.0
    assert float(domain_loss(torch.full((4,), -200.0), torch.full((4,), 200.0))) == 200.0  # no overflow

    P, Q = torch.tensor([1, 4, 5]), torch.tensor([6, 3, 1])  # tenths
    best = torch.log(P / Q).double()  # logit of P / (P + Q)
    p, q = P / 10, Q / 10
    m = (p + q) / 2
    d = (p * (p / m).log()).sum() + (q * (q / m).log()).sum() - 2 * math.log(2)
    assert float(domain_loss(best.repeat_interleave(P), best.repeat_interleave(Q))) == pytest.approx(float(-d / 2))


def test_bad_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="3 source and 0 target rows"):
        domain_loss(torch.zeros(3), torch.zeros(0))
    with pytest.raises(ValueError, match="6 and 3 rows"):
        domain_loss(torch.zeros(3), torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match="4 and 2 rows"):
        cdan_features(torch.zeros(4, 3), torch.zeros(2, 5))


def test_cdan_features_are_the_class_major_outer_product() -> None:
    features, logits = normal(4, 3).requires_grad_(), normal(4, 2, seed=1).requires_grad_()
    probs = logits.detach().softmax(1)
    joint = cdan_features(features, probs)
    assert joint.shape == (4, 6)
    for n in range(4):
        for c in range(2):
            for j in range(3):
                assert joint[n, c * 3 + j] == probs[n, c] * features[n, j]
    assert torch.allclose(joint.sum(1), features.sum(1))
    assert all(torch.linalg.matrix_rank(t) == 1 for t in joint.detach().view(4, 2, 3))
    joint.square().sum().backward()
    assert features.grad is not None
    assert logits.grad is None
    assert torch.allclose(features.grad, 2 * features * probs.square().sum(1, keepdim=True))
    assert torch.equal(cdan_features(features, torch.ones(4, 1)), features)  # one class: DANN


def test_randomised_map_keeps_inner_products_is_frozen_and_is_saved() -> None:
    features, probs = normal(2, 6).float(), normal(2, 3, seed=1).softmax(1).float()
    exact = (features[0] @ features[1]) * (probs[0] @ probs[1])
    generator = torch.Generator().manual_seed(0)
    products = []
    for _ in range(20):
        a, b = RandomisedMap(6, 3, 20_000, generator=generator)(features, probs)
        products.append(float(a @ b))
    assert sum(products) / 20 == pytest.approx(float(exact), abs=0.05)
    assert max(abs(p - float(exact)) for p in products) < 0.3

    drawn = RandomisedMap(6, 3, 16, generator=torch.Generator().manual_seed(1))
    other = RandomisedMap(6, 3, 16, generator=torch.Generator().manual_seed(2))
    assert not list(drawn.parameters())
    assert not torch.equal(drawn(features, probs), other(features, probs))
    other.load_state_dict(drawn.state_dict())
    assert torch.equal(drawn(features, probs), other(features, probs))


def test_entropy_weights_of_the_spec() -> None:
    weights = entropy_weights(torch.tensor([[0.5, 0.5], [1.0, 0.0]], requires_grad=True))
    assert weights.tolist() == pytest.approx([0.857144, 1.142856], abs=1e-6)
    assert not weights.requires_grad


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 12), classes=st.integers(1, 8), scale=st.floats(0, 50), seed=st.integers(0, 999))
def test_entropy_weights_sum_to_the_row_count(rows: int, classes: int, scale: float, seed: int) -> None:
    weights = entropy_weights(normal(rows, classes, seed=seed, scale=scale).softmax(1))
    assert float(weights.sum()) == pytest.approx(rows)
    assert bool((weights > 0).all())


def literal_mcc(logits: Tensor, temperature: float) -> Tensor:
    P = [literal_softmax(row, temperature) for row in logits]
    w = literal_weights(P)
    N, K = logits.shape
    C = [[sum(w[n] * P[n][a] * P[n][b] for n in range(N)) for b in range(K)] for a in range(K)]
    return sum(C[a][b] / sum(C[a]) for a in range(K) for b in range(K) if a != b) / K


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_mcc_equals_the_literal_matrix_in_value_and_gradient(temperature: float) -> None:
    logits = normal(6, 4, scale=2.0).requires_grad_()
    ours, literal = mcc_loss(logits, temperature), literal_mcc(logits, temperature)
    assert torch.allclose(ours, literal)
    # The literal weights are floats, so equal gradients mean that none flows through ours.
    assert torch.allclose(gradient(ours, logits)[0], gradient(literal, logits)[0])


def test_mcc_numbers_of_the_spec() -> None:
    for classes, expected in ((2, 0.5), (10, 0.9), (65, 0.984615)):
        assert float(mcc_loss(torch.zeros(8, classes))) == pytest.approx(expected, abs=1e-6)
    pair = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    assert float(mcc_loss(pair, 1.0)) == pytest.approx(0.209987, abs=1e-6)
    assert float(mcc_loss(pair, 2.0)) == pytest.approx(0.393224, abs=1e-6)
    assert float(mcc_loss(100 * torch.eye(5))) == pytest.approx(0, abs=1e-6)


def test_trap_09_mcc_of_classes_without_mass() -> None:
    logits = (1000 * torch.eye(6)[:2]).requires_grad_()  # four classes have probability exactly 0
    loss = mcc_loss(logits)
    assert loss == 0
    assert gradient(loss, logits)[0].isfinite().all()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 12), classes=st.integers(2, 8), scale=st.floats(0, 300), seed=st.integers(0, 999),
    temperature=st.floats(0.1, 10),
)  # fmt: skip
def test_mcc_stays_in_its_range(rows: int, classes: int, scale: float, seed: int, temperature: float) -> None:
    logits = normal(rows, classes, seed=seed, scale=scale).float().requires_grad_()
    loss = mcc_loss(logits, temperature)
    assert 0 <= loss < 1
    assert gradient(loss, logits)[0].isfinite().all()


def test_mcc_of_two_processes_is_that_of_the_joint_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads stand for the processes; ``total`` adds what the other one brings to the same call."""
    whole = normal(8, 4, scale=2.0).requires_grad_()
    meet, brought, here = Barrier(2), {}, local()

    def total(x: Tensor) -> Tensor:
        brought[here.rank] = x.detach()
        meet.wait(timeout=20)
        other = brought[1 - here.rank]
        meet.wait(timeout=20)
        return x + other

    def process(rank: int) -> tuple[Tensor, Tensor]:
        here.rank = rank
        logits = whole.detach()[4 * rank : 4 * rank + 4].requires_grad_()
        loss = mcc_loss(logits)
        return loss.detach(), gradient(loss, logits)[0]

    joint = mcc_loss(whole)
    monkeypatch.setattr(parallel, "total", total)
    monkeypatch.setattr(parallel, "world", lambda: 2)
    with ThreadPoolExecutor(2) as pool:
        losses, gradients = zip(*pool.map(process, (0, 1)), strict=True)
    assert torch.allclose(torch.stack(losses), joint.detach())
    assert torch.allclose(torch.cat(gradients), gradient(joint, whole)[0])


def test_half_precision_is_computed_in_float32() -> None:
    logits = normal(6, 4).bfloat16()
    assert mcc_loss(logits).dtype == torch.float32
    assert float(mcc_loss(logits)) == float(mcc_loss(logits.float()))
    assert domain_loss(logits[:, 0], logits[:, 1]).dtype == torch.float32


def test_mcc_refuses_a_temperature_of_zero() -> None:
    with pytest.raises(ValueError, match="temperature=0"):
        mcc_loss(torch.zeros(2, 2), 0)


def test_mdd_equals_the_literal_loss_in_value_and_gradient() -> None:
    source, target = normal(4, 3).requires_grad_(), normal(5, 3, seed=1).requires_grad_()
    rivals = normal(4, 3, seed=2).requires_grad_(), normal(5, 3, seed=3).requires_grad_()
    on_source = [-torch.log(literal_softmax(r)[int(f.argmax())]) for f, r in zip(source, rivals[0], strict=True)]
    on_target = [-torch.log(1 - literal_softmax(r)[int(f.argmax())]) for f, r in zip(target, rivals[1], strict=True)]
    literal = 4 * sum(on_source) / 4 + sum(on_target) / 5
    ours = mdd_loss(source, target, *rivals)
    assert torch.allclose(ours, literal)
    for a, b in zip(gradient(ours, *rivals), gradient(literal, *rivals), strict=True):
        assert torch.allclose(a, b)
    ours.backward()
    assert source.grad is None
    assert target.grad is None


def test_mdd_stays_finite_where_the_rival_is_sure() -> None:
    rival = torch.tensor([[90.0, 0.0]], requires_grad=True)  # p' rounds to 1
    loss = mdd_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2), rival, margin=0)
    assert loss.item() == pytest.approx(90)
    assert gradient(loss, rival)[0].tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("rho", [0.0, 3.0])
def test_a_smooth_step_of_the_discriminator_gains_less(rho: float) -> None:
    """Spec 09, 10a check 12: [d(plain) - d(smooth)] / eta is |grad d| (1 - cos a), within theorem 2's bound."""
    chance = torch.Generator().manual_seed(0)
    source, target = (torch.randn(40, 5, generator=chance).double() + shift for shift in (0.5, -0.2))
    phi, eta = nn.Parameter(torch.randn(5, generator=chance).double()), 1e-5

    def d(weights: Tensor) -> Tensor:
        return -2 * domain_loss(source @ weights, target @ weights)

    (-d(phi)).backward()
    plain = -phi.grad.clone()
    with SAM(torch.optim.SGD([phi], lr=1.0), rho=rho).ascent():
        (-d(phi)).backward()
    smooth = -phi.grad
    start, cosine = phi.detach(), torch.cosine_similarity(plain, smooth, dim=0)
    gain = d(start + eta * plain / plain.norm()) - d(start + eta * smooth / smooth.norm())
    second = sum(x.T @ x / len(x) for x in (source, target)) / 4  # bounds the Hessian of -d
    L = torch.linalg.eigvalsh(second)[-1]
    assert float(gain / eta) == pytest.approx(float(plain.norm() * (1 - cosine)), rel=1e-2, abs=1e-5)
    assert float(gain) <= float(eta * (1 - cosine) * (2 * L * -d(start)).sqrt() + L * eta**2)  # d is at most 0
    assert (float(gain) > 1e-2 * eta) == (rho > 0)
