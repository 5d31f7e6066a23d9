"""Products of dense operands where a matrix has entries, on the GPU. The same function as :mod:`cvrarray.cpu.sampled`."""

from __future__ import annotations

import cupy
import numpy as np

from .compiler import Kernel
from .launches import blocks

BLOCK = 256
WIDE = 16  # bytes of a load
LANES = 32  # at most, that share an entry
TOGETHER = 8  # entries that they have at a time

SAMPLED = Kernel(
    "sampled",
    "sampled_products",
    [(value, index, lanes, TOGETHER, wide, aligned)
     for value, wide in (("float32", 4), ("float64", 2), ("complex64", 2), ("complex128", 1), ("int64", 2))
     for index, lanes, aligned in (("int32", 1, True), ("int32", 16, True), ("int64", 32, False))],
)  # fmt: skip


def products(row: cupy.ndarray, col: cupy.ndarray, left: cupy.ndarray, right: cupy.ndarray, out: cupy.ndarray) -> None:
    """``out[e] = sum(left[row[e]] * right[col[e]])``: `left` (n_rows, k) and `right` (n_cols, k) in C order. The order of a sum
    is fixed by k.
    """
    k = left.shape[1]
    if not out.size or not k:
        out.fill(0)
        return
    wide = min(WIDE // out.itemsize, 1 << (k.bit_length() - 1))
    lanes = min(LANES, 1 << (-(-k // wide) - 1).bit_length())
    aligned = k % wide == 0 and not (left.data.ptr | right.data.ptr) % (wide * out.itemsize)
    SAMPLED(out.dtype, row.dtype, lanes, TOGETHER, wide, aligned)(
        blocks(-(-out.size // TOGETHER) * lanes, BLOCK), (BLOCK,), (row, col, np.int64(out.size), left, right, np.int64(k), out)
    )
