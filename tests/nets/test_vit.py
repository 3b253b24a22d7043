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
from evenhand.methods.common import Net
from evenhand.nets import CosineHead, build_net, load_weights
from evenhand.nets.timm import TimmNet
from evenhand.nets.vit import Attention, VisionTransformer


def tiny(seed: int = 0, classes: int = 5, **options: Any) -> VisionTransformer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = VisionTransformer(16, 4, 2, 8, **{"num_classes": classes, "width": 16, **options})
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
    nn.init.constant_(net.pos_embed, 0.5)
    torch.testing.assert_close(net._positions(6, 4), torch.full((1, 25, 16), 0.5))


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
    with pytest.raises(ValueError, match=r"width is 18; give a multiple of \d"):
        VisionTransformer(16, 4, 1, 4, num_classes=2, width=18)


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
    net = build_net("timm:some_net", num_classes=4, channels=1)
    assert isinstance(net, TimmNet)
    assert timm == [{"name": "some_net", "pretrained": False, "num_classes": 0, "in_chans": 1}]
    assert net(images(2, 1, 8, 8)).shape == (2, 4)
    torch.save(Pooled(1).state_dict(), tmp_path / "w.pt")
    loaded = Net(name="timm:some_net", weights=str(tmp_path / "w.pt")).build(4, 1)
    assert torch.equal(loaded.backbone.conv.weight, torch.load(tmp_path / "w.pt")["conv.weight"])  # type: ignore[union-attr]
    Net(name="timm:some_net", weights="pretrained").build(4, 3)
    assert timm[-1]["pretrained"] is True


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
    with pytest.raises(UserError, match="'mobilenet' are not a file"):
        Net(name="mobilenet_v2", weights="mobilenet", width=8).build(4, 3)
