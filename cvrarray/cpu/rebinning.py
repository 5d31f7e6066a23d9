"""Rows of BBCSR arrays as an array of their own, from bins to bins: slices, and arrays one below the other.

Rows keep their blocks, so only the lanes that they are in change, and how long the bins around them are. The tables are
those that a conversion of the rows would make.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import NARROW_PADDING, WARP, BBCSRTables, mask_dtype
from cvrarray.cpu import simd
from cvrarray.cpu.bbcsr import BlockRows, _bin_places, empty_bins, with_marks
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel
from cvrarray.cpu.simd import masks

SIXTEEN, EIGHT = tuple(range(16)), tuple(range(8))  #: widths of vectors


class Piece(NamedTuple):
    """Neighbouring rows of an array, and where they go."""

    first: int  # row of the array
    n_rows: int
    at: int  # row of the result
    is_last: bool  # nothing stands below it


def take_rows(parts: list[tuple[BBCSRTables, int, int]], index: np.dtype) -> BBCSRTables | None:
    """The rows [first, last) of each of some tables, one below the other; None where blocks would have to be cut.

    Parameters
    ----------
    parts : (tables, first, last), at least one
        Tables of one dtype, block size and number of columns.
    index : dtype
        That of the result's columns.
    """
    tables = [t for t, _, _ in parts]
    size, holes = tables[0].block_size, tables[0].present is not None
    pieces, n_rows = [], 0
    for k, (t, first, last) in enumerate(parts):
        pieces.append(Piece(first, last - first, n_rows, k == len(parts) - 1))
        n_rows += last - first
        is_cut = last % size and (last < t.shape[0] if holes else False)
        if first % size or is_cut or t.col_wide.dtype != index or (t.present is not None) != holes:
            return None
    if any(piece.at % size for piece in pieces):
        return None
    shape, none = (n_rows, tables[0].shape[1]), np.empty(0, mask_dtype(size))
    sources = [t._replace(data=memory.bits(t.data), present=t.present if holes else none) for t in tables]
    kernels = _kernels(index, sources[0].data.dtype, sources[0].present.dtype)
    n_block_rows = -(-n_rows // size)
    found = BlockRows(*(np.zeros(n_block_rows, index) for _ in range(3)), np.empty(0, np.int64), np.empty(0, index))
    for t, piece in zip(sources, pieces, strict=True):
        work = t.bin_rowptr[piece.first // WARP : -(-(piece.first + piece.n_rows) // WARP) + 1]
        args = size, t.bin_rowptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, piece, found
        threads.run(kernels.measure, work, *args)

    bins, _ = empty_bins(kernels.bin_places, found, shape, size, tables[0].data.dtype)
    bins = with_marks(bins) if holes else bins
    made = bins._replace(data=memory.bits(bins.data))
    for t, piece in zip(sources, pieces, strict=True):
        first_bin, last_bin = piece.at // WARP, -(-(piece.at + piece.n_rows) // WARP)
        threads.run(kernels.take_bins, made.bin_rowptr[first_bin : last_bin + 1], first_bin, t, piece, made)
    if all((first, last) == (0, t.shape[0]) for t, first, last in parts):
        nnz = sum(t.nnz for t in tables)
    else:
        nnz = int(_n_bits(made.present)) if holes else bins.nnz
    return bins._replace(nnz=nnz, present=made.present if nnz < bins.nnz else None)


class Kernels(NamedTuple):
    """The kernels, compiled for the dtypes of a matrix."""

    measure: Callable
    bin_places: Callable
    take_bins: Callable


@cache
def _kernels(index: np.dtype, bits: np.dtype, mask: np.dtype) -> Kernels:
    number, offset, narrow = np.empty(0, index), np.empty(0, np.int64), np.empty(0, np.uint16)
    t = BBCSRTables((0, 0), 0, 0, offset, np.empty(0, bits), number, offset, narrow, number, np.empty(0, mask))
    found, piece = BlockRows(number, number, number, offset, number), Piece(0, 0, 0, True)
    return Kernels(
        measure=compiled(_measure, 0, 0, 0, offset, number, offset, narrow, number, piece, found),
        bin_places=compiled(_bin_places, 0, 0, found, number, offset, number, offset),
        take_bins=compiled(_take_bins, 0, 0, 0, t, piece, t),
    )


@kernel
def _measure(low, high, size, bin_rowptr, col_base, col_ptr, col_narrow, col_wide, piece, found):
    """Blocks of each block row of a piece, and the smallest and the largest block column; of bins, counted from the
    piece's first.
    """
    length = simd.scratch(found.n_blocks, simd.SINGLE)
    for b in range(low, high):
        i = piece.first // WARP + b
        n_steps = (bin_rowptr[i + 1] - bin_rowptr[i]) // (size * WARP)
        if col_base[i] >= 0:
            columns, base = simd.pointer(col_narrow, col_ptr[i]), np.int64(col_base[i])
            _measure_bin(i, size, n_steps, columns, NARROW_PADDING, base, length, piece, found)
        else:
            _measure_bin(i, size, n_steps, simd.pointer(col_wide, col_ptr[i]), -1, np.int64(0), length, piece, found)


@inlined
def _measure_bin(i, size, n_steps, columns, padding, base, length, piece, found):
    for r in range(WARP):
        length[r] = 0
    for step in range(n_steps):
        for r in range(WARP):  # padding follows a row's blocks
            length[r] += columns[step * WARP + r] != padding
    first, last = max(i * WARP, piece.first), min((i + 1) * WARP, piece.first + piece.n_rows)
    first += -first % size
    to = (first - piece.first + piece.at) // size  # one division a bin: one a row took as long as all else
    for row in range(first, last, size):
        r = row - i * WARP
        found.n_blocks[to] = length[r]
        if length[r]:
            found.low[to], found.high[to] = base + columns[r], base + columns[(length[r] - 1) * WARP + r]
        to += 1


@kernel
def _take_bins(low, high, first_bin, t, piece, made):
    """Write the lanes of a piece's rows; of the last bin also what is beyond the rows."""
    size, holes = t.block_size, len(made.present) > 0
    for b in range(first_bin + low, first_bin + high):
        start, n_steps = made.bin_rowptr[b], (made.bin_rowptr[b + 1] - made.bin_rowptr[b]) // (size * WARP)
        row, end = max(b * WARP, piece.at), min((b + 1) * WARP, piece.at + piece.n_rows)
        while row < end:
            i, r, lane = (row - piece.at + piece.first) // WARP, (row - piece.at + piece.first) % WARP, row % WARP
            n_lanes, old_start = min(end - row, WARP - r), t.bin_rowptr[i]
            steps = min(n_steps, (t.bin_rowptr[i + 1] - old_start) // (size * WARP))
            values, to = simd.pointer(t.data, old_start + r), simd.pointer(made.data, start + lane)
            _take_lanes(steps * size, n_steps * size, n_lanes, values, to)
            _take_columns(b, i, r, lane, steps, n_steps, n_lanes, t, made)
            if holes:
                marks, to_marks = (
                    simd.pointer(t.present, old_start // size + r),
                    simd.pointer(made.present, start // size + lane),
                )
                _take_lanes(steps, n_steps, n_lanes, marks, to_marks)
            row += n_lanes
        if piece.is_last and end < (b + 1) * WARP:
            lane = end % WARP
            n_lanes = WARP - lane
            _take_lanes(0, n_steps * size, n_lanes, simd.pointer(t.data, 0), simd.pointer(made.data, start + lane))
            _pad_columns(b, lane, 0, n_steps, n_lanes, made)
            if holes:
                _take_lanes(0, n_steps, n_lanes, simd.pointer(t.present, 0), simd.pointer(made.present, start // size + lane))


@inlined
def _take_lanes(steps, n_steps, n_lanes, values, to):
    """Copy so many steps of neighbouring lanes; the others are 0."""
    for s in range(0, steps * WARP, WARP):
        at = s  # as sums of powers of 2: each is moved at once
        if n_lanes & 32:
            simd.store(simd.load(values, at, values, simd.WHOLE), to, at, simd.WHOLE)
        if n_lanes & 16:
            simd.store(simd.load(values, at, values, SIXTEEN), to, at, SIXTEEN)
            at += 16
        if n_lanes & 8:
            simd.store(simd.load(values, at, values, EIGHT), to, at, EIGHT)
            at += 8
        for lane in range(at, s + n_lanes):
            to[lane] = values[lane]
    for s in range(steps * WARP, n_steps * WARP, WARP):
        for lane in range(s, s + n_lanes):
            to[lane] = 0


@inlined
def _take_columns(b, i, r, lane, steps, n_steps, n_lanes, t, made):
    old, new = np.int64(t.col_base[i]), np.int64(made.col_base[b])
    if old >= 0 and new >= 0:
        columns, to = simd.pointer(t.col_narrow, t.col_ptr[i] + r), simd.pointer(made.col_narrow, made.col_ptr[b] + lane)
        _move_columns(steps, n_lanes, columns, NARROW_PADDING, old - new, to, NARROW_PADDING)
    elif old >= 0:
        columns, to = simd.pointer(t.col_narrow, t.col_ptr[i] + r), simd.pointer(made.col_wide, made.col_ptr[b] + lane)
        _move_columns(steps, n_lanes, columns, NARROW_PADDING, old, to, -1)
    elif new >= 0:
        columns, to = simd.pointer(t.col_wide, t.col_ptr[i] + r), simd.pointer(made.col_narrow, made.col_ptr[b] + lane)
        _move_columns(steps, n_lanes, columns, -1, -new, to, NARROW_PADDING)
    else:
        columns, to = simd.pointer(t.col_wide, t.col_ptr[i] + r), simd.pointer(made.col_wide, made.col_ptr[b] + lane)
        _move_columns(steps, n_lanes, columns, -1, np.int64(0), to, -1)
    _pad_columns(b, lane, steps, n_steps, n_lanes, made)


@inlined
def _move_columns(steps, n_lanes, columns, padding, further, to, to_padding):
    if n_lanes == WARP:  # one long loop
        for k in range(steps * WARP):
            column = np.int64(columns[k])
            to[k] = to_padding if column == padding else column + further
        return
    for s in range(0, steps * WARP, WARP):
        at = s  # as sums of powers of 2, as above
        if n_lanes & 16:
            _move(16, at, columns, padding, further, to, to_padding)
            at += 16
        if n_lanes & 8:
            _move(8, at, columns, padding, further, to, to_padding)
            at += 8
        _move(n_lanes & 7, at, columns, padding, further, to, to_padding)


@inlined
def _move(n, at, columns, padding, further, to, to_padding):
    for lane in range(at, at + n):
        column = np.int64(columns[lane])
        to[lane] = to_padding if column == padding else column + further


@inlined
def _pad_columns(b, lane, steps, n_steps, n_lanes, made):
    for s in range(steps * WARP, n_steps * WARP, WARP):
        for k in range(s, s + n_lanes):
            if made.col_base[b] >= 0:
                made.col_narrow[made.col_ptr[b] + lane + k] = NARROW_PADDING
            else:
                made.col_wide[made.col_ptr[b] + lane + k] = -1


@kernel
def _n_bits(marks):
    total = 0
    for k in range(len(marks)):
        total += masks.count(np.uint32(marks[k]))
    return total
