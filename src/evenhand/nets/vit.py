"""The vision transformer with timm's parameter names (``vit_base_patch16_224``), so that its files load."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.nets.heads import CosineHead, HeadedNet, HeadKind, make_head


class Attention(nn.Module):
    """Multi-head self-attention: ``softmax(q k' / sqrt(d)) v`` for each head, then a projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        N, L, D = x.shape
        q, k, v = self.qkv(x).view(N, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)  # (N, h, L, d) each
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(N, L, D))


class Mlp(nn.Module):
    """Two layers, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Attention, then the MLP, each on normalised input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    """An image (N, C, H, W) as a row of patches (N, H W / patch^2, width)."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(HeadedNet):
    """Patches and a class token through ``depth`` blocks; the features are the class token's, normalised.

    Positions are learned for images of ``size``; for others they are interpolated. An attention head has
    ``head_width`` of the ``width`` numbers.
    """

    def __init__(
        self,
        size: int,
        patch: int,
        depth: int,
        head_width: int = 64,
        *,
        num_classes: int,
        channels: int = 3,
        head: HeadKind = "linear",
        width: int = 768,
    ) -> None:
        super().__init__(num_features=width)
        heads = max(1, width // head_width)
        if width % heads:
            raise ValueError(f"width is {width}; give a multiple of {heads}, the number of attention heads")
        self.patch, self.grid = patch, size // patch
        self.patch_embed = PatchEmbed(channels, width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.grid**2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self._modules["head"] = make_head(head, width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
        if name == "head":
            self._modules["head"] = cast(nn.Module, value)  # timm's name, not torchvision's
        else:
            super().__setattr__(name, value)

    @property
    def head(self) -> nn.Linear | CosineHead:
        return cast("nn.Linear | CosineHead", self._modules["head"])

    def tokens(self, x: Tensor) -> Tensor:
        """(N, 1 + patches, width) after the last block: the class token first."""
        rows, columns = x.shape[-2] // self.patch, x.shape[-1] // self.patch
        patches = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1).to(patches.dtype), patches], 1)
        return self.norm(self.blocks(x + self._positions(rows, columns)))

    def _positions(self, rows: int, columns: int) -> Tensor:
        if (rows, columns) == (self.grid, self.grid):
            return self.pos_embed
        grid = self.pos_embed[:, 1:].unflatten(1, (self.grid, self.grid)).permute(0, 3, 1, 2)
        moved = F.interpolate(grid, (rows, columns), mode="bicubic", align_corners=False)
        return torch.cat([self.pos_embed[:, :1], moved.flatten(2).transpose(1, 2)], 1)

    def features(self, x: Tensor) -> Tensor:
        return self.tokens(x)[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
