"""MobileNetV2: torchvision's names and shapes, the convention of heads, and what it computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from evenhand.nets import CosineHead, load_weights
from evenhand.nets.mobilenet import InvertedResidual, MobileNetV2


def tiny(classes: int = 5) -> MobileNetV2:
    return MobileNetV2(num_classes=classes, width=8)


def test_names_and_sizes_are_torchvisions() -> None:
    state = MobileNetV2(num_classes=1000).state_dict()
    assert sum(v.numel() for n, v in state.items() if "running" not in n and "tracked" not in n) == 3_504_872
    assert len(state) == 314
    shapes = {
        "features.0.0.weight": (32, 3, 3, 3),
        "features.1.conv.0.0.weight": (32, 1, 3, 3),  # no expansion in the first block
        "features.1.conv.1.weight": (16, 32, 1, 1),
        "features.2.conv.0.0.weight": (96, 16, 1, 1),
        "features.2.conv.1.1.running_mean": (96,),
        "features.14.conv.1.0.weight": (576, 1, 3, 3),
        "features.17.conv.3.bias": (320,),
        "features.18.0.weight": (1280, 320, 1, 1),
        "classifier.1.weight": (1000, 1280),
    }
    assert {name: tuple(state[name].shape) for name in shapes} == shapes


def test_a_file_with_another_head_loads(tmp_path: Path) -> None:
    trained, net = tiny(7), tiny(3)
    torch.save(trained.state_dict(), tmp_path / "w.pth")
    assert load_weights(net, tmp_path / "w.pth", skip_head=True) == ["classifier.1.weight", "classifier.1.bias"]
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(net.eval().features(x), trained.eval().features(x), rtol=0, atol=0)


def test_logits_are_the_head_of_the_features() -> None:
    net, x = tiny().train(), torch.randn(4, 3, 64, 64)
    features = net.features(x)
    assert features.shape == (4, net.num_features) == (4, 320)
    net.eval()
    torch.testing.assert_close(net(x), net.head(net.features(x)), rtol=0, atol=0)


def test_the_head_can_be_replaced() -> None:
    net = tiny()
    net.head = CosineHead(net.num_features, 9)
    assert isinstance(net.head, CosineHead)
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 9)
    assert [name for name, _ in net.named_parameters() if not name.startswith("features.")] == ["classifier.1.weight"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "stride", "added"), [(8, 8, 1, True), (8, 8, 2, False), (8, 12, 1, False)]
)
def test_shortcut_only_where_shapes_agree(inputs: int, outputs: int, stride: int, added: bool) -> None:
    block = InvertedResidual(inputs, outputs, 6, stride)
    nn.init.zeros_(block.conv[-1].weight)  # the branch gives nothing
    nn.init.zeros_(block.conv[-1].bias)
    x = torch.randn(2, inputs, 8, 8)
    y = block(x)
    assert y.shape == (2, outputs, 8 // stride, 8 // stride)
    assert torch.equal(y, x) if added else not y.any()


def test_every_parameter_learns() -> None:
    net = tiny()
    net(torch.randn(4, 3, 64, 64)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_grey_input() -> None:
    assert MobileNetV2(num_classes=2, channels=1, width=8)(torch.randn(2, 1, 32, 32)).shape == (2, 2)
