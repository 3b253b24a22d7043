"""What is in somebody's data, found in one pass: counts, shapes, damage, copies, shift. Nothing here prints."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from evenhand.data.copies import BLANK, joined_up, near_pictures, near_texts, numbered, without_chains, words_of
from evenhand.data.progress import shown
from evenhand.data.sources import formats
from evenhand.data.sources.files import load_image, upright_size
from evenhand.data.sources.frames import choose_frame
from evenhand.data.sources.paths import SPLITS, existing, other_files
from evenhand.data.splits import head_mid_tail
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError
from evenhand.measure.two_sample import simple_features, told_apart

SIDE = 32
ENOUGH = 30  # samples of each of two folders that are compared
PAIRS = 10  # folders compared


@dataclass(frozen=True)
class Copies:
    """Samples with the same content, or nearly."""

    near: bool
    across: str  # "splits", "classes", or "" within one class of one split
    names: tuple[str, ...]


@dataclass(frozen=True)
class Pictures:
    """Shapes and colours of image files."""

    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]
    aspects: tuple[float, float, float]  # width over height: tenth, middle and ninetieth of a hundred
    modes: Mapping[str, int]
    frame: str
    why: str


@dataclass(frozen=True)
class Findings:
    """Everything that ``look`` tells and ``train DIR`` goes by."""

    path: str
    kind: str = ""
    classes: tuple[str, ...] = ()
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # split or domain -> class -> samples
    unlabelled: Mapping[str, int] = field(default_factory=dict)
    domains: tuple[str, ...] = ()
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pictures: Pictures | None = None
    words: tuple[int, int] | None = None  # median and longest text
    unreadable: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    empty: tuple[str, ...] = ()
    blank: tuple[str, ...] = ()
    copies: tuple[Copies, ...] = ()
    shift: Mapping[tuple[str, str], float] = field(default_factory=dict)  # how often two folders are told apart
    refused: str = ""  # why nothing could be read
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)  # class -> some files

    @property
    def train(self) -> Mapping[str, int]:
        """Labelled training samples of each class: all there are, where nothing is said of splits."""
        whole: Counter[str] = Counter()
        for split, counts in self.counts.items():
            if split not in ("val", "test"):
                whole.update(counts)
        return whole

    @property
    def imbalance(self) -> float:
        some = [n for n in self.train.values() if n]
        return max(some) / min(some) if some else 1.0

    @property
    def single(self) -> tuple[str, ...]:
        return tuple(name for name, n in self.train.items() if n == 1)

    @property
    def spoils(self) -> bool:
        """Whether training would stop at something."""
        return bool(self.refused or self.unreadable or self.empty)


@dataclass
class _Seen:
    """What one pass collects."""

    places: list[tuple[str, str]] = field(default_factory=list)  # split and class
    names: list[str] = field(default_factory=list)
    marks: list[bytes] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    modes: Counter[str] = field(default_factory=Counter)
    small: list[np.ndarray] = field(default_factory=list)  # (SIDE, SIDE, 3)
    texts: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def find(path: str | Path, **reading: Any) -> Findings:
    """Look through a folder, CSV, JSONL or ``.npz``; ``reading`` goes to ``formats.read``."""
    place, empty = existing(path), []  # type: tuple[Path, list[str]]
    ignored = other_files(place) if place.is_dir() else {}
    try:
        streams = formats.read(place, memory=False, empty=empty, **reading)
    except UserError as error:
        return Findings(str(path), ignored=ignored, empty=tuple(empty), refused=str(error))
    seen = _Seen()
    for key, stream in streams.items():
        _pass_over(key, stream, seen)
    labelled = {key: stream for key, stream in streams.items() if stream.labels is not None}
    names = next(iter(streams.values())).classes
    counts = {key: dict(zip(names, stream.counts, strict=True)) for key, stream in labelled.items()}
    found = Findings(
        str(path), kind=next(iter(streams.values())).kind, classes=names, counts=counts,
        unlabelled={key: len(stream) for key, stream in streams.items() if stream.labels is None},
        domains=_domains(streams), ignored=ignored, empty=tuple(empty), unreadable=seen.unreadable,
        pictures=_pictures(seen), words=_words(seen), blank=_blank(seen), copies=_copies(seen), shift=_shift(seen),
        examples=_examples(streams),
    )  # fmt: skip
    order = [found.train[name] for name in names]
    groups = {group: [names[k] for k in members] for group, members in head_mid_tail(order)} if order else {}
    return Findings(**{**vars(found), "groups": groups})


def _pass_over(key: str, stream: Stream, seen: _Seen) -> None:
    for row in shown(range(len(stream)), f"looking at {key}"):
        label = "" if stream.labels is None else stream.classes[int(stream.labels[row])]
        file, name = stream.samples.path(row), stream.samples.name(row)
        picture = None
        try:
            if file is not None:
                picture = load_image(file, "RGB", SIDE, lambda w, h: (0, 0, w, h))
                content = Path(file).read_bytes()
                with Image.open(file) as image:
                    size, mode = upright_size(image), image.mode
                seen.sizes.append(size)
                seen.modes[mode] += 1
            elif stream.kind == "texts":
                text = stream.samples.texts[row]  # type: ignore[attr-defined]
                seen.texts.append(text)
                content = " ".join(words_of(text)).encode()
            else:
                sample = stream.fetch(torch.tensor([row]))[0]
                content = sample.numpy().tobytes()
                if stream.kind == "images":
                    pixels = sample.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
                    picture = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
                    seen.sizes.append((pixels.shape[1], pixels.shape[0]))
                    seen.modes["L" if len(sample) == 1 else "RGB"] += 1
        except (UserError, OSError) as error:
            seen.unreadable[file or name] = str(error)
            continue
        if picture is not None:
            seen.small.append(np.asarray(picture, np.float32))
        seen.places.append((key, label))
        seen.names.append(file or f"{key}: {name}")
        seen.marks.append(hashlib.sha256(content).digest())


def _domains(streams: Streams) -> tuple[str, ...]:
    keys = dict.fromkeys(key.partition("/")[0] for key in streams)
    return tuple(key for key in keys if key not in (*SPLITS, "all"))


def _examples(streams: Streams, most: int = 6) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for stream in streams.values():
        if stream.labels is None:
            continue
        for row, k in enumerate(stream.labels.tolist()):
            some = found.setdefault(stream.classes[k], [])
            if len(some) < most and (file := stream.samples.path(row)) is not None:
                some.append(file)
    return found


def _pictures(seen: _Seen) -> Pictures | None:
    if not seen.sizes:
        return None
    by_area = sorted(seen.sizes, key=lambda size: size[0] * size[1])
    aspects = sorted(width / height for width, height in seen.sizes)
    low, middle, high = (aspects[round(share * (len(aspects) - 1))] for share in (0.1, 0.5, 0.9))
    frame, why = choose_frame(seen.sizes)
    widths, heights = (sorted(sides)[len(sides) // 2] for sides in zip(*seen.sizes, strict=True))
    return Pictures(by_area[0], (widths, heights), by_area[-1], (low, middle, high), dict(seen.modes), frame, why)


def _words(seen: _Seen) -> tuple[int, int] | None:
    lengths = sorted(len(words_of(text)) for text in seen.texts)
    return (lengths[len(lengths) // 2], lengths[-1]) if lengths else None


def _grey(seen: _Seen) -> np.ndarray:
    return np.stack(seen.small) @ np.array([0.299, 0.587, 0.114], np.float32)  # (N, SIDE, SIDE)


def _blank(seen: _Seen) -> tuple[str, ...]:
    if not seen.small:
        return ()
    flat = _grey(seen).std((1, 2)) < BLANK
    return tuple(name for name, is_flat in zip(seen.names, flat.tolist(), strict=True) if is_flat)


def _copies(seen: _Seen) -> tuple[Copies, ...]:
    exact = numbered(seen.marks)
    if seen.texts:
        near = joined_up(exact, near_texts(seen.texts))
    elif seen.small:
        grey = _grey(seen)
        blank = torch.from_numpy(grey.std((1, 2)) < BLANK)
        exact = torch.where(blank, torch.arange(len(exact)), exact)
        labels = numbered([label for _, label in seen.places])
        near = without_chains(exact, joined_up(exact, near_pictures(grey, labels)))
    else:
        near = exact
    return tuple(_sets(seen, exact, False) + [c for c in _sets(seen, near, True) if not _known(c, seen, exact)])


def _sets(seen: _Seen, groups: Tensor, near: bool) -> list[Copies]:
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(row)
    found = []
    for rows in members.values():
        if len(rows) > 1:
            splits, labels = ({seen.places[row][i] for row in rows} for i in (0, 1))
            across = "splits" if len(splits) > 1 else "classes" if len(labels) > 1 else ""
            found.append(Copies(near, across, tuple(seen.names[row] for row in rows)))
    return found


def _known(some: Copies, seen: _Seen, exact: Tensor) -> bool:
    """Whether near copies are exact ones, told of already."""
    number = dict(zip(seen.names, exact.tolist(), strict=True))
    return len({number[name] for name in some.names}) == 1


def _shift(seen: _Seen) -> dict[tuple[str, str], float]:
    """How often a linear classifier on simple features tells two folders apart, on samples it has not seen."""
    if not seen.small:
        return {}
    features = simple_features(np.stack(seen.small), seen.sizes)
    rows: dict[str, list[int]] = {}
    for row, (split, _) in enumerate(seen.places):
        rows.setdefault(split, []).append(row)
    large = [split for split, some in rows.items() if len(some) >= ENOUGH]
    found = {}
    for one, other in list(combinations(large, 2))[:PAIRS]:
        found[one, other] = told_apart(features[rows[one]], features[rows[other]])
    return found
