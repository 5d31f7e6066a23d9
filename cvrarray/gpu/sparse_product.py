"""Products of two sparse matrices on a GPU: cuSPARSE's, as CuPy calls it."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from ..core.tables import CSR
from .cusparse import on_current_stream

#: Products of two entries that one call of cuSPARSE adds up, at most. It counts them in 32 bits: of 2^31 and more it finds
#: none, or fails (https://github.com/cupy/cupy/issues/10033).
MOST_TERMS = 1 << 28


def multiply(a: CSR, b: CSR, dtype: np.dtype) -> Any:
    """``a @ b`` in `dtype` as a ``cupyx.scipy.sparse.csr_matrix``; by panels of rows where it has many terms."""
    from cupyx.scipy.sparse import vstack

    left, right = _matrix(a, dtype), _matrix(b, dtype)
    terms = cupy.diff(right.indptr)[left.indices]
    with on_current_stream():
        if int(terms.sum(dtype=np.int64)) <= MOST_TERMS:
            return left @ right
        before = cupy.zeros(terms.size + 1, np.int64)
        cupy.cumsum(terms, out=before[1:])
        ends = panels(before[left.indptr].get(), MOST_TERMS)
        return vstack([left[first:last] @ right for first, last in zip(ends, ends[1:], strict=False)], format="csr")


def _matrix(csr: CSR, dtype: np.dtype) -> Any:
    """CuPy's matrix, with offsets of the columns' dtype where they fit."""
    from cupyx.scipy.sparse import csr_matrix

    pointer = csr.indices.dtype if csr.nnz < 2**31 else np.int64
    parts = csr.data.astype(dtype, copy=False), csr.indices, csr.indptr.astype(pointer, copy=False)
    return csr_matrix(parts, shape=csr.shape)


def panels(before: np.ndarray, most: int) -> list[int]:
    """Where panels of rows begin, and the last one ends: each has at most so many terms, or one row.

    Parameters
    ----------
    before : (n_rows + 1,) array of int
        Terms of all rows before each.

    Examples
    --------
    >>> from cvrarray.gpu.sparse_product import panels
    >>> panels(np.array([0, 4, 4, 7, 20, 21, 22]), 8)
    [0, 3, 4, 6]
    """
    ends, n_rows = [0], before.size - 1
    while ends[-1] < n_rows:
        last = int(np.searchsorted(before, before[ends[-1]] + most, side="right")) - 1
        ends.append(max(last, ends[-1] + 1))
    return ends
