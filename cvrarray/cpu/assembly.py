"""Value tables on the CPU from values in any order, with sums of those that share a place; and the order of places."""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import WARP, Sources
from cvrarray.cpu import simd
from cvrarray.cpu.checksum import checksum
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.caching import njit
from cvrarray.cpu.runtime.compiler import compiled, kernel

#: What sums are computed in where that is not their dtype.
WIDE = {np.dtype(np.float16): np.dtype(np.float32), np.dtype(bool): np.dtype(np.int64)}
#: Sizes of units whose kernels are compiled for that size alone.
OWN_KERNEL = (1, *simd.BLOCK_SIZES)
#: Counting is the quicker way to sort while there are at most so many rows and columns, over the number of entries.
MOST_COUNTERS = 16


def sort(row: np.ndarray, col: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The order of places by row, then column, equal ones as they come; and where in it each different place begins.

    row, col : (n,) integers in range; the order is (n,) int64, the beginnings (n_places + 1,) int64.
    """
    if _ascends(row, col):
        order = np.arange(row.size)
    elif sum(shape) <= MOST_COUNTERS * row.size + (1 << 16):
        order = _counted(row, shape[0], _counted(col, shape[1], np.arange(row.size)))
    else:
        order = np.lexsort((col, row))
    row, col = row[order], col[order]
    first = np.flatnonzero(np.r_[row.size > 0, (row[1:] != row[:-1]) | (col[1:] != col[:-1])])
    return order, np.append(first, row.size)


def fingerprint(array: np.ndarray) -> int:
    """64 bits of an array's contents: other contents have others, but for one chance in 2^64."""
    return checksum(np.ascontiguousarray(array))


def place(sources: Sources, data: np.ndarray, values: np.ndarray) -> None:
    """Write the value table `values` from `data`, of its dtype: what each slot is the sum of."""
    source, first, order, unit = sources
    within = tuple(range(unit)) if unit in OWN_KERNEL else ()
    groups = np.arange(-(-source.size // WARP) + 1)  # of 32 slots
    if first is None:
        args = source, memory.bits(data), unit, within, memory.bits(values)
        threads.run(compiled(_gather, 0, 0, *args), groups, *args, unit=WARP * unit)
        return
    wide = WIDE.get(values.dtype)
    to = values if wide is None else np.empty(values.size, wide)
    args = source, first, order, data if wide is None else data.astype(wide), unit, within, to
    threads.run(compiled(_add, 0, 0, *args), groups, *args, unit=WARP * unit)
    if wide is not None:
        was_writeable = values.flags.writeable  # tables are not; kernels write to them all the same
        values.setflags(write=True)
        with np.errstate(over="ignore"):
            values[...] = to
        values.setflags(write=was_writeable)


@njit(nogil=True, cache=True)
def _ascends(row, col):
    for k in range(1, row.size):
        if row[k] < row[k - 1] or (row[k] == row[k - 1] and col[k] < col[k - 1]):
            return False
    return True


@njit(nogil=True, cache=True)
def _counted(keys, n_keys, order):
    """`order`, stably sorted by ``keys[order]``, which lie in [0, n_keys)."""
    at = np.zeros(n_keys + 1, np.int64)
    for k in range(keys.size):
        at[keys[k] + 1] += 1
    for key in range(n_keys):
        at[key + 1] += at[key]
    found = np.empty_like(order)
    for k in range(order.size):
        key = keys[order[k]]
        found[at[key]] = order[k]
        at[key] += 1
    return found


@kernel
def _gather(first_group, last_group, source, data, unit, within, values):
    """Slots of `unit` numbers each, which are WARP apart in `values`."""
    if len(within):
        unit = len(within)
    offsets = simd.scratch(source, simd.SINGLE)
    for group in range(first_group, last_group):
        at = group * WARP
        if at + WARP <= len(source):
            real = simd.not_equal_mask(source, at, 0)
            if unit == 1:
                simd.store(simd.gather(data, -1, source, at, real), values, at, simd.WHOLE)
                continue
            simd.scale(source, at, unit, real, offsets)
            for j in range(unit):
                simd.store(simd.gather(data, j - unit, offsets, 0, real), values, at * unit + j * WARP, simd.WHOLE)
        else:  # units of one number: blocks have slots for all 32 rows of a bin
            for slot in range(at, len(source)):
                values[slot] = 0
                if source[slot]:
                    values[slot] = data[source[slot] - 1]


@kernel
def _add(first_group, last_group, source, first, order, data, unit, within, values):
    """The same for sums, whose terms are added in the order of `order`."""
    if len(within):
        unit = len(within)
    sums = simd.scratch(data, simd.SINGLE)
    for group in range(first_group, last_group):
        for slot in range(group * WARP, min((group + 1) * WARP, len(source))):
            place = source[slot] - 1
            for j in range(unit):
                sums[j] = 0
            if place >= 0:
                for j in range(unit):
                    sums[j] = data[order[first[place]] * unit + j]
                for k in range(first[place] + 1, first[place + 1]):
                    for j in range(unit):
                        sums[j] += data[order[k] * unit + j]
            for j in range(unit):
                values[(group * unit + j) * WARP + slot % WARP] = sums[j]
