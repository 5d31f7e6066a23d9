"""Products of dense operands where a matrix has entries, on the CPU: sddmm, and the gradient with respect to values."""

from __future__ import annotations

import numpy as np

from . import simd
from .runtime import threads
from .runtime.caching import njit
from .runtime.compiler import OPTIONS

RANGE = 1 << 12  # entries that are one tile for the threads


@njit(**OPTIONS, fastmath={"reassoc", "contract"})  # sums as vector instructions: k fixes their order when it is compiled
def _sample(first, last, n_entries, row, col, left, right, out):
    k = left.shape[1]
    for e in range(first * RANGE, min(last * RANGE, n_entries)):
        a, b = simd.pointer(left, row[e] * k), simd.pointer(right, col[e] * k)
        total = left.dtype.type(0)
        for t in range(k):
            total += a[t] * b[t]
        out[e] = total


def products(row: np.ndarray, col: np.ndarray, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """``out[e] = sum(left[row[e]] * right[col[e]])``: `left` (n_rows, k) and `right` (n_cols, k) in C order."""
    if not out.size or not left.shape[1]:
        out.fill(0)
        return
    n_tiles = -(-out.size // RANGE)
    threads.run(_sample, np.arange(n_tiles + 1), out.size, row, col, left, right, out, unit=RANGE * left.shape[1])
