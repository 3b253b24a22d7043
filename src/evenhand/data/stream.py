"""Streams: named samples with their target and class names, wherever they live."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from evenhand.data.sources.source import Kind, Memory, Source, joined
from evenhand.data.target import Classes
from evenhand.errors import UserError

__all__ = ["Memory", "Source", "Stream", "Streams", "join"]


@dataclass(frozen=True)
class Stream:
    """Samples with class names; ``target``, a ``Target``, is None where training must not know it.

    Labels (N,) stand for ``Classes`` of them. ``workers`` processes decode the stream where it is read from end to
    end; in memory there is nothing to decode.
    """

    samples: Source
    target: Any
    classes: tuple[str, ...]
    name: str = ""
    workers: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.target, Tensor):
            object.__setattr__(self, "target", Classes(self.target))
        if self.target is None:
            return
        if len(self.target) != len(self.samples):
            raise UserError(f"stream '{self.name}': {len(self.target)} labels for {len(self.samples)} samples")
        self.target.check(len(self.classes), f"stream '{self.name}'")

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def labels(self) -> Tensor | None:
        """The class of each sample (N,), where the target is one and may be known."""
        return self.target.labels if isinstance(self.target, Classes) else None

    @property
    def kind(self) -> Kind:
        return self.samples.kind

    @property
    def counts(self) -> list[int]:
        """Samples (or objects) per class."""
        if self.target is None:
            raise UserError(f"stream '{self.name}' has no labels, so no class counts")
        return self.target.counts(len(self.classes))

    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> Any:
        """A stacked tensor, or a list where sizes differ."""
        return self.samples.fetch(rows, chance)

    def subset(self, rows: Tensor, name: str | None = None) -> Stream:
        """The samples at ``rows``, in that order; memory is copied, files are only re-indexed."""
        target = None if self.target is None else self.target.pick(rows)
        return replace(self, samples=self.samples.pick(rows), target=target, name=self.name if name is None else name)

    def unlabelled(self) -> Stream:
        """The same samples with the labels out of reach."""
        return replace(self, target=None)

    def digest(self, *, dated: bool = False) -> str:
        """First 16 hex digits of a sha256 over samples, target and class names; ``dated``: by the dates of files."""
        sha = hashlib.sha256("\0".join(self.classes).encode())
        if self.target is not None:
            sha.update(self.target.identity())
        for part in self.samples.identity(dated=dated):
            sha.update(part)
        return sha.hexdigest()[:16]


Streams = dict[str, Stream]


def needed(streams: Streams, name: str) -> Stream:
    """The stream of that name, or one line that says which there are."""
    if name not in streams:
        one = "; a method of one domain needs data without target: leave out data.target" if "source" in streams else ""
        raise UserError(f"the method needs a stream '{name}'; the data give: {', '.join(sorted(streams))}{one}")
    return streams[name]


def decoded_by(streams: Streams, workers: int) -> Streams:
    """The same streams, decoded by so many processes where they are read from end to end."""
    return {name: replace(stream, workers=workers) for name, stream in streams.items()}


def join(streams: Sequence[Stream], name: str) -> Stream:
    """One labelled stream of several with the same classes."""
    first, *others = [stream.target for stream in streams if stream.target is not None]
    return Stream(joined([s.samples for s in streams]), first.join(others), streams[0].classes, name)
