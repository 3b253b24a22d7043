"""SAM against its equation, the numbers of spec 04 section 10a (6-8), and users' loops (trap 1)."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenhand.pieces.sam import SAM, _climb, relative_radius


def small_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def batches(count: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(16, 5, generator=g), torch.randint(3, (16,), generator=g)) for _ in range(count)]


def sgd(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


def sam_step(net: nn.Module, opt: SAM, batch: tuple[Tensor, Tensor]) -> None:
    loss_of(net, batch).backward()
    with opt.ascent(net):
        loss_of(net, batch).backward()
    opt.step()
    opt.zero_grad()


def weights(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_step_equals_the_literal_algorithm() -> None:
    ours, theirs = small_net(), small_net()
    opt, base = SAM(sgd(ours), rho=0.3), sgd(theirs)
    for batch in batches(3):
        sam_step(ours, opt, batch)
        loss_of(theirs, batch).backward()
        norm = sum(p.grad.double().pow(2).sum() for p in theirs.parameters()).sqrt()
        before = weights(theirs)
        with torch.no_grad():
            for p in theirs.parameters():
                p.add_((0.3 * p.grad.double() / (norm + 1e-12)).float())
        base.zero_grad()
        statistics = copy.deepcopy(theirs[1].state_dict())
        loss_of(theirs, batch).backward()
        with torch.no_grad():
            for p, w in zip(theirs.parameters(), before, strict=True):
                p.copy_(w)
        theirs[1].running_mean.copy_(statistics["running_mean"])
        theirs[1].running_var.copy_(statistics["running_var"])
        base.step()
        base.zero_grad()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_perturbation_has_length_rho_over_all_groups() -> None:
    net = small_net().double()
    groups = [{"params": net[0].parameters()}, {"params": net[3].parameters(), "lr": 1.0}]
    opt = SAM(torch.optim.SGD(groups, lr=0.1))
    opt.add_param_group({"params": net[1].parameters()})
    x, y = batches(1)[0]
    for rho in (0.05, 0.8):
        opt.rho = rho
        opt.zero_grad()
        loss_of(net, (x.double(), y)).backward()
        before, grads = weights(net), [p.grad.clone() for p in net.parameters()]
        with opt.ascent(net):
            moved = torch.cat([(p - w).flatten() for p, w in zip(net.parameters(), before, strict=True)])
            assert all(p.grad is None for p in net.parameters())
        assert moved.norm().item() == pytest.approx(rho, rel=1e-6)
        direction = torch.cat([g.flatten() for g in grads])
        torch.testing.assert_close(moved / rho, direction / direction.norm())


def test_trap_01_weights_return_exactly_also_when_the_body_raises() -> None:
    net = small_net()
    opt = SAM(sgd(net), rho=0.7)
    loss_of(net, batches(1)[0]).backward()
    before = copy.deepcopy(net)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), opt.ascent(net):
        net(torch.zeros(2, 7))
    assert equal(net, before)
    assert net[1].track_running_stats
    sam_step(net, opt, batches(1)[0])  # usable again


def test_trap_01_batchnorm_statistics_move_once_per_step() -> None:
    ours, once = small_net(), small_net()
    batch = batches(1)[0]
    loss_of(once, batch)
    opt = SAM(sgd(ours), rho=0.5)
    loss_of(ours, batch).backward()
    with opt.ascent(ours):
        perturbed = loss_of(ours, batch)
        ours.eval()
        assert not torch.allclose(perturbed, loss_of(ours, batch))  # train mode still normalises by the batch
        ours.train()
        perturbed.backward()
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(ours[1], name), getattr(once[1], name))
    with opt.ascent():  # without the network: the official double update
        loss_of(ours, batch).backward()
    assert ours[1].num_batches_tracked == 2
    ours[1].eval()  # a layer the user froze stays frozen, by its running statistics
    with opt.ascent(ours):
        loss_of(ours, batch).backward()
    assert ours[1].num_batches_tracked == 2


def test_radius_zero_is_the_base_optimiser_bit_for_bit() -> None:
    ours, theirs = small_net(), small_net()
    opt, base = SAM(sgd(ours), rho=0.0), sgd(theirs)
    for batch in batches(4):
        sam_step(ours, opt, batch)
        loss_of(theirs, batch).backward()
        base.step()
        base.zero_grad()
    assert equal(ours, theirs)


def test_trap_01_state_dict_round_trip_keeps_momentum(tmp_path: Path) -> None:
    straight, first = small_net(), small_net()
    a, b = SAM(sgd(straight), rho=0.2), SAM(sgd(first), rho=0.2)
    data = batches(6)
    for batch in data:
        sam_step(straight, a, batch)
    for batch in data[:3]:
        sam_step(first, b, batch)
    torch.save({"net": first.state_dict(), "opt": b.state_dict()}, tmp_path / "last.pt")
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    assert {key for state in saved["opt"]["state"].values() for key in state} == {"momentum_buffer"}
    resumed = small_net(seed=9)
    c = SAM(sgd(resumed), rho=0.2)
    resumed.load_state_dict(saved["net"])
    c.load_state_dict(saved["opt"])
    for batch in data[3:]:
        sam_step(resumed, c, batch)
    assert equal(resumed, straight)


def test_zero_gradient_and_parameters_without_gradient_stay() -> None:
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    opt = SAM(torch.optim.SGD([used, unused], lr=0.1), rho=0.5)
    (used * 0).sum().backward()
    with opt.ascent() as norm:
        assert norm == 0
        assert torch.equal(used, torch.ones(3))
        assert torch.equal(unused, torch.ones(2))
        used.sum().backward()
    opt.step()
    torch.testing.assert_close(used.detach(), torch.full((3,), 0.9))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("wait", [True, False])
def test_non_finite_gradient_leaves_weights_unperturbed(bad: float, dtype: torch.dtype, wait: bool) -> None:
    p, q = (nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=dtype)) for _ in range(2))
    p.grad, q.grad = torch.tensor([1.0, bad, 0.0], dtype=dtype), torch.ones(3, dtype=dtype)
    assert not _climb([p, q], 0.5, wait=wait).isfinite()
    assert p.tolist() == q.tolist() == [1.0, -2.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 0.0])
def test_climbing_without_reading_the_device_gives_the_same(dtype: torch.dtype, size: float) -> None:
    g = torch.Generator().manual_seed(0)
    values = torch.randn(2, 3, 4, 5, generator=g).to(dtype)
    ends = []
    for wait in (True, False):
        params = [nn.Parameter(v.clone()) for v in values]
        params[1] = nn.Parameter(params[1].detach().mT)  # not contiguous
        for p in params:
            p.grad = size * torch.ones_like(p).cumsum(0)
        _climb(params, 0.5, wait=wait)
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b)
    assert size or torch.equal(ends[0][0], values[0])


def test_gradient_accumulation_equals_the_joint_batch() -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    whole, parts = net(), net()
    a, b = SAM(sgd(whole), rho=0.4), SAM(sgd(parts), rho=0.4)
    for x, y in batches(3):
        sam_step(whole, a, (x, y))
        for half in (slice(8), slice(8, 16)):
            (loss_of(parts, (x[half], y[half])) / 2).backward()
        with b.ascent(parts):
            for half in (slice(8), slice(8, 16)):
                (loss_of(parts, (x[half], y[half])) / 2).backward()
        b.step()
        b.zero_grad()
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_bf16_autocast_trains_and_restores() -> None:
    net = small_net()
    opt = SAM(sgd(net), rho=0.05)
    batch = batches(1)[0]
    losses = []
    for _ in range(20):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(net, batch)
        loss.backward()
        before = weights(net)
        with opt.ascent(net), torch.autocast("cpu", torch.bfloat16):
            loss_of(net, batch).backward()
        assert all(torch.equal(p, w) for p, w in zip(net.parameters(), before, strict=True))
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_changes_nothing_and_skips_an_overflow(fused: bool) -> None:
    def optimiser(net: nn.Module) -> SAM:
        return SAM(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=fused), rho=0.3)

    scaled, plain = small_net(), small_net()
    a, b = optimiser(scaled), optimiser(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for batch in batches(3):
        scaler.scale(loss_of(scaled, batch)).backward()
        with a.ascent(scaled):
            scaler.scale(loss_of(scaled, batch)).backward()
        scaler.step(a)
        scaler.update()
        a.zero_grad()
        sam_step(plain, b, batch)
    for p, q in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    before, scale = weights(scaled), scaler.get_scale()
    x, y = batches(1)[0]
    broken = (x * torch.where(torch.arange(5) == 0, float("inf"), 1.0), y)
    scaler.scale(loss_of(scaled, broken)).backward()
    with a.ascent(scaled):
        scaler.scale(loss_of(scaled, broken)).backward()
    scaler.step(a)
    scaler.update()
    assert all(torch.equal(p, w) for p, w in zip(scaled.parameters(), before, strict=True))
    assert scaler.get_scale() == scale / 2


def test_schedulers_hooks_and_copies_reach_the_base() -> None:
    net = small_net()
    opt = SAM(sgd(net), rho=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
        cycle = torch.optim.lr_scheduler.CyclicLR(opt, 0.1, 0.2, cycle_momentum=True)
        calls = []
        opt.register_step_post_hook(lambda *_: calls.append(1))
        sam_step(net, opt, batches(1)[0])
        scheduler.step()
        cycle.step()
    assert calls == [1]
    assert opt.param_groups is opt.base.param_groups
    assert opt.state is opt.base.state
    assert opt.defaults["momentum"] == 0.9
    twin = copy.deepcopy(opt)
    assert twin.rho == 0.1
    assert twin.base is not opt.base
    assert "SAM" in repr(opt)
    opt.load_state_dict(opt.state_dict())
    assert opt.param_groups is opt.base.param_groups


def test_backup_is_allocated_once_and_follows_the_network() -> None:
    net = small_net()
    opt = SAM(sgd(net))
    sam_step(net, opt, batches(1)[0])
    where = [c.data_ptr() for c in opt._snapshot._copies.values()]
    sam_step(net, opt, batches(1)[0])
    assert [c.data_ptr() for c in opt._snapshot._copies.values()] == where
    net.double()
    x, y = batches(1)[0]
    with torch.no_grad():
        net[0].weight += 1e-12  # no longer a float32 number
    before = weights(net)
    loss_of(net, (x.double(), y)).backward()
    with opt.ascent(net):
        pass
    assert all(torch.equal(p, w) for p, w in zip(net.parameters(), before, strict=True))


def second_gradient(w: Tensor, H: Tensor, rho: float) -> Tensor:
    p = nn.Parameter(w.clone())
    opt = SAM(torch.optim.SGD([p], lr=1.0), rho=rho)
    (0.5 * p @ H @ p).backward()
    with opt.ascent():
        (0.5 * p @ H @ p).backward()
    return p.grad


def test_the_quadratic_of_spec_09() -> None:
    """Section 10a, check 2: half w'Aw, A = diag(10, 1), w = (1, 1), radius 0.1."""
    A, w = torch.diag(torch.tensor([10.0, 1.0])).double(), torch.ones(2).double()
    p = nn.Parameter(w.clone())
    (0.5 * p @ A @ p).backward()
    with SAM(torch.optim.SGD([p], lr=1.0), rho=0.1).ascent():
        moved = p.detach() - w
        risen = 0.5 * p @ A @ p - 0.5 * w @ A @ w
    torch.testing.assert_close(moved, torch.tensor([0.0995037, 0.00995037]).double(), rtol=0, atol=5e-8)
    assert risen.item() == pytest.approx(1.054542, abs=5e-7)
    wanted = torch.tensor([10.995037, 1.009950]).double()
    torch.testing.assert_close(second_gradient(w, A, 0.1), wanted, rtol=0, atol=5e-7)


def test_quadratic_and_linear_losses() -> None:
    H = torch.tensor([[2.0, 0.5], [0.5, -1.0]], dtype=torch.float64)
    w = torch.tensor([0.3, -0.7], dtype=torch.float64)
    torch.testing.assert_close(second_gradient(w, H, 0.4), H @ (w + 0.4 * H @ w / (H @ w).norm()))
    # radius rho |g| is the unnormalised form of the theory
    torch.testing.assert_close(second_gradient(w, H, 0.4 * (H @ w).norm().item()), (torch.eye(2) + 0.4 * H) @ (H @ w))
    p = nn.Parameter(w.clone())
    opt = SAM(torch.optim.SGD([p], lr=0.1), rho=5.0)
    (p @ w).backward()
    first = p.grad.clone()
    with opt.ascent():
        (p @ w).backward()
    assert torch.equal(p.grad, first)


@pytest.mark.parametrize(
    ("curvature", "rho", "ratio"),
    [(-5, 0.8, 9), (-2.5, 0.8, 1), (-1.25, 0.8, 0), (-1, 0.8, 0.04), (-4, 0.5, 1), (-40, 0.05, 1)],
)
def test_second_moment_along_negative_curvature(curvature: float, rho: float, ratio: float) -> None:
    """E<v, g_sam>^2 / E<v, g>^2 = (1 + rho lambda)^2, with noise z added to the gradient of a quadratic."""
    H = torch.diag(torch.tensor([3.0, curvature], dtype=torch.float64))
    noise = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain, sam = [], []
    for z in noise:
        p = nn.Parameter(torch.tensor([0.2, 0.1], dtype=torch.float64))
        opt = SAM(torch.optim.SGD([p], lr=1.0))
        (0.5 * p @ H @ p + z @ p).backward()
        plain.append(p.grad[1].item())
        opt.rho = rho * p.grad.norm().item()
        with opt.ascent():
            (0.5 * p @ H @ p + z @ p).backward()
        sam.append(p.grad[1].item())
    moments = [sum(v**2 for v in values) for values in (sam, plain)]
    assert moments[0] / moments[1] == pytest.approx(ratio, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("curvature", "rho"), [(-5.0, 0.1), (-5.0, 0.5), (-2.0, 0.8)])
def test_on_a_pure_quadratic_saddle_a_large_radius_contracts(curvature: float, rho: float) -> None:
    """x <- x (1 + eta |l| (1 - rho |l|)): documented, not hidden."""
    p = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))
    opt = SAM(torch.optim.SGD([p], lr=0.05), rho=rho * abs(curvature) * 0.3)
    (0.5 * curvature * p**2).sum().backward()
    with opt.ascent():
        (0.5 * curvature * p**2).sum().backward()
    opt.step()
    size = abs(curvature)
    assert p.item() / 0.3 == pytest.approx(1 + 0.05 * size * (1 - rho * size), rel=1e-6)


def test_relative_radius_is_a_share_of_the_weight_norm() -> None:
    assert float(relative_radius([torch.tensor([3.0]), torch.tensor([[4.0]])], 0.01)) == pytest.approx(0.05)


@pytest.mark.parametrize("outside", [torch.enable_grad, torch.no_grad])
def test_a_closure_makes_both_passes(outside: type) -> None:
    ours, theirs = small_net().eval(), small_net().eval()  # statistics would move twice with a closure
    a, b = SAM(sgd(ours), rho=0.3), SAM(sgd(theirs), rho=0.3)
    for batch in batches(3):
        losses = []

        def closure(batch: tuple[Tensor, Tensor] = batch, losses: list[Tensor] = losses) -> Tensor:
            a.zero_grad()
            loss = loss_of(ours, batch)
            loss.backward()
            losses.append(loss)
            return loss

        first = loss_of(theirs, batch).item()
        with outside():
            returned = a.step(closure)
        sam_step(theirs, b, batch)
        assert len(losses) == 2
        assert returned.item() == losses[0].item() == first
        assert losses[1] > losses[0]  # uphill
        assert equal(ours, theirs)


def test_a_step_without_ascent_is_told_once() -> None:
    net = small_net()
    opt = SAM(sgd(net))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sam_step(net, opt, batches(1)[0])
    loss_of(net, batches(1)[0]).backward()
    with pytest.warns(UserWarning, match=r"put `with opt.ascent\(net\)` before it"):
        opt.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step()


def test_misuse_is_named() -> None:
    net = small_net()
    with pytest.raises(ValueError, match=r"rho=-1"):
        SAM(sgd(net), rho=-1)
    assert SAM(sgd(net), rho=np.float32(0.5)).rho == 0.5
    strange: list[Any] = ["auto", None, [0.1]]
    for rho in strange:
        with pytest.raises(ValueError, match=rf"rho={re.escape(repr(rho))}: use a radius"):
            SAM(sgd(net), rho=rho)
    with pytest.raises(ValueError, match="wrap an instance"):
        SAM(net.parameters(), torch.optim.SGD)  # type: ignore[arg-type]  # another SAM's order
    with pytest.raises(ValueError, match="wrap an instance"):
        SAM(torch.optim.SGD)  # type: ignore[arg-type]
    opt = SAM(sgd(net))
    with pytest.raises(ValueError, match="no gradient"), opt.ascent(net):
        pass
    loss_of(net, batches(1)[0]).backward()
    with opt.ascent(net):
        with pytest.raises(RuntimeError, match="would be undone"):
            opt.step()
        loss_of(net, batches(1)[0]).backward()
        with pytest.raises(RuntimeError, match="perturbed already"), opt.ascent(net):
            pass
