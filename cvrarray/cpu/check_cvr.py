"""What :meth:`cvrarray.CVRArray.check` asks of every chunk: that the conversion could have made it.

The conversion decides everything but where chunks are cut and what rows hold. So a chunk is followed as it was laid
out, feeding and stealing by its own records, and any deviation is a fault. No offset is used before it is known to lie
inside its table, and nothing is computed that could wrap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import NARROW, WARP, CVRTables
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import helper, kernel
from cvrarray.cpu.simd import masks

LANES, BATCH = simd.SINGLE, simd.BATCH_ROW  #: sizes of scratch space

#: Faults of a chunk; of several the lowest counts.
(MASK, COUNT, TARGET, ORDER, ENTRIES, LAYOUT, ROWS, OWNER, PADS, PAD_COLUMN, PAD_VALUE, RANGE, BASE, ASCENT) = range(1, 15)
AHEAD = 1024  #: slots from the one that is looked at to the one that is prefetched
ALL, NONE, ONE = np.uint32(0xFFFFFFFF), np.uint32(0), np.uint32(1)  #: masks of all lanes, of none, and of the first


class Chunks(NamedTuple):
    """The tables, as the kernels take them."""

    shape: tuple[int, int]
    n_lanes: int
    step_ptr: np.ndarray
    col_base: np.ndarray
    col_ptr: np.ndarray
    col_narrow: np.ndarray
    col_wide: np.ndarray
    rec_mask: np.ndarray
    rec_ptr: np.ndarray
    rec_wb: np.ndarray
    tail: np.ndarray
    carry_row: np.ndarray
    empty_row: np.ndarray


class Fed(NamedTuple):
    """(n_chunks,) what all chunks together tell about the rows that each is fed."""

    ptr: np.ndarray  # (n_chunks + 1,) int64: offsets by how many these are
    named: np.ndarray  # int64: how many of them records name; entries of tail hold the others
    # int64: how many different rows chunks are fed before this one's first; one less where that is cut
    rank: np.ndarray
    before: np.ndarray  # int64: the last row of the chunk before, -1 for the first
    # I: room for ptr[-1] rows. A range of chunks writes from its first one's offset on, again and again
    rows: np.ndarray


class Found(NamedTuple):
    """(n_chunks,) what is found; all 0 at first."""

    fault: np.ndarray  # uint8: the chunk's first, or 0
    entries: np.ndarray  # int64: slots that are no pads
    # (n_chunks, 2) int64: columns of the first entry of a chunk's first row, of the last one of its last row
    ends: np.ndarray


class Chunk(NamedTuple):
    """One chunk: pointers to its own tables."""

    n_lanes: int
    n_steps: int
    masks: np.ndarray
    wbs: np.ndarray
    tails: np.ndarray


class Lanes(NamedTuple):
    """What becomes of the lanes of a chunk: pointers to 32 int64."""

    filled: np.ndarray  # steps before the lane's pads
    # the step before which the lane's own entry of tail is complete, 0: it has none; less what is stolen
    end: np.ndarray
    stolen: np.ndarray  # how many elements other lanes steal from that
    victim: np.ndarray  # the lane that it steals from, or -1
    fed: np.ndarray  # which of the chunk's rows the lane works on, or -1
    begun: np.ndarray  # the step at which it began that
    taken_at: np.ndarray  # the step at which the last thief stole from it, or -1
    taken_by: np.ndarray  # and which lane that is
    robs: np.ndarray  # the lane that it has stolen from, or -1


def records(t: CVRTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Look at all records of chunks and at tail; step_ptr and rec_ptr must begin with 0, increase, and end with their
    tables.

    Returns
    -------
    fault : (n_chunks,) uint8
        MASK where a record's lane is no lane, COUNT where there are not as many as `rec_ptr` says, TARGET where one
        names neither a row nor an entry of tail, or such an entry holds neither a row nor -1; else 0.
    named, fed : (n_chunks,) int64
        How many records name rows; with the entries of tail that hold one, how many rows the chunk is fed.
    """
    n_chunks = len(t.step_ptr) - 1
    found = np.zeros(n_chunks, np.uint8), np.zeros(n_chunks, np.int64), np.zeros(n_chunks, np.int64)
    threads.run(_records, t.step_ptr, _chunks(t), *found, unit=t.n_lanes)
    return found


def layout(
    t: CVRTables, named: np.ndarray, row_ptr: np.ndarray, rank: np.ndarray, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Follow chunks whose records, by :func:`records`, are right, and look at all their slots.

    Parameters
    ----------
    t
        Entries of carry_row and empty_row must lie in range; the last ascends. col_ptr must fit the chunks.
    named : (n_chunks,) int64
        How many records of a chunk name rows.
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
    found = Found(np.zeros(n_chunks, np.uint8), np.zeros(n_chunks, np.int64), np.zeros((n_chunks, 2), np.int64))
    fed = Fed(row_ptr, named, rank, before, np.empty(row_ptr[-1], t.rec_wb.dtype))
    threads.run(_layout, t.step_ptr, _chunks(t), fed, found, unit=t.n_lanes)
    threads.run(_pads, t.step_ptr, t.n_lanes, t.step_ptr, t.rec_mask, *value_words(t.val), found.fault, unit=t.n_lanes)
    return found


def value_words(values: np.ndarray) -> tuple[np.ndarray, tuple[int, ...], int]:
    """Values as unsigned integers; a tuple as long as one value has of them; which of their bits are 0 in every zero."""
    zero = np.zeros(1, values.dtype)
    size = min(values.itemsize, 8)
    zeros = ~memory.bits((-zero if zero.dtype.kind in "fc" else zero).view(f"u{size}"))  # all bits but signs
    return values.view(zeros.dtype), (0,) * (values.itemsize // size), int(zeros[:1].view(f"i{size}")[0])


def _chunks(t: CVRTables) -> Chunks:
    shape = int(t.shape[0]), int(t.shape[1])
    return Chunks(shape, int(t.n_lanes), *(getattr(t, name) for name in Chunks._fields[2:]))


@kernel
def _records(first, last, t, fault, named, fed):
    n_lanes, n_rows = t.n_lanes, t.shape[0]
    no_lane = ~(ALL >> np.uint32(WARP - n_lanes))
    for k in range(first, last):
        count = 0
        used = NONE
        for step in range(t.step_ptr[k], t.step_ptr[k + 1]):
            used |= t.rec_mask[step]
            count += masks.count(t.rec_mask[step])
        targets, n_records = simd.pointer(t.rec_wb, t.rec_ptr[k]), t.rec_ptr[k + 1] - t.rec_ptr[k]
        least, most, rows = _range(targets, n_records)
        lowest, highest, in_tail = _range(simd.pointer(t.tail, k * n_lanes), n_lanes)
        if used & no_lane:
            fault[k] = MASK
        elif count != n_records:
            fault[k] = COUNT
        elif min(least + n_lanes, lowest + 1) < 0 or max(most, highest) >= n_rows:
            fault[k] = TARGET
        named[k], fed[k] = rows, rows + in_tail


@helper
def _range(numbers, n):
    """The least and the largest of n numbers, at least one, and how many are not negative."""
    least = most = numbers[0]
    count = 0
    for i in range(n):  # compiles to vector instructions
        least = min(least, numbers[i])
        most = max(most, numbers[i])
        count += numbers[i] >= 0
    return np.int64(least), np.int64(most), count


@helper
def _least(numbers, n):
    """The least of n numbers, at least one."""
    least = numbers[0]
    for i in range(n):  # compiles to vector instructions
        least = min(least, numbers[i])
    return np.int64(least)


@kernel
def _layout(first, last, t, fed, found):
    n_lanes = t.n_lanes
    lane = Lanes(
        filled=simd.scratch(fed.ptr, LANES),
        end=simd.scratch(fed.ptr, LANES),
        stolen=simd.scratch(fed.ptr, LANES),
        victim=simd.scratch(fed.ptr, LANES),
        fed=simd.scratch(fed.ptr, LANES),
        begun=simd.scratch(fed.ptr, LANES),
        taken_at=simd.scratch(fed.ptr, LANES),
        taken_by=simd.scratch(fed.ptr, LANES),
        robs=simd.scratch(fed.ptr, LANES),
    )
    pairs = simd.scratch(fed.ptr, BATCH)
    rows = simd.pointer(fed.rows, fed.ptr[first])
    for k in range(first, last):
        step, n_rows = t.step_ptr[k], fed.ptr[k + 1] - fed.ptr[k]
        wbs, tails = simd.pointer(t.rec_wb, t.rec_ptr[k]), simd.pointer(t.tail, k * n_lanes)
        chunk = Chunk(n_lanes, t.step_ptr[k + 1] - step, simd.pointer(t.rec_mask, step), wbs, tails)
        found.fault[k] = _ends(chunk, fed.named[k], lane)
        if found.fault[k]:
            continue
        n_pairs = _follow(chunk, fed.named[k], lane, rows, n_rows, pairs)
        for n in range(n_lanes):
            found.entries[k] += lane.filled[n]
        if n_pairs == 0:
            found.fault[k] = LAYOUT
            continue
        found.fault[k] = _rows(rows, n_rows, t.carry_row[k], fed.before[k], fed.rank[k], t.empty_row)
        n_pads = chunk.n_steps * n_lanes - found.entries[k]
        if found.fault[k] == 0 and n_pads >= n_lanes:
            found.fault[k] = PADS
        if found.fault[k]:
            continue
        base, at, n_cols = np.int64(t.col_base[k]), t.col_ptr[k], t.shape[1]
        if base >= 0:
            narrow = simd.pointer(t.col_narrow, at)
            found.fault[k] = _columns(chunk, lane, narrow, n_cols - base, True, n_pads, pairs, n_pairs)
            found.ends[k, 0], found.ends[k, 1] = base + np.int64(narrow[pairs[0]]), base + np.int64(narrow[pairs[1]])
        else:
            wide = simd.pointer(t.col_wide, at)
            found.fault[k] = _columns(chunk, lane, wide, n_cols, False, n_pads, pairs, n_pairs)
            found.ends[k, 0], found.ends[k, 1] = wide[pairs[0]], wide[pairs[1]]


@helper
def _ends(chunk, named, lane):
    """How lanes end, by the records that name entries of tail: sets the first four of :class:`Lanes`.

    Returns ORDER or ENTRIES where these records cannot be right, else 0; the first `named` records must name rows.
    """
    n_steps = chunk.n_steps
    for n in range(chunk.n_lanes):
        lane.end[n] = lane.stolen[n] = 0
        lane.victim[n] = -1
    if named and _least(chunk.wbs, named) < 0:
        return ORDER
    record = step = 0
    while step < n_steps and record + masks.count(chunk.masks[step]) <= named:
        record += masks.count(chunk.masks[step])
        step += 1
    for last in range(step, n_steps):
        ended = chunk.masks[last]
        while ended:
            n = simd.lowest(ended)
            ended &= ended - ONE
            record += 1
            if record <= named:
                continue
            entry = ~np.int64(chunk.wbs[record - 1])
            if chunk.tails[entry] < 0:
                return ENTRIES
            if entry == n:
                if lane.end[n]:
                    return ENTRIES
                lane.end[n] = last + 1
            else:
                if last + 1 < n_steps:
                    return ENTRIES
                lane.victim[n] = entry
                lane.stolen[entry] += n_steps - _after_record(chunk, last, n)
    for n in range(chunk.n_lanes):
        if (chunk.tails[n] >= 0) != (lane.end[n] > 0):
            return ENTRIES
        lane.filled[n] = _after_record(chunk, n_steps, n)
    return 0


@helper
def _after_record(chunk, step, n):
    """The step after the last record of lane n before `step`, or 0."""
    while step and not chunk.masks[step - 1] >> np.uint32(n) & ONE:
        step -= 1
    return step


@helper
def _follow(chunk, named, lane, rows, n_rows, pairs):
    """Feed and steal as the conversion does: 0 where that does not lead to these records, else the numbers in `pairs`.

    Sets the rows in the order in which they are fed; and in `pairs` the slot of the first entry of the first row, that
    of the last entry of the last row, and then pairs of slots whose entries are neighbours in a row, though not in a
    lane.
    """
    n_lanes, n_steps = chunk.n_lanes, chunk.n_steps
    for n in range(n_lanes):
        lane.fed[n] = lane.taken_at[n] = lane.robs[n] = -1
        lane.begun[n] = 0
    pairs[0], n_pairs = 0, 2
    begin, record, next_row = _feed(chunk, named, lane, rows, n_rows)
    for step in range(begin, n_steps + 1):
        ended = chunk.masks[step - 1] if step else ALL >> np.uint32(WARP - n_lanes)
        while ended:
            n = simd.lowest(ended)
            ended &= ended - ONE
            if step:
                wb = np.int64(chunk.wbs[record])
                record += 1
                if next_row < n_rows:
                    if wb < 0:
                        return 0
                    rows[lane.fed[n]] = wb
                elif wb != ~(n if lane.robs[n] < 0 else lane.robs[n]) or lane.end[n] != step:
                    return 0
            if step == n_steps:
                continue
            if next_row < n_rows:
                lane.fed[n], lane.begun[n] = next_row, step
                next_row += 1
                if next_row == n_rows:
                    pairs[1] = (lane.end[n] - 1) * n_lanes + n
                    if not _all_fed(chunk, lane, rows):
                        return 0
            else:
                added = _steal(chunk, lane, n, step, pairs, n_pairs)
                if added < 0:
                    return 0
                n_pairs += added
    return n_pairs if next_row == n_rows else 0


@helper
def _feed(chunk, named, lane, rows, n_rows):
    """Feed rows up to the step in which the last one is fed; that step, and how many records and rows there are before
    it.
    """
    n_lanes = chunk.n_lanes
    if n_rows <= n_lanes:
        return 0, 0, 0
    for n in range(n_lanes):
        lane.fed[n] = n
    record, next_row = 0, n_lanes
    for step in range(1, chunk.n_steps):
        ended = chunk.masks[step - 1]
        count = masks.count(ended)
        if next_row + count >= n_rows or record + count > named:
            return step, record, next_row
        while ended:
            n = simd.lowest(ended)
            ended &= ended - ONE
            rows[lane.fed[n]] = chunk.wbs[record]
            lane.fed[n], lane.begun[n] = next_row, step
            record += 1
            next_row += 1
    return chunk.n_steps, record, next_row


@helper
def _all_fed(chunk, lane, rows):
    """Take from tail the rows that lanes work on once the last is fed, and from lanes what others steal; whether tail
    fits.
    """
    for n in range(chunk.n_lanes):
        if (lane.fed[n] >= 0) != (chunk.tails[n] >= 0):
            return False
        if lane.fed[n] >= 0:
            rows[lane.fed[n]] = chunk.tails[n]
        lane.end[n] += lane.stolen[n]
    return True


@helper
def _steal(chunk, lane, n, step, pairs, n_pairs):
    """Let lane n steal before `step`, or pad: how many numbers are added to `pairs`, -1 where its records do not fit."""
    n_lanes, n_steps = chunk.n_lanes, chunk.n_steps
    robbed = 0
    while robbed < n_lanes and lane.end[robbed] <= n_steps:
        robbed += 1
    if robbed == n_lanes:  # nothing to steal: the lane pads
        return -1 if lane.filled[n] > step else 0
    if lane.victim[n] != robbed or lane.filled[n] <= step:
        return -1
    # The row goes on from the victim, or from who stole before, to the thief's first slot, and from its last one back.
    first, last = step * n_lanes + n, (n_steps - 1) * n_lanes + n
    added = 2
    if lane.taken_at[robbed] == step:
        pairs[n_pairs], pairs[n_pairs + 1] = (n_steps - 1) * n_lanes + lane.taken_by[robbed], first
    elif step > lane.begun[robbed]:
        pairs[n_pairs], pairs[n_pairs + 1] = (step - 1) * n_lanes + robbed, first
    else:
        added = 0
        if lane.fed[robbed] == 0:
            pairs[0] = first
    pairs[n_pairs + added], pairs[n_pairs + added + 1] = last, step * n_lanes + robbed
    lane.taken_at[robbed], lane.taken_by[robbed], lane.robs[n] = step, n, robbed
    lane.end[robbed] -= n_steps - step
    lane.end[n] = n_steps
    return added + 2


@helper
def _rows(rows, n_rows, carry_row, before, rank, empty_row):
    """ROWS where a chunk's rows do not ascend from those of the chunk before, OWNER where one is empty too, or missing."""
    own = 0
    if carry_row >= 0:
        if rows[0] != carry_row:
            return ROWS
        own, before = 1, np.int64(carry_row)
    if own == n_rows:
        return 0
    first = np.int64(rows[own])
    if first <= before:
        return ROWS
    gaps = 0
    for j in range(own, n_rows):  # compiles to vector instructions
        gaps |= rows[j] - j ^ first - own
    if gaps == 0:
        return 0 if _owns(first, np.int64(rows[n_rows - 1]), first - rank - own, empty_row) else OWNER
    for j in range(own, n_rows):
        row = np.int64(rows[j])
        if row <= before:
            return ROWS
        if not _owns(row, row, row - rank - j, empty_row):
            return OWNER
        before = row
    return 0


@helper
def _owns(first, last, below, empty_row):
    """Whether the empty rows before row `first` are `below`, and there is none up to row `last`."""
    n_empty = len(empty_row)
    return (
        0 <= below <= n_empty and (below == 0 or empty_row[below - 1] < first) and (below == n_empty or empty_row[below] > last)
    )


@helper
def _columns(chunk, lane, columns, limit, is_narrow, n_pads, pairs, n_pairs):
    """RANGE, BASE, PAD_COLUMN or ASCENT where a chunk's columns cannot be right, else 0; they must lie in [0, limit)."""
    n_lanes, n_slots = chunk.n_lanes, chunk.n_steps * chunk.n_lanes
    every_lane, bounded = ALL >> np.uint32(WARP - n_lanes), limit < NARROW or not is_narrow
    least = 0 if is_narrow or n_pads == 0 else _least(columns, n_slots)
    whole = chunk.n_steps if n_pads == 0 else _least(lane.filled, n_lanes)  # steps before the first one with a pad
    outside, zeros, odd, falls = NONE, NONE, NONE, NONE
    for step in range(chunk.n_steps):
        at = step * n_lanes
        simd.prefetch(columns, at + AHEAD, simd.INTO_L1)
        pads = NONE if step < whole else _pads_in(lane.filled, n_lanes, step)
        goes_on = every_lane & ~(pads | chunk.masks[step - 1]) if step else NONE
        if at + WARP <= n_slots:
            if bounded:
                outside |= masks.at_least(columns, at, limit) & every_lane
            if is_narrow:
                zeros |= every_lane & ~simd.not_equal_mask(columns, at, 0)
            if pads:
                odd |= simd.not_equal_mask(columns, at, least) & pads
            if goes_on:
                falls |= masks.not_below(columns, at - n_lanes, at) & goes_on
        else:  # a vector would go on beyond the chunk
            for n in range(n_lanes):
                column, bit = np.int64(columns[at + n]), ONE << np.uint32(n)
                outside |= bit if column < 0 or column >= limit else NONE
                zeros |= bit if column == 0 else NONE
                odd |= bit & pads if column != least else NONE
                if goes_on & bit:
                    falls |= bit if columns[at - n_lanes + n] >= column else NONE
    if outside:
        return RANGE
    if is_narrow and not zeros:
        return BASE
    if odd:
        return PAD_COLUMN
    for p in range(2, n_pairs, 2):
        falls |= np.uint32(columns[pairs[p]] >= columns[pairs[p + 1]])
    return ASCENT if falls else 0


@helper
def _pads_in(filled, n_lanes, step):
    """Mask of the lanes that pad in a step."""
    pads = NONE
    for n in range(n_lanes):
        if filled[n] <= step:
            pads |= ONE << np.uint32(n)
    return pads


@kernel
def _pads(first, last, n_lanes, step_ptr, rec_mask, words, sized, counted, fault):
    """PAD_VALUE where a slot after its lane's last record holds anything but 0; the last but one: see
    :func:`value_words`.
    """
    every_lane, n = ALL >> np.uint32(WARP - n_lanes), len(sized)
    for k in range(first, last):
        real = NONE
        held = 0
        for step in range(step_ptr[k + 1] - 1, step_ptr[k] - 1, -1):
            real |= rec_mask[step]
            pads = every_lane & ~real
            if not pads:
                break
            while pads:
                at = (step * n_lanes + simd.lowest(pads)) * n
                pads &= pads - ONE
                for word in range(n):
                    held |= np.int64(words[at + word]) & counted
        if held and fault[k] == 0:
            fault[k] = PAD_VALUE
