"""Products of dense operands where a matrix has entries, on the CPU: the gradient with respect to a matrix's values."""

from __future__ import annotations

import numpy as np

from .runtime import threads
from .runtime.compiler import kernel

RANGE = 1 << 12  # entries that are one tile for the threads


@kernel
def _sample(first, last, n_entries, row, col, left, right, out):
    k = left.shape[1]
    for e in range(first * RANGE, min(last * RANGE, n_entries)):
        a, b = row[e], col[e]
        total = left[a, 0] * right[b, 0]
        for t in range(1, k):
            total += left[a, t] * right[b, t]
        out[e] = total


def products(row: np.ndarray, col: np.ndarray, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """``out[e] = sum(left[row[e]] * right[col[e]])``: `left` (n_rows, k) and `right` (n_cols, k) in C order."""
    if not out.size or not left.shape[1]:
        out.fill(0)
        return
    n_tiles = -(-out.size // RANGE)
    threads.run(_sample, np.arange(n_tiles + 1), out.size, row, col, left, right, out, unit=RANGE * left.shape[1])
