from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evenhand.measure.hessian import (
    Spectrum,
    class_spectra,
    hessian_spectrum,
    sample_spectrum,
    top_eigenvalue,
)
from evenhand.measure.lanczos import Hessian
from helpers import seeded


class Small(nn.Module):
    """Convolution, BatchNorm with statistics of its own, ReLU, linear head: P = 99."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(16, 3)
        source = seeded(0)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=source) * 0.7)
            self.features[1].running_mean.copy_(torch.randn(4, generator=source))
            self.features[1].running_var.copy_(torch.rand(4, generator=source) + 0.5)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    source = seeded(1)
    return torch.randn(30, 1, 4, 4, generator=source, dtype=torch.float64), torch.arange(30) % 3


def exact_hessian(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The whole matrix by torch.func, which shares no code with ours."""
    names, shapes = zip(*((n, p.shape) for n, p in net.named_parameters()), strict=True)
    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])

    def loss(vector: Tensor) -> Tensor:
        pieces = vector.split([s.numel() for s in shapes])
        values = {n: v.view(s) for n, v, s in zip(names, pieces, shapes, strict=True)}
        return cross_entropy(torch.func.functional_call(net, values, (x,)), y)

    return torch.func.hessian(loss)(flat)


def quadratic(matrix: Tensor, at: Tensor | None = None) -> tuple[Callable[[], Tensor], Tensor]:
    w = (torch.zeros(len(matrix), dtype=matrix.dtype) if at is None else at.clone()).requires_grad_()
    return (lambda: 0.5 * w @ matrix @ w), w


def test_net_against_the_exact_hessian(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small().eval(), data
    truth = torch.linalg.eigvalsh(exact_hessian(net, x, y))
    spectrum = hessian_spectrum(lambda: cross_entropy(net(x), y), net.parameters(), steps=64, probes=4)
    assert truth[0] < -0.05  # a saddle, so the check of the minimum means something
    assert spectrum.minimum == pytest.approx(float(truth[0]), rel=1e-6)
    assert spectrum.maximum == pytest.approx(float(truth[-1]), rel=1e-9)
    assert spectrum.error < 1e-3
    many = hessian_spectrum(lambda: cross_entropy(net(x), y), net.parameters(), steps=4, probes=400)
    assert many.trace == pytest.approx(float(truth.sum()), rel=0.05)


def test_steps_beyond_the_parameters_give_every_eigenvalue_and_the_trace(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small().eval(), data
    truth = torch.linalg.eigvalsh(exact_hessian(net, x, y))
    spectrum = hessian_spectrum(lambda: cross_entropy(net(x), y), net.parameters(), steps=len(truth), probes=1)
    torch.testing.assert_close(spectrum.eigenvalues, truth, atol=1e-12, rtol=0)
    assert spectrum.trace == pytest.approx(float(truth.sum()), rel=1e-12)
    assert spectrum.error == 0


def test_full_lanczos_recovers_every_eigenvalue() -> None:
    truth = torch.linspace(-3, 5, 40, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(40, 40, generator=seeded(2), dtype=torch.float64)).Q
    wide = torch.zeros(41, 41, dtype=torch.float64)  # one parameter more than steps: no short cut
    wide[:40, :40] = rotation * truth @ rotation.T
    loss, w = quadratic(wide)
    spectrum = hessian_spectrum(loss, [w], steps=40, probes=1)
    # 41 eigenvalues (0 is not among the 40); the extremes of the 40 nodes have long converged.
    assert spectrum.minimum == pytest.approx(-3, abs=1e-9)
    assert spectrum.maximum == pytest.approx(5, abs=1e-9)
    assert len(spectrum.eigenvalues) == 40


def test_two_variable_saddle_and_valley() -> None:
    w = torch.zeros(2, requires_grad=True)

    def loss() -> Tensor:
        return 0.5 * (1 - w[0] * w[1]) ** 2

    saddle = hessian_spectrum(loss, [w])
    assert (saddle.minimum, saddle.maximum, saddle.ratio) == pytest.approx((-1, 1, 1))
    with torch.no_grad():
        w.fill_(1)
    valley = hessian_spectrum(loss, [w])
    assert (valley.minimum, valley.maximum, valley.trace) == pytest.approx((0, 2, 2), abs=1e-6)


def test_linear_softmax_is_convex_in_every_class() -> None:
    net = nn.Linear(5, 4).double()
    x = torch.randn(40, 5, generator=seeded(3), dtype=torch.float64)
    found = class_spectra(net, x, torch.arange(40) % 4, [0, 1, 2, 3], steps=16)
    assert all(one.spectrum.minimum >= -1e-6 for one in found.values())
    assert all(one.spectrum.maximum > 0.01 for one in found.values())


def test_few_distinct_eigenvalues_are_exact_after_as_many_steps() -> None:
    values = torch.tensor([-2.0, -0.5, 0.0, 1.0, 30.0], dtype=torch.float64)
    diagonal = values.repeat(20)
    loss, w = quadratic(torch.diag(diagonal))
    spectrum = hessian_spectrum(loss, [w], steps=50, probes=1)
    torch.testing.assert_close(spectrum.eigenvalues, values, atol=1e-9, rtol=0)  # stopped after five
    torch.testing.assert_close(spectrum.weights, torch.full_like(values, 0.2))  # equal multiplicities
    assert spectrum.trace == pytest.approx(float(diagonal.sum()))  # signs are exact on a diagonal matrix
    assert spectrum.error == 0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(6, 30), steps=st.integers(2, 5), full=st.booleans())
def test_quadrature_moments(seed: int, size: int, steps: int, full: bool) -> None:
    matrix = torch.randn(size, size, generator=seeded(seed), dtype=torch.float64)
    matrix = matrix + matrix.T
    loss, w = quadratic(matrix)
    spectrum = hessian_spectrum(loss, [w], steps=steps, probes=1, generator=seeded(seed), reorthogonalise=full)
    start = (2.0 * torch.randint(2, (size,), generator=seeded(seed)) - 1).double() / math.sqrt(size)
    theta, omega = spectrum.eigenvalues, spectrum.weights
    assert float(omega.sum()) == pytest.approx(1)
    assert float(omega @ theta) == pytest.approx(float(start @ matrix @ start), abs=1e-9)
    assert float(omega @ theta**2) == pytest.approx(float((matrix @ start).square().sum()))
    true = torch.linalg.eigvalsh(matrix)
    assert true[0] - 1e-9 <= spectrum.minimum <= spectrum.maximum <= true[-1] + 1e-9
    nearest = max(float((true - end).abs().min()) for end in (spectrum.minimum, spectrum.maximum))
    assert nearest <= spectrum.error + 1e-9


def test_mixture_of_class_hessians_is_the_average(data: tuple[Tensor, Tensor]) -> None:
    net, (x, _) = Small().eval(), data
    y = torch.tensor([0] * 20 + [1] * 8 + [2] * 2)
    parameters = list(net.parameters())
    vector = torch.randn(sum(p.numel() for p in parameters), generator=seeded(4), dtype=torch.float64)
    mixed = torch.zeros_like(vector)
    for label in range(3):
        own = y == label
        one = Hessian(lambda own=own: cross_entropy(net(x[own]), y[own]), parameters)
        mixed += own.double().mean() * (one @ vector)
    average = Hessian(lambda: cross_entropy(net(x), y), parameters) @ vector
    torch.testing.assert_close(mixed, average)
    torch.testing.assert_close(exact_hessian(net, x, y) @ vector, average)


def test_chunks_equal_the_whole(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small().eval(), data
    parts = [
        (lambda part=part: cross_entropy(net(x[part]), y[part]), len(part) / 30) for part in torch.arange(30).split(7)
    ]
    whole = hessian_spectrum(lambda: cross_entropy(net(x), y), net.parameters(), steps=20, probes=1)
    chunked = hessian_spectrum(parts, net.parameters(), steps=20, probes=1)
    torch.testing.assert_close(chunked.eigenvalues, whole.eigenvalues)
    torch.testing.assert_close(chunked.weights, whole.weights)


def test_all_classes_together_against_the_exact_hessian(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small(), data
    exact = torch.linalg.eigvalsh(exact_hessian(net.eval(), x, y))
    found = sample_spectrum(net.train(), x, y, steps=10_000, chunk=7)
    assert net.training
    assert found.samples == 30
    assert found.spectrum.maximum == pytest.approx(float(exact[-1]))
    assert found.spectrum.trace == pytest.approx(float(exact.sum()))


def test_without_basis_extremes_trace_and_density_stay(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small().eval(), data
    full, light = (
        hessian_spectrum(lambda: cross_entropy(net(x), y), net.parameters(), steps=80, probes=2, reorthogonalise=keep)
        for keep in (True, False)
    )
    assert light.minimum == pytest.approx(full.minimum, rel=1e-6)
    assert light.maximum == pytest.approx(full.maximum, rel=1e-9)
    assert light.trace == pytest.approx(full.trace)
    copies = [int((s.eigenvalues > s.maximum - 1e-6).sum()) for s in (full, light)]
    assert copies[0] == 2 < copies[1]  # one per probe; more when nothing reminds the run of what it has found
    grid = torch.linspace(full.minimum - 1, full.maximum + 1, 4000, dtype=torch.float64)
    first, second = (torch.cumulative_trapezoid(s.density(grid)[1], grid) for s in (full, light))
    assert (first - second).abs().max() < 0.01


def test_float32_net_matches_float64(data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    both = []
    for dtype in (torch.float64, torch.float32):
        net = Small().eval().to(dtype)
        inputs = x.to(dtype)
        both.append(hessian_spectrum(lambda n=net, v=inputs: cross_entropy(n(v), y), net.parameters(), steps=60))
    assert both[1].minimum == pytest.approx(both[0].minimum, rel=1e-3)
    assert both[1].maximum == pytest.approx(both[0].maximum, rel=1e-5)
    assert both[1].eigenvalues.dtype == torch.float64


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_density_integrates_to_one(scale: float) -> None:
    theta = torch.tensor([-1.0, 0.0, 0.2, 3.0], dtype=torch.float64) * scale
    omega = torch.tensor([0.1, 0.6, 0.2, 0.1], dtype=torch.float64)
    spectrum = Spectrum(theta, omega, float(theta[0]), float(theta[-1]), 0.0, 0.0)
    grid, values = spectrum.density()
    assert len(grid) == 10_000
    assert grid[0] == pytest.approx(theta[0] - 0.01)
    assert grid[-1] == pytest.approx(theta[-1] + 0.01)
    assert float(torch.trapezoid(values, grid)) == pytest.approx(1)
    wide = torch.linspace(float(theta[0]) - scale - 1, float(theta[-1]) + scale + 1, 2_000_000).double()
    assert float(torch.trapezoid(spectrum.density(wide)[1], wide)) == pytest.approx(1, rel=1e-3)


def test_density_is_the_mixture_of_gaussians() -> None:
    theta = torch.tensor([0.0, 4.0], dtype=torch.float64)
    omega = torch.tensor([0.25, 0.75], dtype=torch.float64)
    grid = torch.tensor([0.0, 0.005, 4.0], dtype=torch.float64)
    _, values = Spectrum(theta, omega, 0.0, 4.0, 0.0, 0.0).density(grid)
    normal = torch.distributions.Normal(theta, math.sqrt(4e-5))
    torch.testing.assert_close(values, normal.log_prob(grid[:, None]).exp() @ omega)


def test_density_on_a_grid_of_its_own_is_that_mixture_over_its_integral() -> None:
    """The width goes by the whole spread, 7 here, of which 3 are negative."""
    theta = torch.tensor([-3.0, 0.5, 4.0], dtype=torch.float64)
    omega = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    grid, values = Spectrum(theta, omega, -3.0, 4.0, 0.0, 0.0).density()
    expected = torch.distributions.Normal(theta, math.sqrt(7e-5)).log_prob(grid[:, None]).exp() @ omega
    torch.testing.assert_close(values, expected / torch.trapezoid(expected, grid))


def test_flat_and_linear_losses_have_no_curvature() -> None:
    w = torch.ones(100, requires_grad=True)
    for loss in (lambda: w.sum(), lambda: 0 * (w**2).sum(), lambda: (w.detach() * w).sum() + w[0]):
        for steps in (8, 100):
            spectrum = hessian_spectrum(loss, [w], steps=steps, probes=2)
            assert (spectrum.minimum, spectrum.maximum, spectrum.trace, spectrum.ratio) == (0, 0, 0, 0)
            grid, values = spectrum.density()
            assert float(torch.trapezoid(values, grid)) == pytest.approx(1)
        assert top_eigenvalue(loss, [w]) == 0


def test_unused_parameters_are_flat_directions() -> None:
    used, unused = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    spectrum = hessian_spectrum(lambda: (used**2).sum(), [used, unused])
    assert spectrum.eigenvalues.tolist() == pytest.approx([0, 0, 2, 2, 2])


def test_same_generator_same_numbers_and_nothing_else_touched(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small().eval(), data
    before, global_state = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()

    def run(seed: int) -> Spectrum:
        return hessian_spectrum(
            lambda: cross_entropy(net(x), y), net.parameters(), steps=8, probes=2, generator=seeded(seed)
        )

    first, again, other = run(0), run(0), run(1)
    assert torch.equal(first.eigenvalues, again.eigenvalues)
    assert torch.equal(first.weights, again.weights)
    assert not torch.equal(first.eigenvalues, other.eigenvalues)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_works_under_no_grad_and_leaves_gradients_alone() -> None:
    loss, w = quadratic(torch.diag(torch.tensor([1.0, 2.0])))
    w.grad = torch.tensor([7.0, 8.0])
    with torch.no_grad():
        assert hessian_spectrum(loss, [w]).maximum == pytest.approx(2)
    assert w.grad.tolist() == [7, 8]


def test_attention_has_a_second_derivative() -> None:
    q = torch.randn(1, 2, 3, 4, generator=seeded(6), requires_grad=True)
    attention = nn.functional.scaled_dot_product_attention
    assert hessian_spectrum(lambda: attention(q, q, q).square().sum(), [q]).maximum > 0


def test_class_spectra_report_loss_gradient_and_restore_modes(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small(), data
    net.train()
    net.head.eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found = class_spectra(net, x, y, [2, 0], steps=99, chunk=4)
    assert list(found) == [2, 0]
    assert [net.training, net.features[1].training, net.head.training] == [True, True, False]
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())  # running statistics too
    net.eval()
    for label, one in found.items():
        own = y == label
        loss = cross_entropy(net(x[own]), y[own])
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(net.parameters()))])
        assert one.samples == 10
        assert one.loss == pytest.approx(loss.item())
        assert one.gradient_norm == pytest.approx(float(gradient.norm()))
        truth = torch.linalg.eigvalsh(exact_hessian(net, x[own], y[own]))
        torch.testing.assert_close(one.spectrum.eigenvalues, truth, atol=1e-10, rtol=0)


def test_class_spectra_do_not_depend_on_the_other_classes(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small(), data
    both = class_spectra(net, x, y, [0, 1], steps=6, max_samples=5, generator=seeded(7))
    alone = class_spectra(net, x, y, [1], steps=6, max_samples=5, generator=seeded(7))
    assert both[1].samples == 5
    assert torch.equal(both[1].spectrum.eigenvalues, alone[1].spectrum.eigenvalues)


def test_trap_09_class_with_one_sample_and_class_without() -> None:
    net = Small()
    x = torch.randn(3, 1, 4, 4, generator=seeded(8), dtype=torch.float64)
    one = class_spectra(net, x, torch.tensor([0, 0, 1]), [1], steps=10)[1]
    assert one.samples == 1
    assert one.spectrum.eigenvalues.isfinite().all()
    with pytest.raises(ValueError, match="class 2 has no images"):
        class_spectra(net, x, torch.tensor([0, 0, 1]), [2])


def test_only_trainable_weights_of_a_net_count(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small(), data
    net.features.requires_grad_(False)
    spectrum = class_spectra(net, x, y, [0], steps=64)[0].spectrum
    assert len(spectrum.eigenvalues) == 51  # the head alone, where the loss is convex
    assert spectrum.minimum > -1e-12


@pytest.mark.parametrize(("values", "top"), [([1.0, -4.0, 2.0], -4.0), ([0.5, 3.0, -1.0], 3.0)])
def test_top_eigenvalue_is_the_largest_magnitude(values: list[float], top: float) -> None:
    loss, w = quadratic(torch.diag(torch.tensor(values)))
    assert top_eigenvalue(loss, [w], tolerance=1e-6) == pytest.approx(top, rel=1e-3)


def test_top_eigenvalue_agrees_with_lanczos(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small().eval(), data
    spectrum = hessian_spectrum(lambda: cross_entropy(net(x), y), net.parameters())
    top = top_eigenvalue(lambda: cross_entropy(net(x), y), net.parameters())
    assert top == pytest.approx(spectrum.maximum, rel=0.01)


def test_mistakes_are_named() -> None:
    w, frozen = torch.ones(2, requires_grad=True), torch.ones(3)
    with pytest.raises(ValueError, match=r"requires_grad=False for shapes \[\(3,\)\]"):
        hessian_spectrum(lambda: (w**2).sum(), [w, frozen])
    with pytest.raises(ValueError, match="parameters must be trainable"):
        hessian_spectrum(lambda: (w**2).sum(), [])
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        hessian_spectrum(lambda: w**2, [w])
    with pytest.raises(ValueError, match="requires_grad=False"):
        hessian_spectrum(lambda: (frozen**2).sum(), [w])
    with pytest.raises(ValueError, match="nan"):
        hessian_spectrum(lambda: (w * math.nan).sum(), [w])
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        hessian_spectrum(lambda: (w**2).sum(), [w], steps=0)


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    given = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in given if p.default not in (inspect.Parameter.empty, None, cross_entropy)}


def test_defaults_are_those_of_the_documentation() -> None:
    assert defaults(hessian_spectrum) == {"steps": 64, "probes": 4, "reorthogonalise": True}
    assert defaults(sample_spectrum) == {"steps": 64, "probes": 1, "chunk": 256, "reorthogonalise": True}
    assert defaults(class_spectra) == {**defaults(sample_spectrum), "max_samples": 1024}
    assert defaults(top_eigenvalue) == {"iterations": 100, "tolerance": 1e-3}
    assert defaults(Spectrum.density) == {"points": 10_000}


def test_non_convexity_of_flat_and_falling_losses() -> None:
    def ratio(low: float, high: float) -> float:
        return Spectrum(torch.zeros(1), torch.ones(1), low, high, 0.0, 0.0).ratio

    assert (ratio(-1, 4), ratio(1, 4), ratio(-4, 0), ratio(0, 0), ratio(-4, -2)) == (0.25, 0.25, math.inf, 0, 2)


def test_probes_and_subset_of_a_class_follow_from_the_generator_and_its_number(data: tuple[Tensor, Tensor]) -> None:
    """Literally: the seed is a draw plus the class, the subset comes first, then the signs."""
    net, (x, y) = Small().eval(), data
    found = class_spectra(net, x, y, [2], steps=5, probes=2, max_samples=4, generator=seeded(3))[2]
    own = seeded(int(torch.randint(2**62, (), generator=seeded(3))) + 2)
    rows = (y == 2).nonzero()[:, 0]
    rows = rows[torch.randperm(10, generator=own)[:4]].sort().values
    alone = hessian_spectrum(
        lambda: cross_entropy(net(x[rows]), y[rows]), net.parameters(), steps=5, probes=2, generator=own
    )
    torch.testing.assert_close(found.spectrum.eigenvalues, alone.eigenvalues)
    assert found.samples == 4
    assert found.loss == pytest.approx(cross_entropy(net(x[rows]), y[rows]).item())
    assert class_spectra(net, x, y, [0], steps=5, max_samples=10)[0].samples == 10
    assert class_spectra(net, x, y, [0], steps=5, max_samples=None)[0].samples == 10
    usual, again = (class_spectra(net, x, y, [0], steps=5, generator=g)[0] for g in (None, seeded(0)))
    assert torch.equal(usual.spectrum.eigenvalues, again.spectrum.eigenvalues)


def test_options_of_class_spectra_reach_the_spectrum(data: tuple[Tensor, Tensor]) -> None:
    net, (x, y) = Small().eval(), data
    two = class_spectra(net, x, y, [1], steps=5, probes=2)[1].spectrum
    assert len(two.eigenvalues) == 10
    scaled = class_spectra(net, x, y, [1], steps=5, loss=lambda z, t: 3 * cross_entropy(z, t))[1]
    once = class_spectra(net, x, y, [1], steps=5)[1]
    assert scaled.loss == pytest.approx(3 * once.loss)
    assert scaled.spectrum.maximum == pytest.approx(3 * once.spectrum.maximum)
    long = [class_spectra(net, x, y, [1], steps=90, reorthogonalise=keep)[1].spectrum for keep in (True, False)]
    copies = [int((s.eigenvalues > s.maximum - 1e-6).sum()) for s in long]
    assert copies[0] == 1 < copies[1]


def test_power_iteration_stops_when_it_says(data: tuple[Tensor, Tensor]) -> None:  # noqa: ARG001
    loss, w = quadratic(torch.diag(torch.tensor([1.0, 0.9], dtype=torch.float64)))
    start = torch.randn(2, dtype=torch.float64, generator=seeded(0))
    values = []
    for power in range(60):
        v = start * torch.tensor([1.0, 0.9], dtype=torch.float64) ** power
        values.append(float((v.square() * torch.tensor([1.0, 0.9])).sum() / v.square().sum()))
    assert top_eigenvalue(loss, [w], iterations=1) == pytest.approx(values[0])
    assert top_eigenvalue(loss, [w], iterations=4, tolerance=0.0) == pytest.approx(values[3])
    stop = next(i for i in range(1, 60) if abs(values[i] - values[i - 1]) <= 1e-3 * values[i])
    assert top_eigenvalue(loss, [w]) == pytest.approx(values[stop], rel=1e-9)
    assert top_eigenvalue(loss, [w], generator=seeded(5)) != pytest.approx(values[stop], rel=1e-9)


def test_tokens_stay_whole_numbers_and_images_take_the_networks_precision() -> None:
    net = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    found = sample_spectrum(net, torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1]), steps=4)
    assert found.samples == 2
    double = nn.Linear(3, 2).double()
    assert sample_spectrum(double, torch.randn(4, 3, generator=seeded(0)), torch.tensor([0, 1, 0, 1]), steps=3).loss > 0
