"""What :meth:`cvrarray.BBCSRArray.check` asks of every bin: its block columns, what is stored of them, and the zeros between.

Columns are compared without their signs: so padding, -1 or NARROW_PADDING, is the largest number there is.
"""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import NARROW_PADDING, WARP, BBCSRTables
from cvrarray.cpu import simd
from cvrarray.cpu.check_cvr import bits, is_zero, value_bytes
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import kernel

#: Faults of a bin; of several the lowest counts.
(RANGE, BASE, ORDER, LENGTH, BEYOND, ROWS, PRESENT, VALUE) = range(1, 9)
ALL = np.uint32(0xFFFFFFFF)  #: mask of all lanes
ONE = np.uint32(1)


def layout(t: BBCSRTables) -> tuple[np.ndarray, np.ndarray]:
    """Look at all slots of bins, whose offsets must be right: bin_rowptr by multiples of a step, col_ptr, the size of present.

    Returns
    -------
    fault : (n_bins,) uint8
        0, or the bin's first.
    entries : (n_bins,) int64
        Stored entries.
    """
    n_bins = len(t.col_base)
    fault, entries = np.zeros(n_bins, np.uint8), np.zeros(n_bins, np.int64)
    present = np.empty(0, np.uint8) if t.present is None else t.present
    wide = memory.bits(t.col_wide)
    padding = np.full(1, NARROW_PADDING, np.uint16), np.full(1, np.iinfo(wide.dtype).max, wide.dtype)
    columns = (t.col_base, t.col_ptr, t.col_narrow, wide, *padding, present, t.present is not None)
    threads.run(_columns, t.bin_rowptr, t.block_size, *t.shape, t.bin_rowptr, *columns, fault, entries)
    threads.run(_zeros, t.bin_rowptr, t.block_size, t.bin_rowptr, *columns, *value_bytes(t.data), fault)
    return fault, entries


@kernel
def _columns(
    first, last, block_size, n_rows, n_cols, bin_rowptr, col_base, col_ptr, col_narrow, col_wide, narrow_padding,
    wide_padding, present, has_present, fault, entries
):  # fmt: skip
    n_block_cols = (n_cols - 1) // block_size + 1 if n_cols else 0
    for i in range(first, last):
        n_steps = (bin_rowptr[i + 1] - bin_rowptr[i]) // (WARP * block_size)
        row, base, n_entries = i * WARP, np.int64(col_base[i]), 0
        together = np.uint32(0)  # lanes in the block row of the lane before
        for lane in range(1, min(WARP, n_rows - row)):
            if (row + lane) % block_size:
                together |= ONE << np.uint32(lane)
        beyond = ALL << np.uint32(n_rows - row) if n_rows - row < WARP else np.uint32(0)
        marks = simd.pointer(present, bin_rowptr[i] // block_size)
        if base >= 0:
            narrow, padding = simd.pointer(col_narrow, col_ptr[i]), narrow_padding[0]
            fault[i] = _bin(n_steps, narrow, padding, n_block_cols - base, True, together, beyond)
            if fault[i] == 0:
                n_entries = _stored(n_steps, block_size, narrow, padding, base, n_cols, marks, has_present)
        else:
            wide, no_block = simd.pointer(col_wide, col_ptr[i]), wide_padding[0]
            fault[i] = _bin(n_steps, wide, no_block, n_block_cols, False, together, beyond)
            if fault[i] == 0:
                n_entries = _stored(n_steps, block_size, wide, no_block, 0, n_cols, marks, has_present)
        if n_entries < 0:
            fault[i] = PRESENT
        entries[i] = n_entries


@kernel
def _bin(n_steps, columns, padding, limit, is_narrow, together, beyond):
    """The first fault of a bin's block columns, which must lie in [0, limit), or be padding; else 0."""
    least, limit = padding, np.uint64(limit)
    falls = outside = 0
    for slot in range(n_steps * WARP):  # without a way out: so it compiles to vector instructions
        least = min(least, columns[slot])
        outside += (columns[slot] >= limit) & (columns[slot] != padding)
    if outside:
        return RANGE
    if is_narrow and n_steps and least:
        return BASE
    for slot in range(WARP, n_steps * WARP):
        falls += (columns[slot - WARP] >= columns[slot]) & (columns[slot] != padding)
    if falls:
        return ORDER
    for step in range(n_steps):
        here = simd.pointer(columns, step * WARP)
        real = simd.not_equal_mask(here, 0, padding)
        if real == 0:
            return LENGTH
        if real & beyond:
            return BEYOND
        if together:
            differs = np.uint32(0)
            for lane in range(1, WARP):
                differs |= np.uint32(here[lane] != here[lane - 1]) << np.uint32(lane)
            if differs & together:
                return ROWS
    return 0


@kernel
def _stored(n_steps, block_size, columns, padding, base, n_cols, marks, has_present):
    """How many entries a bin stores; -1 where one of them would be padding, or beyond the last column."""
    cut_block, whole, part = n_cols // block_size - base, (1 << block_size) - 1, (1 << n_cols % block_size) - 1
    total = 0
    for slot in range(n_steps * WARP):
        allowed = 0 if columns[slot] == padding else part if columns[slot] == cut_block else whole
        mark = np.int64(marks[slot]) if has_present else whole if allowed else 0
        if mark & ~allowed:
            return -1
        total += bits(np.uint32(mark))
    return total


@kernel
def _zeros(
    first, last, block_size, bin_rowptr, col_base, col_ptr, col_narrow, col_wide, narrow_padding, wide_padding, present,
    has_present, values, counted, fault
):  # fmt: skip
    """VALUE where a slot that stores no entry holds anything but 0; `values` are bytes."""
    for i in range(first, last):
        for slot in range(bin_rowptr[i], bin_rowptr[i + 1], WARP * block_size):
            at = col_ptr[i] + (slot - bin_rowptr[i]) // block_size
            if col_base[i] >= 0:
                real = simd.not_equal_mask(col_narrow, at, narrow_padding[0])
            else:
                real = simd.not_equal_mask(col_wide, at, wide_padding[0])
            for j in range(block_size):
                stored = real & simd.bit_set(present, slot // block_size, j) if has_present else real
                empty = stored ^ ALL
                while empty:
                    lane = simd.lowest(empty)
                    empty &= empty - ONE
                    if not is_zero(values, (slot + j * WARP + lane) * len(counted), counted):
                        fault[i] = fault[i] or VALUE
