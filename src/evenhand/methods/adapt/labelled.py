"""Batches of labelled samples where some of the target's are known: as the authors of S3VAADA take turns, or mixed."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import Feed
from evenhand.data.samplers import _Steps
from evenhand.data.stream import Streams, join
from evenhand.data.views.view import View
from evenhand.methods.adapt.tables import LabelledTable
from evenhand.randomness import dice, mix


class TargetFirst(_Steps):
    """An epoch has all batches of the first ``known`` rows (labelled target), then batches of the others (source).

    It ends when they or ``pool`` (unlabelled target) run out: min(ceil(known / b) + ceil(others / b), ceil(pool / b))
    steps (spec 08, 2.6). A last batch that is not full is filled from the front of its permutation.
    """

    def __init__(self, known: int, others: int, pool: int, batch: int, seed: int, *, rank: int, world: int) -> None:
        self.known, self.others, self.size, self.seed = known, others, batch, seed
        self.first = -(-known // batch)
        super().__init__(batch, min(self.first - (-others // batch), -(-pool // batch)), rank, world)

    def joint(self, step: int) -> Tensor:
        epoch, at = divmod(step, self.steps_per_epoch)
        if at < self.first:
            return wrapped(self.known, at, self.size, mix(self.seed, "known", epoch))
        return self.known + wrapped(self.others, at - self.first, self.size, mix(self.seed, "others", epoch))


class Mixed(_Steps):
    """Every batch has ``share`` of its rows, at least one, from the first ``known`` rows, the rest from the others.

    An epoch is a pass over the others.
    """

    def __init__(self, known: int, others: int, batch: int, share: float, seed: int, *, rank: int, world: int) -> None:
        self.known, self.others, self.size, self.seed = known, others, batch, seed
        self.part = min(batch - 1, max(1, round(share * batch)))
        super().__init__(batch, -(-others // (batch - self.part)), rank, world)

    def joint(self, step: int) -> Tensor:
        parts = []
        for name, start, count, size in (
            ("known", 0, self.known, self.part),
            ("others", self.known, self.others, self.size - self.part),
        ):
            epoch, at = divmod(step, -(-count // size))
            parts.append(start + wrapped(count, at, size, mix(self.seed, name, epoch)))
        return torch.cat(parts)


def wrapped(count: int, at: int, size: int, seed: int) -> Tensor:
    """The ``at``-th batch of a permutation of ``count`` rows, from its front again where it ends."""
    return torch.randperm(count, generator=dice(seed))[(at * size + torch.arange(size)) % count]


def two_feeds(
    s: LabelledTable, streams: Streams, batch: int, view: View, seed: int, *, short: bool = False
) -> dict[str, Feed]:
    """ "source", with what is labelled of the target, which counts as source; and "target".

    ``short``: also without labelled target samples an epoch ends with the shorter of the two, as in spec 08.
    """
    target = Feed("target", batch, (view,), whole=s.centre)
    labelled = streams["source"]
    known = streams.get("target_labelled") if s.target_labels else None
    if known is None and not (short and s.target_share is None):
        return {"source": Feed("source", batch, (view,), whole=s.centre), "target": target}
    if known is not None:
        labelled = join([known, labelled], "source")
    sizes = (0 if known is None else len(known)), len(streams["source"])
    seed, place = mix(seed, "labelled"), {"rank": parallel.rank(), "world": parallel.world()}
    picks: TargetFirst | Mixed
    if s.target_share is None:
        picks = TargetFirst(*sizes, len(streams["target"]) if "target" in streams else sum(sizes), batch, seed, **place)
    else:
        picks = Mixed(*sizes, batch, s.target_share, seed, **place)
    return {"source": Feed(labelled, batch, (view,), picks=picks, whole=s.centre), "target": target}
