"""What ADA does to images: blits, geometry and colour ("bgc"), each with probability p and drawn for each image.

All are linear in the image: geometry is resampled at twice the resolution between orthogonal sym6 filters, as matrix
products and a bilinear look-up, so that gradients of gradients (R1) are exact, and no change at all is the identity.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

# Daubechies' least asymmetric wavelet with six vanishing moments
SYM6 = (
    0.015404109327027373, 0.0034907120842174702, -0.11799011114819057, -0.048311742585633, 0.4910559419267466,
    0.787641141030194, 0.3379294217276218, -0.07263752278646252, -0.021060292512300564, 0.04472490177066578,
    0.0017677118642428036, -0.007800708325034148,
)  # fmt: skip
TAPS = torch.tensor(SYM6, dtype=torch.float64) / sum(SYM6)
CENTRE = 5  # tap about which the filter lies


def augmented(images: Tensor, p: float, chance: torch.Generator) -> Tensor:
    """Images (N, 1 or 3, S, S) in [-1, 1], each changed with probability ``p`` in each way."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or images.shape[2] != images.shape[3]:
        raise ValueError(f"images are {tuple(images.shape)}: ADA takes square grey or RGB ones, (N, 1 or 3, S, S)")
    if p == 0:
        return images
    where, colours = backwards(len(images), images.shape[-1], p, chance), recolouring(len(images), p, chance)
    return recoloured(resampled(images, where), colours.to(images))


def backwards(count: int, side: int, p: float, chance: torch.Generator) -> Tensor:
    """(N, 3, 3): from a pixel's place after the changes, about the centre, back to where it came from."""
    chosen = _Chosen(count, chance)
    turn = 1 - math.sqrt(1 - p)  # two rotations, of which at least one with probability p
    flip = 1 - 2 * chosen(p, chosen.uniform(0, 2).floor())
    quarters = chosen(p, chosen.uniform(0, 4).floor())
    whole = [(chosen.uniform(-0.125, 0.125) * side).round() for _ in range(2)]
    shift = chosen(p, *whole)
    zoom = chosen(p, 2 ** chosen.normal(0.2), neutral=1.0)
    before = chosen(turn, chosen.uniform(-math.pi, math.pi))
    stretch = chosen(p, 2 ** chosen.normal(0.2), neutral=1.0)
    after = chosen(turn, chosen.uniform(-math.pi, math.pi))
    fraction = chosen(p, *(chosen.normal(0.125) * side for _ in range(2)))
    steps = [
        _scaling(1 / flip, torch.ones(count)), _rotation(-quarters * math.pi / 2), _shift(-shift),
        _scaling(1 / zoom, 1 / zoom), _rotation(-before), _scaling(1 / stretch, stretch), _rotation(-after),
        _shift(-fraction),
    ]  # fmt: skip
    found = steps[0]
    for step in steps[1:]:
        found = found @ step
    return found


def recolouring(count: int, p: float, chance: torch.Generator) -> Tensor:
    """(N, 4, 4) on homogeneous RGB: brightness, contrast, luma flip, hue, saturation, in this order."""
    chosen, eye, grey = _Chosen(count, chance), torch.eye(4), torch.tensor([1.0, 1.0, 1.0, 0.0]) / math.sqrt(3)
    along, last = torch.outer(grey, grey), torch.diag(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    across = eye - along - last
    brightness = chosen(p, chosen.normal(0.2))
    contrast = chosen(p, 2 ** chosen.normal(0.5), neutral=1.0)
    flipped = chosen(p, chosen.uniform(0, 2).floor())
    hue = chosen(p, chosen.uniform(-math.pi, math.pi))
    saturation = chosen(p, 2 ** chosen.normal(1.0), neutral=1.0)
    lift = torch.tensor([[0.0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]])
    round_grey = torch.tensor([[0.0, -1, 1, 0], [1, 0, -1, 0], [-1, 1, 0, 0], [0, 0, 0, 0]]) / math.sqrt(3)

    def each(x: Tensor) -> Tensor:
        return x[:, None, None]

    found = eye + each(brightness) * lift
    found = (each(contrast) * (eye - last) + last) @ found
    found = (eye - 2 * each(flipped) * along) @ found
    found = (along + last + each(hue.cos()) * across + each(hue.sin()) * round_grey) @ found  # Rodrigues
    return (along + last + each(saturation) * across) @ found


def recoloured(images: Tensor, colours: Tensor) -> Tensor:
    """Grey images get the mean of what the channels would."""
    matrix, level = colours[:, :3, :3], colours[:, :3, 3:]
    if images.shape[1] == 1:
        matrix, level = matrix.sum(2, keepdim=True).mean(1, keepdim=True), level.mean(1, keepdim=True)
    return (matrix @ images.flatten(2) + level).view_as(images)


def resampled(images: Tensor, where: Tensor) -> Tensor:
    """Images (N, C, S, S) with the content of each pixel taken from ``where`` (N, 3, 3), mirrored at the borders."""
    n, _, side, _ = images.shape
    middle, reach = (side - 1) / 2, len(TAPS) - 1
    dtype = torch.promote_types(images.dtype, torch.float32)  # its places are right to 1e-5 of a pixel
    at = torch.arange(-CENTRE, 2 * side - 1 + reach - CENTRE, dtype=dtype, device=images.device) / 2 - middle  # (T,)
    y, x = torch.meshgrid(at, at, indexing="ij")
    place = where.to(at) @ torch.stack([x, y, torch.ones_like(x)]).flatten(1)  # (N, 3, T T), on a fine grid
    margin = min(side - 1, max(0, math.ceil(_farthest(where, side) - middle)) + 1)
    up, down = (m.to(images) for m in (_finer(side, margin), _coarser(side)))
    fine = up @ images @ up.T  # (N, C, F, F)
    seen = _look_up(fine, *(2 * (place[:, i] + middle + margin) for i in range(2))).view(n, -1, len(at), len(at))
    return down @ seen @ down.T


def _farthest(where: Tensor, side: int) -> float:
    """From the centre along either axis, of all that is looked up: at a corner. Known without asking the device."""
    low, high = -(side - 1 + CENTRE) / 2, (side - 1 + len(TAPS) - 1 - CENTRE) / 2
    corners = where.new_tensor([[low, low, high, high], [low, high, low, high], [1, 1, 1, 1]])
    return float((where @ corners)[:, :2].abs().max())


def _look_up(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Bilinear values (N, C, P) at places (N, P) in pixels, 0 outside."""
    side, flat = images.shape[-1], images.flatten(2)
    found = images.new_zeros(*flat.shape[:2], x.shape[1])
    left, top = x.floor(), y.floor()
    for column, across in ((left, 1 - (x - left)), (left + 1, x - left)):
        for row, along in ((top, 1 - (y - top)), (top + 1, y - top)):
            inside = (column >= 0) & (column < side) & (row >= 0) & (row < side)
            index = row.clamp(0, side - 1).long() * side + column.clamp(0, side - 1).long()
            weight = (across * along * inside).to(images)
            found = found + weight[:, None] * flat.gather(2, index[:, None].expand(-1, images.shape[1], -1))
    return found


@lru_cache(maxsize=64)
def _finer(side: int, margin: int) -> Tensor:
    """(2 (S + 2 margin), S): pixels mirrored at the borders, zeros between them, then the filter, times 2."""
    matrix = torch.zeros(2 * (side + 2 * margin), side, dtype=torch.float64)
    period = max(1, 2 * (side - 1))
    for row in range(len(matrix)):
        for k, tap in enumerate(TAPS.tolist()):
            even, odd = divmod(row - 2 * margin + CENTRE - k, 2)
            if not odd:
                folded = even % period
                matrix[row, min(folded, period - folded) if side > 1 else 0] += 2 * tap
    return matrix


@lru_cache(maxsize=8)
def _coarser(side: int) -> Tensor:
    """(S, 2 S + 10): the transposed filter at every second place."""
    matrix = torch.zeros(side, 2 * side - 2 + len(TAPS), dtype=torch.float64)
    for row in range(side):
        matrix[row, 2 * row : 2 * row + len(TAPS)] = TAPS
    return matrix


class _Chosen:
    """Numbers (N,) for those images that are chosen, a neutral one for the others."""

    def __init__(self, count: int, chance: torch.Generator) -> None:
        self.count, self.chance = count, chance

    def uniform(self, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(self.count, generator=self.chance)

    def normal(self, std: float) -> Tensor:
        return std * torch.randn(self.count, generator=self.chance)

    def __call__(self, p: float, *values: Tensor, neutral: float = 0.0) -> Tensor:
        chosen = torch.rand(self.count, generator=self.chance) < p
        found = [torch.where(chosen, value, torch.full_like(value, neutral)) for value in values]
        return found[0] if len(found) == 1 else torch.stack(found, 1)


def _matrices(rows: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def _scaling(x: Tensor, y: Tensor) -> Tensor:
    o, one = torch.zeros_like(x), torch.ones_like(x)
    return _matrices([[x, o, o], [o, y, o], [o, o, one]])


def _rotation(angle: Tensor) -> Tensor:
    c, s, o, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    return _matrices([[c, -s, o], [s, c, o], [o, o, one]])


def _shift(by: Tensor) -> Tensor:
    x, y = by.unbind(1)
    o, one = torch.zeros_like(x), torch.ones_like(x)
    return _matrices([[one, o, x], [o, one, y], [o, o, one]])
