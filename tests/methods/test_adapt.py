"""Domain-adversarial training and SDAT: the exact checks of spec 09 (10a); steps stand in test_adapt_options.py."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.data.loader import Batch
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from evenhand.measure.classification import evaluate
from evenhand.methods.adapt import sdat
from evenhand.methods.adapt.adversarial import DomainAdversarial
from evenhand.methods.adapt.sdat import SDAT
from evenhand.methods.adapt.sdat_ablations import SDATAblation
from evenhand.methods.protocol import Progress
from evenhand.randomness import mix
from evenhand.run.curvature import of_all_classes
from evenhand.run.recipe import load_recipe, validate
from helpers import batches

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

CPU = torch.device("cpu")
TOTAL = 20
LR, DECAY = 0.05, 1e-3


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare_data(DataSettings(set="shapes", target="shapes-negative", n_max=12, imbalance=10, augment=[]))


def make(data: Data, cls: Any = SDAT, optim: dict[str, Any] | None = None, **settings: Any) -> Any:
    tree = {
        "batch": 16,
        "net": {"name": "small-cnn", "width": 4}, "bottleneck": 8, "discriminator": {"hidden": 16},
        "reversal": {"steps": 4}, **settings, "optim": {"lr": LR, **(optim or {})},
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(0, "weights"))
        return cls(cls.table.model_validate(tree), data, seed=0, device=CPU)


def advance(method: DomainAdversarial, steps: list[dict[str, Batch]], start: int = 0) -> list[dict[str, Tensor]]:
    said = []
    for step, batch in enumerate(steps, start):
        at = Progress(step, 2, TOTAL)
        method.refresh(at, method.streams)
        method.schedule(at)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step)
            said.append(method.update(batch))
    return said


def tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [t for part in inside for t in tensors(part)]


# spec 10a


@pytest.mark.parametrize("adversary", ["none", "dann", "cdan", "mdd"])
def test_sdat_at_radius_zero_is_plain_training_bit_for_bit(data: Data, adversary: str) -> None:
    """10a.1; also with a discriminator that draws dropout (a classifier's would be drawn twice)."""
    settings: dict[str, Any] = {"adversary": adversary, "mcc": 1.0, "discriminator": {"hidden": 16, "batchnorm": False}}
    settings["head_hidden"] = 0
    smooth, plain = make(data, rho=0.0, **settings), make(data, DomainAdversarial, **settings)
    said = [advance(method, batches(method, data, 4)) for method in (smooth, plain)]
    assert [{k: v for k, v in row.items() if not k.endswith("_norm")} for row in said[0]] == said[1]
    assert smooth.state().pop("rho") == 0.0
    for a, b in zip(tensors(smooth.state()), tensors(plain.state()), strict=True):
        assert torch.equal(a, b)
    moved = make(data, rho=0.1, **settings)
    advance(moved, batches(moved, data, 4))
    assert not torch.equal(moved.net.head.weight, plain.net.head.weight)


def test_the_perturbation_has_the_radius_and_leaves_the_discriminator_alone(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10a.1, 4: |theta' - theta| = rho over both parameter groups; no gradient in Phi after pass 1; Phi unmoved."""
    method = make(data, rho=0.25, backbone_factor=0.1)
    theta = [p.detach().clone() for p in method.player.parameters]
    phi = [p.detach().clone() for p in method.adversary.parameters]
    seen: list[float] = []
    plain = method.adversarial_loss

    def spy(*arguments: Any) -> Any:
        moved = torch.cat([(p.detach() - q).flatten() for p, q in zip(method.player.parameters, theta, strict=True)])
        seen.append(float(moved.norm()))
        assert all(p.grad is None for p in method.adversary.parameters)
        assert all(torch.equal(p, q) for p, q in zip(method.adversary.parameters, phi, strict=True))
        return plain(*arguments)

    monkeypatch.setattr(method, "adversarial_loss", spy)
    advance(method, batches(method, data, 1))
    assert seen == [pytest.approx(0.25, rel=1e-4)]


def test_momentum_is_the_second_gradient_with_decay_at_the_unperturbed_weights(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10a.3: what the optimiser keeps after its first step is g2 + wd theta."""
    method = make(data, rho=0.3)
    before = [p.detach().clone() for p in method.player.parameters]
    second: list[Tensor] = []
    plain = method.step

    def spy() -> None:
        assert all(torch.equal(p, q) for p, q in zip(method.player.parameters, before, strict=True))
        second.extend(p.grad.clone() for p in method.player.parameters)
        plain()

    monkeypatch.setattr(method, "step", spy)
    advance(method, batches(method, data, 1))
    for p, w, g in zip(method.player.parameters, before, second, strict=True):
        buffer = method.player.optimizer.state[p]["momentum_buffer"]
        torch.testing.assert_close(buffer, g + DECAY * w, rtol=1e-5, atol=1e-7)


def test_reversal_and_learning_rate_follow_the_step(data: Data) -> None:
    """10a.5, 6: tanh(i / 2000), read once a step; backbone at a tenth."""
    method = make(data, optim={"lr": 0.01}, reversal={}, backbone_factor=0.1)
    values = {0: 0.0, 500: 0.244919, 1000: 0.462117, 2000: 0.761594, 5000: 0.986614}
    for step, expected in values.items():
        method.schedule(Progress(step, 10, 30_000))
        assert method.reversal == pytest.approx(expected, abs=1e-6)
    for step, lr in {1000: 0.00594604, 10_000: 0.00165560}.items():
        method.schedule(Progress(step, 10, 30_000))
        assert [g["lr"] for g in method.player.optimizer.param_groups] == pytest.approx([0.1 * lr, lr], rel=1e-5)
        assert [g["lr"] for g in method.adversary.optimizer.param_groups] == pytest.approx([lr], rel=1e-5)


def test_the_backbone_learns_slower_only_when_it_brings_weights(data: Data, tmp_path: Any) -> None:
    def factors(**settings: Any) -> list[float]:
        return [g["lr_factor"] for g in make(data, **settings).player.optimizer.param_groups]

    torch.save(make(data, bottleneck=0).net.state_dict(), tmp_path / "w.pt")
    net = {"name": "small-cnn", "width": 4, "weights": str(tmp_path / "w.pt")}
    assert factors() == [1.0, 1.0]
    assert factors(net=net) == [0.1, 1.0]
    assert factors(net=net, backbone_factor=0.5, bottleneck=0) == [0.5, 1.0]


def test_every_parameter_is_in_one_group(data: Data) -> None:
    for bottleneck in (0, 8):
        method = make(data, bottleneck=bottleneck)
        grouped = method.player.parameters
        assert len(grouped) == len(set(grouped)) == len(list(method.net.parameters()))


def test_a_discriminator_at_chance(data: Data) -> None:
    """10a.7: BCE = log 2 where D is one half."""
    method = make(data, DomainAdversarial, adversary="dann")
    nn.init.zeros_(method.discriminator[-1].weight)
    nn.init.zeros_(method.discriminator[-1].bias)
    (said,) = advance(method, batches(method, data, 1))
    assert float(said["adversarial"]) == pytest.approx(math.log(2), abs=1e-6)


def test_no_gradient_reaches_the_head_through_the_predictions_shown(data: Data) -> None:
    """10a.8: CDAN's g is a constant, so the adversarial gradient ends at the features."""
    method = make(data, DomainAdversarial)
    method.schedule(Progress(500, 2, TOTAL))
    x, y = method.rows(batches(method, data, 1)[0])
    features, logits = method.forward(x)
    loss, _ = method.adversarial_loss(features, logits, len(y))
    loss.backward()
    assert method.net.head.weight.grad is None
    assert all(p.grad is not None and p.grad.any() for p in method.net.bottleneck[0].parameters())


def test_label_smoothing_spreads_over_the_wrong_classes(data: Data) -> None:
    """10a.11."""
    method = make(data, DomainAdversarial, adversary="none", smoothing=0.2)
    logits, y = torch.randn(5, 10, generator=torch.Generator().manual_seed(0)), torch.arange(5)
    wanted = torch.full((5, 10), 0.2 / 9)
    wanted[torch.arange(5), y] = 0.8
    expected = -(wanted * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(method.task_loss(torch.zeros(5), logits, y)[0], expected)


# BatchNorm, streams, settings


def test_trap_01_statistics_move_once_a_step_or_twice_when_asked(data: Data) -> None:
    for freeze, moves in ((True, 3), (False, 6)):
        method = make(data, optim={"freeze_bn": freeze})
        advance(method, batches(method, data, 3))
        own = [int(b) for name, b in method.net.named_buffers() if name.endswith("tracked")]
        assert set(own) == {moves}
        critic = [int(b) for name, b in method.adversary.net.named_buffers() if name.endswith("tracked")]
        assert set(critic) == {3}  # it runs in the second pass alone


def test_trap_01_smoothing_the_discriminator_runs_the_network_once(data: Data) -> None:
    method = make(data, SDATAblation, smooth="adversary")
    advance(method, batches(method, data, 3))
    for net in (method.net, method.adversary.net):
        assert {int(b) for name, b in net.named_buffers() if name.endswith("tracked")} == {3}


def test_batchnorm_sees_source_and_target_together(data: Data) -> None:
    method = make(data, DomainAdversarial)
    (batch,) = batches(method, data, 1)
    joint = torch.cat([batch["source"].x, batch["target"].x])
    first = copy.deepcopy(method.net.backbone)
    advance(method, [batch])
    conv = next(m for m in first.modules() if isinstance(m, nn.Conv2d))
    expected = 0.1 * conv(joint).mean((0, 2, 3))
    mine = next(m for m in method.net.modules() if isinstance(m, nn.BatchNorm2d))
    torch.testing.assert_close(mine.running_mean, expected, rtol=1e-4, atol=1e-6)


def test_source_only_never_asks_for_the_target(data: Data) -> None:
    method = make(data, DomainAdversarial, adversary="none")
    assert list(method.feeds(data.streams)) == ["source"]
    assert list(make(data, DomainAdversarial, adversary="none", mcc=1.0).feeds(data.streams)) == ["source", "target"]
    assert set(advance(method, batches(method, data, 1))[0]) == {"loss", "task"}


def test_scalars(data: Data) -> None:
    method = make(data, mcc=1.0, trade_off=0.5)
    (said,) = advance(method, batches(method, data, 1), start=3)
    keys = {"loss", "task", "adversarial", "mcc", "domain_accuracy", "reversal", "target_entropy"}
    assert set(said) == keys | {"gradient_norm", "weight_norm"}
    assert all(not value.requires_grad for value in said.values())
    torch.testing.assert_close(said["loss"], said["task"] + 0.5 * said["adversarial"])
    assert 0 <= float(said["domain_accuracy"]) <= 1
    assert 0 < float(said["target_entropy"]) <= math.log(10)


def test_recipes_of_the_methods_are_told_apart() -> None:
    """A run must not go on as another method where all settings are defaults."""
    names = ("domain-adversarial", "sdat", "sdat-ablation")
    trees = [{"method": {"name": name}, "data": {"target": "x"}} for name in names]
    assert len({validate(tree, "it").digest() for tree in trees}) == 3


COMMON_CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"adversary": "dann", "map_size": 10}, "belong to adversary = 'cdan'"),
    ({"rho": "auto", "rho_relative": True}, "leave out rho_relative"),
    ({"optim": {"rho": 0.2}}, r"method\.rho"),
    ({"optim": {"name": "sam"}}, "sgd"),
]


@pytest.mark.parametrize(
    ("cls", "settings", "said"),
    [
        (SDATAblation, {"smooth": "all", "adversary": "none"}, "needs an adversary"),
        (SDATAblation, {"smooth": "both", "adv_at": "clean"}, "goes with smooth = 'task'"),
        (SDATAblation, {"smooth": "adversary", "rho": "auto"}, "choose another smooth"),
        *((cls, *case) for cls in (SDAT, SDATAblation) for case in COMMON_CONTRADICTIONS),
    ],
)
def test_settings_that_contradict_each_other(cls: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cls.table.model_validate(settings)


# MDD


@pytest.mark.parametrize("name", ["domain-adversarial", "sdat", "sdat-ablation"])
def test_mdd_has_its_own_defaults_as_published(name: str) -> None:
    """As in its authors' released network and their library's example."""

    def table(**method: Any) -> Any:
        return validate({"method": {"name": name, **method}, "data": {"target": "x"}}, "it").method

    mdd, cdan = table(adversary="mdd"), table()
    rate = [mdd.optim.lr * mdd.optim.factor(Progress(step, 10, 30_000)) for step in (0, 10_000)]
    assert rate == pytest.approx([0.004, 0.004 * (1 + 2e-4 * 10_000) ** -0.75])
    assert (mdd.optim.weight_decay, mdd.optim.momentum, mdd.optim.nesterov) == (5e-4, 0.9, True)
    assert (mdd.reversal.high, mdd.reversal.alpha, mdd.reversal.steps) == (0.1, 1.0, 1000)
    assert (mdd.margin, mdd.bottleneck, mdd.head_hidden, mdd.discriminator.hidden) == (4.0, 1024, 1024, 1024)
    assert (cdan.optim.lr, cdan.optim.inverse_alpha, cdan.optim.weight_decay) == (0.01, None, 1e-3)
    assert (cdan.reversal.high, cdan.bottleneck, cdan.head_hidden) == (1.0, 256, 0)
    one = table(adversary="mdd", optim={"lr": 0.03}, reversal={"steps": 30}, optim_d={"momentum": 0.5}, bottleneck=64)
    assert (one.optim.lr, one.optim.inverse_alpha, one.optim.weight_decay) == (0.03, 2e-4, 5e-4)
    assert (one.optim_d.lr, one.optim_d.inverse_alpha, one.optim_d.momentum) == (0.03, 2e-4, 0.5)
    assert (one.reversal.high, one.reversal.steps, one.bottleneck, one.head_hidden) == (0.1, 30, 64, 1024)


def test_what_is_resolved_reads_back_as_it_is() -> None:
    """A run's folder keeps every value: nothing is laid under it again."""
    table = DomainAdversarial.table.model_validate({"adversary": "mdd", "reversal": {"high": 0.5}, "head_hidden": 0})
    assert DomainAdversarial.table.model_validate(table.model_dump()) == table


@pytest.mark.parametrize("name", ["domain-adversarial", "sdat", "sdat-ablation"])
def test_another_adversary_brings_its_defaults_into_a_recipe_that_is_written_out(name: str, tmp_path: Path) -> None:
    """A run's recipe.toml has every key: at MDD the reversal of CDAN would ruin the training."""
    file = tmp_path / "mine.toml"

    def written(set_: dict[str, Any], **method: Any) -> Any:
        file.write_text(validate({"method": {"name": name, **method}, "data": {"target": "x"}}, "it").toml())
        read = load_recipe(file, {f"method.{key}": value for key, value in set_.items()})
        assert load_recipe(file).changed({f"method.{key}": value for key, value in set_.items()}).method == read.method
        return read.method

    mdd, cdan = (
        validate({"method": {"name": name, "adversary": one}, "data": {"target": "x"}}, "it").method
        for one in ("mdd", "cdan")
    )
    assert written({"adversary": "mdd"}) == mdd
    rival = {"momentum": 0.5, "betas": [0.5, 0.9]}
    both = written({"adversary": "mdd"}, optim_d=rival)
    assert both.optim == mdd.optim
    assert both.optim_d == mdd.optim.model_copy(update=rival)  # what it leaves out is as in the new optim
    assert written({"adversary": "mdd", "optim.lr": 0.02}, optim_d=rival).optim_d.lr == 0.02  # as what was set there
    mine = written({"adversary": "mdd", "optim_d.lr": 0.01}, optim_d={"weight_decay": 1e-4})
    assert (mine.optim_d.lr, mine.optim_d.weight_decay) == (0.01, 1e-4)
    assert written({"adversary": "cdan"}, adversary="mdd") == cdan
    own = written({"adversary": "mdd", "bottleneck": 256}, optim={"lr": 0.02}, reversal={"steps": 30})
    assert (own.bottleneck, own.optim.lr, own.reversal.steps) == (256, 0.02, 30)  # what somebody chose stays
    assert (own.optim.weight_decay, own.reversal.high, own.head_hidden) == (5e-4, 0.1, 1024)
    file.write_text(f'[method]\nname = "{name}"\nbottleneck = 256\n[data]\ntarget = "x"\n')
    assert load_recipe(file, ["method.adversary=mdd"]).method.bottleneck == 256


@pytest.mark.parametrize("recipe", ["adapt", "office-home", "office-home-vit", "visda", "domainnet"])
def test_recipes_leave_mdd_as_published(recipe: str) -> None:
    method = load_recipe(f"{recipe}:mdd").method
    found = (method.optim.lr, method.optim.inverse_alpha, method.optim.weight_decay, method.reversal.high)
    assert found == (0.004, 2e-4, 5e-4, 0.1)
    assert (method.bottleneck, method.head_hidden, method.discriminator.hidden) == (1024, 1024, 1024)


def test_mdds_two_heads_are_alike_and_deep(data: Data) -> None:
    method = make(data, DomainAdversarial, adversary="mdd", head_hidden=16)
    shapes = [
        [(type(m).__name__, getattr(m, "in_features", getattr(m, "p", None))) for m in head]
        for head in (method.net.head, method.adversary.net)
    ]
    assert shapes[0] == shapes[1] == [("Linear", 8), ("ReLU", None), ("Dropout", 0.5), ("Linear", 16)]
    assert [type(m).__name__ for m in method.net.bottleneck] == ["Linear", "BatchNorm1d", "ReLU", "Dropout"]
    plain = make(data, DomainAdversarial, adversary="mdd", head_hidden=0)
    assert isinstance(plain.net.head, nn.Linear)
    assert len(plain.net.bottleneck) == 3
    groups = method.player.optimizer.param_groups
    assert set(groups[1]["params"]) == {*method.net.bottleneck.parameters(), *method.net.head.parameters()}


def test_mdd_with_a_radius_found_by_itself(data: Data) -> None:
    """The probes have its head."""
    method = make(data, adversary="mdd", head_hidden=16, rho="auto", auto={"steps": 2, "shares": [1e-3]})
    method.feeds(data.streams)
    method.refresh(Progress(0, 2, TOTAL), data.streams)
    assert method.rho is not None


# the radius without labels of the target


def test_automatic_radius_is_the_last_that_source_validation_bears(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of weights, source and seed: judged by short source trainings, and nothing else moves."""
    judged: list[tuple[str, float, int]] = []

    def spy(predict: Any, stream: Any) -> Any:
        probe: SDAT = predict.__self__
        steps = next(int(b) for name, b in probe.net.named_buffers() if name.endswith("tracked"))
        judged.append((stream.name, float(probe.rho or 0.0), steps))
        assert probe.adversary is None
        assert all(math.isfinite(value) for value in evaluate(predict, stream).scalars().values())
        return SimpleNamespace(confusion=torch.tensor([[0.9 - float(probe.rho or 0.0)]]))  # its trace is the accuracy

    monkeypatch.setattr(sdat, "evaluate", spy)
    settings: dict[str, Any] = {"rho": "auto", "auto": {"steps": 3, "shares": [1e-3, 1e-2, 10.0], "tolerance": 0.5}}
    method, again = make(data, **settings), make(data, **settings)
    before = copy.deepcopy(method.state())
    for each in (method, again):
        each.feeds(data.streams)
        each.refresh(Progress(0, 2, TOTAL), data.streams)
        each.schedule(Progress(0, 2, TOTAL))
    norm = math.sqrt(sum(float(p.detach().double().square().sum()) for p in method.net.parameters()))
    assert method.rho == again.rho == pytest.approx(0.01 * norm, rel=1e-5)
    radii = [0.0, 1e-3 * norm, 1e-2 * norm, 10 * norm]
    assert judged[:4] == judged[4:] == [("val", pytest.approx(rho, rel=1e-5), 3) for rho in radii]
    for a, b in zip(tensors(before), tensors(method.state()), strict=True):
        assert torch.equal(a, b)
    resumed = make(data, rho="auto", auto={"shares": [0.5]})
    resumed.load_state(method.state())
    said = advance(resumed, batches(resumed, data, 1))
    assert len(judged) == 8  # it is remembered, not found again
    assert float(said[0]["rho"]) == pytest.approx(method.rho)


def test_automatic_radius_trains_its_probes() -> None:
    """A radius beyond all weights learns nothing and fails."""
    easy = prepare_data(DataSettings(set="shapes", target="shapes-negative", val_share=0.2, augment=[]))
    auto = {"steps": 40, "shares": [1e-3, 100.0], "tolerance": 0.06}
    method = make(
        easy, adversary="none", bottleneck=0, batch=64, rho="auto", auto=auto, net={"name": "small-cnn", "width": 8}
    )
    method.feeds(easy.streams)
    method.refresh(Progress(0, 2, TOTAL), easy.streams)
    norm = math.sqrt(sum(float(p.detach().double().square().sum()) for p in method.net.parameters()))
    assert method.rho == pytest.approx(1e-3 * norm, rel=1e-5)


def test_automatic_radius_needs_validation(data: Data) -> None:
    streams = {k: v for k, v in data.streams.items() if k != "val"}
    method = make(replace(data, streams=streams), rho="auto")
    with pytest.raises(UserError, match=r"data\.val_share"):
        method.feeds(streams)


# what is learned


def test_embed_and_tell_are_what_the_head_and_the_discriminator_see(data: Data) -> None:
    for extra in ({"adversary": "dann"}, {"adversary": "cdan"}, {"adversary": "cdan", "map_size": 6}):
        method = make(data, **extra)
        advance(method, batches(method, data, 3))
        x = data.streams["target"].fetch(torch.arange(0, 600, 40))
        features, told = method.embed(x), method.tell(x)
        assert features.shape == (15, 8)
        assert told.shape == (15,)
        assert not features.requires_grad
        torch.testing.assert_close(method.net.head(features).detach(), method.predict(x))
        singly = torch.cat([method.tell(image[None]) for image in x])
        torch.testing.assert_close(singly, told, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("adversary", ["none", "mdd"])
def test_without_a_discriminator_there_is_nothing_to_tell(data: Data, adversary: str) -> None:
    method = make(data, adversary=adversary)
    assert method.discriminator is None
    with pytest.raises(ValueError, match="has no domain discriminator"):
        method.tell(data.streams["target"].fetch(torch.arange(2)))


def test_averaged_weights_are_the_mean_of_the_snapshots_with_statistics_of_their_own(data: Data) -> None:
    method = make(data, DomainAdversarial, average_every=2, average_start=0.0)
    plain = make(data, DomainAdversarial)
    snapshots = []
    for step, batch in enumerate(batches(method, data, 6)):
        for each in (method, plain):
            advance(each, [batch], start=step)
        if step % 2:
            snapshots.append(copy.deepcopy(plain.net.state_dict()))
    averaged = method.network()
    for name, p in averaged.named_parameters():
        torch.testing.assert_close(p, torch.stack([s[name] for s in snapshots]).mean(0), rtol=1e-5, atol=1e-6)
    assert torch.equal(method.net.head.weight, plain.net.head.weight)  # the average only watches
    norm = next(m for m in averaged.modules() if isinstance(m, nn.BatchNorm2d))
    assert int(norm.num_batches_tracked) == 16
    theirs = next(m for m in plain.net.modules() if isinstance(m, nn.BatchNorm2d))
    assert not torch.allclose(norm.running_mean, theirs.running_mean)


def test_curvature_is_that_of_the_averaged_weights(data: Data) -> None:
    method = make(data, DomainAdversarial, average_every=2, average_start=0.0)
    advance(method, batches(method, data, 4))
    run: Any = SimpleNamespace(method=method)
    found = of_all_classes(run, data, steps=4, max_samples=8).spectrum.maximum
    method.average = None
    assert found != pytest.approx(of_all_classes(run, data, steps=4, max_samples=8).spectrum.maximum, rel=1e-3)


def test_what_the_discriminators_optimiser_leaves_out_is_as_in_the_other() -> None:
    table = SDAT.table.model_validate({"optim": {"lr": 0.05, "weight_decay": 5e-4}, "optim_d": {"lr": 0.003}})
    assert (table.optim_d.lr, table.optim_d.weight_decay) == (0.003, 5e-4)


def test_a_single_row_is_refused(data: Data) -> None:
    with pytest.raises(ValueError, match="batch = 1 leaves BatchNorm a single row"):
        make(data, batch=1, adversary="none")
    advance(lone := make(data, batch=1, adversary="dann"), batches(lone, data, 1))


def test_trap_14_vat_adds_the_divergence_of_source_predictions(data: Data) -> None:
    method = make(data, DomainAdversarial, adversary="none", vat={"weight": 0.5, "epsilon": 2.0})
    (said,) = advance(method, batches(method, data, 1))
    assert float(said["vat"]) > 1e-3
    x, y = method.rows(batches(method, data, 1)[0])
    logits = method.forward(x)[1]
    task, heard = method.task_loss(x, logits, y)
    torch.testing.assert_close(task, F.cross_entropy(logits, y) + 0.5 * heard["vat"])


def test_the_randomised_map_is_drawn_from_the_seed_and_kept(data: Data) -> None:
    one, other = make(data, map_size=6), make(data, map_size=6)
    assert torch.equal(one.map.features_matrix, other.map.features_matrix)
    other.map.features_matrix.zero_()
    other.load_state(one.state())
    assert torch.equal(one.map.features_matrix, other.map.features_matrix)
