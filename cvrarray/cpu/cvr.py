"""CVR on the CPU: conversion, product and the way back, on raw arrays.

A chunk is laid out and multiplied by one thread; chunks are handed out in contiguous ranges
(:mod:`cvrarray.cpu.threads`). Chunks depend on the conversion's parameters alone, never on the threads.

The trackers of the paper are kept per *segment*: a lane works on one run of nonzeros, up to before step ``end``; at a step
it has nonzero ``source + step`` (the paper's ``valID``; its ``count`` is ``end - step``), and its sum goes to ``target``
(``rowID``). A step is then one gather of values and one of columns.
"""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import CSR, NARROW, THREES, WARP, CVRTables
from cvrarray.cpu import lanes, locality, memory, parts, threads, tiling
from cvrarray.cpu.caching import njit
from cvrarray.cpu.scaling import Run, scaled

ALL = np.uint32(0xFFFFFFFF)  #: mask of all lanes
RUNS, EACH, GATHER, IN_THREES = range(4)  #: how x is loaded: 16-bit columns, others near one another, far; rows in threes
SHORT = 32  #: nonzeros of a row up to which all are quicker to look at than its ends
NO_PADDING = -1  #: no narrow column: pads have their chunk's smallest


def convert(csr: CSR, n_lanes: int, n_chunks: int, split: str) -> CVRTables:
    """The CVR tables of a canonical CSR matrix.

    Parameters
    ----------
    csr
        NumPy arrays.
    n_lanes
        1 to 32.
    n_chunks
        At least 1; at most one chunk a nonzero is made.
    split
        ``"nnz"``: chunks of equal length. ``"rows"``: their ends moved to a row's end near by, where there is one.
    """
    index = csr.indices.dtype
    n_rows, n_chunks = csr.shape[0], min(n_chunks, csr.nnz)
    row, empty_row, ptr = np.empty(n_rows, index), np.empty(n_rows, index), np.empty(n_rows + 1, np.int64)
    cut, step_ptr = np.empty(n_chunks + 1, np.int64), np.empty(n_chunks + 1, np.int64)
    most_records, rec_ptr = np.empty(n_chunks + 1, np.int64), np.empty(n_chunks + 1, np.int64)
    cut_in, row_end = np.empty(n_chunks, np.int64), np.empty(n_chunks, np.int64)
    by_rows = split == "rows"
    n_filled = _cut(csr.indptr, n_lanes, by_rows, row, ptr, empty_row, cut, cut_in, row_end, step_ptr, most_records)

    low, high = np.empty(n_chunks, index), np.empty(n_chunks, index)
    threads.run(_column_range, cut, cut, cut_in, row_end, ptr, csr.indices, low, high)
    col_base, col_ptr = np.empty(n_chunks, index), np.empty(n_chunks, np.int64)
    n_narrow, n_wide = _column_places(n_lanes, step_ptr, low, high, col_base, col_ptr)
    n_steps = int(step_ptr[-1])
    val = memory.empty(n_steps * n_lanes, csr.data.dtype)
    col_narrow, col_wide = memory.empty(n_narrow, np.uint16), memory.empty(n_wide, index)
    rec_mask = np.empty(n_steps, np.uint32)
    rec_wb = np.empty(most_records[-1], index)  # chunks with gaps between them, until they are laid out
    tail = np.empty((n_chunks, n_lanes), index)
    threads.run(
        _lay_out, cut, cut, cut_in, row_end, ptr, row, csr.indices, memory.bits(csr.data), low, step_ptr, col_base,
        col_ptr, most_records, lanes.width(n_lanes), memory.bits(val), col_narrow, col_wide, rec_mask, rec_wb, rec_ptr, tail,
    )  # fmt: skip
    carry_row, cut_row, cut_ptr = np.empty(n_chunks, index), np.empty(n_chunks, index), np.empty((n_chunks, 2), np.int64)
    n_cut = _carries(cut, cut_in, ptr, row, rec_ptr, carry_row, cut_row, cut_ptr)
    _compact(most_records, rec_ptr, rec_wb)
    rec_wb.resize(int(rec_ptr[-1]), refcheck=False)  # gives back what was too much
    return CVRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        n_lanes=n_lanes,
        step_ptr=step_ptr,
        val=val,
        col_base=col_base,
        col_ptr=col_ptr,
        col_narrow=col_narrow,
        col_wide=col_wide,
        rec_mask=rec_mask,
        rec_ptr=rec_ptr,
        rec_wb=rec_wb,
        tail=tail,
        carry_row=carry_row,
        cut_row=cut_row[:n_cut].copy(),
        cut_ptr=cut_ptr[:n_cut].copy(),
        empty_row=empty_row[: n_rows - n_filled].copy(),
    )


def product(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y``.

    x (n_cols,) and y (n_rows,) are contiguous arrays of `dtype`: any number type but bool (compute ``bool @ bool`` in
    int64 and cast). alpha and beta are scalars of it. Where beta is 0, y is written and never read.
    """
    t = tables
    is_near = locality.near(t.step_ptr, (t.n_lanes, 1), t.col_base, t.col_ptr, t.col_wide, np.dtype(dtype).itemsize)
    # A tuple's length is known when the kernel is compiled, and each has the loops that it needs: others cost it registers.
    wide = (0,) if len(t.col_wide) else ()
    args = (
        t.n_lanes, lanes.width(t.n_lanes), t.step_ptr, memory.values(t.val), t.col_base, t.col_ptr, t.col_narrow,
        t.col_wide, t.rec_mask, t.rec_ptr, t.rec_wb, t.tail, t.carry_row, t.empty_row, is_near, wide, lanes.far(t.val),
    )  # fmt: skip
    like = np.empty(0, dtype)
    rows = threads.prepare(lanes.compiled(_product, 0, 0, *args, like, like, like), t.step_ptr, t.n_lanes)
    add_carries = lanes.compiled(_add_carries, t.cut_row, t.cut_ptr, like, like)
    n_chunks, n_cut = len(t.carry_row), len(t.cut_row)

    def multiply(x: np.ndarray, y: np.ndarray) -> None:
        carry = np.empty(n_chunks, dtype)
        rows(*args, x, y, carry)
        if n_cut:
            add_carries(t.cut_row, t.cut_ptr, carry, y)

    return scaled(multiply)


def product_matrix(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``.

    X (n_cols, k) and Y (n_rows, k) are C-contiguous arrays, otherwise as for :func:`product`; k is any number of columns.
    """
    t = tables
    args = (
        t.n_lanes, t.step_ptr, memory.values(t.val), t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.rec_mask,
        t.rec_ptr, t.rec_wb, t.tail, t.carry_row, t.empty_row,
    )  # fmt: skip

    def multiply(x: np.ndarray, y: np.ndarray, first: int, tile: tuple[int, ...]) -> None:
        carry = np.empty((len(t.carry_row), len(tile)), y.dtype)
        dense = (y.shape[1], first, tile, x.ravel(), y.ravel())
        threads.run(_product_matrix, t.step_ptr, *args, *dense, carry.ravel(), unit=t.n_lanes)
        if len(t.cut_row):
            _add_carry_rows(t.cut_row, t.cut_ptr, first, carry, y)

    return tiling.product(multiply)


def product_transposed(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A.T @ x + beta * y``, with no other tables than :func:`product`.

    x (n_rows,) and y (n_cols,) are as there. A call takes up to ``parts.MOST_VECTORS`` times the memory of y.
    """
    t = tables
    low, high = np.full(len(t.col_base), t.shape[1]), np.zeros(len(t.col_base), np.int64)
    columns = (t.col_base, t.col_ptr, t.col_narrow, t.col_wide)
    threads.run(parts.column_ranges, t.step_ptr, t.step_ptr, (t.n_lanes, 1), *columns, NO_PADDING, low, high, unit=t.n_lanes)
    of = parts.divide(t.step_ptr, t.n_lanes, low, high, t.shape[1])
    args = (
        t.n_lanes, lanes.width(t.n_lanes), t.step_ptr, memory.values(t.val), *columns, t.rec_mask, t.rec_ptr, t.rec_wb, t.tail
    )  # fmt: skip
    return scaled(parts.transposed(_scatter, of, t.step_ptr, t.n_lanes, args, t.shape[1], dtype))


def to_coo(tables: CVRTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and value of every stored entry, chunk by chunk; pads are dropped."""
    t = tables
    index = t.rec_wb.dtype
    entry_ptr = np.zeros(len(t.step_ptr), np.int64)
    threads.run(_count_entries, t.step_ptr, t.n_lanes, t.step_ptr, t.rec_mask, entry_ptr, unit=t.n_lanes)
    np.cumsum(entry_ptr, out=entry_ptr)
    nnz = entry_ptr[-1]  # t.nnz, but for tables that are a part of an array's
    row, col, val = np.empty(nnz, index), np.empty(nnz, index), np.empty(nnz, t.val.dtype)
    threads.run(
        _entries, t.step_ptr, t.n_lanes, t.step_ptr, entry_ptr, memory.bits(t.val), t.col_base, t.col_ptr, t.col_narrow,
        t.col_wide, t.rec_mask, t.rec_ptr, t.rec_wb, t.tail, row, col, memory.bits(val), unit=t.n_lanes,
    )  # fmt: skip
    return row, col, val


@njit(**lanes.OPTIONS)
def _filled_rows(indptr, row, ptr, empty_row):
    """List the rows that have nonzeros, with their offsets and the last one's end, and those that have none."""
    n_filled = n_empty = 0
    for r in range(len(indptr) - 1):
        row[n_filled] = r
        ptr[n_filled] = indptr[r]
        empty_row[n_empty] = r
        filled = indptr[r] < indptr[r + 1]
        n_filled += filled
        n_empty += not filled
    ptr[n_filled] = indptr[len(indptr) - 1]
    return n_filled


@njit(**lanes.OPTIONS)
def _cut(indptr, n_lanes, by_rows, row, ptr, empty_row, cut, cut_in, row_end, step_ptr, most_records):
    """Where chunks begin and end, in nonzeros, non-empty rows and steps; and where each has room for its records.

    Chunk k has some of the nonzeros of rows `cut_in[k]` to before `row_end[k]` of the non-empty ones, which `row` and `ptr`
    list; how many these are is returned.
    """
    n_rows, n_chunks = _filled_rows(indptr, row, ptr, empty_row), len(cut_in)
    cut[0] = step_ptr[0] = most_records[0] = 0
    if n_chunks == 0:
        return n_rows
    n_nonzeros = ptr[n_rows]
    share, rest = n_nonzeros // n_chunks, n_nonzeros % n_chunks
    r = 0
    for k in range(1, n_chunks):
        ideal = k * share + min(k, rest)
        r = _row_at(ptr, n_rows, r, ideal)
        cut[k] = ideal
        if by_rows:
            group = r - r % n_lanes
            by_group = _nearer(ideal, ptr[group], ptr[min(group + n_lanes, n_rows)])
            by_row = _nearer(ideal, ptr[r], ptr[r + 1])
            if 2 * abs(by_group - ideal) < share:
                cut[k] = by_group
            elif 2 * abs(by_row - ideal) < share:
                cut[k] = by_row
    cut[n_chunks] = n_nonzeros
    r = 0
    for k in range(n_chunks):
        r = _row_at(ptr, n_rows, r, cut[k])
        cut_in[k] = r
        if k:
            row_end[k - 1] = r + (cut[k] > ptr[r])
        step_ptr[k + 1] = step_ptr[k] + (cut[k + 1] - cut[k] + n_lanes - 1) // n_lanes
    row_end[n_chunks - 1] = n_rows
    for k in range(n_chunks):
        most_records[k + 1] = most_records[k] + row_end[k] - cut_in[k] + n_lanes - 1
    return n_rows


@njit(**lanes.OPTIONS)
def _row_at(ptr, n_rows, low, nonzero):
    """The non-empty row, of `n_rows` and from `low` on, that has a nonzero: doubling steps, for it is near, then halving."""
    step, last = 1, n_rows - 1
    while low + step <= last and ptr[low + step] <= nonzero:
        low += step
        step *= 2
    while step > 1:
        step //= 2
        if low + step <= last and ptr[low + step] <= nonzero:
            low += step
    return low


@njit(**lanes.OPTIONS, forceinline=True)
def _nearer(to, low, high):
    return low if to - low <= high - to else high


@njit(**lanes.OPTIONS)
def _column_places(n_lanes, step_ptr, low, high, col_base, col_ptr):
    """Which chunks are narrow, and where each has its columns; the slots of narrow chunks and of others."""
    n_narrow = n_wide = 0
    for k in range(len(low)):
        slots = (step_ptr[k + 1] - step_ptr[k]) * n_lanes
        if high[k] - low[k] < NARROW:
            col_base[k], col_ptr[k] = low[k], n_narrow
            n_narrow += slots
        else:
            col_base[k], col_ptr[k] = -1, n_wide
            n_wide += slots
    return n_narrow, n_wide


@njit(**lanes.OPTIONS)
def _carries(cut, cut_in, ptr, row, rec_ptr, carry_row, cut_row, cut_ptr):
    """Turn counts of records into offsets, and list the rows that chunks' starts cut; the number of these."""
    total = 0
    n_cut = 0
    for k in range(len(carry_row)):
        total, rec_ptr[k] = total + rec_ptr[k], total
        carry_row[k] = -1
        if cut[k] > ptr[cut_in[k]]:
            carry_row[k] = row[cut_in[k]]
            if n_cut == 0 or cut_row[n_cut - 1] != carry_row[k]:
                cut_row[n_cut] = carry_row[k]
                cut_ptr[n_cut, 0] = k
                n_cut += 1
            cut_ptr[n_cut - 1, 1] = k + 1
    rec_ptr[len(carry_row)] = total
    return n_cut


@njit(**lanes.OPTIONS)
def _column_range(first, last, cut, cut_in, row_end, ptr, indices, low, high):
    """Smallest and largest column of every chunk. Columns increase in a row, so a long row's ends tell."""
    for k in range(first, last):
        columns, length = lanes.pointer(indices, cut[k]), cut[k + 1] - cut[k]
        least = most = columns[0]
        if length < SHORT * (row_end[k] - cut_in[k]):
            for i in range(length):  # compiles to vector instructions
                least = min(least, columns[i])
                most = max(most, columns[i])
        else:
            for row in range(cut_in[k], row_end[k]):
                least = min(least, columns[max(ptr[row] - cut[k], 0)])
                most = max(most, columns[min(ptr[row + 1] - cut[k], length) - 1])
        low[k], high[k] = least, most


@njit(**lanes.OPTIONS)
def _lay_out(
    first, last, cut, cut_in, row_end, ptr, row, indices, data, low, step_ptr, col_base, col_ptr, rec_at, width, val,
    col_narrow, col_wide, rec_mask, rec_wb, n_records, tail
):  # fmt: skip
    """Feed, record, steal and pad, chunk by chunk, as the definition has it; every step is written whole."""
    n_lanes = tail.shape[1]
    source, end, target = lanes.scratch(cut), lanes.scratch(cut), lanes.scratch(row)
    for k in range(first, last):
        n_steps, begin, end_of_chunk = step_ptr[k + 1] - step_ptr[k], cut[k], cut[k + 1]
        rows, offsets = lanes.pointer(row, cut_in[k]), lanes.pointer(ptr, cut_in[k])
        n_rows, next_row = row_end[k] - cut_in[k], 0
        records, n_done = lanes.pointer(rec_wb, rec_at[k]), 0
        busy = np.uint32(0)
        for lane in range(WARP):
            end[lane] = 0 if lane < n_lanes else -1
            source[lane] = 0
            target[lane] = -1
        for step in range(n_steps + 1):
            ended = ~lanes.different(end, 0, step)
            if step:
                rec_mask[step_ptr[k] + step - 1] = ended & busy
            while ended:
                lane = lanes.lowest(ended)
                bit = ended & (~ended + np.uint32(1))
                ended ^= bit
                if busy & bit:
                    records[n_done] = target[lane]
                    n_done += 1
                if next_row < n_rows:
                    start = max(offsets[next_row], begin)
                    source[lane] = start - step
                    end[lane] = step + min(offsets[next_row + 1], end_of_chunk) - start
                    target[lane] = rows[next_row]
                    busy |= bit
                    next_row += 1
                    if next_row == n_rows:
                        for entry in range(n_lanes):
                            tail[k, entry] = target[entry]
                            target[entry] = ~entry
                    continue
                victim = 0
                while victim < n_lanes and end[victim] <= n_steps:
                    victim += 1
                if victim < n_lanes:
                    source[lane] = source[victim]
                    end[lane] = n_steps
                    target[lane] = target[victim]
                    busy |= bit
                    source[victim] += n_steps - step
                    end[victim] -= n_steps - step
                else:
                    end[lane] = -1
                    busy &= ~bit
            if step < n_steps:
                # The next chunk's entries, which are as many, are asked for while this one's move.
                lanes.prefetch(data, end_of_chunk + step * n_lanes, ())
                lanes.prefetch(indices, end_of_chunk + step * n_lanes, ())
                at, col_at = (step_ptr[k] + step) * n_lanes, col_ptr[k] + step * n_lanes
                if len(width):
                    lanes.store_first(lanes.gather(data, step, source, 0, busy), val, at, width)
                    if col_base[k] >= 0:
                        lanes.place(indices, step, source, busy, low[k], low[k], col_narrow, col_at, width)
                    else:
                        lanes.place(indices, step, source, busy, low[k], 0, col_wide, col_at, width)
                else:
                    _write_step(
                        n_lanes, step, source, busy, indices, data, low[k], col_base[k], at, col_at, val, col_narrow, col_wide
                    )
        n_records[k] = n_done


@njit(**lanes.OPTIONS)
def _write_step(n_lanes, step, source, busy, indices, data, low, base, at, col_at, val, col_narrow, col_wide):
    """A step's values and columns, lane by lane; pads have value 0 and the column `low`."""
    for lane in range(n_lanes):
        column = low
        val[at + lane] = 0
        if busy >> np.uint32(lane) & np.uint32(1):
            column = indices[source[lane] + step]
            val[at + lane] = data[source[lane] + step]
        if base >= 0:
            col_narrow[col_at + lane] = column - low
        else:
            col_wide[col_at + lane] = column


@njit(**lanes.OPTIONS)
def _compact(sparse_at, rec_ptr, rec_wb):
    """Move every chunk's records down to where the last one's end."""
    for k in range(len(rec_ptr) - 1):
        to, records = lanes.pointer(rec_wb, rec_ptr[k]), lanes.pointer(rec_wb, sparse_at[k])
        for r in range(rec_ptr[k + 1] - rec_ptr[k]):
            to[r] = records[r]


@njit(**lanes.OPTIONS)
def _product(
    first, last, n_lanes, width, step_ptr, val, col_base, col_ptr, col_narrow, col_wide, rec_mask, rec_ptr, rec_wb, tail,
    carry_row, empty_row, is_near, wide, far, x, y, carry
):  # fmt: skip
    tail_sum = lanes.scratch(y)
    for k in range(first, last):
        lanes.store(lanes.zeros(y), tail_sum, 0)
        if len(wide) == 0 or col_base[k] >= 0:
            _chunk(
                k, n_lanes, width, step_ptr, val, IN_THREES if len(width) == THREES else RUNS, col_base[k], col_ptr[k],
                col_narrow, rec_mask, rec_ptr, rec_wb, carry_row[k], far, x, y, carry, tail_sum
            )  # fmt: skip
        elif len(width) == THREES:
            _chunk(
                k, n_lanes, width, step_ptr, val, IN_THREES, 0, col_ptr[k], col_wide, rec_mask, rec_ptr, rec_wb, carry_row[k],
                far, x, y, carry, tail_sum
            )  # fmt: skip
        elif is_near[k]:
            _chunk(
                k, n_lanes, width, step_ptr, val, EACH, 0, col_ptr[k], col_wide, rec_mask, rec_ptr, rec_wb, carry_row[k],
                far, x, y, carry, tail_sum
            )  # fmt: skip
        else:
            _chunk(
                k, n_lanes, width, step_ptr, val, GATHER, 0, col_ptr[k], col_wide, rec_mask, rec_ptr, rec_wb, carry_row[k],
                far, x, y, carry, tail_sum
            )  # fmt: skip
        for lane in range(n_lanes):
            if tail[k, lane] >= 0:
                _store(k, tail[k, lane], tail_sum[lane], carry_row[k], y, carry)
    n_tiles = max(len(carry_row), 1)
    end = len(empty_row) * last // n_tiles if last < len(carry_row) else len(empty_row)
    for i in range(len(empty_row) * first // n_tiles, end):
        y[empty_row[i]] = 0


@njit(**lanes.OPTIONS, forceinline=True)
def _chunk(
    k, n_lanes, width, step_ptr, val, x_by, base, at, col, rec_mask, rec_ptr, rec_wb, carry_row, far, x, y, carry, tail_sum
):  # fmt: skip
    record = rec_ptr[k]
    sums = lanes.scratch_batch(y)
    if len(width):
        n_sums = 0
        acc = lanes.zeros(y)
        for step in range(step_ptr[k], step_ptr[k + 1]):
            if x_by == RUNS:
                lanes.prefetch(val, (step + lanes.AHEAD) * WARP, far)
                lanes.prefetch(col, at + lanes.AHEAD * WARP, far)
            else:
                lanes.prefetch(val, (step + lanes.AHEAD_INTO_L2) * len(width), lanes.INTO_L2)
                lanes.prefetch(col, at + lanes.AHEAD_INTO_L2 * len(width), lanes.INTO_L2)
            if x_by == IN_THREES:
                lanes.prefetch(val, (step + lanes.AHEAD_IN_BLOCKS) * len(width), ())
                lanes.prefetch(col, at + lanes.AHEAD_IN_BLOCKS * len(width), ())
            values = lanes.load_first(val, step * len(width), y, width)
            if x_by == IN_THREES:
                entries = lanes.load_threes(x, base, col, at)
            elif x_by == RUNS:
                entries = lanes.load_runs(x, base, col, at)
            elif x_by == EACH:
                entries = lanes.load_each(x, base, col, at)
            else:
                entries = lanes.gather(x, base, col, at, ALL)
            acc = lanes.multiply_add(acc, values, entries)
            at += len(width)
            ended = rec_mask[step]
            if ended:
                if x_by == RUNS or y.itemsize > 4 or not lanes.COMPRESSES:
                    lanes.store(acc, sums, 0)
                    record = _write_back(k, ended, record, sums, tail_sum, rec_wb, carry_row, y, carry)
                else:
                    n_sums = lanes.compress(acc, ended, sums, n_sums)
                    if n_sums > lanes.BATCH - WARP:
                        record = _write_batch(k, n_sums, record, sums, tail_sum, rec_wb, carry_row, y, carry)
                        n_sums = 0
                acc = lanes.clear(acc, ended)
        _write_batch(k, n_sums, record, sums, tail_sum, rec_wb, carry_row, y, carry)
    else:
        lanes.store(lanes.zeros(y), sums, 0)
        for step in range(step_ptr[k], step_ptr[k + 1]):
            for lane in range(n_lanes):
                sums[lane] += lanes.number(val, step * n_lanes + lane, x) * x[base + col[at + lane]]
            at += n_lanes
            ended = rec_mask[step]
            if ended:
                record = _write_back(k, ended, record, sums, tail_sum, rec_wb, carry_row, y, carry)
                for lane in range(n_lanes):
                    if ended >> np.uint32(lane) & np.uint32(1):
                        sums[lane] = 0


@njit(**lanes.OPTIONS, forceinline=True)
def _write_back(k, ended, record, sums, tail_sum, rec_wb, carry_row, y, carry):
    """Take the sums of the lanes in `ended` where their records say; the number of the next record."""
    while ended:
        lane = lanes.lowest(ended)
        ended &= ended - np.uint32(1)
        _write(k, rec_wb[record], sums[lane], tail_sum, carry_row, y, carry)
        record += 1
    return record


@njit(**lanes.OPTIONS, forceinline=True)
def _write_batch(k, n_sums, record, sums, tail_sum, rec_wb, carry_row, y, carry):
    """:func:`_write_back` of sums that lie side by side: how many each step had is guessed wrong less often in one loop."""
    for i in range(n_sums):
        _write(k, rec_wb[record + i], sums[i], tail_sum, carry_row, y, carry)
    return record + n_sums


@njit(**lanes.OPTIONS, forceinline=True)
def _write(k, wb, total, tail_sum, carry_row, y, carry):
    if wb < 0:
        tail_sum[~wb] += total
    else:
        _store(k, wb, total, carry_row, y, carry)


@njit(**lanes.OPTIONS, forceinline=True)
def _store(k, row, total, carry_row, y, carry):
    if row == carry_row:
        carry[k] = total
    else:
        y[row] = total


@njit(**lanes.OPTIONS)
def _add_carries(cut_row, cut_ptr, carry, y):
    for i in range(len(cut_row)):
        for k in range(cut_ptr[i, 0], cut_ptr[i, 1]):
            y[cut_row[i]] += carry[k]


@njit(**lanes.OPTIONS)
def _product_matrix(
    first, last, n_lanes, step_ptr, val, col_base, col_ptr, col_narrow, col_wide, rec_mask, rec_ptr, rec_wb, tail,
    carry_row, empty_row, k, first_column, tile, x, y, carry
):  # fmt: skip
    """As many columns as `tile` is long, from `first_column` on, of x and y, which have k each and are flat."""
    x, y = lanes.pointer(x, first_column), lanes.pointer(y, first_column)
    for chunk in range(first, last):
        if col_base[chunk] >= 0:
            _chunk_matrix(
                chunk, n_lanes, step_ptr, val, col_ptr[chunk], col_narrow, rec_mask, rec_ptr, rec_wb, tail,
                carry_row[chunk], k, tile, lanes.pointer(x, col_base[chunk] * k), y, carry
            )  # fmt: skip
        else:
            _chunk_matrix(
                chunk, n_lanes, step_ptr, val, col_ptr[chunk], col_wide, rec_mask, rec_ptr, rec_wb, tail,
                carry_row[chunk], k, tile, x, y, carry
            )  # fmt: skip
    n_tiles = max(len(carry_row), 1)
    end = len(empty_row) * last // n_tiles if last < len(carry_row) else len(empty_row)
    for i in range(len(empty_row) * first // n_tiles, end):
        lanes.store(lanes.zero_row(y, tile), y, empty_row[i] * k)


@njit(**lanes.OPTIONS, forceinline=True)
def _chunk_matrix(
    chunk, n_lanes, step_ptr, val, at, col, rec_mask, rec_ptr, rec_wb, tail, carry_row, k, tile, x, y, carry
):  # fmt: skip
    """Lane by lane from record to record: a row's sums stay in registers, and a chunk's values in the cache."""
    n = len(tile)
    begin, tail_sum = lanes.scratch(step_ptr), lanes.scratch_rows(y, tile)
    for lane in range(n_lanes):
        begin[lane] = step_ptr[chunk]
        lanes.store(lanes.zero_row(y, tile), tail_sum, lane * n)
    done = 0
    record = rec_ptr[chunk]
    for step in range(step_ptr[chunk], step_ptr[chunk + 1]):
        ended = rec_mask[step]
        while ended:
            lane = lanes.lowest(ended)
            ended &= ended - np.uint32(1)
            slot = (begin[lane] - step_ptr[chunk]) * n_lanes + lane
            values = lanes.pointer(val, begin[lane] * n_lanes + lane)
            length = step + 1 - begin[lane]
            tiling.ask(val, step_ptr[chunk] * n_lanes + done, length)
            tiling.ask(col, at + done, length)
            done += length
            acc = _row(lanes.pointer(col, at + slot), values, length, n_lanes, k, tile, x)
            begin[lane] = step + 1
            wb = rec_wb[record]
            record += 1
            if wb < 0:
                lanes.store(lanes.add_row(acc, tail_sum, ~wb * n), tail_sum, ~wb * n)
            elif wb == carry_row:
                lanes.store(acc, carry, chunk * n)
            else:
                lanes.store(acc, y, wb * k)
    for lane in range(n_lanes):
        row = tail[chunk, lane]
        if row >= 0:
            acc = lanes.add_row(lanes.zero_row(y, tile), tail_sum, lane * n)
            if row == carry_row:
                lanes.store(acc, carry, chunk * n)
            else:
                lanes.store(acc, y, row * k)


@njit(**lanes.OPTIONS, forceinline=True)
def _row(columns, values, length, stride, k, tile, x):
    """The sum of `length` entries, `stride` apart, times rows of x: in two sums, neither of which waits for the other."""
    even = lanes.zero_row(x, tile)
    odd = lanes.zero_row(x, tile)
    for s in range(0, length - 1, 2):
        even = lanes.multiply_add_row(even, values, s * stride, x, columns[s * stride] * k)
        odd = lanes.multiply_add_row(odd, values, (s + 1) * stride, x, columns[(s + 1) * stride] * k)
    if length % 2:
        s = length - 1
        even = lanes.multiply_add_row(even, values, s * stride, x, columns[s * stride] * k)
    return lanes.add(even, odd)


@njit(**lanes.OPTIONS)
def _add_carry_rows(cut_row, cut_ptr, first_column, carry, y):
    for i in range(len(cut_row)):
        for chunk in range(cut_ptr[i, 0], cut_ptr[i, 1]):
            for j in range(carry.shape[1]):
                y[cut_row[i], first_column + j] += carry[chunk, j]


@njit(**lanes.OPTIONS)
def _scatter(
    first, last, part_chunk, part_low, part_at, n_lanes, width, step_ptr, val, col_base, col_ptr, col_narrow, col_wide,
    rec_mask, rec_ptr, rec_wb, tail, x, sums
):  # fmt: skip
    for p in range(first, last):
        y = parts.open_part(p, part_low, part_at, sums)
        for k in range(part_chunk[p + 1] - 1, part_chunk[p] - 1, -1):
            if col_base[k] >= 0:
                _scatter_chunk(
                    k, n_lanes, width, step_ptr, val, col_ptr[k], col_narrow, rec_mask, rec_ptr, rec_wb, tail, x,
                    lanes.pointer(y, col_base[k])
                )  # fmt: skip
            else:
                _scatter_chunk(
                    k, n_lanes, width, step_ptr, val, col_ptr[k], col_wide, rec_mask, rec_ptr, rec_wb, tail, x, y
                )  # fmt: skip


@njit(**lanes.OPTIONS, forceinline=True)
def _scatter_chunk(k, n_lanes, width, step_ptr, val, at, col, rec_mask, rec_ptr, rec_wb, tail, x, y):
    """From the last step to the first: a record tells the row of the slots before it, and a lane's pads come first.

    Chunks are taken from the last to the first too, so that memory is read in one direction.
    """
    entries = lanes.scratch(x)
    record = rec_ptr[k + 1]
    real = np.uint32(0)
    at += (step_ptr[k + 1] - step_ptr[k]) * n_lanes
    for step in range(step_ptr[k + 1] - 1, step_ptr[k] - 1, -1):
        at -= n_lanes
        lanes.prefetch(val, (step - lanes.AHEAD) * n_lanes, ())
        lanes.prefetch(col, at - lanes.AHEAD * n_lanes, ())
        ended = rec_mask[step]
        real |= ended
        while ended:
            lane = lanes.highest(ended)
            ended ^= np.uint32(1) << np.uint32(lane)
            record -= 1
            wb = rec_wb[record]
            entries[lane] = x[wb if wb >= 0 else tail[k, ~wb]]
        if len(width) and real == ALL >> np.uint32(WARP - n_lanes):
            values = lanes.load_first(val, step * n_lanes, x, width)
            terms = lanes.multiply_add(lanes.zeros(x), values, lanes.load(entries, 0, x))
            lanes.add_each(terms, y, col, at, width)
        else:
            for lane in range(n_lanes):
                if real >> np.uint32(lane) & np.uint32(1):
                    y[col[at + lane]] += lanes.number(val, step * n_lanes + lane, x) * entries[lane]


@njit(**lanes.OPTIONS)
def _count_entries(first, last, n_lanes, step_ptr, rec_mask, entry_ptr):
    """entry_ptr[k + 1] = entries of chunk k: those up to each lane's last record."""
    for k in range(first, last):
        done = np.uint32(0)
        total = 0
        for step in range(step_ptr[k + 1] - 1, step_ptr[k] - 1, -1):
            done |= rec_mask[step]
            for lane in range(n_lanes):
                total += done >> np.uint32(lane) & np.uint32(1)
        entry_ptr[k + 1] = total


@njit(**lanes.OPTIONS)
def _entries(
    first, last, n_lanes, step_ptr, entry_ptr, val, col_base, col_ptr, col_narrow, col_wide, rec_mask, rec_ptr, rec_wb,
    tail, out_row, out_col, out_val
):  # fmt: skip
    """A record ends a segment that began after the lane's record before: its slots belong to the record's row."""
    begin = lanes.scratch(step_ptr)
    for k in range(first, last):
        for lane in range(n_lanes):
            begin[lane] = step_ptr[k]
        record = rec_ptr[k]
        out = entry_ptr[k]
        for step in range(step_ptr[k], step_ptr[k + 1]):
            for lane in range(n_lanes):
                if not rec_mask[step] >> np.uint32(lane) & np.uint32(1):
                    continue
                wb = rec_wb[record]
                record += 1
                for s in range(begin[lane], step + 1):
                    at = col_ptr[k] + (s - step_ptr[k]) * n_lanes + lane
                    out_row[out] = wb if wb >= 0 else tail[k, ~wb]
                    out_col[out] = col_base[k] + col_narrow[at] if col_base[k] >= 0 else col_wide[at]
                    out_val[out] = val[s * n_lanes + lane]
                    out += 1
                begin[lane] = step + 1
