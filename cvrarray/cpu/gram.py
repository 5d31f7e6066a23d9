"""Gram matrices and moments of columns on the CPU, summed row after row: the same bits however rows are cut into panels.

``A.H @ A`` is made without a product of sparse matrices: row i of the result is a dense accumulator, to which each row of A
that has an entry in column i adds its entries from there on. Threads share rows of the result.
"""

from __future__ import annotations

import numpy as np

from ..core.tables import CSR
from . import csr as rows
from . import simd
from .runtime import threads
from .runtime.compiler import inlined, kernel

#: Entries that are added at a time: they stay in the cache, as they are read once for each entry of their row.
PANEL = 1 << 19


@kernel
def _add(first, last, ptr, row, place, indptr, indices, data, out):
    n = out.shape[1]
    for i in range(first, last):
        sums = simd.pointer(out, i * n)
        for k in range(ptr[i], ptr[i + 1]):
            begin, count = place[k], indptr[row[k] + 1] - place[k]
            columns, values = simd.pointer(indices, begin), simd.pointer(data, begin)
            factor = out.dtype.type(np.conj(values[0]))
            for e in range(count):
                sums[columns[e]] += factor * values[e]


def add(csr: CSR, out: np.ndarray) -> None:
    """Add ``A.H @ A`` to `out` (n_cols, n_cols) in C order, on and above the diagonal; rows of A in their order."""
    where = rows.transpose(csr._replace(data=np.arange(csr.nnz, dtype=csr.indices.dtype)))
    work = np.zeros(csr.nnz + 1, np.int64)
    np.cumsum(csr.indptr[where.indices + 1] - where.data, out=work[1:])
    args = (where.indptr, where.indices, where.data, csr.indptr, csr.indices, csr.data.astype(out.dtype, copy=False), out)
    threads.run(_add, work[where.indptr], *args)


def moments(csr: CSR, axis: int, count: np.ndarray, mean: np.ndarray, squares: np.ndarray) -> None:
    """Bring the moments of each row (``axis=1``) or column (0) up to date with its stored entries, one after the other.

    Source: B. P. Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products", Technometrics 4(3),
    1962.

    Parameters
    ----------
    csr : CSR of real values
    count, mean, squares : (n_lines,) int64, float64, float64
        How many entries there were, their mean, and the sum of squares of what differs from it.
    """
    if axis == 1:
        threads.run(_row_moments, csr.indptr, csr.indptr, csr.data, count, mean, squares)
    else:
        share = np.arange(count.size + 1) * csr.nnz // max(1, count.size)
        threads.run(_column_moments, share, csr.indptr, csr.indices, csr.data, count, mean, squares)


@inlined
def _take(line, value, count, mean, squares):
    away = value - mean[line]
    count[line] += 1
    mean[line] += away / count[line]
    squares[line] += away * (value - mean[line])


@kernel
def _row_moments(first, last, indptr, data, count, mean, squares):
    for line in range(first, last):
        for k in range(indptr[line], indptr[line + 1]):
            _take(line, np.float64(data[k]), count, mean, squares)


@kernel
def _column_moments(first, last, indptr, indices, data, count, mean, squares):
    for row in range(len(indptr) - 1):
        low, end = indptr[row], indptr[row + 1]
        high = end
        while low < high:  # the row's first entry in these columns
            middle = (low + high) // 2
            if indices[middle] < first:
                low = middle + 1
            else:
                high = middle
        while low < end and indices[low] < last:
            _take(indices[low], np.float64(data[low]), count, mean, squares)
            low += 1
