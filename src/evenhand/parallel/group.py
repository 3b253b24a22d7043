"""Who the processes are, and how they wait for each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Literal

import torch
import torch.distributed as dist

from evenhand.errors import UserError

Joining = Literal["joint", "local"]

joining: Joining = "joint"  # what `start` was told of BatchNorm
_inside = False  # this process is within first_on_machine


def start(device: torch.device, batchnorm: Joining = "joint") -> None:
    """Join the process group that ``torchrun`` describes; ``batchnorm`` is how networks are joined from now on."""
    global joining
    joining = batchnorm
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")


def stop() -> None:
    """Leave the process group when the work is done, while all its threads can still be joined.

    A group that outlives the interpreter may be met by its own threads when nothing is left to return to, and the
    process is aborted after its work. Every process must come here.
    """
    if dist.is_initialized():
        barrier()
        patient_group.cache_clear()
        bucket_group.cache_clear()
        dist.destroy_process_group()


def local_device(name: str) -> torch.device:
    """``auto`` is this process's GPU if there is one, else the CPU; ``cuda`` is this process's GPU."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        index, count = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if index >= count:
            raise UserError(f"{count} GPU(s) for more processes: start torchrun with --nproc-per-node {count}")
        return torch.device("cuda", index)
    if name == "auto":
        return torch.device("cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{name}' is not to be had here: use auto or cpu") from error
    return torch.device(name)


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_writer() -> bool:
    """Whether this process writes files and draws progress."""
    return rank() == 0


def on_gpus() -> bool:
    return dist.is_initialized() and dist.get_backend() == "nccl"


def barrier() -> None:
    if world() > 1:
        dist.barrier()


def any_process(flag: bool) -> bool:
    """Whether the flag is up anywhere, so that all processes take the same branch."""
    if world() == 1:
        return flag
    raised = torch.tensor(float(flag), device=torch.cuda.current_device() if on_gpus() else "cpu")
    dist.all_reduce(raised)
    return bool(raised > 0)


def agreed_stop(asked: bool, step: int, every: int = 10) -> bool:
    """Whether any process was asked to stop, answered alike in all: they talk (4 bytes) at every ``every``-th step."""
    return asked if world() == 1 else step % every == 0 and any_process(asked)


@cache
def patient_group() -> dist.ProcessGroup | None:
    """Downloads may outlast the ten minutes after which nccl gives up."""
    return dist.new_group(backend="gloo", timeout=timedelta(days=1))


@cache
def bucket_group() -> dist.ProcessGroup | None:
    """For gradients only: BatchNorm sends during backward too, perhaps earlier or later than elsewhere."""
    return dist.new_group()


@contextmanager
def first_on_machine() -> Iterator[None]:
    """Each machine's first process goes in alone; the others follow when it has left, and find what it made.

    Every process must come here, also one that could do without, and none may wait for another inside. If the
    first one fails, the others try for themselves. Within itself it does nothing.
    """
    global _inside
    if world() == 1 or _inside:
        yield
        return
    first, group = int(os.environ.get("LOCAL_RANK", 0)) == 0, patient_group()
    if not first:
        dist.barrier(group)
    _inside = True
    try:
        yield
    finally:
        _inside = False
        if first:
            dist.barrier(group)
