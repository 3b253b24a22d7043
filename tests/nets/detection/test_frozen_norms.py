"""Frozen norms folded into convolutions: the same numbers and gradients as torchvision's two layers, the same names."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from evenhand.nets.detection.folded import FoldedConv, fold_norms


def build(tv: Any, name: str) -> nn.Module:
    """A network in float64 whose frozen norms are not the identity."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = getattr(tv.models, name)(weights=None, norm_layer=tv.ops.FrozenBatchNorm2d).double()
        for module in net.modules():
            if isinstance(module, tv.ops.FrozenBatchNorm2d):
                module.weight.uniform_(0.5, 1.5), module.bias.normal_(0, 0.1)
                module.running_mean.normal_(0, 0.1), module.running_var.uniform_(0.5, 2)
    return net.eval()


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18", "resnet50"])
def test_folding_changes_neither_outputs_nor_gradients_nor_names(tv: Any, name: str) -> None:
    plain = build(tv, name)
    folded = copy.deepcopy(plain)
    fold_norms(folded)
    norms = sum(isinstance(module, tv.ops.FrozenBatchNorm2d) for module in plain.modules())
    assert sum(isinstance(module, FoldedConv) for module in folded.modules()) == norms > 0
    assert [*folded.state_dict()] == [*plain.state_dict()]
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(folded(x), plain(x))
    for net in (plain, folded):
        net(x).pow(2).mean().backward()
    for mine, theirs in zip(folded.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_copy_is_folded_with_its_own_norms_and_weights_load_afterwards(tv: Any) -> None:
    net = build(tv, "resnet18")
    fold_norms(net)
    twin, other = copy.deepcopy(net), build(tv, "resnet18")
    for value in other.state_dict().values():
        value.mul_(1.1)
    twin.load_state_dict(other.state_dict())
    x = torch.rand(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(twin(x), other(x))
    assert not torch.allclose(net(x), twin(x))


def test_a_convolution_with_a_bias_or_without_a_norm_stays(tv: Any) -> None:
    layers = nn.Sequential(nn.Conv2d(1, 1, 1), tv.ops.FrozenBatchNorm2d(1), nn.Conv2d(1, 1, 1, bias=False), nn.ReLU())
    fold_norms(layers)
    assert not any(isinstance(layer, FoldedConv) for layer in layers)
