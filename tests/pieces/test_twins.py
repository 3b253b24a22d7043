"""NoisyTwins' noise and loss against a literal transcription; the numbers of spec 03, section 10a; two processes.

Run as a script this file is one of the two processes of trap 3.
"""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenhand import parallel
from evenhand.pieces.twins import EmbeddingNoise, cross_correlation, noise_scale, noisy, twins_loss

CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def literal(first: Tensor, second: Tensor, off_diagonal: float) -> Tensor:
    """Spec 03, 2.3, number by number."""
    n, d = first.shape
    standard = []
    for half in (first, second):
        columns = []
        for j in range(d):
            mean = sum(half[i, j] for i in range(n)) / n
            variance = sum((half[i, j] - mean) ** 2 for i in range(n)) / n
            columns.append([(half[i, j] - mean) / (variance + 1e-5) ** 0.5 for i in range(n)])
        standard.append(columns)
    total = torch.zeros((), dtype=first.dtype)
    for j in range(d):
        for k in range(d):
            c = sum(standard[0][j][i] * standard[1][k][i] for i in range(n)) / n
            total = total + ((1 - c) ** 2 if j == k else off_diagonal * c**2)
    return total


def terms(first: Tensor, second: Tensor) -> tuple[float, float]:
    diagonal = float(twins_loss(first, second, off_diagonal=0.0))
    return diagonal, float(twins_loss(first, second, off_diagonal=1.0)) - diagonal


# noise


def test_scales_are_the_specs() -> None:
    expected = [0.58787, 0.58787, 0.58787, 0.58789, 0.58878, 0.60015, 0.65112, 0.78106, 1.03907, 1.48831]
    scale = noise_scale(CIFAR10_LT, 0.75, 0.99)
    assert scale.tolist() == pytest.approx(expected, abs=1e-5)
    assert scale.mean().item() == pytest.approx(0.75)
    assert scale.dtype == torch.float32  # a float64 column would make float64 embeddings
    for imbalance, tail in ((200, 2.05457), (50, 1.07772)):
        counts = [int(5000 * imbalance ** (-i / 9) + 1e-9) for i in range(10)]
        assert noise_scale(counts, 0.75, 0.99)[-1].item() == pytest.approx(tail, abs=1e-5)


def test_scales_at_the_ends_of_alpha() -> None:
    assert noise_scale(CIFAR10_LT, 0.3, 0.0).tolist() == pytest.approx([0.3] * 10)
    inverse = 1 / torch.tensor(CIFAR10_LT, dtype=torch.float64)
    nearly = noise_scale(CIFAR10_LT, 0.75, 1 - 1e-12).double()
    torch.testing.assert_close(nearly, 0.75 * inverse / inverse.mean(), rtol=1e-5, atol=0)
    assert noise_scale([3], 0.5, 0.99).tolist() == [0.5]
    assert noise_scale([3, 1], 0.0, 0.99).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("classes", "std", "cosine"),
    [(10, 0.5879, 0.224), (10, 1.488, 0.043), (1010, 0.1, 0.090), (1000, 0.25, 0.016), (20, 0.5, 0.167)],
)
def test_noise_dominates_the_embeddings_at_first(classes: int, std: float, cosine: float) -> None:
    """10a.2: twins' cosine is (1/C) / (1/C + s^2), so training must grow the embeddings."""
    y = torch.arange(256) % classes
    table = normal(classes, 512) / classes**0.5
    chance = torch.Generator().manual_seed(1)
    twins = [noisy(table[y], y, torch.full((classes,), std), chance) for _ in range(2)]
    assert float(torch.cosine_similarity(*twins, dim=1).mean()) == pytest.approx(cosine, abs=0.006)


def test_noise_has_the_classes_own_scale_and_labels_may_be_one_hot() -> None:
    y, scale = torch.arange(3).repeat(2000), torch.tensor([0.1, 1.0, 5.0])
    given = torch.ones(6000, 8)
    noise = noisy(given, y, scale, torch.Generator().manual_seed(0)) - given
    for k, std in enumerate(scale.tolist()):
        assert noise[y == k].std().item() == pytest.approx(std, rel=0.02)
        assert noise[y == k].mean().item() == pytest.approx(0, abs=0.05 * std)
    for kind in (torch.float32, torch.int64, torch.bool):  # torch's own one_hot is of integers
        one_hot = noisy(given, torch.eye(3)[y].to(kind), scale, torch.Generator().manual_seed(0)) - given
        assert torch.equal(one_hot, noise)
    assert noisy(given.bfloat16(), y, scale, torch.Generator()).dtype == torch.bfloat16


class Mapping(nn.Module):
    """Somebody else's: StyleGAN2-ADA's, which embeds one-hot labels and normalises."""

    def __init__(self, classes: int, d: int) -> None:
        super().__init__()
        self.embed, self.net = nn.Linear(classes, d), nn.Sequential(nn.Linear(2 * d, d), nn.LeakyReLU(0.2))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        parts = [z, self.embed(nn.functional.one_hot(y, self.embed.in_features).float())]
        return self.net(torch.cat([x * (x.square().mean(1, keepdim=True) + 1e-8).rsqrt() for x in parts], 1))


@pytest.mark.usefixtures("global_randomness_untouched")
def test_two_lines_make_a_mapping_network_noisy_until_it_samples() -> None:
    with torch.random.fork_rng():
        mapping = Mapping(3, 16)
    names, z, y = list(mapping.state_dict()), normal(6, 16, dtype=torch.float32), torch.tensor([0, 1, 2, 0, 1, 1])
    plain = mapping(z, y)
    noise = EmbeddingNoise(mapping.embed, noise_scale([50, 20, 3], sigma=0.5, alpha=0.99), torch.Generator())
    assert list(mapping.state_dict()) == names  # released weights still load
    assert not torch.equal(mapping(z, y), mapping(z, y))
    copies = [copy.deepcopy(mapping), pickle.loads(pickle.dumps(mapping))]
    for sampler in copies:
        assert torch.equal(sampler.eval()(z, y), plain)
    kept = noise.generator.get_state()
    once = mapping(z, y)
    noise.generator.set_state(kept)
    assert torch.equal(mapping(z, y), once)
    noise.remove()
    assert torch.equal(mapping(z, y), plain)


def test_noise_and_loss_reach_the_mapping_network_and_the_classes_drawn() -> None:
    mapping = Mapping(4, 8)
    EmbeddingNoise(mapping.embed, torch.full((4,), 0.3), torch.Generator())
    z, y = normal(5, 8, dtype=torch.float32), torch.tensor([0, 1, 1, 3, 0])
    twins_loss(*mapping(torch.cat([z, z]), torch.cat([y, y])).chunk(2), off_diagonal=0.05).backward()
    moved = mapping.embed.weight.grad.abs().sum(0) > 0
    assert moved.tolist() == [True, True, False, True]  # 10a.6
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mapping.parameters())


# loss


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_loss_and_gradients_are_the_equation(rows: int) -> None:
    ours, theirs = ([(3 * normal(rows, 5, seed=s) + 7).requires_grad_() for s in (1, 2)] for _ in range(2))
    value, expected = twins_loss(*ours, off_diagonal=0.05), literal(*theirs, 0.05)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_correlation_is_that_of_batchnorms_outputs() -> None:
    first, second = (normal(64, 32, seed=s, dtype=torch.float32) * torch.logspace(-1, 2, 32) for s in (1, 2))
    bare = nn.BatchNorm1d(32, affine=False)
    torch.testing.assert_close(cross_correlation(first, second), bare(first).T @ bare(second) / 64, rtol=0, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(2, 9), d=st.integers(1, 6), seed=st.integers(0, 2**32), gamma=st.floats(0, 2))
def test_swapping_halves_and_affine_maps_change_nothing(rows: int, d: int, seed: int, gamma: float) -> None:
    first, second = (100 * normal(rows, d, seed=seed + s) for s in (0, 1))  # large, so that 1e-5 does not count
    assume(min(half.var(0, correction=0).min() for half in (first, second)) > 10)
    value = twins_loss(first, second, off_diagonal=gamma)
    torch.testing.assert_close(twins_loss(second, first, off_diagonal=gamma), value)
    torch.testing.assert_close(twins_loss(first.flip(0), second.flip(0), off_diagonal=gamma), value)
    gain, shift = 1 + normal(d, seed=seed + 2).abs(), 50 * normal(d, seed=seed + 3)
    mapped = twins_loss(first * gain + shift, second * gain + shift, off_diagonal=gamma)
    torch.testing.assert_close(mapped, value, rtol=1e-4, atol=1e-4)


def test_identical_twins_have_no_diagonal_term_and_opposite_ones_the_largest() -> None:
    w = normal(64, 16)
    assert terms(w, w)[0] == pytest.approx(0, abs=1e-8)
    assert terms(w, -w)[0] == pytest.approx(4 * 16, rel=1e-4)  # 1 - c^2, as printed in the thesis, would be 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dead_dimension_counts_one_and_gives_no_nan(dtype: torch.dtype) -> None:
    first, second = (normal(6, 4, seed=s, dtype=torch.float32).to(dtype) for s in (1, 2))
    alive = [0, 2, 3]
    expected = twins_loss(first[:, alive], second[:, alive], off_diagonal=0.5) + 1
    first[:, 1] = second[:, 1] = 0.1
    first, second = first.requires_grad_(), second.requires_grad_()
    value = twins_loss(first, second, off_diagonal=0.5)
    torch.testing.assert_close(value, expected)
    value.backward()
    assert first.grad.isfinite().all()
    assert second.grad.isfinite().all()


def test_batch_of_two_and_all_dead() -> None:
    first, second = torch.tensor([[1.0, 5.0], [3.0, 1.0]]), torch.tensor([[0.0, 9.0], [8.0, 90.0]])
    assert terms(first, second) == pytest.approx((4.0, 2.0), rel=1e-4)  # correlations are +1 or -1
    zeros = torch.zeros(2, 3, requires_grad=True)
    value = twins_loss(zeros, zeros, off_diagonal=1.0)
    value.backward()
    assert value.item() == 3
    assert zeros.grad.isfinite().all()


def test_rank_floor_separates_collapse_from_diversity() -> None:
    """10a.4 and 5, d = 512, N = 64: off-diagonal energy >= d^2 / rank - d."""
    random = normal(64, 512)
    y = torch.randint(10, (64,), generator=torch.Generator().manual_seed(0))
    collapsed, evenly = (normal(10, 512, seed=1)[labels] for labels in (y, torch.arange(60) % 10))
    floors = [512**2 / rank - 512 for rank in (63, 9)]
    assert floors == pytest.approx([3649.0, 28615.1], abs=0.05)
    assert terms(random, random)[1] == pytest.approx(4160, rel=0.01)
    assert terms(collapsed, collapsed)[1] == pytest.approx(33270, rel=0.1)
    assert terms(evenly, evenly)[1] == pytest.approx(floors[1], rel=0.03)
    independent = terms(random, normal(64, 512, seed=3))
    assert independent == pytest.approx((520.1, 4152.9), rel=0.03)


def test_half_precision_and_autocast_compute_in_float32() -> None:
    first, second = (normal(16, 8, seed=s, dtype=torch.float32) for s in (1, 2))
    expected = twins_loss(first.bfloat16().float(), second.bfloat16().float(), off_diagonal=0.05)
    half = first.bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = twins_loss(half, second.bfloat16(), off_diagonal=0.05)
    assert torch.equal(value, expected)
    value.backward()
    assert half.grad.dtype == torch.bfloat16


def test_loss_is_twice_differentiable() -> None:
    first, second = (normal(4, 3, seed=s).requires_grad_() for s in (1, 2))
    assert torch.autograd.gradgradcheck(lambda a, b: twins_loss(a, b, off_diagonal=0.3), (first, second))


def test_bad_arguments_name_the_remedy() -> None:
    w = torch.zeros(4, 3)
    for call, message in [
        (lambda: twins_loss(w, w[:2], off_diagonal=0.1), r"shapes \(4, 3\) and \(2, 3\): expected \(N, d\) twice"),
        (lambda: twins_loss(w[:, None], w[:, None], off_diagonal=0.1), "of copies for each layer take the first"),
        (lambda: twins_loss(w[:1], w[:1], off_diagonal=0.1), "1 pair of twins has no correlation: draw at least 2"),
        (lambda: noise_scale([5, 1], -1.0, 0.99), "sigma=-1.0"),
        (lambda: noise_scale([5, 1], 1.0, 1.0), r"alpha=1.0 is outside \[0, 1\)"),
        (lambda: noise_scale([5, 0], 1.0, 0.99), "expected one positive number per class"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


# two processes

SPLITS = {"even": (4, 8), "uneven": (1, 8), "one-sided": (0, 8)}  # rows of the first process, of all


def step(split: str) -> dict[str, Any]:
    """Loss and averaged gradients of a small mapping network, by whoever runs it: one process or one of two."""
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(normal(*p.shape, seed=10 + i))
    first, second = normal(8, 6, seed=1) + 3, normal(8, 6, seed=2) + 3
    cut, end = SPLITS[split]
    rows = slice(None) if parallel.world() == 1 else (slice(0, cut), slice(cut, end))[parallel.rank()]
    loss = twins_loss(net(first[rows]), net(second[rows]), off_diagonal=0.05)
    loss.backward()
    parallel.average_gradients(net.parameters())
    return {"loss": loss.detach(), "grads": [p.grad for p in net.parameters()]}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    parallel.start(torch.device("cpu"))
    assert parallel.world() == 2
    torch.save({name: step(name) for name in SPLITS}, folder / f"{parallel.rank()}.pt")
    parallel.stop()


@pytest.fixture(scope="module")
def both(two_processes: Any) -> list[dict[str, Any]]:
    folder = two_processes(__file__)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("split", SPLITS)
def test_trap_03_two_processes_give_single_process_gradients(both: list[dict[str, Any]], split: str) -> None:
    expected = step(split)
    for found in both:
        torch.testing.assert_close(found[split], expected, rtol=1e-10, atol=1e-12)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
