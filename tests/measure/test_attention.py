"""Attention distance, rollout, rank and entropy on cases that can be worked out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from evenhand.measure.attention import attention_distance, entropies, feature_rank, rollout
from evenhand.nets import build_net
from helpers import seeded


def attentions(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=seeded()).softmax(-1)


def test_distance_of_identity_and_uniform_attention() -> None:
    """Spec 05, 10.14."""
    identity = torch.eye(198).expand(2, 3, 198, 198)
    assert attention_distance(identity, 2, 14, 14, 16).tolist() == [0, 0, 0]
    uniform = torch.full((1, 1, 196, 196), 1 / 196)
    assert attention_distance(uniform, 0, 14, 14, 16).item() == pytest.approx(116.49, abs=0.01)


def test_distance_written_out_without_special_tokens() -> None:
    found = attentions(2, 3, 2 + 6, 2 + 6)
    want = [0.0] * 3
    for n in range(2):
        for h in range(3):
            for i in range(6):
                for j in range(6):
                    apart = math.hypot(i // 3 - j // 3, i % 3 - j % 3) * 4
                    want[h] += float(found[n, h, 2 + i, 2 + j]) * apart / 12
    assert attention_distance(found, 2, 2, 3, 4).tolist() == pytest.approx(want, rel=1e-5)
    with pytest.raises(ValueError, match="among 6 patches, not 3 x 3"):
        attention_distance(found, 2, 3, 3, 4)


def test_rollout_is_the_product_of_halved_attention() -> None:
    """Spec 05, 10.15: identity stays identity; rows sum to 1; the last block comes first."""
    eye = torch.eye(5).expand(1, 2, 5, 5)
    torch.testing.assert_close(rollout([eye, eye])[0], torch.eye(5))
    first, second = attentions(2, 3, 5, 5), attentions(2, 3, 5, 5).flip(-1)
    got = rollout([first, second])
    torch.testing.assert_close(got.sum(-1), torch.ones(2, 5))
    a, b = (0.5 * block.mean(1) + 0.5 * torch.eye(5) for block in (first, second))
    torch.testing.assert_close(got, b @ a)
    assert not torch.allclose(got, a @ b)
    with pytest.raises(ValueError, match="attentions is empty"):
        rollout([])


def test_rank_of_a_subspace_and_of_a_geometric_spectrum() -> None:
    """Spec 05, 10.13."""
    basis = torch.linalg.qr(torch.randn(20, 20, generator=seeded(), dtype=torch.float64)).Q
    flat = torch.randn(300, 4, generator=seeded(1), dtype=torch.float64) @ basis[:4]
    assert feature_rank(flat, flat[:50]) <= 4
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    rows = torch.cat([s * (2.0 ** -(i + 1)) ** 0.5 * basis[i : i + 1] for i in range(20) for s in signs])
    assert feature_rank(rows, rows) == 7  # 2^-7 is the first below a hundredth
    assert feature_rank(rows, rows, residual=0.3) == 2


def test_rank_of_features_with_a_common_offset() -> None:
    chance = seeded(2)
    basis = torch.linalg.qr(torch.randn(16, 16, generator=chance, dtype=torch.float64)).Q
    every = torch.randn(400, 7, generator=chance, dtype=torch.float64) @ basis[:7] + 100 * basis[15]
    assert feature_rank(every, every[:100], residual=1e-6) == 7
    assert feature_rank(every, every[:100], residual=1e-6, centre_both=False) > 7
    same = torch.ones(5, 3)
    assert feature_rank(same, same) == 0
    with pytest.raises(ValueError, match="give \\(N, d\\) and \\(n, d\\)"):
        feature_rank(torch.zeros(3, 2), torch.zeros(3, 4))


def test_rank_is_the_least_that_leaves_so_little() -> None:
    chance = seeded(3)
    every = torch.randn(100, 8, generator=chance) * torch.tensor([8.0, 4, 2, 1, 0.5, 0.2, 0.1, 0.05])
    some = every[:30]
    centred = (every - every.mean(0)).double()
    right = torch.linalg.svd(centred, full_matrices=False).Vh
    mine = some.double() - every.mean(0).double()
    for k in range(1, 9):
        rest = (mine - mine @ right[:k].T @ right[:k]).square().sum() / mine.square().sum()
        if rest <= 0.01:
            break
    assert feature_rank(every, some) == k


def test_entropy_of_even_and_sure_answers() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0]])
    assert entropies(logits).tolist() == pytest.approx([math.log(4), 0.0], abs=1e-6)


def test_layers_end_where_tokens_begin() -> None:
    net = build_net("vit-tiny", num_classes=3, width=16, depth=3, heads=2, distilled=True).eval()
    x = torch.randn(2, 3, 32, 32, generator=seeded())
    layers = net.layers(x)  # type: ignore[operator]
    assert [tuple(part.shape) for part in layers] == [(2, 66, 16)] * 3
    torch.testing.assert_close(net.norm(layers[-1]), net.tokens(x))  # type: ignore[operator]
