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
        """Samples on the CPU, as ``Memory`` holds them; a generator asks for training-time random framing."""
        ...

    def identity(self) -> Iterable[bytes]:
        """What the digest hashes, sample by sample: content or name."""
        ...


class Memory:
    """Samples held as one tensor: uint8 images (N, C, H, W), float32 vectors (N, d) or int64 tokens (N, L)."""

    def __init__(self, samples: Tensor) -> None:
        if (samples.dtype, samples.ndim) not in ((torch.uint8, 4), (torch.float32, 2), (torch.int64, 2)):
            raise ValueError(
                f"samples are {samples.dtype} {tuple(samples.shape)}; give images as uint8 (N, C, H, W), scaled to "
                "0..255, vectors as float32 (N, d) or tokens as int64 (N, L)"
            )
        self.samples = samples.contiguous()

    def __len__(self) -> int:
        return len(self.samples)

    def fetch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.samples.index_select(0, indices)

    def identity(self) -> Iterable[bytes]:
        yield self.samples.numpy().tobytes()


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
            source = Memory(self.source.samples[indices])
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
