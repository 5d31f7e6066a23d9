"""Prefix sums of counts: CuPy's take three launches, and as long for the host as a conversion's kernels for the device."""

from __future__ import annotations

from typing import NamedTuple

import cupy
import numpy as np

from .compiler import Kernel, blocks

THREADS, NUMBERS = 256, 8  # of a block, of a thread

SUMS = Kernel("prefix", "prefix_sums", [()], lambda: (THREADS, NUMBERS))


class Counters(NamedTuple):
    """Numbers that a conversion counts, all 0 at first: they are cleared together."""

    counts: cupy.ndarray  # (n,) int64, none negative, whose sums are wanted
    totals: cupy.ndarray  # int64, which the host reads
    state: cupy.ndarray  # of the kernel that adds the counts up


def counters(n: int, n_totals: int) -> Counters:
    """`n` counts and `n_totals` totals."""
    zeros = cupy.zeros(n + n_totals + 1 + blocks(n, THREADS * NUMBERS)[0], np.int64)
    return Counters(zeros[:n], zeros[n : n + n_totals], zeros[n + n_totals :])


def sums(counters: Counters) -> cupy.ndarray:
    """``cupy.cumsum(counters.counts)``."""
    counts, _, state = counters
    found = cupy.empty(counts.size, np.int64)
    SUMS()(blocks(counts.size, THREADS * NUMBERS), (THREADS,), (counts, np.int64(counts.size), state, found))
    return found
