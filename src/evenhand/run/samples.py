"""Images from a trained generator: files in a folder for each class, and a contact sheet."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from evenhand.data.samplers import generator
from evenhand.errors import UserError, did_you_mean
from evenhand.methods.generate.gan import GAN
from evenhand.methods.protocol import Method
from evenhand.run.runs import open_run

DRAWS = 200  # images an unconditional generator may draw for each one wanted


def sample_run(
    folder: str | Path, class_name: str | None = None, count: int = 64, out: str | Path | None = None, *, seed: int = 0
) -> Path:
    """``count`` images of a class, or of every class, as PNG files beside ``contact-sheet.png``; returns the folder.

    The folder, by default ``samples`` in the run's, can serve as a data set: classes are its subfolders. An
    unconditional generator draws until its annotator has found enough of the class.
    """
    run = open_run(folder)
    classes = run.data.classes
    if class_name is not None and class_name not in classes:
        raise UserError(f"no class '{class_name}' in this run; {did_you_mean(class_name, classes)}")
    wanted = [class_name] if class_name is not None else list(classes)
    drawn = [draw(run.method, classes.index(name), count, seed=seed) for name in wanted]
    out = Path(out) if out is not None else run.folder / "samples"
    for name, images in zip(wanted, drawn, strict=True):
        place = out / re.sub(r"[^\w.-]+", "-", name)
        place.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            _picture(image).save(place / f"{number:05d}.png")
    columns = min(count, 16)
    rows = drawn[0] if class_name is not None else torch.cat([images[:columns] for images in drawn])
    contact_sheet(rows, columns).save(out / "contact-sheet.png")
    return out


def draw(method: Method, label: int, count: int, *, seed: int = 0) -> Tensor:
    """``count`` images of one class, uint8 (N, C, H, W); the same for the same seed."""
    gan = getattr(method, "gan", method)
    if not isinstance(gan, GAN):
        raise UserError(f"a {type(method).__name__} draws no images; give the run of a generator")
    chance = generator(seed, "sample", label)
    if gan.labelled:
        return gan.sample(count, torch.full((count,), label), generator=chance)
    found: list[Tensor] = []
    tried = 0
    while (have := sum(map(len, found))) < count:
        if tried >= DRAWS * count:
            raise UserError(
                f"among {tried} images the annotator found {have} of class '{gan.data.classes[label]}'; ask for fewer"
            )
        images = gan.sample(max(256, count), generator=chance)
        found.append(images[gan.judged_by.label(images) == label])
        tried += len(images)
    return torch.cat(found)[:count]


def contact_sheet(images: Tensor, columns: int, *, gap: int = 2) -> Image.Image:
    """Images, uint8 (N, C, H, W), side by side in rows of ``columns``; small ones are enlarged to be seen."""
    n, c, h, w = images.shape
    zoom = max(1, 56 // max(h, w))
    images = images.repeat_interleave(zoom, 2).repeat_interleave(zoom, 3)
    rows = -(-n // columns)
    tall, wide = h * zoom + gap, w * zoom + gap
    sheet = images.new_full((c, rows * tall + gap, columns * wide + gap), 255)
    for number, image in enumerate(images):
        top, left = (number // columns) * tall + gap, (number % columns) * wide + gap
        sheet[:, top : top + h * zoom, left : left + w * zoom] = image
    return _picture(sheet)


def _picture(image: Tensor) -> Image.Image:
    pixels = image.permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
