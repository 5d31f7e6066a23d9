"""BBCSR on the CPU: conversion, product and the way back, on raw arrays. One thread does a bin: 32 rows in step."""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from cvrarray.core.tables import CSR, NARROW_PADDING, WARP, BBCSRTables, mask_dtype
from cvrarray.cpu import lanes, locality, memory, parts, threads, tiling
from cvrarray.cpu.caching import njit
from cvrarray.cpu.scaling import Run, scaled

OWN_KERNEL = (1, *lanes.BLOCK_SIZES)  #: block sizes whose products are compiled for that size alone
ALL = np.uint32(0xFFFFFFFF)  #: mask of all lanes
UNROLLED = 3  #: rows of a block row that are merged all if they differ; of more, those that have the same columns as one
AHEAD = 4  #: block rows from the one that is laid out to the one whose columns are asked for
PADDED = 3  #: times its entries that a bin's slots may be to be laid out step by step; above that row by row is quicker


def convert(csr: CSR, block_size: int) -> BBCSRTables:
    """The BBCSR tables of a canonical CSR matrix in NumPy arrays; `block_size` is 1 to 32."""
    n_rows = csr.shape[0]
    index = csr.indices.dtype
    n_bins = -(-n_rows // WARP)
    n_block_rows = -(-n_rows // block_size)
    within = _within(block_size)
    n_blocks, low, high = np.empty(n_block_rows, index), np.empty(n_block_rows, index), np.empty(n_block_rows, index)
    merged_at = np.empty(n_block_rows, np.int64)
    merged = np.empty(3 * csr.nnz + n_block_rows if block_size > 1 else 0, index)  # most of it is never touched
    before = csr.indptr[::block_size]
    if n_rows % block_size:
        before = np.append(before, csr.indptr[-1])
    threads.run(_count_blocks, before, block_size, within, csr.indptr, csr.indices, n_blocks, low, high, merged_at, merged)

    bin_low, col_base = np.empty(n_bins, index), np.empty(n_bins, index)
    col_ptr, bin_rowptr = np.empty(n_bins, np.int64), np.empty(n_bins + 1, np.int64)
    n_narrow, n_wide, n_entries = _bin_places(block_size, n_rows, n_blocks, low, high, bin_low, bin_rowptr, col_base, col_ptr)
    col_narrow, col_wide = memory.empty(n_narrow, np.uint16), memory.empty(n_wide, index)
    data = memory.empty(bin_rowptr[-1], csr.data.dtype)
    full = n_entries == csr.nnz
    present = memory.empty(0 if full else n_narrow + n_wide, mask_dtype(block_size))
    threads.run(
        _lay_out, bin_rowptr, block_size, within, csr.indptr, csr.indices, memory.bits(csr.data), bin_rowptr, n_blocks,
        merged_at, merged, bin_low, col_base, col_ptr, col_narrow, col_wide, memory.bits(data), present,
    )  # fmt: skip
    return BBCSRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        block_size=block_size,
        bin_rowptr=bin_rowptr,
        data=data,
        col_base=col_base,
        col_ptr=col_ptr,
        col_narrow=col_narrow,
        col_wide=col_wide,
        present=None if full else present,
    )


def product(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y``.

    x (n_cols,) and y (n_rows,) are contiguous arrays of `dtype`: any number type but bool (compute ``bool @ bool`` in
    int64 and cast). alpha and beta are scalars of it. Where beta is 0, y is written and never read.
    """
    t = tables
    columns = (t.col_base, t.col_ptr, t.col_narrow, t.col_wide)
    width = t.block_size * np.dtype(dtype).itemsize
    is_near = locality.near(t.bin_rowptr, (1, t.block_size), t.col_base, t.col_ptr, t.col_wide, width)
    args = (
        t.block_size,
        _within(t.block_size),
        t.bin_rowptr,
        memory.values(t.data),
        *columns,
        _present(t),
        is_near,
        lanes.far(t.data),
    )
    like = np.empty(0, dtype)
    rows = threads.prepare(lanes.compiled(_product, 0, 0, *args, like, like), t.bin_rowptr)
    return scaled(partial(rows, *args))


def product_matrix(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``.

    X (n_cols, k) and Y (n_rows, k) are C-contiguous arrays, otherwise as for :func:`product`; k is any number of columns.
    """
    t = tables
    columns = (t.col_base, t.col_ptr, t.col_narrow, t.col_wide)
    args = (t.block_size, _within(t.block_size), t.bin_rowptr, memory.values(t.data), *columns, _present(t))

    def multiply(x: np.ndarray, y: np.ndarray, first: int, tile: tuple[int, ...]) -> None:
        threads.run(_product_matrix, t.bin_rowptr, *args, t.shape[0], y.shape[1], first, tile, x.ravel(), y.ravel())

    return tiling.product(multiply)


def product_transposed(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A.T @ x + beta * y``, with no other tables than :func:`product`.

    x (n_rows,) and y (n_cols,) are as there. A call takes up to ``parts.MOST_VECTORS`` times the memory of y.
    """
    t = tables
    n_block_cols = -(-t.shape[1] // t.block_size)
    low, high = np.full(len(t.col_base), n_block_cols), np.zeros(len(t.col_base), np.int64)
    columns = (t.col_base, t.col_ptr, t.col_narrow, t.col_wide)
    threads.run(parts.column_ranges, t.bin_rowptr, t.bin_rowptr, (1, t.block_size), *columns, NARROW_PADDING, low, high)
    ends = (np.minimum(blocks * t.block_size, t.shape[1]) for blocks in (low, high))
    of = parts.divide(t.bin_rowptr, 1, *ends, t.shape[1])
    args = (t.block_size, _within(t.block_size), t.bin_rowptr, memory.values(t.data), *columns, _present(t))
    return scaled(parts.transposed(_scatter, of, t.bin_rowptr, 1, args, t.shape[1], dtype))


def to_coo(tables: BBCSRTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and value of every stored entry, bin by bin; padding and holes are dropped, explicit zeros stay."""
    t = tables
    index = t.col_base.dtype
    layout = (t.block_size, t.bin_rowptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, _present(t))
    entry_ptr = np.zeros(len(t.bin_rowptr), np.int64)
    threads.run(_count_entries, t.bin_rowptr, *layout, entry_ptr)
    np.cumsum(entry_ptr, out=entry_ptr)
    nnz = entry_ptr[-1]  # t.nnz, but for tables that are a part of an array's
    row, col, val = np.empty(nnz, index), np.empty(nnz, index), np.empty(nnz, t.data.dtype)
    threads.run(_entries, t.bin_rowptr, *layout, entry_ptr, memory.bits(t.data), row, col, memory.bits(val))
    return row, col, val


@cache
def _within(block_size: int) -> tuple[int, ...]:
    """A tuple of `block_size` integers, which makes the size known when a kernel is compiled; () for sizes that share one."""
    return tuple(range(block_size)) if block_size in OWN_KERNEL else ()


def _present(t: BBCSRTables) -> np.ndarray:
    """The bits of stored columns; an empty array, of the same dtype, where all are (one compiled function for both)."""
    return np.empty(0, np.uint8) if t.present is None else t.present


@njit(**lanes.OPTIONS)
def _same_columns(row, other, indptr, indices):
    length = indptr[row + 1] - indptr[row]
    if indptr[other + 1] - indptr[other] != length:
        return False
    columns, others = lanes.pointer(indices, indptr[row]), lanes.pointer(indices, indptr[other])
    differences = 0
    for k in range(length):  # to the end, without a way out: so it compiles to vector instructions
        differences |= others[k] ^ columns[k]
    return differences == 0


@njit(**lanes.OPTIONS, forceinline=True)
def _open_rows(first, last, indptr, indices, ahead, end, of):
    """Set `ahead` and `end` to where rows' entries begin and end, once for neighbours that have the same columns.

    `of` tells each row's; how many there are is returned.
    """
    n = 0
    for row in range(first, last):
        if row == first or not _same_columns(row, row - 1, indptr, indices):
            ahead[n] = indptr[row]
            end[n] = indptr[row + 1]
            n += 1
        of[row - first] = n - 1
    return n


@njit(**lanes.OPTIONS, forceinline=True)
def _take_block(block_size, n_rows, indices, ahead, end, marks):
    """The smallest block column among the entries still ahead, which move on past it; -1 where there are none.

    Bits of `marks` tell which entries of the block each row has.
    """
    least = -1
    for r in range(n_rows):
        if ahead[r] < end[r] and (least < 0 or indices[ahead[r]] < least):
            least = indices[ahead[r]]
    if least < 0:
        return least
    block = np.int64(np.uint64(least) // np.uint64(block_size))
    first = block * block_size
    last = first + block_size - 1
    for r in range(n_rows):
        whole = ahead[r] + block_size
        if whole <= end[r] and indices[whole - 1] == last:
            ahead[r] = whole
            marks[r] = (1 << block_size) - 1
            continue
        mark = 0
        while ahead[r] < end[r] and indices[ahead[r]] <= last:
            mark |= 1 << (indices[ahead[r]] - first)
            ahead[r] += 1
        marks[r] = mark
    return block


@njit(**lanes.OPTIONS, forceinline=True)
def _block(number, block_size):
    """``number // block_size``; matrices without blocks must not wait for divisions."""
    return number if block_size == 1 else number // block_size


@njit(**lanes.OPTIONS, forceinline=True)
def _count_in_row(block_size, start, end, indices):
    """Blocks that a row's entries, `start` to before `end`, lie in."""
    if block_size == 1 or start == end:
        return end - start
    before, here = lanes.pointer(indices, start), lanes.pointer(indices, start + 1)
    count = 1
    for k in range(end - start - 1):  # without a way out: so it compiles to vector instructions where block_size is known
        count += here[k] // block_size != before[k] // block_size
    return count


@njit(**lanes.OPTIONS)
def _count_blocks(first, last, block_size, within, indptr, indices, n_blocks, low, high, merged_at, merged):
    """Blocks of each block row, its smallest and its largest; and where in `merged` they are, -1 if the rows are alike.

    Of rows that differ `merged` has, for every block, its column, bits for the rows that have entries in it, and bits for the
    entries of each of these: at most three numbers for a nonzero. One more a block row is written, and not kept.
    """
    if len(within):
        block_size = len(within)
    ahead, end, of, marks = lanes.scratch(indptr), lanes.scratch(indptr), lanes.scratch(indptr), lanes.scratch(n_blocks)
    all_rows, indptr, indices = len(indptr) - 1, lanes.pointer(indptr, 0), lanes.pointer(indices, 0)
    merged = lanes.pointer(merged, 0)
    at = 3 * indptr[first * block_size] + first
    for block_row in range(first, last):
        row = block_row * block_size
        row_end = min(row + block_size, all_rows)
        n_rows = _open_rows(row, row_end, indptr, indices, ahead, end, of) if block_size > 1 else 1
        if n_rows == 1:
            merged_at[block_row] = -1
            n_blocks[block_row] = _count_in_row(block_size, indptr[row], indptr[row + 1], indices)
            low[block_row] = high[block_row] = 0
            if n_blocks[block_row]:
                low[block_row] = _block(indices[indptr[row]], block_size)
                high[block_row] = _block(indices[indptr[row + 1] - 1], block_size)
            continue
        rows = row_end - row
        if block_size <= UNROLLED:  # known when compiled: loops over rows are unrolled, and their state stays in registers
            rows = n_rows = block_size
            for r in range(block_size):
                ahead[r], end[r], of[r] = indptr[min(row + r, row_end)], indptr[min(row + r + 1, row_end)], r
        merged_at[block_row] = at
        count, highest = 0, 0
        block = _take_block(block_size, n_rows, indices, ahead, end, marks)
        while block >= 0:
            count, highest = count + 1, block
            merged[at] = block
            rows_in = 0
            kept = at + 2
            for r in range(rows):
                mark = marks[of[r]]
                merged[kept] = mark
                kept += mark != 0
                rows_in |= np.int64(mark != 0) << r
            merged[at + 1] = rows_in
            at = kept
            block = _take_block(block_size, n_rows, indices, ahead, end, marks)
        low[block_row] = merged[merged_at[block_row]]
        n_blocks[block_row], high[block_row] = count, highest


@njit(**lanes.OPTIONS)
def _bin_places(block_size, n_rows, n_blocks, low, high, bin_low, bin_rowptr, col_base, col_ptr):
    """Where each bin has its values and columns; slots of narrow bins, of others, and what whole blocks would store."""
    n_narrow = n_wide = n_entries = 0
    bin_rowptr[0] = 0
    for i in range(len(bin_low)):
        most = least = highest = 0
        for block_row in range(i * WARP // block_size, min(((i + 1) * WARP - 1) // block_size + 1, len(n_blocks))):
            blocks = np.int64(n_blocks[block_row])
            if blocks == 0:
                continue
            least = low[block_row] if most == 0 else min(least, low[block_row])
            highest = max(highest, high[block_row])
            most = max(most, blocks)
        bin_low[i] = least
        slots = most * WARP  # of columns; a slot has block_size values
        bin_rowptr[i + 1] = bin_rowptr[i] + slots * block_size
        if highest - least < NARROW_PADDING:
            col_base[i], col_ptr[i] = least, n_narrow
            n_narrow += slots
        else:
            col_base[i], col_ptr[i] = -1, n_wide
            n_wide += slots
    for block_row in range(len(n_blocks)):
        rows = min(block_size, n_rows - block_row * block_size)
        n_entries += n_blocks[block_row] * rows * block_size
    return n_narrow, n_wide, n_entries


@njit(**lanes.OPTIONS)
def _lay_out(
    first, last, block_size, within, indptr, indices, values, bin_rowptr, n_blocks, merged_at, merged, bin_low, col_base,
    col_ptr, col_narrow, col_wide, data, present
):  # fmt: skip
    """Write every slot of the bins: columns, which of a block's entries are stored, and values."""
    if len(within):
        block_size = len(within)
    for i in range(first, last):
        at, width = bin_rowptr[i], bin_rowptr[i + 1] - bin_rowptr[i]
        n_slots = width // block_size
        bin_end = min((i + 1) * WARP, len(indptr) - 1)
        n_entries = indptr[bin_end] - indptr[i * WARP]
        by_steps = PADDED * n_entries > width
        if block_size == 1 and by_steps:
            _value_steps(i, indptr, values, width // WARP, at, data)
            if col_base[i] >= 0:
                padding = NARROW_PADDING + bin_low[i]
                _column_steps(i, indptr, indices, width // WARP, padding, bin_low[i], col_ptr[i], col_narrow)
            else:
                _column_steps(i, indptr, indices, width // WARP, -1, 0, col_ptr[i], col_wide)
            continue
        if n_entries < width:
            if col_base[i] >= 0:
                _fill(col_narrow, col_ptr[i], n_slots, NARROW_PADDING)
            else:
                _fill(col_wide, col_ptr[i], n_slots, -1)
            if not by_steps:
                _fill(data, at, width, 0)
        if len(present):
            _fill(present, at // block_size, n_slots, 0)
        for block_row in range(i * WARP // block_size, (bin_end - 1) // block_size + 1):
            if col_base[i] >= 0:
                _lay_out_rows(
                    block_row, i, bin_end, n_blocks[block_row], merged_at[block_row], merged, block_size, indptr, indices,
                    values, bin_low[i], col_ptr[i], col_narrow, at, data, present, by_steps
                )  # fmt: skip
            else:
                _lay_out_rows(
                    block_row, i, bin_end, n_blocks[block_row], merged_at[block_row], merged, block_size, indptr, indices,
                    values, 0, col_ptr[i], col_wide, at, data, present, by_steps
                )  # fmt: skip
        if by_steps and len(present):
            _marked_value_steps(i, block_size, indptr, values, n_slots // WARP, at, data, present)
        elif by_steps:
            _value_steps(i, indptr, values, width // WARP, at, data)


@njit(**lanes.OPTIONS, forceinline=True)
def _open_lanes(i, indptr, source, length):
    """Set `source` and `length` to where the rows of bin i begin, and their lengths; the first entry of the next bin."""
    n_rows = len(indptr) - 1
    for lane in range(WARP):
        row = min(i * WARP + lane, n_rows)
        source[lane] = indptr[row]
        length[lane] = indptr[min(row + 1, n_rows)] - indptr[row]
    return indptr[min((i + 1) * WARP, n_rows)]


@njit(**lanes.OPTIONS)
def _value_steps(i, indptr, values, n_steps, at, data):
    """Write the values of a bin without holes, 32 slots at a time, and ask for those of the next bin meanwhile."""
    source, length = lanes.scratch(indptr), lanes.scratch(indptr)
    ahead = _open_lanes(i, indptr, source, length)
    real = ALL
    for step in range(n_steps):
        lanes.prefetch(values, ahead + step * WARP, ())
        real &= lanes.different(length, 0, step)
        lanes.store(lanes.gather(values, step, source, 0, real), data, at + step * WARP)


@njit(**lanes.OPTIONS)
def _marked_value_steps(i, block_size, indptr, values, n_block_steps, at, data, present):
    """The same for a bin that may have holes: bits of `present` tell which slots have an entry, and so which entry."""
    source, length = lanes.scratch(indptr), lanes.scratch(indptr)
    ahead = _open_lanes(i, indptr, source, length)
    for block in range(n_block_steps):
        for j in range(block_size):
            step = block * block_size + j
            lanes.prefetch(values, ahead + step * WARP, ())
            real = lanes.bit_set(present, at // block_size + block * WARP, j)
            lanes.store(lanes.gather(values, 0, source, 0, real), data, at + step * WARP)
            lanes.advance(source, real)


@njit(**lanes.OPTIONS)
def _column_steps(i, indptr, indices, n_steps, padding, base, at, col):
    """Write the columns of a bin of blocks of size 1, relative to `base`, as :func:`_value_steps` does the values."""
    source, length = lanes.scratch(indptr), lanes.scratch(indptr)
    ahead = _open_lanes(i, indptr, source, length)
    real = ALL
    for step in range(n_steps):
        lanes.prefetch(indices, ahead + step * WARP, ())
        real &= lanes.different(length, 0, step)
        lanes.place(indices, step, source, real, padding, base, col, at + step * WARP, lanes.WHOLE)


@njit(**lanes.OPTIONS)
def _fill(array, start, n, value):
    to = lanes.pointer(array, start)
    for k in range(n):
        to[k] = value


@njit(**lanes.OPTIONS, forceinline=True)
def _lay_out_rows(
    block_row, i, bin_end, n_blocks, merged_at, merged, block_size, indptr, indices, values, base, col_at, col, at, data,
    present, by_steps
):  # fmt: skip
    """Write the columns of those rows of a block row that lie in bin i, and their values where this is not done by steps."""
    row = block_row * block_size
    row_end = min(row + block_size, len(indptr) - 1)
    holes = indptr[row_end] - indptr[row] < n_blocks * block_size * (row_end - row)
    first, last = max(row, i * WARP), min(row_end, bin_end)
    columns = lanes.pointer(col, col_at + first % WARP)
    marks = lanes.pointer(present, at // block_size + first % WARP)
    length, later = indptr[row + 1] - indptr[row], indptr[min(row + AHEAD * block_size, len(indptr) - 1)]
    for k in range(0, length, WARP):
        lanes.prefetch(indices, later + k, ())
    if merged_at >= 0 and holes:
        _place_merged(n_blocks, block_size, first - row, last - row, base, lanes.pointer(merged, merged_at), columns, marks)
    elif holes:
        _split_columns(block_size, lanes.pointer(indices, indptr[row]), length, base, last - first, columns, marks)
    else:
        _copy_columns(n_blocks, block_size, lanes.pointer(indices, indptr[row]), base, last - first, columns)
        for b in range(n_blocks if len(present) else 0):
            for lane in range(last - first):
                marks[b * WARP + lane] = (1 << block_size) - 1
    for r in range(first, first if by_steps else last):
        to, row_values = lanes.pointer(data, at + r % WARP), lanes.pointer(values, indptr[r])
        if holes:
            _place_row(n_blocks, block_size, row_values, lanes.pointer(marks, r - first), to)
        else:
            for k in range(n_blocks * block_size):
                to[k * WARP] = row_values[k]


@njit(**lanes.OPTIONS, forceinline=True)
def _copy_columns(n_blocks, block_size, indices, base, n_lanes, to):
    """Write the blocks of rows that are alike, from the columns of one of them, into `n_lanes` lanes."""
    if block_size == 1:
        for b in range(n_blocks):
            to[b * WARP] = indices[b] - base
        return
    for b in range(n_blocks):
        block = indices[b * block_size] // block_size - base
        for lane in range(n_lanes):
            to[b * WARP + lane] = block


@njit(**lanes.OPTIONS, forceinline=True)
def _place_merged(n_blocks, block_size, first, last, base, merged, to, marks):
    """Write the blocks of a block row whose rows differ, and which entries of them its rows `first` to before `last` have.

    They stand in `merged` as :func:`_count_blocks` left them.
    """
    at = 0
    for b in range(n_blocks):
        block, rows_in = merged[at] - base, merged[at + 1]
        at += 2
        for r in range(block_size):
            has = rows_in >> r & 1
            mark = merged[at] & -has
            at += has
            if first <= r < last:
                to[b * WARP + r - first] = block
                marks[b * WARP + r - first] = mark


@njit(**lanes.OPTIONS, forceinline=True)
def _split_columns(block_size, indices, length, base, n_lanes, to, marks):
    """Write the blocks, not all of them whole, of rows that are alike, and which entries they have, from the columns of one.

    Each entry writes what is known of its block so far: whether a block goes on cannot be foreseen, so there is no branch.
    """
    at, block, mark = -WARP, np.int64(-1), np.int64(0)
    for k in range(length):
        here = np.int64(indices[k]) // block_size
        same = np.int64(here == block)
        mark = (mark & -same) | 1 << (indices[k] - here * block_size)
        at += WARP & (same - 1)
        block = here
        to[at] = block - base
        marks[at] = mark
    for b in range(0, at + WARP, WARP):
        for lane in range(b + 1, b + n_lanes):
            to[lane] = to[b]
            marks[lane] = marks[b]


@njit(**lanes.OPTIONS)
def _place_row(n_blocks, block_size, values, marks, to):
    """Write a row's values where `marks` have them in its blocks; holes are 0 already."""
    k = 0
    for b in range(n_blocks):
        for j in range(block_size):
            if marks[b * WARP] >> j & 1:
                to[(b * block_size + j) * WARP] = values[k]
                k += 1


@njit(**lanes.OPTIONS)
def _product(
    first, last, block_size, within, bin_rowptr, data, col_base, col_ptr, col_narrow, col_wide, present, is_near, far, x, y
):  # fmt: skip
    if len(within):
        block_size = len(within)
    sums, places = lanes.scratch(y), lanes.scratch(col_wide)
    for i in range(first, last):
        row = i * WARP
        at, end = bin_rowptr[i], bin_rowptr[i + 1]
        if col_base[i] >= 0:
            acc = _bin(
                row,
                block_size,
                within,
                at,
                end,
                data,
                True,
                True,
                col_base[i],
                col_ptr[i],
                col_narrow,
                present,
                far,
                x,
                y,
                places,
            )
        else:
            acc = _bin(
                row, block_size, within, at, end, data, False, is_near[i], 0, col_ptr[i], col_wide, present, far, x, y, places
            )
        if row + WARP <= len(y):
            lanes.store(acc, y, row)
        else:
            lanes.store(acc, sums, 0)
            for lane in range(len(y) - row):
                y[row + lane] = sums[lane]


@njit(**lanes.OPTIONS, forceinline=True)
def _bin(row, block_size, within, slot, end, data, narrow, near, base, at, col, present, far, x, y, places):
    """The sums of a bin's rows. `places` is room for the offsets of a block's columns in x."""
    acc = lanes.zeros(y)
    present_at = slot // block_size
    # the block column that the matrix's edge cuts, if there is one: it must not be read whole
    cut_block = min(len(x) // block_size - base, NARROW_PADDING) if narrow else len(x) // block_size
    whole = (1 << block_size) - 1
    while slot < end:
        if block_size == 1:
            lanes.prefetch(data, slot + lanes.AHEAD * WARP, far)
            lanes.prefetch(col, at + lanes.AHEAD * WARP, far)
        else:
            for j in range(block_size):
                lanes.prefetch(data, slot + (lanes.AHEAD_IN_BLOCKS + j) * WARP, far)
            lanes.prefetch(col, at + lanes.AHEAD_IN_BLOCKS // block_size * WARP, far)
        real = lanes.different(col, at, NARROW_PADDING if narrow else -1)
        if narrow and block_size == 1 and real == ALL:
            acc = lanes.multiply_add(acc, lanes.load(data, slot, y), lanes.load_runs(x, base, col, at))
        elif near and block_size == 1 and real == ALL:
            acc = lanes.multiply_add(acc, lanes.load(data, slot, y), lanes.load_each(x, base, col, at))
        elif len(within) > 1 and real == ALL and (len(present) == 0 or lanes.different(present, present_at, whole) == 0):
            phase = row % block_size
            acc = lanes.multiply_add_blocks(acc, data, slot, x, base * block_size, col, at, phase, within)
        else:
            lanes.scale(col, at, block_size, real, places)
            if len(within) > 1 and real & lanes.different(col, at, cut_block) == real:
                # where a lane has no block, that of the bin's first column is read: some block is real, and it is not before
                acc = lanes.multiply_add_blocks_in(
                    acc, data, slot, x, base * block_size, places, real, present, present_at, row % block_size, within
                )
            else:
                for j in range(block_size):
                    if near and len(present) == 0:
                        entries = lanes.clear(lanes.load_each(x, base * block_size + j, places, 0), ~real)
                    else:
                        stored = real & lanes.bit_set(present, present_at, j) if len(present) else real
                        entries = lanes.gather(x, base * block_size + j, places, 0, stored)
                    acc = lanes.multiply_add(acc, lanes.load(data, slot + j * WARP, y), entries)
        slot += block_size * WARP
        at += WARP
        present_at += WARP
    return acc


@njit(**lanes.OPTIONS)
def _product_matrix(
    first, last, block_size, within, bin_rowptr, data, col_base, col_ptr, col_narrow, col_wide, present, n_rows, k,
    first_column, tile, x, y
):  # fmt: skip
    """As many columns as `tile` is long, from `first_column` on, of x and y, which have k each and are flat."""
    if len(within):
        block_size = len(within)
    x, y = lanes.pointer(x, first_column), lanes.pointer(y, first_column)
    for i in range(first, last):
        n_blocks = (bin_rowptr[i + 1] - bin_rowptr[i]) // (block_size * WARP)
        for row in range(i * WARP, min((i + 1) * WARP, n_rows)):
            values = lanes.pointer(data, bin_rowptr[i] + row % WARP)
            marks = lanes.pointer(present, bin_rowptr[i] // block_size + row % WARP)
            tiling.ask(data, bin_rowptr[i] + row % WARP * n_blocks * block_size, n_blocks * block_size)
            holes = len(present) > 0
            if col_base[i] >= 0:
                cols, near = lanes.pointer(col_narrow, col_ptr[i] + row % WARP), lanes.pointer(x, col_base[i] * block_size * k)
                tiling.ask(col_narrow, col_ptr[i] + row % WARP * n_blocks, n_blocks)
                acc = _row(n_blocks, block_size, values, holes, marks, NARROW_PADDING, cols, k, tile, near)
            else:
                cols = lanes.pointer(col_wide, col_ptr[i] + row % WARP)
                tiling.ask(col_wide, col_ptr[i] + row % WARP * n_blocks, n_blocks)
                acc = _row(n_blocks, block_size, values, holes, marks, -1, cols, k, tile, x)
            lanes.store(acc, y, row * k)


@njit(**lanes.OPTIONS, forceinline=True)
def _row(n_blocks, block_size, values, holes, marks, padding, cols, k, tile, x):
    """A row's blocks times rows of x: in two sums, neither of which waits for the other."""
    even = lanes.zero_row(x, tile)
    odd = lanes.zero_row(x, tile)
    for b in range(n_blocks):
        block = np.int64(cols[b * WARP])
        if block == padding:
            break
        start = block * block_size * k
        if holes:
            for j in range(block_size):
                if marks[b * WARP] >> j & 1:
                    even = lanes.multiply_add_row(even, values, (b * block_size + j) * WARP, x, start + j * k)
        else:
            for j in range(block_size):
                even = lanes.multiply_add_row(even, values, (b * block_size + j) * WARP, x, start + j * k)
        even, odd = odd, even
    return lanes.add(even, odd)


@njit(**lanes.OPTIONS)
def _scatter(
    first, last, part_bin, part_low, part_at, block_size, within, bin_rowptr, data, col_base, col_ptr, col_narrow,
    col_wide, present, x, sums
):  # fmt: skip
    if len(within):
        block_size = len(within)
    entries = lanes.scratch(x)
    for p in range(first, last):
        y = parts.open_part(p, part_low, part_at, sums)
        for i in range(part_bin[p], part_bin[p + 1]):
            row = i * WARP
            at, end = bin_rowptr[i], bin_rowptr[i + 1]
            n_rows = min(WARP, len(x) - row)
            for lane in range(n_rows):
                entries[lane] = x[row + lane]
            for lane in range(n_rows, WARP):
                entries[lane] = 0
            if col_base[i] >= 0:
                to = lanes.pointer(y, col_base[i] * block_size)
                _scatter_bin(row % block_size, block_size, at, end, data, True, col_ptr[i], col_narrow, present, entries, to)
            else:
                _scatter_bin(row % block_size, block_size, at, end, data, False, col_ptr[i], col_wide, present, entries, y)


@njit(**lanes.OPTIONS, forceinline=True)
def _scatter_bin(phase, block_size, slot, end, data, narrow, at, col, present, entries, y):
    """`phase` is the row in its block row of lane 0; lanes of one block row have the same columns, and are added up first."""
    sums = lanes.scratch(entries)
    present_at = slot // block_size
    while slot < end:
        real = lanes.different(col, at, NARROW_PADDING if narrow else -1)
        for j in range(block_size):
            stored = real & lanes.bit_set(present, present_at, j) if len(present) else real
            terms = lanes.multiply_add(
                lanes.zeros(entries), lanes.load(data, slot + j * WARP, entries), lanes.load(entries, 0, entries)
            )
            if block_size == 1 and stored == ALL:
                lanes.add_each(terms, y, col, at, lanes.WHOLE)
                continue
            lanes.store(lanes.clear(terms, ~stored), sums, 0)
            lane = 0
            while lane < WARP:
                after = min(lane + block_size - (phase + lane) % block_size, WARP)
                here = np.uint32((np.uint64(1) << np.uint64(after)) - (np.uint64(1) << np.uint64(lane)))
                if stored & here:
                    total = sums[lane]
                    for other in range(lane + 1, after):
                        total += sums[other]
                    y[np.int64(col[at + lane]) * block_size + j] += total
                lane = after
        slot += block_size * WARP
        at += WARP
        present_at += WARP


@njit(**lanes.OPTIONS)
def _block_column(i, slot, col_base, col_ptr, col_narrow, col_wide):
    """Block column of a bin's slot, -1 for padding."""
    if col_base[i] < 0:
        return np.int64(col_wide[col_ptr[i] + slot])
    block = np.int64(col_narrow[col_ptr[i] + slot])
    return col_base[i] + block if block != NARROW_PADDING else -1


@njit(**lanes.OPTIONS)
def _count_entries(first, last, block_size, bin_rowptr, col_base, col_ptr, col_narrow, col_wide, present, entry_ptr):
    for i in range(first, last):
        start = bin_rowptr[i] // block_size
        total = 0
        for slot in range(bin_rowptr[i + 1] // block_size - start):
            if _block_column(i, slot, col_base, col_ptr, col_narrow, col_wide) >= 0:
                if len(present) == 0:
                    total += block_size
                else:
                    for j in range(block_size):
                        total += present[start + slot] >> j & 1
        entry_ptr[i + 1] = total


@njit(**lanes.OPTIONS)
def _entries(
    first, last, block_size, bin_rowptr, col_base, col_ptr, col_narrow, col_wide, present, entry_ptr, data, out_row,
    out_col, out_val
):  # fmt: skip
    for i in range(first, last):
        start = bin_rowptr[i] // block_size
        out = entry_ptr[i]
        for slot in range(bin_rowptr[i + 1] // block_size - start):
            block = _block_column(i, slot, col_base, col_ptr, col_narrow, col_wide)
            if block < 0:
                continue
            for j in range(block_size):
                if len(present) == 0 or present[start + slot] >> j & 1:
                    b, lane = divmod(slot, WARP)
                    out_row[out] = i * WARP + lane
                    out_col[out] = block * block_size + j
                    out_val[out] = data[bin_rowptr[i] + (b * block_size + j) * WARP + lane]
                    out += 1
