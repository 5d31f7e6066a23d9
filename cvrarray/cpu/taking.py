"""Rows and columns of a canonical CSR on the CPU, CSRs side by side, sums and products of two, by SciPy's compiled loops.

NumPy's operations, which a GPU's CSR is indexed by, name the source of every entry: they take five to ten times as long.
SciPy's loops have one dtype for offsets and columns, and a table of all columns for any but neighbouring ones. Where a
result may have more entries than 32 bits reach or hardly any, or the table would be larger than the CSR, the answer is
None, and NumPy's operations are to be taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.tables import CSR
from . import csr as canonical

LEAST = 1 << 13  #: entries from which SciPy's loops win what making its array takes
MOST = 2**31 - 1  #: entries that 32-bit offsets reach


def rows(csr: CSR, places: np.ndarray | slice) -> CSR | None:
    """The rows at `places`, an array of numbers from 0 or a slice, in their order; a row may be named many times."""
    n_entries = int((csr.indptr[1:][places] - csr.indptr[:-1][places]).sum(dtype=np.int64))
    if not LEAST <= n_entries <= MOST or csr.nnz > MOST:
        return None
    return _taken(csr, lambda matrix: matrix[places])


def columns(csr: CSR, places: np.ndarray | slice) -> CSR | None:
    """The columns at `places`, an array of numbers from 0 or a slice, in their order."""
    has_table, most = isinstance(places, np.ndarray) or places.step != 1, 1
    if has_table and csr.shape[1] > csr.nnz:
        return None
    if isinstance(places, np.ndarray):  # which may name a column many times
        most = int(np.bincount(places, minlength=1).max())
        ascends = bool((places[1:] >= places[:-1]).all())
    else:
        ascends = places.step > 0
    if not LEAST <= csr.nnz * max(most, 1) <= MOST:
        return None
    taken = _taken(csr, lambda matrix: matrix[:, places])
    return taken if ascends else canonical.canonical_rows(taken)


def reshaped(csr: CSR, shape: tuple[int, int], order: str) -> CSR:
    """The entries in a matrix of another shape, in the same row-major ("C") or column-major ("F") order."""
    matrix = _matrix(csr).reshape(shape, order=order).tocsr()
    return _csr(matrix, csr.data.dtype, matrix.indices.dtype)


def values(csr: CSR, row: np.ndarray, col: np.ndarray) -> np.ndarray:
    """The values at places (row, col), int64 arrays of one shape, 0 where nothing is stored."""
    found: np.ndarray = np.asarray(_matrix(csr)[row, col])
    return found.view(csr.data.dtype)


def beside(members: list[CSR], dtype: np.dtype, index: np.dtype) -> CSR | None:
    """CSRs of as many rows side by side, their values in `dtype` and their columns in `index`."""
    if not LEAST <= sum(csr.nnz for csr in members) <= MOST:
        return None
    from scipy.sparse import hstack

    joined = hstack([_matrix(csr._replace(data=csr.data.astype(dtype, copy=False))) for csr in members], format="csr")
    return _csr(joined, dtype, index)


def combined(operation: Callable[[Any, Any], Any], a: CSR, b: CSR, dtype: np.dtype) -> Any:
    """``operation(a, b)`` as SciPy's array: ``operator.add``, ``sub`` or ``matmul``, in `dtype`, without zeros.

    Rows of a product are not sorted. SciPy has no float16.
    """
    left, right = (_matrix(csr._replace(data=csr.data.astype(dtype, copy=False))) for csr in (a, b))
    return operation(left, right)


def without_zeros(csr: CSR) -> CSR:
    """`csr`, of numbers that are not float16, without the entries that are 0."""
    matrix = _matrix(CSR(csr.indptr.copy(), csr.indices.copy(), csr.data.copy(), csr.shape))
    matrix.eliminate_zeros()
    return _csr(matrix, csr.data.dtype, csr.indices.dtype)


def _taken(csr: CSR, take: Callable[[Any], Any]) -> CSR:
    return _csr(take(_matrix(csr)), csr.data.dtype, csr.indices.dtype)


def _matrix(csr: CSR) -> Any:
    """SciPy's array of the same memory."""
    from scipy.sparse import csr_array

    data = csr.data.view(np.uint16) if csr.data.dtype == np.float16 else csr.data  # SciPy has no float16
    matrix = csr_array(csr.shape, dtype=data.dtype)
    # attributes, as the constructor would look at all columns, and copy arrays that begin at a cache line
    pointer = csr.indptr if csr.nnz > MOST else csr.indptr.astype(csr.indices.dtype, copy=False)
    matrix.data, matrix.indices, matrix.indptr = data, csr.indices, pointer
    return matrix


def _csr(matrix: Any, dtype: np.dtype, index: np.dtype) -> CSR:
    indptr, indices = canonical.offsets(matrix.indptr, index), matrix.indices.astype(index, copy=False)
    return CSR(indptr, indices, matrix.data.view(dtype), matrix.shape)
