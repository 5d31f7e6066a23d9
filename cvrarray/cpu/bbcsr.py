"""BBCSR on the CPU: conversion, product and the way back, on raw arrays. One thread does a bin: 32 rows in step.

Kernels take the tables as they are, as one named tuple ``t``; float16 values as
:func:`cvrarray.cpu.runtime.memory.values` has them, and an empty ``present`` where it is None. The tuple ``within``
is as long as a block is wide where the kernel is compiled for that size alone, else empty: see :func:`.known_size`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from cvrarray.core.arrays import Run
from cvrarray.core.distinct import pads_with_zero
from cvrarray.core.tables import CSR, NARROW_PADDING, WARP, BBCSRTables
from cvrarray.cpu import decoding, distinct, plan, simd
from cvrarray.cpu.bbcsr_conversion import ALL, convert, convert_anew, fill, known_size
from cvrarray.cpu.products import parts, tiling
from cvrarray.cpu.products.scaling import scaled
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel
from cvrarray.cpu.runtime.team import Work

__all__ = [
    "convert", "convert_anew", "fill", "product", "product_matrix", "product_transposed", "row_sums",
    "to_csr", "work_of_product",
]  # fmt: skip

#: Steps of 32 values from the one that a product is at to the one that it prefetches; blocks take less time a value.
AHEAD, AHEAD_IN_BLOCKS = 16, 8


def product(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y``.

    x (n_cols,) and y (n_rows,) are contiguous arrays of `dtype`: any number type but bool (compute ``bool @ bool`` in
    int64 and cast). alpha and beta are scalars of it. Where beta is 0, y is written and never read.
    """
    return scaled(plan.fastest(_product_of(tables, dtype)))


def row_sums(tables: BBCSRTables, dtype: np.dtype) -> Callable[[np.ndarray], None] | None:
    """``run(y)``, which does ``y = A @ ones``, y (n_rows,) of `dtype`, as for :func:`product`: columns are not read.

    None where numbers stand for values and that in padding not for 0.
    """
    if not pads_with_zero(tables.distinct):
        return None
    t, like = _for_kernels(tables, dtype), np.empty(0, dtype)
    rows = threads.prepare(compiled(_row_sums, 0, 0, t.bin_rowptr, t.data, like), t.bin_rowptr)
    return lambda y: rows(t.bin_rowptr, t.data, y)


def work_of_product(tables: BBCSRTables, x: np.ndarray, y: np.ndarray) -> list[Work]:
    """``y = A @ x`` as calls one after the other, for loops in compiled code. x and y are as for :func:`product`, or for
    :func:`product_matrix`.
    """
    t, within = _for_kernels(tables, x.dtype), known_size(tables.block_size)
    if x.ndim == 1:
        of = _product_of(tables, x.dtype)
        return [Work(_product, (*of.args(of.chosen()), x, y), t.bin_rowptr)]
    tiles = tiling.tiles(y.shape[1], y.itemsize)
    flat = x.reshape(-1), y.reshape(-1)
    each = [(t, within, y.shape[1], first, tuple(range(size)), *flat) for first, size in tiles]
    return [Work(_product_matrix, args, t.bin_rowptr) for args in each]


def _product_of(tables: BBCSRTables, dtype: np.dtype) -> plan.Product:
    t, like = _for_kernels(tables, dtype), np.empty(0, dtype)
    within = known_size(t.block_size)
    ways = plan.candidates(t, simd.RUNS)
    if t.block_size > 1:  # which have a way of their own, but in steps with padding
        ways = dict([next(iter(ways.items()))])
    return plan.Product(_product, lambda ways: (t, within, ways), (like,) * 2, t.data, ways, t.bin_rowptr)


def product_matrix(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``.

    X (n_cols, k) and Y (n_rows, k) are C-contiguous arrays, otherwise as for :func:`product`; k is any number of
    columns.
    """
    t = _for_kernels(tables, dtype)
    within, like = known_size(t.block_size), np.empty(0, dtype)

    @cache
    def rows(tile: tuple[int, ...]) -> Callable:
        return threads.prepare(compiled(_product_matrix, 0, 0, t, within, 0, 0, tile, like, like), t.bin_rowptr)

    def multiply(x: np.ndarray, y: np.ndarray, first: int, tile: tuple[int, ...]) -> None:
        rows(tile)(t, within, y.shape[1], first, tile, x.ravel(), y.ravel())

    return tiling.product(multiply)


def product_transposed(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A.T @ x + beta * y``, from the tables of :func:`product`.

    x (n_rows,) and y (n_cols,) are as there. A call takes up to ``parts.MOST_VECTORS`` times the memory of y.
    """
    return scaled(_by_parts(_scatter, _for_kernels(tables, dtype), dtype))


def _by_parts(scatter: Callable, t: BBCSRTables, dtype: np.dtype) -> Callable[[np.ndarray, np.ndarray], None]:
    """``multiply(x, y)`` by a kernel that scatters."""
    n_cols, block_size = t.shape[1], t.block_size
    ranges = parts.column_ranges(t.bin_rowptr, (1, block_size), t, NARROW_PADDING, -(-n_cols // block_size))
    low, high = (np.minimum(blocks * block_size, n_cols) for blocks in ranges)
    of = parts.divide(t.bin_rowptr, 1, low, high, n_cols)
    return parts.transposed(scatter, of, t.bin_rowptr, 1, (t, known_size(block_size)), n_cols, dtype)


def to_csr(tables: BBCSRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last), numbered as the tables have them."""
    return decoding.from_bbcsr(tables, first, last)


def _for_kernels(t: BBCSRTables, dtype: np.dtype) -> BBCSRTables:
    """The tables as products in `dtype` take them. `present` is an empty array of uint8 where it is None: one version
    for both.

    `data` is what :func:`cvrarray.cpu.distinct.values` gives.
    """
    present = np.empty(0, np.uint8) if t.present is None else t.present
    return t._replace(data=distinct.values(t.data, t.distinct, dtype), present=present, distinct=None)


@kernel
def _product(first, last, t, within, ways, x, y):
    """`ways` tells how x is loaded for narrow columns and for wide ones; nothing where there are none."""
    sums, offsets = simd.scratch(y, simd.SINGLE), simd.scratch(t.col_wide, simd.SINGLE)
    for i in range(first, last):
        if len(ways.narrow) and (len(ways.wide) == 0 or t.col_base[i] >= 0):
            acc = _bin(t, i, within, True, ways.narrow, t.col_base[i], t.col_narrow, x, offsets)
        else:
            acc = _bin(t, i, within, False, ways.wide, 0, t.col_wide, x, offsets)
        _store_rows(acc, i * WARP, sums, y)


@kernel
def _row_sums(first, last, bin_rowptr, data, y):
    sums = simd.scratch(y, simd.SINGLE)
    for i in range(first, last):
        acc = simd.zeros(y, simd.WHOLE)
        for slot in range(bin_rowptr[i], bin_rowptr[i + 1], WARP):
            simd.prefetch(data, slot + AHEAD * WARP, simd.INTO_L1)
            acc = simd.add(acc, simd.load(data, slot, y))
        _store_rows(acc, i * WARP, sums, y)


@inlined
def _store_rows(acc, row, sums, y):
    """Write the sums of a bin's rows, of which `row` is the first. `sums` is scratch space: the last bin may have fewer."""
    if row + WARP <= len(y):
        simd.store(acc, y, row, simd.WHOLE)
    else:
        simd.store(acc, sums, 0, simd.WHOLE)
        for r in range(len(y) - row):
            y[row + r] = sums[r]


@inlined
def _bin(t, i, within, narrow, way, base, col, x, offsets):
    """The sums of a bin's rows, whose block columns are `base` plus `col`. `offsets` is scratch space for them."""
    block_size = len(within) if len(within) else t.block_size
    acc = simd.zeros(x, simd.WHOLE)
    slot, end, at = t.bin_rowptr[i], t.bin_rowptr[i + 1], t.col_ptr[i]
    present_at, phase = slot // block_size, i * WARP % block_size
    # The block column that the matrix's edge cuts, if there is one: it must not be read whole.
    cut_block = min(len(x) // block_size - base, NARROW_PADDING) if narrow else len(x) // block_size
    begin, holes, whole = simd.pointer(x, base * block_size), len(t.present) > 0, (1 << block_size) - 1
    while slot < end:
        ahead = AHEAD if block_size == 1 else AHEAD_IN_BLOCKS
        for j in range(block_size):
            simd.prefetch(t.data, slot + (ahead + j) * WARP, simd.INTO_L1)
        simd.prefetch(col, at + ahead // block_size * WARP, simd.INTO_L1)
        real = simd.not_equal_mask(col, at, NARROW_PADDING if narrow else -1)
        if block_size == 1 and real == ALL:
            entries = simd.take(begin, 0, col, at, way)
            acc = simd.multiply_add(acc, simd.load(t.data, slot, x), entries)
        elif len(within) > 1 and real == ALL and (not holes or simd.not_equal_mask(t.present, present_at, whole) == 0):
            acc = simd.multiply_add_blocks(acc, simd.pointer(t.data, slot), begin, simd.pointer(col, at), phase, within)
        else:
            values, present = simd.pointer(t.data, slot), simd.pointer(t.present, present_at)
            simd.scale(col, at, block_size, real, offsets)
            if len(within) > 1 and real & simd.not_equal_mask(col, at, cut_block) == real:
                # Where a row has no block, the bin's first block column is read: some row has a block there or later.
                acc = simd.multiply_add_blocks_masked(acc, values, begin, offsets, real, holes, present, phase, within)
            else:
                acc = _by_columns(acc, values, holes, present, block_size, real, way, begin, offsets)
        slot += block_size * WARP
        at += WARP
        present_at += WARP
    return acc


@inlined
def _by_columns(acc, values, holes, present, block_size, real, way, x, offsets):
    """The sums plus a step's blocks, column after column: x is loaded for every row."""
    for j in range(block_size):
        if len(way) < len(simd.GATHERS) and not holes:
            entries = simd.clear(simd.take(x, j, offsets, 0, simd.LOADS), ~real)
        else:
            stored = real & simd.bit_set(present, 0, j) if holes else real
            entries = simd.gather(x, j, offsets, 0, stored)
        acc = simd.multiply_add(acc, simd.load(values, j * WARP, x), entries)
    return acc


@kernel
def _product_matrix(first, last, t, within, k, first_column, tile, x, y):
    """As many columns as `tile` is long, from `first_column` on, of x and y, which have k columns each and are flat."""
    block_size = len(within) if len(within) else t.block_size
    x, y = simd.pointer(x, first_column), simd.pointer(y, first_column)
    holes = len(t.present) > 0
    for i in range(first, last):
        start, base, col_at = t.bin_rowptr[i], t.col_base[i], t.col_ptr[i]
        n_blocks = (t.bin_rowptr[i + 1] - start) // (block_size * WARP)
        for row in range(i * WARP, min((i + 1) * WARP, t.shape[0])):
            r = row % WARP
            values, marks = simd.pointer(t.data, start + r), simd.pointer(t.present, start // block_size + r)
            tiling.prefetch_ahead(t.data, start + r * n_blocks * block_size, n_blocks * block_size)
            if base >= 0:
                cols, near = simd.pointer(t.col_narrow, col_at + r), simd.pointer(x, base * block_size * k)
                tiling.prefetch_ahead(t.col_narrow, col_at + r * n_blocks, n_blocks)
                acc = _row(n_blocks, block_size, values, holes, marks, NARROW_PADDING, cols, k, tile, near)
            else:
                cols = simd.pointer(t.col_wide, col_at + r)
                tiling.prefetch_ahead(t.col_wide, col_at + r * n_blocks, n_blocks)
                acc = _row(n_blocks, block_size, values, holes, marks, -1, cols, k, tile, x)
            simd.store(acc, y, row * k, tile)


@inlined
def _row(n_blocks, block_size, values, holes, marks, padding, cols, k, tile, x):
    """A row's blocks times rows of x: in two sums, neither of which waits for the other."""
    even = simd.zeros(x, tile)
    odd = simd.zeros(x, tile)
    for b in range(n_blocks):
        block = np.int64(cols[b * WARP])
        if block == padding:
            break
        start = block * block_size * k
        if holes:
            for j in range(block_size):
                if marks[b * WARP] >> j & 1:
                    even = simd.multiply_add_row(even, values, (b * block_size + j) * WARP, x, start + j * k)
        else:
            for j in range(block_size):
                even = simd.multiply_add_row(even, values, (b * block_size + j) * WARP, x, start + j * k)
        even, odd = odd, even
    return simd.add(even, odd)


@kernel
def _scatter(first, last, part, t, within, x, sums):
    block_size = len(within) if len(within) else t.block_size
    entries = simd.scratch(x, simd.SINGLE)
    for p in range(first, last):
        y = parts.open_part(p, part, sums)
        for i in range(part.tile[p], part.tile[p + 1]):
            row = i * WARP
            n_rows = min(WARP, len(x) - row)
            for r in range(n_rows):
                entries[r] = x[row + r]
            for r in range(n_rows, WARP):
                entries[r] = 0
            if t.col_base[i] >= 0:
                to, col = simd.pointer(y, t.col_base[i] * block_size), simd.pointer(t.col_narrow, t.col_ptr[i])
                _scatter_bin(t, i, block_size, col, NARROW_PADDING, entries, to)
            else:
                _scatter_bin(t, i, block_size, simd.pointer(t.col_wide, t.col_ptr[i]), -1, entries, y)


@inlined
def _scatter_bin(t, i, block_size, col, padding, entries, y):
    """Rows of one block row have the same columns: their terms are added up before they are added to y."""
    start, holes, phase = t.bin_rowptr[i] // block_size, len(t.present) > 0, i * WARP % block_size
    present = simd.pointer(t.present, start)
    for slot in range(0, t.bin_rowptr[i + 1] // block_size - start, WARP):
        values, row = simd.pointer(t.data, (start + slot) * block_size), 0
        while row < WARP:
            after = min(row + block_size - (phase + row) % block_size, WARP)
            block = col[slot + row]
            for j in range(block_size if block != padding else 0):
                total, stored = entries[row] * 0, False
                for r in range(row, after):
                    if not holes or present[slot + r] >> j & 1:
                        term = simd.load_number(values, j * WARP + r, entries) * entries[r]
                        total, stored = total + term if stored else term, True
                if stored:  # else it may lie beyond the edge
                    y[np.int64(block) * block_size + j] += total
            row = after
