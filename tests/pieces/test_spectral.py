"""gSR against exact singular values and a literal transcription; the numbers of spec 02, section 10a."""

from __future__ import annotations

import io
import math
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenhand.pieces.spectral import (
    class_spectral_norms,
    conditional_parameters,
    group_normalised,
    group_spectral_norm,
    gsr_loss,
    gsrip_loss,
    inverse_effective_number,
    near_square,
)

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
CIFAR10_LT_1000 = [5000, 2320, 1077, 500, 232, 107, 50, 23, 10, 5]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def exact(weights: Tensor, rows: int) -> Tensor:
    return torch.linalg.svdvals(weights.view(len(weights), rows, -1))[:, 0]


def literal_gsr(gains: list[Tensor], biases: list[Tensor], counts: list[int], alpha: float) -> Tensor:
    """Layer by layer, class by class, through torch's SVD."""
    total = torch.zeros((), dtype=gains[0].dtype)
    for gain, bias in zip(gains, biases, strict=True):
        rows = max(r for r in range(1, gain.shape[1] + 1) if gain.shape[1] % r == 0 and r * r <= gain.shape[1])
        for y, n in enumerate(counts):
            weight = (1 - alpha) / (1 - alpha**n)
            for table in (gain, bias):
                matrix = torch.stack([table[y, i : i + table.shape[1] // rows] for i in
                                      range(0, table.shape[1], table.shape[1] // rows)])  # fmt: skip
                total = total + weight * torch.linalg.svdvals(matrix)[0] ** 2
    return total


def test_near_square_groups_are_the_specs() -> None:
    table = {64: (8, 8), 80: (8, 10), 128: (8, 16), 160: (10, 16), 256: (16, 16), 320: (16, 20), 384: (16, 24),
             512: (16, 32), 640: (20, 32), 1024: (32, 32), 1280: (32, 40)}  # fmt: skip
    assert {width: near_square(width) for width in table} == table
    with pytest.warns(UserWarning, match="13 channels cannot be grouped"):
        assert near_square(13) == (1, 13)


def test_class_weights_are_the_specs() -> None:
    weights = inverse_effective_number([5000, 50, 5, 1])
    np.testing.assert_allclose(weights, [0.01, 0.0253167, 0.2040402, 1.0], atol=2e-7)
    assert torch.equal(inverse_effective_number([7, 3], alpha=0), torch.ones(2, dtype=torch.float64))
    np.testing.assert_allclose(inverse_effective_number([4, 9], 1 - 1e-9), [1 / 4, 1 / 9], rtol=1e-6)
    falling = inverse_effective_number(range(1, 200))
    assert (falling.diff() < 0).all()
    for counts, alpha, expected in [
        (CIFAR10_LT, 0.99, [0.784, 0.784, 0.784, 0.784, 0.785, 0.800, 0.868, 1.041, 1.385, 1.984]),
        (CIFAR10_LT, 0.999, [0.181, 0.189, 0.216, 0.273, 0.378, 0.561, 0.869, 1.386, 2.258, 3.688]),
        (CIFAR10_LT_1000, 0.99, [0.223, 0.223, 0.223, 0.224, 0.247, 0.338, 0.564, 1.080, 2.331, 4.547]),
        ([50000, 15811, 5000, 1581, 500], 0.99, [0.999, 0.999, 0.999, 0.999, 1.005]),
    ]:
        mean_one = inverse_effective_number(counts, alpha)
        np.testing.assert_allclose(mean_one / mean_one.mean(), expected, atol=6e-4)


def test_known_norms() -> None:
    assert group_spectral_norm(torch.ones(1, 256)).item() == pytest.approx(16)  # rank one
    vectors = normal(3, 24)
    torch.testing.assert_close(group_spectral_norm(vectors, 1), vectors.norm(dim=1))
    transposed = vectors.view(3, 4, 6).mT.reshape(3, 24)
    torch.testing.assert_close(group_spectral_norm(vectors, (4, 6)), group_spectral_norm(transposed, (6, 4)))
    unit = vectors.new_tensor(np.linalg.qr(normal(256, 256).numpy())[0])  # orthogonal initialisation
    sigma = group_spectral_norm(unit)
    assert (sigma >= 0.25).all()
    assert (sigma <= 1).all()
    assert sigma.mean().item() == pytest.approx(0.46, abs=0.01)
    wide = vectors.new_tensor(np.linalg.qr(normal(384, 384).numpy())[0])
    assert group_spectral_norm(wide).mean().item() == pytest.approx(0.425, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("width", "rows"), [(256, 16), (384, 16), (80, 8), (12, 6), (7, 7)])
def test_cold_start_is_exact_in_default_settings(width: int, rows: int, dtype: torch.dtype) -> None:
    weights = normal(200, width, dtype=dtype)
    sigma = group_spectral_norm(weights, rows)
    truth = exact(weights, rows)
    torch.testing.assert_close(sigma, truth, rtol=1e-5, atol=0)
    assert (sigma <= truth * (1 + 1e-6)).all()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 7),
    columns=st.integers(1, 7),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    rank=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_any_shape_scale_and_rank(rows: int, columns: int, scale: float, rank: int, seed: int) -> None:
    left, right = normal(4, rows, rank, seed=seed), normal(4, rank, columns, seed=seed + 1)
    weights = (scale * left @ right).flatten(1).float()
    for state in (None, {}):
        sigma = group_spectral_norm(weights, (rows, columns), state=state)
        torch.testing.assert_close(sigma, exact(weights, rows), rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("state", [None, {}], ids=["cold", "with_state"])
def test_gradient_is_that_of_the_exact_singular_value(state: dict[str, Tensor] | None) -> None:
    ours, theirs = (normal(20, 48).requires_grad_() for _ in range(2))
    weight = normal(20, seed=1)
    (weight * group_spectral_norm(ours, 6, state=state) ** 2).sum().backward()
    (weight * exact(theirs, 6) ** 2).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_gradient_is_twice_sigma_u_v() -> None:
    weights = normal(3, 48).requires_grad_()
    group_spectral_norm(weights, 6).square().sum().backward()
    u, s, vh = torch.linalg.svd(weights.detach().view(3, 6, 8))
    expected = 2 * s[:, 0, None, None] * u[:, :, :1] * vh[:, :1]
    torch.testing.assert_close(weights.grad, expected.reshape(3, 48))
    eps, bump = 1e-4, normal(3, 48, seed=2)
    change = [group_spectral_norm(weights.detach() + sign * eps * bump, 6).square().sum() for sign in (1, -1)]
    assert float(change[0] - change[1]) / (2 * eps) == pytest.approx(float((weights.grad * bump).sum()), rel=1e-4)


def test_warm_start_follows_a_drift_and_never_exceeds_the_truth() -> None:
    weights, state, quality = normal(100, 256), {}, []
    for step in range(100):
        weights = weights + 0.01 * normal(100, 256, seed=step + 1)
        quality.append(group_spectral_norm(weights, state=state) / exact(weights, 16))
    ratio = torch.stack(quality)
    assert ratio.max() <= 1 + 1e-12
    assert ratio.min() > 0.97
    assert ratio.mean() > 0.9999


def test_more_iterations_only_improve() -> None:
    start: dict[str, Tensor] = {}
    group_spectral_norm(normal(50, 256, seed=9), state=start)  # vectors of another matrix: a cold power iteration
    weights, errors = normal(50, 256), []
    for iterations in (1, 4, 10, 100, 1000):
        ratio = group_spectral_norm(weights, iterations=iterations, state=dict(start)) / exact(weights, 16)
        errors.append(float(1 - ratio.mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] == pytest.approx(1 - 0.744, abs=0.04)  # spec 02, 10a.9
    assert errors[1] == pytest.approx(1 - 0.950, abs=0.02)
    assert errors[-1] < 1e-4


def test_vectors_recover_from_zero_orthogonal_and_broken_weights() -> None:
    state: dict[str, Tensor] = {}
    assert group_spectral_norm(torch.zeros(2, 16), state=state).tolist() == [0, 0]
    group_spectral_norm(torch.full((2, 16), math.nan), state=state)
    first, last = torch.diag(torch.tensor([3.0, 1, 1, 1])), torch.diag(torch.tensor([1.0, 1, 1, 3]))
    for matrix in (first, last):
        for _ in range(4):
            sigma = group_spectral_norm(matrix.view(1, 16).repeat(2, 1), state=state)
        torch.testing.assert_close(sigma, torch.tensor([3.0, 3.0]), rtol=1e-3, atol=0)
    assert group_spectral_norm(torch.full((1, 16), math.nan)).isnan().all()
    zero = torch.zeros(2, 16, requires_grad=True)
    gsr_loss([zero], [zero], [5, 1]).backward()
    assert torch.equal(zero.grad, torch.zeros(2, 16))


@pytest.mark.parametrize("alpha", [0.0, 0.9, 0.99])
def test_loss_and_gradient_are_the_equation(alpha: float) -> None:
    counts, widths = [40, 9, 1], [12, 30, 12]
    shapes = [(3, width) for width in widths]
    ours, theirs = ([[normal(*s, seed=10 * k + i).requires_grad_() for i, s in enumerate(shapes)] for k in (0, 1)]
                    for _ in range(2))  # fmt: skip
    value, expected = gsr_loss(*ours, counts, alpha=alpha), literal_gsr(*theirs, counts, alpha)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    for mine, other in zip(chain(*ours), chain(*theirs), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_forms_at_equal_norms() -> None:
    counts, layers, s = CIFAR10_LT, 3, 1.7
    tables = [s * torch.eye(4).flatten().repeat(10, 1) for _ in range(layers)]
    weights = inverse_effective_number(counts)
    assert gsr_loss(tables, tables, counts, form="mean").item() == pytest.approx(2 * s**2)
    assert gsr_loss(tables, tables, counts).item() == pytest.approx(float(2 * s**2 * layers * weights.sum()))
    assert gsr_loss(tables, [], counts, form="mean").item() == pytest.approx(s**2)  # no biases, as in StyleGAN2
    for table, alpha, expected in [
        (CIFAR10_LT, 0.99, 0.765),
        (CIFAR10_LT, 0.999, 0.333),
        (CIFAR10_LT_1000, 0.99, 2.69),
    ]:
        assert float(6 * inverse_effective_number(table, alpha).sum()) == pytest.approx(expected, rel=3e-3)


def test_trap_02_gain_and_bias_have_their_own_vectors() -> None:
    """With the gain's right vectors the bias would come out a quarter too small (0.75 on random 16 x 16)."""
    gains, biases, state = [normal(30, 256)], [normal(30, 256, seed=1)], {}
    for _ in range(5):
        norms = class_spectral_norms([*gains, *biases], state=state)
        torch.testing.assert_close(norms[0], exact(gains[0], 16), rtol=1e-3, atol=0)
        torch.testing.assert_close(norms[1], exact(biases[0], 16), rtol=1e-3, atol=0)
        torch.testing.assert_close(
            gsr_loss(gains, biases, [5] * 30, state=state),
            literal_gsr(gains, biases, [5] * 30, 0.99),
            rtol=1e-3,
            atol=0,
        )
    assert sum(len(vectors) for vectors in state.values()) == 60
    _, _, right = torch.linalg.svd(gains[0].view(30, 16, 16))
    borrowed = torch.linalg.vector_norm(biases[0].view(30, 16, 16) @ right[:, 0, :, None], dim=1).squeeze(1)
    assert (borrowed / norms[1]).mean() < 0.8  # what the trap looks like


def test_trap_04_state_survives_a_checkpoint_bit_for_bit() -> None:
    def drift(step: int) -> list[Tensor]:
        return [normal(4, width, dtype=torch.float32) + 0.05 * step * normal(4, width, seed=step, dtype=torch.float32)
                for width in (16, 24)]  # fmt: skip

    state: dict[str, Tensor] = {}
    for step in range(3):
        gsr_loss(drift(step), drift(step + 50), [9, 5, 2, 1], iterations=1, state=state)
    assert all(isinstance(value, Tensor) and not value.requires_grad for value in state.values())
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    resumed = torch.load(file, weights_only=True)
    for step in range(3, 6):
        values = [
            gsr_loss(drift(step), drift(step + 50), [9, 5, 2, 1], iterations=1, state=vectors)
            for vectors in (state, resumed)
        ]
        assert torch.equal(*values)
    assert not torch.equal(values[0], gsr_loss(drift(5), drift(55), [9, 5, 2, 1], iterations=1))  # state matters


def test_descent_on_a_rank_one_matrix() -> None:
    weights = (3 / 4 * torch.ones(1, 16)).requires_grad_()  # sigma 3
    for _ in range(5):
        (grad,) = torch.autograd.grad(group_spectral_norm(weights).square().sum(), weights)
        weights = (weights - 0.1 * grad).detach().requires_grad_()
    assert group_spectral_norm(weights).item() == pytest.approx(0.98304, rel=1e-5)


def test_water_filling_shrinks_only_the_largest() -> None:
    a, mu, c = normal(1, 36), 1.0, 0.02
    u, s, vh = torch.linalg.svd(a.view(6, 6))
    weights = a.clone().requires_grad_()
    for _ in range(400):
        objective = -(a * weights).sum() + mu / 2 * weights.square().sum() + c * group_spectral_norm(weights)[0] ** 2
        (grad,) = torch.autograd.grad(objective, weights)
        weights = (weights - 0.2 * grad).detach().requires_grad_()
    expected = s / mu
    expected[0] = s[0] / (mu + 2 * c)
    assert expected[0] > expected[1]
    torch.testing.assert_close(weights.detach().view(6, 6), u @ expected.diag() @ vh, rtol=1e-5, atol=1e-6)


def test_on_the_sphere_the_penalty_decorrelates_the_groups() -> None:
    weights = normal(1, 256)
    for step in range(600):
        weights = (weights / weights.norm()).detach().requires_grad_()
        (grad,) = torch.autograd.grad(group_spectral_norm(weights).square().sum(), weights)
        weights = weights.detach() - 0.3 * 0.99**step * grad
    matrix = (weights / weights.norm()).view(16, 16)
    gram = matrix @ matrix.T
    np.testing.assert_allclose(torch.linalg.svdvals(matrix), 0.25, atol=2e-3)
    assert (gram - gram.diag().diag()).norm() / gram.norm() < 0.005


def test_baselines_gsn_and_gsrip() -> None:
    weights = normal(5, 48)
    torch.testing.assert_close(group_spectral_norm(group_normalised(weights)), torch.ones(5, dtype=torch.float64))
    assert torch.equal(group_normalised(torch.zeros(2, 4)), torch.zeros(2, 4))
    orthonormal = torch.eye(4, 6).flatten()[None]
    assert gsrip_loss([orthonormal], [orthonormal], [1]).item() == pytest.approx(0, abs=1e-10)
    assert gsrip_loss([torch.zeros(1, 16)], [], [1]).item() == pytest.approx(1)
    ours, theirs = weights.clone().requires_grad_(), weights.clone().requires_grad_()
    counts = [9, 7, 5, 2, 1]
    grouped = theirs.view(5, 6, 8)
    eigenvalues = torch.linalg.eigvalsh(grouped @ grouped.mT - torch.eye(6))
    expected = (inverse_effective_number(counts) * eigenvalues.abs().amax(1) ** 2).sum()
    value = gsrip_loss([ours], [], counts)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


class Table(nn.Module):
    """The protocol a conditional layer follows."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(normal(classes, width, dtype=torch.float32))
        self.bias = nn.Parameter(normal(classes, width, seed=1, dtype=torch.float32))

    def class_parameters(self) -> tuple[Tensor, Tensor]:
        return self.gain, self.bias


class Shared(nn.Module):
    """BigGAN's: linear maps of a shared embedding with a noise chunk, here zero."""

    def __init__(self, embedding: nn.Embedding, noise: int, width: int) -> None:
        super().__init__()
        self.embedding, self.noise = [embedding], noise
        self.to_gain = nn.Linear(embedding.embedding_dim + noise, width, bias=False)
        self.to_bias = nn.Linear(embedding.embedding_dim + noise, width, bias=False)

    def class_parameters(self) -> tuple[Tensor, Tensor]:
        classes = self.embedding[0].weight
        padded = torch.cat([classes, classes.new_zeros(len(classes), self.noise)], 1)
        return self.to_gain(padded), self.to_bias(padded)


def test_conditional_layers_are_found_and_only_their_parameters_move() -> None:
    generator = nn.Sequential(nn.Conv2d(3, 4, 1), Table(3, 16), nn.Sequential(Table(3, 24), nn.BatchNorm2d(4)))
    gains, biases = conditional_parameters(generator)
    assert [tuple(t.shape) for t in gains + biases] == [(3, 16), (3, 24)] * 2
    gsr_loss(gains, biases, [9, 3, 1]).backward()
    moved = {name for name, p in generator.named_parameters() if p.grad is not None}
    assert moved == {"1.gain", "1.bias", "2.0.gain", "2.0.bias"}
    with pytest.raises(ValueError, match="Linear has no conditional BatchNorm"):
        conditional_parameters(nn.Linear(2, 2))


def test_shared_embedding_and_its_maps_get_gradient_but_the_noise_columns_none() -> None:
    embedding = nn.Embedding(4, 5)
    layer = Shared(embedding, noise=3, width=16)
    gsr_loss(*conditional_parameters(layer), [9, 5, 3, 1]).backward()
    assert (embedding.weight.grad.abs().sum(1) > 0).all()
    for linear in (layer.to_gain, layer.to_bias):
        assert (linear.weight.grad[:, :5] != 0).any()
        assert torch.equal(linear.weight.grad[:, 5:], torch.zeros(16, 3))


@pytest.mark.parametrize("classes", [1, 2])
def test_one_or_two_classes_and_a_class_of_one_image(classes: int) -> None:
    tables = [normal(classes, 16)]
    counts = [1, 300][:classes]
    torch.testing.assert_close(gsr_loss(tables, tables, counts), literal_gsr(tables, tables, counts, 0.99))


def test_half_precision_and_autocast_compute_in_float32() -> None:
    weights = normal(6, 64, dtype=torch.float32)
    half = weights.bfloat16().requires_grad_()
    expected = gsr_loss([weights.bfloat16().float()], [], [1] * 6)
    with torch.autocast("cpu", torch.bfloat16):
        value = gsr_loss([half], [], [1] * 6, state={})
        autocast = gsrip_loss([weights], [], [1] * 6)
    torch.testing.assert_close(autocast, gsrip_loss([weights], [], [1] * 6))
    torch.testing.assert_close(value, expected)
    value.backward()
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.usefixtures("global_randomness_untouched")
def test_nothing_is_random() -> None:
    weights = normal(3, 64)
    assert torch.equal(gsr_loss([weights], [], [1, 2, 3], state={}), gsr_loss([weights], [], [1, 2, 3], state={}))


def test_bad_arguments_name_the_remedy() -> None:
    table = torch.zeros(3, 16)
    state: dict[str, Tensor] = {}
    group_spectral_norm(table, state=state)
    for call, message in [
        (lambda: group_spectral_norm(torch.zeros(16)), r"weights of shape \(16,\): expected \(K, d\)"),
        (lambda: group_spectral_norm(table, 5), r"groups=\(5, 3\) do not hold 16 channels"),
        (lambda: group_spectral_norm(table, (2, 4)), r"groups=\(2, 4\) do not hold 16"),
        (lambda: group_spectral_norm(table, iterations=0), "iterations=0: power iteration takes at least 1"),
        (lambda: group_spectral_norm(torch.zeros(2, 16), state=state), "one state per network"),
        (lambda: gsr_loss([table], [table], [1, 2]), r"table 0 has shape \(3, 16\): expected \(K, d\) with K=2"),
        (lambda: gsr_loss([table, table], [table], [1, 2, 3]), "2 gains and 1 biases"),
        (lambda: gsr_loss([], [], [1, 2, 3]), "tables is empty"),
        (lambda: gsr_loss([table], [], [1, 0, 3]), "expected one positive number per class"),
        (lambda: gsr_loss([table], [], [1, 2, 3], alpha=1.0), r"alpha=1.0 is outside \[0, 1\)"),
        (lambda: gsr_loss([table], [], [1, 2, 3], form="code"), "form='code': choose 'sum' or 'mean'"),
        (lambda: class_spectral_norms([table, torch.zeros(2, 16)]), "table 1 has shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
