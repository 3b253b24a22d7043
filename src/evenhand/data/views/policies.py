"""RandAugment and AutoAugment on whole batches.

Each sample draws its own operations on a CPU generator; the batch is then sorted by operation and every
operation runs once, on all samples that drew it. The five geometric ones run together, as one warp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evenhand.data.views.imageops import (
    affine,
    autocontrast,
    brightness,
    colour,
    contrast,
    equalize,
    posterize,
    sharpness,
    solarize,
    solarize_add,
)
from evenhand.data.views.smooth import affine_bicubic

WARPS = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")


def set_warp(matrix: Tensor, name: str, value: Tensor, h: int, w: int) -> None:
    """Write a warp into identity maps (N, 2, 3); values are degrees, slopes, or shares of the side."""
    match name:
        case "rotate":
            cos, sin = value.deg2rad().cos(), value.deg2rad().sin()
            x, y = w / 2, h / 2
            matrix[:, 0] = torch.stack([cos, -sin, x - cos * x + sin * y], 1)
            matrix[:, 1] = torch.stack([sin, cos, y - sin * x - cos * y], 1)
        case "shear-x":
            matrix[:, 0, 1] = value
        case "shear-y":
            matrix[:, 1, 0] = value
        case "translate-x":
            matrix[:, 0, 2] = value * w
        case "translate-y":
            matrix[:, 1, 2] = value * h


PIXELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": lambda x, _: x,
    "autocontrast": lambda x, _: autocontrast(x),
    "equalize": lambda x, _: equalize(x),
    "invert": lambda x, _: 255 - x,
    "brightness": brightness,
    "colour": colour,
    "contrast": contrast,
    "sharpness": sharpness,
    "posterize": posterize,
    "solarize": solarize,
    "solarize-add": solarize_add,
}
NAMES = (*PIXELS, *WARPS)  # warps last, so that sorting a batch by operation leaves them side by side


def apply(x: Tensor, op: Tensor, value: Tensor, fill: int | Sequence[int] = 0) -> Tensor:
    """Operation ``NAMES[op[i]]`` with ``value[i]`` on sample i; ``op`` and ``value`` (N,) on the CPU.

    Warps take the nearest pixel and fill with a grey level; where ``fill`` is a colour, they are bicubic.
    """
    order = op.argsort()
    counts = torch.bincount(op, minlength=len(NAMES)).tolist()
    here = order.to(x.device)
    values = value.to(x.device)[here].split(counts)
    images = x.index_select(0, here).split([*counts[: len(PIXELS)], sum(counts[len(PIXELS) :])])
    done = [
        operation(image, v) for operation, image, v in zip(PIXELS.values(), images, values, strict=False) if len(image)
    ]
    if len(images[-1]):
        matrix = torch.eye(2, 3, device=x.device).repeat(len(images[-1]), 1, 1)
        parts = matrix.split(counts[len(PIXELS) :])
        for name, part, v in zip(WARPS, parts, values[len(PIXELS) :], strict=True):
            set_warp(part, name, v, *x.shape[-2:])
        done.append(
            affine(images[-1], matrix, fill) if isinstance(fill, int) else affine_bicubic(images[-1], matrix, fill)
        )
    return torch.cat(done).index_select(0, here.argsort())


# FixMatch's fourteen; posterize is drawn in whole bits, translations are fractions of the side.
RANDAUGMENT: dict[str, tuple[float, float]] = {
    "autocontrast": (0, 0),
    "brightness": (0.05, 0.95),
    "colour": (0.05, 0.95),
    "contrast": (0.05, 0.95),
    "equalize": (0, 0),
    "identity": (0, 0),
    "posterize": (4, 9),
    "rotate": (-30, 30),
    "sharpness": (0.05, 0.95),
    "shear-x": (-0.3, 0.3),
    "shear-y": (-0.3, 0.3),
    "solarize": (0, 256),
    "translate-x": (-0.3, 0.3),
    "translate-y": (-0.3, 0.3),
}
_RAND_OPS = torch.tensor([NAMES.index(name) for name in RANDAUGMENT])
_RAND_RANGES = torch.tensor(list(RANDAUGMENT.values()), dtype=torch.float32)


def rand_augment(x: Tensor, generator: torch.Generator, *, draws: int = 3, fill: int = 0) -> Tensor:
    """``draws`` operations with replacement per sample, each magnitude uniform in its range."""
    choice = torch.randint(len(RANDAUGMENT), (draws, len(x)), generator=generator)
    low, high = _RAND_RANGES[choice].unbind(-1)
    value = low + (high - low) * torch.rand(choice.shape, generator=generator)
    for op, v in zip(_RAND_OPS[choice], value, strict=True):
        x = apply(x, op, v, fill)
    return x


# Published CIFAR-10 policy: two of (operation, probability, level 0..9); one row is drawn per sample.
AUTOAUGMENT_CIFAR: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate-x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear-y", 0.5, 8), ("translate-y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear-y", 0.2, 7), ("posterize", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate-x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate-y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("colour", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate-y", 0.9, 9), ("translate-y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate-y", 0.7, 9), ("autocontrast", 0.9, 1)),
)


def magnitude(name: str, level: int, sign: int = 1) -> float:
    """Value of an AutoAugment level, 0 to 9; ``sign`` matters where the range has two sides."""
    share = level / 9
    match name:
        case "posterize":
            return 8 - round(4 * share)
        case "solarize":
            return 256 * (1 - share)
        case "rotate":
            return sign * 30 * share
        case "shear-x" | "shear-y":
            return sign * 0.3 * share
        case "translate-x" | "translate-y":
            return sign * 150 / 331 * share
        case _:
            return 1 + sign * 0.9 * share


_AUTO_OPS = torch.tensor([[NAMES.index(name) for name, _, _ in row] for row in AUTOAUGMENT_CIFAR])
_AUTO_ODDS = torch.tensor([[odds for _, odds, _ in row] for row in AUTOAUGMENT_CIFAR])
_AUTO_VALUES = torch.tensor(
    [[[magnitude(name, level, s) for s in (-1, 1)] for name, _, level in row] for row in AUTOAUGMENT_CIFAR]
)


def auto_augment(x: Tensor, generator: torch.Generator, *, fill: int = 128) -> Tensor:
    """The CIFAR-10 AutoAugment policy: one of 25 pairs per sample, each half with its own odds and sign."""
    row = torch.randint(len(AUTOAUGMENT_CIFAR), (len(x),), generator=generator)
    lucky = torch.rand(len(x), 2, generator=generator) < _AUTO_ODDS[row]
    sign = torch.randint(2, (len(x), 2), generator=generator)
    op = torch.where(lucky, _AUTO_OPS[row], NAMES.index("identity"))
    value = _AUTO_VALUES[row].gather(2, sign[..., None])[..., 0]
    for half in range(2):
        x = apply(x, op[:, half], value[:, half], fill)
    return x
