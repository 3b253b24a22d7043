"""PGD and LPF-SGD: the noise they promise, exact restoring, and a resume that draws the same noise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from evenhand.pieces.perturbed import LPFSGD, PGD
from helpers import seeded


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(16, 1, 4, 4, generator=g), torch.randint(3, (16,), generator=g)


def sgd(net: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)


def update(net: nn.Module, opt: PGD | LPFSGD) -> None:
    x, y = batch()
    if isinstance(opt, PGD):
        nn.functional.cross_entropy(net(x), y).backward()
    else:
        for i in torch.arange(len(x)).chunk(opt.parts):
            with opt.perturbed():
                (nn.functional.cross_entropy(net(x[i]), y[i]) * len(i) / len(x)).backward()
    opt.step()
    opt.zero_grad()


def test_pgd_adds_isotropic_noise_to_the_gradient() -> None:
    p = nn.Parameter(torch.zeros(200, 300))
    opt = PGD(torch.optim.SGD([p], lr=1.0), sigma=1e-4, generator=torch.Generator().manual_seed(3))
    p.grad = torch.full_like(p, 2.0)
    opt.step()
    noise = -p.detach().double() - 2.0
    assert noise.std().item() == pytest.approx(1e-4, rel=0.02)
    assert abs(noise.mean().item()) < 3e-6
    expected = 2.0 + 1e-4 * torch.randn(60000, generator=torch.Generator().manual_seed(3)).view(200, 300)
    torch.testing.assert_close(-p.detach(), expected)


def test_pgd_with_sigma_zero_is_the_base() -> None:
    ours, theirs = small_net(), small_net()
    opt, base = PGD(sgd(ours), sigma=0.0), sgd(theirs)
    for _ in range(3):
        update(ours, opt)
        nn.functional.cross_entropy(theirs(batch()[0]), batch()[1]).backward()
        base.step()
        base.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_lpf_noise_is_proportional_to_the_filter_norm_and_leaves_exactly() -> None:
    net = nn.ParameterDict({"kernel": torch.randn(3, 50, 20, 20), "bias": torch.randn(20000)})
    with torch.no_grad():
        net["kernel"] *= torch.tensor([1.0, 10.0, 0.0]).view(3, 1, 1, 1)
    opt = LPFSGD(sgd(net), gamma=0.01)
    before = {name: p.detach().clone() for name, p in net.items()}
    with opt.perturbed():
        moved = {name: p.detach() - before[name] for name, p in net.items()}
    assert all(torch.equal(net[name], before[name]) for name in before)
    for i in range(3):
        expected = 0.01 * before["kernel"][i].norm().item()
        assert moved["kernel"][i].std().item() == pytest.approx(expected, rel=0.03)
    assert moved["bias"].std().item() == pytest.approx(0.01 * before["bias"].norm().item(), rel=0.03)
    with opt.perturbed():
        again = net["bias"].detach() - before["bias"]
    assert not torch.equal(again, moved["bias"])
    with pytest.raises(KeyError), opt.perturbed():
        raise KeyError
    assert all(torch.equal(net[name], before[name]) for name in before)


def test_lpf_accumulates_the_mean_gradient_over_parts() -> None:
    ours = nn.Linear(4, 1)
    opt = LPFSGD(sgd(ours), gamma=0.0, parts=3)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    for i in torch.arange(len(x)).chunk(opt.parts):
        with opt.perturbed():
            (ours(x[i]).pow(2).mean() * len(i) / len(x)).backward()
    summed = ours.weight.grad.clone()
    ours.zero_grad()
    ours(x).pow(2).mean().backward()
    torch.testing.assert_close(summed, ours.weight.grad)


def test_a_step_of_lpf_is_the_equation() -> None:
    """w <- w - lr / M sum_i grad L_i(w + noise_i), noise_i ~ N(0, gamma^2 |w_filter|^2), drawn anew for each part."""
    net, x, y = nn.Linear(3, 2), torch.randn(4, 3, generator=seeded(1)), torch.randn(4, 2, generator=seeded(2))
    for p in net.parameters():
        p.data.normal_(generator=seeded(4))
    W, b = net.weight.detach().clone(), net.bias.detach().clone()
    opt = LPFSGD(torch.optim.SGD(net.parameters(), lr=0.1), gamma=0.5, parts=2, generator=seeded(3))
    for part, truth in zip(x.chunk(2), y.chunk(2), strict=True):
        with opt.perturbed():
            ((net(part) - truth).square().mean() / 2).backward()
    opt.step()
    chance, slopes = seeded(3), [torch.zeros_like(W), torch.zeros_like(b)]
    for part, truth in zip(x.chunk(2), y.chunk(2), strict=True):
        noise = torch.randn(8, generator=chance)
        V = W + 0.5 * noise[:6].view(2, 3) * W.square().sum(1, keepdim=True).sqrt()
        error = 2 * (part @ V.T + b + 0.5 * noise[6:] * b.square().sum().sqrt() - truth) / truth.numel()
        slopes[0] += error.T @ part / 2
        slopes[1] += error.sum(0) / 2
    torch.testing.assert_close(net.weight.detach(), W - 0.1 * slopes[0])
    torch.testing.assert_close(net.bias.detach(), b - 0.1 * slopes[1])


@pytest.mark.parametrize("kind", [PGD, LPFSGD])
def test_resume_draws_the_same_noise(kind: type, tmp_path: Path) -> None:
    straight = small_net()
    opt = kind(sgd(straight))
    for _ in range(4):
        update(straight, opt)
    half = small_net()
    opt = kind(sgd(half))
    for _ in range(2):
        update(half, opt)
    torch.save({"net": half.state_dict(), "opt": opt.state_dict()}, tmp_path / "last.pt")
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    resumed = small_net()
    opt = kind(sgd(resumed))
    resumed.load_state_dict(saved["net"])
    opt.load_state_dict(saved["opt"])
    for _ in range(2):
        update(resumed, opt)
    for p, q in zip(resumed.state_dict().values(), straight.state_dict().values(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", [PGD, LPFSGD])
def test_global_rng_is_untouched_and_a_bare_state_loads(kind: type) -> None:
    net = small_net()
    opt = kind(sgd(net))
    before = torch.get_rng_state()
    update(net, opt)
    assert torch.equal(torch.get_rng_state(), before)
    opt.load_state_dict(opt.base.state_dict())
    torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5)


def test_misuse_is_named() -> None:
    net = small_net()
    with pytest.raises(ValueError, match=r"sigma=-1"):
        PGD(sgd(net), sigma=-1)
    with pytest.raises(ValueError, match=r"parts=0"):
        LPFSGD(sgd(net), parts=0)
    for opt in (PGD(sgd(net)), LPFSGD(sgd(net))):  # the base would compute plain gradients with it
        with pytest.raises(ValueError, match="takes no closure"):
            opt.step(lambda: 0.0)
    opt = LPFSGD(sgd(net))
    with opt.perturbed(), pytest.raises(RuntimeError, match="would be undone"):
        opt.step()


def test_a_checkpoint_of_another_kind_of_device_is_loaded_without_its_noise() -> None:
    """A GPU's generator has a state of 16 bytes."""
    p = nn.Parameter(torch.zeros(3))
    opt = PGD(torch.optim.SGD([p], lr=0.1, momentum=0.9), 0.1)
    p.grad = torch.ones(3)
    opt.step()
    other = PGD(torch.optim.SGD([p], lr=0.1, momentum=0.9), 0.1)
    own = other.generator.get_state()
    other.load_state_dict({**opt.state_dict(), "generator": torch.zeros(16, dtype=torch.uint8)})
    assert torch.equal(other.generator.get_state(), own)
    assert torch.equal(other.base.state[p]["momentum_buffer"], opt.base.state[p]["momentum_buffer"])
