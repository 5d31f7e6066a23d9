"""Where ``A @ X`` with few columns goes as ``A @ x`` on a GPU, a row of X being an entry of x.

The kernels follow it, and the choice of a format, which knows as much. Measured:
``docs/measurements/matrix-products.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Columns of X, and bytes of a row of it that are one load; two are worth it where a product waits for loads, not for bytes.
COLUMNS, ONE_LOAD, TWO_LOADS = (2, 4, 8), 16, 32

#: Of BBCSR. Two loads of 8-byte numbers pay in blocks of so many columns, whose entries of x lie side by side.
LARGE_BLOCK = 6
#: Rows are uneven where the longest has more blocks than the first number, and so many times the average. Few bins of longer
#: ones than LONG are shared by more lanes otherwise.
UNEVEN, LONG, FEW_BINS = (16, 4), 100, 2000
#: Of rows with more than SHORT entries a vector's kernel reads all padding, which is much from so many slots a nonzero on.
SHORT, MUCH_PADDING = 8, 1.6


class Bins(NamedTuple):
    """Of a BBCSR array."""

    n_bins: int
    block_size: int
    mean: float  # blocks of a row, padding counted
    most: float
    padding: float  # slots over nonzeros


def row_bytes(dtype: np.dtype, k: int) -> int:
    """Bytes of a row of `k` columns that may be an entry; 0: it may not, whatever the matrix is."""
    is_number = dtype.kind in "fc" and dtype.itemsize >= 4
    return k * dtype.itemsize if is_number and k in COLUMNS and k * dtype.itemsize <= TWO_LOADS else 0


def suit_chunks(n_bytes: int, is_row_by_row: bool) -> bool:
    """Whether rows of X, of so many bytes, are entries for CVR, whose products with vectors go row by row or not."""
    return 0 < n_bytes <= (TWO_LOADS if is_row_by_row else ONE_LOAD)


def suit_bins(n_bytes: int, itemsize: int, bins: Bins) -> bool:
    """Whether they are for BBCSR; a number of X has `itemsize` bytes."""
    if not 0 < n_bytes <= (TWO_LOADS if itemsize == 8 and bins.block_size >= LARGE_BLOCK else ONE_LOAD):
        return False
    if bins.most > max(UNEVEN[0], UNEVEN[1] * bins.mean) or (bins.most > LONG and bins.n_bins < FEW_BINS):
        return False
    return bins.block_size > 1 or bins.most <= SHORT or bins.padding <= MUCH_PADDING
