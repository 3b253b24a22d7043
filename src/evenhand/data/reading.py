"""Where the samples of a recipe are: a built-in set, image lists, or whatever ``sources.formats`` reads."""

from __future__ import annotations

from dataclasses import replace

import torch

from evenhand.data.sets import catalogue, phrases, shapes
from evenhand.data.settings import DataSettings
from evenhand.data.sources import formats
from evenhand.data.sources.published import frequency_order, read_image_list
from evenhand.data.sources.rows import Columns
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
        return shapes.load()
    if settings.set == "phrases":
        return phrases.load()
    if settings.set in catalogue.DATASETS:
        return catalogue.load(settings.set)
    if settings.root is not None:
        return _read_lists(settings, mode, whole)
    parts = formats.read(
        settings.set, size=settings.size, mode=mode, skip_unreadable=settings.skip_unreadable, whole=whole,
        columns=columns,
    )  # fmt: skip
    if "all" in parts:
        parts["train"] = parts.pop("all")
    if "train" not in parts:
        found = ", ".join(parts)
        raise UserError(f"{settings.set} has no training part (found: {found}); name one folder or split 'train'")
    return parts


def _read_lists(settings: DataSettings, mode: str, whole: bool) -> Streams:
    """Training and test lists whose classes may be renumbered by descending training count, both alike."""
    assert settings.root is not None
    if settings.test_list is None:
        raise UserError("an image list needs its test split too: set data.test_list")
    lists = {"train": settings.set, "test": settings.test_list}
    size, skip = settings.size or 224, settings.skip_unreadable
    parts = {
        split: read_image_list(path, settings.root, size=size, mode=mode, skip_unreadable=skip, whole=whole)
        for split, path in lists.items()
    }
    K = max(len(part.classes) for part in parts.values())
    new = torch.arange(K)
    if settings.by_frequency:
        assert parts["train"].labels is not None
        new = frequency_order(parts["train"].labels, K)
    names = tuple(str(old) for old in new.argsort().tolist())
    return {split: replace(part, target=new[part.labels], classes=names, name=split) for split, part in parts.items()}
