"""``A.T @ x`` by several threads: it scatters, so the matrix is cut into parts, each with a vector of its own.

The parts follow from the matrix alone, and their vectors are added up in order, so the bits never depend on the
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import BBCSRTables, CVRTables
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel

LEAST_SLOTS = 1 << 16  #: of a part
MOST_PARTS = 32
MOST_VECTORS = 8  #: times n_cols: the most numbers that all parts' vectors may hold together
SLOTS_A_NUMBER = 8  #: at least, for every number beyond n_cols in those vectors: each is zeroed and added once more
COLUMNS_A_TILE = 2048  #: columns that are added up together


class Columns(NamedTuple):
    """The columns of the tables of either format."""

    base: np.ndarray  # (n_tiles,)
    ptr: np.ndarray  # (n_tiles,)
    narrow: np.ndarray
    wide: np.ndarray
    narrow_padding: int  # what is no column in `narrow`; -1 in `wide`


class Parts(NamedTuple):
    """Ranges of tiles (chunks, bins), and the columns that each adds into."""

    tile: np.ndarray  # (n_parts + 1,) int64: part p has the tiles tile[p] .. tile[p + 1]
    low: np.ndarray  # (n_parts,) int64: its first column
    at: np.ndarray  # (n_parts + 1,) int64: where that column stands in the parts' vectors, one after the other


def divide(work: np.ndarray, unit: int, low: np.ndarray, high: np.ndarray, n_cols: int) -> Parts:
    """As many parts, a power of two, as are worth the memory that they take.

    Parameters
    ----------
    work : (n_tiles + 1,) integers, not decreasing
        Work before each tile, each of `unit` slots.
    low, high : (n_tiles,) int64
        A tile's columns lie in [low, high), which is [n_cols, 0) where there are none.
    n_cols
        Length of the product.
    """
    slots = int(work[-1] - work[0]) * unit
    most_numbers = min(MOST_VECTORS * n_cols, n_cols + slots // SLOTS_A_NUMBER)
    n_parts = MOST_PARTS
    while n_parts > 1:
        tile = np.unique(threads.split(work, n_parts)) if n_parts * LEAST_SLOTS <= slots else ()
        if len(tile) > 2:
            begin, end = np.minimum.reduceat(low, tile[:-1]), np.maximum.reduceat(high, tile[:-1])
            at = memory.offsets(np.maximum(end - begin, 0))
            if at[-1] <= most_numbers:
                return Parts(tile, begin, at)
        n_parts //= 2
    return Parts(np.array([0, len(work) - 1]), np.zeros(1, np.int64), np.array([0, n_cols]))


def column_ranges(
    tile_ptr: np.ndarray, unit: tuple[int, int], tables: CVRTables | BBCSRTables, narrow_padding: int, n_columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """`low` and `high` for :func:`divide`, in units of a column or a block's width, of which there are `n_columns`.

    Tile i has ``(tile_ptr[i + 1] - tile_ptr[i]) * unit[0] // unit[1]`` columns; `narrow_padding` and -1 are none.
    """
    t = tables
    low, high = np.full(len(t.col_base), n_columns), np.zeros(len(t.col_base), np.int64)
    columns = Columns(t.col_base, t.col_ptr, t.col_narrow, t.col_wide, narrow_padding)
    threads.run(_column_ranges, tile_ptr, tile_ptr, unit, columns, low, high, unit=unit[0])
    return low, high


def transposed(
    scatter: Callable, parts: Parts, work: np.ndarray, unit: int, args: tuple, n_cols: int, dtype: np.dtype
) -> Callable[[np.ndarray, np.ndarray], None]:
    """``multiply(x, y)``, which does ``y = A.T @ x``, both of `dtype`.

    Parameters
    ----------
    scatter
        ``scatter(first, last, parts, *args, x, sums)``, which sets the vectors of the parts from `first` to before
        `last` in `sums`, the vectors of all parts one after the other.
    parts, work, unit, n_cols
        From, and as for, :func:`divide`.
    """
    n_parts = len(parts.tile) - 1
    like = np.empty(0, dtype)
    scatter = threads.prepare(compiled(scatter, 0, 0, parts, *args, like, like), work[parts.tile], unit)
    if n_parts == 1:
        return partial(scatter, parts, *args)
    n_tiles = -(-n_cols // COLUMNS_A_TILE)
    add_up = threads.prepare(compiled(_add_up, 0, 0, parts, like, like), np.arange(n_tiles + 1), COLUMNS_A_TILE * n_parts)
    # The vectors of one call are kept for the next: fresh memory costs more than all else. Concurrent calls have
    # their own.
    spare = []

    def multiply(x: np.ndarray, y: np.ndarray) -> None:
        sums = spare.pop() if spare else np.empty(parts.at[-1], dtype)
        scatter(parts, *args, x, sums)
        add_up(parts, sums, y)
        if not spare:
            spare.append(sums)

    return multiply


@kernel
def _column_ranges(first, last, tile_ptr, unit, columns, low, high):
    for i in range(first, last):
        n = (tile_ptr[i + 1] - tile_ptr[i]) * unit[0] // unit[1]
        base = columns.base[i]
        if base >= 0:
            least, most = _extremes(simd.pointer(columns.narrow, columns.ptr[i]), n, columns.narrow_padding, 1 << 16)
            least, most = least + base, most + base
        else:
            least, most = _extremes(simd.pointer(columns.wide, columns.ptr[i]), n, -1, 1 << 62)
        if least <= most:
            low[i], high[i] = least, most + 1


@inlined
def _extremes(columns, n, padding, largest):
    """The smallest and the largest of n columns; `largest` and -1 where all are padding."""
    least, most = largest, -1
    for j in range(n):
        column = np.int64(columns[j])
        if column != padding:
            least, most = min(least, column), max(most, column)
    return least, most


@inlined
def open_part(p, parts, sums):
    """Set the vector of part p to 0; a pointer to where its column 0 would stand."""
    vector = simd.pointer(sums, parts.at[p])
    for j in range(parts.at[p + 1] - parts.at[p]):
        vector[j] = 0
    return simd.pointer(sums, parts.at[p] - parts.low[p])


@kernel
def _add_up(first, last, parts, sums, y):
    """Add the parts' vectors in their order, from column COLUMNS_A_TILE * first to before COLUMNS_A_TILE * last."""
    for tile in range(first, last):
        begin, end = tile * COLUMNS_A_TILE, min((tile + 1) * COLUMNS_A_TILE, len(y))
        for column in range(begin, end):
            y[column] = 0
        for p in range(len(parts.low)):
            start, length = parts.low[p], parts.at[p + 1] - parts.at[p]
            low, high = max(start, begin), min(start + length, end)
            to, terms = simd.pointer(y, low), simd.pointer(sums, parts.at[p] + low - start)
            for j in range(high - low):
                to[j] += terms[j]
