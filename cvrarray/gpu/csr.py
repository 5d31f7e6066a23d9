"""Canonical CSR on the GPU. The same functions as :mod:`cvrarray.cpu.csr`."""

from __future__ import annotations

import cupy
import numpy as np

from ..core.tables import CSR, NOTHING, Seen, Sources, Wanted
from . import assembly, distinct, sorting
from .compiler import Kernel
from .launches import NULL, blocks, strided
from .look import Look, Looked, more, read

BLOCK = 256

EXTENT = Kernel("csr", "csr_extent", [(row, col) for row in ("int32", "int64") for col in ("int32", "int64")])
PLACES = Kernel("csr", "csr_places", [(ptr, index) for ptr in ("int32", "int64") for index in ("int32", "int64")])


def check(
    indptr: cupy.ndarray,
    indices: cupy.ndarray,
    n_cols: int,
    data: cupy.ndarray | None = None,
    wanted: Wanted = NOTHING,
) -> tuple[int, int, int, int, bool, Seen]:
    """First and last of `indptr`; first row where it decreases, first position of an index out of range (-1: none);
    whether the CSR is canonical; and what else was seen: a sample of the values `data`, where it pays to look for few,
    and what is `wanted`. It waits once; a second time where blocks of 2 or more are wanted and have holes.

    The positions mean something only where `indptr` runs from 0 to ``indices.size``.
    """
    looks = data is not None and distinct.may_be_few(data)
    found = Look(indptr, indices, n_cols, wanted, data=data if looks else None).found()
    seen = Seen(found.sample, found.survey, measured=found.measured)
    if wanted.block_size > 1 and not found.is_canonical:  # as far as is known: columns have not been checked alone
        found = Look(indptr, indices, n_cols, wanted._replace(block_size=0)).found()
        seen = Seen(seen.sample, found.survey, with_holes=wanted.block_size)
    return *found[:5], seen


def looked_at(csr: CSR, wanted: Wanted) -> CSR:
    """A canonical `csr` of which is seen what is `wanted`. It waits once, where that is not seen already."""
    if csr.seen.survey is not None and csr.seen.survey.is_of(csr):
        return csr
    found = Look(csr.indptr, csr.indices, csr.shape[1], wanted, checks=False).found()
    return csr._replace(seen=_seen(found._replace(sample=csr.seen.sample), wanted))


def _seen(found: Looked, wanted: Wanted) -> Seen:
    """Of a canonical CSR, what was found as it was `wanted`."""
    holes = wanted.block_size if found.measured is None else 0
    return Seen(found.sample, found.survey, measured=found.measured, with_holes=holes)


def extent(
    row: cupy.ndarray,
    col: cupy.ndarray,
    val: cupy.ndarray | None,
    shape: tuple[int, int],
    wanted: Wanted = NOTHING,
) -> tuple[list[int], bool, CSR | None]:
    """The smallest and the largest row, and the smallest and the largest column, 0 among them; whether places ascend by
    row, then column, and no two are the same; and their CSR with the values `val`, if given, where they ascend and lie in
    `shape`, of which is seen what is `wanted`. It waits once, or twice where many rows are empty.
    """
    n_rows, n_cols = shape
    indptr = None if val is None else cupy.empty(n_rows + 1, np.int64)
    found = cupy.zeros(6, np.int64) if indptr is None else more()
    EXTENT(row.dtype, col.dtype)(
        strided(row.size),
        (BLOCK,),
        (row, col, np.int64(row.size), np.int64(n_rows), NULL if indptr is None else indptr, found),
    )
    if indptr is None:
        *numbers, unsorted, _ = read(found).tolist()
        return numbers, not unsorted, None
    # the offsets mean nothing where places do not ascend, and do no harm then
    looked = Look(indptr, col, n_cols, wanted, checks=False, data=val if distinct.may_be_few(val) else None).found()
    *numbers, unsorted, is_sparse = looked.more[:6]
    is_inside = numbers[0] >= 0 and numbers[1] < n_rows and numbers[2] >= 0 and numbers[3] < n_cols
    if unsorted or not is_inside:
        return numbers, not unsorted, None
    if is_sparse:
        return numbers, True, looked_at(CSR(_offsets(row, n_rows), col, val, shape), wanted)
    return numbers, True, CSR(indptr, col, val, shape, _seen(looked, wanted))


def canonical(
    row: cupy.ndarray, col: cupy.ndarray, val: cupy.ndarray, shape: tuple[int, int], ascends: bool | None = None
) -> CSR:
    """Canonical CSR of coordinates in range, in any order; duplicates are summed in the order they came in.

    `ascends` is what :func:`extent` says, where it was asked.
    """
    n_rows = shape[0]
    if not val.size:
        return CSR(cupy.zeros(n_rows + 1, np.int64), col, val, shape)
    if ascends is None:
        _, ascends, csr = extent(row, col, val, shape)
        if csr is not None:  # nothing is to be moved
            return csr
    buckets = sorting.in_buckets(row, col, shape, val)
    if buckets is not None:
        taken = buckets.taken()
        if taken is None:
            found = buckets.sorted()
            starts = found.starts()
            columns = found.entries.view(np.int32)[1::2][starts[:-1]]  # the first of a place has no bit above its column
            taken = cupy.searchsorted(starts[:-1], found.indptr), columns, _sums(found.order(), starts, val)
        indptr, indices, data = taken
        return CSR(indptr, indices.astype(col.dtype, copy=False), data, shape)
    order, row, col, starts = sorting.grouped(row, col, shape)
    if starts.size - 1 == val.size:
        data = val[order]
    else:
        data = _sums(order, starts, val)
        row, col = row[starts[:-1]], col[starts[:-1]]
    return CSR(_offsets(row, n_rows), col, data, shape)


def _sums(order: cupy.ndarray, starts: cupy.ndarray, val: cupy.ndarray) -> cupy.ndarray:
    """Of the values of each place, in their order: `starts` says where in `order` a place begins."""
    n_places = starts.size - 1
    data = cupy.empty(n_places, val.dtype)
    assembly.place(Sources(cupy.arange(1, n_places + 1), starts, order, 1), val, data)
    return data


def canonical_rows(csr: CSR) -> CSR:
    """Canonical CSR of a CSR with offsets and columns in range, whose rows may be unsorted and hold duplicates."""
    return canonical(row_of_nonzero(csr.indptr, csr.indices), csr.indices, csr.data, csr.shape)


def transpose(csr: CSR) -> CSR:
    """Canonical CSR of the transpose of a canonical CSR.

    Not cuSPARSE's ``csr2csc``: that of CUDA 13.2 gives some entries of a long row, the 32nd where those before are short, to
    the rows after it.
    """
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
    first = sorting.is_first(row, col)
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
    return _offsets(row, n_rows), col, *values


def _offsets(row: cupy.ndarray, n_rows: int) -> cupy.ndarray:
    """(n_rows + 1,) where each of the ascending rows begins."""
    return cupy.searchsorted(row, cupy.arange(n_rows + 1, dtype=row.dtype))


def row_of_nonzero(indptr: cupy.ndarray, indices: cupy.ndarray) -> cupy.ndarray:
    """(nnz,) the row of every nonzero, in the dtype of `indices`."""
    position = cupy.arange(indices.size, dtype=indptr.dtype)
    return (cupy.searchsorted(indptr, position, side="right") - 1).astype(indices.dtype)


def places(csr: CSR, row: cupy.ndarray, col: cupy.ndarray) -> cupy.ndarray:
    """Where the entries (row[i], col[i]), int64, stand in a canonical CSR; -1: nowhere."""
    found = cupy.empty(row.size, np.int64)
    PLACES(csr.indptr.dtype, csr.indices.dtype)(
        blocks(row.size, BLOCK), (BLOCK,), (csr.indptr, csr.indices, row, col, np.int64(row.size), found)
    )
    return found
