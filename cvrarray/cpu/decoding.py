"""The way back on the CPU: canonical CSR straight from the tables of either format, without sorting.

Each takes two passes over the tables: the first counts every row's entries, the second copies them to where they
belong. A bin or chunk is done by one thread, and writes the entries of its own rows. The sum of a row that chunks of
CVR cut is the exception: such a chunk counts its part apart, and the parts are placed one after the other.

Tables may be a part of an array's, as ``FormatArray._part`` makes them; rows outside [first, last) are left out. They may
be forged: whatever they hold that the formats' pages check before, nothing is read or written outside of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cvrarray.core.tables import CSR, NARROW_PADDING, WARP, BBCSRTables, CVRTables
from cvrarray.cpu import simd
from cvrarray.cpu.csr import offsets
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel

#: Steps of a chunk from the one whose records are read to the one whose slots are prefetched.
AHEAD = 16
#: Segments of a chunk that belong to entries of its tail, for which there is room; no conversion makes so many.
MOST_KEPT = WARP * len(simd.BATCH_ROW)


class Rows(NamedTuple):
    """The rows that are decoded, and where their entries go."""

    first: int
    last: int
    # (last - first + 1,) int64: row r has the entries ptr[r - first] .. ptr[r - first + 1]; first, counts
    ptr: np.ndarray
    carried: np.ndarray  # (n_chunks,) int64, CVR: entries of the chunk's carry_row in it; then, in chunks before it
    indices: np.ndarray  # (nnz,) I
    data: np.ndarray  # (nnz,) unsigned integers of the values' size, or complex128


def from_bbcsr(tables: BBCSRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last) in the tables of bins, which begin at row 0."""
    t = tables._replace(
        data=memory.bits(tables.data), present=np.empty(0, np.uint8) if tables.present is None else tables.present
    )
    rows = _no_rows(first, last, t.col_wide.dtype, len(t.col_base))
    _run(_count_bins, t.bin_rowptr, t._replace(data=_NO_VALUES), rows)
    return _filled(_copy_bins, t.bin_rowptr, t, rows, tables.data.dtype)


def from_cvr(tables: CVRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last) in the tables of chunks."""
    t = tables._replace(val=memory.bits(tables.val))
    rows, without = _no_rows(first, last, t.col_wide.dtype, len(t.col_base)), t._replace(val=_NO_VALUES)
    _run(_count_chunks, t.step_ptr, without, rows, t.n_lanes)
    _version(_place_carried, without, rows)(0, len(t.carry_row), without, rows)
    return _filled(_copy_chunks, t.step_ptr, t, rows, tables.val.dtype, t.n_lanes)


#: Where values do not matter: so one compiled version serves all dtypes.
_NO_VALUES = np.empty(0, np.uint8)


def _no_rows(first: int, last: int, index: np.dtype, n_tiles: int) -> Rows:
    """Rows whose entries are to be counted."""
    return Rows(first, last, np.zeros(last - first + 1, np.int64), np.zeros(n_tiles, np.int64), np.empty(0, index), _NO_VALUES)


def _filled(copy: Callable, work: np.ndarray, t: Any, rows: Rows, dtype: np.dtype, unit: int = 1) -> CSR:
    """The CSR of rows whose entries have been counted."""
    nnz = memory.accumulate(rows.ptr)
    data = memory.empty(nnz, dtype)
    rows = rows._replace(indices=memory.empty(nnz, rows.indices.dtype), data=memory.bits(data))
    _run(copy, work, t, rows, unit)
    return CSR(offsets(rows.ptr, rows.indices.dtype), rows.indices, data, (rows.last - rows.first, t.shape[1]))


def _run(kernel: Callable, work: np.ndarray, t: Any, rows: Rows, unit: int = 1) -> None:
    threads.run(_version(kernel, t, rows), work, t, rows, unit=unit, least=threads.QUICK)


def _version(kernel: Callable, t: Any, rows: Rows) -> Callable:
    """``compiled(kernel, 0, 0, t, rows)``, which would look at the two dozen arrays each time."""
    key = kernel, rows.indices.dtype, rows.data.dtype, getattr(t, "present", rows.ptr).dtype
    return _versions.get(key) or _versions.setdefault(key, compiled(kernel, 0, 0, t, rows))


_versions: dict[Any, Callable] = {}


# -------------------------------------------------------------------------------------------------------------- BBCSR


@kernel
def _count_bins(low, high, t, rows):
    """rows.ptr[r - first + 1] = entries of row r."""
    length, holes, size = simd.scratch(t.bin_rowptr, simd.SINGLE), len(t.present) > 0, t.block_size
    for i in range(low, high):
        at, n_steps = t.bin_rowptr[i] // size, (t.bin_rowptr[i + 1] - t.bin_rowptr[i]) // (size * WARP)
        for r in range(WARP):
            length[r] = 0
        if holes:
            marks = simd.pointer(t.present, at)
            for slot in range(n_steps * WARP):
                mark = marks[slot]
                while mark:
                    length[slot % WARP] += 1
                    mark &= mark - 1
        elif t.col_base[i] >= 0:
            _count_steps(n_steps, simd.pointer(t.col_narrow, t.col_ptr[i]), NARROW_PADDING, size, length)
        else:
            _count_steps(n_steps, simd.pointer(t.col_wide, t.col_ptr[i]), -1, size, length)
        for row in range(max(i * WARP, rows.first), min((i + 1) * WARP, rows.last)):
            rows.ptr[row - rows.first + 1] = length[row - i * WARP]


@inlined
def _count_steps(n_steps, columns, padding, size, length):
    for step in range(n_steps):
        for r in range(WARP):
            length[r] += (columns[step * WARP + r] != padding) * size


@kernel
def _copy_bins(low, high, t, rows):
    size = t.block_size
    for i in range(low, high):
        at = t.bin_rowptr[i]
        for row in range(max(i * WARP, rows.first), min((i + 1) * WARP, rows.last)):
            r = row - i * WARP
            begin, end = rows.ptr[row - rows.first], rows.ptr[row - rows.first + 1]
            to = simd.pointer(rows.indices, begin), simd.pointer(rows.data, begin), end - begin
            values, marks = simd.pointer(t.data, at + r), simd.pointer(t.present, at // size + r)
            if t.col_base[i] >= 0:
                columns = simd.pointer(t.col_narrow, t.col_ptr[i] + r)
                _copy_row(to, columns, t.col_base[i], values, marks, len(t.present) > 0, size)
            else:
                _copy_row(to, simd.pointer(t.col_wide, t.col_ptr[i] + r), 0, values, marks, len(t.present) > 0, size)


@inlined
def _copy_row(to, columns, base, values, marks, holes, size):
    """The entries of a row, `to` their indices, data and number."""
    indices, data, length = to
    if size == 1:
        for k in range(length):
            indices[k] = base + columns[k * WARP]
            data[k] = values[k * WARP]
        return
    k = b = 0
    while k < length:
        first = (base + np.int64(columns[b * WARP])) * size
        for j in range(size):
            if not holes or marks[b * WARP] >> j & 1:
                indices[k] = first + j
                data[k] = values[(b * size + j) * WARP]
                k += 1
        b += 1


# ---------------------------------------------------------------------------------------------------------------- CVR


@kernel
def _count_chunks(low, high, t, rows):
    """rows.ptr[r - first + 1] = entries of row r, but for those in chunks that cut it; these count in rows.carried."""
    begin = simd.scratch(t.step_ptr, simd.SINGLE)
    for k in range(low, high):
        for lane in range(t.n_lanes):
            begin[lane] = t.step_ptr[k]
        record = t.rec_ptr[k]
        for step in range(t.step_ptr[k], t.step_ptr[k + 1]):
            ended = t.rec_mask[step]
            while ended:
                lane = simd.lowest(ended)
                ended &= ended - np.uint32(1)
                length = step + 1 - begin[lane]
                begin[lane] = step + 1
                wb = t.rec_wb[record]
                record += 1
                row = wb if wb >= 0 else t.tail[k, ~wb]
                if row == t.carry_row[k]:
                    rows.carried[k] += length
                elif rows.first <= row < rows.last:
                    rows.ptr[row - rows.first + 1] += length


@kernel
def _place_carried(low, high, t, rows):
    """Add the carried entries to their rows' counts; rows.carried[k] is then the row's entries before chunk k."""
    for k in range(low, high):
        if rows.first <= t.carry_row[k] < rows.last:
            at = t.carry_row[k] - rows.first + 1
            length = rows.carried[k]
            rows.carried[k] = rows.ptr[at]
            rows.ptr[at] += length


@kernel
def _copy_chunks(low, high, t, rows):
    for k in range(low, high):
        if t.col_base[k] >= 0:
            _copy_chunk(k, t, simd.pointer(t.col_narrow, t.col_ptr[k]), t.col_base[k], rows)
        else:
            _copy_chunk(k, t, simd.pointer(t.col_wide, t.col_ptr[k]), 0, rows)


@inlined
def _copy_chunk(k, t, columns, base, rows):
    """A record ends a segment that began after the lane's record before: its slots belong to the record's row.

    A row that a record names is whole in the chunk. A row in the tail is shared: whoever steals takes what follows in
    the row, and the lane that had it goes on behind that.
    """
    ints = t.step_ptr
    begin, entries = simd.scratch(ints, simd.SINGLE), simd.scratch(ints, simd.BATCH_ROW)
    slots, lengths = simd.scratch(ints, simd.BATCH_ROW), simd.scratch(ints, simd.BATCH_ROW)
    n_lanes, first_step, n_kept = t.n_lanes, t.step_ptr[k], 0
    for lane in range(n_lanes):
        begin[lane] = first_step
    record = t.rec_ptr[k]
    for step in range(first_step, t.step_ptr[k + 1]):
        simd.prefetch(t.val, (step + AHEAD) * n_lanes, simd.INTO_L1)
        simd.prefetch(columns, (step + AHEAD - first_step) * n_lanes, simd.INTO_L1)
        ended = t.rec_mask[step]
        while ended:
            lane = simd.lowest(ended)
            ended &= ended - np.uint32(1)
            slot, length = (begin[lane] - first_step) * n_lanes + lane, step + 1 - begin[lane]
            begin[lane] = step + 1
            wb = t.rec_wb[record]
            record += 1
            if wb < 0 and n_kept < MOST_KEPT:
                _keep(n_kept, ~wb, slot, length, entries, slots, lengths)
                n_kept += 1
            elif rows.first <= wb < rows.last and wb >= 0:
                at = rows.ptr[wb - rows.first] + (rows.carried[k] if wb == t.carry_row[k] else 0)
                _copy_segment(t, k, columns, base, slot, length, at, rows)
    i = 0
    while i < n_kept:
        entry, row = entries[i], t.tail[k, entries[i]]
        at = rows.carried[k] if row == t.carry_row[k] else 0
        at += rows.ptr[row - rows.first] if rows.first <= row < rows.last else -1 << 60
        own, own_end = slots[i], slots[i] + lengths[i] * n_lanes
        i += 1
        while i < n_kept and entries[i] == entry:
            done = max(0, slots[i] // n_lanes - own // n_lanes)  # what the lane took before it was stolen from
            at = _copy_segment(t, k, columns, base, own, done, at, rows)
            own += done * n_lanes
            at = _copy_segment(t, k, columns, base, slots[i], lengths[i], at, rows)
            i += 1
        at = _copy_segment(t, k, columns, base, own, (own_end - own) // n_lanes, at, rows)


@inlined
def _keep(i, entry, slot, length, entries, slots, lengths):
    """Insert a segment among the first i: in order of the tail's entries, and for one of them in the order they began
    in.
    """
    while i > 0 and (entries[i - 1] > entry or (entries[i - 1] == entry and slots[i - 1] > slot)):
        entries[i], slots[i], lengths[i] = entries[i - 1], slots[i - 1], lengths[i - 1]
        i -= 1
    entries[i], slots[i], lengths[i] = entry, slot, length


@inlined
def _copy_segment(t, k, columns, base, slot, length, at, rows):
    """Copy so many entries of a lane, from a slot of the chunk on, to the place `at`, if that is one; the next place.

    Tables that no conversion made may count fewer entries than there are: nothing is written behind the arrays.
    """
    if at < 0 or at + length > len(rows.indices):
        return at
    n_lanes = t.n_lanes
    values, col = simd.pointer(t.val, t.step_ptr[k] * n_lanes + slot), simd.pointer(columns, slot)
    data, indices = simd.pointer(rows.data, at), simd.pointer(rows.indices, at)
    for s in range(length):
        data[s] = values[s * n_lanes]
        indices[s] = base + col[s * n_lanes]
    return at + length
