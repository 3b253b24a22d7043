"""Gradients of several processes become their mean: in one message, or in buckets while backward still runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from evenhand.parallel.group import bucket_group, world

BUCKET = 25 * 2**20  # bytes of a message that starts before backward has ended, as in torch's DDP


class _Message:
    """Gradients, statistics, and who has which gradient, on their way to the mean over processes."""

    @torch.no_grad()
    def __init__(
        self, parameters: Sequence[Tensor], statistics: Sequence[Tensor] = (), group: dist.ProcessGroup | None = None
    ) -> None:
        self.parameters, self.statistics = parameters, statistics
        sent = [*(torch.zeros_like(p) if p.grad is None else p.grad for p in parameters), *statistics]
        have = torch.tensor([p.grad is not None for p in parameters]).to(sent[0])
        self.flat = torch.cat([part.reshape(-1) for part in (*sent, have)])
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    @torch.no_grad()
    def read(self) -> None:
        assert self.work is not None
        self.work.wait()
        self.flat /= world()
        sizes = [part.numel() for part in (*self.parameters, *self.statistics)]
        *means, have = self.flat.split([*sizes, len(self.parameters)])
        if any(p.grad is None for p in self.parameters):  # only then: it makes a GPU wait
            for p, somewhere in zip(self.parameters, have.tolist(), strict=True):
                if p.grad is None and somewhere:
                    p.grad = torch.empty_like(p)
        for old, new in zip([*(p.grad for p in self.parameters), *self.statistics], means, strict=True):
            if old is not None:
                old.copy_(new.view_as(old))


def average_gradients(parameters: Iterable[nn.Parameter], statistics: Sequence[Tensor] = ()) -> None:
    """Replace every gradient by its mean over processes, in one message; ``statistics`` travel with them.

    A gradient that some process lacks counts as zero there; one that all lack stays away. Frozen parameters
    take no part.
    """
    trained = [p for p in parameters if p.requires_grad]
    if world() > 1 and (trained or statistics):
        _Message(trained, statistics).read()


@contextmanager
def averaging(parameters: Iterable[nn.Parameter], statistics: Sequence[Tensor] = ()) -> Iterator[None]:
    """``average_gradients`` at the end of the block, most of it done during the one backward pass inside.

    Nothing may be added to the gradients later. Buckets follow the parameters from the last to the first; one
    starts when its gradients are there and those before have started, so all processes send in one order.
    """
    if world() == 1:
        yield
        return
    trained = [p for p in parameters if p.requires_grad]
    buckets = _buckets(trained[::-1])[:-1]  # the rest is complete only when the pass is
    home = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    awaited = [set(bucket) for bucket in buckets]
    lane = bucket_group() if buckets else None
    sent: list[_Message] = []

    def arrived(p: Tensor) -> None:
        if home[p] < len(sent):
            raise RuntimeError("a gradient grew after it was sent: put only the last backward into averaging()")
        awaited[home[p]].discard(p)
        while len(sent) < len(buckets) and not awaited[len(sent)]:
            sent.append(_Message(buckets[len(sent)], group=lane))

    hooks = [p.register_post_accumulate_grad_hook(arrived) for p in home]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    sent += [_Message(bucket, group=lane) for bucket in buckets[len(sent) :]]
    average_gradients([p for p in trained if p not in home], statistics)
    for message in sent:
        message.read()


def _buckets(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """In order, each full with at least ``BUCKET`` bytes; the last one may be smaller or empty."""
    buckets: list[list[Tensor]] = [[]]
    size = 0
    for p in parameters:
        buckets[-1].append(p)
        size += p.nbytes
        if size >= BUCKET:
            buckets.append([])
            size = 0
    return buckets
