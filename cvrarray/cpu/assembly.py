"""Value tables on the CPU from values in any order, with sums of those that share a place; and the order of places."""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import WARP, Sources
from cvrarray.cpu import simd
from cvrarray.cpu.checksum import checksum
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.caching import njit
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel

#: What sums are computed in where that is not their dtype.
WIDE = {np.dtype(np.float16): np.dtype(np.float32), np.dtype(bool): np.dtype(np.int64)}
#: Sizes of units whose kernels are compiled for that size alone.
OWN_KERNEL = (1, *simd.BLOCK_SIZES)
#: Groups of slots from the one that is written to the one whose blocks are prefetched.
AHEAD = 2
#: Blocks up to this size are added up in registers.
SMALL = 4
#: Steps of terms from the one that is added to the one whose numbers are prefetched.
TERMS_AHEAD = 8
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


def fingerprint(*arrays: np.ndarray) -> tuple[int, ...]:
    """64 bits of the contents of each: others have others, but for one chance in 2^64."""
    return tuple(checksum(np.ascontiguousarray(array)) for array in arrays)


def place(sources: Sources, data: np.ndarray, values: np.ndarray) -> None:
    """Write the value table `values` from `data`, of its dtype: what each slot is the sum of."""
    source, first, order, unit = sources
    within = tuple(range(unit)) if unit in OWN_KERNEL else ()
    n_slots = values.size // unit
    groups = np.arange(-(-n_slots // WARP) + 1)  # of 32 slots
    if first is None:
        args = source, memory.bits(data), unit, within, memory.goes_past_caches(values), memory.bits(values)
        threads.run(compiled(_gather, 0, 0, *args), groups, *args, unit=WARP * unit)
        return
    wide = WIDE.get(values.dtype)
    to = values if wide is None else np.empty(values.size, wide)
    data = data if wide is None else data.astype(wide)
    if order is None:
        args = first, source, data, memory.goes_past_caches(to), to
        threads.run(compiled(_add, 0, 0, *args), first, *args)
    elif unit == 1:
        args = source, first, order, data, to
        threads.run(compiled(_add_apart, 0, 0, *args), groups, *args, unit=WARP)
    else:
        args = source, first, order, data, unit, within, memory.goes_past_caches(to), to
        threads.run(compiled(_add_blocks, 0, 0, *args), groups, *args, unit=WARP * unit)
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
def _gather(first_group, last_group, source, data, unit, within, past, values):
    """Slots of `unit` numbers each, which are WARP apart in `values`."""
    if len(within):
        unit = len(within)
    offsets = simd.scratch(source, simd.SINGLE)
    for group in range(first_group, last_group):
        at = group * WARP
        if at + WARP > len(source):  # units of one number: blocks have slots for all 32 rows of a bin
            for slot in range(at, len(source)):
                values[slot] = 0
                if source[slot]:
                    values[slot] = data[source[slot] - 1]
            continue
        if unit > 1 and at + (AHEAD + 1) * WARP <= len(source):
            ahead = simd.pointer(source, at + AHEAD * WARP)
            for lane in range(0, WARP, unit):
                if ahead[lane]:
                    simd.prefetch(data, (np.int64(ahead[lane]) - 1) * unit, simd.INTO_L1)
        real = simd.not_equal_mask(source, at, 0)
        simd.scale(source, at, unit, real, offsets)
        for j in range(unit):
            numbers = simd.gather(data, j - unit, offsets, 0, real)
            simd.stream(numbers, values, at * unit + j * WARP, past)


@kernel
def _add(first_group, last_group, first, source, data, past, values):
    """Slots of one number, each the sum of its terms, which stand side by side for 32 slots."""
    sums = simd.scratch(data, simd.SINGLE)
    for group in range(first_group, last_group):
        at, end = first[group], first[group + 1]
        simd.prefetch(source, end + TERMS_AHEAD * WARP, simd.INTO_L1)
        acc = simd.zeros(data, simd.WHOLE)
        if at < end:  # the first is copied
            acc = simd.gather(data, -1, source, at, simd.not_equal_mask(source, at, 0))
        for term in range(at + WARP, end, WARP):
            simd.prefetch(source, term + TERMS_AHEAD * WARP, simd.INTO_L1)
            real = simd.not_equal_mask(source, term, 0)
            acc = simd.add_where(acc, real, simd.gather(data, -1, source, term, real))
        slot = group * WARP
        if slot + WARP > len(values):
            simd.store(acc, sums, 0, simd.WHOLE)
            for lane in range(len(values) - slot):
                values[slot + lane] = sums[lane]
        else:
            simd.stream(acc, values, slot, past)


@kernel
def _add_apart(first_group, last_group, source, first, order, data, values):
    """Slots of one number whose terms stand one slot after the other: few have many."""
    for slot in range(first_group * WARP, min(last_group * WARP, len(source))):
        values[slot] = 0
        if source[slot]:
            begin, end = first[np.int64(source[slot]) - 1], first[np.int64(source[slot])]
            total = data[order[begin]]
            for k in range(begin + 1, end):
                total += data[order[k]]
            values[slot] = total


@kernel
def _add_blocks(first_group, last_group, source, first, order, data, unit, within, past, values):
    """The same for slots of a row of a block. Neighbours that are rows of one block are added up together, as their
    terms are neighbours too.
    """
    if len(within):
        unit = len(within)
    sums, group_of_slots = simd.scratch(data, simd.WHOLE), simd.scratch(data, simd.WHOLE)
    for group in range(first_group, last_group):
        slots, to = simd.pointer(source, group * WARP), simd.pointer(values, group * unit * WARP)
        if past:
            to = group_of_slots
        if group + AHEAD < last_group:
            _prefetch_terms(simd.pointer(slots, AHEAD * WARP), first, order, data, unit)
        lane = 0
        while lane < WARP:
            place = np.int64(slots[lane]) - 1
            n_rows = 1
            if place < 0:
                for j in range(unit):
                    to[j * WARP + lane] = 0
                lane += 1
                continue
            while lane + n_rows < WARP and (place + n_rows) % unit and slots[lane + n_rows] == slots[lane] + n_rows:
                n_rows += 1
            terms, n = simd.pointer(order, first[place]), n_rows * unit
            if 0 < len(within) <= SMALL and n_rows == unit:
                _add_block(terms, first[place + 1] - first[place], data, within, sums, simd.pointer(to, lane))
                lane += n_rows
                continue
            of = simd.pointer(data, np.int64(terms[0]) * unit)
            for i in range(n):
                sums[i] = of[i]
            for k in range(1, first[place + 1] - first[place]):
                of = simd.pointer(data, np.int64(terms[k]) * unit)
                for i in range(n):
                    sums[i] += of[i]
            for r in range(n_rows):
                for j in range(unit):
                    to[j * WARP + lane + r] = sums[r * unit + j]
            lane += n_rows
        if past:
            for j in range(unit):
                numbers = simd.load(to, j * WARP, values)
                simd.stream(numbers, values, (group * unit + j) * WARP, True)


@inlined
def _add_block(terms, n_terms, data, within, sums, to):
    """The sum of whole blocks, whose size is known here: so the loops over their numbers are vector instructions."""
    unit = len(within)
    of = simd.pointer(data, np.int64(terms[0]) * unit)
    for i in range(unit * unit):
        sums[i] = of[i]
    for k in range(1, n_terms):
        of = simd.pointer(data, np.int64(terms[k]) * unit)
        for i in range(unit * unit):
            sums[i] += of[i]
    for r in range(unit):
        for j in range(unit):
            to[j * WARP + r] = sums[r * unit + j]


@inlined
def _prefetch_terms(slots, first, order, data, unit):
    """Prefetch the blocks that 32 slots are sums of."""
    for lane in range(0, WARP, unit):
        if slots[lane]:
            place = np.int64(slots[lane]) - 1
            for k in range(first[place], first[place + 1]):
                simd.prefetch(data, np.int64(order[k]) * unit, simd.INTO_L1)
