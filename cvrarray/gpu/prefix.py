"""Prefix sums of counts: CuPy's take three launches, and as long for the host as a conversion's kernels for the device."""

from __future__ import annotations

import cupy
import numpy as np

from .compiler import Kernel, blocks

THREADS, NUMBERS = 256, 8  # of a block, of a thread

SUMS = Kernel("prefix", "prefix_sums", [()], lambda: (THREADS, NUMBERS))


def n_states(n: int) -> int:
    """Words of memory, all 0, that :func:`sums` of `n` counts takes."""
    return 1 + blocks(n, THREADS * NUMBERS)[0] if n else 0


def sums(counts: cupy.ndarray, states: cupy.ndarray) -> cupy.ndarray:
    """``cupy.cumsum(counts)``, of counts (n,) int64 of which none is negative."""
    found = cupy.empty(counts.size, np.int64)
    add_up(counts, states, found)
    return found


def add_up(counts: cupy.ndarray, states: cupy.ndarray, found: cupy.ndarray) -> None:
    """:func:`sums` into an array that is there."""
    SUMS()(blocks(counts.size, THREADS * NUMBERS), (THREADS,), (counts, np.int64(counts.size), states, found))
