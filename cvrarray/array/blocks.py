"""Dense square blocks at places of a matrix: their rows and numbers as the entries of a CSR, and sums of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import devices
from ..core.tables import CSR, WARP, Blocks, Sources
from ..input import coercion

#: Numbers of terms, side by side for 32 slots, over those of the terms and the slots: more are kept one slot after the
#: other.
MOST_PADDED = 2


def number_dtype(most: int) -> np.dtype:
    """The dtype in which numbers up to `most` are kept."""
    return np.dtype(np.int32 if most < 2**31 else np.int64)


def expanded(blocks: Blocks, unit: int) -> CSR:
    """The rows of the blocks as canonical CSR: each in units of `unit` numbers (1, or the blocks' size), numbered from
    1.

    Unit k of row i of block e has the number ``(e * size + i) * (size // unit) + k + 1``, the place of its values among
    those of all blocks. Its column counts in units. For use on the current device.
    """
    size, (n_rows, n_cols) = blocks.size, blocks.shape
    xp = devices.of(blocks.indptr).xp
    per_row = size // unit
    in_row = xp.repeat(xp.diff(blocks.indptr) * per_row, size)[:n_rows]
    indptr = xp.zeros(n_rows + 1, np.int64)
    indptr[1:] = xp.cumsum(in_row)
    total = int(indptr[-1])
    row = devices.of(indptr).backend("csr").row_of_nonzero(indptr, xp.empty(total, np.int64))
    block, k = xp.divmod(xp.arange(total) - indptr[row], per_row)
    block += blocks.indptr[row // size]
    column = blocks.indices[block].astype(np.int64) * per_row + k
    number = ((block * size + row % size) * per_row + k + 1).astype(number_dtype(blocks.indices.size * size * per_row + 1))
    n_units = -(-n_cols // unit)
    if per_row > 1 and n_cols % size:  # the last blocks reach over the edge
        inside = column < n_cols
        indptr = xp.searchsorted(row[inside], xp.arange(n_rows + 1))
        column, number = column[inside], number[inside]
    return CSR(indptr, column.astype(coercion.index_dtype(blocks.shape)), number, (n_rows, n_units))


def _in_parts(order: Any, first: Any, parts: int) -> tuple[Any, Any]:
    """The order of blocks, and where in it each different block begins, for the `parts` units of every block by
    themselves.
    """
    if parts == 1:
        return order, first
    xp = devices.of(order).xp
    begins = xp.zeros((first.size - 1) * parts + 1, np.int64)
    begins[1:] = xp.cumsum(xp.repeat(xp.diff(first), parts))
    unit = devices.of(order).backend("csr").row_of_nonzero(begins, xp.empty(order.size * parts, np.int64))
    term = xp.arange(unit.size) - begins[unit]
    return order[first[unit // parts] + term] * parts + unit % parts, begins


def _side_by_side(source: Any, order: Any, first: Any, dtype: np.dtype) -> Sources | None:
    """What slots are the sums of, for 32 slots side by side; None where that takes much more memory than the terms
    alone.
    """
    xp, n_groups = devices.of(source).xp, -(-source.size // WARP)
    slot_of = xp.full(first.size - 1, -1, np.int64)
    stored = xp.flatnonzero(source)
    slot_of[source[stored] - 1] = stored
    n_terms = xp.zeros(n_groups * WARP, np.int64)
    n_terms[stored] = xp.diff(first)[source[stored] - 1]
    most, half = n_terms.reshape(-1, WARP), WARP // 2
    while half:  # by halves: CuPy would compile a maximum along an axis for seconds
        most, half = xp.maximum(most[:, :half], most[:, half:]), half // 2
    begins = xp.zeros(n_groups + 1, np.int64)
    begins[1:] = xp.cumsum(most[:, 0] * WARP)
    if int(begins[-1]) > MOST_PADDED * (order.size + source.size):
        return None
    place = devices.of(order).backend("csr").row_of_nonzero(first, xp.empty(order.size, np.int64))
    slot = slot_of[place]
    at = begins[slot // WARP] + slot % WARP + (xp.arange(order.size) - first[place]) * WARP
    terms = xp.zeros(int(begins[-1]), dtype)
    terms[at[slot >= 0]] = order[slot >= 0] + 1  # what reaches over an edge has no slot
    return Sources(terms, begins, None, 1)


def sources_of(source: Any, unit: int, merged: tuple[Any, Any], parts: int) -> Sources:
    """What slots are the sums of that have numbers of units of merged blocks, from 1; 0 is padding.

    Parameters
    ----------
    source : (n_slots,) integers
    unit : int
        Numbers in a unit.
    merged : (order, first)
        As the device's ``sort`` gives them: which blocks of the data each block is the sum of.
    parts : int
        Units in a block.
    """
    order, first = merged
    xp, dtype = devices.of(source).xp, number_dtype((order.size * parts + 1) * unit)
    if first.size - 1 < order.size:
        order, first = _in_parts(order, first, parts)
        found = _side_by_side(source, order, first, dtype) if unit == 1 else None
        if found is not None:
            return found
        source, first, order = (numbers.astype(dtype, copy=False) for numbers in (source, first, order))
        return Sources(source, first, order, unit)
    block, part = xp.divmod(source - 1, parts)  # of a pad -1
    number = xp.where(source > 0, order[block] * parts + part + 1, 0) if order.size else source
    return Sources(number.astype(dtype), None, None, unit)
