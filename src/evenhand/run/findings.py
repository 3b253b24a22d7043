"""What is in somebody's data, found in one pass: counts, shapes, damage, copies, shift. Nothing here prints."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from evenhand.data.holdout import Whole, hold_out_share
from evenhand.data.reading import columns_of
from evenhand.data.scenes import how_read
from evenhand.data.settings import DataSettings
from evenhand.data.sources import formats
from evenhand.data.sources.annotations import list_domains
from evenhand.data.sources.paths import SPLITS, existing, few, other_files
from evenhand.data.sources.scenes import Listed, Scenes, agreed_classes, without_boxes
from evenhand.data.splits import head_mid_tail
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError
from evenhand.run.objects import Objects, objects_in
from evenhand.run.seen import Copies, Pictures, Seen, blank, copies, groups, pictures, see, shift, words

SHOWN = 6  # files of a class that are shown


@dataclass(frozen=True)
class Findings:
    """Everything that ``look`` tells and ``train DIR`` goes by."""

    path: str
    kind: str = ""
    classes: tuple[str, ...] = ()
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # split or domain -> class -> samples, boxes
    unlabelled: Mapping[str, int] = field(default_factory=dict)
    domains: tuple[str, ...] = ()
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pictures: Pictures | None = None
    words: tuple[int, int] | None = None  # median and longest text
    objects: Objects | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    empty: tuple[str, ...] = ()
    blank: tuple[str, ...] = ()
    copies: tuple[Copies, ...] = ()
    shift: Mapping[tuple[str, str], float] = field(default_factory=dict)  # how often two folders are told apart
    refused: str = ""  # why nothing could be read
    inseparable: str = ""  # why no test split could be held out, where none is brought
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)  # class -> some files

    @property
    def train(self) -> Mapping[str, int]:
        """Labelled training samples of each class: all there are, where nothing is said of splits."""
        whole: Counter[str] = Counter()
        for split, counts in self.counts.items():
            if split.rpartition("/")[2] not in ("val", "test") and not self._further(split):
                whole.update(counts)
        return whole

    def _further(self, split: str) -> bool:
        """Whether it is one more test of scenes, not a domain."""
        return self.objects is not None and split.startswith("test-") and split not in self.domains

    @property
    def imbalance(self) -> float:
        some = [n for n in self.train.values() if n]
        return max(some) / min(some) if some else 1.0

    @property
    def single(self) -> tuple[str, ...]:
        return tuple(name for name, n in self.train.items() if n == 1)

    @property
    def alone(self) -> str:
        """The only class there is to learn, where two are needed."""
        known = [name for name, n in self.train.items() if n]
        return known[0] if len(known) == 1 and self.objects is None else ""

    @property
    def lacks(self) -> str:
        """What classes would need before they can be learnt: a line with its remedy."""
        if self.refused:
            return ""
        if self.objects is not None:
            untaught = [] if self.domains else [name for name in self.classes if not self.train[name]]
            return f"no training object of class {few(untaught)}: add some, or remove the class" if untaught else ""
        if self.unlabelled and not any(self.train.values()):
            return "no labelled images: put the images of each class in a folder"
        if self.alone:
            return f"a single class, '{self.alone}': put the images of each class in a folder"
        if untaught := [name for name, n in self.train.items() if not n]:
            return f"no training samples of class {few(untaught)}: add some, or remove the class"
        return self.inseparable

    @property
    def spoils(self) -> bool:
        """Whether training would stop at something."""
        wrong = self.refused or self.unreadable or self.empty or self.lacks
        return bool(wrong or (self.objects and self.objects.spoil))


def reading_of(asked: DataSettings) -> dict[str, Any]:
    """What ``formats.read`` is told, so that data are looked at as they will be trained on."""
    shared = asked.classes if asked.classes == "intersection" else None
    return {"columns": columns_of(asked), "skip_unreadable": asked.skip_unreadable, "classes": shared}


def find(path: str | Path, asked: DataSettings | None = None) -> Findings:
    """Look through a folder, CSV, JSONL, ``.npz`` or scenes with boxes, as ``asked`` reads them."""
    asked = asked or DataSettings()
    place, empty = existing(path), []  # type: tuple[Path, list[str]]
    ignored = other_files(place) if place.is_dir() else {}
    try:
        if parts := list_domains(place, how_read(asked)):
            return _scenes(str(path), parts, asked)
        streams = formats.read(place, memory=False, empty=empty, **reading_of(asked))
    except UserError as error:
        return Findings(str(path), ignored=ignored, empty=tuple(empty), refused=str(error))
    seen = see(streams)
    exact, near = groups(seen)
    labelled = {key: stream for key, stream in streams.items() if stream.labels is not None}
    names = next(iter(streams.values())).classes
    counts = {key: dict(zip(names, stream.counts, strict=True)) for key, stream in labelled.items()}
    found = Findings(
        str(path), kind=next(iter(streams.values())).kind, classes=names, counts=counts,
        unlabelled={key: len(stream) for key, stream in streams.items() if stream.labels is None},
        domains=_domains(streams), ignored=ignored, empty=tuple(empty), unreadable=seen.unreadable,
        pictures=pictures(seen), words=words(seen), blank=blank(seen), copies=copies(seen, exact, near),
        shift=shift(seen), examples=_examples(streams), inseparable=_inseparable(streams, seen, near),
    )  # fmt: skip
    return _grouped(found)


def _inseparable(streams: Streams, seen: Seen, near: Tensor) -> str:
    """What the hold-out itself says, if training would have to do one and could not."""
    train = streams.get("train", streams.get("all"))
    rows = [row for row, (key, _) in enumerate(seen.places) if key in ("train", "all")]
    if "test" in streams or train is None or train.labels is None or len(rows) < len(train):  # damage is told of
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rare classes, which are listed
            hold_out_share(Whole(train, near[rows]), DataSettings().test_share, 0, "test")
    except UserError as error:
        return str(error)
    return ""


def _grouped(found: Findings) -> Findings:
    names = found.classes
    order = [found.train[name] for name in names]
    groups = {group: [names[k] for k in members] for group, members in head_mid_tail(order)} if order else {}
    return replace(found, groups=groups)


def _scenes(path: str, parts: Mapping[str, Listed], asked: DataSettings) -> Findings:
    there = {key: [row.path for row in part.rows if row.path.is_file()] for key, part in parts.items()}
    streams = {key: Stream(Scenes(files), None, (), key) for key, files in there.items()}
    seen = see(streams)
    boxes, examples = {}, {}  # type: dict[str, dict[str, int]], dict[str, list[str]]
    for key, part in parts.items():
        if part.labelled:
            said = Counter(label for row in part.rows for label in row.labels)
            boxes[key] = {name: said[name] for name in part.classes}
        for row in part.rows:
            for label in dict.fromkeys(row.labels):
                examples.setdefault(label, []).append(str(row.path))
    idle, domains = without_boxes(boxes), _domains(streams)
    if {"train", "all"} & parts.keys():
        domains = tuple(name for name in domains if not name.startswith("test-"))
    names = tuple(dict.fromkeys(name for some in boxes.values() for name in some if name not in idle))
    objects = objects_in(parts, dict(zip(seen.names, seen.sizes, strict=True)), idle)
    if not domains:
        first = sorted(boxes.items(), key=lambda one: one[0] not in ("train", "all"))
        try:
            names = agreed_classes(dict(first), shared=asked.classes == "intersection")
        except UserError as error:
            objects = replace(objects, faults=[*objects.faults, str(error)])
    counts = {key: {name: some.get(name, 0) for name in names} for key, some in boxes.items()}
    return _grouped(Findings(
        path, kind="scenes", classes=names, counts=counts, domains=domains, unreadable=seen.unreadable,
        unlabelled={key: len(part.rows) for key, part in parts.items() if not part.labelled}, pictures=pictures(seen),
        blank=blank(seen), copies=copies(seen, *groups(seen)), shift=shift(seen),
        objects=objects, examples={label: files[:SHOWN] for label, files in examples.items()},
    ))  # fmt: skip


def _domains(streams: Streams) -> tuple[str, ...]:
    keys = dict.fromkeys(key.partition("/")[0] for key in streams)
    return tuple(key for key in keys if key not in (*SPLITS, "all"))


def _examples(streams: Streams) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for stream in streams.values():
        if stream.labels is None:
            continue
        for row, k in enumerate(stream.labels.tolist()):
            some = found.setdefault(stream.classes[k], [])
            if len(some) < SHOWN and (file := stream.samples.path(row)) is not None:
                some.append(file)
    return found
