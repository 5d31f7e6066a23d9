"""Canonical CSR on the CPU: checking, sorting, transposing.

Coordinates are moved to their rows by counting, in as many parts as there are threads: where an entry goes follows from
what stands before it, not from the parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.tables import CSR, WARP, Bins, Seen
from . import simd
from .runtime import memory, threads
from .runtime.compiler import compiled, inlined, kernel

#: Rows that are looked at together: their columns are still in the cache when the beginnings of rows are looked at.
ROWS = 256
BEYOND = np.uint64(1 << 63)  #: every column
PART = 1 << 18  #: least entries that a thread moves
RUN = 24  #: entries that are sorted by insertion; runs of them are merged


@kernel
def _look(first, last, indptr, indices, n_cols, is_wrong, longest, low, high):
    """Set ``is_wrong[0]`` if rows of the bins `first` to before `last` are not canonical: offsets, range or order of
    columns. And of each bin what :class:`cvrarray.core.tables.Bins` has.
    """
    if first >= last:  # beyond the last bin there is no offset to look at
        return
    begin, n_rows = first * WARP, min(last * WARP, len(indptr) - 1) - first * WARP
    # Without a way out, loops compile to vector instructions.
    offsets, decreasing = simd.pointer(indptr, begin), 0
    for r in range(n_rows):
        decreasing += offsets[r] > offsets[r + 1]
    if decreasing or not 0 <= offsets[0] <= offsets[n_rows] <= len(indices):
        is_wrong[0] = True
        return
    for start in range(0, n_rows, ROWS):
        end = min(start + ROWS, n_rows)
        # Columns ascend in every row where all places at which they do not are beginnings of rows. Then a row's last
        # tells whether all are in range, as negative ones, taken for unsigned, are beyond every other.
        not_ascending, outside = _count_not_ascending(indices, offsets[start], offsets[end]), 0
        here, before = simd.pointer(indices, offsets[start]), simd.pointer(indices, offsets[start] - 1)
        for bin_start in range(start, end, WARP):
            most, least, highest = np.int64(0), BEYOND, np.uint64(0)
            for r in range(bin_start, min(bin_start + WARP, end)):
                k, after = offsets[r] - offsets[start], offsets[r + 1] - offsets[start]
                if k < after:
                    column = np.uint64(np.int64(here[k]))
                    not_ascending -= offsets[r] > 0 and column <= np.uint64(np.int64(before[k]))
                    most, least = max(most, np.int64(after - k)), min(least, column)
                    highest = max(highest, np.uint64(np.int64(here[after - 1])))
            outside += most > 0 and highest >= np.uint64(n_cols)
            i = first + bin_start // WARP
            longest[i], low[i], high[i] = most, least if most else np.uint64(0), highest
        if outside or not_ascending:
            is_wrong[0] = True
            return


@inlined
def _count_not_ascending(indices, begin, end):
    """Positions from `begin` to before `end`, but not the first of all, whose column is not above the one before."""
    first, count = np.int64(max(begin, 1)), np.int64(0)
    here, before = simd.pointer(indices, first), simd.pointer(indices, first - 1)
    for k in range(end - first):
        count += np.uint64(np.int64(here[k])) <= np.uint64(np.int64(before[k]))
    return count


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


def check(
    indptr: np.ndarray, indices: np.ndarray, n_cols: int, data: np.ndarray | None = None, wanted: Any = None
) -> tuple[int, int, int, int, bool, Seen]:
    """First and last of `indptr`; first row where it decreases, first position of an index out of range (-1: none);
    and whether the CSR is canonical. The positions mean something only where `indptr` runs from 0 to ``indices.size``.

    Nothing else is looked at: on a GPU that saves a wait, here nothing.
    """
    first, last = indptr.item(0), indptr.item(-1)
    if first != 0 or last != indices.size:
        return first, last, -1, -1, False, Seen()
    is_canonical, bins = look(indptr, indices, n_cols)
    if is_canonical:
        return first, last, -1, -1, True, Seen(bins=bins)
    return first, last, *_first_wrong(indptr, indices, n_cols), False, Seen()


def look(indptr: np.ndarray, indices: np.ndarray, n_cols: int) -> tuple[bool, Bins]:
    """Whether the CSR is canonical, where `indptr` runs from 0 to ``indices.size``. If so, what is counted over bins."""
    is_wrong, n_bins = np.zeros(1, np.bool_), -(-(indptr.size - 1) // WARP)
    bins = Bins(indptr, indices, *(np.empty(n_bins, indices.dtype) for _ in range(3)))
    args = indptr, indices, n_cols, is_wrong, *bins[2:]
    threads.run_groups(compiled(_look, 0, 0, *args), indptr, WARP, *args)
    return not is_wrong[0], bins


def extent(
    row: np.ndarray, col: np.ndarray, val: Any = None, shape: Any = None, wanted: Any = None
) -> tuple[list[int], None, None]:
    """The smallest and the largest row, and the smallest and the largest column, 0 among them. Nothing else is looked
    at here.
    """
    parts = _parts(row.size, 1)
    found = np.zeros((len(parts) - 1, 4), np.int64)
    threads.run(_extent, parts, parts, row, col, found, least=threads.QUICK)
    return [int(most(column, initial=0)) for column, most in zip(found.T, (np.min, np.max) * 2, strict=True)], None, None


def canonical(row: np.ndarray, col: np.ndarray, val: np.ndarray, shape: tuple[int, int], ascends: bool | None = None) -> CSR:
    """Canonical CSR of coordinates in range, in any order; duplicates are summed in the order they came in.

    `ascends` is what :func:`extent` says of them: nothing here.
    """
    n_rows, nnz = shape[0], val.size
    bits = memory.bits(val)
    ptr = np.zeros(n_rows + 1, np.int64)
    parts = _parts(nnz, n_rows)
    found = np.zeros(len(parts) - 1, np.uint8)
    threads.run(_order_of_triplets, parts, parts, row, col, found, least=threads.QUICK)
    if found.max(initial=0) == 0:  # ascending: nothing is to be moved
        threads.run(_row_ends, parts, parts, row, ptr, least=threads.QUICK)
        return CSR(offsets(ptr, col.dtype), col, val, shape)
    counts = np.zeros((len(parts) - 1, n_rows + 1), np.int64)
    threads.run(_count, parts, parts, row, counts)
    _places(counts, ptr)
    indices, moved = memory.empty(nnz, col.dtype), memory.empty(nnz, bits.dtype)
    threads.run(_move, parts, parts, row, col, bits, counts, indices, moved)
    return _sorted_rows(ptr, indices, moved.view(val.dtype), shape)


def canonical_rows(csr: CSR) -> CSR:
    """Canonical CSR of a CSR with offsets and columns in range, whose rows may be unsorted and hold duplicates."""
    return _sorted_rows(csr.indptr.astype(np.int64), csr.indices.copy(), csr.data.copy(), csr.shape)


def transpose(csr: CSR) -> CSR:
    """Canonical CSR of the transpose of a canonical CSR."""
    (n_rows, n_cols), nnz = csr.shape, csr.nnz
    index = csr.indices.dtype
    ptr = np.zeros(n_cols + 1, np.int64)
    parts = np.searchsorted(csr.indptr, _parts(nnz, n_cols)).astype(np.int64)  # of rows
    parts[-1] = n_rows
    before = csr.indptr[parts].astype(np.int64)
    counts = np.zeros((len(parts) - 1, n_cols + 1), np.int64)
    threads.run(_count, before, before, csr.indices, counts)
    _places(counts, ptr)
    indices, data = memory.empty(nnz, index), memory.empty(nnz, csr.data.dtype)
    threads.run(_move_rows, before, parts, csr.indptr, csr.indices, memory.bits(csr.data), counts, indices, memory.bits(data))
    return CSR(offsets(ptr, index), indices, data, (n_cols, n_rows))


def union(a: CSR, b: CSR, both: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(indptr, indices) of the entries that `a` or `b` has, or that both have; and the values of each there, 0 for
    none.
    """
    pointers = [csr.indptr.astype(np.int64, copy=False) for csr in (a, b)]
    work, ptr = pointers[0] + pointers[1], np.zeros(a.shape[0] + 1, np.int64)
    places = (pointers[0], a.indices, pointers[1], b.indices)
    threads.run(_count_union, work, *places, both, ptr)
    memory.accumulate(ptr)
    left, right = (memory.empty(ptr[-1], csr.data.dtype) for csr in (a, b))
    indices = memory.empty(ptr[-1], a.indices.dtype)
    values = (memory.bits(a.data), memory.bits(b.data))
    threads.run(_fill_union, work, *places, *values, both, ptr, indices, memory.bits(left), memory.bits(right))
    return offsets(ptr, indices.dtype), indices, left, right


def row_of_nonzero(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """(nnz,) the row of every nonzero, in the dtype of `indices`."""
    return np.repeat(np.arange(indptr.size - 1, dtype=indices.dtype), np.diff(indptr))


def _parts(nnz: int, n_places: int) -> np.ndarray:
    """Where parts of `nnz` numbers begin, and the last ends: as many as have threads, and counters in `n_places` are
    few.
    """
    n_parts = max(1, min(threads.count(), nnz // max(PART, n_places)))
    return np.arange(n_parts + 1, dtype=np.int64) * nnz // n_parts


def offsets(ptr: np.ndarray, index: np.dtype) -> np.ndarray:
    """`ptr` in 32 bits where the index dtype has these, and offsets fit: so kernels are compiled for one pair of dtypes."""
    return ptr.astype(offset_dtype(ptr[-1], index), copy=False)


def offset_dtype(nnz: int, index: np.dtype) -> np.dtype:
    """The dtype of offsets up to `nnz`."""
    return np.dtype(np.int32 if index == np.int32 and nnz < 2**31 else np.int64)


def _sorted_rows(ptr: np.ndarray, indices: np.ndarray, data: np.ndarray, shape: tuple[int, int]) -> CSR:
    """Canonical CSR of rows in any order, which are sorted in place; duplicates are summed in the order they stand in."""
    spare, bits = np.empty_like(indices), memory.bits(data)  # of which only long unsorted rows touch anything
    duplicates = np.zeros(ptr.size - 1, np.int64)
    threads.run(_sort_rows, ptr, ptr, indices, bits, spare, np.empty_like(bits), duplicates)
    total = int(duplicates.sum())
    if total:
        wide = data.astype(np.float32) if data.dtype == np.float16 else data
        before, ptr = ptr, ptr - np.concatenate([[0], np.cumsum(duplicates)])
        all_columns, indices = indices, memory.empty(ptr[-1], indices.dtype)
        sums = memory.empty(ptr[-1], wide.dtype)
        threads.run(_sum_duplicates, before, before, all_columns, wide, ptr, indices, sums)
        with np.errstate(over="ignore"):
            data = sums.astype(data.dtype, copy=False)
    return CSR(offsets(ptr, indices.dtype), indices, data, shape)


@kernel
def _extent(first, last, parts, row, col, found):
    """found[p] = the smallest and the largest row, and the smallest and the largest column of part p."""
    for p in range(first, last):
        rows, cols = simd.pointer(row, parts[p]), simd.pointer(col, parts[p])
        low = high = rows[0]
        left = right = cols[0]
        for k in range(parts[p + 1] - parts[p]):
            low, high, left, right = min(low, rows[k]), max(high, rows[k]), min(left, cols[k]), max(right, cols[k])
        found[p, 0], found[p, 1], found[p, 2], found[p, 3] = low, high, left, right


@kernel
def _order_of_triplets(first, last, parts, row, col, found):
    """found[p] = 1 unless the places of part p ascend, from the last one of the part before on."""
    for p in range(first, last):
        rows, cols = simd.pointer(row, parts[p]), simd.pointer(col, parts[p])
        wrong = 0
        for k in range(parts[p] == 0, parts[p + 1] - parts[p]):
            wrong |= (rows[k] < rows[k - 1]) | ((rows[k] == rows[k - 1]) & (cols[k] <= cols[k - 1]))
        found[p] = wrong


@kernel
def _row_ends(first, last, parts, row, ptr):
    """ptr[r + 1] = the end of row r, of triplets in ascending rows; `ptr` is 0 throughout."""
    rows, n = simd.pointer(row, 0), len(row)
    for p in range(first, last):
        for at in range(max(parts[p], 1), parts[p + 1]):
            for r in range(rows[at - 1], rows[at]):
                ptr[r + 1] = at
        if parts[p + 1] == n and n:
            for r in range(rows[n - 1], len(ptr) - 1):
                ptr[r + 1] = n


@kernel
def _count(first, last, parts, place, counts):
    """counts[p, i] = how often part p names the place i."""
    for p in range(first, last):
        for k in range(parts[p], parts[p + 1]):
            counts[p, place[k]] += 1


@kernel
def _places(counts, ptr):
    """Offsets of the places in `ptr`, and in `counts` where each part writes its first number of a place."""
    total = 0
    for i in range(len(ptr) - 1):
        ptr[i] = total
        for p in range(counts.shape[0]):
            n = counts[p, i]
            counts[p, i] = total
            total += n
    ptr[len(ptr) - 1] = total


@kernel
def _move(first, last, parts, row, col, val, free, indices, data):
    for p in range(first, last):
        for k in range(parts[p], parts[p + 1]):
            at = free[p, row[k]]
            free[p, row[k]] = at + 1
            indices[at] = col[k]
            data[at] = val[k]


@kernel
def _move_rows(first, last, parts, indptr, columns, val, free, indices, data):
    for p in range(first, last):
        for row in range(parts[p], parts[p + 1]):
            for k in range(indptr[row], indptr[row + 1]):
                at = free[p, columns[k]]
                free[p, columns[k]] = at + 1
                indices[at] = row
                data[at] = val[k]


@kernel
def _sort_rows(first, last, ptr, indices, data, spare_indices, spare_data, duplicates):
    """Sort the rows by column, equal ones in the order they stand in; duplicates[r] = entries of row r to be dropped."""
    for row in range(first, last):
        begin, n = ptr[row], ptr[row + 1] - ptr[row]
        columns = simd.pointer(indices, begin)
        falling = 0
        for k in range(1, n):
            falling |= columns[k] <= columns[k - 1]
        if not falling:
            continue
        values = simd.pointer(data, begin)
        for k in range(0, n, RUN):
            _insertion_sort(columns, values, k, min(k + RUN, n))
        width = RUN
        while width < n:
            other, other_values = simd.pointer(spare_indices, begin), simd.pointer(spare_data, begin)
            for k in range(0, n, 2 * width):
                _merge(columns, values, k, min(k + width, n), min(k + 2 * width, n), other, other_values)
            for k in range(n):
                columns[k], values[k] = other[k], other_values[k]
            width *= 2
        equal = 0
        for k in range(1, n):
            equal += columns[k] == columns[k - 1]
        duplicates[row] = equal


@inlined
def _insertion_sort(columns, values, begin, end):
    for k in range(begin + 1, end):
        column, value = columns[k], values[k]
        i = k
        while i > begin and columns[i - 1] > column:
            columns[i], values[i] = columns[i - 1], values[i - 1]
            i -= 1
        columns[i], values[i] = column, value


@inlined
def _merge(columns, values, begin, middle, end, out, out_values):
    """Merge two sorted runs; of equal columns the first run's come first."""
    i, j = begin, middle
    for k in range(begin, end):
        if j >= end or (i < middle and columns[i] <= columns[j]):
            out[k], out_values[k] = columns[i], values[i]
            i += 1
        else:
            out[k], out_values[k] = columns[j], values[j]
            j += 1


@kernel
def _sum_duplicates(first, last, before, columns, values, ptr, indices, sums):
    """Copy sorted rows, with the values of equal columns added up in their order."""
    for row in range(first, last):
        out = ptr[row] - 1
        for k in range(before[row], before[row + 1]):
            if k == before[row] or columns[k] != columns[k - 1]:
                out += 1
                indices[out], sums[out] = columns[k], values[k]
            else:
                sums[out] += values[k]


@kernel
def _count_union(first, last, a_ptr, a_columns, b_ptr, b_columns, both, ptr):
    """ptr[r + 1] = entries of row r that one has, or both."""
    for row in range(first, last):
        i, j, i_end, j_end = a_ptr[row], b_ptr[row], a_ptr[row + 1], b_ptr[row + 1]
        equal = 0
        while i < i_end and j < j_end:
            left, right = a_columns[i], b_columns[j]
            equal += left == right
            i += left <= right
            j += right <= left
        ptr[row + 1] = equal if both else a_ptr[row + 1] - a_ptr[row] + b_ptr[row + 1] - b_ptr[row] - equal


@kernel
def _fill_union(first, last, a_ptr, a_columns, b_ptr, b_columns, a_values, b_values, both, ptr, indices, left, right):
    for row in range(first, last):
        i, j, i_end, j_end, out = a_ptr[row], b_ptr[row], a_ptr[row + 1], b_ptr[row + 1], ptr[row]
        while i < i_end and j < j_end:
            a_column, b_column = a_columns[i], b_columns[j]
            if not both:
                indices[out], left[out], right[out] = min(a_column, b_column), 0, 0
                if a_column <= b_column:
                    left[out] = a_values[i]
                if b_column <= a_column:
                    right[out] = b_values[j]
                out += 1
            elif a_column == b_column:
                indices[out], left[out], right[out] = a_column, a_values[i], b_values[j]
                out += 1
            i += a_column <= b_column
            j += b_column <= a_column
        if not both:
            for k in range(i, i_end):
                indices[out], left[out], right[out] = a_columns[k], a_values[k], 0
                out += 1
            for k in range(j, j_end):
                indices[out], left[out], right[out] = b_columns[k], 0, b_values[k]
                out += 1
