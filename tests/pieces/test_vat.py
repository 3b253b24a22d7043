"""VAT against exact second derivatives in float64, and spec 08 section 10a (4-6)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenhand.pieces.vat import adversarial_direction, vat_loss
from helpers import seeded


def net_of(*layers: Callable[[], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer() for layer in layers))


def small_net() -> nn.Sequential:
    return net_of(lambda: nn.Linear(6, 16), nn.Tanh, lambda: nn.Linear(16, 4))


def unit(v: Tensor) -> Tensor:
    flat = v.double().flatten(1)
    return flat / flat.norm(dim=1, keepdim=True)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (unit(a) * unit(b)).sum(1)


def start(x: Tensor, seed: int = 0) -> Tensor:
    """The random direction that a generator of this seed gives."""
    return unit(torch.randn(x.shape, generator=seeded(seed))).view(x.shape)


def hessian(net: nn.Module, x: Tensor) -> Tensor:
    """(n, n) second derivatives of KL(h(x) || h(x + r)) at r = 0 for one sample, by autograd in float64."""
    net, x = copy.deepcopy(net).double().eval(), x.double()
    p = net(x[None])[0].log_softmax(0).detach()

    def kl(r: Tensor) -> Tensor:
        return (p.exp() * (p - net(x[None] + r.view(1, *x.shape))[0].log_softmax(0))).sum()

    return torch.autograd.functional.hessian(kl, torch.zeros(x.numel(), dtype=torch.float64))


def hessian_product(net: nn.Module, x: Tensor, u: Tensor) -> Tensor:
    """The same Hessian times u for every sample: J' (diag p - p p') J u, which is exact at r = 0."""
    net = copy.deepcopy(net).double().eval()
    logits, change = torch.func.jvp(net, (x.double(),), (u.double(),))
    p = logits.softmax(1)
    centred = p * (change - (p * change).sum(1, keepdim=True))
    return torch.func.vjp(net, x.double())[1](centred)[0].detach()


def test_trap_14_float32_direction_correlates_with_the_exact_one() -> None:
    net, x = small_net(), torch.randn(8, 6, generator=seeded(1))
    exact = [hessian(net, sample) for sample in x]
    one = adversarial_direction(net, x, epsilon=1.0, generator=seeded())
    assert cosine(one, torch.stack([H @ u for H, u in zip(exact, start(x), strict=True)])).min() > 0.999
    many = adversarial_direction(net, x, epsilon=1.0, iterations=50, generator=seeded())
    top = torch.stack([torch.linalg.eigh(H)[1][:, -1] for H in exact])
    assert cosine(many, top).abs().min() > 0.99
    assert cosine(one, top).abs().mean() > 1.5 * cosine(start(x), top).abs().mean()


def test_trap_14_the_authors_xi_is_rounding_noise_in_float32_only() -> None:
    net = net_of(lambda: nn.Linear(20_000, 32), nn.Tanh, lambda: nn.Linear(32, 10))
    x = torch.randn(4, 20_000, generator=seeded(1))
    exact = hessian_product(net, x, start(x))

    def agreement(xi: float | None) -> float:
        return float(cosine(adversarial_direction(net, x, epsilon=5.0, xi=xi, generator=seeded()), exact).min())

    assert not agreement(1e-6) >= 0.7  # not a number where even the noise is nought
    assert all(agreement(xi) > 0.99 for xi in (1e-2, 1e-1, 1.0))
    assert agreement(None) > 0.9999
    net, x = net.double(), x.double()
    double = adversarial_direction(net, x, epsilon=5.0, xi=1e-6, generator=seeded())
    assert cosine(double, exact).min() > 0.999


def test_trap_14_holds_where_the_model_is_sure() -> None:
    # The probability of the predicted class rounds to 1 in float32: q - p of that class is 0 or noise.
    net = net_of(lambda: nn.Linear(6, 16), nn.Tanh, lambda: nn.Linear(16, 4))
    with torch.no_grad():
        net[2].weight.mul_(4)
        net[2].bias.copy_(torch.tensor([22.0, 0, 0, 0]))
    x = torch.randn(16, 6, generator=seeded(1))
    assert (1 - net.double()(x.double()).softmax(1).amax(1)).max() < 1e-6
    exact = hessian_product(net, x, start(x))
    direction = adversarial_direction(net.float(), x, epsilon=1.0, generator=seeded())
    assert cosine(direction, exact).min() > 0.999


@pytest.mark.parametrize("xi", [None, 1e-2])
def test_linear_softmax_has_the_closed_form_direction(xi: float | None) -> None:
    net, x = net_of(lambda: nn.Linear(5, 3, bias=False)), torch.randn(7, 5, generator=seeded(1))
    W = net[0].weight.detach().double()
    p = (x.double() @ W.T).softmax(1)
    matrices = W.T @ (torch.diag_embed(p) - p[:, :, None] * p[:, None]) @ W  # (N, 5, 5)
    one = adversarial_direction(net, x, epsilon=2.0, xi=xi, generator=seeded())
    assert cosine(one, (matrices @ start(x)[:, :, None]).squeeze(2)).min() > 0.999
    many = adversarial_direction(net, x, epsilon=2.0, xi=xi, iterations=100, generator=seeded())
    assert cosine(many, torch.linalg.eigh(matrices)[1][:, :, -1]).abs().min() > 0.99


@settings(max_examples=20, deadline=None)
@given(epsilon=st.floats(0, 100), iterations=st.integers(1, 3), seed=st.integers(0, 99), scale=st.floats(0.01, 2))
def test_each_sample_has_norm_epsilon(epsilon: float, iterations: int, seed: int, scale: float) -> None:
    net, x = small_net(), scale * torch.randn(3, 6, generator=seeded(seed))
    r = adversarial_direction(net, x, epsilon=epsilon, iterations=iterations, generator=seeded(seed))
    assert r.shape == x.shape
    assert r.norm(dim=1).tolist() == pytest.approx([epsilon] * 3, rel=1e-5)


def test_a_sample_alone_has_its_direction_too() -> None:
    net, x = net_of(lambda: nn.Linear(6, 4)), torch.randn(1, 6, generator=seeded())
    assert adversarial_direction(net, x, epsilon=2.0).norm().item() == pytest.approx(2.0)


def test_zero_gradient_gives_zero_and_a_tiny_one_still_its_direction() -> None:
    dead = net_of(lambda: nn.Linear(6, 4))
    nn.init.zeros_(dead[0].weight)
    x = torch.randn(5, 6, generator=seeded())
    assert not adversarial_direction(dead, x, epsilon=5.0, iterations=2).any()
    assert float(vat_loss(dead, x, epsilon=5.0)) == 0

    faint = net_of(lambda: nn.Linear(6, 4))  # the square of its gradient underflows in float32
    with torch.no_grad():
        faint[0].weight.mul_(1e-3)
        faint[0].bias.copy_(torch.tensor([50.0, 0, 0, 0]))
    r = adversarial_direction(faint, x, epsilon=5.0, xi=1.0)
    assert r.norm(dim=1).tolist() == pytest.approx([5.0] * 5, rel=1e-5)


def test_images_are_measured_over_all_their_elements() -> None:
    net = net_of(lambda: nn.Conv2d(3, 4, 3), nn.ReLU, nn.Flatten, lambda: nn.Linear(4 * 36, 5))
    x = torch.randn(2, 3, 8, 8, generator=seeded())
    r = adversarial_direction(net, x, epsilon=5.0)
    assert r.shape == x.shape
    assert r.flatten(1).norm(dim=1).tolist() == pytest.approx([5.0, 5.0], rel=1e-5)


def literal_loss(net: nn.Module, x: Tensor, r: Tensor) -> Tensor:
    terms = []
    for sample, change in zip(x, r, strict=True):
        p = net(sample[None])[0].detach().softmax(0)
        q = net((sample + change)[None])[0].softmax(0)
        terms.append(sum(p[c] * torch.log(p[c] / q[c]) for c in range(len(p))))
    return sum(terms) / len(terms)


def test_loss_and_its_gradient_equal_the_literal_kl_at_fixed_r() -> None:
    net, x = small_net().double(), torch.randn(5, 6, generator=seeded(1)).double()
    r = adversarial_direction(net, x, epsilon=0.7, iterations=2, generator=seeded(3))
    ours = vat_loss(net, x, epsilon=0.7, iterations=2, generator=seeded(3))
    literal = literal_loss(net, x, r)
    assert torch.allclose(ours, literal)
    parameters = list(net.parameters())
    expected = torch.autograd.grad(literal, parameters)
    for a, b in zip(torch.autograd.grad(ours, parameters), expected, strict=True):
        assert torch.allclose(a, b)


def test_the_direction_hurts_more_than_a_random_one() -> None:
    net, x = small_net(), torch.randn(64, 6, generator=seeded(1))
    found = literal_loss(net, x, adversarial_direction(net, x, epsilon=0.3))
    assert found > 1.3 * literal_loss(net, x, 0.3 * start(x, seed=5).float())


def with_everything() -> nn.Sequential:
    return net_of(lambda: nn.Linear(6, 16), lambda: nn.BatchNorm1d(16), nn.ReLU, nn.Dropout, lambda: nn.Linear(16, 4))


@pytest.mark.parametrize("mode", [True, False])
def test_nothing_of_the_model_changes(mode: bool) -> None:
    net, x = with_everything().train(mode), torch.randn(8, 6, generator=seeded(1))
    net[3].train(not mode)  # modes differ within the model and come back one by one
    modes = [m.training for m in net.modules()]
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    before, rng = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    adversarial_direction(net, x, epsilon=1.0)
    loss = vat_loss(net, x, epsilon=1.0)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), before.values(), strict=True))
    assert all(bool((p.grad == 1).all()) for p in net.parameters())
    assert [m.training for m in net.modules()] == modes
    assert net[1].track_running_stats
    assert torch.equal(torch.get_rng_state(), rng)  # neither dropout nor the start draws from it
    loss.backward()
    assert not bool((net[4].weight.grad == 1).any())


def test_the_model_comes_back_after_an_error() -> None:
    net = with_everything().train()
    with pytest.raises(RuntimeError):
        vat_loss(net, torch.randn(4, 7), epsilon=1.0)
    assert all(m.training for m in net.modules())
    assert net[1].track_running_stats


def test_batchnorm_in_training_normalises_by_the_batch() -> None:
    net, x = with_everything().train(), 3 + torch.randn(8, 6, generator=seeded(1))
    by_batch = vat_loss(net, x, epsilon=1.0)
    assert float(by_batch) != pytest.approx(float(vat_loss(net.eval(), x, epsilon=1.0)), rel=1e-3)


def test_generator_decides_the_start() -> None:
    net, x = small_net(), torch.randn(4, 6, generator=seeded(1))
    again = [adversarial_direction(net, x, epsilon=1.0, generator=seeded(s)) for s in (1, 1, 2)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])
    generator = seeded(1)
    assert torch.equal(adversarial_direction(net, x, epsilon=1.0, generator=generator), again[0])
    assert not torch.equal(adversarial_direction(net, x, epsilon=1.0, generator=generator), again[0])


def test_works_without_gradients_and_under_autocast() -> None:
    net, x = small_net(), torch.randn(4, 6, generator=seeded(1))
    plain = adversarial_direction(net, x, epsilon=1.0)
    with torch.no_grad():
        assert torch.equal(adversarial_direction(net, x, epsilon=1.0), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(adversarial_direction(net, x, epsilon=1.0), plain)
        assert vat_loss(net, x, epsilon=1.0).dtype == torch.float32


@pytest.mark.parametrize("bad", [{"epsilon": -1.0}, {"epsilon": 1.0, "xi": 0.0}, {"epsilon": 1.0, "iterations": 0}])
def test_bad_settings_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{list(bad)[-1]}={list(bad.values())[-1]}"):
        adversarial_direction(small_net(), torch.randn(2, 6), **bad)


@pytest.mark.parametrize("x", [torch.zeros(2, 6, dtype=torch.uint8), torch.zeros(0, 6)])
def test_bad_batches_are_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match="expected a float batch"):
        vat_loss(small_net(), x, epsilon=1.0)


def test_convolutions_are_not_rounded_to_tf32_inside() -> None:
    """Emulated, that rounding turned r by 40 degrees on a ResNet-18."""
    seen = []
    net = nn.Sequential(nn.Linear(6, 4))
    net.register_forward_hook(lambda *_: seen.append(torch.backends.cudnn.allow_tf32))
    before = torch.backends.cudnn.allow_tf32
    vat_loss(net, torch.randn(3, 6, generator=seeded()), epsilon=1.0, generator=seeded())
    assert seen
    assert not any(seen)
    assert torch.backends.cudnn.allow_tf32 == before
