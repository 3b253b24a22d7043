"""Domains to adapt between: labelled sources, an unlabelled target and its test, with the same classes and frame.

A domain is a part of a set (a domain of a built-in set, a folder ``<domain>/``, the column ``domain`` of a CSV, an
image list) or a set of its own (a built-in name, a folder, a CSV, an ``.npz``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from evenhand.data.agreement import agree, conform
from evenhand.data.reading import columns_of
from evenhand.data.sets import catalogue, shapes
from evenhand.data.settings import DataSettings
from evenhand.data.sources import formats
from evenhand.data.sources.files import Files, readable, sizes_of
from evenhand.data.sources.frames import choose_frame
from evenhand.data.sources.paths import (
    SPLITS,
    SUFFIXES,
    existing,
    folders_in,
    images_in,
    natural,
    read_text,
    relative_names,
)
from evenhand.data.sources.published import read_image_list
from evenhand.data.sources.rows import TABLES, rows_of
from evenhand.data.splits import stratified_holdout
from evenhand.data.stream import Stream, Streams, join
from evenhand.errors import UserError, did_you_mean
from evenhand.randomness import dice


def read_domains(settings: DataSettings) -> Streams:
    """Streams "train" and perhaps "val" (source), "target" (labels out of reach), and, where the target has
    labels, "test" and "target_labelled".

    The target's own test split is the test; without one, target_test_share of its images, or the very images adapted to
    (Office-Home's protocol). Where the target has both unlabelled and labelled training images, these are
    "target_labelled".
    """
    domains, target = _read_parts(settings)
    trains = [_training(parts, name) for name, parts in domains.items()]
    held = [parts["val"] for parts in domains.values() if "val" in parts]
    if len(held) == len(domains):
        streams = {"train": join(trains, "source"), "val": join(held, "val")}
    else:
        streams = {"train": join([*trains, *held], "source")}
    told = _target(target, settings)
    return {**streams, **told, "target": told["target"].unlabelled()}


def read_truth(settings: DataSettings) -> Stream:
    """The stream "target" of ``read_domains`` with its labels: for an oracle, and for nobody who trains or selects."""
    pool = _target(_read_parts(settings)[1], settings)["target"]
    if pool.labels is None:
        raise UserError(f"target '{settings.target}' has no labels that an oracle could know; label its picks yourself")
    return pool


def _read_parts(settings: DataSettings) -> tuple[dict[str, Streams], Streams]:
    """The splits of every source and those of the target, with the same classes and frame."""
    if settings.by_frequency:
        raise UserError("data.by_frequency renumbers one image list and cannot be used with data.target")
    domains = _read_all([*(settings.source or [settings.set]), settings.target], settings)
    if any(part.kind == "texts" for parts in domains.values() for part in parts.values()):
        raise UserError("data.target adapts between domains of images; leave it out to train on texts")
    for name, parts in domains.items():
        needed = ("train", "all", "test", "unlabelled") if name == settings.target else ("train", "all", "val")
        domains[name] = {split: part for split, part in parts.items() if split in needed}
        if name != settings.target:
            _training(domains[name], name)
    if settings.test_list:
        domains[settings.target]["test"] = _list(settings.test_list, settings)
    classes = agree(domains, settings.target, settings.classes == "intersection")
    if settings.frame != "auto" and not any(p.samples.frame for parts in domains.values() for p in parts.values()):
        raise UserError(f'data.frame = "{settings.frame}" has no effect: the domains hold arrays; leave it out')
    side, channels = _frame(domains, settings)
    domains = {
        name: {split: conform(part, classes, side, channels) for split, part in parts.items()}
        for name, parts in domains.items()
    }
    target = domains.pop(settings.target)
    return domains, target


def _target(parts: Streams, settings: DataSettings) -> Streams:
    """ "target" with labels if it has any, and what goes with it."""
    name, test = settings.target, parts.get("test")
    seen = next((parts[split] for split in ("train", "all", "test") if split in parts), None)
    pool = parts.get("unlabelled", seen)
    if pool is None or not len(pool):
        raise UserError(f"target '{name}' has no images to adapt to; add some, or name another data.target")
    if settings.target_test_share:
        if test is not None or pool.labels is None:
            why = "has a test split" if test is not None else "has no labels to be tested on"
            raise UserError(f"target '{name}' {why}: leave out data.target_test_share")
        rest, held = stratified_holdout(pool.labels, settings.target_test_share, settings.split_seed, len(pool.classes))
        pool, test = pool.subset(rest), pool.subset(held)
    elif test is None and "unlabelled" not in parts:
        test = seen
    if settings.target_max is not None and settings.target_max < len(pool):
        some = torch.randperm(len(pool), generator=dice(settings.split_seed, "target"))[: settings.target_max]
        pool = pool.subset(some.sort().values)
    streams = {"target": replace(pool, name="target")}
    if "unlabelled" in parts and "train" in parts:
        streams["target_labelled"] = replace(parts["train"], name="target_labelled")
    if test is not None and test.labels is not None:
        streams["test"] = replace(test, name="test")
    return streams


def _training(parts: Streams, name: str) -> Stream:
    train = parts.get("train", parts.get("all"))
    if train is None or train.labels is None or not len(train):
        raise UserError(f"source '{name}' has no labelled training images; add some, or name another data.source")
    return train


# where domains are


def _read_all(names: Sequence[str], settings: DataSettings) -> dict[str, Streams]:
    """Every domain's splits; files are read at the size of the first domain unless the recipe gives one."""
    for name in names:
        if names.count(name) > 1:
            where = "both source and target" if name == settings.target else "twice in data.source"
            raise UserError(f"domain '{name}' is {where}; name different domains")
    inside, size = _parts_of(settings), settings.size
    domains = {}
    for name in names:
        try:
            domains[name] = _domain(name, inside, settings, size)
        except UserError as error:
            raise UserError(f"{'target' if name == settings.target else 'source'} '{name}': {error}") from error
        first = next(iter(domains[name].values()))
        size = size or _side(first)
        if settings.frame == "auto" and first.samples.frame is not None:  # one frame for all
            settings = settings.model_copy(update={"frame": first.samples.frame.how})
    return domains


def _parts_of(settings: DataSettings) -> Streams:
    """Streams ``<domain>`` or ``<domain>/<split>`` of a built-in set or CSV of several domains, else none."""
    if settings.set in catalogue.DATASETS and catalogue.DATASETS[settings.set].domains:
        return catalogue.load(settings.set, split_seed=settings.split_seed)
    if settings.root is None and settings.set.lower().endswith(TABLES):
        table = existing(settings.set)
        rows = rows_of(table, read_text(table), columns_of(settings), quote="paths")
        labels = {row.get("label", "") for _, row in rows} - {""}
        # All labels are classes here, so that only domains in use need the same; see _agree.
        parts = _read(table, settings, settings.size, sorted(labels, key=natural) or None)
        return parts if _domains_of(parts) else {}
    return {}


def _domain(name: str, inside: Streams, settings: DataSettings, size: int | None) -> Streams:
    """The splits "train", "val", "test", "unlabelled" of one domain, or "all"."""
    if name in shapes.DOMAINS:
        return shapes.load(name)
    if settings.root is not None:
        return {"all": _list(name, settings)}
    own = {key.partition("/")[2] or "all": part for key, part in inside.items() if key.partition("/")[0] == name}
    if own:
        return own
    whole, within = Path(settings.set), Path(settings.set) / name
    known = [folder.name for folder in folders_in(whole)] if whole.is_dir() else _domains_of(inside)
    if name == settings.set and settings.target in known:
        raise UserError(f"'{name}' holds the domains {', '.join(known)}; name one or more in data.source")
    if not within.is_dir() and name in catalogue.DATASETS:
        parts = catalogue.load(name, split_seed=settings.split_seed)
    elif not within.is_dir() and not Path(name).exists():
        hint = did_you_mean(name, known or catalogue.DATASETS)
        raise UserError(f"no domain '{name}': neither inside '{settings.set}' nor a path nor a built-in set; {hint}")
    else:
        place = within if within.is_dir() else Path(name)
        if place.is_dir() and any(file.suffix.lower() in SUFFIXES for file in place.iterdir()):
            return {"unlabelled": _loose(place, settings, size)}
        parts = _read(place, settings, size)
    if _domains_of(parts):
        raise UserError(f"'{name}' holds the domains {', '.join(_domains_of(parts))}; set data.set to it and name one")
    return parts


def _read(place: Path, settings: DataSettings, size: int | None, classes: Sequence[str] | None = None) -> Streams:
    mode = "L" if settings.grey else "RGB"
    return formats.read(
        place, size=size, mode=mode, skip_unreadable=settings.skip_unreadable, classes=classes,
        columns=columns_of(settings), frame=settings.frame, memory=settings.in_memory,
    )  # fmt: skip


def _loose(folder: Path, settings: DataSettings, size: int | None) -> Stream:
    """Images without class folders."""
    mode = "L" if settings.grey else "RGB"
    rows = [(file, None) for file in images_in(folder)]
    if settings.skip_unreadable:
        rows = readable(rows, mode)
    paths = [file for file, _ in rows]
    how = choose_frame(sizes_of(paths))[0] if settings.frame == "auto" else settings.frame
    files = Files(paths, size=size or 224, mode=mode, names=relative_names(paths, folder), frame=how)
    return Stream(files.held(settings.in_memory), None, (), folder.name)


def _list(name: str, settings: DataSettings) -> Stream:
    """An image list, named from here or from the root."""
    root, mode = Path(settings.root or "."), "L" if settings.grey else "RGB"
    path = Path(name) if Path(name).exists() else root / name
    return read_image_list(
        path, root, size=settings.size or 224, mode=mode, skip_unreadable=settings.skip_unreadable,
        frame=settings.frame, memory=settings.in_memory,
    )  # fmt: skip


def _domains_of(parts: Streams) -> list[str]:
    known = (*SPLITS, "all")
    return list(dict.fromkeys(domain for key in parts if (domain := key.partition("/")[0]) not in known))


# the same frame


def _side(part: Stream) -> int:
    return part.fetch(torch.tensor([0])).shape[-1]


def _frame(domains: dict[str, Streams], settings: DataSettings) -> tuple[int, int]:
    """Side and channels of all images: the largest that any domain has, unless the recipe says otherwise."""
    parts = [part for parts in domains.values() for part in parts.values() if len(part)]
    if not parts:
        raise UserError("the domains have no images")
    shapes = [part.fetch(torch.tensor([0])).shape for part in parts]
    kinds = {
        f"vectors of {s[1]}" if part.kind == "vectors" else part.kind for part, s in zip(parts, shapes, strict=True)
    }
    if len(kinds) > 1:
        raise UserError(f"the domains hold {' and '.join(sorted(kinds))}; bring all of one kind and length")
    return settings.size or max(shape[-1] for shape in shapes), 1 if settings.grey else max(s[1] for s in shapes)
