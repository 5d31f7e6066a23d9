"""Counts over a CSR in host memory that tell which format suits it."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def blocks_per_block_row(indptr: np.ndarray, block_col: np.ndarray, n_block_cols: int, block_size: int) -> np.ndarray:
    """(ceil(n_rows / block_size),) int64: the different block columns in every block row, given each nonzero's."""
    n_rows = indptr.size - 1
    counts = np.zeros((n_rows + block_size - 1) // block_size, np.int64)
    seen = np.zeros(n_block_cols, np.bool_)
    for block_row in range(counts.size):
        first = indptr[block_row * block_size]
        last = indptr[min((block_row + 1) * block_size, n_rows)]
        for position in range(first, last):
            counts[block_row] += not seen[block_col[position]]
            seen[block_col[position]] = True
        for position in range(first, last):
            seen[block_col[position]] = False
    return counts


@njit(nogil=True, cache=True)
def blocks_of_single_rows(indptr: np.ndarray, block_col: np.ndarray) -> int:
    """The different block columns in every row, added up: quick, and times block_size a lower bound of the blocks' entries."""
    total = 0
    for row in range(indptr.size - 1):
        last = -1
        for position in range(indptr[row], indptr[row + 1]):
            total += block_col[position] != last
            last = block_col[position]
    return total


@njit(nogil=True, cache=True)
def narrow_nonzeros(indptr: np.ndarray, indices: np.ndarray, group: int, span: int) -> int:
    """Nonzeros in groups of `group` rows whose columns span less than `span`; columns ascend in every row."""
    n_rows, total = indptr.size - 1, 0
    for first in range(0, n_rows, group):
        last = min(first + group, n_rows)
        low, high = np.int64(2**62), np.int64(-1)
        for row in range(first, last):
            if indptr[row] < indptr[row + 1]:
                low = min(low, np.int64(indices[indptr[row]]))
                high = max(high, np.int64(indices[indptr[row + 1] - 1]))
        if high - low < span:
            total += indptr[last] - indptr[first]
    return total
