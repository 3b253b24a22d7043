"""Networks: sizes, names, the option-A shortcut and the heads, against figures and transcriptions."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenhand.nets import NETS, CosineHead, HeadedNet, build_net, make_head, reads_text, reads_vectors
from evenhand.nets.cifar import BasicBlock, CifarResNet, shortcut_a
from evenhand.nets.wide import WideBlock

FOR_IMAGES = sorted(name for name in NETS if not reads_text(name) and not reads_vectors(name))


def seeded(name: str, seed: int = 0, **options: object) -> HeadedNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_net(name, **{"num_classes": 10, **options})  # type: ignore[arg-type]


def narrow(name: str) -> dict[str, int]:
    return {"width": 8, "heads": 2, "depth": 2} if name.startswith("vit") else {"width": 8}


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("resnet32", {"num_classes": 10}, 464_154),  # spec 04, 3.1
        ("resnet32", {"num_classes": 100}, 470_004),
        ("resnet32", {"num_classes": 10, "head": "cosine"}, 464_144),
        ("resnet32", {"num_classes": 100, "head": "cosine"}, 469_904),
        ("resnet20", {}, 269_722),
        ("resnet44", {}, 658_586),
        ("resnet56", {}, 853_018),
        ("resnet18", {"num_classes": 1000}, 11_689_512),  # torchvision's figures
        ("resnet34", {"num_classes": 1000}, 21_797_672),
        ("resnet50", {"num_classes": 1000}, 25_557_032),
        ("resnet101", {"num_classes": 1000}, 44_549_160),
        ("wrn28-2", {}, 1_467_610),
        ("vit-b16", {"num_classes": 1000}, 86_567_656),  # timm's figure
        ("vit-ti16", {"distilled": True}, 5_528_660),  # spec 05, 3
        ("vit-s16", {"distilled": True, "num_classes": 100}, 21_743_432),
        ("vit-b16", {"distilled": True, "num_classes": 8142}, 98_322_588),
        ("small-cnn", {"inputs": 1}, 61_050),
        ("lenet", {"inputs": 1}, 80_202),
    ],
)
def test_parameter_counts(name: str, options: dict, count: int) -> None:
    with torch.device("meta"):
        net = build_net(name, **{"num_classes": 10, **options})
    assert size(net) == count


def test_resnet32_starts_with_the_norm_of_the_spec() -> None:
    norms = [torch.cat([p.flatten() for p in seeded("resnet32", s).parameters()]).norm() for s in range(3)]
    assert torch.stack(norms).mean().item() == pytest.approx(58.5, abs=0.15)


def test_resnet32_costs_69_million_multiplications() -> None:
    macs = 0

    def count(module: nn.Module, _: object, out: torch.Tensor) -> None:
        nonlocal macs
        macs += module.weight.numel() * out[0, 0].numel()  # type: ignore[operator]

    net = seeded("resnet32")
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(count)
    net(images(1, 3, 32, 32))
    assert macs + net.head.weight.numel() == pytest.approx(68.9e6, rel=0.01)


@pytest.mark.parametrize("name", FOR_IMAGES)
@pytest.mark.parametrize(("channels", "side"), [(1, 48), (3, 32)])
def test_forward_is_head_of_features(name: str, channels: int, side: int) -> None:
    if (name, channels) == ("resnet50-caffe", 1):
        with pytest.raises(ValueError, match=r"inputs is 1; .* takes colour images \(3\): set data.grey = false"):
            seeded(name, inputs=channels)
        return
    net = seeded(name, inputs=channels, num_classes=7, **narrow(name)).eval()
    x = images(2, channels, side, side)
    features = net.features(x)
    assert features.shape == (2, net.num_features)
    assert net.head.weight.shape == (7, net.num_features)
    assert net(x).shape == (2, 7)
    assert torch.equal(net(x), net.head(features))


@pytest.mark.parametrize(("name", "features"), [("resnet18", 512), ("resnet50", 2048)])
def test_large_images(name: str, features: int) -> None:
    net = seeded(name).eval()
    with torch.no_grad():
        assert net.features(images(1, 3, 224, 224)).shape == (1, features)


def test_large_images_are_reduced_32_times() -> None:
    net = seeded("resnet18", width=8).eval()
    sizes = []
    net.layer4.register_forward_hook(lambda _, __, out: sizes.append(out.shape[2:]))
    net(images(1, 3, 224, 224))
    assert sizes == [(7, 7)]


@pytest.mark.parametrize("name", FOR_IMAGES)
def test_gradients_reach_every_parameter(name: str) -> None:
    net = seeded(name, **narrow(name))
    F.cross_entropy(net(images(4, 3, 32, 32)), torch.tensor([0, 1, 2, 3])).backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50", "small-cnn", "lenet", "wrn28-2"])
def test_channels_last_gives_the_same_values_and_gradients(name: str) -> None:
    plain = seeded(name, width=8).double()
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    x = images(4, 3, 32, 32).double()
    out, out_last = plain(x), last(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(out, out_last)
    out.square().sum().backward()
    out_last.square().sum().backward()
    for a, b in zip(plain.parameters(), last.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_in_place_layers_allow_second_derivatives() -> None:
    net = seeded("resnet8", width=2, num_classes=3).double().eval()
    x, y = images(4, 3, 8, 8).double(), torch.tensor([0, 1, 2, 0])
    weights = list(net.parameters())
    with torch.no_grad():  # away from the kinks: where a channel is dead, ReLU's input is exactly the zero bias
        for w in weights:
            w += 0.1 * images(*w.shape, seed=2)
    directions = [images(*w.shape, seed=1).double() for w in weights]

    def slope() -> torch.Tensor:
        grads = torch.autograd.grad(F.cross_entropy(net(x), y), weights, create_graph=True)
        return torch.stack([(g * v).sum() for g, v in zip(grads, directions, strict=True)]).sum()

    exact = torch.stack(
        [(h * v).sum() for h, v in zip(torch.autograd.grad(slope(), weights), directions, strict=True)]
    ).sum()
    slopes = []
    for sign in (1e-6, -2e-6):
        with torch.no_grad():
            for w, v in zip(weights, directions, strict=True):
                w += sign * v
        slopes.append(slope().item())
    assert exact.item() == pytest.approx((slopes[0] - slopes[1]) / 2e-6, rel=1e-3)


@pytest.mark.parametrize(("inputs", "outputs", "stride", "side"), [(8, 16, 2, 7), (4, 8, 2, 8), (6, 6, 1, 5)])
def test_option_a_shortcut_against_a_literal_transcription(inputs: int, outputs: int, stride: int, side: int) -> None:
    x = images(2, inputs, side, side)
    small = -(-side // stride)
    expected = torch.zeros(2, outputs, small, small)
    pad = outputs // 4 if stride == 2 else 0  # "planes/4 on both channel sides"
    for n in range(2):
        for c in range(inputs):
            for i in range(small):
                for j in range(small):
                    expected[n, c + pad, i, j] = x[n, c, i * stride, j * stride]
    assert torch.equal(shortcut_a(x, outputs, stride), expected)


def test_basic_block_against_a_literal_transcription() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = BasicBlock(4, 8, stride=2).double()
    x = images(3, 4, 6, 6).double().requires_grad_()

    def normalised(h: torch.Tensor) -> torch.Tensor:
        mean, var = h.mean((0, 2, 3), keepdim=True), h.var((0, 2, 3), correction=0, keepdim=True)
        return (h - mean) / (var + 1e-5).sqrt()

    h = normalised(F.conv2d(x, block.conv1.weight, stride=2, padding=1)).clamp(min=0)
    h = normalised(F.conv2d(h, block.conv2.weight, padding=1))
    zeros = torch.zeros(3, 2, 3, 3, dtype=torch.double)
    expected = (h + torch.cat([zeros, x[:, :, ::2, ::2], zeros], dim=1)).clamp(min=0)
    out = block(x)
    torch.testing.assert_close(out, expected)
    inputs = [x, block.conv1.weight, block.conv2.weight]
    ours = torch.autograd.grad(out.square().sum(), inputs)
    literal = torch.autograd.grad(expected.square().sum(), inputs)
    torch.testing.assert_close(ours, literal)


def test_wide_block_shortcut_takes_the_activated_input() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = WideBlock(4, 8, stride=2).double().eval()
    x = images(2, 4, 6, 6).double()
    before = x.clone()
    scale = (1 + 1e-5) ** -0.5  # BatchNorm at its initial statistics

    def leaky(h: torch.Tensor) -> torch.Tensor:
        return torch.where(h > 0, h, 0.1 * h)

    active = leaky(x * scale)
    h = F.conv2d(
        leaky(F.conv2d(active, block.conv1.weight, stride=2, padding=1) * scale),
        block.conv2.weight,
        padding=1,
    )
    torch.testing.assert_close(block(x), h + F.conv2d(active, block.shortcut.weight, stride=2))
    assert torch.equal(x, before)


def test_wide_resnet_follows_spec_06() -> None:
    net = seeded("wrn28-2")
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {m.momentum for m in norms} == {0.001}
    assert not net.head.bias.any()
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convs) == 25  # and three 1x1 shortcuts make the 28
    widest = convs[-1].weight
    assert widest.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.02)


def torchvision_entries(blocks: list[int], convs: list[list[int]]) -> dict[str, tuple[int, ...]]:
    """The state dict of torchvision's resnet, written out; convs = (kernel, expansion) in a block."""
    entries: dict[str, tuple[int, ...]] = {}

    def norm(name: str, n: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            entries[f"{name}.{part}"] = (n,)
        entries[f"{name}.num_batches_tracked"] = ()

    entries["conv1.weight"] = (64, 3, 7, 7)
    norm("bn1", 64)
    width = 64
    for stage, (count, planes) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), start=1):
        for block in range(count):
            at, n = f"layer{stage}.{block}", width
            for i, (kernel, expansion) in enumerate(convs, start=1):
                entries[f"{at}.conv{i}.weight"] = (planes * expansion, n, kernel, kernel)
                n = planes * expansion
                norm(f"{at}.bn{i}", n)
            if block == 0 and (stage > 1 or width != n):
                entries[f"{at}.downsample.0.weight"] = (n, width, 1, 1)
                norm(f"{at}.downsample.1", n)
            width = n
    entries["fc.weight"], entries["fc.bias"] = (1000, width), (1000,)
    return entries


@pytest.mark.parametrize(
    ("name", "blocks", "convs", "count"),
    [
        ("resnet18", [2, 2, 2, 2], [[3, 1], [3, 1]], 122),
        ("resnet34", [3, 4, 6, 3], [[3, 1], [3, 1]], 218),
        ("resnet50", [3, 4, 6, 3], [[1, 1], [3, 1], [1, 4]], 320),
        ("resnet101", [3, 4, 23, 3], [[1, 1], [3, 1], [1, 4]], 626),
    ],
)
def test_names_and_shapes_are_torchvisions(name: str, blocks: list, convs: list, count: int) -> None:
    with torch.device("meta"):
        net = build_net(name, num_classes=1000)
    ours = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    assert list(ours.items()) == list(torchvision_entries(blocks, convs).items())
    assert len(ours) == count


def test_bottleneck_strides_in_the_3x3_convolution() -> None:
    with torch.device("meta"):
        net = build_net("resnet50", num_classes=10)
    block = net.layer2[0]
    assert [block.conv1.stride, block.conv2.stride, block.conv3.stride] == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize(("name", "last"), [("resnet18", "bn2"), ("resnet50", "bn3")])
def test_zero_init_residual_is_off_unless_asked(name: str, last: str) -> None:
    plain, zero = seeded(name, width=4), seeded(name, width=4, zero_init_residual=True)
    for net, gain in ((plain, 1.0), (zero, 0.0)):
        gains = [p for key, p in net.named_parameters() if key.endswith(f"{last}.weight") and "layer" in key]
        assert len(gains) in (8, 16)
        assert all((g == gain).all() for g in gains)


def test_stem_stride_quarters_the_cost_not_the_parameters() -> None:
    plain, cheap = seeded("resnet8"), seeded("resnet8", stem_stride=2)
    assert size(plain) == size(cheap)
    sizes = []
    for net in (plain, cheap):
        net.layer3.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
        net(images(1, 3, 32, 32))
    assert sizes == [(64, 8, 8), (64, 4, 4)]


def test_cosine_head_against_the_formula() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = CosineHead(5, 3).double()
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(3, dtype=torch.double))
    x = images(4, 5).double().requires_grad_()
    expected = torch.stack([torch.stack([(xi * w).sum() / (xi.norm() * w.norm()) for w in head.weight]) for xi in x])
    torch.testing.assert_close(head(x), expected)
    mask = images(4, 3, seed=1).double()
    ours = torch.autograd.grad((head(x) * mask).sum(), [x, head.weight])
    torch.testing.assert_close(ours, torch.autograd.grad((expected * mask).sum(), [x, head.weight]))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.integers(2, 9))
def test_cosines_stay_in_range_and_ignore_length(seed: int, length: float, classes: int) -> None:
    head = make_head("cosine", 6, classes)
    x = images(4, 6, seed=seed)
    assert head(x).abs().max() <= 1 + 1e-6
    torch.testing.assert_close(head(x * length), head(x), atol=1e-5, rtol=1e-4)


def test_cosine_head_of_a_zero_feature_is_finite() -> None:
    x = torch.zeros(2, 6, requires_grad=True)
    out = CosineHead(6, 3)(x)
    out.sum().backward()
    assert not out.any()
    assert x.grad.isfinite().all()


def test_assigning_head_replaces_the_layer_that_is_used() -> None:
    net = seeded("resnet8", width=4).eval()
    net.head = CosineHead(net.num_features, 3)
    assert net.fc is net.head
    assert isinstance(net.head, CosineHead)
    assert net(images(2, 3, 16, 16)).shape == (2, 3)
    assert [k for k in net.state_dict() if k.startswith(("fc", "head"))] == ["fc.weight"]


def test_same_seed_same_weights_and_no_other_source() -> None:
    first, second, other = seeded("resnet8"), seeded("resnet8"), seeded("resnet8", seed=1)
    for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.conv1.weight, other.conv1.weight)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet33", {}, "net 'resnet33' is unknown; did you mean 'resnet3"),
        ("vgg", {}, "known: .*small-cnn"),
        ("resnet50", {"stem_stride": 2}, r"no option stem_stride \(got 2\); it takes width, zero_init_residual$"),
        ("small-cnn", {"zero_init_residual": True}, "no option zero_init_residual .* it takes width$"),
        ("resnet32", {"depth": 20}, "no option depth .* it takes width, stem_stride$"),  # the name says it
        ("text-mean", {"heads": 2, "inputs": 9}, "no option heads .* it takes width$"),
        (
            "vit-tiny",
            {"stem_stride": 2},
            "it takes width, depth, heads, patch, size, drop_path, layer_scale, distilled$",
        ),
        ("resnet8", {"head": "cosin"}, "head 'cosin' is unknown; did you mean 'cosine'"),
        ("resnet8", {"num_classes": 1}, "num_classes is 1"),
        ("resnet8", {"inputs": 0}, "inputs is 0"),
        ("resnet8", {"width": 0}, "width is 0"),
    ],
)
def test_mistakes_are_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_net(name, **{"num_classes": 10, **options})


@pytest.mark.parametrize("depth", [2, 7, 18, 33])
def test_impossible_depth(depth: int) -> None:
    with pytest.raises(ValueError, match=f"depth is {depth}; .*6n\\+2"):
        CifarResNet(depth, num_classes=10)
