"""The player: what happens between backward and step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.pieces.player import Player
from evenhand.pieces.sam import SAM
from evenhand.randomness import dice

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")


def small_net() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.randn(p.shape, generator=dice(0, "weights", i)) * 0.5)
    return net


@pytest.fixture
def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return small_net()


X = torch.randn(12, 4, generator=dice(0, "inputs"))
Y = torch.arange(12) % 3


def loss_of(net: nn.Module, rows: slice = slice(None)) -> Tensor:
    return nn.functional.cross_entropy(net(X[rows]), Y[rows])


def sgd(net: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-3, **options)


def assert_same(a: nn.Module, b: nn.Module, tolerance: float = 0.0) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def test_a_step_is_the_optimisers_and_forgets_the_gradients(net: nn.Module) -> None:
    plain = copy.deepcopy(net)
    player, optimizer = Player(net, sgd(net)), sgd(plain)
    for _ in range(3):
        player.backward(loss_of(net))
        player.step()
        optimizer.zero_grad()
        loss_of(plain).backward()
        optimizer.step()
    assert_same(net, plain)
    assert all(p.grad is None for p in player.parameters)


def test_backward_accumulates_until_the_step(net: nn.Module) -> None:
    net.eval()  # BatchNorm's batch statistics would tell the parts apart
    whole = copy.deepcopy(net)
    player, optimizer = Player(net, sgd(net)), sgd(whole)
    for rows in (slice(0, 3), slice(3, 12)):
        player.backward(loss_of(net, rows) * len(Y[rows]) / 12)
    player.step()
    loss_of(whole).backward()
    optimizer.step()
    assert_same(net, whole, 1e-6)


def test_alone_the_last_pass_is_like_any_other(net: nn.Module) -> None:
    plain = copy.deepcopy(net)
    for module, last in ((net, True), (plain, False)):
        player = Player(module, SAM(sgd(module), rho=0.3))
        player.backward(loss_of(module), last=last)
        with player.ascent():
            player.backward(loss_of(module), last=last)
        player.step()
        assert not any(p._post_accumulate_grad_hooks for p in player.parameters)
    assert_same(net, plain)


def test_clip_bounds_the_global_norm_and_no_more(net: nn.Module) -> None:
    plain = copy.deepcopy(net)
    loss_of(plain).backward()
    grads = [p.grad for p in plain.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in grads]).norm()
    for clip in (0.25 * norm.item(), 4 * norm.item()):
        clipped = copy.deepcopy(net)
        optimizer = torch.optim.SGD(clipped.parameters(), lr=1.0)
        player = Player(clipped, optimizer, clip=clip)
        player.backward(loss_of(clipped))
        player.step()
        for before, after, grad in zip(net.parameters(), clipped.parameters(), grads, strict=True):
            scale = min(1.0, clip / norm.item())
            torch.testing.assert_close(before - after, scale * grad, rtol=1e-4, atol=1e-6)


def test_average_follows_the_weights_and_copies_the_statistics(net: nn.Module) -> None:
    player = Player(net, sgd(net), ema=0.8)
    expected = [p.detach().clone() for p in net.parameters()]
    for _ in range(4):
        player.backward(loss_of(net.train()))
        player.step()
        expected = [0.8 * e + 0.2 * p.detach() for e, p in zip(expected, net.parameters(), strict=True)]
    judged = player.judged()
    assert judged is player.average
    assert not judged.training
    for mine, e in zip(judged.parameters(), expected, strict=True):
        assert not mine.requires_grad
        torch.testing.assert_close(mine, e, rtol=1e-6, atol=1e-7)
    for mine, theirs in zip(judged.buffers(), net.buffers(), strict=True):
        assert torch.equal(mine, theirs)


def test_without_average_the_network_itself_is_judged(net: nn.Module) -> None:
    player = Player(net.train(), sgd(net))
    assert player.judged() is net
    assert not net.training


def test_ascent_is_sam_on_the_accumulated_gradient(net: nn.Module) -> None:
    plain = copy.deepcopy(net)
    player, sam = Player(net, SAM(sgd(net), rho=0.3)), SAM(sgd(plain), rho=0.3)
    before = [p.detach().clone() for p in net.parameters()]
    player.backward(loss_of(net))
    with player.ascent():
        moved = torch.cat([(p - b).flatten() for p, b in zip(net.parameters(), before, strict=True)]).norm()
        assert moved.item() == pytest.approx(0.3, rel=1e-4)
        player.backward(loss_of(net))
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    player.step()
    loss_of(plain).backward()
    with sam.ascent(plain):
        loss_of(plain).backward()
    sam.step()
    assert_same(net, plain)


@pytest.mark.parametrize(("freeze", "moves"), [(True, 1), (False, 2)])
def test_trap_01_second_pass_and_batchnorm(net: nn.Module, freeze: bool, moves: int) -> None:
    player = Player(net, SAM(sgd(net), rho=0.3), freeze_bn=freeze)
    player.backward(loss_of(net.train()))
    with player.ascent():
        player.backward(loss_of(net))
    player.step()
    assert net[1].num_batches_tracked == moves  # type: ignore[index]


def test_ascent_needs_sam(net: nn.Module) -> None:
    with pytest.raises(TypeError, match="needs a SAM optimiser, got SGD"), Player(net, sgd(net)).ascent():
        pass


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("sam", [False, True])
def test_float16_scales_the_loss_and_nothing_else(net: nn.Module, sam: bool, fused: bool) -> None:
    """The scaled step with clipping is the plain one; SAM's direction is free of the scale."""
    plain = copy.deepcopy(net)
    players = []
    for module, precision in ((net, "float16"), (plain, "float32")):
        base = sgd(module, fused=fused)
        players.append(Player(module, SAM(base, 0.1) if sam else base, precision=precision, clip=0.5))  # type: ignore[arg-type]
    for _ in range(3):
        for player in players:
            player.backward(loss_of(player.net))
            assert player.scaler.get_scale() == (65536.0 if player is players[0] else 1.0)
            if sam:
                with player.ascent():
                    player.backward(loss_of(player.net))
            player.step()
    assert_same(net, plain, 1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_float16_overflow_skips_the_step_and_lowers_the_scale(net: nn.Module, fused: bool) -> None:
    player = Player(net, SAM(sgd(net, fused=fused), 0.1), precision="float16", clip=0.5)
    before = [p.detach().clone() for p in net.parameters()]
    player.backward(loss_of(net) * 1e38)
    with player.ascent():
        player.backward(loss_of(net) * 1e38)
    player.step()
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    assert player.scaler.get_scale() == 32768.0
    player.backward(loss_of(net))
    with player.ascent():
        player.backward(loss_of(net))
    player.step()
    assert not any(torch.equal(p, b) for p, b in zip(net[3].parameters(), before[4:], strict=True))  # type: ignore[index]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_autocast_is_what_precision_says(net: nn.Module, precision: Any) -> None:
    player = Player(net, sgd(net), precision=precision)
    with player.autocast():
        assert net[3](torch.zeros(1, 6)).dtype == getattr(torch, precision)  # type: ignore[index]
    assert {p.dtype for p in net.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_state_round_trip_continues_bit_for_bit(net: nn.Module, precision: Any, tmp_path: Any) -> None:
    other = copy.deepcopy(net)
    player = Player(net, SAM(sgd(net), 0.1), ema=0.9, precision=precision)

    def advance(p: Player) -> None:
        p.backward(loss_of(p.net))
        with p.ascent():
            p.backward(loss_of(p.net))
        p.step()

    for _ in range(2):
        advance(player)
    torch.save(player.state(), tmp_path / "state.pt")
    second = Player(other, SAM(sgd(other), 0.1), ema=0.9, precision=precision)
    second.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(2):
        advance(player)
        advance(second)
    assert_same(net, other)
    assert player.average is not None
    assert second.average is not None
    assert_same(player.average, second.average)
    assert player.scaler.state_dict() == second.scaler.state_dict()


@pytest.mark.parametrize("warm", [False, True])
def test_the_average_warms_up_so_that_a_short_run_is_not_judged_by_its_first_weights(warm: bool) -> None:
    """At step t the decay is at most (1 + t) / (10 + t); the papers' form takes the constant from the start."""

    def make() -> tuple[nn.Linear, Player]:
        net = nn.utils.skip_init(nn.Linear, 2, 1, bias=False)
        nn.init.zeros_(net.weight)
        return net, Player(net, torch.optim.SGD(net.parameters(), lr=0.1), ema=0.999, ema_warm=warm)

    net, player = make()
    expected = 0.0
    for t in range(1, 6):
        net.weight.grad = torch.full((1, 2), -10.0)  # one up at each step
        player.step()
        decay = min(0.999, (1 + t) / (10 + t)) if warm else 0.999
        expected = decay * expected + (1 - decay) * t
        assert player.average.weight.detach().flatten().tolist() == pytest.approx([expected] * 2)  # type: ignore[union-attr]
    assert (expected > 3) == warm
    again = make()[1]
    again.load_state(player.state())
    assert again.averaged == 5
