"""A scaled linear head is one linear layer; a cosine head is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenhand.nets import CosineHead, ScaledHead, folded


@pytest.mark.parametrize("bias", [True, False])
def test_folded_head_gives_the_same_logits(bias: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        scaled = ScaledHead(ScaledHead(nn.Linear(3, 4, bias=bias), 4), 4)
        scaled.scale.data, scaled.inner.scale.data = torch.rand(4), torch.rand(4)  # type: ignore[union-attr]
        x = torch.randn(5, 3)
    plain = folded(scaled, 2.5)
    assert type(plain) is nn.Linear
    torch.testing.assert_close(plain(x), 2.5 * scaled(x))
    torch.testing.assert_close(folded(plain)(x), plain(x))


@pytest.mark.parametrize("head", [CosineHead(3, 4), ScaledHead(CosineHead(3, 4), 4), nn.Sequential()])
def test_other_heads_are_refused(head: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"the head is a (CosineHead|Sequential), not linear"):
        folded(head)
