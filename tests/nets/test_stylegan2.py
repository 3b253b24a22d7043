"""StyleGAN2 against slow, literal transcriptions: one weight for each sample, zeros between pixels, one-hot labels."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from evenhand.nets.stylegan2 import Discriminator, Generator
from evenhand.nets.stylegan2_layers import ClassEmbedding, Conv, Linear
from evenhand.nets.stylegan2_ops import binomial, blur, downsample, minibatch_std, modulated_conv2d, upsample

State = Mapping[str, Tensor]
SMALL: dict[str, int] = {"latent": 6, "style": 5, "base": 64, "widest": 7}


@pytest.fixture(autouse=True)
def seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def shaken(net: nn.Module) -> Any:
    """In double precision, with nothing at a special value: biases, noise, mean style, even the filters."""
    net = net.double().requires_grad_(True)
    for name, value in net.state_dict().items():
        if name.endswith("resample_filter"):
            value.add_(0.02 * torch.randn_like(value))
        elif not name.endswith(".weight"):
            value.add_(0.5 * torch.randn_like(value))
    return net


def small(size: int = 16, channels: int = 2, classes: int = 3) -> tuple[Any, Any]:
    players = Generator(size, channels, classes, **SMALL), Discriminator(size, channels, classes, base=64, widest=7)
    return shaken(players[0]), shaken(players[1])


def draw(count: int, labels: int = 3, latent: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(count, latent, dtype=torch.double), torch.arange(count) % labels


def weights(net: nn.Module) -> dict[str, Tensor]:
    """Leaves of their own, to differentiate the literal by."""
    return {name: value.detach().clone().requires_grad_(True) for name, value in net.state_dict().items()}


# The literal: every operation as it is defined, at its full price.


def upfirdn(x: Tensor, taps: Tensor, up: int, down: int, before: int, after: int) -> Tensor:
    """Insert zeros after each pixel, pad, convolve (so the taps are flipped), keep every ``down``-th; gain up^2."""
    n, c, h, w = x.shape
    wide = x.new_zeros(n, c, h, up, w, up)
    wide[:, :, :, 0, :, 0] = x
    wide = F.pad(wide.reshape(n, c, h * up, w * up), (before, after, before, after))
    kernel = taps.flip(0, 1)[None, None] * up**2
    y = F.conv2d(wide.reshape(-1, 1, *wide.shape[2:]), kernel)
    return y.view(n, c, *y.shape[2:])[:, :, ::down, ::down]


def lrelu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.2 * x) * math.sqrt(2)


def per_sample(x: Tensor, weight: Tensor, styles: Tensor, *, demodulate: bool = True, up: Any = None) -> Tensor:
    """Weights of each sample, modulated and demodulated; one group for each sample."""
    n, (outputs, inputs, k, _) = len(x), weight.shape
    own = weight[None] * styles[:, None, :, None, None]  # (N, O, I, k, k)
    if demodulate:
        own = own / (own.square().sum((2, 3, 4), keepdim=True) + 1e-8).sqrt()
    if up is not None:  # up: filter first, then a true convolution: kernels are flipped
        x, own, padding = upfirdn(x, up, 2, 1, 3, 2), own.flip(3, 4), 0
    else:
        padding = k // 2
    y = F.conv2d(
        x.reshape(1, n * inputs, *x.shape[2:]), own.reshape(n * outputs, inputs, k, k), padding=padding, groups=n
    )
    return y.view(n, outputs, *y.shape[2:])


def linear(s: State, name: str, x: Tensor, rate: float = 1.0) -> Tensor:
    weight = s[f"{name}.weight"] * (rate / math.sqrt(x.shape[1]))
    return x @ weight.T + s[f"{name}.bias"] * rate


def unit(x: Tensor) -> Tensor:
    return x / (x.square().mean(1, keepdim=True) + 1e-8).sqrt()


def literal_mapping(s: State, z: Tensor | None, labels: Tensor | None, layers: int = 8) -> Tensor:
    parts = [] if z is None else [unit(z)]
    if labels is not None:
        one_hot = F.one_hot(labels, s["mapping.embed.weight"].shape[1]).double()
        parts.append(unit(linear(s, "mapping.embed", one_hot)))
    x = torch.cat(parts, 1)
    for number in range(layers):
        x = lrelu(linear(s, f"mapping.fc{number}", x, rate=0.01))
    return x


def literal_synthesis(s: State, ws: Tensor, size: int, noise: bool = True) -> Tensor:
    def layer(name: str, x: Tensor, w: Tensor, up: bool) -> Tensor:
        styles = linear(s, f"{name}.affine", w)
        x = per_sample(x, s[f"{name}.weight"], styles, up=s[f"{name}.resample_filter"] if up else None)
        if noise:
            x = x + s[f"{name}.noise_const"] * s[f"{name}.noise_strength"]
        return lrelu(x + s[f"{name}.bias"][None, :, None, None])

    x, image, used = s["synthesis.b4.const"][None].repeat(len(ws), 1, 1, 1), None, 0
    for side in (2**power for power in range(2, size.bit_length())):
        block = f"synthesis.b{side}"
        if side > 4:
            x, used = layer(f"{block}.conv0", x, ws[:, used], True), used + 1
        x, used = layer(f"{block}.conv1", x, ws[:, used], False), used + 1
        styles = linear(s, f"{block}.torgb.affine", ws[:, used]) / math.sqrt(x.shape[1])
        rgb = per_sample(x, s[f"{block}.torgb.weight"], styles, demodulate=False)
        rgb = rgb + s[f"{block}.torgb.bias"][None, :, None, None]
        image = rgb if image is None else upfirdn(image, s[f"{block}.resample_filter"], 2, 1, 2, 1) + rgb
    assert image is not None
    assert used + 1 == ws.shape[1]
    return image


def literal_std(x: Tensor, group: int) -> Tensor:
    n = len(x)
    groups = n // min(group, n)
    extra = torch.empty(n, 1, *x.shape[2:], dtype=x.dtype)
    for g in range(groups):
        members = [i for i in range(n) if i % groups == g]
        centred = x[members] - x[members].mean(0)
        extra[members] = (centred.square().mean(0) + 1e-8).sqrt().mean()
    return torch.cat([x, extra], 1)


def literal_discriminator(s: State, x: Tensor, labels: Tensor | None, residual: bool = True, group: int = 4) -> Tensor:
    def conv(name: str, x: Tensor, down: bool = False) -> Tensor:
        weight, taps = s[f"{name}.weight"], s[f"{name}.resample_filter"]
        weight = weight / math.sqrt(weight[0].numel())
        k = weight.shape[2]
        if down:
            x = upfirdn(x, taps, 1, 1, k // 2 + 1, k // 2 + 1)
        y = F.conv2d(x, weight, stride=2 if down else 1, padding=0 if down else k // 2)
        return lrelu(y + s[f"{name}.bias"][None, :, None, None]) if f"{name}.bias" in s else y

    size = x.shape[2]
    x = conv(f"b{size}.fromrgb", x)
    while size > 4:
        y = conv(f"b{size}.conv1", conv(f"b{size}.conv0", x), down=True)
        x = (conv(f"b{size}.skip", x, down=True) + y) * math.sqrt(0.5) if residual else y
        size //= 2
    x = conv("b4.conv", literal_std(x, group))
    x = linear(s, "b4.out", lrelu(linear(s, "b4.fc", x.flatten(1))))
    if labels is None:
        return x[:, 0]
    return (x * literal_mapping(s, None, labels)).sum(1) / math.sqrt(x.shape[1])


def assert_equal_gradients(ours: Tensor, net: nn.Module, other: Tensor, state: State) -> None:
    torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-10)
    names = [name for name, _ in net.named_parameters()]
    mine = torch.autograd.grad(ours, list(net.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(other, [state[name] for name in names], allow_unused=True)
    touched = 0
    for name, a, b in zip(names, mine, theirs, strict=True):
        a, b = (torch.zeros(()) if g is None else g for g in (a, b))
        assert torch.allclose(a.double(), b.double(), rtol=1e-8, atol=1e-9 * max(1.0, float(b.abs().max()))), name
        touched += bool(b.abs().max() > 0)
    assert touched > len(names) // 2


# Names, shapes, counts


def layer_shapes(name: str, inputs: int, outputs: int, side: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.weight": (outputs, inputs, 3, 3), f"{name}.bias": (outputs,), f"{name}.noise_strength": (),
        f"{name}.noise_const": (side, side), f"{name}.resample_filter": (4, 4), f"{name}.affine.weight": (inputs, 5),
        f"{name}.affine.bias": (inputs,),
    }  # fmt: skip


def rgb_shapes(name: str, inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.weight": (3, inputs, 1, 1), f"{name}.bias": (3,), f"{name}.affine.weight": (inputs, 5),
        f"{name}.affine.bias": (inputs,),
    }  # fmt: skip


def test_generators_names_and_shapes() -> None:
    expected: dict[str, tuple[int, ...]] = {
        "mapping.embed.weight": (5, 10), "mapping.embed.bias": (5,), "mapping.w_avg": (5,),
        "mapping.fc0.weight": (5, 11), "mapping.fc0.bias": (5,),
        "synthesis.b4.const": (7, 4, 4), "synthesis.b4.resample_filter": (4, 4),
        "synthesis.b8.resample_filter": (4, 4), "synthesis.b16.resample_filter": (4, 4),
        "synthesis.b32.resample_filter": (4, 4),
        **{f"mapping.fc{n}.weight": (5, 5) for n in range(1, 8)}, **{f"mapping.fc{n}.bias": (5,) for n in range(1, 8)},
        **layer_shapes("synthesis.b4.conv1", 7, 7, 4), **rgb_shapes("synthesis.b4.torgb", 7),
        **layer_shapes("synthesis.b8.conv0", 7, 7, 8), **layer_shapes("synthesis.b8.conv1", 7, 7, 8),
        **rgb_shapes("synthesis.b8.torgb", 7),
        **layer_shapes("synthesis.b16.conv0", 7, 4, 16), **layer_shapes("synthesis.b16.conv1", 4, 4, 16),
        **rgb_shapes("synthesis.b16.torgb", 4),
        **layer_shapes("synthesis.b32.conv0", 4, 2, 32), **layer_shapes("synthesis.b32.conv1", 2, 2, 32),
        **rgb_shapes("synthesis.b32.torgb", 2),
    }  # fmt: skip
    net = Generator(32, 3, 10, **SMALL)
    assert {name: tuple(value.shape) for name, value in net.state_dict().items()} == expected


def test_discriminators_names_and_shapes() -> None:
    def conv(name: str, inputs: int, outputs: int, k: int = 3) -> dict[str, tuple[int, ...]]:
        shapes = {f"{name}.weight": (outputs, inputs, k, k), f"{name}.bias": (outputs,)}
        return {**shapes, f"{name}.resample_filter": (4, 4)}

    def block(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
        return {
            f"{name}.resample_filter": (4, 4), **conv(f"{name}.conv0", inputs, inputs),
            **conv(f"{name}.conv1", inputs, outputs), f"{name}.skip.weight": (outputs, inputs, 1, 1),
            f"{name}.skip.resample_filter": (4, 4),
        }  # fmt: skip

    expected: dict[str, tuple[int, ...]] = {
        **conv("b32.fromrgb", 3, 2, 1), **block("b32", 2, 4), **block("b16", 4, 7), **block("b8", 7, 7),
        **conv("b4.conv", 8, 7), "b4.fc.weight": (7, 112), "b4.fc.bias": (7,), "b4.out.weight": (7, 7),
        "b4.out.bias": (7,), "mapping.embed.weight": (7, 10), "mapping.embed.bias": (7,),
        **{f"mapping.fc{n}.weight": (7, 7) for n in range(8)}, **{f"mapping.fc{n}.bias": (7,) for n in range(8)},
    }  # fmt: skip
    net = Discriminator(32, 3, 10, base=64, widest=7)
    assert {name: tuple(value.shape) for name, value in net.state_dict().items()} == expected


@pytest.mark.parametrize(
    ("make", "parameters", "buffers"),
    [
        (
            lambda: Generator(256, 3, 0, base=16384),
            24_767_458,
            175_568,
        ),  # 13 layers and 7 ToRGB
        (lambda: Discriminator(256, 3, 0, base=16384), 24_001_089, 416),
        # mapping 2,369,024; const 8,192; 7 layers of 2,622,465; 4 of 264,195 to RGB
        (lambda: Generator(32, 3, 10), 21_791_251, 512 + 11 * 16 + 16 + 2 * (64 + 256 + 1024)),
        # from RGB 2,048; 3 blocks of 4,981,760; epilogue 6,821,888; mapping 2,106,880
        (lambda: Discriminator(32, 3, 10), 23_876_096, 14 * 16),
    ],
)
def test_counts(make: Callable[[], nn.Module], parameters: int, buffers: int) -> None:
    with torch.device("meta"):
        net = make()
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert sum(b.numel() for b in net.buffers()) == buffers


# The operations


def test_the_filter_is_binomial_and_keeps_the_mean() -> None:
    taps = torch.tensor([1.0, 3.0, 3.0, 1.0])
    assert torch.equal(binomial(), taps[:, None] * taps / 64)
    flat = torch.ones(1, 1, 8, 8)
    for y in (blur(flat, binomial(), 2), downsample(flat, binomial()), upsample(flat, binomial())):
        inner = y[0, 0, 2:-2, 2:-2] if y.shape[2] > 4 else y[0, 0, 1:-1, 1:-1]
        torch.testing.assert_close(inner, torch.ones_like(inner))


@pytest.mark.parametrize(
    ("ours", "literal"),
    [
        (lambda x, f: blur(x, f, 2), lambda x, f: upfirdn(x, f, 1, 1, 2, 2)),
        (lambda x, f: blur(x, f, 1, gain=4), lambda x, f: 4 * upfirdn(x, f, 1, 1, 1, 1)),
        (downsample, lambda x, f: upfirdn(x, f, 1, 2, 1, 1)),
        (upsample, lambda x, f: upfirdn(x, f, 2, 1, 2, 1)),
    ],
)
def test_resampling_is_zero_insertion_filter_and_decimation(ours: Any, literal: Any) -> None:
    x = torch.randn(1, 2, 4, 6, dtype=torch.double, requires_grad=True)
    taps = torch.randn(4, 4, dtype=torch.double)  # lopsided, so that a flip shows
    torch.testing.assert_close(ours(x, taps), literal(x, taps))
    assert gradcheck(lambda x: ours(x, taps), x)
    assert gradgradcheck(lambda x: ours(x.square(), taps).pow(2), x)


@pytest.mark.parametrize("demodulate", [True, False])
@pytest.mark.parametrize("up", [True, False])
def test_modulated_convolution_is_the_per_sample_one(demodulate: bool, up: bool) -> None:
    taps = torch.rand(4, 4, dtype=torch.double) if up else None
    values = [torch.randn(*shape, dtype=torch.double) for shape in ((3, 4, 5, 5), (6, 4, 3, 3), (3, 4))]
    inputs = [v.requires_grad_(True) for v in values]
    ours = modulated_conv2d(*inputs, demodulate=demodulate, up=taps)
    literal = per_sample(*inputs, demodulate=demodulate, up=taps)
    torch.testing.assert_close(ours, literal)
    direction, second = torch.randn_like(ours), [torch.randn_like(v) for v in inputs]
    found = []
    for y in (ours, literal):
        first = torch.autograd.grad((y * direction).sum(), inputs, create_graph=True)
        product = sum((g * v).sum() for g, v in zip(first, second, strict=True))
        found.append([*first, *torch.autograd.grad(product, inputs)])  # type: ignore[arg-type]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_modulated_convolution_passes_gradgradcheck() -> None:
    taps = binomial().double()
    x, w, s = (torch.randn(*shape, dtype=torch.double) for shape in ((2, 2, 3, 3), (2, 2, 3, 3), (2, 2)))
    inputs = tuple(v.requires_grad_(True) for v in (x, w, s))
    assert gradcheck(lambda x, w, s: modulated_conv2d(x, w, s, up=taps), inputs)
    assert gradgradcheck(lambda x, w, s: modulated_conv2d(x, w, s, up=taps), inputs)


def test_minibatch_deviation() -> None:
    x = torch.randn(8, 3, 4, 4, dtype=torch.double, requires_grad=True)
    for group in (1, 2, 4, 8, 32):
        torch.testing.assert_close(minibatch_std(x, group), literal_std(x, group))
    torch.testing.assert_close(minibatch_std(x[:6], 4), literal_std(x[:6], 3))  # 4 does not divide 6
    assert torch.isfinite(torch.autograd.grad(minibatch_std(x[:1], 4).sum(), x)[0]).all()
    tiny = torch.randn(4, 1, 2, 2, dtype=torch.double, requires_grad=True)
    assert gradgradcheck(lambda x: minibatch_std(x, 2), tiny)


def test_twins_share_a_group() -> None:
    """Spec 03, 10a.10: row i and row i + B/2."""
    x = torch.randn(64, 2, 4, 4)
    for group in (8, 32):
        extra = minibatch_std(x, group)[:, -1, 0, 0]
        assert torch.equal(extra[:32], extra[32:])


def test_equalised_learning_rates() -> None:
    layer = Linear(400, 300, rate=0.01, bias=1)
    assert layer.weight.std().item() == pytest.approx(100, rel=0.02)
    assert torch.equal(layer.bias.detach(), torch.ones(300))  # not divided by the rate
    x = torch.randn(500, 400)
    torch.testing.assert_close(layer(x), x @ layer.weight.T * (0.01 / 20) + 0.01, rtol=1e-4, atol=1e-4)
    assert (layer(x) - 0.01).std().item() == pytest.approx(1, rel=0.02)
    assert Linear(400, 300, active=True)(x).square().mean().item() == pytest.approx(2 * 0.52, rel=0.02)
    assert Conv(16, 64, 3)(torch.randn(4, 16, 32, 32)).square().mean().item() == pytest.approx(1.04, rel=0.1)
    table, labels = ClassEmbedding(10, 6), torch.tensor([3, 3, 9])
    torch.testing.assert_close(table(labels), Linear.forward(table, F.one_hot(labels, 10).float()))
    assert ClassEmbedding(100, 512)(labels).square().mean().sqrt().item() == pytest.approx(0.1, rel=0.1)  # 1 / sqrt(C)


def test_what_starts_at_which_value() -> None:
    g = Generator(16, 3, 4, **SMALL)
    for name, value in g.state_dict().items():
        if name.endswith("affine.bias"):
            assert torch.equal(value, torch.ones_like(value))
        elif name.endswith(("bias", "noise_strength", "w_avg")):
            assert not value.any()


# The networks


@pytest.mark.parametrize(("size", "channels", "classes"), [(8, 1, 0), (16, 2, 3), (32, 3, 3)])
def test_generator_is_the_literal_one(size: int, channels: int, classes: int) -> None:
    net, _ = small(size, channels, classes)
    z, labels = draw(5)
    state, given = weights(net), labels if classes else None
    ws = literal_mapping(state, z, given)[:, None].repeat(1, 2 * int(math.log2(size)) - 2, 1)
    torch.testing.assert_close(net.mapping(z, labels), ws, rtol=1e-10, atol=1e-12)
    mixed = torch.randn_like(ws)  # another style for each layer: an order of styles shows
    torch.testing.assert_close(net.synthesis(mixed), literal_synthesis(state, mixed, size))
    torch.testing.assert_close(net.synthesis(mixed, "none"), literal_synthesis(state, mixed, size, noise=False))
    direction = torch.randn(5, channels, size, size, dtype=torch.double)
    ours, literal = net(z, labels), literal_synthesis(state, ws, size)
    assert ours.shape == (5, channels, size, size)
    assert_equal_gradients((ours * direction).sum(), net, (literal * direction).sum(), state)


@pytest.mark.parametrize(("size", "classes", "residual"), [(8, 0, True), (16, 3, True), (32, 3, True), (16, 3, False)])
def test_discriminator_is_the_literal_one(size: int, classes: int, residual: bool) -> None:
    net = shaken(Discriminator(size, 2, classes, base=64, widest=7, residual=residual))
    x, labels = torch.randn(8, 2, size, size, dtype=torch.double), torch.arange(8) % 3
    state = weights(net)
    literal = literal_discriminator(state, x, labels if classes else None, residual)
    assert net(x, labels).shape == (8,)
    torch.testing.assert_close(net(x, labels), literal)
    direction = torch.randn(8, dtype=torch.double)
    assert_equal_gradients((net(x, labels) * direction).sum(), net, (literal * direction).sum(), state)


def r1(score: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    images = images.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(score(images).sum(), images, create_graph=True)
    return 0.5 * gradient.square().sum((1, 2, 3)).mean()


def path_length(synthesis: Callable[[Tensor], Tensor], ws: Tensor, direction: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((synthesis(ws) * direction).sum(), ws, create_graph=True)
    return (gradient.square().sum(2).mean(1).sqrt() - 0.3).square().mean()


def test_r1_and_its_gradients() -> None:
    _, net = small()
    x, labels = torch.randn(4, 2, 16, 16, dtype=torch.double), torch.tensor([0, 1, 1, 2])
    state = weights(net)
    ours = r1(lambda x: net(x, labels), x)
    assert_equal_gradients(ours, net, r1(lambda x: literal_discriminator(state, x, labels), x), state)


def test_path_length_and_its_gradients() -> None:
    net, _ = small()
    z, labels = draw(3)
    state = weights(net)
    direction = torch.randn(3, 2, 16, 16, dtype=torch.double) / 16
    ours = path_length(net.synthesis, net.mapping(z, labels), direction)
    ws = literal_mapping(state, z, labels)[:, None].repeat(1, 6, 1)
    literal = path_length(lambda ws: literal_synthesis(state, ws, 16), ws, direction)
    assert_equal_gradients(ours, net, literal, state)


@pytest.mark.parametrize("penalty", ["r1", "path length"])
def test_penalties_gradients_are_the_finite_differences(penalty: str) -> None:
    g, d = small(8)
    z, labels = draw(4)
    x, direction = (torch.randn(4, 2, 8, 8, dtype=torch.double) for _ in range(2))
    net = d if penalty == "r1" else g

    def value() -> Tensor:
        if penalty == "r1":
            return r1(lambda x: d(x, labels), x)
        return path_length(g.synthesis, g.mapping(z, labels), direction)

    params = list(net.parameters())
    way = [torch.randn_like(p) for p in params]
    gradients = torch.autograd.grad(value(), params, allow_unused=True)
    slope = sum(float((a * b).sum()) for a, b in zip(gradients, way, strict=True) if a is not None)
    reached = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            for p, v in zip(params, way, strict=True):
                p.add_(v, alpha=step)
        reached.append(value().item())
        with torch.no_grad():
            for p, v in zip(params, way, strict=True):
                p.sub_(v, alpha=step)
    assert slope == pytest.approx((reached[0] - reached[1]) / 2e-6, rel=1e-5)


def test_noise() -> None:
    net, _ = small()
    ws = torch.randn(3, 6, 5, dtype=torch.double)
    ws[1] = ws[0]
    images = net.synthesis(ws, noise="constant")
    assert torch.equal(images, net.synthesis(ws))
    torch.testing.assert_close(images[0], images[1])

    def drawn(seed: int) -> Tensor:
        return net.synthesis(ws, noise="random", chance=torch.Generator().manual_seed(seed))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert (drawn(1)[0] - drawn(1)[1]).abs().max() > 0.01  # each image has its own
    for name, strength in net.named_parameters():
        if name.endswith("noise_strength"):
            strength.detach().zero_()
    plain = net.synthesis(ws, noise="none")
    torch.testing.assert_close(drawn(1), plain)
    torch.testing.assert_close(net.synthesis(ws), plain)
    assert not torch.allclose(plain, images)


def test_random_noise_has_the_constants_place_and_strength() -> None:
    net, _ = small(8)
    ws = torch.randn(1, 4, 5, dtype=torch.double)
    source = torch.Generator().manual_seed(3)
    for name in ("b4.conv1", "b8.conv0", "b8.conv1"):  # in the order of drawing
        layer = net.synthesis.get_submodule(name)
        layer.noise_const.copy_(torch.randn(layer.noise_const.shape, generator=source))
    drawn = net.synthesis(ws, noise="random", chance=torch.Generator().manual_seed(3))
    torch.testing.assert_close(drawn, net.synthesis(ws))


def test_truncation() -> None:
    net, _ = small()
    z, labels = draw(4)
    full, mean = net.mapping(z, labels), net.mapping.w_avg
    torch.testing.assert_close(net.mapping(z, labels, truncation=0.7), mean + 0.7 * (full - mean))
    torch.testing.assert_close(net.mapping(z, labels, 0.0), mean.expand_as(full))
    assert torch.equal(net(z, labels, truncation=0.5), net.synthesis(net.mapping(z, labels, 0.5)))


def test_mean_style_follows_only_where_asked() -> None:
    net, _ = small()
    z, labels = draw(4)
    before = net.mapping.w_avg.clone()
    net.train()
    ws = net.mapping(z, labels)
    net(z, labels)
    assert torch.equal(net.mapping.w_avg, before)
    net.mapping.track(ws)
    torch.testing.assert_close(net.mapping.w_avg, 0.995 * before + 0.005 * ws[:, 0].mean(0))


def test_styles_can_be_mixed_in_place() -> None:
    net, _ = small()
    z, labels = draw(4)
    ws = net.mapping(z, labels)
    ws[:, 3:] = net.mapping(z.flip(0), labels)[:, 3:]
    assert not torch.equal(ws[:, 0], ws[:, 3])


def test_without_classes() -> None:
    g, d = Generator(16, 1, 0, **SMALL), Discriminator(16, 1, 0, base=64, widest=7)
    assert not [name for name in g.state_dict() if "embed" in name]
    assert not [name for name in d.state_dict() if "mapping" in name]
    z = torch.randn(4, 6)
    assert torch.equal(g(z), g(z, torch.arange(4)))
    assert d(g(z)).shape == (4,)


def test_order_of_the_batch_and_repetition() -> None:
    g, _ = small()
    d = shaken(Discriminator(16, 2, 3, base=64, widest=7, group=1))
    z, labels = draw(5)
    order = torch.tensor([3, 0, 4, 1, 2])
    images = g(z, labels)
    torch.testing.assert_close(g(z[order], labels[order]), images[order])
    torch.testing.assert_close(d(images[order], labels[order]), d(images, labels)[order])
    assert torch.equal(g(z, labels), images)
    assert torch.equal(d(images, labels), d(images, labels))
    assert torch.equal(copy.deepcopy(g)(z, labels), images)


def test_the_label_matters_in_both_players() -> None:
    g, d = small()
    z, _ = draw(2)
    zeros, ones = torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.long)
    assert not torch.allclose(g(z, zeros), g(z, ones))
    images = g(z, zeros)
    assert not torch.allclose(d(images, zeros), d(images, ones))


def test_noise_on_the_class_by_a_hook_on_the_embedding() -> None:
    """What NoisyTwins does: before the normalisation, in either player."""
    g, _ = small()
    z, labels = draw(4)
    shift = torch.randn(4, 5, dtype=torch.double)
    state = weights(g)
    embedded = linear(state, "mapping.embed", F.one_hot(labels, 3).double())
    x = torch.cat([unit(z), unit(embedded + shift)], 1)
    for number in range(8):
        x = lrelu(linear(state, f"mapping.fc{number}", x, rate=0.01))
    handle = g.mapping.embed.register_forward_hook(lambda *hooked: hooked[-1] + shift)
    torch.testing.assert_close(g.mapping(z, labels)[:, 0], x)
    handle.remove()


def test_half_precision_autocast_trains() -> None:
    g, d = Generator(16, 3, 3, **SMALL), Discriminator(16, 3, 3, base=64, widest=7)
    labels = torch.arange(4) % 3
    with torch.autocast("cpu", torch.bfloat16):
        score = d(g(torch.randn(4, 6), labels, noise="random"), labels)
    F.softplus(-score.float()).mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in [*g.parameters(), *d.parameters()])
    assert all(p.grad.dtype == p.dtype for p in g.parameters())  # type: ignore[union-attr]


def test_256_pixels() -> None:
    g = Generator(256, 3, 2, latent=4, style=4, base=512, widest=4, mapping_layers=2)
    d = Discriminator(256, 3, 2, base=512, widest=4)
    labels = torch.tensor([0, 1])
    images = g(torch.randn(2, 4), labels)
    assert images.shape == (2, 3, 256, 256)
    assert g.mapping(torch.randn(2, 4), labels).shape == (2, 14, 4)
    assert torch.isfinite(d(images, labels)).all()


@pytest.mark.parametrize("make", [Generator, Discriminator])
@pytest.mark.parametrize(
    ("size", "remedy"), [(28, "16 or 32"), (100, "64 or 128"), (4, "8 or 16"), (0, "8 or 16"), (224, "128 or 256")]
)
def test_sizes_that_are_no_power_of_two(make: Any, size: int, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"size {size} is no power of two .*{remedy}") as error:
        make(size, 3, 10)
    assert "\n" not in str(error.value)


def test_mistakes() -> None:
    g, d = Generator(16, 1, 3, **SMALL), Discriminator(16, 1, 3, base=64, widest=7)
    with pytest.raises(ValueError, match="labels are missing"):
        g(torch.randn(2, 6))
    with pytest.raises(ValueError, match="noise 'const' is unknown"):
        g.synthesis(torch.randn(2, 6, 5), noise="const")
    with pytest.raises(ValueError, match=r"give \(N, 6, style\)"):
        g.synthesis(torch.randn(2, 5))
    with pytest.raises(ValueError, match="images are"):
        d(torch.randn(2, 1, 32, 32), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"labels of shape \(3,\).*expected \(2,\) ints"):
        d(torch.randn(2, 1, 16, 16), torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match=r"labels of shape \(1,\).*expected \(2,\) ints"):
        d(torch.randn(2, 1, 16, 16), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"torch.bool: expected \(2,\) ints"):
        d(torch.randn(2, 1, 16, 16), torch.tensor([True, False]))
    with pytest.raises(ValueError, match="images are none"):
        d(torch.randn(0, 1, 16, 16), torch.tensor([]).long())
    for make in (Generator, Discriminator):
        with pytest.raises(ValueError, match=r"channels=0: images have 1 \(grey\) or 3"):
            make(16, 0, 3)
    with pytest.raises(ValueError, match="style=0"):
        Generator(16, 1, 3, style=0)
    with pytest.raises(ValueError, match="leave no channels"):
        Generator(64, 3, 3, base=32)
    with pytest.raises(ValueError, match="group is 0"):
        Discriminator(16, 1, 3, group=0)


def test_other_types_of_numbers_are_taken_as_the_networks_own() -> None:
    """As numpy draws them: double noise, small integers."""
    g, d = Generator(16, 1, 3, **SMALL), Discriminator(16, 1, 3, base=64, widest=7)
    z, x, y = torch.randn(3, 6), torch.randn(3, 1, 16, 16), torch.tensor([2, 0, 1])
    ws, scores = g.mapping(z, y), d(x, y)
    for kind in (torch.uint8, torch.int8, torch.int16, torch.int32):
        torch.testing.assert_close(g.mapping(z.double(), y.to(kind)), ws)
        torch.testing.assert_close(d(x.double(), y.to(kind).numpy()), scores)
    torch.testing.assert_close(g.synthesis(ws.double()), g.synthesis(ws))
    assert d.double()(x, y).dtype == torch.double
