"""The sum of two BBCSR arrays of two structures, from bins to bins.

The 32 rows of a bin go in step: each merges its blocks of both arrays, which ascend, and takes the lesser one, or both
where they are equal. The first pass counts blocks, the second one writes them. The tables are those that a conversion
of the sum would make.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import NARROW_PADDING, WARP, BBCSRTables, mask_dtype
from cvrarray.cpu import simd
from cvrarray.cpu.bbcsr import ALL, BlockRows, _bin_places, empty_bins, with_marks
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel
from cvrarray.cpu.simd import masks

MOST_SLOTS = 1 << 31  #: of a bin: offsets in it are 32-bit integers


class Space(NamedTuple):
    """Space for the block columns of a bin of either array."""

    a: np.ndarray
    b: np.ndarray
    end: int  # the largest integer of their dtype: what stands in padding, and behind them


def add(a: BBCSRTables, b: BBCSRTables, sign: int) -> BBCSRTables | None:
    """``a + sign * b`` of tables of one shape, block size and floating-point dtype, values stored as they are.

    None where an entry of the sum is 0, which is not to be stored, or a bin is too long.
    """
    size, index, dtype = a.block_size, a.col_wide.dtype, a.data.dtype
    longest = [int(np.diff(t.bin_rowptr).max(initial=0)) for t in (a, b)]
    if max(longest) + WARP * size >= MOST_SLOTS:
        return None
    has_holes, none = a.present is not None or b.present is not None, np.empty(0, mask_dtype(size))
    a, b = (t._replace(present=none if t.present is None else t.present, distinct=None) for t in (a, b))
    kernels, end = _kernels(index, dtype, none.dtype), np.iinfo(index).max
    n_block_rows, work = -(-a.shape[0] // size), a.bin_rowptr + b.bin_rowptr
    found = BlockRows(*(np.zeros(n_block_rows, index) for _ in range(3)), np.empty(0, np.int64), np.empty(0, index))

    def with_space(kernel: Callable) -> Callable:
        """`kernel` without its third argument."""
        return lambda low, high, *args: kernel(
            low, high, Space(*(np.empty(n // size + WARP, index) for n in longest), end), *args
        )

    threads.run(with_space(kernels.count), work, _without_values(a), _without_values(b), found)
    bins, _ = empty_bins(kernels.bin_places, found, a.shape, size, dtype)
    made = with_marks(bins) if has_holes else bins
    entries = np.zeros((len(work) - 1, 2), np.int64)  # of each bin; and those that are not 0
    signs = np.full(WARP, sign, np.empty(0, dtype).real.dtype)
    threads.run(with_space(kernels.fill), work, a, b, signs, memory.goes_past_caches(made.data), made, entries)
    nnz, n_nonzero = entries.sum(axis=0).tolist()
    return made._replace(nnz=nnz, present=made.present if nnz < bins.nnz else None) if n_nonzero == nnz else None


def _without_values(t: BBCSRTables) -> BBCSRTables:
    """The block columns alone: one compiled version for all dtypes."""
    return t._replace(data=np.empty(0, np.uint8), present=np.empty(0, np.uint8))


class Kernels(NamedTuple):
    """The kernels, compiled for the dtypes of a matrix."""

    count: Callable
    bin_places: Callable
    fill: Callable


@cache
def _kernels(index: np.dtype, dtype: np.dtype, mask: np.dtype) -> Kernels:
    number, offset, narrow, values = np.empty(0, index), np.empty(0, np.int64), np.empty(0, np.uint16), np.empty(0, dtype)
    found, space = BlockRows(number, number, number, offset, number), Space(number, number, 0)
    t = BBCSRTables((0, 0), 0, 0, offset, values, number, offset, narrow, number, np.empty(0, mask))
    return Kernels(
        count=compiled(_count, 0, 0, space, _without_values(t), _without_values(t), found),
        bin_places=compiled(_bin_places, 0, 0, found, number, offset, number, offset),
        fill=compiled(_fill, 0, 0, space, t, t, values.real, True, t, np.empty((0, 0), np.int64)),
    )


@kernel
def _count(low, high, space, a, b, found):
    """Blocks of each block row of the sum, and the smallest and the largest block column."""
    columns_a, at_a, takes_a = simd.pointer(space.a, 0), simd.scratch(space.a, simd.SINGLE), simd.scratch(space.a, simd.SINGLE)
    columns_b, at_b, takes_b = simd.pointer(space.b, 0), simd.scratch(space.b, simd.SINGLE), simd.scratch(space.b, simd.SINGLE)
    least, length = simd.scratch(space.a, simd.SINGLE), simd.scratch(space.a, simd.SINGLE)
    smallest, largest = simd.scratch(space.a, simd.SINGLE), simd.scratch(space.a, simd.SINGLE)
    size, end = a.block_size, space.end
    for i in range(low, high):
        n_steps = _open(i, a, columns_a, end, at_a) + _open(i, b, columns_b, end, at_b)
        for r in range(WARP):
            length[r], smallest[r], largest[r] = 0, min(columns_a[r], columns_b[r]), 0
        for _ in range(n_steps):
            _choose(columns_a, at_a, columns_b, at_b, end, least, takes_a, takes_b)
            for r in range(WARP):
                length[r] += least[r] != end
                largest[r] = max(largest[r], least[r] if least[r] != end else 0)
                at_a[r] += takes_a[r] * WARP
                at_b[r] += takes_b[r] * WARP
            if simd.not_equal_mask(least, 0, end) == 0:
                break
        # of a block row that two bins share the bin with its first row tells
        block_row = -(-(i * WARP) // size)
        for r in range(block_row * size - i * WARP, min(WARP, a.shape[0] - i * WARP), size):
            found.n_blocks[block_row] = length[r]
            if length[r]:
                found.low[block_row], found.high[block_row] = smallest[r], largest[r]
            block_row += 1


@kernel
def _fill(low, high, space, a, b, signs, past, made, entries):
    """Write every slot of the bins, `past` the caches or not."""
    columns_a, at_a, takes_a = simd.pointer(space.a, 0), simd.scratch(space.a, simd.SINGLE), simd.scratch(space.a, simd.SINGLE)
    columns_b, at_b, takes_b = simd.pointer(space.b, 0), simd.scratch(space.b, simd.SINGLE), simd.scratch(space.b, simd.SINGLE)
    from_a, from_b = simd.scratch(space.a, simd.SINGLE), simd.scratch(space.a, simd.SINGLE)
    least, size, end, holes = simd.scratch(space.a, simd.SINGLE), made.block_size, space.end, len(made.present) > 0
    for i in range(low, high):
        _open(i, a, columns_a, end, at_a)
        _open(i, b, columns_b, end, at_b)
        values_a, values_b = simd.pointer(a.data, a.bin_rowptr[i]), simd.pointer(b.data, b.bin_rowptr[i])
        start, n_entries, n_nonzero = made.bin_rowptr[i], 0, 0
        for step in range((made.bin_rowptr[i + 1] - start) // (size * WARP)):
            slot = start // size + step * WARP
            _choose(columns_a, at_a, columns_b, at_b, end, least, takes_a, takes_b)
            if made.col_base[i] >= 0:
                _put(least, end, made.col_base[i], simd.pointer(made.col_narrow, made.col_ptr[i] + step * WARP), NARROW_PADDING)
            else:
                _put(least, end, 0, simd.pointer(made.col_wide, made.col_ptr[i] + step * WARP), -1)
            if holes:
                n_entries += _mark(i, a, takes_a, at_a, b, takes_b, at_b, simd.pointer(made.present, slot))
            else:
                n_entries += size * masks.count(simd.not_equal_mask(least, 0, end))
            real_a, real_b = simd.not_equal_mask(takes_a, 0, 0), simd.not_equal_mask(takes_b, 0, 0)
            for r in range(WARP):
                from_a[r], from_b[r] = at_a[r] * size - r * (size - 1), at_b[r] * size - r * (size - 1)
                at_a[r] += takes_a[r] * WARP
                at_b[r] += takes_b[r] * WARP
            for j in range(0, size * WARP, WARP):
                left, right = simd.gather(values_a, j, from_a, 0, real_a), simd.gather(values_b, j, from_b, 0, real_b)
                total = simd.multiply_add(left, simd.load(signs, 0, signs, simd.WHOLE), right)
                if past:
                    simd.stream(total, made.data, slot * size + j, simd.WHOLE)
                else:
                    simd.store(total, made.data, slot * size + j, simd.WHOLE)
                n_nonzero += masks.count(simd.nonzero_mask(total))
        entries[i, 0], entries[i, 1] = n_entries, n_nonzero


@inlined
def _open(i, of, columns, end, at):
    """Set `columns` to the block columns of bin i, `end` for padding and behind them, and `at` to the first of each row.

    Returns how many steps there are.
    """
    n_slots = (of.bin_rowptr[i + 1] - of.bin_rowptr[i]) // of.block_size
    if of.col_base[i] >= 0:
        base, narrow = of.col_base[i], simd.pointer(of.col_narrow, of.col_ptr[i])
        for k in range(n_slots):
            columns[k] = end if narrow[k] == NARROW_PADDING else base + narrow[k]
    else:
        wide = simd.pointer(of.col_wide, of.col_ptr[i])
        for k in range(n_slots):
            columns[k] = end if wide[k] < 0 else wide[k]
    for r in range(WARP):
        columns[n_slots + r], at[r] = end, r
    return n_slots // WARP


@inlined
def _choose(columns_a, at_a, columns_b, at_b, end, least, takes_a, takes_b):
    """Set `least` to the next block column of each row, `end` where there is none, and the others to who has it."""
    simd.store(simd.gather(columns_a, 0, at_a, 0, ALL), takes_a, 0, simd.WHOLE)
    simd.store(simd.gather(columns_b, 0, at_b, 0, ALL), takes_b, 0, simd.WHOLE)
    for r in range(WARP):
        left, right = takes_a[r], takes_b[r]
        least[r] = min(left, right)
        takes_a[r] = (left <= right) & (left != end)
        takes_b[r] = (right <= left) & (right != end)


@inlined
def _put(least, end, base, to, padding):
    for r in range(WARP):
        to[r] = padding if least[r] == end else least[r] - base


@inlined
def _mark(i, a, takes_a, at_a, b, takes_b, at_b, to):
    """Write which entries the blocks of a step have; how many these are."""
    size, n_entries = a.block_size, 0
    marks_a, marks_b = simd.pointer(a.present, a.bin_rowptr[i] // size), simd.pointer(b.present, b.bin_rowptr[i] // size)
    for r in range(WARP):
        mark = np.int64(0)
        if takes_a[r]:
            mark |= marks_a[at_a[r]] if len(a.present) else (1 << size) - 1
        if takes_b[r]:
            mark |= marks_b[at_b[r]] if len(b.present) else (1 << size) - 1
        to[r] = mark
        n_entries += masks.count(np.uint32(mark))
    return n_entries
