"""The vision transformer of DeiT with timm's parameter names, so that its files load; distilled, it has two heads."""

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

    def _split(self, x: Tensor) -> Tensor:
        """Queries, keys and values, (3, N, h, L, d)."""
        return self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._split(x)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def matrices(self, x: Tensor) -> Tensor:
        """How much each token takes from each other, (N, h, L, L), rows summing to 1; the fused path never has them."""
        q, k, _ = self._split(x)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


class Mlp(nn.Module):
    """Two layers, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    """One learnt factor for each number of a token, small at first (DeiT III)."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """Attention, then the MLP, each on normalised input and added to it; in training a sample may skip either."""

    def __init__(self, width: int, heads: int, skip: float, scale: float | None = None) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(width)
        self.ls1, self.ls2 = (nn.Identity() if scale is None else LayerScale(width, scale) for _ in range(2))
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._some(self.ls1(self.attn(self.norm1(x))))
        return x + self._some(self.ls2(self.mlp(self.norm2(x))))

    def _some(self, x: Tensor) -> Tensor:
        """Stochastic depth: nothing for a share ``skip`` of the samples, the rest scaled to the same mean."""
        if not self.training or not self.skip:
            return x
        kept = torch.rand(len(x), 1, 1, device=x.device) >= self.skip
        return x * (kept / (1 - self.skip)).to(x.dtype)


class PatchEmbed(nn.Module):
    """An image (N, C, H, W) as a row of patches (N, H W / patch^2, width)."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(HeadedNet):
    """Patches and a class token through ``depth`` blocks; the features are the class token's, normalised.

    ``distilled`` adds a second token with a head of its own, ``head_dist``: ``heads(x)`` gives the logits of both, the
    network itself their average, while ``features`` and ``head`` remain the class token's. Positions are learned for
    images of ``size`` and resized for others. ``drop_path`` is the share of samples that skip attention, or
    MLP, of the last block; it grows linearly from none at the first. ``layer_scale`` multiplies what a block adds by
    learnt factors that start there.

    >>> net = VisionTransformer(10, size=32, patch=4, width=64, depth=2, heads=4, distilled=True)
    >>> [logits.shape for logits in net.heads(torch.zeros(2, 3, 48, 32))]
    [torch.Size([2, 10]), torch.Size([2, 10])]
    """

    dist_token: nn.Parameter | None
    head_dist: nn.Linear | CosineHead | None

    def __init__(
        self,
        num_classes: int,
        *,
        size: int = 224,
        patch: int = 16,
        channels: int = 3,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        distilled: bool = False,
        head: HeadKind = "linear",
        drop_path: float = 0.0,
        layer_scale: float | None = None,
    ) -> None:
        super().__init__(num_features=width)
        if width % heads:
            raise ValueError(f"width is {width}; give a multiple of {heads}, the number of attention heads")
        if size % patch:
            raise ValueError(f"size is {size}; give a multiple of {patch}, the side of a patch")
        if not 0 <= drop_path < 1:
            raise ValueError(f"drop_path is {drop_path}; give a share from 0 to below 1, such as 0.1")
        self.patch, self.grid = patch, size // patch
        self.patch_embed = PatchEmbed(channels, width, patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.dist_token = nn.Parameter(torch.empty(1, 1, width)) if distilled else None
        self.pos_embed = nn.Parameter(torch.empty(1, self.special + self.grid**2, width))
        skips = torch.linspace(0, drop_path, depth, device="cpu").tolist()
        self.blocks = nn.Sequential(*(Block(width, heads, skip, layer_scale) for skip in skips))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self._modules["head"] = make_head(head, width, num_classes)
        self.head_dist = make_head(head, width, num_classes) if distilled else None
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        for token in (self.cls_token, self.dist_token, self.pos_embed):
            if token is not None:
                nn.init.trunc_normal_(token, std=0.02)

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
        if name == "head":
            self._modules["head"] = cast(nn.Module, value)  # timm's name, not torchvision's
        else:
            super().__setattr__(name, value)

    @property
    def head(self) -> nn.Linear | CosineHead:
        return cast("nn.Linear | CosineHead", self._modules["head"])

    @property
    def special(self) -> int:
        """Tokens before the patches."""
        return 1 if self.dist_token is None else 2

    def tokens(self, x: Tensor) -> Tensor:
        """(N, special + patches, width) after the last block: class token, distillation token, patches."""
        return self.norm(self.blocks(self._placed(x)))

    def layers(self, x: Tensor) -> list[Tensor]:
        """The tokens after each block, (N, L, width) each, before the last norm."""
        x, found = self._placed(x), []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        return found

    def attentions(self, x: Tensor) -> list[Tensor]:
        """Every block's attention matrices, (N, heads, L, L) each."""
        x, found = self._placed(x), []
        for block in self.blocks:
            found.append(cast(Block, block).attn.matrices(cast(Block, block).norm1(x)))
            x = block(x)
        return found

    def _placed(self, x: Tensor) -> Tensor:
        """Tokens and patches with their positions."""
        (N, _, H, W), p = x.shape, self.patch
        if H % p or W % p:
            raise ValueError(f"images of {H} x {W} cannot be cut into patches of {p}: set data.size to a multiple")
        patches = self.patch_embed(x)
        first = [t.expand(N, -1, -1).to(patches.dtype) for t in (self.cls_token, self.dist_token) if t is not None]
        return torch.cat([*first, patches], 1) + resized(self.pos_embed, self.special, H // p, W // p)

    def features(self, x: Tensor) -> Tensor:
        return self.tokens(x)[:, 0]

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the class token and of the distillation token, (N, K) each."""
        return self.read(self.tokens(x))

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The same of ``tokens`` (N, L, width) after the last block."""
        if self.head_dist is None:
            raise ValueError("this network has one head: build it with distilled=True")
        return self.head(tokens[:, 0]), self.head_dist(tokens[:, 1])

    def forward(self, x: Tensor) -> Tensor:
        if self.head_dist is None:
            return self.head(self.features(x))
        return torch.stack(self.heads(x)).mean(0)  # of logits, not of probabilities

    def fitted(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Positions on this network's grid, whatever the file's was."""
        special = 2 if "dist_token" in state else 1
        if "pos_embed" not in state or not _is_square(state["pos_embed"].shape[1] - special):
            return state
        return {**state, "pos_embed": resized(state["pos_embed"], special, self.grid, self.grid)}


def resized(positions: Tensor, special: int, rows: int, columns: int) -> Tensor:
    """Positions (1, special + side^2, d) for another grid, bicubic; those of the special tokens stay."""
    side = round((positions.shape[1] - special) ** 0.5)
    if (rows, columns) == (side, side):
        return positions
    grid = positions[:, special:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
    moved = F.interpolate(grid, (rows, columns), mode="bicubic", align_corners=False)
    return torch.cat([positions[:, :special], moved.flatten(2).transpose(1, 2)], 1)


def _is_square(count: int) -> bool:
    return count > 0 and round(count**0.5) ** 2 == count
