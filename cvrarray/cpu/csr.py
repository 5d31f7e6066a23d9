"""Canonical CSR on the CPU: the checks in Numba, the sorting in SciPy."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from numba import njit

from .._tables import CSR


@njit(nogil=True, cache=True)
def _check(indptr, indices, n_cols):
    n_rows = indptr.size - 1
    for row in range(n_rows):
        if indptr[row] > indptr[row + 1]:
            return row, -1, False
    # Without a way out, the loop over all columns compiles to vector instructions.
    outside = 0
    for position in range(indices.size):
        outside += (indices[position] < 0) | (indices[position] >= n_cols)
    if outside:
        for position in range(indices.size):
            if indices[position] < 0 or indices[position] >= n_cols:
                return -1, position, False
    # Columns ascend in every row where all places at which they do not are beginnings of rows.
    not_ascending = 0
    for position in range(1, indices.size):
        not_ascending += indices[position] <= indices[position - 1]
    for row in range(n_rows):
        first = indptr[row]
        if 0 < first < indptr[row + 1]:
            not_ascending -= indices[first] <= indices[first - 1]
    return -1, -1, not_ascending == 0


def check(indptr: np.ndarray, indices: np.ndarray, n_cols: int) -> tuple[int, int, int, int, bool]:
    """First and last of `indptr`; first row where it decreases, first position of an index out of range (-1: none);
    and whether the CSR is canonical. The positions mean something only where `indptr` runs from 0 to ``indices.size``.
    """
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0 or last != indices.size:
        return first, last, -1, -1, False
    return first, last, *_check(indptr, indices, n_cols)


def canonical(row: np.ndarray, col: np.ndarray, val: np.ndarray, shape: tuple[int, int]) -> CSR:
    """Canonical CSR of coordinates in range, in any order; duplicates are summed in the order they came in."""
    if not val.size:
        return CSR(np.zeros(shape[0] + 1, np.int64), col, val, shape)
    # SciPy has no float16: it moves the bits, and what it sums is summed again below
    stored = val.view(np.uint16) if val.dtype == np.float16 else val
    csr = scipy.sparse.csr_array((stored, (row, col)), shape=shape)  # keeps explicit zeros
    csr.sort_indices()
    if csr.nnz == val.size:
        return CSR(csr.indptr, csr.indices.astype(col.dtype, copy=False), csr.data.view(val.dtype), shape)
    # there were duplicates, and SciPy summed them in an order of its own
    order = np.lexsort((col, row))  # stable
    data = np.zeros(csr.nnz, np.float32 if val.dtype == np.float16 else val.dtype)
    _sum_runs(row, col, val.astype(data.dtype, copy=False), order, data)
    with np.errstate(over="ignore"):
        data = data.astype(val.dtype, copy=False)
    return CSR(csr.indptr, csr.indices.astype(col.dtype, copy=False), data, shape)


def row_of_nonzero(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """(nnz,) the row of every nonzero, in the dtype of `indices`."""
    return np.repeat(np.arange(indptr.size - 1, dtype=indices.dtype), np.diff(indptr))


@njit(nogil=True, cache=True)
def _sum_runs(row, col, val, order, data):
    """data[i] = the sum of the values of the i-th different coordinate, in the order of `order`."""
    run = -1
    for i in range(order.size):
        here = order[i]
        if i == 0 or row[here] != row[order[i - 1]] or col[here] != col[order[i - 1]]:
            run += 1
            data[run] = val[here]
        else:
            data[run] += val[here]
