"""Whether a generator repeats its training images: how near they are, beside how near new real images are to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from evenhand.data.stream import Stream
from evenhand.measure.features import Extractor, embed
from evenhand.measure.manifold import as_features, same_dimensions
from evenhand.randomness import dice

MOST = 10_000  # images of either split that are looked at
ROUNDING = 1e-6  # of a usual distance, by which equal rows seem apart
USUAL = 0.05  # of held-out images are nearer than the distance that counts as near


def nearest(x: Any, among: Any, *, block: int = 1024) -> tuple[Tensor, Tensor]:
    """Distance of each row (N, d) to the nearest row of ``among`` (M, d), float64, and which that is, (N,) each."""
    x, among = as_features(x, "x"), as_features(among, "among")
    same_dimensions(x, among)
    found = [torch.cdist(rows.double(), among.double()).min(1) for rows in x.split(block)]
    return torch.cat([pair.values for pair in found]), torch.cat([pair.indices for pair in found])


def copying(fake: Any, seen: Any, held: Any, *, mirrored: tuple[Any, Any] | None = None) -> dict[str, float]:
    """Of features (N, d) of drawn, training and held-out images.

    ratio: median distance of drawn images to their nearest training image over that of held-out ones; 1 if they are as
    new. near: share of drawn images as near as only 5 % of held-out ones are; 0.05 if they are as new, 1 for copies.
    ``mirrored`` are the drawn and the held-out images' mirror images: the nearer of the two counts, of both alike.
    """
    drawn, fresh = (nearest(x, seen)[0] for x in (fake, held))
    if mirrored is not None:
        drawn, fresh = (
            torch.minimum(own, nearest(x, seen)[0]) for own, x in zip((drawn, fresh), mirrored, strict=True)
        )
    usual = fresh.median().clamp_min(torch.finfo(torch.float64).tiny)
    near = fresh.quantile(USUAL) + ROUNDING * usual
    return {
        "ratio": float(drawn.median() / usual),
        "near": float((drawn <= near).double().mean()),
        "images": float(len(torch.as_tensor(seen))),
    }


def copying_of(
    extractor: Extractor, images: Tensor, seen: Stream, held: Stream, *, batch: int, mirrored: bool = False
) -> dict[str, float]:
    """``copying`` of drawn images, uint8, and at most ``MOST`` images of each split, always the same ones.

    mirrored: training shows its images mirrored, too, so that a mirror image is a copy.
    """
    parts: tuple[Tensor | Stream, ...] = (images, _some(seen), _some(held))
    fake, known, fresh = (embed(extractor, part, batch=batch).features for part in parts)
    if not mirrored:
        return copying(fake, known, fresh)
    turned = replace(extractor, run=lambda x: extractor.run(x.flip(3)))
    others = [embed(turned, part, batch=batch).features for part in (parts[0], parts[2])]
    return copying(fake, known, fresh, mirrored=(others[0], others[1]))


def _some(stream: Stream) -> Stream:
    if len(stream) <= MOST:
        return stream
    rows = torch.randperm(len(stream), generator=dice(0, "copying"))[:MOST]
    return stream.subset(rows, f"some of {stream.name}")
