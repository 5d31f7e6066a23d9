"""CVR on the CPU: conversion, product and the way back, on raw arrays.

A chunk is laid out and multiplied by one thread; chunks are handed out in contiguous ranges
(:mod:`cvrarray.cpu.threads`). Chunks depend on the conversion's parameters alone, never on the threads.

The trackers of the paper are kept per *segment*: a lane works on one run of nonzeros, from step ``begin`` to before
step ``end``, whose first is nonzero ``source`` (the paper's ``valID``; its ``count`` is what is left of
``end - step``), and whose sum goes to ``target`` (``rowID``). Only steps at which some segment ends need a look.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cvrarray._tables import CSR, NARROW, WARP, CVRTables
from cvrarray.cpu import lanes, memory, parts, threads, tiling
from cvrarray.cpu.scaling import Run, scaled

ALL = np.uint32(0xFFFFFFFF)  #: mask of all lanes
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
    row = np.flatnonzero(np.diff(csr.indptr)).astype(index)
    ptr = np.append(csr.indptr[row], csr.indptr[-1]).astype(np.int64)
    cut = _cuts(ptr, min(n_chunks, csr.nnz), n_lanes, split)
    n_chunks = len(cut) - 1
    cut_in = np.searchsorted(ptr, cut[:-1], side="right") - 1  # the (non-empty) row that a chunk's start lies in

    row_end = np.append(cut_in[1:] + (cut[1:-1] > ptr[cut_in[1:]]), len(row)) if n_chunks else cut_in
    low, high = np.empty(n_chunks, index), np.empty(n_chunks, index)
    threads.run(_column_range, cut, cut, cut_in, row_end, ptr, csr.indices, low, high)
    narrow = high - low < NARROW
    n_steps = -(-np.diff(cut) // n_lanes)
    slots = n_steps * n_lanes
    step_ptr = memory.offsets(n_steps)
    most_records = memory.offsets(row_end - cut_in + n_lanes - 1)

    val = memory.empty(step_ptr[-1] * n_lanes, csr.data.dtype)
    col_base = np.where(narrow, low, -1).astype(index)
    col_ptr = np.where(narrow, np.cumsum(slots * narrow), np.cumsum(slots * ~narrow)) - slots
    col_narrow = memory.empty(slots[narrow].sum(), np.uint16)
    col_wide = memory.empty(slots[~narrow].sum(), index)
    rec_mask = np.zeros(step_ptr[-1], np.uint32)
    sparse_wb = np.empty(most_records[-1], index)
    n_records = np.empty(n_chunks, np.int64)
    tail = np.full((n_chunks, n_lanes), -1, index)
    threads.run(
        _lay_out, cut, cut, cut_in, row_end, ptr, row, csr.indices, memory.bits(csr.data), low, step_ptr, col_base,
        col_ptr, most_records, memory.bits(val), col_narrow, col_wide, rec_mask, sparse_wb, n_records, tail,
    )  # fmt: skip
    rec_ptr = memory.offsets(n_records)
    rec_wb = np.empty(rec_ptr[-1], index)
    threads.run(_compact, rec_ptr, most_records, rec_ptr, sparse_wb, rec_wb)

    carry_row = np.where(cut[:-1] > ptr[cut_in], row[cut_in], -1).astype(index) if n_chunks else np.empty(0, index)
    carrying = np.flatnonzero(carry_row >= 0)
    cut_row, first, chunks = np.unique(carry_row[carrying], return_index=True, return_counts=True)
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
        cut_row=cut_row,
        cut_ptr=np.column_stack((carrying[first], carrying[first] + chunks)).astype(np.int64),
        empty_row=np.flatnonzero(np.diff(csr.indptr) == 0).astype(index),
    )


def product(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y``.

    x (n_cols,) and y (n_rows,) are contiguous arrays of `dtype`: any number type but bool (compute ``bool @ bool`` in
    int64 and cast). alpha and beta are scalars of it. Where beta is 0, y is written and never read.
    """
    t = tables
    args = (
        t.n_lanes, t.step_ptr, memory.values(t.val), t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.rec_mask,
        t.rec_ptr, t.rec_wb, t.tail, t.carry_row, t.empty_row,
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
    args = (t.n_lanes, t.step_ptr, memory.values(t.val), *columns, t.rec_mask, t.rec_ptr, t.rec_wb, t.tail)
    return scaled(parts.transposed(_scatter, of, t.step_ptr, t.n_lanes, args, t.shape[1], dtype))


def to_coo(tables: CVRTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and value of every stored entry, chunk by chunk; pads are dropped."""
    t = tables
    index = t.rec_wb.dtype
    entry_ptr = np.zeros(len(t.step_ptr), np.int64)
    threads.run(_count_entries, t.step_ptr, t.n_lanes, t.step_ptr, t.rec_mask, entry_ptr, unit=t.n_lanes)
    np.cumsum(entry_ptr, out=entry_ptr)
    row, col, val = np.empty(t.nnz, index), np.empty(t.nnz, index), np.empty(t.nnz, t.val.dtype)
    threads.run(
        _entries, t.step_ptr, t.n_lanes, t.step_ptr, entry_ptr, memory.bits(t.val), t.col_base, t.col_ptr, t.col_narrow,
        t.col_wide, t.rec_mask, t.rec_ptr, t.rec_wb, t.tail, row, col, memory.bits(val), unit=t.n_lanes,
    )  # fmt: skip
    return row, col, val


def _cuts(ptr: np.ndarray, n_chunks: int, n_lanes: int, split: str) -> np.ndarray:
    """(n_chunks + 1,) offsets at which chunks begin and end; `ptr` (m + 1,) are those of the m non-empty rows."""
    if n_chunks == 0:
        return np.zeros(1, np.int64)
    q, r = divmod(int(ptr[-1]), n_chunks)
    k = np.arange(1, n_chunks, dtype=np.int64)
    ideal = k * q + np.minimum(k, r)
    if split == "rows":
        row = np.searchsorted(ptr, ideal, side="right") - 1
        group = row - row % n_lanes
        by_group = _nearer(ideal, ptr[group], ptr[np.minimum(group + n_lanes, len(ptr) - 1)])
        by_row = _nearer(ideal, ptr[row], ptr[row + 1])
        close = [2 * np.abs(cut - ideal) < q for cut in (by_group, by_row)]
        ideal = np.select(close, [by_group, by_row], ideal)
    return np.concatenate(([0], ideal, ptr[-1:]))


def _nearer(to: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.where(to - low <= high - to, low, high)


@njit(**lanes.OPTIONS)
def _column_range(first, last, cut, cut_in, row_end, ptr, indices, low, high):
    """Smallest and largest column of every chunk; columns increase in a row, so its ends tell."""
    for k in range(first, last):
        low[k] = high[k] = indices[cut[k]]
        for row in range(cut_in[k], row_end[k]):
            low[k] = min(low[k], indices[max(ptr[row], cut[k])])
            high[k] = max(high[k], indices[min(ptr[row + 1], cut[k + 1]) - 1])


@njit(**lanes.OPTIONS)
def _lay_out(
    first, last, cut, cut_in, row_end, ptr, row, indices, data, low, step_ptr, col_base, col_ptr, rec_at, val,
    col_narrow, col_wide, rec_mask, rec_wb, n_records, tail
):  # fmt: skip
    """Feed, record, steal and pad, chunk by chunk, as the definition has it."""
    n_lanes = tail.shape[1]
    source, begin, end, target = lanes.scratch(cut), lanes.scratch(cut), lanes.scratch(cut), lanes.scratch(row)
    for k in range(first, last):
        n_steps = step_ptr[k + 1] - step_ptr[k]
        narrow = col_base[k] >= 0
        next_row = cut_in[k]
        record = rec_at[k]
        for lane in range(n_lanes):
            begin[lane] = 0
            end[lane] = 0
            target[lane] = -1
        step = 0
        while True:
            for lane in range(n_lanes):
                if end[lane] != step:
                    continue
                if begin[lane] < step:
                    _write(
                        narrow, lane, begin[lane], step, source[lane], step_ptr[k], n_lanes, indices, data, low[k],
                        col_ptr[k], val, col_narrow, col_wide
                    )  # fmt: skip
                    rec_mask[step_ptr[k] + step - 1] |= np.uint32(1) << np.uint32(lane)
                    rec_wb[record] = target[lane]
                    record += 1
                if next_row < row_end[k]:
                    begin[lane] = step
                    source[lane] = max(ptr[next_row], cut[k])
                    end[lane] = step + min(ptr[next_row + 1], cut[k + 1]) - source[lane]
                    target[lane] = row[next_row]
                    next_row += 1
                    if next_row == row_end[k]:
                        for entry in range(n_lanes):
                            tail[k, entry] = target[entry]
                            target[entry] = ~entry
                    continue
                victim = 0
                while victim < n_lanes and end[victim] <= n_steps:
                    victim += 1
                if victim < n_lanes:
                    _write(
                        narrow, victim, begin[victim], step, source[victim], step_ptr[k], n_lanes, indices, data,
                        low[k], col_ptr[k], val, col_narrow, col_wide
                    )  # fmt: skip
                    begin[lane] = step
                    source[lane] = source[victim] + step - begin[victim]
                    end[lane] = n_steps
                    target[lane] = target[victim]
                    source[victim] = source[lane] + n_steps - step
                    begin[victim] = step
                    end[victim] -= n_steps - step
                else:
                    end[lane] = -1
                    for s in range(step, n_steps):
                        slot = s * n_lanes + lane
                        val[step_ptr[k] * n_lanes + slot] = 0
                        if narrow:
                            col_narrow[col_ptr[k] + slot] = 0
                        else:
                            col_wide[col_ptr[k] + slot] = low[k]
            if step == n_steps:
                break
            ahead = n_steps
            for lane in range(n_lanes):
                if step < end[lane] < ahead:
                    ahead = end[lane]
            step = ahead
        n_records[k] = record - rec_at[k]


@njit(**lanes.OPTIONS)
def _write(
    narrow, lane, begin, end, source, first_step, n_lanes, indices, data, low, col_at, val, col_narrow, col_wide
):  # fmt: skip
    """Store nonzeros from `source` on in a lane's steps `begin` to before `end`."""
    slot = begin * n_lanes + lane
    values, columns = lanes.pointer(data, source), lanes.pointer(indices, source)
    to = lanes.pointer(val, first_step * n_lanes + slot)
    if narrow:
        to_narrow = lanes.pointer(col_narrow, col_at + slot)
        for j in range(end - begin):
            to[j * n_lanes] = values[j]
            to_narrow[j * n_lanes] = columns[j] - low
    else:
        to_wide = lanes.pointer(col_wide, col_at + slot)
        for j in range(end - begin):
            to[j * n_lanes] = values[j]
            to_wide[j * n_lanes] = columns[j]


@njit(**lanes.OPTIONS)
def _compact(first, last, sparse_at, rec_ptr, sparse_wb, rec_wb):
    for k in range(first, last):
        for r in range(rec_ptr[k + 1] - rec_ptr[k]):
            rec_wb[rec_ptr[k] + r] = sparse_wb[sparse_at[k] + r]


@njit(**lanes.OPTIONS)
def _product(
    first, last, n_lanes, step_ptr, val, col_base, col_ptr, col_narrow, col_wide, rec_mask, rec_ptr, rec_wb, tail,
    carry_row, empty_row, x, y, carry
):  # fmt: skip
    tail_sum = lanes.scratch(y)
    for k in range(first, last):
        lanes.store(lanes.zeros(y), tail_sum, 0)
        if col_base[k] >= 0:
            _chunk(
                k, n_lanes, step_ptr, val, True, col_base[k], col_ptr[k], col_narrow, rec_mask, rec_ptr, rec_wb,
                carry_row[k], x, y, carry, tail_sum
            )  # fmt: skip
        else:
            _chunk(
                k, n_lanes, step_ptr, val, False, 0, col_ptr[k], col_wide, rec_mask, rec_ptr, rec_wb,
                carry_row[k], x, y, carry, tail_sum
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
    k, n_lanes, step_ptr, val, narrow, base, at, col, rec_mask, rec_ptr, rec_wb, carry_row, x, y, carry, tail_sum
):  # fmt: skip
    record = rec_ptr[k]
    sums = lanes.scratch(y)
    if n_lanes == WARP:
        acc = lanes.zeros(y)
        for step in range(step_ptr[k], step_ptr[k + 1]):
            lanes.prefetch(val, (step + lanes.AHEAD) * WARP)
            lanes.prefetch(col, at + lanes.AHEAD * WARP)
            values = lanes.load(val, step * WARP, y)
            if narrow:
                entries = lanes.load_runs(x, base, col, at)
            else:
                entries = lanes.gather(x, base, col, at, ALL)
            acc = lanes.multiply_add(acc, values, entries)
            at += WARP
            ended = rec_mask[step]
            if ended:
                lanes.store(acc, sums, 0)
                acc = lanes.clear(acc, ended)
                record = _write_back(k, ended, record, sums, tail_sum, rec_wb, carry_row, y, carry)
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
        wb = rec_wb[record]
        record += 1
        if wb < 0:
            tail_sum[~wb] += sums[lane]
        else:
            _store(k, wb, sums[lane], carry_row, y, carry)
    return record


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
    first, last, part_chunk, part_low, part_at, n_lanes, step_ptr, val, col_base, col_ptr, col_narrow, col_wide, rec_mask,
    rec_ptr, rec_wb, tail, x, sums
):  # fmt: skip
    for p in range(first, last):
        y = parts.open_part(p, part_low, part_at, sums)
        for k in range(part_chunk[p + 1] - 1, part_chunk[p] - 1, -1):
            if col_base[k] >= 0:
                _scatter_chunk(
                    k, n_lanes, step_ptr, val, col_ptr[k], col_narrow, rec_mask, rec_ptr, rec_wb, tail, x,
                    lanes.pointer(y, col_base[k])
                )  # fmt: skip
            else:
                _scatter_chunk(
                    k, n_lanes, step_ptr, val, col_ptr[k], col_wide, rec_mask, rec_ptr, rec_wb, tail, x, y
                )  # fmt: skip


@njit(**lanes.OPTIONS, forceinline=True)
def _scatter_chunk(k, n_lanes, step_ptr, val, at, col, rec_mask, rec_ptr, rec_wb, tail, x, y):
    """From the last step to the first: a record tells the row of the slots before it, and a lane's pads come first.

    Chunks are taken from the last to the first too, so that memory is read in one direction.
    """
    entries = lanes.scratch(x)
    record = rec_ptr[k + 1]
    real = np.uint32(0)
    at += (step_ptr[k + 1] - step_ptr[k]) * n_lanes
    for step in range(step_ptr[k + 1] - 1, step_ptr[k] - 1, -1):
        at -= n_lanes
        lanes.prefetch(val, (step - lanes.AHEAD) * n_lanes)
        lanes.prefetch(col, at - lanes.AHEAD * n_lanes)
        ended = rec_mask[step]
        real |= ended
        while ended:
            lane = lanes.highest(ended)
            ended ^= np.uint32(1) << np.uint32(lane)
            record -= 1
            wb = rec_wb[record]
            entries[lane] = x[wb if wb >= 0 else tail[k, ~wb]]
        if n_lanes == WARP and real == ALL:
            terms = lanes.multiply_add(lanes.zeros(x), lanes.load(val, step * WARP, x), lanes.load(entries, 0, x))
            lanes.add_each(terms, y, col, at)
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
