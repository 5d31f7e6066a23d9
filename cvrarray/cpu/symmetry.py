"""The half of a symmetric matrix that its file leaves out."""

from __future__ import annotations

import numpy as np

from cvrarray.cpu import simd
from cvrarray.cpu.runtime import memory
from cvrarray.cpu.runtime.compiler import kernel


def halves(row: np.ndarray, col: np.ndarray) -> tuple[int, int]:
    """How many entries lie below the diagonal, and how many above it."""
    return _halves(row, col)  # type: ignore[no-any-return]


def mirrored(
    row: np.ndarray, col: np.ndarray, val: np.ndarray, flip: tuple[int, int], plus: int, is_upper: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates with those that they have in the other half, where entries in order of rows or columns stay so.

    Parameters
    ----------
    row, col : (n,) int32 or int64
    val : (n,) of 8 or 16 bytes
    flip, plus
        What makes of each word of a value that of its mirror image: exclusive or, then added.
    is_upper
        Whether the half that is given lies above the diagonal.
    """
    n, width, n_off = row.size, val.itemsize // 8, sum(halves(row, col))
    first, given = (0, n_off) if is_upper else (n, 0)
    all_rows, all_cols, all_values = (memory.empty(n + n_off, array.dtype) for array in (row, col, val))
    words, of = all_values.view(np.uint64), val.view(np.uint64)
    _mirror(row, col, of, np.array(flip, np.uint64), np.uint64(plus), first, all_rows, all_cols, words)
    for to, array in ((all_rows, row), (all_cols, col), (words, of)):
        begin = given * (width if to is words else 1)
        to[begin : begin + array.size] = array
    return all_rows, all_cols, all_values


@kernel
def _halves(row, col):
    rows, cols, below, above = simd.pointer(row, 0), simd.pointer(col, 0), 0, 0
    for k in range(len(row)):
        below += rows[k] > cols[k]
        above += rows[k] < cols[k]
    return below, above


@kernel
def _mirror(row, col, words, flip, plus, at, all_rows, all_cols, all_words):
    n, width = len(row), len(words) // max(len(row), 1)
    for k in range(n):
        if row[k] != col[k]:
            all_rows[at], all_cols[at] = col[k], row[k]
            for part in range(width):
                all_words[at * width + part] = (words[k * width + part] ^ flip[part]) + plus
            at += 1
