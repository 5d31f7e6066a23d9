"""The way back on the CPU: canonical CSR straight from the tables of either format, without sorting.

Each takes two passes over the tables: the first counts every row's entries, the second copies them to where they
belong. A bin or chunk is done by one thread, and writes the entries of its own rows. The sum of a row that chunks of
CVR cut is the exception: such a chunk counts its part apart, and the parts are placed one after the other.

Tables may be a part of an array's, as ``FormatArray._part`` makes them; rows outside [first, last) are left out. They may
be forged: whatever they hold that the formats' pages check before, nothing is read or written outside of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import CSR, NARROW, NARROW_PADDING, WARP, BBCSRTables, CVRTables
from cvrarray.cpu import simd
from cvrarray.cpu.csr import offsets
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel
from cvrarray.cpu.simd import masks

#: Steps of a chunk from the one whose records are read to the one whose slots are prefetched.
AHEAD = 16


class Rows(NamedTuple):
    """The rows that are decoded, and where their entries go."""

    first: int
    last: int
    # (last - first + 1,) int64: row r has the entries ptr[r - first] .. ptr[r - first + 1]; first, counts
    ptr: np.ndarray
    carried: np.ndarray  # (n_chunks,) int64, CVR: entries of the chunk's carry_row in it; then, in chunks before it
    indices: np.ndarray  # (nnz,) I
    data: np.ndarray  # (nnz,) unsigned integers of the values' size, or complex128


class Kernels(NamedTuple):
    """The kernels of one format, compiled for the dtypes of a matrix."""

    count: Callable  # first and last tile, tables, rows
    place: Callable  # tables, rows: counts become offsets
    copy: Callable  # first and last tile, tables, rows


def from_bbcsr(tables: BBCSRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last) in the tables of bins, which begin at row 0."""
    t = tables._replace(
        data=memory.bits(tables.data), present=np.empty(0, np.uint8) if tables.present is None else tables.present
    )
    return _decoded(tables, t, first, last, _bbcsr_kernels(t.col_wide.dtype, t.data.dtype, t.present.dtype), t.bin_rowptr, 1)


def from_cvr(tables: CVRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last) in the tables of chunks."""
    t = tables._replace(val=memory.bits(tables.val))
    return _decoded(tables, t, first, last, _cvr_kernels(t.rec_wb.dtype, t.val.dtype), t.step_ptr, t.n_lanes)


def diagonal_of_bbcsr(tables: BBCSRTables, offset: int) -> np.ndarray:
    """``A[i, i + offset]`` for every i for which there is such an entry, 0 where none is stored."""
    t = tables._replace(
        data=memory.bits(tables.data), present=np.empty(0, np.uint8) if tables.present is None else tables.present
    )
    return _diagonal(_diagonal_of_bins, t, tables.data.dtype, offset, t.bin_rowptr, 1)


def diagonal_of_cvr(tables: CVRTables, offset: int) -> np.ndarray:
    """``A[i, i + offset]`` for every i for which there is such an entry, 0 where none is stored."""
    t = tables._replace(val=memory.bits(tables.val))
    return _diagonal(_diagonal_of_chunks, t, tables.val.dtype, offset, t.step_ptr, t.n_lanes)


def _diagonal(look: Callable, t, dtype: np.dtype, offset: int, work: np.ndarray, unit: int) -> np.ndarray:
    down, right = max(-offset, 0), max(offset, 0)
    out = np.zeros(max(0, min(t.shape[0] - down, t.shape[1] - right)), dtype)
    if out.size:
        args = t, down, right, memory.bits(out)
        threads.run(compiled(look, 0, 0, *args), work, *args, unit=unit, least=threads.QUICK)
    return out


def _decoded(tables, t, first: int, last: int, kernels: Kernels, work: np.ndarray, unit: int) -> CSR:
    values = tables.val if isinstance(tables, CVRTables) else tables.data
    index = t.col_wide.dtype
    ptr = np.zeros(last - first + 1, np.int64)
    rows = Rows(first, last, ptr, np.zeros(len(work) - 1, np.int64), np.empty(0, index), memory.bits(values[:0]))
    threads.run(kernels.count, work, t, rows, unit=unit, least=threads.QUICK)
    nnz = kernels.place(t, rows)
    data = memory.empty(nnz, values.dtype)
    rows = rows._replace(indices=memory.empty(nnz, index), data=memory.bits(data))
    threads.run(kernels.copy, work, t, rows, unit=unit, least=threads.QUICK)
    return CSR(offsets(ptr, index), rows.indices, data, (last - first, t.shape[1]))


@cache
def _bbcsr_kernels(index: np.dtype, bits: np.dtype, mask: np.dtype) -> Kernels:
    number, offset, values = np.empty(0, index), np.empty(0, np.int64), np.empty(0, bits)
    t = BBCSRTables((0, 0), 0, 0, offset, values, number, offset, np.empty(0, np.uint16), number, np.empty(0, mask))
    without_values = np.empty(0, np.uint8)  # one compiled version for all dtypes
    rows = Rows(0, 0, offset, offset, number, values)
    count = compiled(_count_bins, 0, 0, t._replace(data=without_values), rows._replace(data=without_values))
    return Kernels(
        lambda low, high, t, rows: count(low, high, t._replace(data=without_values), rows._replace(data=without_values)),
        lambda t, rows: memory.accumulate(rows.ptr),
        compiled(_copy_bins, 0, 0, t, rows),
    )


@cache
def _cvr_kernels(index: np.dtype, bits: np.dtype) -> Kernels:
    number, offset, values, numbers = np.empty(0, index), np.empty(0, np.int64), np.empty(0, bits), np.empty((0, 0), index)
    t = CVRTables(
        (0, 0), 0, 0, offset, values, number, offset, np.empty(0, np.uint16), number, np.empty(0, np.uint32), offset,
        number, numbers, number, number, np.empty((0, 0), np.int64), number
    )  # fmt: skip
    without_values = np.empty(0, np.uint8)
    rows = Rows(0, 0, offset, offset, number, values)
    short_t, short_rows = t._replace(val=without_values), rows._replace(data=without_values)
    count, place = compiled(_count_chunks, 0, 0, short_t, short_rows), compiled(_place_carried, number, short_rows)
    return Kernels(
        lambda low, high, t, rows: count(low, high, t._replace(val=without_values), rows._replace(data=without_values)),
        lambda t, rows: place(t.carry_row, rows._replace(data=without_values)) or memory.accumulate(rows.ptr),
        compiled(_copy_chunks, 0, 0, t, rows),
    )


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
        if i + 1 < high:  # rows are read one after the other: the processor would not foresee their lines
            n_values = t.bin_rowptr[i + 2] - t.bin_rowptr[i + 1]
            _prefetch(t.data, t.bin_rowptr[i + 1], n_values)
            if t.col_base[i + 1] >= 0:
                _prefetch(t.col_narrow, t.col_ptr[i + 1], n_values // size)
            else:
                _prefetch(t.col_wide, t.col_ptr[i + 1], n_values // size)
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
def _prefetch(table, at, n):
    for k in range(0, n, WARP):
        simd.prefetch(table, at + k, simd.INTO_L1)


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
def _place_carried(carry_row, rows):
    """Add the carried entries to their rows' counts; rows.carried[k] is then the row's entries before chunk k."""
    for k in range(len(carry_row)):
        if rows.first <= carry_row[k] < rows.last:
            at = carry_row[k] - rows.first + 1
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
            if wb < 0 and n_kept < simd.BATCH:
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


# ----------------------------------------------------------------------------------------------------------- diagonals


@kernel
def _diagonal_of_bins(low, high, t, down, right, out):
    size, holes = t.block_size, len(t.present) > 0
    wanted, found = simd.scratch(t.col_wide, simd.SINGLE), simd.scratch(t.col_wide, simd.SINGLE)
    for i in range(low, high):
        n_steps, base = (t.bin_rowptr[i + 1] - t.bin_rowptr[i]) // (size * WARP), t.col_base[i]
        for r in range(WARP):
            place = i * WARP + r - down
            column = place + right
            block = (column if size == 1 else column // size) - max(base, 0)  # without blocks, without divisions
            outside = place < 0 or place >= len(out) or block < 0 or (base >= 0 and block >= NARROW_PADDING)
            wanted[r] = -2 if outside else block
            found[r] = -1
        if base >= 0:
            _find(n_steps, simd.pointer(t.col_narrow, t.col_ptr[i]), wanted, found)
        else:
            _find(n_steps, simd.pointer(t.col_wide, t.col_ptr[i]), wanted, found)
        for r in range(WARP):
            if found[r] >= 0:
                place, step = i * WARP + r - down, np.int64(found[r])
                j = 0 if size == 1 else (place + right) % size
                if not holes or t.present[t.bin_rowptr[i] // size + step * WARP + r] >> j & 1:
                    out[place] = t.data[t.bin_rowptr[i] + (step * size + j) * WARP + r]


@inlined
def _find(n_steps, columns, wanted, found):
    """Set `found` to the step at which each of the 32 rows has its wanted column. Columns ascend in a row."""
    behind = True
    step = 0
    while behind and step < n_steps:
        behind = False
        for r in range(WARP):  # without a way out, so it compiles to vector instructions
            column = columns[step * WARP + r]
            found[r] = step if column == wanted[r] else found[r]
            behind |= column < wanted[r]
        step += 1


@kernel
def _diagonal_of_chunks(low, high, t, down, right, out):
    narrow, wide = simd.scratch(t.col_narrow, simd.SINGLE), simd.scratch(t.col_wide, simd.SINGLE)
    first_row = _last_row(low - 1, t) if low else 0
    for k in range(low, high):
        last_row, base = _last_row(k, t), t.col_base[k]
        begin, end, first_row = first_row - down, last_row - down, last_row
        if begin >= len(out) or end < 0 or (base >= 0 and (end + right < base or begin + right >= base + NARROW)):
            continue
        if base >= 0:
            columns = simd.pointer(t.col_narrow, t.col_ptr[k])
            _diagonal_of_chunk(k, t, columns, base, NARROW, narrow, down, right, out)
        else:
            _diagonal_of_chunk(k, t, simd.pointer(t.col_wide, t.col_ptr[k]), 0, t.shape[1], wide, down, right, out)


@inlined
def _last_row(k, t):
    """The last row that chunk k has a part of; the chunk behind it begins with it or a later one."""
    row = np.int64(-1)
    for lane in range(t.n_lanes):
        row = max(row, t.tail[k, lane])
    return row


@inlined
def _diagonal_of_chunk(k, t, columns, base, most, wanted, down, right, out):
    """Step by step from the last one on: then a lane's row is known before its entries, and `wanted` has its column.

    Columns are `base` plus `columns`, these below `most`.
    """
    place, in_search = simd.scratch(t.step_ptr, simd.SINGLE), np.uint32(0)
    n_lanes, first_step, record = t.n_lanes, t.step_ptr[k], t.rec_ptr[k + 1]
    for step in range(t.step_ptr[k + 1] - first_step - 1, -1, -1):
        ended = t.rec_mask[first_step + step]
        record -= masks.count(ended)
        of_lane = record
        while ended:
            lane, bit = simd.lowest(ended), ended & (~ended + np.uint32(1))
            ended ^= bit
            wb = t.rec_wb[of_lane]
            of_lane += 1
            at = (wb if wb >= 0 else t.tail[k, ~wb]) - down
            column = at + right - base
            inside = 0 <= at < len(out) and 0 <= column < most
            place[lane], wanted[lane] = at, column if inside else 0
            in_search = in_search | bit if inside else in_search & ~bit
        if not in_search:
            continue
        found = in_search
        if n_lanes == WARP:
            found &= masks.equal(columns, step * WARP, wanted, 0)
        else:
            for lane in range(n_lanes):
                if columns[step * n_lanes + lane] != wanted[lane]:
                    found &= ~(np.uint32(1) << np.uint32(lane))
        while found:
            lane = simd.lowest(found)
            found &= found - np.uint32(1)
            out[place[lane]] = t.val[(first_step + step) * n_lanes + lane]
