"""Products of dense operands where a matrix has entries, on the GPU. The same function as :mod:`cvrarray.cpu.sampled`."""

from __future__ import annotations

import cupy
import numpy as np

from .compiler import Kernel
from .launches import blocks

BLOCK = 256
LANES = {1: 8, 8: 4, 32: 1}  # that may share an entry: entries that a thread has at a time

SAMPLED = Kernel(
    "sampled",
    "sampled_products",
    [(value, index, lanes) for value in ("float32", "float64", "complex64", "complex128")
     for index, lanes in (("int32", 1), ("int32", 8), ("int64", 32))],
    lambda value, index, lanes: (value, index, lanes, LANES[lanes]),
)  # fmt: skip


def products(row: cupy.ndarray, col: cupy.ndarray, left: cupy.ndarray, right: cupy.ndarray, out: cupy.ndarray) -> None:
    """``out[e] = sum(left[row[e]] * right[col[e]])``: `left` (n_rows, k) and `right` (n_cols, k) in C order."""
    k = left.shape[1]
    lanes = max(n for n in LANES if n == 1 or n <= k)
    SAMPLED(out.dtype, row.dtype, lanes)(
        blocks(out.size, BLOCK // lanes * LANES[lanes]), (BLOCK,), (row, col, np.int64(out.size), left, right, np.int64(k), out)
    )
