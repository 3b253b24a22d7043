"""Networks for tokens: int64 (N, L), 0 being padding at the end. ``words`` is the size of the vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.errors import UserError
from evenhand.nets.heads import HeadedNet, HeadKind, make_head

LONGEST = 512


class TextTransformer(HeadedNet):
    """Word and position vectors, ``depth`` pre-norm blocks of attention and MLP, the mean over the words.

    One head for every 32 of ``width``. Padding is neither attended to nor averaged, so it changes nothing.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        words: int,
        head: HeadKind = "linear",
        width: int = 128,
        depth: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(num_features=width)
        if width % 32:
            raise ValueError(f"width is {width}; a text-transformer has heads of 32, give a multiple of it")
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.positions = nn.Parameter(torch.empty(LONGEST, width))
        self.blocks = nn.ModuleList(Block(width, width // 32, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.fc = make_head(head, width, num_classes)
        for weight in (self.words.weight, self.positions):
            nn.init.normal_(weight, std=0.02)

    def features(self, x: Tensor) -> Tensor:
        x, real = unpadded(x)
        if x.shape[1] > LONGEST:
            raise UserError(f"texts of {x.shape[1]} tokens; a text-transformer takes {LONGEST}: lower data.text.length")
        h = self.dropout(self.words(x) + self.positions[: x.shape[1]])  # (N, L, d)
        for block in self.blocks:
            h = block(h, real)
        return masked_mean(self.norm(h), real)


class Block(nn.Module):
    """``h + attention(norm(h))``, then ``h + mlp(norm(h))``."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.odds = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, real: Tensor) -> Tensor:
        h = h + self.dropout(self.attention(self.norm1(h), real))
        return h + self.dropout(self.mlp(self.norm2(h)))

    def attention(self, h: Tensor, real: Tensor) -> Tensor:
        n, length, width = h.shape
        q, k, v = self.qkv(h).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (N, heads, L, d / heads)
        odds = self.odds if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None], dropout_p=odds)
        return self.proj(out.transpose(1, 2).reshape(n, length, width))


class TextMean(HeadedNet):
    """The mean of word vectors and one hidden layer: the order of words is lost, the speed is unmatched."""

    def __init__(
        self, *, num_classes: int, words: int, head: HeadKind = "linear", width: int = 128, dropout: float = 0.5
    ) -> None:
        super().__init__(num_features=width)
        self.words = nn.Embedding(words, width, padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.3)  # words without labels stay there: less noise than torch's 1
        self.hidden = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout))
        self.fc = make_head(head, width, num_classes)

    def features(self, x: Tensor) -> Tensor:
        x, real = unpadded(x)
        return self.hidden(masked_mean(self.words(x), real))


def unpadded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens without the columns that are padding in all texts, and where words are (N, L).

    The first place always counts as a word, so that an empty text has a mean.
    """
    if x.dtype != torch.int64:
        raise UserError(f"a text network takes tokens (int64), not {x.dtype}: leave out what mixes samples, as mixup")
    longest = int((x != 0).sum(1).max().clamp(min=1))
    x = x[:, :longest]
    real = x != 0
    real[:, 0] = True
    return x, real


def masked_mean(h: Tensor, real: Tensor) -> Tensor:
    """Mean over the words, (N, L, d) -> (N, d)."""
    weight = real.unsqueeze(2).to(h.dtype)
    return (h * weight).sum(1) / weight.sum(1)
