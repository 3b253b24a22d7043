"""Sources of images brought to one frame (side and channels), and joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.data.sources.files import Files
from evenhand.data.stream import Memory, Selected, Source, Stream

LUMA = (0.299, 0.587, 0.114)


def reframe(source: Source, side: int, channels: int) -> Source:
    """The same images as (channels, side, side): files decode so, memory is converted now."""
    if isinstance(source, Selected):
        return Selected(reframe(source.source, side, channels), source.indices)
    if isinstance(source, Files):
        mode = "L" if channels == 1 else "RGB"
        return source if (source.size, source.mode) == (side, mode) else Files(source.paths, size=side, mode=mode)
    assert isinstance(source, Memory)
    if source.samples.ndim == 2:
        return source  # vectors have no frame
    if source.samples.shape[1:] == (channels, side, side):
        return source
    return Memory(torch.cat([_convert(some, side, channels) for some in source.samples.split(4096)]))


def _convert(images: Tensor, side: int, channels: int) -> Tensor:
    """uint8 (N, C, H, W) to (N, channels, side, side): luma for grey, bilinear without aliasing for size."""
    if channels < images.shape[1]:
        images = (images * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True).round().byte()
    if images.shape[-2:] != (side, side):
        images = F.interpolate(images, (side, side), mode="bilinear", antialias=True)
    return images.expand(-1, channels, -1, -1)


@dataclass(frozen=True)
class Joined:
    """Several sources, one after the other."""

    sources: tuple[Source, ...]

    def __len__(self) -> int:
        return sum(len(source) for source in self.sources)

    def fetch(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        starts = torch.tensor([0, *(len(source) for source in self.sources)]).cumsum(0)
        which = torch.bucketize(indices, starts[1:], right=True)
        found = [(which == i).nonzero()[:, 0] for i in range(len(self.sources))]
        parts = [
            source.fetch(indices[at] - start, generator)
            for source, start, at in zip(self.sources, starts, found, strict=False)
            if len(at)
        ]
        return torch.cat(parts)[torch.cat(found).argsort()] if parts else self.sources[0].fetch(indices)

    def identity(self) -> Iterable[bytes]:
        for source in self.sources:
            yield from source.identity()


def join(streams: Sequence[Stream], name: str) -> Stream:
    """One stream of several with the same classes."""
    if len(streams) == 1:
        return replace(streams[0], name=name)
    sources = [stream.source for stream in streams]
    memory = [source.samples for source in sources if isinstance(source, Memory)]
    whole: Source = Memory(torch.cat(memory)) if len(memory) == len(sources) else Joined(tuple(sources))
    labels = [stream.labels for stream in streams if stream.labels is not None]
    return Stream(whole, torch.cat(labels), streams[0].classes, name)
