"""Arrays for the kernels to fill."""

from __future__ import annotations

import numpy as np

from cvrarray.cpu.runtime import regions
from cvrarray.cpu.runtime.caching import njit
from cvrarray.cpu.runtime.regions import installed

__all__ = ["PAST_CACHES", "bits", "empty", "goes_past_caches", "installed", "offsets", "values"]

#: Bytes of a table that is written past the caches, which hold no such table for long.
PAST_CACHES = 1 << 24

_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def empty(size: int, dtype) -> np.ndarray:
    """Uninitialised 1-D array that begins at a cache line.

    NumPy's own large arrays begin 16 bytes after one: every load of a whole vector then touches two lines, and products
    take up to twice as long.
    """
    dtype = np.dtype(dtype)
    if not size:  # many tables are empty, and finding the address takes longer than making the array
        return np.empty(0, dtype)
    n_bytes = int(size) * dtype.itemsize + 64
    memory = np.empty(n_bytes, np.uint8) if n_bytes < regions.SMALLEST else regions.empty(n_bytes)
    return np.ndarray(size, dtype, memory, _to_line(memory))


@njit(nogil=True, cache=True, _nrt=False, no_cfunc_wrapper=True)
def _to_line(array):
    """Bytes to the next cache line. In NumPy, ``array.ctypes.data`` takes six times as long as this call."""
    return -array.ctypes.data % 64


def begins_at_line(array: np.ndarray) -> bool:
    """Whether a contiguous array begins at a cache line."""
    return bool(_to_line(bits(array)) == 0)


def offsets(sizes: np.ndarray) -> np.ndarray:
    """(n + 1,) int64: where each of n pieces begins, and where the last ends."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


@njit(nogil=True, cache=True, _nrt=False, no_cfunc_wrapper=True)
def accumulate(counts):
    """Turn counts, int64, into their sums up to each; the last of them. ``numpy.cumsum`` takes four times as long."""
    total = 0
    for k in range(len(counts)):
        total += counts[k]
        counts[k] = total
    return total


def goes_past_caches(table: np.ndarray) -> bool:
    """Whether a table is better written by ``simd.stream``."""
    return bool(table.nbytes > PAST_CACHES and _to_line(table) == 0)


def bits(values: np.ndarray) -> np.ndarray:
    """The values as unsigned integers of their size: conversions only move them, so one version serves all dtypes."""
    return values if values.itemsize > 8 else values.view(_BITS[values.itemsize])


def values(array: np.ndarray) -> np.ndarray:
    """Stored values as kernels take them. Numba has no float16 on CPUs: such values go as records of 16 bits."""
    return array.view(np.dtype([("half", np.uint16)])) if array.dtype == np.float16 else array
