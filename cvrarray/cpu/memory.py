"""Arrays for the kernels to fill."""

from __future__ import annotations

import numpy as np


def empty(size: int, dtype) -> np.ndarray:
    """Uninitialised 1-D array that begins at a cache line.

    NumPy's own large arrays begin 16 bytes after one: every load of a whole vector then touches two lines, and products
    take up to twice as long.
    """
    dtype = np.dtype(dtype)
    n_bytes = int(size) * dtype.itemsize
    if not n_bytes:  # many a table is; finding an address takes longer than making an array
        return np.empty(0, dtype)
    memory = np.empty(n_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + n_bytes].view(dtype)


def offsets(sizes: np.ndarray) -> np.ndarray:
    """(n + 1,) int64: where each of n pieces begins, and where the last ends."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def bits(values: np.ndarray) -> np.ndarray:
    """The values as unsigned integers of their size: conversions move them, and one compiled function serves all."""
    return values if values.itemsize > 8 else values.view(f"u{values.itemsize}")


def values(array: np.ndarray) -> np.ndarray:
    """Stored values as kernels take them: float16, which Numba has not on CPUs, as records, whose type tells it apart."""
    return array.view(np.dtype([("half", np.uint16)])) if array.dtype == np.float16 else array
