"""Products of dense operands where a matrix has entries, on the GPU. The same function as :mod:`cvrarray.cpu.sampled`."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from .compiler import Kernel
from .launches import blocks
from .properties import processors

BLOCK = 256
WIDE = 16  # bytes of a load
LOADS = 4  # of a row by a lane, up to LANES lanes
LANES = 32
TOGETHER = (4, 2)  # entries that a lane by itself, or several, have at a time
ROUNDS = 16  # of a thread block, at most
BLOCKS = 16  # thread blocks a multiprocessor that there are at least, if entries are enough

SAMPLED = Kernel(
    "sampled",
    "sampled_products",
    [(value, index, lanes, TOGETHER[lanes > 1], wide, aligned)
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
    lanes = min(LANES, 1 << (-(-k // (wide * LOADS)) - 1).bit_length())
    aligned = k % wide == 0 and not (left.data.ptr | right.data.ptr) % (wide * out.itemsize)
    launch(row, col, left, right, out, (lanes, TOGETHER[lanes > 1], wide, aligned))


def launch(row: Any, col: Any, left: Any, right: Any, out: Any, of: tuple[int, int, int, bool]) -> None:
    """The kernel with as many lanes, entries together and numbers a load."""
    step = BLOCK // of[0] * of[1]
    each = step * max(1, min(ROUNDS, out.size // (step * BLOCKS * processors())))
    SAMPLED(out.dtype, row.dtype, *of)(
        blocks(out.size, each),
        (BLOCK,),
        (row, col, np.int64(out.size), left, right, np.int64(left.shape[1]), np.int64(each), out),
    )
