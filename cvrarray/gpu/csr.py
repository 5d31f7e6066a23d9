"""Canonical CSR on the GPU. The same functions as :mod:`cvrarray.cpu.csr`."""

from __future__ import annotations

import cupy
import numpy as np

from ..core.tables import CSR, WARP, Seen, Survey, ValueSample
from . import distinct, statistics
from .compiler import Kernel, blocks
from .transposed import strided

BLOCK = 256
PART = 2048  # nonzeros that a warp checks
#: As what cuSPARSE transposes values of so many bytes; it only moves them.
MOVED = {4: np.dtype(np.float32), 8: np.dtype(np.float64), 16: np.dtype(np.complex128)}

CHECK_ROWS = Kernel("csr", "csr_check_rows", [("int32",), ("int64",)])
CHECK_COLUMNS = Kernel(
    "csr",
    "csr_check_columns",
    [(pointer, index) for pointer in ("int32", "int64") for index in ("int32", "int64")],
    lambda pointer, index: (pointer, index, PART),
)
EXTENT = Kernel("csr", "csr_extent", [(row, col) for row in ("int32", "int64") for col in ("int32", "int64")])
SUM_RUNS = Kernel(
    "csr", "csr_sum_runs", [(value,) for value in ("bool", "int8", "uint64", "float16", "float32", "complex64", "complex128")]
)


def check(
    indptr: cupy.ndarray,
    indices: cupy.ndarray,
    n_cols: int,
    data: cupy.ndarray | None = None,
    windows: tuple[int, int, tuple[int, ...]] | None = None,
) -> tuple[int, int, int, int, bool, Seen]:
    """First and last of `indptr`; first row where it decreases, first position of an index out of range (-1: none);
    whether the CSR is canonical; and what else was seen: a sample of the values `data`, where it pays to look for few,
    and of `windows` what :func:`.statistics.survey` counts. It waits once.

    The positions mean something only where `indptr` runs from 0 to ``indices.size``.
    """
    n_rows, nnz = indptr.size - 1, indices.size
    status = cupy.zeros(5 + (statistics.WORDS if windows else 0) + 1, np.int64)
    CHECK_ROWS(indptr.dtype)(blocks(n_rows, BLOCK), (BLOCK,), (indptr, np.int64(n_rows), status))
    if nnz:
        warps = BLOCK // WARP
        CHECK_COLUMNS(indptr.dtype, indices.dtype)(
            blocks(-(-nnz // PART), warps),
            (BLOCK,),
            (indptr, indices, np.int64(n_rows), np.int64(n_cols), np.int64(nnz), status),
            shared_mem=warps * PART // 8,
        )
    if windows:
        statistics.begin(indptr, indices, windows, status[5:], status)
    (first, last, bad_row, bad_position, unsorted, *numbers), sample = _with_sample(status, data)
    largest = np.iinfo(np.int64).max
    return (
        first,
        last,
        largest - bad_row if bad_row else -1,
        largest - bad_position if bad_position else -1,
        not unsorted,
        Seen(sample, Survey(indptr, indices, windows, numbers) if windows else None),
    )


def _with_sample(found: cupy.ndarray, data: cupy.ndarray | None) -> tuple[list[int], ValueSample | None]:
    """`found` but for its last word, when the device is done; and a sample of `data`, which takes that word."""
    looks = data is not None and distinct.may_be_few(data)
    if looks:
        distinct.begin_sample(data, found[-1:])
    words = found.get()
    return words[:-1].tolist(), distinct.sample(data, words[-1:]) if looks else None


def extent(
    row: cupy.ndarray, col: cupy.ndarray, data: cupy.ndarray | None = None
) -> tuple[list[int], bool | None, ValueSample | None]:
    """The smallest and the largest row, and the smallest and the largest column, 0 among them; whether places ascend by
    row, then column, and no two are the same; and a sample of `data` as in :func:`check`. It waits once.
    """
    found = cupy.zeros(6, np.int64)
    EXTENT(row.dtype, col.dtype)(strided(row.size), (BLOCK,), (row, col, np.int64(row.size), found))
    (*numbers, unsorted), sample = _with_sample(found, data)
    return numbers, not unsorted, sample


def canonical(
    row: cupy.ndarray, col: cupy.ndarray, val: cupy.ndarray, shape: tuple[int, int], ascends: bool | None = None
) -> CSR:
    """Canonical CSR of coordinates in range, in any order; duplicates are summed in the order they came in.

    `ascends` is what :func:`extent` says, where it was asked.
    """
    n_rows, n_cols = shape
    if not val.size:
        return CSR(cupy.zeros(n_rows + 1, np.int64), col, val, shape)
    if extent(row, col)[1] if ascends is None else ascends:  # nothing is to be moved
        return CSR(cupy.searchsorted(row, cupy.arange(n_rows + 1, dtype=row.dtype)), col, val, shape)
    if n_rows * n_cols < 2**63:  # one key a place: CuPy sorts integers by radix, but lexsort's pairs by comparison
        order = cupy.argsort(row.astype(np.int64) * n_cols + col)  # stable
    else:
        order = cupy.lexsort(cupy.stack([col, row]))  # stable, by row, then column
    row, col = row[order], col[order]
    starts = cupy.flatnonzero(cupy.concatenate([cupy.ones(1, bool), (row[1:] != row[:-1]) | (col[1:] != col[:-1])]))
    if starts.size == val.size:
        data = val[order]
    else:
        first = cupy.concatenate([starts, cupy.array([val.size])])
        data = cupy.empty(starts.size, val.dtype)
        SUM_RUNS(val.dtype)(blocks(starts.size, BLOCK), (BLOCK,), (val, order, first, np.int64(starts.size), data))
        row, col = row[starts], col[starts]
    indptr = cupy.searchsorted(row, cupy.arange(n_rows + 1, dtype=row.dtype))
    return CSR(indptr, col, data, shape)


def canonical_rows(csr: CSR) -> CSR:
    """Canonical CSR of a CSR with offsets and columns in range, whose rows may be unsorted and hold duplicates."""
    return canonical(row_of_nonzero(csr.indptr, csr.indices), csr.indices, csr.data, csr.shape)


def transpose(csr: CSR) -> CSR:
    """Canonical CSR of the transpose of a canonical CSR."""
    dtype = MOVED.get(csr.data.itemsize)
    if dtype is not None and csr.nnz and csr.indices.dtype == np.int32 and csr.nnz < 2**31:
        from cupyx.scipy.sparse import csr_matrix

        indptr = csr.indptr.astype(np.int32, copy=False)
        found = csr_matrix((csr.data.view(dtype), csr.indices, indptr), shape=csr.shape).tocsc()
        if check(found.indptr, found.indices, csr.shape[0])[-1]:  # cuSPARSE does not promise that columns ascend
            return CSR(found.indptr, found.indices, found.data.view(csr.data.dtype), csr.shape[::-1])
    return canonical(csr.indices, row_of_nonzero(csr.indptr, csr.indices), csr.data, csr.shape[::-1])


def union(a: CSR, b: CSR, both: bool) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray, cupy.ndarray]:
    """(indptr, indices) of the entries that `a` or `b` has, or that both have; and the values of each there, 0 for
    none.
    """
    n_rows, n_cols = a.shape
    row = cupy.concatenate([row_of_nonzero(csr.indptr, csr.indices) for csr in (a, b)])
    col = cupy.concatenate([a.indices, b.indices])
    if n_rows * n_cols < 2**63:  # one key an entry: two ascending runs, which a stable sort merges
        order = cupy.argsort(row.astype(np.int64) * n_cols + col, kind="stable")
    else:
        order = cupy.lexsort(cupy.stack([col, row]))
    row, col = row[order], col[order]
    first = cupy.ones(row.size, bool)
    first[1:] = (row[1:] != row[:-1]) | (col[1:] != col[:-1])
    place = cupy.empty(row.size, np.int64)
    place[order] = cupy.cumsum(first, dtype=np.int64) - 1
    first = cupy.flatnonzero(first)
    row, col = row[first], col[first]
    values, stored = [], cupy.zeros(row.size, np.int8)
    for csr, at in ((a, place[: a.nnz]), (b, place[a.nnz :])):
        value = cupy.zeros(row.size, csr.data.dtype)
        value[at] = csr.data
        stored[at] += 1
        values.append(value)
    if both:
        kept = cupy.flatnonzero(stored == 2)
        row, col, values = row[kept], col[kept], [value[kept] for value in values]
    return cupy.searchsorted(row, cupy.arange(n_rows + 1, dtype=row.dtype)), col, *values


def row_of_nonzero(indptr: cupy.ndarray, indices: cupy.ndarray) -> cupy.ndarray:
    """(nnz,) the row of every nonzero, in the dtype of `indices`."""
    position = cupy.arange(indices.size, dtype=indptr.dtype)
    return (cupy.searchsorted(indptr, position, side="right") - 1).astype(indices.dtype)
