"""Freed memory is kept for the next tensor: what goes back to the system comes again page by page, by faults."""

from __future__ import annotations

import ctypes
import os
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # of the C library's malloc.h
OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed() -> bool:
    """Let this process keep what it frees; whether that could be done.

    For Linux with glibc, where blocks above 32 MB go back to the system at once. Embedding photographs on a CPU takes
    about half the time so, fine-tuning a tenth less. An allocator that the user has chosen is left alone.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: (1 << 31) - 1, TOP_PAD: 1 << 26}
    return all(mallopt(key, value) for key, value in wanted.items())
