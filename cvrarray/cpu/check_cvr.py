"""What :meth:`cvrarray.CVRArray.check` asks of every chunk: that the conversion could have made it.

The conversion decides everything but where chunks are cut and what rows hold. So a chunk is followed as it was laid out,
feeding and stealing by its own records, and any deviation is a fault. No offset is used before it is known to lie inside
its table, and nothing is computed that could wrap.
"""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import WARP, CVRTables
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import inlined, kernel

LANES, BATCH = simd.SINGLE, simd.BATCH_ROW  #: sizes of scratch space

#: Faults of a chunk; of several the lowest counts.
(MASK, COUNT, ORDER, ENTRIES, LAYOUT, ROWS, OWNER, PADS, PAD_COLUMN, PAD_VALUE, RANGE, BASE, ASCENT) = range(1, 14)
ALL = np.uint32(0xFFFFFFFF)  #: mask of all lanes
ONE = np.uint32(1)


def records(n_lanes: int, step_ptr: np.ndarray, rec_mask: np.ndarray, rec_ptr: np.ndarray) -> np.ndarray:
    """(n_chunks,) uint8: MASK where a record's lane is no lane, COUNT where there are not as many as `rec_ptr` says, else 0.

    Both offsets must begin with 0, increase, and end with the sizes of their tables.
    """
    fault = np.zeros(len(step_ptr) - 1, np.uint8)
    threads.run(_records, step_ptr, n_lanes, step_ptr, rec_mask, rec_ptr, fault, unit=n_lanes)
    return fault


def layout(
    t: CVRTables, row_ptr: np.ndarray, rank: np.ndarray, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Follow chunks whose records, by :func:`records`, are right, and look at all their slots.

    Parameters
    ----------
    t
        Entries of rec_wb, tail, carry_row and empty_row must lie in range; the last ascends. col_ptr must fit the chunks.
    row_ptr : (n_chunks + 1,) int64
        Offsets by the rows that each chunk is fed: its records that name rows, and its entries of tail that hold one.
    rank : (n_chunks,) int64
        How many different rows chunks are fed before this one's first; one less where a chunk's start cuts a row.
    before : (n_chunks,) int64
        The last row of the chunk before, -1 for the first.

    Returns
    -------
    fault : (n_chunks,) uint8
        0, or from ORDER on, the chunk's first.
    entries : (n_chunks,) int64
        Slots that are no pads.
    ends : (n_chunks, 2) int64
        The column of the first entry of a chunk's first row, and that of the last entry of its last row.
    """
    n_chunks = len(t.tail)
    fault, entries, ends = np.zeros(n_chunks, np.uint8), np.zeros(n_chunks, np.int64), np.zeros((n_chunks, 2), np.int64)
    rows = np.empty(row_ptr[-1], t.rec_wb.dtype)
    threads.run(
        _layout, t.step_ptr, t.n_lanes, t.shape[1], t.step_ptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.rec_mask,
        t.rec_ptr, t.rec_wb, t.tail, t.carry_row, t.empty_row, row_ptr, rank, before, rows, fault, entries, ends,
        unit=t.n_lanes,
    )  # fmt: skip
    threads.run(_pads, t.step_ptr, t.n_lanes, t.step_ptr, t.rec_mask, *value_bytes(t.val), fault, unit=t.n_lanes)
    return fault, entries, ends


def value_bytes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of values, and (itemsize,) uint8 which bits of them are 0 in every zero: all but signs."""
    zero = np.zeros(1, values.dtype)
    return values.view(np.uint8), ~(-zero if zero.dtype.kind in "fc" else zero).view(np.uint8)


@kernel
def _records(first, last, n_lanes, step_ptr, rec_mask, rec_ptr, fault):
    no_lane = ~(ALL >> np.uint32(WARP - n_lanes))
    for k in range(first, last):
        count = 0
        used = np.uint32(0)
        for step in range(step_ptr[k], step_ptr[k + 1]):
            used |= rec_mask[step]
            count += bits(rec_mask[step])
        if used & no_lane:
            fault[k] = MASK
        elif count != rec_ptr[k + 1] - rec_ptr[k]:
            fault[k] = COUNT


@inlined
def bits(mask):
    """How many bits of a uint32 are set."""
    mask = mask - (mask >> np.uint32(1) & np.uint32(0x55555555))
    mask = (mask & np.uint32(0x33333333)) + (mask >> np.uint32(2) & np.uint32(0x33333333))
    mask = mask + (mask >> np.uint32(4)) & np.uint32(0x0F0F0F0F)
    return np.int64((mask * np.uint32(0x01010101) & ALL) >> np.uint32(24))


@kernel
def _layout(
    first, last, n_lanes, n_cols, step_ptr, col_base, col_ptr, col_narrow, col_wide, rec_mask, rec_ptr, rec_wb, tail,
    carry_row, empty_row, row_ptr, rank, before, rows, fault, entries, ends
):  # fmt: skip
    filled, end, stolen = (
        simd.scratch(step_ptr, LANES),
        simd.scratch(step_ptr, LANES),
        simd.scratch(step_ptr, LANES),
    )
    victim, fed, pairs = (
        simd.scratch(step_ptr, LANES),
        simd.scratch(step_ptr, LANES),
        simd.scratch(step_ptr, BATCH),
    )
    for k in range(first, last):
        n_steps, n_rows = step_ptr[k + 1] - step_ptr[k], row_ptr[k + 1] - row_ptr[k]
        masks, wbs = simd.pointer(rec_mask, step_ptr[k]), simd.pointer(rec_wb, rec_ptr[k])
        tails, own_rows = simd.pointer(tail, k * n_lanes), simd.pointer(rows, row_ptr[k])
        fault[k] = _ends(n_lanes, n_steps, masks, wbs, tails, filled, end, stolen, victim)
        if fault[k]:
            continue
        n_pairs = _follow(n_lanes, n_steps, masks, wbs, tails, filled, end, stolen, victim, fed, own_rows, n_rows, pairs)
        for lane in range(n_lanes):
            entries[k] += filled[lane]
        if n_pairs == 0:
            fault[k] = LAYOUT
            continue
        fault[k] = _rows(own_rows, n_rows, carry_row[k], before[k], rank[k], empty_row)
        if fault[k] == 0 and n_steps * n_lanes - entries[k] >= n_lanes:
            fault[k] = PADS
        if fault[k]:
            continue
        base, at = col_base[k], col_ptr[k]
        if base >= 0:
            columns = simd.pointer(col_narrow, at)
            fault[k] = _columns(n_lanes, n_steps, masks, columns, n_cols - base, True, pairs, n_pairs)
            ends[k, 0], ends[k, 1] = base + np.int64(columns[pairs[0]]), base + np.int64(columns[pairs[1]])
        else:
            columns_wide = simd.pointer(col_wide, at)
            fault[k] = _columns(n_lanes, n_steps, masks, columns_wide, n_cols, False, pairs, n_pairs)
            ends[k, 0], ends[k, 1] = columns_wide[pairs[0]], columns_wide[pairs[1]]


@kernel
def _ends(n_lanes, n_steps, masks, wbs, tails, filled, own_end, stolen, victim):
    """How lanes end, by the records that name entries of tail; ORDER or ENTRIES where they cannot be right, else 0.

    Sets the steps of each lane before its pads, the step before which its own entry is complete (0: it has none), how many
    elements other lanes have stolen from that, and the lane that it has stolen from itself, or -1.
    """
    for lane in range(n_lanes):
        filled[lane] = own_end[lane] = stolen[lane] = 0
        victim[lane] = -1
    record = 0
    in_tail = False
    for step in range(n_steps):
        ended = masks[step]
        while ended:
            lane = simd.lowest(ended)
            ended &= ended - ONE
            wb = np.int64(wbs[record])
            record += 1
            if wb >= 0:
                if in_tail:
                    return ORDER
            else:
                in_tail = True
                entry = ~wb
                if tails[entry] < 0:
                    return ENTRIES
                if entry == lane:
                    if own_end[lane]:
                        return ENTRIES
                    own_end[lane] = step + 1
                else:
                    if victim[lane] >= 0 or step + 1 < n_steps:
                        return ENTRIES
                    victim[lane] = entry
                    stolen[entry] += n_steps - filled[lane]
            filled[lane] = step + 1
    for lane in range(n_lanes):
        if (tails[lane] >= 0) != (own_end[lane] > 0):
            return ENTRIES
    return 0


@kernel
def _follow(n_lanes, n_steps, masks, wbs, tails, filled, end, stolen, victim, fed, rows, n_rows, pairs):
    """Feed and steal as the conversion does: 0 where that does not lead to these records, else the numbers in `pairs`.

    Sets the rows in the order in which they are fed; and in `pairs` the slot of the first entry of the first row, that of the
    last entry of the last row, and then pairs of slots whose entries are neighbours in a row, though not in a lane.
    """
    begun, taken_at, taken_by, robs = (
        simd.scratch(fed, LANES),
        simd.scratch(fed, LANES),
        simd.scratch(fed, LANES),
        simd.scratch(fed, LANES),
    )
    for lane in range(n_lanes):
        fed[lane] = taken_at[lane] = robs[lane] = -1
        begun[lane] = 0
    next_row = record = 0
    pairs[0], n_pairs = 0, 2
    for step in range(n_steps + 1):
        ended = masks[step - 1] if step else ALL >> np.uint32(WARP - n_lanes)
        while ended:
            lane = simd.lowest(ended)
            ended &= ended - ONE
            if step:
                wb = np.int64(wbs[record])
                record += 1
                if next_row < n_rows:
                    if wb < 0:
                        return 0
                    rows[fed[lane]] = wb
                elif wb != ~(lane if robs[lane] < 0 else robs[lane]) or end[lane] != step:
                    return 0
            if step == n_steps:
                continue
            if next_row < n_rows:
                fed[lane], begun[lane] = next_row, step
                next_row += 1
                if next_row == n_rows:
                    pairs[1] = (end[lane] - 1) * n_lanes + lane
                    for entry in range(n_lanes):
                        if (fed[entry] >= 0) != (tails[entry] >= 0):
                            return 0
                        if fed[entry] >= 0:
                            rows[fed[entry]] = tails[entry]
                        end[entry] += stolen[entry]
                continue
            robbed = 0
            while robbed < n_lanes and end[robbed] <= n_steps:
                robbed += 1
            if robbed == n_lanes:  # nothing to steal: the lane pads
                if filled[lane] > step:
                    return 0
                continue
            if victim[lane] != robbed or filled[lane] <= step:
                return 0
            # The row goes on from the victim, or from who stole before, to the thief's first slot, and from its last one back.
            first, last = step * n_lanes + lane, (n_steps - 1) * n_lanes + lane
            if taken_at[robbed] == step:
                pairs[n_pairs], pairs[n_pairs + 1] = (n_steps - 1) * n_lanes + taken_by[robbed], first
                n_pairs += 2
            elif step > begun[robbed]:
                pairs[n_pairs], pairs[n_pairs + 1] = (step - 1) * n_lanes + robbed, first
                n_pairs += 2
            elif fed[robbed] == 0:
                pairs[0] = first
            pairs[n_pairs], pairs[n_pairs + 1] = last, step * n_lanes + robbed
            n_pairs += 2
            taken_at[robbed], taken_by[robbed], robs[lane] = step, lane, robbed
            end[robbed] -= n_steps - step
            end[lane] = n_steps
    return n_pairs if next_row == n_rows else 0


@kernel
def _rows(rows, n_rows, carry_row, before, rank, empty_row):
    """ROWS where a chunk's rows do not ascend from those of the chunk before, OWNER where one is empty too, or missing."""
    n_empty = len(empty_row)
    for j in range(n_rows):
        row = np.int64(rows[j])
        if j == 0 and carry_row >= 0:
            if row != carry_row:
                return ROWS
            continue
        if row <= (rows[j - 1] if j else before):
            return ROWS
        below = row - rank - j  # empty rows that must come before this one
        if (
            below < 0
            or below > n_empty
            or (below and empty_row[below - 1] >= row)
            or (below < n_empty and empty_row[below] <= row)
        ):
            return OWNER
    return 0


@kernel
def _columns(n_lanes, n_steps, masks, columns, limit, is_narrow, pairs, n_pairs):
    """RANGE, BASE, PAD_COLUMN or ASCENT where a chunk's columns cannot be right, else 0; they must lie in [0, limit)."""
    least = most = columns[0]
    for slot in range(n_steps * n_lanes):  # compiles to vector instructions
        least = min(least, columns[slot])
        most = max(most, columns[slot])
    if least < 0 or most >= limit:
        return RANGE
    if is_narrow and least > 0:
        return BASE
    every_lane = ALL >> np.uint32(WARP - n_lanes)
    real = np.uint32(0)
    falls = np.uint32(0)
    for step in range(n_steps - 1, -1, -1):
        real |= masks[step]
        here = simd.pointer(columns, step * n_lanes)
        if real != every_lane:
            for lane in range(n_lanes):
                if not real >> np.uint32(lane) & ONE and here[lane] != least:
                    return PAD_COLUMN
        if step:
            goes_on = real & ~masks[step - 1]
            above = simd.pointer(columns, (step - 1) * n_lanes)
            if n_lanes == WARP:  # a length that is known compiles to vector instructions
                for lane in range(WARP):
                    falls |= goes_on >> np.uint32(lane) & np.uint32(above[lane] >= here[lane])
            else:
                for lane in range(n_lanes):
                    falls |= goes_on >> np.uint32(lane) & np.uint32(above[lane] >= here[lane])
    for p in range(2, n_pairs, 2):
        falls |= np.uint32(columns[pairs[p]] >= columns[pairs[p + 1]])
    return ASCENT if falls & ONE else 0


@kernel
def _pads(first, last, n_lanes, step_ptr, rec_mask, values, counted, fault):
    """PAD_VALUE where a slot after its lane's last record holds anything but 0; `values` are bytes."""
    every_lane, size = ALL >> np.uint32(WARP - n_lanes), len(counted)
    for k in range(first, last):
        real = np.uint32(0)
        step = step_ptr[k + 1] - 1
        while step >= step_ptr[k]:
            real |= rec_mask[step]
            if real == every_lane:
                break
            for lane in range(n_lanes):
                if not real >> np.uint32(lane) & ONE and not is_zero(values, (step * n_lanes + lane) * size, counted):
                    fault[k] = fault[k] or PAD_VALUE
            step -= 1


@inlined
def is_zero(values, at, counted):
    """Whether the bytes from `at` on are those of a zero: see :func:`value_bytes`."""
    found = np.uint8(0)
    for byte in range(len(counted)):
        found |= values[at + byte] & counted[byte]
    return found == 0
