"""Text networks: attention against a literal loop, padding that changes nothing, gradients everywhere."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.errors import UserError
from evenhand.nets import NETS, HeadedNet, build_net, reads_text
from evenhand.nets.text import Block

TEXT_NETS = sorted(name for name in NETS if reads_text(name))


def seeded(name: str, **options: int) -> HeadedNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_net(name, **{"num_classes": 3, "inputs": 50, "width": 64, **options})  # type: ignore[arg-type]


def tokens(*sizes: int, length: int = 9) -> Tensor:
    chance = torch.Generator().manual_seed(1)
    x = torch.randint(2, 50, (len(sizes), length), generator=chance)
    return x * (torch.arange(length) < torch.tensor(sizes)[:, None])


def literal_attention(block: Block, h: Tensor, real: Tensor) -> Tensor:
    """softmax(q k' / sqrt(d)) v over the words of one text, head by head and word by word."""
    n, length, width = h.shape
    d = width // block.heads
    out = torch.zeros_like(h)
    for i in range(n):
        q, k, v = block.qkv(h[i]).split(width, dim=1)  # (L, width) each
        for head in range(block.heads):
            part = slice(head * d, (head + 1) * d)
            for a in range(length):
                scores = [q[a, part] @ k[b, part] / math.sqrt(d) for b in range(length) if real[i, b]]
                shares = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                values = [v[b, part] for b in range(length) if real[i, b]]
                out[i, a, part] = sum(s * value for s, value in zip(shares, values, strict=True))
    return out @ block.proj.weight.T + block.proj.bias


def test_attention_is_the_literal_one_in_value_and_gradient() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = Block(64, 2, dropout=0.1).double().eval()
    real = tokens(4, 1, 3, length=4) != 0
    h = torch.randn(3, 4, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    ours, theirs = block.attention(h, real), literal_attention(block, h, real)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    parameters = [h, block.qkv.weight, block.proj.weight]
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), parameters),
        torch.autograd.grad((theirs * weight).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", TEXT_NETS)
def test_padding_and_neighbours_change_nothing(name: str) -> None:
    net = seeded(name).eval()
    x = tokens(3, 9, 1)
    together = net(x)
    wide = net(F.pad(x, (0, 20)))
    torch.testing.assert_close(wide, together)
    for row, size in enumerate((3, 9, 1)):
        torch.testing.assert_close(net(x[row : row + 1, :size])[0], together[row])


@pytest.mark.parametrize("name", TEXT_NETS)
def test_head_of_features_and_gradients(name: str) -> None:
    net = seeded(name).eval()
    x = tokens(3, 9, 5)
    features = net.features(x)
    assert features.shape == (3, net.num_features)
    assert torch.equal(net(x), net.head(features))
    F.cross_entropy(net(x), torch.tensor([0, 1, 2])).backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key
    assert (net.words.weight.grad[0] == 0).all()  # type: ignore[union-attr, operator, index]


@pytest.mark.parametrize("name", TEXT_NETS)
def test_an_empty_text_is_no_nan(name: str) -> None:
    assert seeded(name).eval()(tokens(0, 4)).isfinite().all()


def test_order_matters_to_the_transformer_alone() -> None:
    x = tokens(9)
    for name, equal in (("text-mean", True), ("text-transformer", False)):
        net = seeded(name).eval()
        assert torch.allclose(net(x), net(x.flip(1)), atol=1e-6) is equal


def test_options() -> None:
    assert len(seeded("text-transformer", depth=3).blocks) == 3  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="width is 48; a text-transformer has heads of 32"):
        seeded("text-transformer", width=48)
    with pytest.raises(ValueError, match="net 'text-mean' has no option depth"):
        seeded("text-mean", depth=2)
    with pytest.raises(UserError, match=r"takes 512: lower data\.text\.length"):
        seeded("text-transformer")(tokens(600, length=600))
    with pytest.raises(UserError, match="takes tokens"):
        seeded("text-mean")(torch.rand(2, 4))
    with pytest.raises(UserError, match=r"needs transformers|config\.json is missing"):
        build_net("hf:nowhere", num_classes=2, inputs=10)
