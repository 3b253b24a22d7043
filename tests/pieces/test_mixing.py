"""Mixup and CutMix: pixel values, label sums, true areas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.pieces.mixing import Partner, cutmix, mixup, mixup_or_cutmix, soft_targets
from helpers import seeded

LABELS = torch.tensor([0, 3, 3, 7, 1, 9])


def flat_images() -> torch.Tensor:
    """Sample i is a constant image of value i: every output pixel tells where it came from."""
    return torch.arange(6.0).view(-1, 1, 1, 1).expand(6, 2, 16, 12).contiguous()


def test_soft_targets_are_the_specs() -> None:
    pure = soft_targets(torch.tensor([2]), 10, 0.1)[0]  # spec 05, check 7
    assert torch.allclose(pure, torch.tensor([0.01, 0.01, 0.91] + [0.01] * 7))
    mixed = 0.7 * soft_targets(torch.tensor([0]), 10, 0.1) + 0.3 * soft_targets(torch.tensor([1]), 10, 0.1)
    assert torch.allclose(mixed[0, :3], torch.tensor([0.64, 0.28, 0.01]))
    assert torch.equal(soft_targets(LABELS, 10), torch.nn.functional.one_hot(LABELS, 10).float())
    assert torch.allclose(soft_targets(soft_targets(LABELS, 10), smoothing=0.1), soft_targets(LABELS, 10, 0.1))


def test_mixup_is_the_equation_with_one_lambda_and_reversed_partners() -> None:
    x = torch.randn(6, 3, 5, 5, generator=seeded(1))
    mixed, target = mixup(x, LABELS, 0.8, seeded(), 10, smoothing=0.1)
    hot = soft_targets(LABELS, 10, 0.1)
    lam = float((target[0, 0] - hot[-1, 0]) / (hot[0, 0] - hot[-1, 0]))
    assert 0 < lam < 1
    for i in range(6):
        assert torch.allclose(mixed[i], lam * x[i] + (1 - lam) * x[5 - i], atol=1e-5)
        assert torch.allclose(target[i], lam * hot[i] + (1 - lam) * hot[5 - i], atol=1e-6)


def test_cutmix_label_weight_is_the_pasted_area() -> None:
    x = flat_images()
    for seed in range(40):
        mixed, target = cutmix(x, LABELS, 1.0, seeded(seed), 10)
        kept = (mixed == x).float().mean((1, 2, 3))
        assert kept.unique().numel() == 1
        assert torch.allclose(target[0, 0], kept[0], atol=1e-6)
        assert set(mixed[0].unique().tolist()) <= {0.0, 5.0}
        changed = (mixed != x)[0, 0]
        box = changed.any(1).sum() * changed.any(0).sum()
        assert changed.sum() == box  # one full rectangle


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_per_sample_lambdas_differ_and_agree_with_the_images(
    mix: Callable[..., tuple[torch.Tensor, torch.Tensor]],
) -> None:
    x = flat_images() if mix is cutmix else flat_images() + 1
    mixed, target = mix(x, torch.arange(6), 1.0, seeded(3), 6, per_sample=True)
    expected = (target * (torch.arange(6.0) + float(x[0, 0, 0, 0]))).sum(1)
    assert torch.allclose(mixed.mean((1, 2, 3)), expected, atol=1e-5)
    assert target.diagonal().unique().numel() > 3


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 999), st.sampled_from(["reversed", "permuted"]), st.booleans())
def test_targets_always_sum_to_one(n: int, seed: int, partner: Partner, per_sample: bool) -> None:
    x, y = torch.rand(n, 1, 6, 6, generator=seeded(seed)), torch.arange(n) % 4
    for mix in (mixup, cutmix):
        mixed, target = mix(x, y, 0.4, seeded(seed), 4, smoothing=0.1, partner=partner, per_sample=per_sample)
        assert torch.allclose(target.sum(1), torch.ones(n), atol=1e-5)
        assert (target >= 0).all()
        assert mixed.shape == x.shape
        assert x.min() - 1e-6 <= mixed.min()
        assert mixed.max() <= x.max() + 1e-6


def test_lambda_follows_beta() -> None:
    lam = [float(mixup(torch.ones(2, 1), torch.tensor([0, 1]), 0.8, seeded(s), 2)[1][0, 0]) for s in range(1500)]
    assert np.mean(lam) == pytest.approx(0.5, abs=0.03)
    assert np.var(lam) == pytest.approx(1 / (4 * 2.6), abs=0.012)  # Beta(a, a) has variance 1 / (4 (2a + 1))


def test_seed_decides_and_the_global_state_stays() -> None:
    x = torch.rand(6, 3, 8, 8)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    for mix in (mixup, cutmix):
        first, second = (mix(x, LABELS, 1.0, seeded(4), 10, partner="permuted") for _ in range(2))
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])


def test_switch_chooses_cutmix_half_of_the_time() -> None:
    x = flat_images()
    pasted = [bool((mixup_or_cutmix(x, LABELS, seeded(s), 10)[0] % 1 == 0).all()) for s in range(300)]
    assert 0.4 < np.mean(pasted) < 0.6
    assert bool((mixup_or_cutmix(x, LABELS, seeded(), 10, switch=1.0)[0] % 1 == 0).all())


def test_gradient_reaches_both_partners() -> None:
    x = torch.rand(4, 1, 4, 4, requires_grad=True)
    mixed, _ = mixup(x, torch.tensor([0, 1, 2, 0]), 1.0, seeded(), 3)
    mixed[0].sum().backward()
    share = x.grad.mean((1, 2, 3))
    assert share[0] > 0
    assert share[3] > 0
    assert torch.allclose(share.sum(), torch.tensor(1.0))
    assert torch.equal(share[1:3], torch.zeros(2))


def test_mistakes_name_the_remedy() -> None:
    x = torch.rand(6, 3, 4, 4)
    with pytest.raises(ValueError, match="give num_classes"):
        mixup(x, LABELS, 1.0, seeded())
    with pytest.raises(ValueError, match="alpha is 0"):
        cutmix(x, LABELS, 0, seeded(), 10)
    with pytest.raises(ValueError, match="choose 'reversed' or 'permuted'"):
        mixup(x, LABELS, 1.0, seeded(), 10, partner="next")
    with pytest.raises(ValueError, match=r"smoothing is 1\.5"):
        soft_targets(LABELS, 10, 1.5)
    with pytest.raises(ValueError, match="10 columns, num_classes is 7"):
        soft_targets(soft_targets(LABELS, 10), 7)
