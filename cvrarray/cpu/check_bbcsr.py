"""What :meth:`cvrarray.BBCSRArray.check` asks of every bin: its block columns, what they store, the zeros between.

One pass over a bin, 32 block columns a step. Values are read only where some lane stores none. Columns are compared
without their signs: so padding, -1 or NARROW_PADDING, is the largest number there is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import NARROW_PADDING, WARP, BBCSRTables
from cvrarray.cpu import simd
from cvrarray.cpu.check_cvr import value_words
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import compiled, helper, kernel
from cvrarray.cpu.simd import masks

#: Faults of a bin; of several the lowest counts.
(RANGE, BASE, ORDER, LENGTH, BEYOND, ROWS, PRESENT, VALUE) = range(1, 9)
ALL, NONE, ONE = np.uint32(0xFFFFFFFF), np.uint32(0), np.uint32(1)  #: masks of all lanes, of none, and of the first
NO_BLOCK = -1  #: padding of a wide bin
AHEAD = 1024  #: slots from the one that is looked at to the one that is prefetched


class Bins(NamedTuple):
    """The tables, as the kernel takes them."""

    shape: tuple[int, int]
    block_size: int
    bin_rowptr: np.ndarray
    col_base: np.ndarray
    col_ptr: np.ndarray
    col_narrow: np.ndarray
    col_wide: np.ndarray
    present: np.ndarray  # empty where every block is whole
    words: np.ndarray  # of the values, and their
    sized: tuple[int, ...]  # size and
    counted: int  # bits: see value_words


class Kind(NamedTuple):
    """Of the columns of one bin."""

    padding: int
    limit: int  # columns from this one on are padding, or too large
    cut: int  # the column of the block that the right edge cuts; `padding` where there is none


def layout(t: BBCSRTables) -> tuple[np.ndarray, np.ndarray]:
    """Look at all slots of bins, whose offsets must be right: bin_rowptr by multiples of a step, col_ptr, the size of
    present.

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
    columns = (t.col_base, t.col_ptr, t.col_narrow, t.col_wide, present)
    shape = int(t.shape[0]), int(t.shape[1])
    bins = Bins(shape, int(t.block_size), t.bin_rowptr, *columns, *value_words(t.data))
    args = bins, t.present is not None, fault, entries
    threads.run(compiled(_bins, 0, 0, *args), t.bin_rowptr, *args)  # one version for tables that may be written and others
    return fault, entries


def blocks_agree(t: BBCSRTables) -> bool:
    """Whether block rows that lie in two bins have the same blocks in both, in tables whose bins have no fault."""
    bins = np.arange(1, len(t.col_base))
    bins = bins[bins * WARP % int(t.block_size) > 0]
    before, after = _blocks_of_lane(t, bins - 1, WARP - 1), _blocks_of_lane(t, bins, 0)
    return all(np.array_equal(of_one, of_other) for of_one, of_other in zip(before, after, strict=True))


def _blocks_of_lane(t: BBCSRTables, bins: np.ndarray, lane: int) -> tuple[np.ndarray, np.ndarray]:
    """How many blocks a lane of each of some bins has, and their columns, one bin after the other."""
    n_steps = (t.bin_rowptr[bins + 1] - t.bin_rowptr[bins]) // (WARP * int(t.block_size))
    of = np.repeat(np.arange(bins.size), n_steps)
    at = t.col_ptr[bins][of] + (np.arange(of.size) - (np.cumsum(n_steps) - n_steps)[of]) * WARP + lane
    base, columns = t.col_base[bins][of].astype(np.int64), np.full(of.size, NO_BLOCK, np.int64)
    columns[base < 0] = t.col_wide[at[base < 0]]
    narrow = t.col_narrow[at[base >= 0]]
    columns[base >= 0] = np.where(narrow == NARROW_PADDING, NO_BLOCK, base[base >= 0] + narrow)
    return np.bincount(of[columns >= 0], minlength=bins.size), columns[columns >= 0]


@kernel
def _bins(first, last, t, has_present, fault, entries):
    size, n_cols = t.block_size, t.shape[1]
    n_blocks = (n_cols - 1) // size + 1 if n_cols else 0
    for i in range(first, last):
        base = np.int64(t.col_base[i])
        if base >= 0:
            narrow = simd.pointer(t.col_narrow, t.col_ptr[i])
            cut = n_blocks - 1 - base if n_cols % size else NARROW_PADDING
            kind = Kind(NARROW_PADDING, min(n_blocks - base, NARROW_PADDING), min(cut, NARROW_PADDING))
            fault[i], smallest = _columns(t, i, narrow, kind)
            if (fault[i] == 0 or fault[i] > BASE) and not smallest:
                fault[i] = BASE
            wrong, held, entries[i] = _entries(t, i, narrow, kind, has_present)
        else:
            wide = simd.pointer(t.col_wide, t.col_ptr[i])
            kind = Kind(NO_BLOCK, n_blocks, n_blocks - 1 if n_cols % size else NO_BLOCK)
            fault[i], smallest = _columns(t, i, wide, kind)
            wrong, held, entries[i] = _entries(t, i, wide, kind, has_present)
        if fault[i] == 0:
            fault[i] = PRESENT if wrong else VALUE if held else 0


@helper
def _columns(t, i, columns, kind):
    """The first fault of a bin's block columns but BASE, else 0; and whether one of them is 0, or there are none."""
    together, inside = _lanes(t, i)
    n_steps = (t.bin_rowptr[i + 1] - t.bin_rowptr[i]) // (WARP * t.block_size)
    outside, falls, differs, used, zeros = NONE, NONE, NONE, NONE, NONE
    is_empty = False
    for at in range(0, n_steps * WARP, WARP):
        simd.prefetch(columns, at + AHEAD, simd.INTO_L1)
        real = simd.not_equal_mask(columns, at, kind.padding)
        outside |= masks.at_least(columns, at, kind.limit) & real
        zeros |= ALL ^ simd.not_equal_mask(columns, at, 0)
        if at:
            falls |= masks.not_below(columns, at - WARP, at) & real
        if together:
            differs |= masks.unlike_before(columns, at)
        used |= real
        is_empty |= real == NONE
    fault = 0
    if outside:
        fault = RANGE
    elif falls:
        fault = ORDER
    elif is_empty:
        fault = LENGTH
    elif used & ~inside:
        fault = BEYOND
    elif differs & together:
        fault = ROWS
    return fault, zeros != NONE or n_steps == 0


@helper
def _lanes(t, i):
    """Masks of a bin's lanes: those in the block row of the lane before, and those that are rows."""
    row = i * WARP
    inside = ALL if t.shape[0] - row >= WARP else (ONE << np.uint32(t.shape[0] - row)) - ONE
    first = ONE  # lanes that begin a block row, or the bin
    for lane in range(-row % t.block_size, WARP, t.block_size):
        first |= ONE << np.uint32(lane)
    return inside & ~first, inside


@helper
def _entries(t, i, columns, kind, has_present):
    """Lanes that store padding or columns beyond the last, lanes that hold what they don't store, and how much is
    stored.
    """
    size, slot = t.block_size, t.bin_rowptr[i]
    whole, part = (1 << size) - 1, (1 << t.shape[1] % size) - 1
    wrong, held, n_entries, n = NONE, NONE, 0, len(t.sized)
    for at in range(0, (t.bin_rowptr[i + 1] - slot) // size, WARP):
        real = simd.not_equal_mask(columns, at, kind.padding)
        simd.prefetch(t.words, (slot + at * size + AHEAD) * n, simd.INTO_L1)
        cut = real & ~simd.not_equal_mask(columns, at, kind.cut)
        values = slot + at * size
        if has_present:
            marks = slot // size + at
            wrong |= masks.any_bit(t.present, marks, ~whole, (0,)) | masks.any_bit(t.present, marks, whole, (0,)) & ~real
            if cut:
                wrong |= masks.any_bit(t.present, marks, ~part, (0,)) & cut
            for j in range(size):
                stored = simd.bit_set(t.present, marks, j)
                n_entries += masks.count(stored)
                if stored != ALL:
                    held |= masks.any_bit(t.words, (values + j * WARP) * n, t.counted, t.sized) & ~stored
        else:
            wrong |= cut
            n_entries += masks.count(real) * size
            if real != ALL:
                for j in range(size):
                    held |= masks.any_bit(t.words, (values + j * WARP) * n, t.counted, t.sized) & ~real
    return wrong, held, n_entries
