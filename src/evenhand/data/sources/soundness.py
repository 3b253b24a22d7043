"""What is wrong with data, found before training: bad files, empty classes, leaks between splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from PIL import Image

from evenhand.data.progress import shown
from evenhand.data.sources.files import load_image
from evenhand.data.sources.formats import read
from evenhand.data.sources.paths import existing, folders_in, images_in
from evenhand.data.stream import Stream
from evenhand.errors import UserError

Data: TypeAlias = Stream | Mapping[str, Stream] | str | Path | Iterable[str | Path]


@dataclass(frozen=True)
class Problem:
    """One finding of ``find_problems``; ``file`` is the file, folder or sample it is about."""

    severity: Literal["error", "warning", "info"]
    kind: Literal["unreadable", "empty class", "duplicate", "mixed sizes", "mixed modes", "layout"]
    file: str
    message: str


def check(path: str | Path) -> list[Problem]:
    """Everything wrong with what ``formats.read`` would read, each with its file; nothing is raised."""
    try:
        return find_problems(read(path, memory=False))
    except UserError as error:
        rest = find_problems(path) if Path(path).is_dir() else []
        return [Problem("error", "layout", str(path), str(error)), *rest]


def find_problems(data: Data) -> list[Problem]:
    """Everything wrong with streams, a folder or a list of image files; every file is decoded in full.

    Samples are duplicates when their content agrees but their place (split, domain or class) does not:
    leakage from one split into another, or one image under two labels.
    """
    problems = list(_empty_classes(data))
    first: dict[bytes, tuple[str, str]] = {}  # content hash -> place and name of its first sample
    sizes: dict[tuple[int, int], str] = {}
    modes: dict[str, str] = {}
    for place, name, stream, row in shown(list(_samples(data)), "checking samples"):
        try:
            if stream is None:
                load_image(name, "RGB", 32, lambda width, height: (0, 0, width, height))  # a JPEG at an eighth
                with Image.open(name) as image:
                    sizes.setdefault(image.size, name)
                    modes.setdefault(image.mode, name)
                content = Path(name).read_bytes()
            else:
                content = stream.fetch(torch.tensor([row]))[0].numpy().tobytes()
        except UserError as error:
            problems.append(Problem("error", "unreadable", name, str(error)))
            continue
        before, twin = first.setdefault(hashlib.sha256(content).digest(), (place, name))
        if before != place:
            message = f"'{name}' in {place} has the same content as '{twin}' in {before}; keep one of them"
            problems.append(Problem("warning", "duplicate", name, message))
    if len(sizes) > 1:
        (small, name), (large, other) = min(sizes.items()), max(sizes.items())
        message = f"{len(sizes)} image sizes, such as {small} '{name}' and {large} '{other}'; all are resized"
        problems.append(Problem("info", "mixed sizes", name, message))
    if len(modes) > 1:
        examples = ", ".join(f"{mode} '{name}'" for mode, name in sorted(modes.items()))
        problems.append(Problem("info", "mixed modes", min(modes.items())[1], f"{examples}; all are converted"))
    return problems


def _streams(data: Data) -> dict[str, Stream]:
    if isinstance(data, Stream):
        return {data.name or "stream": data}
    return dict(data) if isinstance(data, Mapping) else {}


def _samples(data: Data) -> Iterator[tuple[str, str, Stream | None, int]]:
    """(place, name, where to fetch it from unless ``name`` is a file, row)."""
    for key, stream in _streams(data).items():
        for row in range(len(stream)):
            place = key if stream.labels is None else f"{key}/{stream.classes[int(stream.labels[row])]}"
            file = stream.samples.path(row)
            if file is None:
                yield place, f"sample {row} of '{key}'", stream, row
            else:
                yield place, file, None, row
    if not isinstance(data, Stream | Mapping):
        paths = images_in(Path(data)) if isinstance(data, str | Path) else data
        for path in paths:
            yield str(Path(path).parent), str(path), None, 0


def _empty_classes(data: Data) -> Iterator[Problem]:
    for key, stream in _streams(data).items():
        for name, count in zip(stream.classes, stream.counts if stream.labels is not None else (), strict=False):
            if not count:
                yield Problem("warning", "empty class", key, f"class '{name}' has no samples in '{key}'")
    for folder in _leaves(existing(data)) if isinstance(data, str | Path) else ():
        if not images_in(folder):
            # lists and notes may lie beside the classes: `check` knows which folders are classes
            severity: Literal["warning", "error"] = "warning" if any(folder.iterdir()) else "error"
            message = f"folder '{folder}' holds no images; add some or remove it"
            yield Problem(severity, "empty class", str(folder), message)


def _leaves(folder: Path) -> Iterator[Path]:
    inside = folders_in(folder)
    if not inside:
        yield folder
    for each in inside:
        yield from _leaves(each)
