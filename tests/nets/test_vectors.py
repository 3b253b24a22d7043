"""The perceptron: sizes, layers and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenhand.nets import build_net


@pytest.mark.parametrize(("name", "norm"), [("mlp", False), ("mlp-bn", True)])
def test_two_hidden_layers(name: str, norm: bool) -> None:
    net = build_net(name, num_classes=10, inputs=64, width=64)
    assert net.num_features == 64
    size = sum(p.numel() for p in net.parameters())
    assert size == 2 * (64 * 64 + (128 if norm else 64)) + 64 * 10 + 10
    assert any(isinstance(m, nn.BatchNorm1d) for m in net.modules()) is norm
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    net.eval()
    assert torch.equal(net(x), net.head(net.features(x)))
    assert (net.features(x) >= 0).all()


def test_linear_is_one_layer_on_the_samples_themselves() -> None:
    net = build_net("linear", num_classes=3, inputs=5)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    assert net.num_features == 5
    assert torch.equal(net.features(x), x)
    assert sum(p.numel() for p in net.parameters()) == 5 * 3 + 3
    torch.testing.assert_close(net(x), x @ net.fc.weight.T + net.fc.bias)


def test_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3, 8, 8\).*takes vectors.*set data.embed"):
        build_net("mlp", num_classes=2, inputs=3)(torch.zeros(2, 3, 8, 8))
