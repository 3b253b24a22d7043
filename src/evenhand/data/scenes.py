"""From the [data] table of a recipe to streams of scenes with boxes: one domain, or sources and a target."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from evenhand.data.facts import Facts
from evenhand.data.prepared import Data
from evenhand.data.sets.scenes import SETS
from evenhand.data.settings import DataSettings
from evenhand.data.sources.annotations import EXPECTED, LAYOUTS, Reading, domains_in, layout, read_scenes
from evenhand.data.sources.paths import existing, few
from evenhand.data.sources.scenes import agreed_classes, only_classes, without_boxes
from evenhand.data.splits import head_mid_tail
from evenhand.data.stream import Stream, Streams, join
from evenhand.data.target import Boxes
from evenhand.data.views.boxes import STRONG, BoxView
from evenhand.errors import UserError, did_you_mean, users_mistake
from evenhand.randomness import dice

OURS = (
    "set", "source", "target", "classes", "val_share", "split_seed", "groups", "augment", "strong", "root", "fog",
    "grey",
)  # fmt: skip
OF_FILES = {"root": ("COCO",), "fog": ("Cityscapes",), "grey": LAYOUTS}  # and what they change


def prepare_scenes(settings: DataSettings, facts: Facts | None = None) -> Data:
    """Streams "source" (or "labelled"), "val", "target" with its boxes out of reach, "test" and what else there is."""
    with users_mistake("[data]"):
        _refuse_without_effect(settings)
        streams = _streams(settings)
        train = streams["source" if settings.target else "labelled"]
        if facts is not None and train.classes != facts.classes:
            raise UserError("the data have changed since the run began (other classes): restore them, or train anew")
        if facts is None:
            groups = dict(head_mid_tail(train.counts, settings.groups))
            facts = Facts(
                kind="scenes", classes=train.classes, counts=train.counts, groups=groups, groups_rule=settings.groups,
                inputs=1 if settings.grey else 3,
            )  # fmt: skip
        return scenes_of(settings, facts, streams)


def _refuse_without_effect(settings: DataSettings) -> None:
    given = {key for key, field in DataSettings.model_fields.items() if getattr(settings, key) != field.default}
    if foreign := sorted(given - {*OURS}):
        raise UserError(f"data.{foreign[0]} has no effect on scenes with boxes: leave it out")
    places = [place for name in _domains(settings) if (place := _place(name, settings)) is not None]
    there = {layout(place) for place in places}
    for key, wanted in OF_FILES.items():
        if key in given and there.isdisjoint(wanted) and all(place.exists() for place in places):
            raise UserError(f"data.{key} is for {' or '.join(wanted)} and has no effect on these scenes: leave it out")


def _domains(settings: DataSettings) -> list[str]:
    return [*(settings.source or [settings.set]), *([settings.target] if settings.target else [])]


def scenes_of(settings: DataSettings, facts: Facts, streams: Streams | None = None) -> Data:
    """The views around what streams there are."""
    given = settings.strong != DataSettings.model_fields["strong"].default
    strong = BoxView(settings.strong if given else STRONG)
    return Data(facts, BoxView(settings.augment), strong, BoxView(), streams or {})


def _streams(settings: DataSettings) -> Streams:
    names = settings.source or [settings.set]
    sources = [_learnt_from(_domain(name, settings), name, bool(settings.target)) for name in names]
    target = _adapted_to(_domain(settings.target, settings, seen=True), settings.target) if settings.target else {}
    classes = _classes([*zip(names, sources, strict=True), (settings.target, target)], settings)
    sources = [{split: only_classes(part, classes) for split, part in parts.items()} for parts in sources]
    share = settings.val_share if settings.val_share is not None else 0.1 * bool(target)
    trains, held = [], []
    for parts in sources:
        train = parts["train"]
        if "val" in parts:
            held.append(parts["val"])
        elif share:
            train, kept = _hold_out(train, share, settings.split_seed)
            held.append(kept)
        trains.append(train)
    first = "source" if target else "labelled"
    streams: Streams = {first: join(trains, first)}
    if held:
        streams["val"] = join(held, "val")
    streams |= {split: only_classes(part, classes) for split, part in target.items()} if target else _tests(sources)
    empty = [name for name, count in zip(classes, streams[first].counts, strict=True) if not count]
    if empty:
        raise UserError(f"no training object of class {', '.join(empty[:3])}: add some, or remove the class")
    return streams


def _learnt_from(parts: Streams, name: str, adapting: bool) -> Streams:
    """What is used of a source: "train", "val", and its tests where they are the ones."""
    train = parts.get("train", parts.get("all"))
    if train is None or train.target is None or not len(train):
        only = "" if [*parts] == ["unlabelled"] else f" in '{', '.join(parts)}'"
        raise UserError(f"'{name}' has no annotated images to train on{only}; give {EXPECTED}: see docs/detection.md")
    others = {split: part for split, part in parts.items() if split == "val" or (_is_test(split) and not adapting)}
    return {"train": train, **others}


def _is_test(split: str) -> bool:
    return split == "test" or split.startswith("test-")


def _tests(sources: Sequence[Streams]) -> Streams:
    """The test of all sources, and further ones ("test-new") that they bring."""
    names = dict.fromkeys(split for parts in sources for split in parts if _is_test(split))
    return {name: join([parts[name] for parts in sources if name in parts], name) for name in names}


def _adapted_to(parts: Streams, name: str) -> Streams:
    """The target's images, their boxes out of reach, and its tests."""
    seen = next((parts[split] for split in ("unlabelled", "train", "all", "test") if split in parts), None)
    if seen is None or not len(seen):
        raise UserError(f"target '{name}' has no images to adapt to; add some")
    streams: Streams = {"target": Stream(seen.samples, None, (), "target")}
    test = next((parts[split] for split in ("test", "val", "all") if split in parts), None)
    if test is not None and test.target is not None:
        streams["test"] = replace(test, name="test")
    return streams | {split: part for split, part in parts.items() if split.startswith("test-")}


def _domain(name: str, settings: DataSettings, *, seen: bool = False) -> Streams:
    """A domain of a built-in set, a folder of ``data.set``, or a place of its own."""
    known = SETS.get(settings.set)
    if known is not None:
        if name == settings.set:
            raise UserError(f"'{name}' holds the domains {', '.join(known.domains)}; name one or more in data.source")
        if name not in known.domains:
            raise UserError(f"no domain '{name}' in '{settings.set}'; {did_you_mean(name, known.domains)}")
        return known.load(name, settings.split_seed)
    place = _place(name, settings)
    assert place is not None
    if name == settings.set and (inside := domains_in(place)):
        raise UserError(f"'{name}' holds the domains {few(inside)}; name one or more in data.source")
    how = how_read(settings)
    how = how._replace(whole=how.whole and not seen)  # a target may be tested on its validation
    return read_scenes(place, how, mode="L" if settings.grey else "RGB")


def _place(name: str, settings: DataSettings) -> Path | None:
    """None of a built-in set."""
    if settings.set in SETS:
        return None
    inside = Path(settings.set) / name
    return inside if inside.exists() and name != settings.set else Path(name)


def how_read(settings: DataSettings) -> Reading:
    return Reading(existing(settings.root) if settings.root else None, settings.fog, settings.val_share == 0)


def _classes(domains: Sequence[tuple[str, Streams]], settings: DataSettings) -> tuple[str, ...]:
    """The first source's, in its order, but for those without a box in any split that is used."""
    boxes = {
        f"{name}/{split}": dict(zip(part.classes, part.counts, strict=True))
        for name, parts in domains
        for split, part in parts.items()
        if part.target is not None
    }
    if idle := without_boxes(boxes):
        warnings.warn(f"no image has a box of class {few(idle)}: left out", stacklevel=2)
    return agreed_classes(boxes, shared=settings.classes == "intersection")


def _hold_out(train: Stream, share: float, seed: int) -> tuple[Stream, Stream]:
    """A share of the images, at random: boxes of rare classes are too few to stratify by."""
    order = torch.randperm(len(train), generator=dice(seed, "val"))
    count = max(1, round(share * len(train)))
    if count >= len(train):
        raise UserError(f"{len(train)} training images are too few to hold any out; set data.val_share = 0")
    assert isinstance(train.target, Boxes)
    return train.subset(order[count:].sort().values), train.subset(order[:count].sort().values, "val")
