"""StyleGAN2 and NoisyTwins as methods: what is drawn, saved, refused; the steps are in test_stylegan_step."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.prepared import Data
from evenhand.errors import UserError
from evenhand.methods.generate import stylegan
from evenhand.methods.generate.stylegan import NoisyTwins, StyleGAN2
from evenhand.methods.generate.stylegan_tables import check_style, side_of
from evenhand.methods.protocol import Progress
from evenhand.methods.recognise.classifier import LongTailClassifier
from evenhand.nets.stylegan2 import Discriminator, Generator, Noise
from evenhand.pieces.spectral import conditional_parameters
from evenhand.pieces.stylegan import agreement, average_decay
from evenhand.pieces.twins import cross_correlation
from evenhand.randomness import dice
from evenhand.tasks.generate import GENERATE
from helpers import batches, seeded
from methods.test_stylegan_step import BASE, CONTRAST, NET, STEPS, TWINS, build, data, judge, judge_of, run, unframed

__all__ = ["data", "judge"]  # fixtures
pytestmark = pytest.mark.filterwarnings(
    "ignore:one training image", "ignore:the spectral norm of class", "ignore:drawn images of class"
)

EVERYTHING = {"mixing": 0.5, "r1": 1.0, "r1_every": 2, "path": 1.0, "path_every": 2}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


# starting from a file


def test_both_players_start_from_files_of_their_own(data: Data, judge: LongTailClassifier, tmp_path: Path) -> None:
    plain = build(data, judge)
    for net in (plain.generator.net, plain.discriminator.net):
        for parameter in net.parameters():
            parameter.data += 0.25
    torch.save(plain.generator.net.state_dict(), tmp_path / "g.pt")
    torch.save({"model": plain.discriminator.net.state_dict()}, tmp_path / "d.pt")
    files = {"weights_g": str(tmp_path / "g.pt"), "weights_d": str(tmp_path / "d.pt")}
    both = build(data, judge, net={**NET, **files})
    only = build(data, judge, net={**NET, "weights_d": files["weights_d"]})
    for made, wanted in ((both, True), (only, False)):
        assert same(made.generator.net.state_dict(), plain.generator.net.state_dict()) == wanted
        assert same(made.generator.average.state_dict(), plain.generator.net.state_dict()) == wanted
        assert same(made.discriminator.net.state_dict(), plain.discriminator.net.state_dict())
    assert both.settings.net.as_trained() == plain.settings.net  # a finished run needs no file


def test_files_that_do_not_fit_are_refused_before_anything_is_trained(data: Data, tmp_path: Path) -> None:
    other = Generator(32, 3, 10, base=64, widest=6, latent=6, style=5, mapping_layers=2)
    torch.save(other.state_dict(), tmp_path / "g.pt")
    settings = StyleGAN2.table(**{**BASE, "net": {**NET, "weights_g": str(tmp_path / "g.pt")}})
    with pytest.raises(UserError, match=r"method.net.weights_g: weights '.*' do not fit: mis-shaped .* for "):
        check_style(settings, data, ["annotator"])
    torch.save({"g": other}, tmp_path / "code.pt")
    settings = StyleGAN2.table(**{**BASE, "net": {**NET, "weights_d": str(tmp_path / "code.pt")}})
    with pytest.raises(UserError, match=r"method.net.weights_d: .* refused: they hold Python objects"):
        check_style(settings, data, ["annotator"])


# NoisyTwins


def test_without_noise_and_twins_it_is_stylegan2_bit_for_bit(data: Data, judge: LongTailClassifier) -> None:
    """Spec 03, 10a.7: no stray random draw."""
    plain = build(data, judge, **EVERYTHING)
    off = build(data, judge, NoisyTwins, twins={"sigma": 0.0, "strength": 0.0}, **EVERYTHING)
    on = build(data, judge, NoisyTwins, twins=TWINS, **EVERYTHING)
    steps = batches(plain, data, 2)
    said = [run(gan, steps) for gan in (plain, off, on)]
    assert same(said[0], said[1])
    assert same(plain.state(), off.state())
    assert not same(plain.state(), on.state())


def test_noise_is_on_in_training_and_off_in_drawing(data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge, twins=TWINS)
    run(gan, batches(gan, data, 1))
    z, labels = torch.randn(3, 6, generator=seeded()), torch.tensor([0, 4, 9])
    for net, given in ((gan.generator.net, (z, labels)), (gan.discriminator.net, (labels,))):
        net.train()
        assert not torch.equal(net.mapping(*given), net.mapping(*given))
        net.eval()
        assert torch.equal(net.mapping(*given), net.mapping(*given))
    drawn = [gan.sample(4, torch.tensor([0, 1, 8, 9]), chance=seeded()) for _ in range(2)]
    assert torch.equal(*drawn)
    silent = copy.deepcopy(gan.generator.average).train()  # the average has no noise at all
    assert torch.equal(silent.mapping(z, labels), silent.mapping(z, labels))


def test_twins_share_noise_and_label_and_differ_in_the_embedding(data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge, twins=TWINS, mixing=1.0)
    seen: list[Any] = []
    gan.generator.net.mapping.register_forward_pre_hook(lambda _, given: seen.append(given))
    run(gan, batches(gan, data, 1))
    z, labels = seen[0]
    assert torch.equal(z[:2], z[2:])
    assert torch.equal(labels[:2], labels[2:])
    mixed, again = seen[1]
    assert not torch.equal(mixed[:2], mixed[2:])  # fresh for each row
    assert torch.equal(again, labels)
    z, labels = seen[2]  # the discriminator's fakes are no twins
    assert len(z) == len(z.unique(dim=0)) == 4


def test_twins_loss_reaches_mapping_and_embedding_alone(data: Data, judge: LongTailClassifier) -> None:
    """Spec 03, 10a.6."""
    from evenhand.pieces.twins import twins_loss

    gan = build(data, judge, twins=TWINS)
    ws, asked = gan.styles(4, twins=True)
    twins_loss(*ws[:, 0].chunk(2), off_diagonal=0.1).backward()
    for name, parameter in gan.generator.net.named_parameters():
        assert (parameter.grad is not None) == name.startswith("mapping."), name
    columns = gan.generator.net.mapping.embed.weight.grad.abs().sum(0) > 0
    assert not columns[[k for k in range(10) if k not in asked.tolist()]].any()
    assert all(p.grad is None for p in gan.discriminator.net.parameters())


def test_agreement_is_of_the_correlation() -> None:
    a, b = torch.randn(2, 20, 5, generator=seeded())
    c = cross_correlation(a, b)
    found = agreement(a, b)
    assert float(found["twins_diagonal"]) == pytest.approx(float(sum(c[j, j] for j in range(5)) / 5))
    off = sum(float(c[j, k]) ** 2 for j in range(5) for k in range(5) if j != k)
    assert float(found["twins_energy"]) == pytest.approx(off, rel=1e-4)


@pytest.mark.parametrize(
    ("kimg", "rampup", "step", "decay"),
    [
        (20, 0, 7, 0.9955737), (500, 0, 7, 0.9998226), (500, 0.05, 0, 0.0), (500, 0.05, 40, 0.5**0.5),
        (500, 0.05, 10**6, 0.9998226),
    ],
)  # fmt: skip
def test_average_forgets_by_images(kimg: float, rampup: float, step: int, decay: float) -> None:
    """Spec 03, 10a.9."""
    assert average_decay(128, step, kimg, rampup) == pytest.approx(decay, abs=1e-7)


def test_the_average_counts_the_images_of_a_step_where_the_batch_is_more_than_there_are(
    data: Data, judge: LongTailClassifier
) -> None:
    gan = build(data, judge, batch=4096, ema_kimg=10, ema_rampup=0.0)
    gan.schedule(Progress(5, 1, 10))
    assert gan.generator.ema == pytest.approx(0.5 ** (sum(data.counts) / 10_000))


def test_style_zero_is_never_mixed(data: Data, judge: LongTailClassifier) -> None:
    """Spec 03, 10a.8."""
    gan, cuts = build(data, judge, mixing=1.0), set()
    for seed in range(60):
        gan.noise = seeded(seed)
        ws, labels = gan.styles(2)
        gan.noise = seeded(seed)
        z, _ = gan._draw(2, gan.noise)
        kept = (ws == gan.generator.net.mapping(z, labels)).all(2).all(0).tolist()
        cuts.add(sum(kept))
        assert kept == sorted(kept, reverse=True)
    assert cuts == set(range(1, 8))


def test_path_penalty_has_the_running_means_gradient(data: Data, judge: LongTailClassifier) -> None:
    """The mean that lengths are compared with moves by a hundredth of them, and that hundredth has a gradient."""
    gan = build(data, judge, net=NET | {"noise": "none"})
    gan.noise, gan.path_mean = seeded(), torch.tensor(0.5)
    const = gan.generator.net.synthesis["b4"].const
    (found,) = torch.autograd.grad(gan.path_penalty(4), const)
    chance = seeded()
    z, labels = gan._draw(2, chance)
    ws = gan.generator.net.mapping(z, labels)
    images = gan.generator.net.synthesis(ws, "none")
    probe = torch.randn(images.shape, generator=chance) / 32
    (slope,) = torch.autograd.grad((images * probe).sum(), ws, create_graph=True)
    lengths = slope.square().sum(2).mean(1).sqrt()
    mean = 0.99 * 0.5 + 0.01 * lengths.mean()
    (expected,) = torch.autograd.grad(((lengths - mean) ** 2).mean(), const)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    assert float(gan.path_mean) == pytest.approx(float(mean.detach()), rel=1e-5)


@pytest.mark.parametrize(("batch", "half"), [(1, 1), (2, 1), (5, 2)])
def test_path_lengths_are_of_half_a_batch_and_at_least_one_image(
    batch: int, half: int, data: Data, judge: LongTailClassifier
) -> None:
    gan, counted = build(data, judge), []
    gan.styles = lambda count: counted.append(count) or StyleGAN2.styles(gan, count)
    gan.path_penalty(batch)
    assert counted == [half]


def test_processes_take_their_parts_of_the_probe_of_path_lengths(
    data: Data, judge: LongTailClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise of both processes, then a random image of each of them, divided by the side of the images."""
    gan, probes = build(data, judge, condition="none"), []
    monkeypatch.setattr(stylegan, "path_lengths", lambda _, __, probe: probes.append(probe) or torch.ones(len(probe)))
    monkeypatch.setattr(parallel, "world", lambda: 2)
    monkeypatch.setattr(parallel, "total", lambda x: x)
    for rank in (0, 1):
        monkeypatch.setattr(parallel, "rank", lambda rank=rank: rank)
        gan.noise = seeded(3)
        gan.path_penalty(4)
    chance = seeded(3)
    torch.randn(4, 6, generator=chance)
    joint = torch.randn(4, 3, 32, 32, generator=chance) / 32
    torch.testing.assert_close(torch.cat(probes), joint)


# drawing and saving


def test_frame_is_black_and_cropped_from_what_is_drawn(data: Data, judge: LongTailClassifier) -> None:
    assert [side_of(size, True) for size in (3, 8, 9, 28, 32, 100)] == [8, 8, 16, 32, 32, 128]
    assert side_of(28, False) == 28
    gan = build(data, judge, pad=True)
    framed = gan.framed(torch.zeros(1, 3, 28, 28))
    assert framed.shape[-2:] == (32, 32)
    assert torch.equal(framed[..., 2:30, 2:30], torch.zeros(1, 3, 28, 28))
    assert float(framed.sum()) == -3 * (32**2 - 28**2)
    whole = gan.sample(2, torch.tensor([0, 1]), chance=seeded())
    gan.data = replace(gan.data, facts=gan.data.facts.model_copy(update={"size": (28, 28)}))
    assert torch.equal(gan.sample(2, torch.tensor([0, 1]), chance=seeded()), whole[..., 2:30, 2:30])


def test_training_sees_the_frame_and_nobody_else(data: Data) -> None:
    small, batch = unframed(data)
    gan = build(small, judge_of(small), pad=True, r1=1.0, r1_every=1)
    seen: list[Tensor] = []
    gan.discriminator.net.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    run(gan, [batch])
    fakes, first, _, again = seen  # of the generator's step; reals, fakes, and the reals of R1
    assert {x.shape for x in seen} == {(4, 3, 32, 32)}
    for reals in (first, again):
        assert torch.equal(reals[..., 2:30, 2:30], batch["labelled"].x)
        assert bool((reals[..., :2, :] == -1).all())
        assert bool((reals[..., 30:] == -1).all())
    assert not bool((fakes[..., :2, :] == -1).all())  # the generator has to learn it
    labels = torch.tensor([0, 3, 9])
    chance = seeded()
    z = torch.randn(3, 6, generator=chance)
    whole = gan.generator.average.eval()(z, labels, noise="random", chance=chance)
    expected = ((whole + 1) * 127.5).round().clamp(0, 255).byte()[..., 2:30, 2:30]
    assert torch.equal(gan.sample(3, labels, chance=seeded()), expected)
    assert gan.exhibit(4, "judge")[0].shape == (4, 3, 28, 28)


def test_networks_are_as_the_table_says(data: Data, judge: LongTailClassifier) -> None:
    """Every size another, so that none stands in for another."""
    sizes = {"base": 96, "widest": 12, "latent": 5, "style": 7, "mapping_layers": 3, "group": 3, "residual": False}
    gan = build(data, judge, net=sizes, condition="d2d-ce", contrast=CONTRAST | {"size": 9})
    kept: dict[str, int] = {key: sizes[key] for key in ("latent", "style", "base", "widest", "mapping_layers")}
    draws = Generator(32, 3, 10, **kept)  # type: ignore[arg-type]
    tells = Discriminator(32, 3, 10, base=96, widest=12, group=3, residual=False, contrast=9)
    for ours, by_hand in ((gan.generator.net, draws), (gan.discriminator.net, tells)):
        shapes = [{name: value.shape for name, value in net.state_dict().items()} for net in (ours, by_hand)]
        assert shapes[0] == shapes[1]
    assert gan.discriminator.net.b4.group == 3


def test_processes_draw_apart_what_each_adds_to_its_own_images(
    data: Data, judge: LongTailClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    gan = build(data, judge, twins=TWINS)

    def draws(rank: int) -> list[Tensor]:
        monkeypatch.setattr(parallel, "rank", lambda: rank)
        gan.schedule(Progress(1, 4, STEPS))
        sources = [gan.shake, gan.grain, *(noise.generator for noise in gan.noises), gan.noise]
        return [torch.rand(4, generator=source) for source in sources]

    *first, joint = draws(0)
    *second, same_joint = draws(1)
    assert len(first) == 4
    assert len(torch.stack(first + second).unique(dim=0)) == 8
    assert torch.equal(joint, same_joint)  # the noise of the joint batch, of which each process takes its part


@pytest.mark.parametrize("noise", ["random", "none"])
def test_images_are_drawn_with_the_noise_of_training(noise: Noise, data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge, net=NET | {"noise": noise})
    net, labels, chance = gan.generator.average.eval(), torch.tensor([0, 3, 9]), seeded()
    with torch.no_grad():
        for module in net.modules():
            if hasattr(module, "noise_strength"):
                module.noise_strength.fill_(1.0)
    z = torch.randn(3, 6, generator=chance)
    expected = ((net(z, labels, noise=noise, chance=chance) + 1) * 127.5).round().clamp(0, 255).byte()
    assert torch.equal(gan.sample(3, labels, chance=seeded()), expected)
    kinds = {kind: net(z, labels, noise=kind, chance=seeded(1)) for kind in ("random", "constant", "none")}
    assert all(not torch.equal(kinds[noise], other) for kind, other in kinds.items() if kind != noise)


def test_what_is_drawn_judged_and_shown_is_the_averages(data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge, twins=TWINS)
    run(gan, batches(gan, data, 2))
    gan.judge.settings = gan.judge.settings.model_copy(update={"judge_samples": 20})

    def told() -> dict[str, Any]:
        labels = torch.arange(8)
        return {
            "samples": gan.sample(8, labels, chance=seeded()), "judged": gan.exhibit(20, "judge"),
            "scores": GENERATE.score(gan, data.streams["val"]), "latents": gan.latents(), "details": gan.details(),
        }  # fmt: skip

    before = told()
    for net, changes in ((gan.generator.net, False), (gan.generator.average, True)):
        with torch.no_grad():
            for weight in net.parameters():
                weight.add_(torch.randn(weight.shape, generator=seeded(1)))
        for key, value in told().items():
            assert same(value, before[key]) != changes, key


def test_truncation_draws_towards_the_mean_of_the_class(data: Data, judge: LongTailClassifier) -> None:
    """At 0 one image of each class, whatever z; the mean of all classes would draw them all the same."""
    gan = build(data, judge, twins=TWINS)
    run(gan, batches(gan, data, 1))
    labels, net = torch.tensor([0, 0, 0, 7, 7, 9]), gan.generator.average.eval()
    whole = gan.sample(6, labels, chance=seeded())
    gan.truncation = 0.0
    first, other = (gan.sample(6, labels, chance=seeded(seed)) for seed in range(2))
    assert torch.equal(first, other)
    assert [len(first[labels == k].unique(dim=0)) for k in (0, 7)] == [1, 1]
    assert len(first.unique(dim=0)) == 3
    assert len(whole.unique(dim=0)) == 6
    gan.truncation = 0.3
    z, probe = torch.randn(6, 6, generator=seeded()), torch.randn(1000, 6, generator=seeded())
    means = [net.mapping(probe, torch.full((1000,), int(y)))[:, 0].mean(0) for y in labels]
    w = torch.stack([mean + 0.3 * (own - mean) for mean, own in zip(means, net.mapping(z, labels)[:, 0], strict=True)])
    expected = ((net.synthesis(w[:, None].repeat(1, 8, 1)) + 1) * 127.5).clamp(0, 255)
    found = gan.sample(6, labels, chance=seeded())
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.51)
    gan.truncation = 1.0
    assert torch.equal(gan.sample(6, labels, chance=seeded()), whole)
    alone = build(data, judge, condition="none")
    alone.truncation = 0.0
    assert len(alone.sample(4, chance=seeded()).unique(dim=0)) == 1


def test_state_has_the_path_mean_and_ada(data: Data, judge: LongTailClassifier) -> None:
    gan, other = (build(data, judge, ada={"kimg": 0.01, "every": 1, "target": -1.0}, **EVERYTHING) for _ in range(2))
    run(gan, batches(gan, data, 1))
    assert float(gan.path_mean) > 0
    assert gan.ada.p > 0
    other.load_state(copy.deepcopy(gan.state()))
    assert same(other.state(), gan.state())


def test_gsr_acts_on_the_embedding(data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge, gsr={})
    gains, biases = conditional_parameters(gan.generator.net)
    assert ([g.shape for g in gains], biases) == ([(10, 6)], [])
    torch.testing.assert_close(gains[0], gan.generator.net.mapping.embed(torch.arange(10)))
    gan.terms["gsr"](torch.empty(0), None).backward()
    touched = [name for name, p in gan.generator.net.named_parameters() if p.grad is not None]
    assert touched == ["mapping.embed.weight", "mapping.embed.bias"]


def test_z_sensitivity_is_small_when_styles_ignore_z(data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge)
    before = gan.z_sensitivity()
    assert before.shape == (10,)
    assert (before > 0.01).all()
    gan.judge.settings = gan.judge.settings.model_copy(update={"samples": 20})
    table = GENERATE.table(gan, data.streams["val"])
    assert table["z_sensitivity"] == before.tolist()
    for group, members in data.groups.items():
        assert table["group_z_sensitivity"][group] == pytest.approx(float(before[members].mean()))
    with torch.no_grad():
        for net in (gan.generator.net, gan.generator.average):
            net.mapping.fc0.weight[:, :6] = 0
    assert gan.z_sensitivity().max() < 1e-9
    traces = gan.traces()
    assert traces["z_sensitivity"] < 1e-9
    assert f"z_sensitivity:{data.classes[9]}" in traces
    assert len(gan.details()["z_sensitivity"]) == 10
    assert "z_sensitivity" not in build(data, judge, condition="none").traces()


def test_latents_are_as_many_styles_of_each_class_of_the_averaged_mapping(
    data: Data, judge: LongTailClassifier
) -> None:
    gan = build(data, judge, twins=TWINS)
    w, labels = gan.latents()
    assert labels.bincount().tolist() == [32] * 10
    z = torch.randn(320, 6, generator=dice(5, "latents"))
    expected = [gan.generator.average.eval().mapping(z[i : i + 1], labels[i : i + 1])[0, 0] for i in (0, 1, 150, 319)]
    torch.testing.assert_close(w[[0, 1, 150, 319]], torch.stack(expected).detach())
    whole = sum(float((w[:, j] - w[:, j].mean()).square().mean()) for j in range(6))
    own = w[labels == 9]
    share = sum(float((own[:, j] - own[:, j].mean()).square().mean()) for j in range(6)) / whole
    assert gan.details()["z_sensitivity"][9] == pytest.approx(share, rel=1e-4)
    assert gan.traces()["z_sensitivity"] == pytest.approx(sum(gan.details()["z_sensitivity"]) / 10)
    assert build(data, judge, condition="none").latents() is None


def test_sizes_of_embeddings_are_told_for_both_players(data: Data, judge: LongTailClassifier) -> None:
    gan = build(data, judge)
    shift = torch.arange(10.0)
    nets = {"embedding_g": gan.generator.average, "embedding_d": gan.discriminator.net}
    for number, net in enumerate(nets.values()):
        embed = net.mapping.embed
        with torch.no_grad():
            embed.bias.zero_()
            embed.weight.copy_((shift + number)[None].expand_as(embed.weight) / embed.scale)
    told, traces = gan.details(), gan.traces()
    for number, key in enumerate(nets):
        assert told[key] == pytest.approx((shift + number).tolist())
        assert traces[f"{key}:{data.classes[9]}"] == pytest.approx(9 + number)
    assert "embedding_d" not in build(data, judge, condition="none").details()


# refused


def facts(data: Data, **changes: Any) -> Data:
    return replace(data, facts=data.facts.model_copy(update=changes))


def refused(data: Data, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_style(StyleGAN2.table(**{**BASE, **options}), data, ["annotator"])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_sizes_that_are_no_power_of_two(data: Data) -> None:
    odd = facts(data, size=(28, 28))
    assert refused(odd) == (
        "images are 28 pixels a side, StyleGAN2 draws 8, 16, 32, ...: set method.pad = true, which frames them to 32, "
        "or of files data.size = 32"
    )
    check_style(StyleGAN2.table(**BASE, pad=True), odd, ["annotator"])
    assert "crop them" in refused(facts(data, size=(32, 16)))
    assert "method.net.base = 8 leaves no channels at 32 pixels" in refused(data, net=NET | {"base": 8})


def test_a_framed_side_needs_as_many_channels(data: Data) -> None:
    odd = facts(data, size=(28, 28))
    assert refused(odd, pad=True, net=NET | {"base": 31}) == (
        "method.net.base = 31 leaves no channels at 32 pixels: use at least 32"
    )
    check_style(StyleGAN2.table(**BASE | {"net": NET | {"base": 32}}, pad=True), odd, ["annotator"])
    small = facts(data, size=(4, 4))  # a power of two, but too small
    assert refused(small).startswith("images are 4 pixels a side")
    check_style(StyleGAN2.table(**BASE), facts(data, size=(8, 8)), ["annotator"])


def test_what_are_no_images_is_told_as_such(data: Data) -> None:
    assert "the samples are texts or vectors" in refused(facts(data, size=[], kind="vectors"))


def test_two_classes_can_be_conditioned_on(data: Data) -> None:
    check_style(StyleGAN2.table(**BASE), facts(data, classes=("a", "b"), counts=[6, 6]), ["annotator"])


def test_one_class(data: Data) -> None:
    lone = facts(data, classes=("only",), counts=[12])
    features = {"features": "mobilenet_v2"}
    start, judged = (
        "1 class leaves nothing to condition on: set method.condition = 'none'",
        "method.measure.features = ",
    )
    assert refused(lone, measure=features) == start
    assert refused(lone) == f"{start}, {judged}'mobilenet_v2' without needs.annotator"
    assert refused(lone, twins={}, gsr={}, measure=features) == (
        f"{start}, method.name = 'stylegan2' without [method.twins], method.gsr.strength = 0"
    )
    check_style(StyleGAN2.table(**BASE, condition="none", measure=features), lone, [])
    silent = NoisyTwins.table(**BASE, condition="none", measure=features, twins={"sigma": 0, "strength": 0})
    check_style(silent, lone, [])


def test_too_few_images_for_twins(data: Data) -> None:
    few = facts(data, counts=[1, 1, 1] + [0] * 7)
    assert refused(few, twins={}) == (
        "3 training images are no batch of twins, which takes 4: add images, or set method.twins.strength = 0"
    )
    for twins, counts in (({"strength": 0.0}, [1, 1, 1]), ({}, [2, 1, 1])):
        check_style(StyleGAN2.table(**BASE, twins=twins), facts(data, counts=counts + [0] * 7), ["annotator"])


@pytest.mark.parametrize(("batch", "usable"), [(7, 6), (2, 4), (1, 4)])
def test_a_batch_that_cannot_be_halved(batch: int, usable: int, data: Data) -> None:
    said = refused(data, batch=batch, twins={})
    assert said == f"method.batch = {batch} cannot be halved into twins: use {usable}"
    check_style(StyleGAN2.table(**BASE | {"batch": batch, "twins": {"strength": 0.0}}), data, ["annotator"])


def test_a_batch_is_halved_in_every_process(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "world", lambda: 2)
    said = refused(data, batch=6, twins={})
    assert said == "method.batch = 6 cannot be halved into twins in each of 2 processes: use 8"
    few = facts(data, counts=[3, 2, 2] + [0] * 7)
    assert "7 training images are no batch of twins, which takes 8" in refused(few, batch=8, twins={})


@pytest.mark.parametrize(
    ("net", "said"),
    [
        ({"widest": 7}, r"generator has other sizes: .* is \(6,.*, here \(7,.*; open it with the \[method.net\]"),
        ({"mapping_layers": 3}, r"generator has other layers: mapping.fc2.weight is not in the checkpoint; open it"),
        ({"mapping_layers": 1}, r"generator has other layers: mapping.fc1.weight is in the checkpoint alone; open it"),
        ({"residual": False}, r"discriminator has other layers: b32.skip.weight is in the checkpoint alone; open it"),
    ],
)
def test_a_checkpoint_with_other_sizes_or_layers(
    net: dict[str, Any], said: str, data: Data, judge: LongTailClassifier
) -> None:
    gan, other = build(data, judge), build(data, judge, net=NET | net)
    before = copy.deepcopy(other.state())
    with torch.no_grad():
        for weight in (*gan.generator.net.parameters(), *gan.discriminator.net.parameters()):
            weight.add_(1)
    with pytest.raises(UserError, match=said) as caught:
        other.load_state(gan.state())
    assert "\n" not in str(caught.value)
    assert same(other.state(), before)  # nothing was loaded


@pytest.mark.parametrize(("table", "what"), [("twins", "NoisyTwins"), ("gsr", "gSR")])
def test_class_terms_need_classes(table: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"{what} acts on class embeddings: set condition to projection"):
        StyleGAN2.table(condition="none", **{table: {}})
    for some in ({"sigma": 0.0}, {"strength": 0.0}) if table == "twins" else ():
        with pytest.raises(ValueError, match="NoisyTwins acts on class embeddings"):
            StyleGAN2.table(condition="none", twins=some)
    none = {"sigma": 0.0, "strength": 0.0} if table == "twins" else {"strength": 0.0}
    assert StyleGAN2.table(condition="none", **{table: none}).condition == "none"


def test_ada_can_be_switched_off(data: Data, judge: LongTailClassifier) -> None:
    assert build(data, judge, ada={"kimg": 0.0}).ada is None
    assert build(data, judge, ada={}).ada.kimg == 500
    assert build(data, judge, ada={"kimg": 0.0, "p": 0.3}).ada.p == 0.3


def test_twins_may_be_switched_off_without_classes(data: Data, judge: LongTailClassifier) -> None:
    off = TWINS | {"sigma": 0.0, "strength": 0.0}
    assert build(data, judge, condition="none", twins=off).noises == []


@pytest.mark.parametrize("player", ["optim_g", "optim_d"])
def test_float16_is_refused(player: str) -> None:
    """Squares of styles overflow it: 512 channels of styles of 5 drew black images."""
    with pytest.raises(ValueError, match="set precision to bfloat16 or float32"):
        StyleGAN2.table(**{player: {"precision": "float16"}})
