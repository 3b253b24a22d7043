"""Batched augmentation: uint8 (N, C, H, W) in, normalised float32 out, on the device of the images.

Steps are functions ``(x, generator, ...) -> x`` on uint8 batches, a quarter of the memory of floats; only the
last act, normalising, makes floats. Each sample draws its own parameters, on a CPU generator, so that CPU and
GPU see the same images. Grey images pass every step; colour steps leave them alone.

>>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
>>> train = build(["crop", "flip"], size=32, mean=(0.5,) * 3, std=(0.25,) * 3)
>>> train(images, torch.Generator().manual_seed(0)).shape
torch.Size([8, 3, 32, 32])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from evenhand.data.sources.frames import BOXES, Cuts, Interpolation
from evenhand.data.views import deit, imageops
from evenhand.data.views.fixed import centre_crop, is_fixed, resize
from evenhand.data.views.imageops import luma, pick
from evenhand.data.views.policies import auto_augment, rand_augment
from evenhand.data.views.view import View
from evenhand.errors import did_you_mean

Step = Callable[[Tensor, Generator], Tensor]

GREY = (125, 123, 114)  # CIFAR's mean colour, the filling of spec 06's cutout

PRESETS: dict[str, tuple[str, ...]] = {
    "none": (),
    "weak": ("crop", "flip"),
    "strong": ("randaugment", "cutout", "crop", "flip"),
    "imagenet": ("resized-crop", "flip", "jitter"),
    "deit": ("resized-crop-bicubic", "flip", "randaugment-deit", "erase-noise"),
    "three-augment": ("crop-reflect", "flip", "three-augment", "jitter-0.3"),
}
FINISHING: dict[str, Step] = {"erase-noise": deit.erase_noise}  # steps on normalised images


class Pipeline(View):
    """Steps in order, then ``(x / 255 - mean) / std``, then ``finish`` on floats; without steps, that of evaluation."""

    def __init__(
        self, steps: Sequence[Step], mean: Sequence[float], std: Sequence[float], finish: Sequence[Step] = ()
    ) -> None:
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(f"mean {tuple(mean)}, std {tuple(std)}: give one value per channel, std above 0")
        self.steps, self.finish = tuple(steps), tuple(finish)
        self.cuts = next(filter(None, map(_cuts, steps)), None)
        self.reframes, self.mirrors = self.cuts is not None, any(map(_mirrors, steps))
        deviation = torch.tensor(std).view(-1, 1, 1)
        self.scale = 1 / (255 * deviation)
        self.shift = -torch.tensor(mean).view(-1, 1, 1) / deviation

    def __call__(self, x: Tensor, chance: Generator | None = None) -> Tensor:
        if x.dtype != torch.uint8 or x.shape[1] != len(self.scale):
            raise ValueError(
                f"images are {x.dtype} {tuple(x.shape)}; this pipeline takes uint8 (N, {len(self.scale)}, H, W)"
            )
        if chance is None and (self.finish or not all(map(is_fixed, self.steps))):
            raise ValueError("chance is None; random steps need a torch.Generator on the CPU")
        for step in self.steps:
            x = step(x, chance)  # type: ignore[arg-type]
        if self.scale.device != x.device:  # once: a copy at each step would wait for the device
            self.scale, self.shift = self.scale.to(x.device), self.shift.to(x.device)
        x = x.float().mul_(self.scale).add_(self.shift)
        for step in self.finish:
            x = step(x, chance)  # type: ignore[arg-type]
        return x

    def translated(self, x: Tensor, other: Pipeline) -> Tensor:
        """What this view has normalised, as the other would have."""
        ratio = (other.scale / self.scale.to(other.scale.device)).to(x.device)
        return x * ratio + (other.shift.to(x.device) - self.shift.to(x.device) * ratio)

    def unboxed(self) -> Pipeline:
        mine = copy(self)
        first = next((at for at, step in enumerate(self.steps) if _cuts(step)), len(self.steps))
        mine.steps = self.steps[:first] + self.steps[first + 1 :]
        return mine

    def normalised_as(self, other: Pipeline) -> Pipeline:
        mine = copy(self)
        mine.scale, mine.shift = other.scale, other.shift
        return mine


def build(
    names: Sequence[str] | str, *, size: int, mean: Sequence[float], std: Sequence[float],
    padding: int = 4, reflect: bool = False, jitter: Sequence[float] = (0.4, 0.4, 0.4, 0.0),
    scale: tuple[float, float] = BOXES[0], interpolation: Interpolation = "bilinear", enlarged: bool = False,
) -> Pipeline:  # fmt: skip
    """A pipeline from step names, applied in the order given, or from one preset's name.

    ``enlarged``: the images are smaller than ``size``. A step that resizes brings them there; without one, training
    resizes them whole, and evaluation (no steps) to 8/7 of ``size``, of which it takes the centre.
    """
    known: dict[str, Step] = {
        "crop": partial(random_crop, size=size, padding=padding, reflect=reflect),
        "flip": horizontal_flip,
        "centre-crop": partial(centre_crop, size=size),
        "resized-crop": partial(resized_crop, size=size, scale=scale, ratio=BOXES[1], interpolation=interpolation),
        "crop-reflect": partial(random_crop, size=size, padding=padding, reflect=True),
        "resized-crop-bicubic": partial(resized_crop, size=size, scale=scale, ratio=BOXES[1], interpolation="bicubic"),
        "resize": partial(resize, size=size),
        "jitter": partial(colour_jitter, amounts=tuple(jitter)),
        "jitter-0.3": partial(colour_jitter, amounts=(0.3, 0.3, 0.3, 0.0)),
        "three-augment": deit.three_augment,
        "randaugment-deit": partial(deit.increasing_augment, fill=[min(255, round(255 * m)) for m in mean]),
        "grayscale": grayscale,
        "blur": gaussian_blur,
        "cutout": cutout,
        "erase": partial(erase, mean=tuple(mean), std=tuple(std)),
        "randaugment": rand_augment,
        "autoaugment": auto_augment,
    }
    if isinstance(names, str):
        if names not in PRESETS:
            raise ValueError(f"no augmentation preset '{names}'; {did_you_mean(names, PRESETS)}")
        names = PRESETS[names]
    steps: list[Step] = []
    finish = [FINISHING[name] for name in names if name in FINISHING]
    if any(name in FINISHING for name in names[: len(names) - len(finish)]):
        raise ValueError(f"augmentation steps {', '.join(FINISHING)} change normalised images: name them last")
    if enlarged and not names:
        steps = [partial(resize, size=round(size * 8 / 7)), partial(centre_crop, size=size)]
    elif enlarged and not any(name.startswith("resize") for name in names):
        steps = [known["resize"]]
    for before, name in zip(["", *names], names[: len(names) - len(finish)], strict=False):
        if name not in known:
            raise ValueError(f"no augmentation step '{name}'; {did_you_mean(name, [*known, *FINISHING])}")
        if (before, name) == ("crop", "flip"):  # the crop reads its columns backwards: a flip for free
            steps[-1] = partial(random_crop, size=size, padding=padding, reflect=reflect, flip=True)
        else:
            steps.append(known[name])
    return Pipeline(steps, mean, std, finish)


def _cuts(step: Step) -> Cuts | None:
    if not (isinstance(step, partial) and step.func is resized_crop and "size" in step.keywords):
        return None
    how = dict(step.keywords)
    return Cuts(how.pop("size"), **how)


def _mirrors(step: Step) -> bool:
    return step is horizontal_flip or (isinstance(step, partial) and bool(step.keywords.get("flip")))


def random_crop(
    x: Tensor, generator: Generator, *, size: int, padding: int = 4, reflect: bool = False, flip: bool = False
) -> Tensor:
    """A ``size`` square anywhere in the padded (black or mirrored) image; ``flip`` mirrors half of them."""
    n, c, h, w = x.shape
    room = (h + 2 * padding - size, w + 2 * padding - size)
    if min(room) < 0 or (reflect and padding >= min(h, w)):
        raise ValueError(f"cannot crop {size} from {h}x{w} with padding {padding}; change size or padding")
    top, left = (torch.randint(r + 1, (n, 1), generator=generator) for r in room)
    ahead = torch.arange(size).expand(n, size)
    across = torch.where(_coin(n, 0.5, generator), ahead.flip(1), ahead) if flip else ahead
    row, column = top + ahead, left + across  # (N, size)
    if reflect:
        row, column = _mirror(row - padding, h), _mirror(column - padding, w)
    else:
        x = F.pad(x, (padding,) * 4)
        h, w = x.shape[-2:]
    # Whole rows first, as contiguous copies, then columns within them: faster than one gather of pixels.
    rows = (torch.arange(n * c).view(n, c, 1) * h + row[:, None]).flatten().to(x.device)
    taken = x.reshape(n * c * h, w).index_select(0, rows).view(n, c, size, w)
    return taken.gather(3, column.to(x.device)[:, None, None].expand(n, c, size, size))


def _mirror(index: Tensor, length: int) -> Tensor:
    return (length - 1) - ((length - 1) - index.abs()).abs()


def horizontal_flip(x: Tensor, generator: Generator, *, odds: float = 0.5) -> Tensor:
    return pick(_coin(len(x), odds, generator).view(-1, 1, 1, 1).to(x.device), x.flip(-1), x)


def resized_crop(
    x: Tensor, generator: Generator, *, size: int, scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3), interpolation: Interpolation = "bilinear",
) -> Tensor:  # fmt: skip
    """A random box of ``scale`` of the area and ``ratio`` of width to height, resized to a square."""
    return imageops.resample(x, _boxes(x, scale, ratio, generator), size, interpolation)


def colour_jitter(x: Tensor, generator: Generator, *, amounts: tuple[float, ...] = (0.4, 0.4, 0.4, 0.0)) -> Tensor:
    """Brightness, contrast, saturation by factors in [max(0, 1 - a), 1 + a]; hue by a turn in [-a, a].

    The order is random but shared by the batch: each image still sees every order equally often.
    """
    if len(amounts) != 4 or min(amounts) < 0 or amounts[3] > 0.5:
        raise ValueError(f"jitter is {amounts}; give brightness, contrast, saturation >= 0, hue in [0, 0.5]")
    centre = (1, 1, 1, 0)
    adjust = (imageops.brightness, imageops.contrast, imageops.colour, imageops.shift_hue)
    for i in torch.randperm(4, generator=generator).tolist():
        if amounts[i] > 0:
            low = max(0.0, centre[i] - amounts[i]) if centre[i] else -amounts[i]
            x = adjust[i](x, _uniform(len(x), low, centre[i] + amounts[i], generator).to(x.device))
    return x


def grayscale(x: Tensor, generator: Generator, *, odds: float = 0.2) -> Tensor:
    return pick(_coin(len(x), odds, generator).view(-1, 1, 1, 1).to(x.device), luma(x).to(torch.uint8), x)


def gaussian_blur(x: Tensor, generator: Generator, *, low: float = 0.1, high: float = 2.0) -> Tensor:
    """Blur with sigma uniform in [low, high] pixels."""
    return imageops.blur(x, _uniform(len(x), low, high, generator).to(x.device))


def cutout(
    x: Tensor, generator: Generator, *, low: float = 0.0, high: float = 0.5, fill: Sequence[int] = GREY
) -> Tensor:
    """A square of side uniform in [low, high] of the width, anywhere in the image (the border clips it)."""
    n, c, h, w = x.shape
    half = _uniform(n, low * w, high * w, generator) / 2
    y, across = _uniform(n, 0, h, generator), _uniform(n, 0, w, generator)
    box = torch.stack([y - half, across - half, 2 * half, 2 * half], 1)
    paint = x.new_tensor(fill).view(1, -1, 1, 1)
    return pick(_inside(box, x), paint if c == len(fill) else luma(paint).to(torch.uint8), x)


def erase(
    x: Tensor, generator: Generator, *, mean: Sequence[float], std: Sequence[float], odds: float = 0.25,
    scale: tuple[float, float] = (0.02, 1 / 3), ratio: tuple[float, float] = (0.3, 1 / 0.3),
) -> Tensor:  # fmt: skip
    """A box of noise that, once normalised, is standard normal (clipped at black and white)."""
    chosen = _coin(len(x), odds, generator)[:, 0].nonzero()[:, 0]
    part = x.index_select(0, chosen.to(x.device))
    noise = torch.randn(part.shape, generator=generator).to(x.device)
    centre, spread = (255 * x.new_tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (mean, std))
    noise = noise.mul_(spread).add_(centre + 0.5).clamp_(0, 255).to(torch.uint8)
    part = pick(_inside(_boxes(part, scale, ratio, generator), x), noise, part)
    return x.index_copy(0, chosen.to(x.device), part)


def _boxes(x: Tensor, scale: tuple[float, float], ratio: tuple[float, float], generator: Generator) -> Tensor:
    """The first of ten random boxes (top, left, height, width) that fits, else the largest central one."""
    n, _, h, w = x.shape
    area = h * w * _uniform(n, *scale, generator, 10)
    aspect = _uniform(n, math.log(ratio[0]), math.log(ratio[1]), generator, 10).exp()
    width, height = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (width >= 1) & (height >= 1) & (width <= w) & (height <= h)  # (N, 10)
    first = fits.int().argmax(1, keepdim=True)
    width, height = width.gather(1, first), height.gather(1, first)
    place = torch.rand(2, n, 1, generator=generator)
    down, across = h - height, w - width  # room to move
    top, left = ((p * (room + 1)).floor().minimum(room) for p, room in zip(place, (down, across), strict=True))
    whole = (min(h, round(w / ratio[0])), min(w, round(h * ratio[1])))
    centred = torch.tensor([(h - whole[0]) // 2, (w - whole[1]) // 2, *whole], dtype=torch.float32)
    return torch.where(fits.any(1, keepdim=True), torch.cat([top, left, height, width], 1), centred)


def _inside(box: Tensor, x: Tensor) -> Tensor:
    """1 where a pixel's centre lies in its sample's box (top, left, height, width), (N, 1, H, W) uint8."""
    top, left, height, width = box.to(x.device)[:, :, None].unbind(1)
    y, across = (torch.arange(side, device=x.device) + 0.5 for side in x.shape[-2:])
    rows = ((y >= top) & (y < top + height)).to(torch.uint8)
    columns = ((across >= left) & (across < left + width)).to(torch.uint8)
    return rows[:, None, :, None] & columns[:, None, None, :]


def _coin(count: int, odds: float, generator: Generator) -> Tensor:
    return torch.rand(count, 1, generator=generator) < odds


def _uniform(count: int, low: float, high: float, generator: Generator, *more: int) -> Tensor:
    return low + (high - low) * torch.rand(count, *more, generator=generator)
