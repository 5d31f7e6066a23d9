"""Counts over a CSR in host memory that tell which format suits it."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def blocks_per_block_row(indptr: np.ndarray, indices: np.ndarray, block_size: int) -> np.ndarray:
    """(ceil(n_rows / block_size),) int64: the different block columns in every block row; columns ascend in every row."""
    n_rows = indptr.size - 1
    counts = np.zeros((n_rows + block_size - 1) // block_size, np.int64)
    here = np.zeros(block_size, np.int64)
    for block_row in range(counts.size):
        first = block_row * block_size
        last = min(first + block_size, n_rows)
        for row in range(first, last):
            here[row - first] = indptr[row]
        while True:  # merge the rows by block column
            lowest = np.int64(2**62)
            for row in range(first, last):
                if here[row - first] < indptr[row + 1]:
                    lowest = min(lowest, np.int64(indices[here[row - first]]) // block_size)
            if lowest == 2**62:
                break
            counts[block_row] += 1
            for row in range(first, last):
                while here[row - first] < indptr[row + 1] and indices[here[row - first]] // block_size == lowest:
                    here[row - first] += 1
    return counts


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
