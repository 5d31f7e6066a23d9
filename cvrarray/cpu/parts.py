"""A matrix in parts for transposed products, which scatter: each part adds into a vector of its own.

The parts follow from the matrix alone, and their vectors are added up in order, so the bits never depend on the threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from cvrarray.cpu import lanes, memory, threads
from cvrarray.cpu.caching import njit

LEAST = 1 << 16  #: slots of a part
MOST = 32  #: parts
MOST_VECTORS = 8  #: times n_cols: the numbers that all parts' vectors may hold together
NONZEROS_A_NUMBER = 8  #: at least, for every number by which those vectors exceed one: each is zeroed and added once more
BLOCK = 2048  #: columns that are added up together


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
    most_numbers = min(MOST_VECTORS * n_cols, n_cols + slots // NONZEROS_A_NUMBER)
    n_parts = MOST
    while n_parts > 1:
        tile = np.unique(threads.split(work, n_parts)) if n_parts * LEAST <= slots else ()
        if len(tile) > 2:
            begin, end = np.minimum.reduceat(low, tile[:-1]), np.maximum.reduceat(high, tile[:-1])
            at = memory.offsets(np.maximum(end - begin, 0))
            if at[-1] <= most_numbers:
                return Parts(tile, begin, at)
        n_parts //= 2
    return Parts(np.array([0, len(work) - 1]), np.zeros(1, np.int64), np.array([0, n_cols]))


def transposed(
    scatter: Callable, parts: Parts, work: np.ndarray, unit: int, args: tuple, n_cols: int, dtype: np.dtype
) -> Callable[[np.ndarray, np.ndarray], None]:
    """``multiply(x, y)``, which does ``y = A.T @ x``, both of `dtype`.

    Parameters
    ----------
    scatter
        ``scatter(first, last, tile, low, at, *args, x, sums)``, which sets the vectors of the parts from `first` to before
        `last` in `sums`, the vectors of all parts one after the other.
    parts, work, unit, n_cols
        From, and as for, :func:`divide`.
    """
    n_parts = len(parts.tile) - 1
    like = np.empty(0, dtype)
    scatter = threads.prepare(lanes.compiled(scatter, 0, 0, *parts, *args, like, like), work[parts.tile], unit)
    if n_parts == 1:
        return partial(scatter, *parts, *args)
    add_up = threads.prepare(_add_up, np.arange(-(-n_cols // BLOCK) + 1), BLOCK * n_parts)
    spare = []  # one call's vectors, for the next: fresh memory costs more than all else; calls at once have their own

    def multiply(x: np.ndarray, y: np.ndarray) -> None:
        sums = spare.pop() if spare else np.empty(parts.at[-1], dtype)
        scatter(*parts, *args, x, sums)
        add_up(parts.low, parts.at, sums, y)
        if not spare:
            spare.append(sums)

    return multiply


@njit(**lanes.OPTIONS)
def column_ranges(first, last, tile_ptr, unit, col_base, col_ptr, col_narrow, col_wide, narrow_padding, low, high):
    """The columns of tiles, as for :func:`divide`, in units of a column or a block's width.

    Tile i has ``(tile_ptr[i + 1] - tile_ptr[i]) * unit[0] // unit[1]`` columns; `narrow_padding` and -1 are none.
    """
    for i in range(first, last):
        n = (tile_ptr[i + 1] - tile_ptr[i]) * unit[0] // unit[1]
        if col_base[i] >= 0:
            least, most = _extremes(lanes.pointer(col_narrow, col_ptr[i]), n, narrow_padding, 1 << 16)
            least, most = least + col_base[i], most + col_base[i]
        else:
            least, most = _extremes(lanes.pointer(col_wide, col_ptr[i]), n, -1, 1 << 62)
        if least <= most:
            low[i], high[i] = least, most + 1


@njit(**lanes.OPTIONS, forceinline=True)
def _extremes(columns, n, padding, largest):
    """The smallest and the largest of n columns; `largest` and -1 where all are padding."""
    least, most = largest, -1
    for j in range(n):
        column = np.int64(columns[j])
        if column != padding:
            least, most = min(least, column), max(most, column)
    return least, most


@njit(**lanes.OPTIONS, forceinline=True)
def open_part(p, part_low, part_at, sums):
    """Set part p's vector to 0; a pointer to where its column 0 would stand."""
    vector = lanes.pointer(sums, part_at[p])
    for j in range(part_at[p + 1] - part_at[p]):
        vector[j] = 0
    return lanes.pointer(sums, part_at[p] - part_low[p])


@njit(**lanes.OPTIONS)
def _add_up(first, last, part_low, part_at, sums, y):
    """Add the parts' vectors in their order, from column BLOCK * first to before BLOCK * last."""
    for block in range(first, last):
        begin, end = block * BLOCK, min((block + 1) * BLOCK, len(y))
        for column in range(begin, end):
            y[column] = 0
        for p in range(len(part_low)):
            low = max(part_low[p], begin)
            high = min(part_low[p] + part_at[p + 1] - part_at[p], end)
            to, terms = lanes.pointer(y, low), lanes.pointer(sums, part_at[p] + low - part_low[p])
            for j in range(high - low):
                to[j] += terms[j]
