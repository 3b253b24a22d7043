"""Where the samples of a recipe are: a built-in set, image lists, or whatever ``sources.formats`` reads."""

from __future__ import annotations

from dataclasses import replace

import torch

from evenhand.data.sets import catalogue, phrases, shapes
from evenhand.data.settings import DataSettings
from evenhand.data.sources import formats
from evenhand.data.sources.frames import Frame, choose_frame
from evenhand.data.sources.published import frequency_order, read_image_list
from evenhand.data.sources.rows import Columns
from evenhand.data.sources.source import Memory
from evenhand.data.stream import Streams
from evenhand.errors import UserError

ARRAYS = "arrays"  # data.set of a run whose samples a Python program had in memory


def columns_of(settings: DataSettings) -> Columns:
    """What a user's table calls its columns."""
    return Columns(settings.label_column, settings.text_column, tuple(settings.columns))


def read_set(settings: DataSettings, *, whole: bool = False) -> Streams:
    """Streams "train" and whatever else there is; ``whole`` images lose no margin."""
    mode, columns = "L" if settings.grey else "RGB", columns_of(settings)
    if settings.set in (ARRAYS, "shapes", "phrases", *catalogue.DATASETS) or settings.root is not None:
        columns.check("", settings.set)
    if settings.set == ARRAYS:
        raise UserError("the samples of this run were arrays of a Python program: save them as .npz and name that file")
    if settings.set == "shapes":
        return _shaped(shapes.load(), settings)
    if settings.set == "phrases":
        return phrases.load()
    if settings.set in catalogue.DATASETS:
        return _shaped(catalogue.load(settings.set, split_seed=settings.split_seed), settings)
    if settings.root is not None:
        return _read_lists(settings, mode, whole)
    parts = formats.read(
        settings.set, size=settings.size, mode=mode, skip_unreadable=settings.skip_unreadable, whole=whole,
        columns=columns, frame=settings.frame, memory=settings.in_memory,
    )  # fmt: skip
    parts = _shaped(parts, settings)
    if "all" in parts:
        parts["train"] = parts.pop("all")
    if "train" not in parts:
        found = ", ".join(parts)
        raise UserError(f"{settings.set} has no training part (found: {found}); name one folder or split 'train'")
    return parts


def _shaped(parts: Streams, settings: DataSettings) -> Streams:
    """Arrays of images in the size, frame and colour that a recipe asks for; files are read so."""
    arrays = {
        name: part.samples
        for name, part in parts.items()
        if isinstance(part.samples, Memory) and part.kind == "images" and part.samples.frame is None
    }
    if not arrays:
        return parts
    height, width = next(iter(arrays.values())).samples.shape[-2:]
    if settings.frame != "auto" and height == width:
        raise UserError(f"data.frame has no effect: {settings.set} holds square arrays of {width} pixels; leave it out")
    if settings.size is None and not settings.grey and settings.frame == "auto":
        return parts
    side = settings.size or min(height, width)
    how = choose_frame([(width, height)])[0] if settings.frame == "auto" else settings.frame
    shaped = {}
    for name, samples in arrays.items():
        channels = 1 if settings.grey else samples.samples.shape[1]
        same = height == width and (samples.framed(side, channels))
        shaped[name] = replace(parts[name], samples=same or samples.cut(Frame(side, how, side), channels))
    return parts | shaped


def _read_lists(settings: DataSettings, mode: str, whole: bool) -> Streams:
    """Training, test and validation lists; classes may be renumbered by descending training count, all alike."""
    assert settings.root is not None
    if settings.test_list is None:
        raise UserError("an image list needs its test split too: set data.test_list")
    lists = {"train": settings.set, "test": settings.test_list}
    lists |= {"val": settings.val_list} if settings.val_list else {}
    size, skip, how, memory = settings.size or 224, settings.skip_unreadable, settings.frame, settings.in_memory
    parts = {
        split: read_image_list(
            path, settings.root, size=size, mode=mode, skip_unreadable=skip, whole=whole, frame=how, memory=memory
        )
        for split, path in lists.items()
    }
    if how == "auto" and len({part.samples.frame for part in parts.values()}) > 1:
        frame = parts["train"].samples.frame  # the test is seen as training is
        return _read_lists(settings.model_copy(update={"frame": frame.how if frame else "crop"}), mode, whole)
    K = max(len(part.classes) for part in parts.values())
    new = torch.arange(K)
    if settings.by_frequency:
        assert parts["train"].labels is not None
        new = frequency_order(parts["train"].labels, K)
    names = tuple(str(old) for old in new.argsort().tolist())
    return {split: replace(part, target=new[part.labels], classes=names, name=split) for split, part in parts.items()}
