"""BBCSR on the CPU: conversion, product and the way back, on raw arrays. One thread does a bin: 32 rows in step.

Kernels take the tables as they are, as one named tuple ``t``; float16 values as
:func:`cvrarray.cpu.runtime.memory.values` has them, and an empty ``present`` where it is None. The tuple ``within``
is as long as a block is wide where the kernel is compiled for that size alone, else empty: see :func:`_within`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from cvrarray.core.arrays import Run
from cvrarray.core.distinct import pads_with_zero
from cvrarray.core.tables import CSR, NARROW_PADDING, WARP, BBCSRTables, mask_dtype
from cvrarray.cpu import decoding, distinct, simd
from cvrarray.cpu.csr import look, offsets
from cvrarray.cpu.products import locality, parts, tiling
from cvrarray.cpu.products.scaling import scaled
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled, helper, inlined, kernel
from cvrarray.cpu.runtime.team import Work
from cvrarray.cpu.simd import masks

OWN_KERNEL = (1, *simd.BLOCK_SIZES)  #: block sizes whose kernels are compiled for that size alone
ALL = np.uint32(0xFFFFFFFF)  #: mask of all rows of a bin
#: Block sizes up to which all rows of a block row are merged if they differ; above, rows with the same columns count
#: as one.
UNROLLED = 3
FAR = np.int64(1 << 62)  #: beyond every column
NO_VALUES = np.empty(0, np.uint8)  #: in place of values for kernels that read none
BLOCK_ROWS_AHEAD = 4  #: from the block row that is laid out to the one whose columns are prefetched
ENTRIES_AHEAD = 1 << 10  #: from the columns that are compared to those that are prefetched
PADDED = 3  #: a bin with at most so many slots an entry is laid out step by step; above that row by row is quicker


class BlockRows(NamedTuple):
    """What the first pass of a conversion finds in every block row."""

    n_blocks: np.ndarray  # (n_block_rows,) I
    low: np.ndarray  # (n_block_rows,) I: smallest block column
    high: np.ndarray  # (n_block_rows,) I: largest block column
    merged_at: np.ndarray  # (n_block_rows,) int64: where its blocks stand in `merged`; -1 where its rows are alike
    merged: np.ndarray  # I: see _count_blocks


class Bin(NamedTuple):
    """A bin, while its columns are laid out."""

    number: int
    row_end: int
    block_size: int
    n_slots: int  # of columns; each has block_size values
    is_padded: bool  # slots are left that no entry fills
    by_steps: bool  # 32 slots at a time, else row by row
    holes: bool  # some block of the matrix has holes: the tables have `present`
    present: np.ndarray  # pointer to the bits of the first slot


class Slots(NamedTuple):
    """The slots of a bin; `values` and `present` are pointers to the first."""

    phase: int  # the row in its block row that the bin begins with
    block_size: int
    values: np.ndarray
    holes: bool  # the tables have `present`
    present: np.ndarray


def convert(csr: CSR, block_size: int) -> BBCSRTables:
    """The BBCSR tables of a canonical CSR matrix in NumPy arrays; `block_size` is 1 to 32.

    Values may be :func:`cvrarray.cpu.distinct.nothing`, which are not laid out in blocks.
    """
    data = np.ascontiguousarray(csr.data) if block_size == 1 else csr.data
    source = CSR(offsets(csr.indptr, csr.indices.dtype), csr.indices, memory.bits(data), csr.shape)
    kernels = _conversion(source.indptr.dtype, csr.indices.dtype, source.data.dtype, block_size)
    if block_size == 1:
        found = _rows_of_bins(csr)
        bins, bin_low = _empty_bins(kernels.bin_places, found, csr.shape, 1, csr.data.dtype, WARP)
        full = True
    else:
        found = _block_rows(source, block_size, kernels.count_blocks)
        bins, bin_low = _empty_bins(kernels.bin_places, found, csr.shape, block_size, csr.data.dtype)
        full = bins.nnz == csr.nnz
    n_slots = 0 if full else bins.col_narrow.size + bins.col_wide.size
    tables = bins._replace(nnz=csr.nnz, present=memory.empty(n_slots, mask_dtype(block_size)))
    values, past, run = (
        memory.bits(tables.data),
        memory.goes_past_caches(tables.data),
        partial(threads.run, least=threads.QUICK),
    )
    work = tables.bin_rowptr
    if block_size == 1:
        run(kernels.lay_out, work, source, found, bin_low, _within(1), past, tables._replace(data=values))
    else:  # columns and values apart: so there are not kernels for each pair of a size and a dtype
        places, to = _without_values(source), tables._replace(data=NO_VALUES)
        run(kernels.lay_out, work, places, found, bin_low, _within(block_size), past, to)
        if not distinct.is_nothing(data):
            run(kernels.fill, work, work, block_size, source.indptr, source.data, tables.present, past, values)
    return tables._replace(present=None) if full else tables


def convert_anew(csr: CSR, like: BBCSRTables) -> BBCSRTables:
    """The same, for blocks of the size of those in other tables."""
    return convert(csr, like.block_size)


def _rows_of_bins(csr: CSR) -> BlockRows:
    """The rows of each bin as if they were one block row, whose blocks are the entries of the longest."""
    bins = csr.seen.bins
    if bins is None or not bins.is_of(csr):
        bins = look(csr.indptr, csr.indices, csr.shape[1])[1]
    return BlockRows(bins.longest, bins.low, bins.high, np.empty(0, np.int64), bins.low[:0])


def _block_rows(places: CSR, block_size: int, count_blocks: Callable) -> BlockRows:
    """What `count_blocks`, the compiled :func:`_count_blocks`, finds."""
    n_block_rows, index = -(-places.shape[0] // block_size), places.indices.dtype
    found = BlockRows(
        n_blocks=np.empty(n_block_rows, index),
        low=np.empty(n_block_rows, index),
        high=np.empty(n_block_rows, index),
        merged_at=np.empty(n_block_rows, np.int64),
        merged=np.empty(3 * places.nnz + n_block_rows, index),  # most of it is never touched
    )
    threads.run_groups(count_blocks, places.indptr, block_size, _without_values(places), block_size, _within(block_size), found)
    return found


def _empty_bins(
    bin_places: Callable, found: BlockRows, shape: tuple[int, int], block_size: int, dtype: np.dtype, height: int = 0
) -> tuple[BBCSRTables, np.ndarray]:
    """Tables for the blocks that `found` counts, and the smallest block column of each bin.

    Values and columns are uninitialised, `present` is empty, and nnz is what whole blocks store. `bin_places` is the
    compiled :func:`_bin_places`. `height`: rows that each number of `found` is for, if not those of a block.
    """
    n_bins, index = -(-shape[0] // WARP), found.n_blocks.dtype
    bin_low, col_base = np.empty(n_bins, index), np.empty(n_bins, index)
    col_ptr, bin_rowptr = np.empty(n_bins, np.int64), np.empty(n_bins + 1, np.int64)
    n_narrow, n_wide, n_entries = bin_places(height or block_size, shape[0], found, bin_low, bin_rowptr, col_base, col_ptr)
    if height:  # blocks as wide as that were counted
        bin_rowptr //= height // block_size
    tables = BBCSRTables(
        shape=shape,
        nnz=n_entries,
        block_size=block_size,
        bin_rowptr=bin_rowptr,
        data=memory.empty(bin_rowptr[-1], dtype),
        col_base=col_base,
        col_ptr=col_ptr,
        col_narrow=memory.empty(n_narrow, np.uint16),
        col_wide=memory.empty(n_wide, index),
        present=np.empty(0, mask_dtype(block_size)),
    )
    return tables, bin_low


def product(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y``.

    x (n_cols,) and y (n_rows,) are contiguous arrays of `dtype`: any number type but bool (compute ``bool @ bool`` in
    int64 and cast). alpha and beta are scalars of it. Where beta is 0, y is written and never read.
    """
    args, like = _args_of_product(tables, dtype), np.empty(0, dtype)
    rows = threads.prepare(compiled(_product, 0, 0, *args, like, like), tables.bin_rowptr)
    return scaled(lambda x, y: rows(*args, x, y))


def row_sums(tables: BBCSRTables, dtype: np.dtype) -> Callable[[np.ndarray], None] | None:
    """``run(y)``, which does ``y = A @ ones``, y (n_rows,) of `dtype`, as for :func:`product`: columns are not read.

    None where numbers stand for values and that in padding not for 0.
    """
    if not pads_with_zero(tables.distinct):
        return None
    t, like, level = _for_kernels(tables, dtype), np.empty(0, dtype), simd.prefetch_level(tables.data)
    rows = threads.prepare(compiled(_row_sums, 0, 0, t.bin_rowptr, t.data, level, like), t.bin_rowptr)
    return lambda y: rows(t.bin_rowptr, t.data, level, y)


def column_sums(tables: BBCSRTables, dtype: np.dtype) -> Callable[[np.ndarray], None]:
    """``run(y)``, which does ``y = A.T @ ones``, y (n_cols,) of `dtype`, as for :func:`product_transposed`.

    Where holes hold 0, blocks are added up whole, those that reach over the edge too.
    """
    (n_rows, n_cols), size = tables.shape, tables.block_size
    if not pads_with_zero(tables.distinct):
        multiply = product_transposed(tables, dtype)
        return lambda y: multiply(np.ones(n_rows, dtype), y, 1, 0)
    whole = tables._replace(present=None, shape=(n_rows, -(-n_cols // size) * size))
    run, like = _by_parts(_add_bins, _for_kernels(whole, dtype), dtype), np.empty(0, dtype)

    def add_up(y: np.ndarray) -> None:
        sums = y if size == 1 else np.empty(whole.shape[1], dtype)
        run(like, sums)
        if size > 1:
            y[:] = sums[:n_cols]

    return add_up


def work_of_product(tables: BBCSRTables, x: np.ndarray, y: np.ndarray) -> list[Work]:
    """``y = A @ x`` as calls one after the other, for loops in compiled code. x and y are as for :func:`product`, or for
    :func:`product_matrix`.
    """
    t, within = _for_kernels(tables, x.dtype), _within(tables.block_size)
    if x.ndim == 1:
        return [Work(_product, (*_args_of_product(tables, x.dtype), x, y), t.bin_rowptr)]
    tiles = tiling.tiles(y.shape[1], y.itemsize)
    flat = x.reshape(-1), y.reshape(-1)
    each = [(t, within, y.shape[1], first, tuple(range(size)), *flat) for first, size in tiles]
    return [Work(_product_matrix, args, t.bin_rowptr) for args in each]


def _args_of_product(tables: BBCSRTables, dtype: np.dtype) -> tuple[Any, ...]:
    """What :func:`_product` takes before x and y."""
    t = _for_kernels(tables, dtype)
    scalar = np.ones(len(t.col_base), np.uint8)
    if simd.GATHERS:
        scalar = locality.prefers_scalar_loads(t.bin_rowptr, (1, t.block_size), t, t.block_size * np.dtype(dtype).itemsize)
    return t, _within(t.block_size), simd.prefetch_level(tables.data), scalar


def product_matrix(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``.

    X (n_cols, k) and Y (n_rows, k) are C-contiguous arrays, otherwise as for :func:`product`; k is any number of
    columns.
    """
    t = _for_kernels(tables, dtype)
    within, like = _within(t.block_size), np.empty(0, dtype)

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
    return parts.transposed(scatter, of, t.bin_rowptr, 1, (t, _within(block_size)), n_cols, dtype)


def to_csr(tables: BBCSRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last), numbered as the tables have them."""
    return decoding.from_bbcsr(tables, first, last)


def fill(tables: BBCSRTables, starts: np.ndarray, data: np.ndarray, values: np.ndarray) -> None:
    """Write the value table `values` of the structure `tables`, whose values `data` are in the order of a canonical
    CSR.

    `starts` (n_rows + 1,): its row offsets, in 32 or 64 bits.
    """
    t = tables
    present = np.empty(0, np.uint8) if t.present is None else t.present
    past = memory.goes_past_caches(values)
    args = (t.bin_rowptr, t.block_size, starts, memory.bits(data), present, past, memory.bits(values))
    threads.run(compiled(_fill_bins, 0, 0, *args), t.bin_rowptr, *args, least=threads.QUICK)


@cache
def _within(block_size: int) -> tuple[int, ...]:
    """A tuple of `block_size` integers: kernels know the size when compiled. () for sizes that share a kernel."""
    return tuple(range(block_size)) if block_size in OWN_KERNEL else ()


def _for_kernels(t: BBCSRTables, dtype: np.dtype) -> BBCSRTables:
    """The tables as products in `dtype` take them. `present` is an empty array of uint8 where it is None: one version
    for both.

    `data` is what :func:`cvrarray.cpu.distinct.values` gives.
    """
    present = np.empty(0, np.uint8) if t.present is None else t.present
    return t._replace(data=distinct.values(t.data, t.distinct, dtype), present=present, distinct=None)


def _without_values(csr: CSR) -> CSR:
    """The matrix's places alone: kernels that never read a value have one compiled version for all dtypes."""
    return csr._replace(data=NO_VALUES)


class Conversion(NamedTuple):
    """The kernels of a conversion, compiled for the dtypes of a matrix."""

    count_blocks: Callable  # of blocks of size 1 not called, nor compiled
    bin_places: Callable
    lay_out: Callable
    fill: Callable  # as count_blocks


@cache
def _conversion(indptr: np.dtype, index: np.dtype, bits: np.dtype, block_size: int) -> Conversion:
    """One look-up takes less time than Numba's choice of a version at each call: most conversions are short."""
    number, offset, within = np.empty(0, index), np.empty(0, np.int64), _within(block_size)
    csr = CSR(np.empty(0, indptr), number, np.empty(0, bits), (0, 0))
    found = BlockRows(number, number, number, offset, number)
    present = np.empty(0, mask_dtype(block_size))
    tables = BBCSRTables((0, 0), 0, 0, offset, csr.data, number, offset, np.empty(0, np.uint16), number, present)
    count_blocks, fill, places, without = _count_blocks, _fill_bins, csr, tables
    if block_size > 1:
        places, without = _without_values(csr), tables._replace(data=NO_VALUES)
        count_blocks = compiled(_count_blocks, 0, 0, places, 0, within, found)
        fill = compiled(_fill_bins, 0, 0, offset, 0, csr.indptr, csr.data, present, False, csr.data)
    bin_places = compiled(_bin_places, 0, 0, found, number, offset, number, offset)
    return Conversion(count_blocks, bin_places, compiled(_lay_out, 0, 0, places, found, number, within, False, without), fill)


@helper
def _same_columns(row, other, indptr, indices):
    """Whether a row has the columns of one before it."""
    begin, before = np.int64(indptr[row]), np.int64(indptr[other])
    length = np.int64(indptr[row + 1]) - begin
    if indptr[other + 1] - before != length:
        return False
    if length >= WARP:
        end = length - WARP
        alike = masks.equal(indices, begin + end, indices, before + end)  # a part may be compared twice
        for k in range(0, end, WARP):
            simd.prefetch(indices, begin + k + ENTRIES_AHEAD, simd.INTO_L1)
            alike &= masks.equal(indices, begin + k, indices, before + k)
        return alike == ALL
    if begin + WARP <= len(indices):
        return ~masks.equal(indices, begin, indices, before) & (np.uint32(1) << np.uint32(length)) - np.uint32(1) == 0
    for k in range(length):
        if indices[begin + k] != indices[before + k]:
            return False
    return True


@inlined
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


@inlined
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


@inlined
def _block(number, block_size):
    """``number // block_size``; matrices without blocks must not wait for divisions."""
    return number if block_size == 1 else number // block_size


@inlined
def _count_in_row(block_size, start, end, indices):
    """Blocks that a row's entries, `start` to before `end`, lie in."""
    if block_size == 1 or start == end:
        return end - start
    before, here = simd.pointer(indices, start), simd.pointer(indices, start + 1)
    count = 1
    # Without a way out, the loop compiles to vector instructions where block_size is known.
    for k in range(end - start - 1):
        count += here[k] // block_size != before[k] // block_size
    return count


@kernel
def _count_blocks(first, last, csr, block_size, within, found):
    """Blocks of each block row, the smallest and the largest; and where they are in ``merged``, -1 if rows are alike.

    Of rows that differ ``merged`` has, for every block, its column, bits for the rows that have entries in it, and
    bits for the entries of each of these: at most three numbers for a nonzero. One more a block row is written, and
    not kept.
    """
    if first >= last:
        return
    if len(within):
        block_size = len(within)
    ints = simd.SINGLE
    ahead, end, of = simd.scratch(csr.indptr, ints), simd.scratch(csr.indptr, ints), simd.scratch(csr.indptr, ints)
    marks = simd.scratch(found.n_blocks, ints)
    all_rows, indptr, indices = len(csr.indptr) - 1, simd.pointer(csr.indptr, 0), simd.pointer(csr.indices, 0)
    merged = simd.pointer(found.merged, 0)
    at = 3 * indptr[first * block_size] + first
    for block_row in range(first, last):
        row = block_row * block_size
        row_end = min(row + block_size, all_rows)
        n_rows = _open_rows(row, row_end, indptr, csr.indices, ahead, end, of) if block_size > 1 else 1
        if n_rows == 1:
            _count_alike(block_row, block_size, indptr[row], indptr[row + 1], indices, found)
            continue
        rows = row_end - row
        if block_size <= UNROLLED:  # known when compiled: loops over rows are unrolled, their state is in registers
            rows = n_rows = block_size
            for r in range(block_size):
                ahead[r], end[r], of[r] = indptr[min(row + r, row_end)], indptr[min(row + r + 1, row_end)], r
        begin = at
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
        found.merged_at[block_row] = begin
        found.low[block_row] = merged[begin]
        found.n_blocks[block_row], found.high[block_row] = count, highest


@inlined
def _count_alike(block_row, block_size, start, end, indices, found):
    """:func:`_count_blocks` of a block row whose rows are alike, from the entries of one of them."""
    n_blocks = _count_in_row(block_size, start, end, indices)
    found.merged_at[block_row] = -1
    found.n_blocks[block_row] = n_blocks
    found.low[block_row] = _block(indices[start], block_size) if n_blocks else 0
    found.high[block_row] = _block(indices[end - 1], block_size) if n_blocks else 0


@kernel
def _bin_places(block_size, n_rows, found, bin_low, bin_rowptr, col_base, col_ptr):
    """Where each bin has its values and columns; slots of narrow bins, of others, and what whole blocks would store."""
    n_rows_of_blocks = len(found.n_blocks)
    n_blocks, low, high = simd.pointer(found.n_blocks, 0), simd.pointer(found.low, 0), simd.pointer(found.high, 0)
    n_narrow = n_wide = n_entries = 0
    bin_rowptr[0] = 0
    for i in range(len(bin_low)):
        first, last = i * WARP // block_size, min(((i + 1) * WARP - 1) // block_size + 1, n_rows_of_blocks)
        most, least, highest = np.int64(0), FAR, np.int64(0)
        for block_row in range(first, last):  # without a way out, so it compiles to vector instructions
            blocks = np.int64(n_blocks[block_row])
            least = min(least, np.int64(low[block_row]) if blocks else FAR)
            highest = max(highest, np.int64(high[block_row]) if blocks else 0)
            most = max(most, blocks)
        least = least if most else 0
        bin_low[i] = least
        slots = most * WARP  # of columns; a slot has block_size values
        bin_rowptr[i + 1] = bin_rowptr[i] + slots * block_size
        if highest - least < NARROW_PADDING:
            col_base[i], col_ptr[i] = least, n_narrow
            n_narrow += slots
        else:
            col_base[i], col_ptr[i] = -1, n_wide
            n_wide += slots
    for block_row in range(n_rows_of_blocks):
        rows = min(block_size, n_rows - block_row * block_size)
        n_entries += n_blocks[block_row] * rows * block_size
    return n_narrow, n_wide, n_entries


@kernel
def _lay_out(first, last, csr, found, bin_low, within, past, t):
    """Write the columns of the bins' slots, and which of a block's entries are stored; values of blocks of size 1 alone,
    as :func:`_fill_bins` does.
    """
    block_size = len(within) if len(within) else t.block_size
    for i in range(first, last):
        at, n_values = t.bin_rowptr[i], t.bin_rowptr[i + 1] - t.bin_rowptr[i]
        n_slots, holes, present = n_values // block_size, len(t.present) > 0, simd.pointer(t.present, at // block_size)
        row_end = min((i + 1) * WARP, len(csr.indptr) - 1)
        n_entries = csr.indptr[row_end] - csr.indptr[i * WARP]
        to = Bin(i, row_end, block_size, n_slots, n_entries < n_values, PADDED * n_entries > n_values, holes, present)
        if holes:
            _fill(present, n_slots, 0)
        if t.col_base[i] >= 0:
            _lay_out_columns(to, csr, found, simd.pointer(t.col_narrow, t.col_ptr[i]), bin_low[i], NARROW_PADDING)
        else:
            _lay_out_columns(to, csr, found, simd.pointer(t.col_wide, t.col_ptr[i]), 0, -1)
        if block_size == 1:
            _fill_bin(i, t.bin_rowptr, 1, csr.indptr, csr.data, t.present, past, t.data)


@kernel
def _fill_bins(first, last, bin_rowptr, block_size, indptr, values, present, past, data):
    """Write every slot's value, past the caches where `past`: `indptr` and `present` tell which entry it is."""
    for i in range(first, last):
        _fill_bin(i, bin_rowptr, block_size, indptr, values, present, past, data)


@inlined
def _fill_bin(i, bin_rowptr, block_size, indptr, values, present, past, data):
    at, n_values, row_end = bin_rowptr[i], bin_rowptr[i + 1] - bin_rowptr[i], min((i + 1) * WARP, len(indptr) - 1)
    to, marks = simd.pointer(data, at), simd.pointer(present, at // block_size)
    if PADDED * (indptr[row_end] - indptr[i * WARP]) > n_values:
        if len(present):
            _marked_value_steps(i, block_size, indptr, values, n_values // (block_size * WARP), to, marks, past)
        else:
            _value_steps(i, indptr, values, n_values // WARP, to, past)
        return
    _fill(to, n_values, 0)
    for row in range(i * WARP, row_end):
        r, of_row, n = row % WARP, simd.pointer(values, indptr[row]), indptr[row + 1] - indptr[row]
        if len(present):
            _place_row(n, n_values // block_size, block_size, of_row, simd.pointer(marks, r), simd.pointer(to, r))
        else:
            for k in range(n):
                to[k * WARP + r] = of_row[k]


@inlined
def _lay_out_columns(to, csr, found, col, base, padding):
    """Write the columns of a bin, relative to `base`, and which entries are stored."""
    block_size, indptr, n_rows = to.block_size, csr.indptr, len(csr.indptr) - 1
    if block_size == 1 and to.by_steps:
        _column_steps(to.number, indptr, csr.indices, to.n_slots // WARP, base + padding, base, col)
        return
    if to.is_padded:
        _fill(col, to.n_slots, padding)
    for block_row in range(to.number * WARP // block_size, (to.row_end - 1) // block_size + 1):
        row = block_row * block_size
        if block_size == 1:
            n_blocks, merged_at = np.int64(indptr[row + 1] - indptr[row]), np.int64(-1)
        else:
            n_blocks, merged_at = np.int64(found.n_blocks[block_row]), np.int64(found.merged_at[block_row])
        row_end = min(row + block_size, n_rows)
        holes = indptr[row_end] - indptr[row] < n_blocks * block_size * (row_end - row)
        first, last = max(row, to.number * WARP), min(row_end, to.row_end)
        columns, marks = simd.pointer(col, first % WARP), simd.pointer(to.present, first % WARP)
        length, later = indptr[row + 1] - indptr[row], indptr[min(row + BLOCK_ROWS_AHEAD * block_size, n_rows)]
        indices = simd.pointer(csr.indices, indptr[row])
        for k in range(0, length, WARP):
            simd.prefetch(csr.indices, later + k, simd.INTO_L1)
        if merged_at >= 0 and holes:
            merged = simd.pointer(found.merged, merged_at)
            _place_merged(n_blocks, block_size, first - row, last - row, base, merged, columns, marks)
        elif holes:
            _split_columns(block_size, indices, length, base, last - first, columns, marks)
        else:
            _copy_columns(n_blocks, block_size, indices, base, last - first, columns)
            for b in range(n_blocks if to.holes else 0):
                for r in range(last - first):
                    marks[b * WARP + r] = (1 << block_size) - 1


@inlined
def _open_bin(i, indptr, source, length):
    """Set `source` and `length` to the rows' first entries and lengths in bin i; the first entry of the next bin."""
    n_rows = len(indptr) - 1
    for r in range(WARP):
        row = min(i * WARP + r, n_rows)
        source[r] = indptr[row]
        length[r] = indptr[min(row + 1, n_rows)] - indptr[row]
    return indptr[min((i + 1) * WARP, n_rows)]


@helper
def _value_steps(i, indptr, values, n_steps, data, past):
    """Write the values of a bin without holes, 32 slots at a time, and prefetch those of the next bin meanwhile.

    `past`: past the caches.
    """
    source, length = simd.scratch(indptr, simd.SINGLE), simd.scratch(indptr, simd.SINGLE)
    ahead = _open_bin(i, indptr, source, length)
    real = ALL
    for step in range(n_steps):
        simd.prefetch(values, ahead + step * WARP, simd.INTO_L1)
        real &= simd.not_equal_mask(length, 0, step)
        if past:
            simd.stream(simd.gather(values, step, source, 0, real), data, step * WARP, simd.WHOLE)
        else:
            simd.store(simd.gather(values, step, source, 0, real), data, step * WARP, simd.WHOLE)


@helper
def _marked_value_steps(i, block_size, indptr, values, n_block_steps, data, marks, past):
    """The same for a bin that may have holes: bits of `marks` tell which slots have an entry, and so which entry."""
    source, length = simd.scratch(indptr, simd.SINGLE), simd.scratch(indptr, simd.SINGLE)
    ahead = _open_bin(i, indptr, source, length)
    for block in range(n_block_steps):
        for j in range(block_size):
            step = block * block_size + j
            simd.prefetch(values, ahead + step * WARP, simd.INTO_L1)
            real = simd.bit_set(marks, block * WARP, j)
            if past:
                simd.stream(simd.gather(values, 0, source, 0, real), data, step * WARP, simd.WHOLE)
            else:
                simd.store(simd.gather(values, 0, source, 0, real), data, step * WARP, simd.WHOLE)
            simd.advance(source, real)


@helper
def _column_steps(i, indptr, indices, n_steps, padding, base, col):
    """Write the columns of a bin of blocks of size 1, relative to `base`, as :func:`_value_steps` does the values."""
    source, length = simd.scratch(indptr, simd.SINGLE), simd.scratch(indptr, simd.SINGLE)
    ahead = _open_bin(i, indptr, source, length)
    real = ALL
    for step in range(n_steps):
        simd.prefetch(indices, ahead + step * WARP, simd.INTO_L1)
        real &= simd.not_equal_mask(length, 0, step)
        simd.gather_store(simd.pointer(indices, step), source, real, padding, base, col, step * WARP, simd.WHOLE)


@helper
def _fill(to, n, value):
    for k in range(n):
        to[k] = value


@inlined
def _copy_columns(n_blocks, block_size, indices, base, n_rows, to):
    """Write the blocks of `n_rows` rows that are alike, from the columns of one of them."""
    if block_size == 1:
        for b in range(n_blocks):
            to[b * WARP] = indices[b] - base
        return
    for b in range(n_blocks):
        block = indices[b * block_size] // block_size - base
        for r in range(n_rows):
            to[b * WARP + r] = block


@inlined
def _place_merged(n_blocks, block_size, first, last, base, merged, to, marks):
    """Write the blocks of a block row whose rows differ, and which entries its rows `first` to before `last` have.

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


@inlined
def _split_columns(block_size, indices, length, base, n_rows, to, marks):
    """Write the blocks of rows that are alike, not all of them whole, and which entries are stored.

    Each entry writes what is known of its block so far: whether a block goes on cannot be foreseen, so there is no
    branch.
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
        for r in range(b + 1, b + n_rows):
            to[r] = to[b]
            marks[r] = marks[b]


@helper
def _place_row(n, n_slots, block_size, values, marks, to):
    """Write a row's `n` values where `marks` have them in its blocks; holes are 0 already."""
    k, slot = 0, 0
    while k < n and slot < n_slots:
        left = np.uint32(marks[slot])
        while left:
            to[slot * block_size + simd.lowest(left) * WARP] = values[k]
            left &= left - np.uint32(1)
            k += 1
        slot += WARP


@kernel
def _product(first, last, t, within, level, scalar, x, y):
    """``scalar[i]`` tells how a wide bin loads x."""
    sums, offsets = simd.scratch(y, simd.SINGLE), simd.scratch(t.col_wide, simd.SINGLE)
    for i in range(first, last):
        if t.col_base[i] >= 0:
            acc = _bin(t, i, within, True, True, t.col_base[i], t.col_narrow, level, x, offsets)
        else:
            acc = _bin(t, i, within, False, scalar[i] > 0, 0, t.col_wide, level, x, offsets)
        _store_rows(acc, i * WARP, sums, y)


@kernel
def _row_sums(first, last, bin_rowptr, data, level, y):
    sums = simd.scratch(y, simd.SINGLE)
    for i in range(first, last):
        acc = simd.zeros(y, simd.WHOLE)
        for slot in range(bin_rowptr[i], bin_rowptr[i + 1], WARP):
            simd.prefetch(data, slot + simd.STEPS_AHEAD * WARP, level)
            acc = simd.add(acc, simd.load(data, slot, y, simd.WHOLE))
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
def _bin(t, i, within, narrow, scalar, base, col, level, x, offsets):
    """The sums of a bin's rows, whose block columns are `base` plus `col`. `offsets` is scratch space for them."""
    block_size = len(within) if len(within) else t.block_size
    acc = simd.zeros(x, simd.WHOLE)
    slot, end, at = t.bin_rowptr[i], t.bin_rowptr[i + 1], t.col_ptr[i]
    present_at, phase = slot // block_size, i * WARP % block_size
    # The block column that the matrix's edge cuts, if there is one: it must not be read whole.
    cut_block = min(len(x) // block_size - base, NARROW_PADDING) if narrow else len(x) // block_size
    begin, holes, whole = simd.pointer(x, base * block_size), len(t.present) > 0, (1 << block_size) - 1
    while slot < end:
        if block_size == 1:
            simd.prefetch(t.data, slot + simd.STEPS_AHEAD * WARP, level)
            simd.prefetch(col, at + simd.STEPS_AHEAD * WARP, level)
        else:
            for j in range(block_size):
                simd.prefetch(t.data, slot + (simd.STEPS_AHEAD_IN_BLOCKS + j) * WARP, level)
            simd.prefetch(col, at + simd.STEPS_AHEAD_IN_BLOCKS // block_size * WARP, level)
        real = simd.not_equal_mask(col, at, NARROW_PADDING if narrow else -1)
        if narrow and block_size == 1 and real == ALL:
            entries = simd.gather_contiguous(begin, 0, col, at)
            acc = simd.multiply_add(acc, simd.load(t.data, slot, x, simd.WHOLE), entries)
        elif scalar and block_size == 1 and real == ALL:
            acc = simd.multiply_add(acc, simd.load(t.data, slot, x, simd.WHOLE), simd.gather_scalar(begin, 0, col, at))
        elif len(within) > 1 and real == ALL and (not holes or simd.not_equal_mask(t.present, present_at, whole) == 0):
            acc = simd.multiply_add_blocks(acc, simd.pointer(t.data, slot), begin, simd.pointer(col, at), phase, within)
        else:
            values, present = simd.pointer(t.data, slot), simd.pointer(t.present, present_at)
            simd.scale(col, at, block_size, real, offsets)
            if len(within) > 1 and real & simd.not_equal_mask(col, at, cut_block) == real:
                # Where a row has no block, the bin's first block column is read: some row has a block there or later.
                acc = simd.multiply_add_blocks_masked(acc, values, begin, offsets, real, holes, present, phase, within)
            else:
                acc = _by_columns(acc, values, holes, present, block_size, real, scalar, begin, offsets)
        slot += block_size * WARP
        at += WARP
        present_at += WARP
    return acc


@inlined
def _by_columns(acc, values, holes, present, block_size, real, scalar, x, offsets):
    """The sums plus a step's blocks, column after column: x is loaded for every row."""
    for j in range(block_size):
        if scalar and not holes:
            entries = simd.clear(simd.gather_scalar(x, j, offsets, 0), ~real)
        else:
            stored = real & simd.bit_set(present, 0, j) if holes else real
            entries = simd.gather(x, j, offsets, 0, stored)
        acc = simd.multiply_add(acc, simd.load(values, j * WARP, x, simd.WHOLE), entries)
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
    entries, holes = simd.scratch(x, simd.SINGLE), len(t.present) > 0
    for p in range(first, last):
        y = parts.open_part(p, part, sums)
        for i in range(part.tile[p], part.tile[p + 1]):
            row, at = i * WARP, t.bin_rowptr[i]
            n_rows = min(WARP, len(x) - row)
            for r in range(n_rows):
                entries[r] = x[row + r]
            for r in range(n_rows, WARP):
                entries[r] = 0
            n_steps = (t.bin_rowptr[i + 1] - at) // (block_size * WARP)
            of = Slots(row % block_size, block_size, simd.pointer(t.data, at), holes, simd.pointer(t.present, at // block_size))
            if t.col_base[i] >= 0:
                to, col = simd.pointer(y, t.col_base[i] * block_size), simd.pointer(t.col_narrow, t.col_ptr[i])
                _scatter_bin(of, n_steps, col, NARROW_PADDING, entries, to)
            else:
                _scatter_bin(of, n_steps, simd.pointer(t.col_wide, t.col_ptr[i]), -1, entries, y)


@inlined
def _scatter_bin(of, n_steps, col, padding, entries, y):
    """Rows of one block row have the same columns: their terms are added up before they are added to y."""
    block_size = of.block_size
    if block_size > 1 and not of.holes:
        _scatter_whole_blocks(of, n_steps, col, padding, entries, y)
        return
    sums = simd.scratch(entries, simd.SINGLE)
    for slot in range(0, n_steps * WARP, WARP):
        real = simd.not_equal_mask(col, slot, padding)
        for j in range(block_size):
            stored = real & simd.bit_set(of.present, slot, j) if of.holes else real
            values = simd.load(of.values, slot * block_size + j * WARP, entries, simd.WHOLE)
            zero = simd.zeros(entries, simd.WHOLE)
            terms = simd.multiply_add(zero, values, simd.load(entries, 0, entries, simd.WHOLE))
            if block_size == 1 and stored == ALL:
                simd.scatter_add(terms, y, col, slot, simd.WHOLE)
                continue
            simd.store(simd.clear(terms, ~stored), sums, 0, simd.WHOLE)
            row = 0
            while row < WARP:
                after = min(row + block_size - (of.phase + row) % block_size, WARP)
                here = np.uint32((np.uint64(1) << np.uint64(after)) - (np.uint64(1) << np.uint64(row)))
                if stored & here:
                    total = sums[row]
                    for other in range(row + 1, after):
                        total += sums[other]
                    y[np.int64(col[slot + row]) * block_size + j] += total
                row = after


@inlined
def _scatter_whole_blocks(of, n_steps, col, padding, entries, y):
    """:func:`_scatter_bin` of blocks without holes: a column of a block is one sum, which stays in a register."""
    block_size = of.block_size
    for slot in range(0, n_steps * WARP, WARP):
        values, row = simd.pointer(of.values, slot * block_size), 0
        while row < WARP:
            after = min(row + block_size - (of.phase + row) % block_size, WARP)
            block = col[slot + row]
            if block != padding:
                to = simd.pointer(y, np.int64(block) * block_size)
                for j in range(block_size):
                    total = simd.load_number(values, j * WARP + row, entries) * entries[row]
                    for r in range(row + 1, after):
                        total += simd.load_number(values, j * WARP + r, entries) * entries[r]
                    to[j] += total
            row = after


@kernel
def _add_bins(first, last, part, t, within, x, sums):
    """:func:`_scatter` of blocks without holes with an x of ones: `x` only tells their dtype."""
    block_size = len(within) if len(within) else t.block_size
    for p in range(first, last):
        y = parts.open_part(p, part, sums)
        for i in range(part.tile[p], part.tile[p + 1]):
            at, phase = t.bin_rowptr[i], i * WARP % block_size
            n_steps, values = (t.bin_rowptr[i + 1] - at) // (block_size * WARP), simd.pointer(t.data, at)
            if t.col_base[i] >= 0:
                to, col = simd.pointer(y, t.col_base[i] * block_size), simd.pointer(t.col_narrow, t.col_ptr[i])
                _add_bin(values, block_size, phase, n_steps, col, NARROW_PADDING, x, to)
            else:
                _add_bin(values, block_size, phase, n_steps, simd.pointer(t.col_wide, t.col_ptr[i]), -1, x, y)


@inlined
def _add_bin(values, block_size, phase, n_steps, col, padding, like, y):
    for slot in range(0, n_steps * WARP, WARP):
        if block_size == 1:
            for r in range(slot, slot + WARP):
                if col[r] != padding:
                    y[col[r]] += simd.load_number(values, r, like)
            continue
        row, after = 0, block_size - phase
        while row < WARP:
            block = col[slot + row]
            if block != padding:
                to = simd.pointer(y, np.int64(block) * block_size)
                for j in range(block_size):
                    at = slot * block_size + j * WARP
                    total = simd.load_number(values, at + row, like)
                    for r in range(row + 1, after):
                        total += simd.load_number(values, at + r, like)
                    to[j] += total
            row, after = after, min(after + block_size, WARP)
