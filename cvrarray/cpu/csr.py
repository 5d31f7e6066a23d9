"""Canonical CSR on the CPU: the checks in Numba, the sorting in SciPy."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from numba import njit

from .._tables import CSR


@njit(nogil=True, cache=True)
def _check(indptr, indices, n_cols):
    for row in range(indptr.size - 1):
        if indptr[row] > indptr[row + 1]:
            return row, -1, False
    canonical = True
    for row in range(indptr.size - 1):
        last = -1
        for position in range(indptr[row], indptr[row + 1]):
            col = indices[position]
            if col < 0 or col >= n_cols:
                return -1, position, False
            canonical &= col > last
            last = col
    return -1, -1, canonical


def check(indptr: np.ndarray, indices: np.ndarray, n_cols: int) -> tuple[int, int, bool]:
    """First row where `indptr` decreases, first position of an index out of range (-1: none), and canonical or not.

    `indptr` must begin with 0 and end with ``indices.size``.
    """
    return _check(indptr, indices, n_cols)


def canonical(row: np.ndarray, col: np.ndarray, val: np.ndarray, shape: tuple[int, int]) -> CSR:
    """Canonical CSR of coordinates in range, in any order; duplicates are summed in the order they came in."""
    if shape[0] == 0 or shape[1] == 0:
        return CSR(np.zeros(shape[0] + 1, np.int64), col, val, shape)
    csr = scipy.sparse.csr_array((val, (row, col)), shape=shape)  # sums duplicates, keeps explicit zeros
    csr.sum_duplicates()
    return CSR(csr.indptr, csr.indices.astype(col.dtype, copy=False), csr.data, shape)
