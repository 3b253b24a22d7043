"""Our batched augmentation against the usual one image at a time with PIL: same operations, same run.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/data_pipeline.py

Prints a markdown table of images per second of processor time (best of several alternating passes), so that a
busy machine slows neither side.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from evenhand.data.views.images import build

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
GREY = (125, 123, 114)


def pil_crop_flip(image: Image.Image) -> Image.Image:
    """Pad 4, crop the original size anywhere, mirror half of the time."""
    w, h = image.size
    x, y = random.randint(0, 8), random.randint(0, 8)
    image = ImageOps.expand(image, 4).crop((x, y, x + w, y + h))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def pil_warp(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


PIL_OPS: list[tuple[Callable[[Image.Image, float], Image.Image], float, float]] = [
    (lambda im, _: ImageOps.autocontrast(im), 0, 0),
    (lambda im, v: ImageEnhance.Brightness(im).enhance(v), 0.05, 0.95),
    (lambda im, v: ImageEnhance.Color(im).enhance(v), 0.05, 0.95),
    (lambda im, v: ImageEnhance.Contrast(im).enhance(v), 0.05, 0.95),
    (lambda im, _: ImageOps.equalize(im), 0, 0),
    (lambda im, _: im, 0, 0),
    (lambda im, v: ImageOps.posterize(im, int(v)), 4, 8.999),
    (lambda im, v: im.rotate(v), -30, 30),
    (lambda im, v: ImageEnhance.Sharpness(im).enhance(v), 0.05, 0.95),
    (lambda im, v: pil_warp(im, 1, v, 0, 0, 1, 0), -0.3, 0.3),
    (lambda im, v: pil_warp(im, 1, 0, 0, v, 1, 0), -0.3, 0.3),
    (lambda im, v: ImageOps.solarize(im, v), 0, 256),
    (lambda im, v: pil_warp(im, 1, 0, v * im.width, 0, 1, 0), -0.3, 0.3),
    (lambda im, v: pil_warp(im, 1, 0, 0, 0, 1, v * im.height), -0.3, 0.3),
]


def pil_rand_augment(image: Image.Image) -> Image.Image:
    """Three of fourteen, then cutout."""
    for operation, low, high in random.choices(PIL_OPS, k=3):
        image = operation(image, random.uniform(low, high))
    half = random.uniform(0, 0.25) * image.width
    x, y = random.uniform(0, image.width), random.uniform(0, image.height)
    image = image.copy()
    ImageDraw.Draw(image).rectangle((x - half, y - half, x + half, y + half), GREY)
    return image


def pil_batch(images: np.ndarray, *steps: Callable[[Image.Image], Image.Image]) -> torch.Tensor:
    """(N, H, W, 3) through PIL one by one, normalised and stacked as the usual loader does."""
    mean, std = np.float32(MEAN), np.float32(STD)
    done = []
    for array in images:
        image = Image.fromarray(array)
        for step in steps:
            image = step(image)
        pixels = (np.asarray(image, dtype=np.float32) / 255 - mean) / std
        done.append(torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))))
    return torch.stack(done)


def seconds(work: Callable[[], object], repeat: int) -> float:
    start = time.process_time()
    for _ in range(repeat):
        work()
    return (time.process_time() - start) / repeat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--passes", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)

    generator = torch.Generator().manual_seed(0)
    # Blurred noise: smooth enough for realistic histograms, no data needed.
    noise = torch.rand(args.batch, 3, args.size // 4, args.size // 4, generator=generator)
    smooth = torch.nn.functional.interpolate(noise, size=args.size, mode="bilinear")
    x = (smooth * 255).to(torch.uint8)
    arrays = x.permute(0, 2, 3, 1).contiguous().numpy()

    weak = build("weak", size=args.size, mean=MEAN, std=STD)
    strong = build("strong", size=args.size, mean=MEAN, std=STD)
    rows: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "crop, flip, normalise": (lambda: weak(x, generator), lambda: pil_batch(arrays, pil_crop_flip)),
        "RandAugment, cutout, crop, flip, normalise": (
            lambda: strong(x, generator),
            lambda: pil_batch(arrays, pil_rand_augment, pil_crop_flip),
        ),
    }
    print(f"batch {args.batch}, {args.size}x{args.size}, 1 thread, torch {torch.__version__}\n")
    print("| pipeline | batched, images/s | PIL, images/s | ratio |\n|---|---|---|---|")
    for name, (ours, theirs) in rows.items():
        ours(), theirs()
        pairs = [(seconds(ours, 10), seconds(theirs, 1)) for _ in range(args.passes)]
        fast, slow = (args.batch / min(column) for column in zip(*pairs, strict=True))
        print(f"| {name} | {fast:,.0f} | {slow:,.0f} | {fast / slow:.1f} |")


if __name__ == "__main__":
    main()
