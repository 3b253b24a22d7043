"""The vision transformer: timm's names and sizes, attention written out, tokens and positions; and timm itself."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenhand.errors import UserError
from evenhand.methods.common import Net, Optim
from evenhand.nets import CosineHead, build_net, load_weights
from evenhand.nets.timm import TimmNet
from evenhand.nets.vit import Attention, VisionTransformer, resized


def tiny(seed: int = 0, classes: int = 5, **options: Any) -> VisionTransformer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {"size": 16, "patch": 4, "width": 16, "depth": 2, "heads": 2}
        net = VisionTransformer(classes, **{**sizes, **options})
        for p in net.parameters():  # as if trained: zero biases would hide mistakes
            nn.init.normal_(p, std=0.3)
        return net


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_names_and_shapes_are_timms() -> None:
    with torch.device("meta"):
        state = build_net("vit-b16", num_classes=1000).state_dict()
    block = {
        "norm1.weight": (768,), "norm1.bias": (768,), "attn.qkv.weight": (2304, 768), "attn.qkv.bias": (2304,),
        "attn.proj.weight": (768, 768), "attn.proj.bias": (768,), "norm2.weight": (768,), "norm2.bias": (768,),
        "mlp.fc1.weight": (3072, 768), "mlp.fc1.bias": (3072,), "mlp.fc2.weight": (768, 3072), "mlp.fc2.bias": (768,),
    }  # fmt: skip
    expected = {
        "cls_token": (1, 1, 768), "pos_embed": (1, 197, 768), "patch_embed.proj.weight": (768, 3, 16, 16),
        "patch_embed.proj.bias": (768,), "norm.weight": (768,), "norm.bias": (768,), "head.weight": (1000, 768),
        "head.bias": (1000,), **{f"blocks.{i}.{name}": shape for i in range(12) for name, shape in block.items()},
    }  # fmt: skip
    assert {name: tuple(value.shape) for name, value in state.items()} == expected


def slow_attention(layer: Attention, x: Tensor) -> Tensor:
    """Sample by sample, head by head, query by query."""
    N, L, D = x.shape
    d = D // layer.heads
    out = x.new_zeros(N, L, D)
    for n in range(N):
        q, k, v = (x[n] @ layer.qkv.weight.T + layer.qkv.bias).split(D, dim=1)
        for h in range(layer.heads):
            part = slice(h * d, (h + 1) * d)
            for i in range(L):
                scores = torch.stack([(q[i, part] * k[j, part]).sum() / math.sqrt(d) for j in range(L)])
                shares = scores.exp() / scores.exp().sum()
                out[n, i, part] = (shares[:, None] * v[:, part]).sum(0)
    return out @ layer.proj.weight.T + layer.proj.bias


def test_attention_equals_the_slow_one_with_gradients() -> None:
    layer = tiny().blocks[0].attn.double()  # the gradient of the keys' bias is 0: float32 shows its rounding
    found = []
    for attend in (layer, lambda x: slow_attention(layer, x)):
        x = images(2, 5, 16).double().requires_grad_()
        y = attend(x)
        grads = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
        found.append((y, *grads))
    for mine, slow in zip(*found, strict=True):
        torch.testing.assert_close(mine, slow, rtol=1e-4, atol=1e-5)


def test_the_whole_network_equals_a_transcription() -> None:
    net, x = tiny(), images(2, 3, 16, 16)

    def norm(t: Tensor, layer: nn.LayerNorm) -> Tensor:
        t = (t - t.mean(-1, keepdim=True)) / (t.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        return t * layer.weight + layer.bias

    w, b = net.patch_embed.proj.weight.flatten(1), net.patch_embed.proj.bias
    patches = [x[:, :, i : i + 4, j : j + 4].flatten(1) @ w.T + b for i in range(0, 16, 4) for j in range(0, 16, 4)]
    t = torch.stack([net.cls_token[0, 0].expand(2, -1), *patches], 1)
    t = t + net.pos_embed
    for block in net.blocks:
        t = t + slow_attention(block.attn, norm(t, block.norm1))
        h = norm(t, block.norm2) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias
        h = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))
        t = t + h @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
    cls = norm(t, net.norm)[:, 0]  # the class token, not the mean of all
    torch.testing.assert_close(net.features(x), cls, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(net(x), cls @ net.head.weight.T + net.head.bias, rtol=1e-4, atol=1e-4)


def test_other_image_sizes_interpolate_positions() -> None:
    net = tiny()
    assert net.tokens(images(2, 3, 24, 16)).shape == (2, 1 + 6 * 4, 16)
    torch.testing.assert_close(resized(torch.full((1, 17, 16), 0.5), 1, 6, 4), torch.full((1, 25, 16), 0.5))
    with pytest.raises(ValueError, match="images of 18 x 16 cannot be cut into patches of 4: set"):
        net(images(2, 3, 18, 16))


def test_positions_are_resized_bicubically_and_special_tokens_keep_theirs() -> None:
    positions = images(1, 2 + 9, 5)
    found = resized(positions, 2, 6, 4)
    assert torch.equal(found[:, :2], positions[:, :2])
    for channel in range(5):
        grid = positions[0, 2:, channel].view(1, 1, 3, 3)
        expected = nn.functional.interpolate(grid, (6, 4), mode="bicubic")[0, 0].flatten()
        torch.testing.assert_close(found[0, 2:, channel], expected)
    assert resized(positions, 2, 3, 3) is positions


def test_initial_values_are_deits() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = VisionTransformer(50, size=32, patch=4, width=192, depth=1, heads=3, distilled=True).state_dict()
    for name in ("cls_token", "dist_token", "pos_embed", "blocks.0.attn.qkv.weight", "head.weight", "head_dist.weight"):
        assert state[name].std().item() == pytest.approx(0.02, rel=0.15), name
    assert not any(value.any() for name, value in state.items() if name.endswith("bias") and "patch" not in name)


def noise(shape: tuple[int, ...], seed: float) -> Tensor:
    """The same numbers on every machine, whatever its random generator."""
    k = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (torch.sin(12.9898 * k + seed) * 43758.5453).frac().abs().sub(0.5).view(shape).float()


def test_two_heads_as_timm_1_0_30_computes_them() -> None:
    """Stored: its ``VisionTransformerDistilled(16, 4, num_classes=3, embed_dim=16, depth=3, num_heads=4)``."""
    net = tiny(classes=3, depth=3, heads=4, distilled=True).eval()
    entries = sorted(net.state_dict().items())
    net.load_state_dict({name: noise(value.shape, i) for i, (name, value) in enumerate(entries)})
    x = noise((2, 3, 16, 16), 99)
    cls = torch.tensor([[0.18304174, 0.69063264, 0.62371093], [0.17710499, 0.64699078, 0.60388815]])
    dist = torch.tensor([[-0.22610611, -0.92448080, -0.56620324], [-0.21188480, -0.86925954, -0.48907804]])
    found = net.heads(x)
    torch.testing.assert_close(found[0], cls, rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1], dist, rtol=0, atol=1e-5)
    for mode in (True, False):
        torch.testing.assert_close(net.train(mode)(x), (cls + dist) / 2, rtol=0, atol=1e-5)
    torch.testing.assert_close(net.features(x), net.tokens(x)[:, 0])


def test_trap_logits_are_averaged_not_probabilities() -> None:
    net = tiny(classes=2, distilled=True)
    for head, values in ((net.head, [9.0, 0.0]), (net.head_dist, [0.0, 2.0])):
        nn.init.zeros_(head.weight)  # type: ignore[union-attr]
        head.bias.data = torch.tensor(values)  # type: ignore[union-attr]
    assert torch.equal(net(images(1, 3, 16, 16)), torch.tensor([[4.5, 1.0]]))


def test_one_head_has_no_second() -> None:
    with pytest.raises(ValueError, match="one head: build it with distilled=True"):
        tiny().heads(images(1, 3, 16, 16))
    assert not [name for name in tiny().state_dict() if "dist" in name]
    assert tiny(distilled=True, head="cosine").head_dist.weight.shape == (5, 16)  # type: ignore[union-attr]


@pytest.mark.parametrize("distilled", [False, True])
def test_attention_matrices_give_what_the_fused_path_gives(distilled: bool) -> None:
    net, x = tiny(distilled=distilled).double(), images(2, 3, 16, 24).double()
    found = net.attentions(x)
    L = net.special + 4 * 6
    assert [m.shape for m in found] == [(2, 2, L, L)] * 2
    h = net._placed(x)
    for block, matrix in zip(net.blocks, found, strict=True):
        torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 2, L).double())
        v = block.attn.qkv(block.norm1(h)).view(2, L, 3, 2, 8)[:, :, 2]  # (N, L, heads, d)
        explicit = block.attn.proj(torch.einsum("nhij,njhd->nihd", matrix, v).flatten(2))
        torch.testing.assert_close(explicit, block.attn(block.norm1(h)))
        h = block(h)


def test_stochastic_depth_grows_with_the_blocks_and_ends_with_training() -> None:
    net, plain, x = tiny(depth=3, drop_path=0.4), tiny(depth=3), images(2000, 4, 16)
    assert [block.skip for block in net.blocks] == pytest.approx([0, 0.2, 0.4])
    still, moved = net.blocks[2].eval()(x), plain.blocks[2](x)
    assert torch.equal(still, moved)
    torch.manual_seed(0)
    block = net.blocks[2].train()
    branch = block._some(torch.ones(2000, 4, 16))
    assert branch.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert torch.equal(branch, branch[:, :1, :1].expand_as(branch))  # whole samples
    assert (branch == 0).float().mean().item() == pytest.approx(0.4, abs=0.04)
    torch.manual_seed(1)
    first = net.train()(images(8, 3, 16, 16))
    assert not torch.equal(first, net(images(8, 3, 16, 16)))
    torch.manual_seed(1)  # the loop seeds every step
    assert torch.equal(first, net(images(8, 3, 16, 16)))
    with pytest.raises(ValueError, match=r"drop_path is 1; give a share"):
        tiny(drop_path=1)


@pytest.mark.parametrize("distilled", [False, True])
def test_a_file_of_another_grid_loads_with_positions_resized(distilled: bool, tmp_path: Path) -> None:
    trained, net = tiny(0, distilled=distilled), tiny(1, size=24, distilled=distilled)
    torch.save(trained.state_dict(), tmp_path / "w.pth")
    assert load_weights(net, tmp_path / "w.pth") == []
    x = images(2, 3, 24, 24)
    torch.testing.assert_close(net(x), trained(x))  # who would have resized them at each pass
    assert net.pos_embed.shape == (1, net.special + 36, 16)
    with pytest.raises(UserError, match=r"mis-shaped .*patch_embed.proj.weight \(16, 3, 4, 4\) for \(16, 3, 8, 8\)"):
        load_weights(tiny(patch=8, distilled=distilled), tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"do not fit: .*dist_token"):
        load_weights(tiny(distilled=not distilled), tmp_path / "w.pth", skip_head=True)


def test_recipe_keys_reach_the_network() -> None:
    net = Net(name="vit-tiny", width=24, depth=3, heads=6, patch=8, size=16, drop_path=0.2).build(5, 1, distilled=True)
    assert isinstance(net, VisionTransformer)
    assert net.pos_embed.shape == (1, 2 + 4, 24)
    assert (len(net.blocks), net.blocks[0].attn.heads, net.blocks[-1].skip) == (3, 6, pytest.approx(0.2))
    assert net.patch_embed.proj.weight.shape == (24, 1, 8, 8)
    assert net(images(2, 1, 16, 16)).shape == (2, 5)


def test_a_file_with_another_head_loads_and_the_head_can_be_replaced(tmp_path: Path) -> None:
    trained, net = tiny(0, 7), tiny(1, 3)
    torch.save(trained.state_dict(), tmp_path / "w.pth")
    assert load_weights(net, tmp_path / "w.pth", skip_head=True) == ["head.weight", "head.bias"]
    x = images(2, 3, 16, 16)
    torch.testing.assert_close(net.features(x), trained.features(x), rtol=0, atol=0)
    net.head = CosineHead(16, 9)
    assert net(x).shape == (2, 9)
    assert [name for name in net.state_dict() if "head" in name] == ["head.weight"]


def test_width_must_suit_the_heads() -> None:
    with pytest.raises(ValueError, match="width is 18; give a multiple of 4"):
        VisionTransformer(2, size=16, patch=4, width=18, heads=4)
    with pytest.raises(ValueError, match="size is 18; give a multiple of 4"):
        VisionTransformer(2, size=18, patch=4, width=16, heads=4)


# timm


class Pooled(nn.Module):
    """What timm gives with ``num_classes=0``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.num_features, self.conv = 6, nn.Conv2d(channels, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in with timm's two functions; returns what it was asked for."""
    asked: list[dict[str, Any]] = []

    def create_model(name: str, **how: Any) -> nn.Module:
        asked.append({"name": name, **how})
        return Pooled(how["in_chans"])

    module = types.SimpleNamespace(create_model=create_model, is_model=lambda name: name == "some_net")
    monkeypatch.setitem(sys.modules, "timm", module)  # type: ignore[arg-type]
    return asked


def test_timm_gives_the_backbone(timm: list[dict[str, Any]], tmp_path: Path) -> None:
    net = build_net("timm:some_net", num_classes=4, inputs=1)
    assert isinstance(net, TimmNet)
    assert timm == [{"name": "some_net", "pretrained": False, "num_classes": 0, "in_chans": 1}]
    assert net(images(2, 1, 8, 8)).shape == (2, 4)
    torch.save(Pooled(1).state_dict(), tmp_path / "w.pt")
    loaded = Net(name="timm:some_net", weights=str(tmp_path / "w.pt")).build(4, 1)
    assert torch.equal(loaded.backbone.conv.weight, torch.load(tmp_path / "w.pt")["conv.weight"])  # type: ignore[union-attr]
    Net(name="timm:some_net", weights="pretrained").build(4, 3)
    assert timm[-1]["pretrained"] is True
    Net(name="timm:some_net", drop_path=0.1).build(4, 3)
    assert timm[-1]["drop_path_rate"] == 0.1


@pytest.mark.usefixtures("timm")
def test_timm_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="timm has no network 'other_net'"):
        build_net("timm:other_net", num_classes=4)
    with pytest.raises(ValueError, match="'timm:some_net' has no option width"):
        build_net("timm:some_net", num_classes=4, width=8)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"'timm:some_net' needs the extra: pip install 'evenhand\[timm\]'"):
        build_net("timm:some_net", num_classes=4)


def test_weights_by_name_are_the_obtainable_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.save(build_net("mobilenet_v2", num_classes=9, width=8).state_dict(), tmp_path / "w.pth")
    monkeypatch.setattr("evenhand.methods.common.obtain_weights", lambda name: tmp_path / f"w.pth{name[12:]}")
    net = Net(name="mobilenet_v2", weights="mobilenet_v2", width=8).build(4, 3)
    expected = torch.load(tmp_path / "w.pth")["features.0.0.weight"]
    assert torch.equal(net.state_dict()["features.0.0.weight"], expected)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "mobilenet_v2", "weights": "mobilenet"}, "'mobilenet' is neither a file nor .* are: mobilenet_v2"),
        ({"name": "resnet50", "weights": "pretrained"}, "'pretrained' is .*: mobilenet_v2, resnet18, resnet50$"),
        ({"name": "timm:some_net", "weights": "imagenet.pth"}, "there are: mobilenet_v2, .*, pretrained$"),
        ({"name": "resnet50", "weights": "mobilenet_v2"}, "set net.name to it, not 'resnet50'"),
        ({"name": "resnet51"}, "net 'resnet51' is unknown; did you mean 'resnet5"),
    ],
)
def test_names_are_checked_without_building(table: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Net(**table).check()  # type: ignore[arg-type]
    Net(weights="").check()


def test_layer_scale_multiplies_what_a_block_adds() -> None:
    """DeiT III: x + g1 * attention, then + g2 * MLP, under timm's names; norms' kind of parameter for weight decay."""
    net = build_net("vit-tiny", num_classes=3, width=16, depth=1, heads=2, layer_scale=0.1)
    assert net.state_dict()["blocks.0.ls1.gamma"].tolist() == pytest.approx([0.1] * 16)
    block: Any = net.blocks[0]  # type: ignore[index]
    x = torch.randn(2, 5, 16)
    half = x + 0.1 * block.attn(block.norm1(x))
    torch.testing.assert_close(block(x), half + 0.1 * block.mlp(block.norm2(half)))
    plain = build_net("vit-tiny", num_classes=3, width=16, depth=1, heads=2)
    assert not any("ls1" in name for name in plain.state_dict())

    built = Net(name="vit-tiny", width=16, depth=1, heads=2, layer_scale=0.1).build(3, 3)
    optimizer = Optim(name="adamw", no_decay=["norms"]).player(built, seed=0).optimizer
    free = {id(p) for g in optimizer.param_groups if g["weight_decay"] == 0 for p in g["params"]}
    assert id(built.blocks[0].ls1.gamma) in free  # type: ignore[index, union-attr]
