"""Generators and discriminators: sizes, shapes, and each layer against what its equation says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from evenhand.errors import UserError
from evenhand.methods.generate.tables import Nets
from evenhand.nets.biggan import BigGenerator, SelfAttention, big_discriminator
from evenhand.nets.conditional import ConditionalBatchNorm2d, SharedBatchNorm2d, orthogonal, settled_weight, spectral
from evenhand.nets.gan import (
    DCDiscriminator,
    DCGenerator,
    DownBlock,
    ResDiscriminator,
    ResGenerator,
    UpBlock,
    sides,
)
from evenhand.pieces.spectral import class_spectral_norms, conditional_parameters, group_spectral_norm


@pytest.fixture(autouse=True)
def seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def labels(count: int) -> Tensor:
    return torch.arange(count) % 5


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: DCGenerator(size=32), 3_812_355),  # spec 01, 3.1
        (lambda: DCDiscriminator(), 2_928_193),
        (lambda: ResGenerator(size=64), 12_220_675),
        (lambda: ResDiscriminator(size=64), 19_542_721),
        (lambda: ResGenerator(size=32), 4_276_739),
        (lambda: ResDiscriminator(size=32), 1_053_825),
        (lambda: ResGenerator(size=32, num_classes=10), 4_304_387),  # spec 02, 3.1
        (lambda: ResDiscriminator(size=32, num_classes=10, head="projection"), 1_055_105),
        (lambda: ResGenerator(size=64, num_classes=5), 12_243_715),
        (lambda: ResDiscriminator(size=64, num_classes=5, head="projection"), 19_547_841),
        (lambda: BigGenerator(size=32, num_classes=10), 9_416_196),
        (lambda: big_discriminator(size=32, num_classes=10), 2_415_170),
        (lambda: BigGenerator(size=64, num_classes=5, width=80, latent=120), 17_420_964),
        (lambda: big_discriminator(size=64, num_classes=5, width=80), 30_547_122),
    ],
)
def test_parameter_counts(make: Callable[[], nn.Module], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parametrizations, "spectral_norm", lambda module, **_: module)  # it adds buffers only
    monkeypatch.setattr(nn.Embedding, "reset_parameters", lambda _: None)  # slow to begin on the meta device
    with torch.device("meta"):
        assert size(make()) == count


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (32, 3), (64, 3)])
@pytest.mark.parametrize("name", ["dc", "res", "big"])
def test_images_and_verdicts_have_the_right_shapes(name: str, channels: int, side: int) -> None:
    more: dict[str, Any] = {"channels": channels, "num_classes": 5, "width": 2}
    draw: nn.Module = {"dc": DCGenerator, "res": ResGenerator, "big": BigGenerator}[name](size=side, **more)
    images = draw(torch.randn(3, draw.latent), labels(3))
    assert images.shape == (3, channels, side, side)
    assert images.abs().max() <= 1
    for head in ("none", "projection", "acgan"):
        if name == "dc":
            tell: nn.Module = DCDiscriminator(head=head, **more)
        else:
            tell = (ResDiscriminator if name == "res" else big_discriminator)(size=side, head=head, **more)
        score, logits = tell(images, labels(3))
        assert score.shape == (3,)
        assert (logits is not None and logits.shape == (3, 5)) if head == "acgan" else logits is None


def test_largest_size_and_odd_ones() -> None:
    net = ResGenerator(size=128, width=1)
    assert net(torch.randn(2, 128)).shape == (2, 3, 128, 128)
    assert sides(28, 3) == [4, 7, 14, 28]
    assert sides(128, 5) == [4, 8, 16, 32, 64, 128]
    assert DCGenerator(size=21, width=1)(torch.randn(2, 128)).shape == (2, 3, 21, 21)
    with pytest.raises(ValueError, match="size 129"):
        ResGenerator(size=129)


@pytest.mark.parametrize("make", [DCGenerator, ResGenerator])
def test_unconditional_generators_have_no_class_parameters(make: Any) -> None:
    net = make(size=28, channels=1, width=2)
    assert net(torch.randn(2, 128)).shape == (2, 1, 28, 28)
    with pytest.raises(ValueError, match="no conditional BatchNorm"):
        conditional_parameters(net)


def test_number_of_conditional_layers() -> None:
    """Two for each block: 6 at 32, 8 at 64 pixels; the last BatchNorm is never conditional."""
    for side, layers in ((32, 6), (64, 8), (128, 10)):
        gains, biases = conditional_parameters(ResGenerator(size=side, num_classes=3, width=1))
        assert len(gains) == len(biases) == layers
        gains, biases = conditional_parameters(BigGenerator(size=side, num_classes=3, width=1))
        assert len(gains) == len(biases) == layers


# conditional BatchNorm


def test_conditional_batchnorm_is_its_equation() -> None:
    norm, x, y = ConditionalBatchNorm2d(6, 5), torch.randn(7, 6, 4, 4), labels(7)
    gain, bias = norm.class_parameters()
    x.requires_grad_()
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, unbiased=False)
    expected = (1 + gain[y])[:, :, None, None] * (x - mean) / (var + 1e-4).sqrt() + bias[y][:, :, None, None]
    found = norm(x, y)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(found)
    inputs = (x, norm.gain.weight, norm.bias.weight)
    for a, b in zip(
        torch.autograd.grad((weight * found).sum(), inputs),
        torch.autograd.grad((weight * expected).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_class_parameters_are_residuals() -> None:
    """Spec 02, 10a.4: orthogonal tables have sigma about 0.46 as 16 x 16; on 1 + e it would be about 16."""
    gain, bias = ConditionalBatchNorm2d(256, 10).class_parameters()
    for table in (gain, bias):
        assert group_spectral_norm(table).mean().item() == pytest.approx(0.46, abs=0.03)
    torch.testing.assert_close(gain @ gain.T, torch.eye(10), atol=1e-5, rtol=0)


def test_only_the_classes_of_the_batch_get_gradients() -> None:
    norm = ConditionalBatchNorm2d(4, 5)
    (norm(torch.randn(3, 4, 2, 2), torch.tensor([1, 1, 3])) ** 2).sum().backward()
    touched = norm.gain.weight.grad.abs().sum(1) > 0
    assert touched.tolist() == [False, True, False, True, False]


def test_shared_batchnorm_shows_its_parameters_without_noise() -> None:
    shared = orthogonal(nn.Embedding(5, 8))
    norm = SharedBatchNorm2d(6, shared, noise=3)
    x, y = torch.randn(7, 6, 4, 4), labels(7)
    out = norm(x, torch.cat([shared(y), torch.zeros(7, 3)], 1))
    gain, bias = norm.class_parameters()
    norm.bn.reset_running_stats()
    expected = (1 + gain[y])[:, :, None, None] * norm.bn(x) + bias[y][:, :, None, None]
    torch.testing.assert_close(out, expected)
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    (gain.square().sum() + bias.square().sum()).backward()
    norm.class_parameters()
    for key, value in norm.state_dict().items():  # reading does not refine the spectral estimates
        assert torch.equal(value, before[key]), key
    assert shared.weight.grad.abs().sum() > 0
    assert norm.gain.parametrizations.weight.original.grad[:, :8].abs().sum() > 0
    assert "shared.weight" not in before


def test_a_copy_of_biggan_has_an_embedding_of_its_own() -> None:
    net = BigGenerator(size=8, num_classes=3, width=2)
    other = copy.deepcopy(net)
    layer = next(m for m in other.modules() if isinstance(m, SharedBatchNorm2d))
    assert layer.shared[0] is other.shared
    assert other.shared is not net.shared
    assert sum(name.endswith("shared.weight") for name in net.state_dict()) == 1


@pytest.mark.parametrize("make", [DCGenerator, ResGenerator, BigGenerator])
def test_gsn_divides_by_the_group_spectral_norm(make: Any) -> None:
    torch.manual_seed(1)
    plain = make(size=16, num_classes=3, width=8)
    torch.manual_seed(1)
    normal = make(size=16, num_classes=3, width=8, grouped=True)
    z, y = torch.randn(4, plain.latent), labels(4) % 3
    assert not torch.allclose(plain(z, y), normal(z, y))
    if make is not BigGenerator:  # its vectors also depend on the noise
        for module in plain.modules():
            if isinstance(module, ConditionalBatchNorm2d):
                for table in (module.gain, module.bias):
                    table.weight.data /= group_spectral_norm(table.weight.data)[:, None]
        torch.testing.assert_close(plain(z, y), normal(z, y), rtol=1e-4, atol=1e-5)


# spectral normalisation


def test_spectral_estimates_converge_and_are_saved() -> None:
    net = DCDiscriminator(width=4)
    x = torch.randn(2, 3, 32, 32)
    for _ in range(50):
        net(x)
    for layer in (*net.layers, net.head.score):
        assert torch.linalg.svdvals(settled_weight(layer).flatten(1))[0].item() == pytest.approx(1, abs=0.02)
    other = DCDiscriminator(width=4)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.eval()(x).score, net.eval()(x).score)
    net.train()(x), other.train()(x)
    for key, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
    assert sum(key.endswith("._u") for key in net.state_dict()) == 8


def test_generator_is_spectral_on_demand() -> None:
    net = ResGenerator(size=8, num_classes=3, width=2, spectral_weights=True)
    gains, _ = conditional_parameters(net)
    assert all(torch.linalg.svdvals(gain)[0].item() == pytest.approx(1, abs=1e-3) for gain in gains)
    assert not any("parametrizations" in name for name, _ in ResGenerator(size=8, width=2).named_parameters())


def test_spectral_normalisation_is_one_power_iteration_of_its_equation() -> None:
    """``W / (u^T W v)``, u and v refined once at each pass in training, never in evaluation, constants to gradients."""
    layer = spectral(nn.Linear(5, 3, bias=False))
    estimate = layer.parametrizations["weight"][0]
    W = layer.parametrizations["weight"].original
    u, v = torch.randn(3), torch.randn(5)  # far from converged
    u, v = u / u.norm(), v / v.norm()
    estimate._u.copy_(u), estimate._v.copy_(v)
    x, direction = torch.eye(5), torch.randn(5, 3)
    for training in (False, True, False):
        if training:
            u = W.detach() @ v
            u = u / u.norm()
            v = W.detach().T @ u
            v = v / v.norm()
        expected = W / (u @ W @ v)
        found = layer.train(training)(x)
        torch.testing.assert_close(found, expected.T)
        wanted, given = (torch.autograd.grad((direction * out).sum(), W)[0] for out in (expected.T, found))
        torch.testing.assert_close(given, wanted)
    layer(x)
    torch.testing.assert_close(estimate._u, u)


def test_spectral_normalisation_has_the_released_codes_epsilon() -> None:
    """Norms in the power iteration are at least 1e-6; torch's own default is 1e-12."""
    assert spectral(nn.Linear(2, 2)).parametrizations["weight"][0].eps == 1e-6


@pytest.mark.parametrize("training", [True, False])
def test_settled_weight_is_what_the_forward_pass_used(training: bool) -> None:
    layer = spectral(nn.Linear(5, 3)).train(training)
    x = torch.eye(5)
    out = layer(x) - layer.bias
    torch.testing.assert_close(settled_weight(layer), out.T)
    assert layer.training is training


# blocks and heads, written out


def test_up_block_is_its_equation() -> None:
    block = UpBlock(4, 6, nn.BatchNorm2d, orthogonal, 0.1)
    x = torch.randn(2, 4, 4, 4)
    h = F.interpolate(F.leaky_relu(block.norm1(x), 0.1), scale_factor=2)
    h = block.conv2(F.leaky_relu(block.norm2(block.conv1(h)), 0.1))
    expected = h + block.skip(F.interpolate(x, scale_factor=2))
    torch.testing.assert_close(block(x, None, 8), expected)
    assert block(x, None, 7).shape == (2, 6, 7, 7)


@pytest.mark.parametrize(("inputs", "down", "first"), [(4, True, True), (4, True, False), (6, False, False)])
def test_down_block_is_its_equation(inputs: int, down: bool, first: bool) -> None:
    block = DownBlock(inputs, 6, 0.0, down=down, first=first).eval()
    x = torch.randn(2, inputs, 7, 7)
    h = block.conv2(F.relu(block.conv1(x if first else F.relu(x))))
    side = x if block.skip is None else block.skip(x)
    expected = F.avg_pool2d(h, 2) + F.avg_pool2d(side, 2) if down else h + side
    torch.testing.assert_close(block(x), expected)
    assert (block.skip is None) == (inputs == 6 and not down)


@pytest.mark.parametrize(("inputs", "down", "first"), [(4, True, True), (4, True, False), (6, False, False)])
def test_activated_skips_are_those_of_an_activation_in_place(inputs: int, down: bool, first: bool) -> None:
    """As released: ``x0 = x; x = relu_(x)``, so ``x0`` is activated, too, but for the first block's image."""
    block = DownBlock(inputs, 6, 0.1, down=down, first=first, adds="activated").eval()
    x = torch.randn(2, inputs, 8, 8)
    kept = h = x.clone()
    if not first:
        F.leaky_relu_(h, 0.1)
    h = block.conv2(F.leaky_relu_(block.conv1(h), 0.1))
    side = kept if block.skip is None else block.skip(kept)
    expected = F.avg_pool2d(h, 2) + F.avg_pool2d(side, 2) if down else h + side
    torch.testing.assert_close(block(x), expected)
    block.adds = "raw"
    assert torch.allclose(block(x), expected, atol=1e-4) is first


@pytest.mark.parametrize("name", ["sngan", "biggan"])
def test_skips_reach_every_block(name: Any) -> None:
    for skip in ("raw", "activated"):
        _, tell = Nets(name=name, width=2, skip=skip).build(16, 3, 5, "projection")  # type: ignore[arg-type]
        assert {block.adds for block in tell.modules() if isinstance(block, DownBlock)} == {skip}
    assert Nets().skip == "raw"
    with pytest.raises(UserError, match="no residual blocks"):
        Nets(skip="activated").build(16, 3, 5, "none")


def is_spectral(layer: nn.Module) -> bool:
    if not parametrize.is_parametrized(layer, "weight"):
        return False
    (kind,) = layer.parametrizations["weight"]  # type: ignore[index,union-attr]
    return isinstance(kind, parametrizations._SpectralNorm)


@pytest.mark.parametrize("condition", ["none", "generator", "projection", "acgan"])
@pytest.mark.parametrize("name", ["sndcgan", "sngan", "biggan"])
def test_every_layer_of_a_discriminator_is_spectrally_normalised(name: Any, condition: Any) -> None:
    """Specs 01 and 02, 3.1: all of them, the class embedding included; of generators BigGAN's alone."""
    if (name, condition) == ("biggan", "none"):
        return
    draw, tell = Nets(name=name, width=2).build(32, 3, 5, condition)
    layers = {key: m for key, m in tell.named_modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.Embedding)}
    assert len(layers) == {"sndcgan": 8, "sngan": 11, "biggan": 15}[name] + (condition in ("projection", "acgan"))
    assert [key for key, layer in layers.items() if not is_spectral(layer)] == []
    weighed = {
        key: is_spectral(m)
        for key, m in draw.named_modules()
        if isinstance(m, nn.Conv2d | nn.ConvTranspose2d | nn.Linear | nn.Embedding)
    }
    shared = {"shared"} if name == "biggan" else set()
    assert {key for key, found in weighed.items() if found} == (weighed.keys() - shared if name == "biggan" else set())


@pytest.mark.parametrize("condition", ["none", "generator"])
@pytest.mark.parametrize("name", ["sndcgan", "sngan"])
def test_every_layer_of_a_generator_is_spectrally_normalised_on_demand(name: Any, condition: Any) -> None:
    """Spec 01, 3.2 (iNaturalist): linear layer, convolutions, skips and class tables, or none of them."""
    for asked in (True, False):
        draw, _ = Nets(name=name, width=2, spectral_generator=asked).build(32, 3, 5, condition)
        kinds = nn.Conv2d | nn.ConvTranspose2d | nn.Linear | nn.Embedding
        layers = {key: m for key, m in draw.named_modules() if isinstance(m, kinds)}
        tables = {"sndcgan": 6, "sngan": 12}[name] * (condition == "generator")
        assert len(layers) == {"sndcgan": 5, "sngan": 11}[name] + tables
        assert [key for key, layer in layers.items() if is_spectral(layer) is not asked] == []


@pytest.mark.parametrize("slope", [None, 0.3])
@pytest.mark.parametrize("name", ["sndcgan", "sngan"])
def test_whole_networks_are_their_equations_with_that_slope(name: Any, slope: float | None) -> None:
    """Specs 01 and 02, 3.1; of the residual ones all that is outside their blocks, which have tests of their own."""
    nets: tuple[Any, Any] = Nets(name=name, width=2, slope=slope).build(28, 1, 5, "none")
    draw, tell = (net.eval() for net in nets)
    a = {"sndcgan": 0.1, "sngan": 0.0}[name] if slope is None else slope
    z, x = torch.randn(3, draw.latent), torch.randn(3, 1, 28, 28)
    seen = x

    def act(h: Tensor) -> Tensor:
        return torch.where(h > 0, h, a * h)

    h = draw.fc(z).reshape(3, -1, 4, 4)
    if name == "sndcgan":
        for up, norm, side in zip(draw.ups, draw.norms, (7, 14, 28), strict=True):
            h = act(norm(up(h)[:, :, :side, :side]))
        for layer in tell.layers:
            x = act(layer(x))
    else:
        assert [block.slope for block in (*draw.blocks, *tell.blocks)] == [a] * 7
        for block, side in zip(draw.blocks, (7, 14, 28), strict=True):
            h = block(h, None, side)
        h = act(draw.bn(h))
        for block in tell.blocks:
            x = block(x)
        x = act(x)
    drawn = torch.tanh(draw.out(h))
    assert drawn.shape == (3, 1, 28, 28)
    torch.testing.assert_close(draw(z), drawn)
    torch.testing.assert_close(tell(seen).score, tell.head.score(x.sum((2, 3)))[:, 0])


def test_projection_adds_the_inner_product() -> None:
    net = ResDiscriminator(size=16, num_classes=5, head="projection", width=2).eval()
    x = torch.randn(3, 3, 16, 16)
    h = x
    for block in net.blocks:
        h = block(h)
    h = F.relu(h).sum((2, 3))
    one, two = (net(x, torch.full((3,), k)).score for k in (1, 2))
    table = settled_weight(net.head.embed)
    torch.testing.assert_close(one - two, h @ (table[1] - table[2]), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="needs labels"):
        net(x)
    with pytest.raises(ValueError, match="num_classes"):
        ResDiscriminator(size=16, head="acgan")


def test_unconditional_discriminator_ignores_labels() -> None:
    net = DCDiscriminator(num_classes=5, width=2).eval()
    x = torch.randn(3, 3, 32, 32)
    assert torch.equal(net(x).score, net(x, labels(3)).score)


def test_self_attention_begins_as_identity_and_is_its_equation() -> None:
    layer = SelfAttention(8).eval()
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(layer(x), x)
    layer.strength.data.fill_(0.5)
    q = layer.query(x).flatten(2)
    k, v = (F.max_pool2d(part(x), 2).flatten(2) for part in (layer.key, layer.value))
    out = torch.zeros(2, 4, 16)
    for n in range(2):
        for place in range(16):
            weights = torch.stack([q[n, :, place] @ k[n, :, j] for j in range(4)]).softmax(0)
            out[n, :, place] = v[n] @ weights
    torch.testing.assert_close(layer(x), x + 0.5 * layer.back(out.view(2, 4, 4, 4)), rtol=1e-4, atol=1e-5)


def test_biggan_noise_reaches_every_block() -> None:
    net = BigGenerator(size=16, num_classes=3, width=4)
    with pytest.raises(ValueError, match="divide"):
        BigGenerator(size=16, num_classes=3, width=4, latent=40)
    z, y = torch.randn(4, net.latent), labels(4) % 3
    base = net.eval()(z, y)
    for part in range(3):
        other = z.clone()
        other[:, part * 20 : (part + 1) * 20] += 1
        assert not torch.allclose(net(other, y), base)


def test_every_parameter_is_trained() -> None:
    net = BigGenerator(size=16, num_classes=3, width=4)
    tell = big_discriminator(size=16, num_classes=3, width=4)
    z, y = torch.randn(6, net.latent), torch.arange(6) % 3
    tell(net(z, y), y).score.sum().backward()
    for name, parameter in (*net.named_parameters(), *tell.named_parameters()):
        assert parameter.grad is not None, name
    gains, biases = conditional_parameters(net)
    assert class_spectral_norms([*gains, *biases]).shape == (8, 3)
