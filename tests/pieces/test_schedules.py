"""Schedules: the numbers of specs 04, 05, 07 and 08, section 10a, through the settings a recipe holds."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from evenhand.methods.common import Optim
from evenhand.methods.protocol import Progress
from evenhand.pieces import schedules

STEPS_PER_EPOCH = 97  # CIFAR-10-LT at imbalance 100 and batch 128
CIFAR = Optim(lr=0.1, warmup=5, schedule="steps", milestones=[160, 180], factors=[1.0, 1e-2, 1e-4])
IMAGENET = Optim(
    name="sam", lr=0.2, schedule="cosine", rho_milestones=[5, 60, 75], rho_values=[0.05, 0.1, 0.5, 0.5]
)  # fmt: skip


def during(epoch: int, epochs: int, step: int = 0) -> Progress:
    """A step of the 1-based ``epoch``, as the papers count."""
    return Progress((epoch - 1) * STEPS_PER_EPOCH + step, STEPS_PER_EPOCH, epochs * STEPS_PER_EPOCH)


@pytest.mark.parametrize("step", [0, STEPS_PER_EPOCH - 1])
@pytest.mark.parametrize(
    ("epoch", "lr"),
    [(1, 0.02), (2, 0.04), (5, 0.1), (6, 0.1), (160, 0.1), (161, 1e-3), (180, 1e-3), (181, 1e-5), (200, 1e-5)],
)
def test_learning_rate_of_spec_04(epoch: int, lr: float, step: int) -> None:
    assert CIFAR.lr * CIFAR.factor(during(epoch, 200, step)) == pytest.approx(lr)


def test_milestones_stay_when_vs_trains_longer() -> None:
    assert CIFAR.factor(during(161, 300)) == 1e-2
    assert CIFAR.factor(during(300, 300)) == 1e-4


def test_shares_of_the_run_are_the_same_milestones() -> None:
    shares = CIFAR.model_copy(update={"milestones": [0.8, 0.9]})
    for epoch in range(1, 201):
        assert shares.factor(during(epoch, 200)) == CIFAR.factor(during(epoch, 200))


@pytest.mark.parametrize(
    ("epoch", "rho"), [(1, 0.05), (5, 0.05), (6, 0.1), (60, 0.1), (61, 0.5), (75, 0.5), (76, 0.5), (90, 0.5)]
)
def test_radius_of_spec_04(epoch: int, rho: float) -> None:
    assert IMAGENET.radius(during(epoch, 90)) == rho


def test_radius_of_inaturalist_tells_the_last_two_apart() -> None:
    optim = IMAGENET.model_copy(update={"rho_values": [0.05, 0.1, 0.1, 0.2]})
    assert [optim.radius(during(e, 90)) for e in (5, 6, 60, 61, 75, 76)] == [0.05, 0.1, 0.1, 0.1, 0.1, 0.2]


def test_cosine_of_spec_04_steps_once_an_epoch() -> None:
    for e in (0, 1, 45, 89):
        expected = 0.5 * (1 + math.cos(math.pi * e / 90))
        assert IMAGENET.factor(during(e + 1, 90)) == pytest.approx(expected)
        assert IMAGENET.factor(during(e + 1, 90, STEPS_PER_EPOCH - 1)) == pytest.approx(expected)
    assert schedules.cosine(90, 90) == pytest.approx(0)


DEIT = Optim(
    name="adamw", lr=2.5e-4, schedule="cosine", schedule_by="step", warmup=5, warmup_lr=1e-6, min_lr=1e-5
)  # fmt: skip


@pytest.mark.parametrize(
    ("epoch", "step", "lr"),
    [
        (0, 0, 1e-6), (0, 6, 1e-6 + 0.5 * 2.49e-4 / 5), (2, 0, 1e-6 + 2 * 2.49e-4 / 5),
        (4, 11, 1e-6 + (4 + 11 / 12) * 2.49e-4 / 5),
        (5, 0, 1e-5 + 0.5 * 2.4e-4 * (1 + math.cos(math.pi * 5 / 1200))),  # below lr: the cosine has begun at 0
        (600, 0, 1.3e-4), (600, 6, 1e-5 + 0.5 * 2.4e-4 * (1 + math.cos(math.pi * 600.5 / 1200))),
        (1200, 0, 1e-5),
    ],
)  # fmt: skip
def test_learning_rate_of_spec_05(epoch: int, step: int, lr: float) -> None:
    """Check 10, and section 2: CIFAR's 12 steps an epoch, 1200 epochs."""
    assert DEIT.lr * DEIT.factor(Progress(12 * epoch + step, 12, 12 * 1200)) == pytest.approx(lr, rel=1e-12)


def test_whole_epochs_warm_up_and_cool_down_by_steps_of_an_epoch() -> None:
    optim = DEIT.model_copy(update={"schedule_by": "epoch"})
    for epoch, lr in ((0, 1e-6 + 2.49e-4 / 5), (4, 2.5e-4), (600, 1.3e-4)):
        for step in (0, 11):
            assert optim.lr * optim.factor(Progress(12 * epoch + step, 12, 14400)) == pytest.approx(lr, rel=1e-12)


def test_cosine_of_spec_07_moves_every_step_and_ends_at_zero() -> None:
    optim = Optim(lr=3e-4, schedule="cosine", schedule_by="step")
    rates = [optim.factor(Progress(step, 50, 10_000)) for step in range(10_001)]
    assert rates[0] == 1
    assert rates[5000] == pytest.approx(0.5)
    assert rates[10_000] == pytest.approx(0, abs=1e-15)
    assert all(a > b for a, b in pairwise(rates))


@pytest.mark.parametrize(("p", "lr"), [(0.0, 0.01), (0.5, 0.0026085), (1.0, 0.0016556)])
def test_decay_by_progress_of_spec_08(p: float, lr: float) -> None:
    optim = Optim(lr=0.01, schedule="inverse-progress")
    assert optim.lr * optim.factor(Progress(round(2000 * p), 7, 2000)) == pytest.approx(lr, abs=5e-8)


def test_inverse_decay_has_its_two_numbers() -> None:
    by_step = Optim(schedule="inverse", inverse_alpha=0.5, inverse_power=2.0)
    assert by_step.factor(Progress(2, 10, 100)) == pytest.approx(0.25)
    assert schedules.inverse_decay(3000) == pytest.approx(4**-0.75)  # by default a thousandth, as in spec 09
    by_progress = Optim(schedule="inverse-progress", inverse_alpha=1.0, inverse_power=1.0)
    assert by_progress.factor(Progress(100, 10, 100)) == pytest.approx(0.5)


def test_linear_radius_runs_from_first_to_last() -> None:
    optim = Optim(name="sam", rho=0.1, rho_last=0.5)
    assert optim.radius(Progress(0, 10, 100)) == pytest.approx(0.1)
    assert optim.radius(Progress(50, 10, 100)) == pytest.approx(0.3)


def test_domain_and_fixmatch_decay() -> None:
    inverse, fixmatch = Optim(schedule="inverse"), Optim(schedule="fixmatch")
    assert inverse.factor(Progress(1000, 10, 2000)) == pytest.approx(2**-0.75)
    assert fixmatch.factor(Progress(0, 10, 100)) == 1
    assert fixmatch.factor(Progress(100, 10, 100)) == pytest.approx(math.cos(7 * math.pi / 16))
    assert Optim(schedule="constant").factor(Progress(99, 10, 100)) == 1


def test_apply_sets_every_group_and_the_radius() -> None:
    net = nn.Linear(3, 2)
    player = IMAGENET.player(net, seed=0)
    player.optimizer.param_groups[0]["lr_factor"] = 10.0
    IMAGENET.apply(player, during(46, 90))
    assert player.optimizer.param_groups[0]["lr"] == pytest.approx(0.2 * 10 * 0.5)
    assert player.optimizer.rho == 0.1  # type: ignore[attr-defined]


def test_relative_radius_follows_the_weights() -> None:
    optim = Optim(name="sam", rho=0.01, rho_relative=True)
    net = nn.Linear(3, 2)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(2.0)
    player = optim.player(net, seed=0)
    optim.apply(player, during(1, 10))
    assert float(player.optimizer.rho) == pytest.approx(0.01 * 2 * math.sqrt(8))  # type: ignore[attr-defined]


@given(st.integers(1, 50), st.integers(0, 60))
def test_warmup_climbs_to_one(length: int, epoch: int) -> None:
    here, after = schedules.warmup(epoch, length), schedules.warmup(epoch + 1, length)
    assert 0 < here <= after <= 1
    assert (here == 1) == (epoch + 1 >= length)
    assert schedules.warmup(epoch, 0) == schedules.smooth_warmup(epoch, 0) == 1


@given(st.lists(st.floats(1, 300), min_size=0, max_size=5).map(sorted), st.integers(0, 320))
def test_steps_take_the_last_milestone_passed(milestones: list[float], epoch: int) -> None:
    values = [float(i) for i in range(len(milestones) + 1)]
    assert schedules.steps(epoch, 320, milestones, values) == len([m for m in milestones if m <= epoch])


def test_lists_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 milestones need 3 values"):
        schedules.steps(0, 10, [1, 2], [1.0])
    with pytest.raises(ValueError, match="factors needs 3 entries"):
        Optim(factors=[1.0])
    with pytest.raises(ValueError, match=r"min_lr = 0.2 must not exceed lr = 0.1"):
        Optim(min_lr=0.2)
    with pytest.raises(ValueError, match="rho_values needs 2 entries"):
        Optim(rho_milestones=[5], rho_values=[0.1])


@pytest.mark.parametrize("epochs", [0.3, 0.5, 3.3, 200.0])
def test_shares_hold_in_runs_of_any_length(epochs: float) -> None:
    """A share is compared with the fraction of steps: a run of half an epoch does not begin at its end."""
    per_epoch = 10
    total = round(epochs * per_epoch)
    found = [Optim(milestones=[0.8, 0.9]).factor(Progress(step, per_epoch, total)) for step in range(total)]
    wanted = [1.0 if step < 0.8 * total else 1e-2 if step < 0.9 * total else 1e-4 for step in range(total)]
    assert found == wanted
