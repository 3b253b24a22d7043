"""Adversarial losses, R1, LeCam and label draws against the equations and the numbers of specs 01 and 02, 10a."""

from __future__ import annotations

import io
import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evenhand.pieces.gan_losses import (
    Adversarial,
    LeCam,
    discriminator_loss,
    generator_loss,
    r1_penalty,
    sample_labels,
)

KINDS: tuple[Adversarial, ...] = get_args(Adversarial)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def literal(kind: str, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
    """Discriminator's and generator's loss, one score at a time."""
    first, second = [], []
    for r, f in zip(real, fake, strict=True):
        if kind == "relativistic":
            first.append(-torch.log(1 / (1 + torch.exp(-(r - f)))))
            second.append(-torch.log(1 / (1 + torch.exp(-(f - r)))))
        elif kind == "hinge":
            first.append(max(0 * r, 1 - r) + max(0 * f, 1 + f))
            second.append(-f)
        elif kind == "non-saturating":
            first.append(-torch.log(1 / (1 + torch.exp(-r))) - torch.log(1 - 1 / (1 + torch.exp(-f))))
            second.append(-torch.log(1 / (1 + torch.exp(-f))))
        elif kind == "least-squares":
            first.append((r - 1) ** 2 / 2 + f**2 / 2)
            second.append((f - 1) ** 2 / 2)
    return sum(first) / len(first), sum(second) / len(second)


@pytest.mark.parametrize("count", [7, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_parity_with_the_equation(kind: Adversarial, count: int) -> None:
    scores = torch.stack([normal(count), normal(count, seed=1)]) * 1.5
    for player in (0, 1):
        ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        value = discriminator_loss(*ours, kind) if player == 0 else generator_loss(ours[1], kind, ours[0])
        expected = literal(kind, *theirs)[player]
        torch.testing.assert_close(value, expected)
        value.backward()
        expected.backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_numbers_of_the_specs() -> None:
    zero, half = torch.zeros(4), torch.full((4,), 0.5)
    for score in (0.0, 3.0):  # the relativistic loss sees differences only
        same = torch.full((4,), score)
        assert discriminator_loss(same, same, "relativistic").item() == pytest.approx(math.log(2))
        assert generator_loss(same, "relativistic", same).item() == pytest.approx(math.log(2))
    assert discriminator_loss(zero, zero, "hinge").item() == 2
    assert generator_loss(zero, "hinge").item() == 0
    assert discriminator_loss(half, half, "least-squares").item() == pytest.approx(0.25)
    assert discriminator_loss(zero, zero, "non-saturating").item() == pytest.approx(2 * math.log(2))


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_and_half_precision_scores(kind: Adversarial) -> None:
    real = torch.tensor([300.0, -300.0], dtype=torch.bfloat16, requires_grad=True)
    fake = torch.tensor([-300.0, 300.0], dtype=torch.bfloat16, requires_grad=True)
    for loss in (discriminator_loss(real, fake, kind), generator_loss(fake, kind, real)):
        assert loss.dtype == torch.float32
        assert loss.isfinite()
        assert torch.autograd.grad(loss, fake)[0].isfinite().all()


def test_real_and_fake_batches_may_differ_in_size_unless_paired() -> None:
    assert discriminator_loss(torch.zeros(3), torch.zeros(5), "hinge").item() == 2
    with pytest.raises(ValueError, match=r"pairs real with fake: scores of shape \(3,\) given for \(5,\)"):
        discriminator_loss(torch.zeros(3), torch.zeros(5), "relativistic")
    with pytest.raises(ValueError, match="no scores given"):
        generator_loss(torch.zeros(3), "relativistic")
    with pytest.raises(ValueError, match="kind='wasserstein': choose 'relativistic'"):
        discriminator_loss(torch.zeros(3), torch.zeros(3), "wasserstein")
    with pytest.raises(ValueError, match="kind='wgan'"):
        generator_loss(torch.zeros(3), "wgan")


def test_r1_is_half_the_mean_squared_slope_and_trains_the_discriminator() -> None:
    linear = nn.Linear(6, 1).double()
    images = normal(5, 2, 3)
    penalty = r1_penalty(lambda x: linear(x.flatten(1)), images)
    torch.testing.assert_close(penalty, linear.weight.square().sum() / 2)
    penalty.backward()
    torch.testing.assert_close(linear.weight.grad, linear.weight.detach())
    assert not images.requires_grad

    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    slopes = [torch.func.grad(lambda x: net(x[None]).squeeze())(image) for image in images]
    with torch.no_grad():
        penalty = r1_penalty(net, images)
    assert penalty.item() == pytest.approx(sum(float(s.detach().square().sum()) for s in slopes) / 10)


def test_lecam_is_the_equation_with_the_papers_sign() -> None:
    real, fake = normal(5) + 1, normal(5, seed=1) - 1
    for one_sided in (True, False):
        lecam = LeCam(decay=0.9, start=0, one_sided=one_sided)
        lecam(torch.tensor([0.5, 1.5]), torch.tensor([-2.0, 0.0]))  # averages 1 and -1
        ours = [t.clone().requires_grad_() for t in (real, fake)]
        theirs = [t.clone().requires_grad_() for t in (real, fake)]
        value = lecam(*ours)
        mean_real, mean_fake = 0.9 * 1 + 0.1 * float(real.mean()), 0.9 * -1 + 0.1 * float(fake.mean())
        expected = torch.zeros((), dtype=torch.float64)
        for r, f in zip(*theirs, strict=True):
            above, below = r - mean_fake, mean_real - f
            expected = expected + (above.clamp(min=0) if one_sided else above) ** 2 / 5
            expected = expected + (below.clamp(min=0) if one_sided else below) ** 2 / 5
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
        value.backward()
        expected.backward()
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-6)
        if one_sided:  # descent lowers real scores and raises fake ones: the two are drawn together
            assert (ours[0].grad >= 0).all()
            assert (ours[1].grad <= 0).all()


def test_lecam_is_zero_when_scores_have_swapped_sides() -> None:
    lecam = LeCam(start=0, decay=0.99)
    lecam(torch.tensor([1.0]), torch.tensor([-1.0]))
    swapped = lecam(torch.tensor([-1.5, -2.0]), torch.tensor([1.5, 2.0]))  # D(x) <= fake's average, D(G) >= real's
    assert swapped.item() == 0
    assert lecam(torch.tensor([2.0]), torch.tensor([-2.0])).item() > 0


def test_lecam_starts_late_but_averages_from_the_first_batch() -> None:
    lecam = LeCam(decay=0.5, start=3)
    losses = [lecam(torch.tensor([4.0, 2.0]), torch.tensor([-1.0, -1.0])).item() for _ in range(4)]
    assert losses[:3] == [0, 0, 0]
    assert losses[3] > 0
    assert lecam.averages.tolist() == [3, -1]  # no pull from the zeros it began with
    with pytest.raises(ValueError, match=r"decay=1 is outside \[0, 1\)"):
        LeCam(decay=1)


def test_trap_04_lecam_state_survives_a_checkpoint() -> None:
    def batch(step: int) -> tuple[Tensor, Tensor]:
        return normal(3, seed=step).float(), normal(3, seed=step + 50).float()

    lecam = LeCam(decay=0.9, start=4)
    for step in range(3):
        lecam(*batch(step))
    file = io.BytesIO()
    torch.save(lecam.state_dict(), file)
    file.seek(0)
    resumed = LeCam(decay=0.9, start=4)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for step in range(3, 8):
        first, second = lecam(*batch(step)), resumed(*batch(step))
        assert torch.equal(first, second)
    assert first > 0


@pytest.mark.usefixtures("global_randomness_untouched")
def test_labels_are_uniform_or_inverse_to_the_frequencies() -> None:
    generator = torch.Generator().manual_seed(0)
    uniform = sample_labels(30_000, 4, generator)
    assert uniform.dtype == torch.long
    shares = torch.bincount(uniform, minlength=4) / 30_000
    torch.testing.assert_close(shares, torch.full((4,), 0.25), rtol=0, atol=0.01)
    inverse = sample_labels(30_000, 4, generator, frequencies=torch.tensor([0.4, 0.4, 0.1, 0.1]))
    shares = torch.bincount(inverse, minlength=4) / 30_000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.1, 0.4, 0.4]), rtol=0, atol=0.01)


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 40), classes=st.integers(2, 60), seed=st.integers(0, 2**62))
def test_labels_depend_on_the_generator_alone(count: int, classes: int, seed: int) -> None:
    for frequencies in (None, [1.0 + k for k in range(classes)]):
        first, second = (
            sample_labels(count, classes, torch.Generator().manual_seed(seed), frequencies=frequencies)
            for _ in range(2)
        )
        assert torch.equal(first, second)
        assert first.shape == (count,)
        assert 0 <= first.min() <= first.max() < classes


def test_bad_frequencies_are_refused() -> None:
    for frequencies in ([1, 1], [1, 0, 1], [1, math.nan, 1]):
        with pytest.raises(ValueError, match="expected 3 positive numbers"):
            sample_labels(5, 3, torch.Generator(), frequencies=frequencies)
