"""BBCSR on the CPU: conversion, product and the way back, on raw arrays. One thread does a bin: 32 rows in step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from cvrarray._tables import CSR, NARROW, WARP, BBCSRTables
from cvrarray.cpu import lanes, memory, threads

NO_BLOCK = NARROW - 1  #: narrow column of a padding slot
ALL = np.uint32(0xFFFFFFFF)  #: mask of all lanes


def convert(csr: CSR, block_size: int) -> BBCSRTables:
    """The BBCSR tables of a canonical CSR matrix in NumPy arrays; `block_size` is 1 to 32."""
    n_rows = csr.shape[0]
    index = csr.indices.dtype
    n_bins = -(-n_rows // WARP)
    n_block_rows = -(-n_rows // block_size)
    n_blocks = np.zeros(n_block_rows, index)
    low, high = np.zeros(n_block_rows, index), np.zeros(n_block_rows, index)
    row_end = np.minimum(np.arange(n_block_rows + 1) * block_size, n_rows)
    threads.run(_count_blocks, csr.indptr[row_end], block_size, csr.indptr, csr.indices, n_blocks, low, high)

    most_blocks, bin_low, bin_high = np.zeros(n_bins, index), np.zeros(n_bins, index), np.zeros(n_bins, index)
    _bin_ranges(0, n_bins, block_size, n_blocks, low, high, most_blocks, bin_low, bin_high)
    slots = most_blocks.astype(np.int64) * WARP  # of columns; a slot has block_size values
    narrow = bin_high - bin_low < NO_BLOCK
    bin_rowptr = memory.offsets(slots * block_size)
    col_base = np.where(narrow, bin_low, -1).astype(index)
    col_ptr = np.where(narrow, np.cumsum(slots * narrow), np.cumsum(slots * ~narrow)) - slots
    col_narrow = memory.empty(slots[narrow].sum(), np.uint16)
    col_wide = memory.empty(slots[~narrow].sum(), index)
    data = memory.empty(bin_rowptr[-1], csr.data.dtype)
    rows_of_block_row = np.diff(row_end)
    full = int((n_blocks.astype(np.int64) * rows_of_block_row).sum()) * block_size == csr.nnz
    present = memory.empty(0 if full else slots.sum(), f"u{1 if block_size <= 8 else 2 if block_size <= 16 else 4}")
    threads.run(
        _lay_out, bin_rowptr, block_size, csr.indptr, csr.indices, memory.bits(csr.data), bin_rowptr, n_blocks, bin_low,
        col_base, col_ptr, col_narrow, col_wide, memory.bits(data), present,
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


def product(tables: BBCSRTables, dtype: np.dtype) -> Callable[[np.ndarray, np.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y``.

    x (n_cols,) and y (n_rows,) are contiguous arrays of `dtype`: any number type but bool (compute ``bool @ bool`` in
    int64 and cast). alpha and beta are scalars of it. Where beta is 0, y is written and never read.
    """
    return partial(_run, tables)


def to_coo(tables: BBCSRTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and value of every stored entry, bin by bin; padding and holes are dropped, explicit zeros stay."""
    t = tables
    index = t.col_base.dtype
    layout = (t.block_size, t.bin_rowptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, _present(t))
    entry_ptr = np.zeros(len(t.bin_rowptr), np.int64)
    threads.run(_count_entries, t.bin_rowptr, *layout, entry_ptr)
    np.cumsum(entry_ptr, out=entry_ptr)
    row, col, val = np.empty(t.nnz, index), np.empty(t.nnz, index), np.empty(t.nnz, t.data.dtype)
    threads.run(_entries, t.bin_rowptr, *layout, entry_ptr, memory.bits(t.data), row, col, memory.bits(val))
    return row, col, val


def _run(tables: BBCSRTables, x: np.ndarray, y: np.ndarray, alpha, beta) -> None:
    if alpha == 1 and beta == 0:
        _multiply(tables, x, y)
        return
    product = np.empty_like(y)
    _multiply(tables, x, product)
    y[:] = alpha * product if beta == 0 else alpha * product + beta * y


def _multiply(t: BBCSRTables, x: np.ndarray, y: np.ndarray) -> None:
    threads.run(
        _product, t.bin_rowptr, t.block_size, t.bin_rowptr, t.data, t.col_base, t.col_ptr, t.col_narrow, t.col_wide,
        _present(t), x, y,
    )  # fmt: skip


def _present(t: BBCSRTables) -> np.ndarray:
    """The bits of stored columns; an empty array, of the same dtype, where all are (one compiled function for both)."""
    return np.empty(0, np.uint8) if t.present is None else t.present


@njit(**lanes.OPTIONS, forceinline=True)
def _open_rows(block_row, block_size, indptr, ahead, end):
    """Set `ahead` and `end` to where the entries of a block row's rows begin and end; the number of its rows."""
    first = block_row * block_size
    n_rows = min(block_size, len(indptr) - 1 - first)
    for r in range(n_rows):
        ahead[r] = indptr[first + r]
        end[r] = indptr[first + r + 1]
    return n_rows


@njit(**lanes.OPTIONS, forceinline=True)
def _take_block(block_size, n_rows, indices, ahead, end):
    """The smallest block column among the entries still ahead, which move on past it; -1 where there are none."""
    least = -1
    for r in range(n_rows):
        if ahead[r] < end[r] and (least < 0 or indices[ahead[r]] < least):
            least = indices[ahead[r]]
    if least < 0:
        return least
    block = least // block_size
    last = (block + 1) * block_size - 1
    for r in range(n_rows):
        whole = ahead[r] + block_size
        if whole <= end[r] and indices[whole - 1] == last:
            ahead[r] = whole
        while ahead[r] < end[r] and indices[ahead[r]] <= last:
            ahead[r] += 1
    return block


@njit(**lanes.OPTIONS)
def _count_blocks(first, last, block_size, indptr, indices, n_blocks, low, high):
    ahead, end = lanes.scratch(indptr), lanes.scratch(indptr)
    for block_row in range(first, last):
        if block_size == 1:
            n_blocks[block_row] = indptr[block_row + 1] - indptr[block_row]
            if n_blocks[block_row]:
                low[block_row] = indices[indptr[block_row]]
                high[block_row] = indices[indptr[block_row + 1] - 1]
            continue
        n_rows = _open_rows(block_row, block_size, indptr, ahead, end)
        block = _take_block(block_size, n_rows, indices, ahead, end)
        low[block_row] = max(block, 0)
        while block >= 0:
            n_blocks[block_row] += 1
            high[block_row] = block
            block = _take_block(block_size, n_rows, indices, ahead, end)


@njit(**lanes.OPTIONS)
def _bin_ranges(first, last, block_size, n_blocks, low, high, most_blocks, bin_low, bin_high):
    for i in range(first, last):
        for block_row in range(i * WARP // block_size, min(((i + 1) * WARP - 1) // block_size + 1, len(n_blocks))):
            if n_blocks[block_row] == 0:
                continue
            if most_blocks[i] == 0:
                bin_low[i] = low[block_row]
            bin_low[i] = min(bin_low[i], low[block_row])
            bin_high[i] = max(bin_high[i], high[block_row])
            most_blocks[i] = max(most_blocks[i], n_blocks[block_row])


@njit(**lanes.OPTIONS)
def _lay_out(
    first, last, block_size, indptr, indices, values, bin_rowptr, n_blocks, bin_low, col_base, col_ptr, col_narrow,
    col_wide, data, present
):  # fmt: skip
    """Write every slot of the bins: the columns of a block row, then row by row its values and its padding."""
    ahead, end = lanes.scratch(indptr), lanes.scratch(indptr)
    for i in range(first, last):
        narrow = col_base[i] >= 0
        base = np.int64(bin_low[i]) if narrow else 0
        slot = bin_rowptr[i] // block_size
        most_blocks = (bin_rowptr[i + 1] // block_size - slot) // WARP
        bin_end = min((i + 1) * WARP, len(indptr) - 1)
        for block_row in range(i * WARP // block_size, (bin_end - 1) // block_size + 1):
            row_first = max(block_row * block_size, i * WARP)
            row_last = min((block_row + 1) * block_size, bin_end)
            n_rows = _open_rows(block_row, block_size, indptr, ahead, end)
            n = n_blocks[block_row]
            at = col_ptr[i] + row_first % WARP
            for b in range(n):
                if block_size == 1:
                    block = np.int64(indices[indptr[block_row] + b])
                else:
                    block = _take_block(block_size, n_rows, indices, ahead, end)
                for lane in range(row_last - row_first):
                    if narrow:
                        col_narrow[at + lane] = block - base
                    else:
                        col_wide[at + lane] = block
                at += WARP
            for row in range(row_first, row_last):
                lane = row % WARP
                columns = col_ptr[i] + lane
                if narrow:
                    _fill_row(
                        n, indptr[row], indptr[row + 1], lane, block_size, base, columns, col_narrow, slot, indices,
                        values, data, present
                    )  # fmt: skip
                else:
                    _fill_row(
                        n, indptr[row], indptr[row + 1], lane, block_size, base, columns, col_wide, slot, indices,
                        values, data, present
                    )  # fmt: skip
                _pad(n, most_blocks, lane, block_size, narrow, columns, col_narrow, col_wide, slot, data, present)
        for lane in range(bin_end - i * WARP, WARP):
            _pad(0, most_blocks, lane, block_size, narrow, col_ptr[i] + lane, col_narrow, col_wide, slot, data, present)


@njit(**lanes.OPTIONS)
def _fill_row(n_blocks, entry, end, lane, block_size, base, at, col, slot, indices, values, data, present):
    """Write a row's values, 0 for a hole, and which columns are stored."""
    to = slot * block_size + lane
    for b in range(n_blocks):
        column = (base + col[at + b * WARP]) * block_size
        whole = entry + block_size <= end and indices[entry + block_size - 1] == column + block_size - 1
        bits = 0
        for j in range(block_size):
            if whole or (entry < end and indices[entry] == column + j):
                data[to] = values[entry]
                entry += 1
                bits |= 1 << j
            else:
                data[to] = 0
            to += WARP
        if len(present):
            present[slot + b * WARP + lane] = bits


@njit(**lanes.OPTIONS)
def _pad(first, last, lane, block_size, narrow, at, col_narrow, col_wide, slot, data, present):
    """Write padding for blocks `first` to before `last` of a row."""
    for b in range(first, last):
        if narrow:
            col_narrow[at + b * WARP] = NO_BLOCK
        else:
            col_wide[at + b * WARP] = -1
        for j in range(block_size):
            data[(slot + b * WARP) * block_size + j * WARP + lane] = 0
        if len(present):
            present[slot + b * WARP + lane] = 0


@njit(**lanes.OPTIONS)
def _product(
    first, last, block_size, bin_rowptr, data, col_base, col_ptr, col_narrow, col_wide, present, x, y
):  # fmt: skip
    sums, places = lanes.scratch(y), lanes.scratch(col_wide)
    for i in range(first, last):
        n_blocks = (bin_rowptr[i + 1] - bin_rowptr[i]) // (block_size * WARP)
        if col_base[i] >= 0:
            acc = _bin(
                n_blocks,
                block_size,
                bin_rowptr[i],
                data,
                True,
                col_base[i],
                col_ptr[i],
                col_narrow,
                present,
                x,
                y,
                places,
            )
        else:
            acc = _bin(n_blocks, block_size, bin_rowptr[i], data, False, 0, col_ptr[i], col_wide, present, x, y, places)
        row = i * WARP
        if row + WARP <= len(y):
            lanes.store(acc, y, row)
        else:
            lanes.store(acc, sums, 0)
            for lane in range(len(y) - row):
                y[row + lane] = sums[lane]


@njit(**lanes.OPTIONS, forceinline=True)
def _bin(n_blocks, block_size, slot, data, narrow, base, at, col, present, x, y, places):
    """The sums of a bin's rows. `places` is room for the offsets of a block's columns in x."""
    acc = lanes.zeros(y)
    present_at = slot // block_size
    for _ in range(n_blocks):
        real = lanes.different(col, at, NO_BLOCK if narrow else -1)
        if narrow and block_size == 1 and real == ALL:
            acc = lanes.multiply_add(acc, lanes.load(data, slot, y), lanes.load_runs(x, base, col, at))
            slot += WARP
        else:
            lanes.scale(col, at, block_size, real, places)
            for j in range(block_size):
                if narrow and len(present) == 0:
                    entries = lanes.clear(lanes.load_each(x, base * block_size + j, places, 0), ~real)
                else:
                    stored = real & lanes.bit_set(present, present_at, j) if len(present) else real
                    entries = lanes.gather(x, base * block_size + j, places, 0, stored)
                acc = lanes.multiply_add(acc, lanes.load(data, slot, y), entries)
                slot += WARP
        at += WARP
        present_at += WARP
    return acc


@njit(**lanes.OPTIONS)
def _block_column(i, slot, col_base, col_ptr, col_narrow, col_wide):
    """Block column of a bin's slot, -1 for padding."""
    if col_base[i] < 0:
        return np.int64(col_wide[col_ptr[i] + slot])
    block = np.int64(col_narrow[col_ptr[i] + slot])
    return col_base[i] + block if block != NO_BLOCK else -1


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
