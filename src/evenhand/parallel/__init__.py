"""Several processes as one, over ``torch.distributed``; without it every function is the plain identity.

Networks are not wrapped. A step may run two passes, two players or second derivatives, so the gradients are
averaged by hand before they are used (:func:`average_gradients`, or :func:`averaging` around the backward pass),
BatchNorm layers see the joint batch (:func:`join_batchnorm`) and weighted means are shared by weight
(:func:`share`). With these three, R processes with 1/R of the batch each compute what one process computes with
the joint batch.
"""

from __future__ import annotations

from torch import Tensor

from evenhand.parallel.batchnorm import average_statistics, join_batchnorm, local_statistics
from evenhand.parallel.gradients import average_gradients, averaging
from evenhand.parallel.group import (
    agreed_stop,
    any_process,
    barrier,
    first_on_machine,
    is_writer,
    local_device,
    on_gpus,
    rank,
    start,
    stop,
    world,
)
from evenhand.parallel.sums import gather, stack, total

__all__ = [
    "agreed_stop", "any_process", "average_gradients", "average_statistics", "averaging", "barrier",
    "first_on_machine", "gather", "is_writer", "join_batchnorm", "local_device", "local_statistics", "mean",
    "on_gpus", "rank", "share", "stack", "start", "stop", "total", "world",
]  # fmt: skip


def mean(x: Tensor) -> Tensor:
    """Mean over processes, for statistics (no gradient)."""
    return total(x.detach()) / world()


def share(weight: Tensor) -> Tensor:
    """This process's weight over the mean weight of all: turns local weighted means into the joint one."""
    return weight.detach() / mean(weight)
