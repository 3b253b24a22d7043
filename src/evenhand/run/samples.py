"""Images from a trained generator: files in a folder for each class, a contact sheet, a classifier trained on them."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor

from evenhand import atomic, parallel
from evenhand.data.prepared import Data
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError, did_you_mean
from evenhand.methods import method_class
from evenhand.methods.protocol import Drawer, Method
from evenhand.randomness import dice
from evenhand.run.loop import fit
from evenhand.run.opening import OpenRun, build_method, open_run
from evenhand.run.recipe import load_recipe
from evenhand.tasks.classify import CLASSIFY
from evenhand.tasks.generate import GENERATE

DRAWS = 200  # images an unconditional generator may draw for each one wanted


def sample_run(
    folder: str | Path, class_name: str | None = None, count: int = 64, out: str | Path | None = None, *, seed: int = 0,
    truncation: float | None = None,
) -> Path:  # fmt: skip
    """``count`` images of a class, or of every class, as PNG files beside ``contact-sheet.png``; returns the folder.

    The folder, by default ``samples`` in the run's, can serve as a data set: classes are its subfolders. An
    unconditional generator draws until its annotator has found enough of the class. A ``truncation`` below 1 keeps
    StyleGAN2 near the mean of each class.
    """
    run = open_run(folder)
    if truncation is not None:
        _truncate(run.method, truncation)
    classes = run.model.facts.classes
    if class_name is not None and class_name not in classes:
        raise UserError(f"no class '{class_name}' in this run; {did_you_mean(class_name, classes)}")
    wanted = [class_name] if class_name is not None else list(classes)
    out = Path(out) if out is not None else run.folder / "samples"
    places = [out / re.sub(r"[^\w.-]+", "-", name) for name in wanted]
    names = [f"{number:05d}.png" for number in range(count)]
    for place in places:
        older = sorted({path.name for path in place.glob("*.png")} - {*names})
        if older:
            raise UserError(
                f"{place} has {len(older)} older images that would stay beside the new ones, such as {older[0]}: "
                "remove them, or choose another --out"
            )
    drawn = [draw(run.method, classes.index(name), count, seed=seed) for name in wanted]
    for place, images in zip(places, drawn, strict=True):
        place.mkdir(parents=True, exist_ok=True)
        for file, image in zip(names, images, strict=True):
            _picture(image).save(place / file)
    columns = min(count, 16)
    rows = drawn[0] if class_name is not None else torch.cat([images[:columns] for images in drawn])
    contact_sheet(rows, columns).save(out / "contact-sheet.png")
    return out


def draw(method: Method, label: int, count: int, *, seed: int = 0) -> Tensor:
    """``count`` images of one class, uint8 (N, C, H, W); the same for the same seed."""
    drawer, chance = _drawer(method), dice(seed, "sample", label)
    if drawer.labelled:
        return drawer.sample(count, torch.full((count,), label), chance=chance)
    found: list[Tensor] = []
    tried = 0
    while (have := sum(map(len, found))) < count:
        if tried >= DRAWS * count:
            name = drawer.data.classes[label]
            raise UserError(f"among {tried} images the annotator found {have} of class '{name}'; ask for fewer")
        images = drawer.sample(max(256, count), chance=chance)
        found.append(images[drawer.judge.label(images) == label])
        tried += len(images)
    return torch.cat(found)[:count]


def classifier_score(
    folder: str | Path, *, count: int = 10_000, recipe: str = "annotator", epochs: float | None = None, seed: int = 0
) -> dict[str, Any]:
    """Classifier-accuracy score: train a classifier on drawn images alone, test it on the real test split.

    The labels are those asked for; what an unconditional generator draws is labelled by the annotator, whichever
    classifier it was trained with, so that runs compare. Stands in ``measure.json`` as ``classifier_score``, with whose
    labels they were.
    """
    run = open_run(folder)
    path = run.folder / "measure.json"
    if not path.is_file():
        raise UserError(f"{run.folder} is not measured yet: finish its training, or run evenhand measure first")
    chosen = load_recipe(recipe, {"run.seed": seed, "run.progress": False, "run.select": "last"})
    if method_class(chosen.method.name).task is not CLASSIFY or chosen.needs:
        raise UserError(f"recipe '{recipe}' does not train a classifier from images alone; try 'annotator'")
    images, labels = labelled_samples(run.method, count, seed=seed)
    real = run.data()
    data = drawn_data(real, images, labels)
    with tempfile.TemporaryDirectory() as place:
        length = {} if epochs is None else {"epochs": epochs, "steps": None}
        settings = chosen.run.model_copy(update={"folder": place, **length})
        method = build_method(chosen, data, parallel.local_device("auto"), {})
        fit(method, data.streams, settings)
        found = CLASSIFY.score(cast(Any, method), real.streams["test"], batch=settings.eval_batch)
    score = {"recipe": recipe, "drawn": count, "seed": seed, **labeller(run), **found}
    atomic.write_json(path, json.loads(path.read_text()) | {"classifier_score": score})
    return score


def labelled_samples(method: Method, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images of all classes as the generator draws them, and their labels (N,): asked for, or the annotator's."""
    drawer, chance = _drawer(method), dice(seed, "labelled")
    if drawer.labelled:
        labels = torch.arange(count) % len(drawer.data.classes)
        return drawer.sample(count, labels, chance=chance), labels
    images = drawer.sample(count, chance=chance)
    return images, drawer.judge.label(images)


def labeller(run: OpenRun) -> dict[str, str]:
    """Whose labels ``labelled_samples`` of a run have: those asked for, or its annotator's, with a digest of it."""
    drawer = _drawer(run.method)
    if drawer.labelled:
        return {"labels": "asked for"}
    need, annotator = run.recipe.needs.get("annotator"), drawer.judge.annotator
    assert annotator is not None  # it has labelled them
    return {"labels": f"annotator {need.recipe if need else ''}".strip(), "labels_digest": annotator.digest()}


def drawn_data(real: Data, images: Tensor, labels: Tensor) -> Data:
    """Drawn images in the place of the training images, seen as those are; nothing else of the real data."""
    drawn = Stream(Memory(images), labels, real.classes, "drawn")
    return replace(real, facts=real.facts.model_copy(update={"counts": drawn.counts}), streams={"labelled": drawn})


def _truncate(method: Method, truncation: float) -> None:
    drawer = _drawer(method)
    if drawer.truncation is None:
        raise UserError(f"--truncation is StyleGAN2's, a {type(method).__name__} has none: leave it out")
    drawer.truncation = truncation


def _drawer(method: Method) -> Drawer:
    if method.task is not GENERATE:
        raise UserError(f"a {type(method).__name__} draws no images; give the run of a generator")
    return cast(Drawer, method)


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
