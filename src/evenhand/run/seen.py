"""One pass over samples: sizes, damage, blank ones, copies, and how far folders are apart."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from evenhand.data.copies import BLANK, joined_up, near_pictures, near_texts, numbered, without_chains, words_of
from evenhand.data.progress import shown
from evenhand.data.sources.files import load_image, upright_size
from evenhand.data.sources.frames import choose_frame
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
    across: str  # "splits" with labels, "classes", "unlabelled" if such are among them, or "" within a class of a split
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


@dataclass
class Seen:
    """What one pass collects."""

    places: list[tuple[str, str]] = field(default_factory=list)  # split and class
    names: list[str] = field(default_factory=list)
    marks: list[bytes] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    modes: Counter[str] = field(default_factory=Counter)
    small: list[np.ndarray] = field(default_factory=list)  # (SIDE, SIDE, 3)
    texts: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def see(streams: Streams) -> Seen:
    """Every sample of every stream, once."""
    seen = Seen()
    for key, stream in streams.items():
        _pass_over(key, stream, seen)
    return seen


def _pass_over(key: str, stream: Stream, seen: Seen) -> None:
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


def pictures(seen: Seen) -> Pictures | None:
    if not seen.sizes:
        return None
    by_area = sorted(seen.sizes, key=lambda size: size[0] * size[1])
    aspects = sorted(width / height for width, height in seen.sizes)
    low, middle, high = (aspects[round(share * (len(aspects) - 1))] for share in (0.1, 0.5, 0.9))
    frame, why = choose_frame(seen.sizes)
    widths, heights = (sorted(sides)[len(sides) // 2] for sides in zip(*seen.sizes, strict=True))
    return Pictures(by_area[0], (widths, heights), by_area[-1], (low, middle, high), dict(seen.modes), frame, why)


def words(seen: Seen) -> tuple[int, int] | None:
    lengths = sorted(len(words_of(text)) for text in seen.texts)
    return (lengths[len(lengths) // 2], lengths[-1]) if lengths else None


def _grey(seen: Seen) -> np.ndarray:
    return np.stack(seen.small) @ np.array([0.299, 0.587, 0.114], np.float32)  # (N, SIDE, SIDE)


def blank(seen: Seen) -> tuple[str, ...]:
    if not seen.small:
        return ()
    flat = _grey(seen).std((1, 2)) < BLANK
    return tuple(name for name, is_flat in zip(seen.names, flat.tolist(), strict=True) if is_flat)


def groups(seen: Seen) -> tuple[Tensor, Tensor]:
    """(N,) the same number for exact copies, and for near copies."""
    exact = numbered(seen.marks)
    if seen.texts:
        return exact, joined_up(exact, near_texts(seen.texts))
    if not seen.small:
        return exact, exact
    grey = _grey(seen)
    blank = torch.from_numpy(grey.std((1, 2)) < BLANK)
    exact = torch.where(blank, torch.arange(len(exact)), exact)
    labels = numbered([label for _, label in seen.places])
    return exact, without_chains(exact, joined_up(exact, near_pictures(grey, labels)))


def copies(seen: Seen, exact: Tensor, near: Tensor) -> tuple[Copies, ...]:
    return tuple(_sets(seen, exact, False) + [c for c in _sets(seen, near, True) if not _known(c, seen, exact)])


def _sets(seen: Seen, groups: Tensor, near: bool) -> list[Copies]:
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(row)
    found = []
    for rows in members.values():
        if len(rows) > 1:
            found.append(Copies(near, _across({seen.places[row] for row in rows}), tuple(seen.names[r] for r in rows)))
    return found


def _across(places: set[tuple[str, str]]) -> str:
    told = {(split, label) for split, label in places if split.rpartition("/")[2] != "unlabelled"}
    splits, labels = ({place[i] for place in told} for i in (0, 1))
    return "splits" if len(splits) > 1 else "classes" if len(labels) > 1 else "" if told == places else "unlabelled"


def _known(some: Copies, seen: Seen, exact: Tensor) -> bool:
    """Whether near copies are exact ones, told of already."""
    number = dict(zip(seen.names, exact.tolist(), strict=True))
    return len({number[name] for name in some.names}) == 1


def shift(seen: Seen) -> dict[tuple[str, str], float]:
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
