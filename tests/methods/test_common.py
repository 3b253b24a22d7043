"""Tables that methods share: defaults that stay the method's own, parameter groups, optimisers, clipping."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from evenhand.errors import UserError
from evenhand.methods import method_class
from evenhand.methods.adapt.adversarial import DomainAdversarialSettings
from evenhand.methods.common import Net, Optim
from evenhand.methods.protocol import Progress, Recogniser
from evenhand.methods.recognise.second_stage import SecondStageSettings
from evenhand.methods.unlabelled.csst import CSSTSettings
from evenhand.nets import build_net
from evenhand.nets.vit import LayerScale
from evenhand.run.recipe import validate
from evenhand.settings import Settings

# defaults of tables inside tables


def test_a_key_of_a_sub_table_keeps_the_methods_other_defaults() -> None:
    csst = CSSTSettings(net={"width": 32})  # type: ignore[arg-type]
    assert (csst.net.name, csst.net.width) == ("wrn28-2", 32)
    stage = SecondStageSettings(optim={"weight_decay": 5e-4})  # type: ignore[arg-type]
    assert (stage.optim.lr, stage.optim.schedule, stage.optim.weight_decay) == (0.05, "cosine", 5e-4)
    adapt = DomainAdversarialSettings(net={"width": 8}, optim={"lr": 0.1})  # type: ignore[arg-type]
    assert (adapt.net.name, adapt.optim.lr, adapt.optim.schedule) == ("resnet50", 0.1, "inverse")
    assert CSSTSettings(net={"name": "resnet8"}).net == Net(name="resnet8")  # type: ignore[arg-type]  # what is given wins
    assert CSSTSettings(net=Net(width=4)).net == Net(width=4)  # a whole table is taken as it is


def test_through_a_recipe_and_at_any_depth() -> None:
    recipe = validate({"method": {"name": "csst", "net": {"width": 32}}}, "mine")
    assert recipe.method.net == Net(name="wrn28-2", width=32)

    class Inner(Settings):
        a: int = 1
        b: int = 2

    class Middle(Settings):
        inner: Inner = Inner(a=5)
        names: dict[str, int] = {}  # noqa: RUF012
        c: int = 3

    class Outer(Settings):
        middle: Middle = Middle(inner=Inner(a=7, b=8), names={"x": 1})
        maybe: Inner | None = None

    found = Outer.model_validate({"middle": {"inner": {"b": 0}, "names": {"y": 2}}, "maybe": {"a": 4}})
    assert found.middle.inner == Inner(a=7, b=0)
    assert found.middle.names == {"y": 2}  # names that the user chooses are not merged
    assert found.maybe == Inner(a=4)
    assert Outer.model_validate({"middle": {"c": 9}}).middle == Middle(inner=Inner(a=7, b=8), names={"x": 1}, c=9)


def test_unknown_keys_and_wrong_values_are_told_as_before() -> None:
    for table, message in (
        ({"net": {"widht": 32}}, r"unknown key 'widht' in \[method.net\]; did you mean 'width'"),
        ({"net": {"width": 0}}, "method.net.width: .*greater than 0"),
        ({"net": 3}, "method.net: "),
    ):
        with pytest.raises(UserError, match=message):
            validate({"method": {"name": "csst", **table}}, "mine")


# groups


def vit() -> nn.Module:
    return build_net("vit-tiny", num_classes=3, width=8, heads=2, depth=1, distilled=True)


def undecayed(optim: Optim, net: nn.Module) -> set[str]:
    groups = optim.player(net, seed=0).optimizer.param_groups
    names = {p: name for name, p in net.named_parameters()}
    found = {names[p]: group["weight_decay"] for group in groups for p in group["params"]}
    assert set(found) == set(names.values())  # every parameter is trained, once
    assert sum(len(group["params"]) for group in groups) == len(names)
    assert set(found.values()) <= {0.0, optim.weight_decay}
    return {name for name, decay in found.items() if decay == 0}


@pytest.mark.parametrize(
    ("kind", "some"),
    [
        ("norms", {"norm.weight", "norm.bias", "blocks.0.norm1.weight", "blocks.0.norm2.bias"}),
        ("biases", {"head.bias", "head_dist.bias", "norm.bias", "blocks.0.attn.qkv.bias", "patch_embed.proj.bias"}),
        ("tokens", {"cls_token", "dist_token"}),
        ("positions", {"pos_embed"}),
    ],
)
def test_each_kind_is_spared_from_weight_decay(kind: Any, some: set[str]) -> None:
    found = undecayed(Optim(name="adamw", no_decay=[kind]), vit())
    assert some <= found
    assert undecayed(Optim(name="adamw"), vit()) == set()
    assert not any(name.endswith("proj.weight") for name in found)


def test_all_four_spare_what_deit_spares() -> None:
    net = vit()
    kinds: Any = ["norms", "biases", "tokens", "positions"]
    expected = {name for name, p in net.named_parameters() if p.ndim == 1 or "token" in name or name == "pos_embed"}
    assert undecayed(Optim(name="adamw", no_decay=kinds), net) == expected


def test_norms_alone_and_positions_of_texts() -> None:
    text = build_net("text-transformer", num_classes=2, inputs=9, width=32)
    assert undecayed(Optim(no_decay=["positions"]), text) == {"positions"}
    resnet = build_net("resnet8", num_classes=2, width=4)
    assert undecayed(Optim(no_decay=["norms"]), resnet) == {n for n, p in resnet.named_parameters() if ".bn" in f".{n}"}
    with pytest.raises(ValidationError, match="norms"):
        Optim(no_decay=["norm"])  # type: ignore[list-item]


def test_every_kind_of_normalisation_is_spared() -> None:
    net = nn.Sequential(
        nn.BatchNorm1d(2), nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.RMSNorm(2), LayerScale(2, 0.1), nn.Linear(2, 2)
    )
    spared = {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "4.gamma"}
    assert undecayed(Optim(no_decay=["norms"]), net) == spared


def test_frozen_parameters_are_no_part_of_the_optimiser() -> None:
    net = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2))
    (group,) = Optim().player(net, seed=0).optimizer.param_groups
    assert [tuple(p.shape) for p in group["params"]] == [(2, 3), (2,)]


@pytest.mark.parametrize("name", ["sgd", "sam", "adam", "adamw"])
def test_groups_learn_at_their_own_rate(name: Any) -> None:
    """Spec 07: the backbone's rate is exactly a tenth of the head's."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    groups = [{"params": list(part.parameters()), "lr_factor": f} for part, f in zip(net, (0.1, 1.0), strict=True)]
    optim = Optim(name=name, lr=0.2, schedule="constant", no_decay=["biases"])
    player = optim.player(net, seed=0, groups=groups)
    optim.apply(player, Progress(0, 1, 1))
    rates = {p: group["lr"] for group in player.optimizer.param_groups for p in group["params"]}
    assert [rates[p] for p in net.parameters()] == pytest.approx([0.02, 0.02, 0.2, 0.2])


# optimisers


def one_step(optim: Optim) -> Tensor:
    layer = nn.Linear(2, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    player = optim.player(layer, seed=0)
    for x in ([3.0, 4.0], [0.5, -1.0]):
        player.backward(layer(torch.tensor([x])).sum())
        player.step()
    return layer.weight.detach()[0]


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_against_the_equations(name: Any) -> None:
    optim = Optim(name=name, lr=0.1, betas=[0.5, 0.75], eps=0.25, weight_decay=0.2)
    w, m, v = torch.ones(2), torch.zeros(2), torch.zeros(2)
    for t, g in enumerate((torch.tensor([3.0, 4.0]), torch.tensor([0.5, -1.0])), start=1):
        if name == "adamw":
            w = w - 0.1 * 0.2 * w
        else:
            g = g + 0.2 * w
        m, v = 0.5 * m + 0.5 * g, 0.75 * v + 0.25 * g**2
        w = w - 0.1 * (m / (1 - 0.5**t)) / ((v / (1 - 0.75**t)).sqrt() + 0.25)
    torch.testing.assert_close(one_step(optim), w)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_against_the_equations(nesterov: bool) -> None:
    """v <- momentum v + g + decay w, then w <- w - lr v; Nesterov: w <- w - lr (g + decay w + momentum v)."""
    optim = Optim(name="sgd", lr=0.1, momentum=0.5, nesterov=nesterov, weight_decay=0.2)
    w, v = torch.ones(2), torch.zeros(2)
    for g in (torch.tensor([3.0, 4.0]), torch.tensor([0.5, -1.0])):
        g = g + 0.2 * w
        v = 0.5 * v + g
        w = w - 0.1 * (g + 0.5 * v if nesterov else v)
    torch.testing.assert_close(one_step(optim), w)


def test_noise_has_the_size_that_was_asked_for() -> None:
    """PGD: each number of the gradient moves by N(0, sigma^2); without a gradient the step is lr times that."""
    layer = nn.Linear(100, 100, bias=False)
    nn.init.zeros_(layer.weight)
    optim = Optim(name="pgd", lr=0.5, momentum=0.0, weight_decay=0.0, sigma=0.2)
    player = optim.player(layer, seed=0)
    player.backward(0 * layer(torch.ones(1, 100)).sum())
    player.step()
    assert float(layer.weight.detach().std()) == pytest.approx(0.1, rel=0.03)
    lpf: Any = Optim(name="lpf-sgd", lpf_gamma=0.3, lpf_parts=5).player(layer, seed=0).optimizer
    assert (lpf.gamma, lpf.parts) == (0.3, 5)


def test_sam_begins_with_its_radius_or_none_while_that_is_searched() -> None:
    for rho, wanted in ((0.3, 0.3), ("auto", 0.0)):
        optimizer: Any = Optim(name="sam", rho=rho).player(nn.Linear(2, 2), seed=0).optimizer  # type: ignore[arg-type]
        assert optimizer.rho == wanted


def test_memory_layout_is_as_asked_for() -> None:
    for wanted in (True, False):
        net = nn.Conv2d(3, 4, 3)
        player = Optim(channels_last=wanted).player(net, seed=0)
        assert player.net.weight.is_contiguous(memory_format=torch.channels_last) is wanted


def test_stems_stride_and_width_reach_the_network() -> None:
    net = Net(name="resnet8", width=4, stem_stride=2).build(3, 5)
    found = [(m.in_channels, m.out_channels, m.stride) for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert found[0] == (5, 4, (2, 2))
    plain = [m.stride for m in Net(name="resnet8").build(3, 5).modules() if isinstance(m, nn.Conv2d)]
    assert plain[0] == (1, 1)


def test_rates_that_exceed_the_base_are_refused_and_equal_ones_are_not() -> None:
    with pytest.raises(ValidationError, match=r"warmup_lr = 0.3 and min_lr = 0.0 must not exceed lr = 0.2"):
        Optim(lr=0.2, warmup_lr=0.3)
    assert Optim(lr=0.2, warmup_lr=0.2, min_lr=0.2).factor(Progress(7, 2, 20)) == 1
    assert Optim(schedule="constant", factors=[1.0]).factors == [1.0]  # lists count where they are used
    with pytest.raises(ValidationError, match="rho_values needs 1 entries"):
        Optim(rho_values=[0.1, 0.2])


@pytest.mark.parametrize("epochs", [0.5, 1.0, 1.9, 2.9])
def test_a_cosine_anneals_in_runs_of_a_few_epochs(epochs: float) -> None:
    optim, steps = Optim(schedule="cosine"), round(100 * epochs)
    factors = [optim.factor(Progress(step, 100, steps)) for step in range(steps)]
    wanted = [(1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]
    assert factors == pytest.approx(wanted)
    by_epoch = Optim(schedule="cosine").factor(Progress(299, 100, 300))
    assert by_epoch == pytest.approx(0.25)


def test_deits_constants_are_the_defaults() -> None:
    group = Optim(name="adamw").player(nn.Linear(2, 2), seed=0).optimizer.param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)


@pytest.mark.parametrize("apart", [False, True])
def test_parts_are_clipped_by_their_own_norm(apart: bool) -> None:
    """Spec 08: features, classifier and discriminator each to norm 1; weight decay's halves stay one part."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [{"params": list(part.parameters())} for part in net]
    optim = Optim(lr=1.0, momentum=0.0, weight_decay=0.0, clip=1.0, clip_apart=apart, no_decay=["biases"])
    player = optim.player(net, seed=0, groups=groups)
    assert len(player.optimizer.param_groups) == 4
    before = [p.detach().clone() for p in net.parameters()]
    for p, size in zip(net.parameters(), (3.0, 4.0, 0.3, 0.4), strict=True):
        p.grad = torch.zeros_like(p)
        p.grad.view(-1)[0] = size
    player.step()
    moved = [(b - p).detach().norm().item() for b, p in zip(before, net.parameters(), strict=True)]
    whole = (25.25) ** 0.5
    expected = [0.6, 0.8, 0.3, 0.4] if apart else [3 / whole, 4 / whole, 0.3 / whole, 0.4 / whole]
    assert moved == pytest.approx(expected, rel=1e-4)


def test_an_average_is_switched_off_by_nought() -> None:
    """Where a method has one by default, leaving the key out would keep it."""
    assert Optim(ema=0.9).player(nn.Linear(2, 2), seed=0).average is not None
    assert Optim(ema=0).player(nn.Linear(2, 2), seed=0).average is None


@pytest.mark.parametrize("optim", [Optim(ema=0.999), Optim(ema=0.999, ema_warm=False)], ids=["usual", "papers"])
def test_an_average_warms_up_unless_the_papers_form_is_asked_for(optim: Optim) -> None:
    """After its first step (1 + t) / (10 + t) of it are the first weights, and by the papers' form 0.999."""
    net, first = nn.Linear(1, 1, bias=False), 0.5
    nn.init.constant_(net.weight, first)
    player = optim.player(net, seed=0)
    player.backward(player.net(torch.ones(1, 1)).sum(), last=True)
    player.step()
    now = float(player.net.weight)
    left = 2 / 11 if optim == Optim(ema=0.999) else 0.999
    assert now != first
    assert float(player.judged().weight) == pytest.approx(left * first + (1 - left) * now, abs=1e-6)


def test_a_method_of_ones_own_is_found_where_one_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console script does not look there by itself."""
    (tmp_path / "my_own_method.py").write_text("class Mine:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    assert method_class("my_own_method:Mine").__name__ == "Mine"
    assert sys.path[-1] == ""
    method_class("my_own_method:Mine")
    assert sys.path.count("") == 1


# time, and what a method need not have


def test_where_training_stands() -> None:
    at = Progress(7, 4, 20)
    assert (at.epoch, at.time, at.epochs, at.fraction, at.measured) == (1, 1.75, 5.0, 0.35, {})
    assert Progress(0, 4, 0).fraction == 0.0


class Bare(Recogniser):
    """No player, so no network."""

    def feeds(self, streams: Any) -> Any:
        return {}

    def schedule(self, at: Progress) -> None: ...

    def update(self, batch: Any) -> Any: ...

    def state(self) -> Any: ...

    def load_state(self, state: Any) -> None: ...


def test_a_method_without_a_network_says_so() -> None:
    method = Bare()
    assert (method.network(), method.embeds, method.tells, method.logit_scale) == (None, False, False, 1.0)
    assert (method.traces(), method.details(), method.experts()) == ({}, {}, {})
    assert method.refresh(Progress(0, 1, 1), {}) is None
    assert method.size() == 0
    for ask in (method.predict, method.embed):
        with pytest.raises(TypeError, match="Bare has no network: write its predict"):
            ask(torch.zeros(1, 2))
    with pytest.raises(TypeError, match="Bare has no domain discriminator"):
        method.tell(torch.zeros(1, 2))


def test_all_players_count_in_a_methods_size() -> None:
    method = Bare()
    method.player = Optim().player(nn.Linear(3, 2), seed=0)
    method.other = Optim().player(nn.Linear(4, 1), seed=0)  # type: ignore[attr-defined]
    assert method.size() == 8 + 5
    assert method.embeds
