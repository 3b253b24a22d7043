"""Streams: named samples with class names and counts, wherever they live."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from evenhand.errors import UserError


class Source(Protocol):
    """Where samples live: memory, files, or somebody's ``Dataset``."""

    def __len__(self) -> int: ...

    def fetch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Samples as uint8 (N, C, H, W) on the CPU; a generator asks for training-time random framing."""
        ...

    def identity(self) -> Iterable[bytes]:
        """What the digest hashes, sample by sample: content or name."""
        ...


class Memory:
    """Small images held as one uint8 tensor (N, C, H, W)."""

    def __init__(self, images: Tensor) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(
                f"images must be uint8 (N, C, H, W), got {images.dtype} {tuple(images.shape)}; "
                "scale to 0..255 and add a channel axis"
            )
        self.images = images.contiguous()

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.images.index_select(0, indices)

    def identity(self) -> Iterable[bytes]:
        yield self.images.numpy().tobytes()


@dataclass(frozen=True)
class Selected:
    """Some samples of another source, in a given order."""

    source: Source
    indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.source.fetch(self.indices[indices], generator)

    def identity(self) -> Iterable[bytes]:
        yield self.indices.numpy().tobytes()
        yield from self.source.identity()


@dataclass(frozen=True)
class Stream:
    """Samples with class names; ``labels`` is None where training must not know them."""

    source: Source
    labels: Tensor | None
    classes: tuple[str, ...]
    name: str = ""

    def __post_init__(self) -> None:
        if self.labels is None:
            return
        if len(self.labels) != len(self.source):
            raise UserError(f"stream '{self.name}': {len(self.labels)} labels for {len(self.source)} samples")
        outside = (self.labels < 0) | (self.labels >= len(self.classes))
        if outside.any():
            at = int(outside.nonzero()[0])
            raise UserError(
                f"stream '{self.name}': label {int(self.labels[at])} of sample {at} is outside "
                f"0..{len(self.classes) - 1}; renumber the labels or name every class"
            )

    def __len__(self) -> int:
        return len(self.source)

    @property
    def counts(self) -> list[int]:
        """Samples per class."""
        if self.labels is None:
            raise UserError(f"stream '{self.name}' has no labels, so no class counts")
        return torch.bincount(self.labels, minlength=len(self.classes)).tolist()

    def fetch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.source.fetch(indices, generator)

    def subset(self, indices: Tensor, name: str | None = None) -> Stream:
        """The samples at ``indices``, in that order; memory is copied, files are only re-indexed."""
        source: Source
        if isinstance(self.source, Memory):
            source = Memory(self.source.images[indices])
        else:
            source = Selected(self.source, indices)
        labels = None if self.labels is None else self.labels[indices]
        return Stream(source, labels, self.classes, self.name if name is None else name)

    def unlabelled(self) -> Stream:
        """The same samples with the labels out of reach."""
        return replace(self, labels=None)

    def digest(self) -> str:
        """First 16 hex digits of a sha256 over samples, labels and class names."""
        sha = hashlib.sha256("\0".join(self.classes).encode())
        if self.labels is not None:
            sha.update(self.labels.numpy().tobytes())
        for part in self.source.identity():
            sha.update(part)
        return sha.hexdigest()[:16]


Streams = dict[str, Stream]
