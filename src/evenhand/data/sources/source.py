"""Where samples live: memory, files, databases, somebody's ``Dataset``. Nobody outside this room asks which."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.data.sources.frames import Cuts, Frame, cut_arrays

Kind = Literal["images", "vectors", "tokens", "texts", "scenes"]  # scenes: images with objects, of any size
Samples = Tensor | list[Tensor]  # stacked, or one by one where sizes differ

KINDS: dict[tuple[torch.dtype, int], Kind] = {
    (torch.uint8, 4): "images", (torch.float32, 2): "vectors", (torch.int64, 2): "tokens",
}  # fmt: skip
LUMA = (0.299, 0.587, 0.114)


class Source(ABC):
    """Samples by row: uint8 images (N, C, H, W), float32 vectors (N, d), int64 tokens (N, L) or texts.

    ``decodes`` says that fetching takes work which loader processes should share. ``origin`` has, row by row, what a
    person would look at where that is something else: the images that features are of, the texts of tokens.
    """

    kind: Kind = "images"
    decodes: bool = True
    frame: Frame | None = None  # how pictures became squares, where they were not such already
    origin: Source | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> Samples:
        """Samples on the CPU; ``chance`` asks for the random framing of training."""

    @abstractmethod
    def name(self, row: int) -> str:
        """A sample's path or place, the same wherever it is picked, joined or held."""

    def path(self, row: int) -> str | None:
        """The file that holds this sample alone, if there is one."""
        return None

    def text(self, row: int) -> str:
        """The sample itself where it is a text, else nothing."""
        return ""

    @abstractmethod
    def identity(self, *, dated: bool = False) -> Iterable[bytes]:
        """What a digest hashes: content or names; ``dated`` adds when files were changed."""

    @property
    def stored(self) -> int:
        """How many files there are where these were picked from, of which an identity may know a part; 0: none."""
        return 0

    def pick(self, rows: Tensor) -> Source:
        """The samples at ``rows``, in that order."""
        return Picked(self, rows)

    def framed(self, side: int, channels: int) -> Source:
        """The same images as (channels, side, side); what is no image stays as it is."""
        return self

    def squared(self) -> Source:
        """The same images; random framing takes squares of the full shorter side. What is not framed stays as it is."""
        return self

    def boxed(self, cuts: Cuts) -> Source | None:
        """The same pictures, of which ``fetch`` with chance gives a random box each; None where none is left to cut."""
        return None


class Memory(Source):
    """Samples held as one tensor; ``names`` default to row numbers. ``files`` are what they were decoded from."""

    decodes = False

    def __init__(
        self, samples: Tensor, names: Sequence[str] | None = None, origin: Source | None = None, *,
        frame: Frame | None = None, files: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        if (samples.dtype, samples.ndim) not in KINDS:
            raise ValueError(
                f"samples are {samples.dtype} {tuple(samples.shape)}; give images as uint8 (N, C, H, W), scaled to "
                "0..255, vectors as float32 (N, d) or tokens as int64 (N, L)"
            )
        self.samples, self.kind = samples.contiguous(), KINDS[samples.dtype, samples.ndim]
        self.names, self.frame = range(len(samples)) if names is None else names, frame
        self.files, self.origin = files, origin

    def __len__(self) -> int:
        return len(self.samples)

    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> Tensor:
        return self.samples.index_select(0, rows)

    def name(self, row: int) -> str:
        return str(self.names[row])

    def path(self, row: int) -> str | None:
        return None if self.files is None else self.files[row]

    def pick(self, rows: Tensor) -> Memory:
        places = rows.tolist()
        names = [self.name(row) for row in places]
        files = None if self.files is None else [self.files[row] for row in places]
        origin = self.origin and Picked(self.origin, rows)  # looked at, not learnt from: not copied
        return Memory(self.samples[rows], names, origin, frame=self.frame, files=files)

    def framed(self, side: int, channels: int) -> Memory:
        if self.kind != "images" or self.samples.shape[1:] == (channels, side, side):
            return self
        parts = [reframed(some, side, channels) for some in self.samples.split(4096)]
        frame = self.frame and replace(self.frame, side=side, resize=round(self.frame.resize * side / self.frame.side))
        return Memory(torch.cat(parts), self.names, frame=frame, files=self.files)  # type: ignore[arg-type]

    def cut(self, frame: Frame, channels: int) -> Memory:
        """The images as a file of each would be seen in this frame."""
        if self.kind != "images":
            return self
        images = reframed(self.samples, 0, channels)
        if images.shape[-2:] != (frame.side, frame.side) or frame.resize > frame.side:
            images = cut_arrays(images, frame)
        return Memory(images, self.names, frame=frame)  # type: ignore[arg-type]

    def identity(self, *, dated: bool = False) -> Iterable[bytes]:
        yield self.samples.numpy().tobytes()


class Picked(Source):
    """Some samples of another source, in a given order."""

    def __init__(self, inner: Source, rows: Tensor) -> None:
        self.inner, self.rows = inner, rows
        self.kind, self.decodes, self.frame = inner.kind, inner.decodes, inner.frame
        self.origin = inner.origin and inner.origin.pick(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> Samples:
        return self.inner.fetch(self.rows[rows], chance)

    def name(self, row: int) -> str:
        return self.inner.name(int(self.rows[row]))

    def path(self, row: int) -> str | None:
        return self.inner.path(int(self.rows[row]))

    def text(self, row: int) -> str:
        return self.inner.text(int(self.rows[row]))

    def pick(self, rows: Tensor) -> Source:
        return Picked(self.inner, self.rows[rows])

    def framed(self, side: int, channels: int) -> Source:
        return Picked(self.inner.framed(side, channels), self.rows)

    def squared(self) -> Source:
        return Picked(self.inner.squared(), self.rows)

    def boxed(self, cuts: Cuts) -> Source | None:
        inner = self.inner.boxed(cuts)
        return None if inner is None else Picked(inner, self.rows)

    @property
    def stored(self) -> int:
        return self.inner.stored

    def identity(self, *, dated: bool = False) -> Iterable[bytes]:
        yield self.rows.numpy().tobytes()
        yield from self.inner.identity(dated=dated)


class Joined(Source):
    """Several sources of one kind, one after the other."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self.parts = tuple(parts)
        self.kind, self.decodes = parts[0].kind, any(part.decodes for part in parts)
        self.frame = parts[0].frame
        self.starts = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _part(self, rows: Tensor) -> Tensor:
        return torch.bucketize(rows, self.starts[1:], right=True)

    def fetch(self, rows: Tensor, chance: torch.Generator | None = None) -> Samples:
        which = self._part(rows)
        found = [(which == i).nonzero()[:, 0] for i in range(len(self.parts))]
        got = [
            part.fetch(rows[at] - start, chance)
            for part, start, at in zip(self.parts, self.starts, found, strict=False)
            if len(at)
        ]
        order = torch.cat(found).argsort()
        if got and all(isinstance(some, Tensor) for some in got):
            return torch.cat(got)[order]  # type: ignore[arg-type]
        listed = [image for some in got for image in some]
        return [listed[i] for i in order.tolist()] if got else self.parts[0].fetch(rows)

    def _at(self, row: int) -> tuple[Source, int]:
        part = int(self._part(torch.tensor(row)))
        return self.parts[part], row - int(self.starts[part])

    def name(self, row: int) -> str:
        part, inside = self._at(row)
        return part.name(inside)

    def path(self, row: int) -> str | None:
        part, inside = self._at(row)
        return part.path(inside)

    def text(self, row: int) -> str:
        part, inside = self._at(row)
        return part.text(inside)

    def framed(self, side: int, channels: int) -> Source:
        return Joined([part.framed(side, channels) for part in self.parts])

    def squared(self) -> Source:
        return Joined([part.squared() for part in self.parts])

    def boxed(self, cuts: Cuts) -> Source | None:
        boxed = [part.boxed(cuts) for part in self.parts]
        whole = [part for part in boxed if part is not None]
        return Joined(whole) if len(whole) == len(boxed) else None

    @property
    def stored(self) -> int:
        return max(part.stored for part in self.parts)  # each has its own files probed

    def identity(self, *, dated: bool = False) -> Iterable[bytes]:
        for part in self.parts:
            yield from part.identity(dated=dated)


def joined(parts: Sequence[Source]) -> Source:
    """One source of several; what is all in memory becomes one tensor."""
    if len(parts) == 1:
        return parts[0]
    held = [part for part in parts if isinstance(part, Memory)]
    if len(held) < len(parts):
        return Joined(parts)
    names = [part.name(row) for part in held for row in range(len(part))]
    origins = [part.origin for part in held if part.origin is not None]
    origin = joined(origins) if len(origins) == len(held) else None
    files = [path for part in held for row in range(len(part)) if (path := part.path(row)) is not None]
    known = files if len(files) == len(names) else None
    return Memory(torch.cat([part.samples for part in held]), names, origin, frame=held[0].frame, files=known)


def reframed(images: Tensor, side: int, channels: int) -> Tensor:
    """uint8 (N, C, H, W) to (N, channels, side, side): luma for grey, bilinear without aliasing for size, if any."""
    if channels < images.shape[1]:
        images = (images * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True).round().byte()
    if side and images.shape[-2:] != (side, side):
        images = F.interpolate(images, (side, side), mode="bilinear", antialias=True)
    return images.expand(-1, channels, -1, -1)
