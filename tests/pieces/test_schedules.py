"""Schedules: the numbers of spec 04, section 10a item 11, through the settings a recipe holds."""

from __future__ import annotations

import math

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
    assert schedules.warmup(epoch, 0) == 1


@given(st.lists(st.floats(1, 300), min_size=0, max_size=5).map(sorted), st.integers(0, 320))
def test_steps_take_the_last_milestone_passed(milestones: list[float], epoch: int) -> None:
    values = [float(i) for i in range(len(milestones) + 1)]
    assert schedules.steps(epoch, 320, milestones, values) == len([m for m in milestones if m <= epoch])


def test_lists_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 milestones need 3 values"):
        schedules.steps(0, 10, [1, 2], [1.0])
    with pytest.raises(ValueError, match="factors needs 3 entries"):
        Optim(factors=[1.0])
    with pytest.raises(ValueError, match="rho_values needs 2 entries"):
        Optim(rho_milestones=[5], rho_values=[0.1])
