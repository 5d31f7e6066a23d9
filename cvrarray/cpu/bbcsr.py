"""BBCSR on the CPU: conversion, product and the way back, on raw arrays. One thread does a bin: 32 rows in step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from cvrarray._tables import CSR, NARROW, WARP, BBCSRTables
from cvrarray.cpu import threads

NO_BLOCK = NARROW - 1  #: narrow column of a padding slot


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
    bin_rowptr = _offsets(slots * block_size)
    col_base = np.where(narrow, bin_low, -1).astype(index)
    col_ptr = np.where(narrow, np.cumsum(slots * narrow), np.cumsum(slots * ~narrow)) - slots
    col_narrow = np.empty(slots[narrow].sum(), np.uint16)
    col_wide = np.empty(slots[~narrow].sum(), index)
    data = np.empty(bin_rowptr[-1], csr.data.dtype)
    rows_of_block_row = np.diff(row_end)
    full = int((n_blocks.astype(np.int64) * rows_of_block_row).sum()) * block_size == csr.nnz
    present = np.empty(0 if full else slots.sum(), f"u{1 if block_size <= 8 else 2 if block_size <= 16 else 4}")
    threads.run(
        _lay_out, bin_rowptr, block_size, csr.indptr, csr.indices, _bits(csr.data), bin_rowptr, bin_low, col_base,
        col_ptr, col_narrow, col_wide, _bits(data), present,
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


def matvec(tables: BBCSRTables, x: np.ndarray, y: np.ndarray, alpha, beta) -> None:
    """``y = alpha * A @ x + beta * y``.

    Parameters
    ----------
    x : (n_cols,), y : (n_rows,)
        Contiguous arrays of the product's dtype, any number type but bool (compute ``bool @ bool`` in int64 and cast).
        Where `beta` is 0, `y` is written and never read.
    alpha, beta
        Scalars of the product's dtype.
    """
    t = tables
    threads.run(
        _product, t.bin_rowptr, t.block_size, t.bin_rowptr, t.data, t.col_base, t.col_ptr, t.col_narrow, t.col_wide,
        _present(t), x, y, alpha, beta,
    )  # fmt: skip


def product(tables: BBCSRTables, dtype: np.dtype) -> Callable[[np.ndarray, np.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y``: :func:`matvec` of these tables."""
    return partial(matvec, tables)


def to_coo(tables: BBCSRTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and value of every stored entry, bin by bin; padding and holes are dropped, explicit zeros stay."""
    t = tables
    index = t.col_base.dtype
    layout = (t.block_size, t.bin_rowptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, _present(t))
    entry_ptr = np.zeros(len(t.bin_rowptr), np.int64)
    threads.run(_count_entries, t.bin_rowptr, *layout, entry_ptr)
    np.cumsum(entry_ptr, out=entry_ptr)
    row, col, val = np.empty(t.nnz, index), np.empty(t.nnz, index), np.empty(t.nnz, t.data.dtype)
    threads.run(_entries, t.bin_rowptr, *layout, entry_ptr, _bits(t.data), row, col, _bits(val))
    return row, col, val


def _present(t: BBCSRTables) -> np.ndarray:
    """The bits of stored columns; an empty array, of the same dtype, where all are (one compiled function for both)."""
    return np.empty(0, np.uint8) if t.present is None else t.present


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def _bits(values: np.ndarray) -> np.ndarray:
    """The values as unsigned integers of their size: conversions move them, and one compiled function serves all."""
    return values if values.itemsize > 8 else values.view(f"u{values.itemsize}")


@njit(nogil=True, cache=True)
def _next_block(block_size, ahead, end, indices):
    """The smallest block column among rows whose entries `ahead` to before `end` are still to come, or -1."""
    least = -1
    for r in range(len(ahead)):
        if ahead[r] < end[r] and (least < 0 or indices[ahead[r]] < least):
            least = indices[ahead[r]]
    return least // block_size if least >= 0 else least


@njit(nogil=True, cache=True)
def _open_rows(block_row, block_size, indptr, ahead, end):
    """Set `ahead` and `end` to the entries of a block row's rows; both hold equal offsets past the last row."""
    for r in range(block_size):
        row = min(block_row * block_size + r, len(indptr) - 2)
        end[r] = indptr[row + 1]
        ahead[r] = indptr[row] if row == block_row * block_size + r else end[r]


@njit(nogil=True, cache=True)
def _count_blocks(first, last, block_size, indptr, indices, n_blocks, low, high):
    ahead, end = np.empty(block_size, np.int64), np.empty(block_size, np.int64)
    for block_row in range(first, last):
        _open_rows(block_row, block_size, indptr, ahead, end)
        block = _next_block(block_size, ahead, end, indices)
        low[block_row] = max(block, 0)
        while block >= 0:
            n_blocks[block_row] += 1
            high[block_row] = block
            for r in range(block_size):
                while ahead[r] < end[r] and indices[ahead[r]] < (block + 1) * block_size:
                    ahead[r] += 1
            block = _next_block(block_size, ahead, end, indices)


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def _lay_out(
    first, last, block_size, indptr, indices, values, bin_rowptr, bin_low, col_base, col_ptr, col_narrow, col_wide, data,
    present
):  # fmt: skip
    n_rows = len(indptr) - 1
    ahead, end = np.empty(block_size, np.int64), np.empty(block_size, np.int64)
    for i in range(first, last):
        narrow = col_base[i] >= 0
        slot = bin_rowptr[i] // block_size
        n_slots = bin_rowptr[i + 1] // block_size - slot
        data[bin_rowptr[i] : bin_rowptr[i + 1]] = 0
        if narrow:
            col_narrow[col_ptr[i] : col_ptr[i] + n_slots] = NO_BLOCK
        else:
            col_wide[col_ptr[i] : col_ptr[i] + n_slots] = -1
        if len(present):
            present[slot : slot + n_slots] = 0
        row_end = min((i + 1) * WARP, n_rows)
        for block_row in range(i * WARP // block_size, (row_end - 1) // block_size + 1):
            _open_rows(block_row, block_size, indptr, ahead, end)
            block = _next_block(block_size, ahead, end, indices)
            b = 0
            while block >= 0:
                for r in range(block_size):
                    row = block_row * block_size + r
                    inside = i * WARP <= row < row_end
                    at = b * WARP + row - i * WARP
                    if inside and narrow:
                        col_narrow[col_ptr[i] + at] = block - bin_low[i]
                    elif inside:
                        col_wide[col_ptr[i] + at] = block
                    while ahead[r] < end[r] and indices[ahead[r]] < (block + 1) * block_size:
                        if inside:
                            j = indices[ahead[r]] - block * block_size
                            data[bin_rowptr[i] + (b * block_size + j) * WARP + row - i * WARP] = values[ahead[r]]
                            if len(present):
                                present[slot + at] |= 1 << j
                        ahead[r] += 1
                block = _next_block(block_size, ahead, end, indices)
                b += 1


@njit(nogil=True, cache=True)
def _product(
    first, last, block_size, bin_rowptr, data, col_base, col_ptr, col_narrow, col_wide, present, x, y, alpha, beta
):  # fmt: skip
    acc = np.empty(WARP, y.dtype)
    for i in range(first, last):
        acc[:] = 0
        n_blocks = (bin_rowptr[i + 1] - bin_rowptr[i]) // (block_size * WARP)
        if col_base[i] >= 0:
            _bin(n_blocks, block_size, bin_rowptr[i], data, col_base[i], col_ptr[i], col_narrow, NO_BLOCK, present, x, acc)
        else:
            _bin(n_blocks, block_size, bin_rowptr[i], data, 0, col_ptr[i], col_wide, -1, present, x, acc)
        for lane in range(min(WARP, len(y) - i * WARP)):
            row = i * WARP + lane
            total = acc[lane] if alpha == 1 else alpha * acc[lane]  # 1 * inf is nan in complex numbers
            y[row] = total if beta == 0 else total + beta * y[row]


@njit(nogil=True, cache=True)
def _bin(n_blocks, block_size, data_at, data, base, col_at, col, no_block, present, x, acc):
    for b in range(n_blocks):
        for lane in range(WARP):
            block = col[col_at + b * WARP + lane]
            if block == no_block:
                continue
            for j in range(block_size):
                if len(present) == 0 or present[data_at // block_size + b * WARP + lane] >> j & 1:
                    acc[lane] += data[data_at + (b * block_size + j) * WARP + lane] * x[(base + block) * block_size + j]


@njit(nogil=True, cache=True)
def _block_column(i, slot, col_base, col_ptr, col_narrow, col_wide):
    """Block column of a bin's slot, -1 for padding."""
    if col_base[i] < 0:
        return np.int64(col_wide[col_ptr[i] + slot])
    block = np.int64(col_narrow[col_ptr[i] + slot])
    return col_base[i] + block if block != NO_BLOCK else -1


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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
