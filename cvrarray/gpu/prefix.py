"""Prefix sums of counts: CuPy's take three launches, and as long for the host as a conversion's kernels for the device."""

from __future__ import annotations

import cupy
import numpy as np

from .compiler import Kernel
from .launches import blocks

THREADS, NUMBERS = 256, 8  # of a block, of a thread

PARTS = Kernel("prefix", "prefix_parts")
SUMS = Kernel("prefix", "prefix_sums", [()], lambda: (THREADS, NUMBERS))


def n_states(n: int) -> int:
    """Words of memory, all 0, that :func:`sums` of `n` counts takes."""
    return 1 + blocks(n, THREADS * NUMBERS)[0] if n else 0


def sums(counts: cupy.ndarray, n: int, host: int = 0, n_parts: int = 1, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """``cupy.cumsum(counts[:n])``, of int64 of which none is negative. After them `counts` has :func:`n_states` zeros.

    `host` is where memory of the host begins that gets the sum at the end of each of `n_parts` equal parts, or 0.
    """
    found = cupy.empty(n, np.int64) if out is None else out
    states = np.uint64(counts.data.ptr + 8 * n)
    SUMS()(
        blocks(n, THREADS * NUMBERS),
        (THREADS,),
        (counts, np.int64(n), states, found, np.int64(n // n_parts), np.uint64(host)),
    )
    return found


def parts(ptr: cupy.ndarray, size: int, least: int, host: int) -> cupy.ndarray:
    """(n_rows + 1,) where each row's parts begin, of `size` entries at most, and `least` parts at least; `ptr` are the rows'
    offsets. `host` is where memory of the host begins that gets the number of all parts.
    """
    counts = cupy.empty(ptr.size + n_states(ptr.size), np.int64)
    PARTS()(
        blocks(counts.size, THREADS),
        (THREADS,),
        (ptr, np.int64(ptr.size - 1), np.int64(size), np.int64(least), counts, np.int64(counts.size)),
    )
    return sums(counts, ptr.size, host)
