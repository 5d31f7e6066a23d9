"""Canonical CSR on the CPU: the checks in Numba, the sorting in SciPy."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from ..core.tables import CSR
from . import simd
from .runtime import threads
from .runtime.compiler import kernel

#: Rows that are looked at together: their columns are still in the cache when the beginnings of rows are looked at.
ROWS = 256


@kernel
def _look(first, last, indptr, indices, n_cols, is_wrong):
    """Set ``is_wrong[0]`` if rows `first` to before `last` are not canonical: offsets, range or order of columns."""
    # Without a way out, loops compile to vector instructions.
    offsets, decreasing = simd.pointer(indptr, first), 0
    for r in range(last - first):
        decreasing += offsets[r] > offsets[r + 1]
    if decreasing or not 0 <= indptr[first] <= indptr[last] <= indices.size:
        is_wrong[0] = True
        return
    for start in range(0, last - first, ROWS):
        end = min(start + ROWS, last - first)
        here, before = simd.pointer(indices, offsets[start]), simd.pointer(indices, offsets[start] - 1)
        outside = not_ascending = 0
        for k in range(offsets[start] == 0, offsets[end] - offsets[start]):
            outside += np.uint64(here[k]) >= np.uint64(n_cols)  # a negative one is large without its sign
            not_ascending += here[k] <= before[k]
        # Columns ascend in every row where all places at which they do not are beginnings of rows.
        for r in range(start, end):
            if 0 < offsets[r] < offsets[r + 1]:
                k = offsets[r] - offsets[start]
                not_ascending -= here[k] <= before[k]
        if outside or not_ascending:
            is_wrong[0] = True
            return
    if indices.size and not 0 <= indices[0] < n_cols:
        is_wrong[0] = True


@kernel
def _first_wrong(indptr, indices, n_cols):
    """First row where `indptr` decreases, else first position of an index out of range; -1: none."""
    for row in range(indptr.size - 1):
        if indptr[row] > indptr[row + 1]:
            return row, -1
    for position in range(indices.size):
        if indices[position] < 0 or indices[position] >= n_cols:
            return -1, position
    return -1, -1


def check(indptr: np.ndarray, indices: np.ndarray, n_cols: int) -> tuple[int, int, int, int, bool]:
    """First and last of `indptr`; first row where it decreases, first position of an index out of range (-1: none);
    and whether the CSR is canonical. The positions mean something only where `indptr` runs from 0 to ``indices.size``.
    """
    first, last = indptr.item(0), indptr.item(-1)
    if first != 0 or last != indices.size:
        return first, last, -1, -1, False
    is_wrong = np.zeros(1, np.bool_)
    threads.run(_look, indptr, indptr, indices, n_cols, is_wrong)
    if not is_wrong[0]:
        return first, last, -1, -1, True
    return first, last, *_first_wrong(indptr, indices, n_cols), False


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


@kernel
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
