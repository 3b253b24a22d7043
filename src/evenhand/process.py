"""How a process of ours lives on its machine: freed memory is kept, idle threads do not keep a core busy for long, and
workers do not outlive whoever started them."""

from __future__ import annotations

import ctypes
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from threading import Thread

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # of the C library's malloc.h
OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed() -> bool:
    """Let this process keep what it frees; whether that could be done.

    For Linux with glibc, where large blocks go back to the system at once, to come again page by page. Embedding
    photographs on a CPU takes half the time so. An allocator that the user has chosen is left alone.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: (1 << 31) - 1, TOP_PAD: 1 << 26}
    return all(mallopt(key, value) for key, value in wanted.items())


def wait_politely() -> None:
    """Threads that wait for each other sleep after 10,000 looks instead of 300,000: to be called before torch comes.

    On a machine whose cores are busy they would wait for threads that cannot run, and a step takes up to ten times
    as long; on an idle one nothing changes. A policy that the user has chosen is left alone.
    """
    if not any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")):
        os.environ["GOMP_SPINCOUNT"] = "10000"


def workers(count: int) -> ProcessPoolExecutor:
    """Processes that keep what they free, and end with this one, however it ends.

    Those of a plain pool whose owner was killed go on with what is queued, and hold the runs that a repeated command
    asks for.
    """
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begin)


def _begin() -> None:
    keep_freed()
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None  # a worker has one
    parent.join()
    os._exit(1)  # what is trained goes on from its last checkpoint
