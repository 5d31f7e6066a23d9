"""Conversion to BBCSR on the CPU: see :mod:`.bbcsr`."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import CSR, NARROW_PADDING, WARP, BBCSRTables, mask_dtype
from cvrarray.cpu import distinct, simd
from cvrarray.cpu.csr import look, offsets
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled_by, helper, inlined, kernel
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
    holes: bool  # some block of the matrix has holes: the tables have `present`
    present: np.ndarray  # pointer to the bits of the first slot


def convert(csr: CSR, block_size: int) -> BBCSRTables:
    """The BBCSR tables of a canonical CSR matrix in NumPy arrays; `block_size` is 1 to 32.

    Values may be :func:`cvrarray.cpu.distinct.nothing`, which are not laid out in blocks.
    """
    source = CSR(offsets(csr.indptr, csr.indices.dtype), csr.indices, NO_VALUES, csr.shape)  # one version for all dtypes
    if block_size == 1:
        found, height = _rows_of_bins(csr), WARP
    else:
        found, height = _block_rows(source, block_size), block_size
    bins, bin_low = _empty_bins(found, csr.shape, block_size, csr.data.dtype, height)
    full = block_size == 1 or bins.nnz == csr.nnz
    n_slots = 0 if full else bins.col_narrow.size + bins.col_wide.size
    tables = bins._replace(nnz=csr.nnz, present=memory.empty(n_slots, mask_dtype(block_size)))
    args = source, found, bin_low, known_size(block_size), tables._replace(data=NO_VALUES)
    lay_out = compiled_by(source.indptr.dtype, csr.indices.dtype, block_size)(_lay_out, 0, 0, *args)
    threads.run(lay_out, tables.bin_rowptr, *args, least=threads.QUICK)
    if not distinct.is_nothing(csr.data):
        fill(tables, source.indptr, csr.data, tables.data)
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


def _block_rows(places: CSR, block_size: int) -> BlockRows:
    """What :func:`_count_blocks` finds."""
    n_block_rows, index = -(-places.shape[0] // block_size), places.indices.dtype
    found = BlockRows(
        n_blocks=np.empty(n_block_rows, index),
        low=np.empty(n_block_rows, index),
        high=np.empty(n_block_rows, index),
        merged_at=np.empty(n_block_rows, np.int64),
        merged=np.empty(3 * places.indices.size + n_block_rows, index),  # most of it is never touched
    )
    args = places, block_size, known_size(block_size), found
    count = compiled_by(places.indptr.dtype, index, block_size)(_count_blocks, 0, 0, *args)
    threads.run_groups(count, places.indptr, block_size, *args)
    return found


def _empty_bins(
    found: BlockRows, shape: tuple[int, int], block_size: int, dtype: np.dtype, height: int
) -> tuple[BBCSRTables, np.ndarray]:
    """Tables for the blocks that `found` counts, and the smallest block column of each bin.

    Values and columns are uninitialised, `present` is empty, and nnz is what whole blocks store. `height`: rows that each
    number of `found` is for.
    """
    n_bins, index = -(-shape[0] // WARP), found.n_blocks.dtype
    bin_low, col_base = np.empty(n_bins, index), np.empty(n_bins, index)
    col_ptr, bin_rowptr = np.empty(n_bins, np.int64), np.empty(n_bins + 1, np.int64)
    args = height, shape[0], found, bin_low, bin_rowptr, col_base, col_ptr
    n_narrow, n_wide, n_entries = compiled_by(index)(_bin_places, *args)(*args)
    bin_rowptr //= height // block_size  # blocks as wide as they are high were counted
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


def fill(tables: BBCSRTables, starts: np.ndarray, data: np.ndarray, values: np.ndarray) -> None:
    """Write the value table `values` of the structure `tables`, whose values `data` are in the order of a canonical
    CSR.

    `starts` (n_rows + 1,): its row offsets, in 32 or 64 bits.
    """
    t = tables
    present = np.empty(0, np.uint8) if t.present is None else t.present
    args = (
        t.bin_rowptr,
        t.block_size,
        starts,
        memory.bits(data),
        present,
        memory.goes_past_caches(values),
        memory.bits(values),
    )
    version = compiled_by(args[3].dtype, starts.dtype, present.dtype)
    threads.run(version(_fill_bins, 0, 0, *args), t.bin_rowptr, *args, least=threads.QUICK)


@cache
def known_size(block_size: int) -> tuple[int, ...]:
    """A tuple of `block_size` integers: kernels know the size when compiled. () for sizes that share a kernel."""
    return tuple(range(block_size)) if block_size in OWN_KERNEL else ()


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
def _count_in_row(block_size, start, end, indices):
    """Blocks that a row's entries, `start` to before `end`, lie in."""
    if start == end:
        return 0
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
        n_rows = _open_rows(row, row_end, indptr, csr.indices, ahead, end, of)
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
    found.low[block_row] = indices[start] // block_size if n_blocks else 0
    found.high[block_row] = indices[end - 1] // block_size if n_blocks else 0


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
def _lay_out(first, last, csr, found, bin_low, within, t):
    """Write the columns of the bins' slots, and which of a block's entries are stored."""
    block_size = len(within) if len(within) else t.block_size
    for i in range(first, last):
        at, n_values = t.bin_rowptr[i], t.bin_rowptr[i + 1] - t.bin_rowptr[i]
        n_slots, holes, present = n_values // block_size, len(t.present) > 0, simd.pointer(t.present, at // block_size)
        row_end = min((i + 1) * WARP, len(csr.indptr) - 1)
        to = Bin(i, row_end, block_size, n_slots, csr.indptr[row_end] - csr.indptr[i * WARP] < n_values, holes, present)
        if holes:
            _fill(present, n_slots, 0)
        if t.col_base[i] >= 0:
            _lay_out_columns(to, csr, found, simd.pointer(t.col_narrow, t.col_ptr[i]), bin_low[i], NARROW_PADDING)
        else:
            _lay_out_columns(to, csr, found, simd.pointer(t.col_wide, t.col_ptr[i]), 0, -1)


@kernel
def _fill_bins(first, last, bin_rowptr, block_size, indptr, values, present, past, data):
    """Write every slot's value, past the caches where `past`: `indptr` and `present` tell which entry it is.

    32 slots at a time; the values of the next bin are prefetched meanwhile.
    """
    source, length = simd.scratch(indptr, simd.SINGLE), simd.scratch(indptr, simd.SINGLE)
    for i in range(first, last):
        at, n_steps = bin_rowptr[i], (bin_rowptr[i + 1] - bin_rowptr[i]) // WARP
        ahead = _open_bin(i, indptr, source, length)
        to, marks, real = simd.pointer(data, at), simd.pointer(present, at // block_size), ALL
        for block in range(n_steps // block_size):
            for j in range(block_size):
                step = block * block_size + j
                simd.prefetch(values, ahead + step * WARP, simd.INTO_L1)
                if len(present):
                    real = simd.bit_set(marks, block * WARP, j)
                else:
                    real &= simd.not_equal_mask(length, 0, step)
                simd.stream(simd.gather(values, 0, source, 0, real), to, step * WARP, past)
                simd.advance(source, real)


@inlined
def _lay_out_columns(to, csr, found, col, base, padding):
    """Write the columns of a bin, relative to `base`, and which entries are stored."""
    block_size, indptr, n_rows = to.block_size, csr.indptr, len(csr.indptr) - 1
    if block_size == 1:
        _column_steps(to.number, indptr, csr.indices, to.n_slots // WARP, base + padding, base, col)
        return
    if to.is_padded:
        _fill(col, to.n_slots, padding)
    for block_row in range(to.number * WARP // block_size, (to.row_end - 1) // block_size + 1):
        row = block_row * block_size
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
def _column_steps(i, indptr, indices, n_steps, padding, base, col):
    """Write the columns of a bin of blocks of size 1, relative to `base`, as :func:`_fill_bins` does the values."""
    source, length = simd.scratch(indptr, simd.SINGLE), simd.scratch(indptr, simd.SINGLE)
    ahead = _open_bin(i, indptr, source, length)
    real = ALL
    for step in range(n_steps):
        simd.prefetch(indices, ahead + step * WARP, simd.INTO_L1)
        real &= simd.not_equal_mask(length, 0, step)
        simd.gather_store(simd.pointer(indices, step), source, real, padding, base, col, step * WARP)


@helper
def _fill(to, n, value):
    for k in range(n):
        to[k] = value


@inlined
def _copy_columns(n_blocks, block_size, indices, base, n_rows, to):
    """Write the blocks of `n_rows` rows that are alike, from the columns of one of them."""
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
