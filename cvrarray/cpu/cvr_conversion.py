"""Conversion to CVR on the CPU.

The trackers of the paper are kept per *segment*: a lane works on one run of nonzeros, up to before step ``end``; at a
step it has nonzero ``source + step`` (the paper's ``valID``; its ``count`` is ``end - step``), and its sum goes to
``target`` (``rowID``). A step is then one gather of values and one of columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import CSR, NARROW, SPLITS, WARP, CVRTables, Runs
from cvrarray.cpu import distinct, simd
from cvrarray.cpu.csr import offsets
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled_by, helper, inlined, kernel

ROWS, EVEN = SPLITS.index("rows"), SPLITS.index("even")
GIVEN = len(SPLITS)  #: where the caller says
#: Where chunks are even, a row counts as one more nonzero, if chunks have so many nonzeros on average: then none is empty.
#: A cut moves by less than so many steps.
LEAST_WITH_ROWS, NEAR_STEPS = 4, 16
SHORT = 32  #: mean nonzeros of a row up to which scanning all columns is quicker than looking at the ends of rows
BATCH = 256  #: rows that are listed together, up to the first that is empty


class Cuts(NamedTuple):
    """The rows that have nonzeros, and where chunks cut them."""

    row: np.ndarray  # (n_rows,) I: the non-empty rows, ascending; what follows them is unused
    ptr: np.ndarray  # (n_rows + 1,) int64: offsets of these rows, and the end of the last one
    empty_row: np.ndarray  # (n_rows,) I: the other rows
    nonzero: np.ndarray  # (n_chunks + 1,) int64: chunk k has the nonzeros nonzero[k] .. nonzero[k + 1]
    first_row: np.ndarray  # (n_chunks,) int64: chunk k has nonzeros of the non-empty rows first_row[k] ..
    row_end: np.ndarray  # (n_chunks,) int64: .. to before row_end[k]
    rec_at: np.ndarray  # (n_chunks + 1,) int64: where a chunk has space for the most records that it may have
    low: np.ndarray  # (n_chunks,) I: smallest column
    high: np.ndarray  # (n_chunks,) I: largest column


class Lanes(NamedTuple):
    """What each lane of a chunk works on, while the chunk is laid out: pointers to 32 integers."""

    source: np.ndarray  # the nonzero of a step is source + step
    end: np.ndarray  # the step at which the lane is done; -1: it has nothing left to do
    target: np.ndarray  # the row that its sum goes to, or ~entry, an entry of the chunk's tail


def convert(csr: CSR, n_lanes: int, n_chunks: int, split: str) -> CVRTables:
    """The CVR tables of a canonical CSR matrix.

    Parameters
    ----------
    csr
        NumPy arrays; values may be :func:`cvrarray.cpu.distinct.nothing`, which are not laid out.
    n_lanes
        1 to 32.
    n_chunks
        At least 1; at most one chunk a nonzero is made.
    split
        One of ``SPLITS``: see :mod:`cvrarray.cvr`.
    """
    return _converted(csr, n_lanes, np.empty(min(n_chunks, csr.nnz) + 1, np.int64), SPLITS.index(split))


def convert_anew(csr: CSR, like: CVRTables) -> CVRTables:
    """The same, for chunks of as many nonzeros as those of other tables have: at least one each, and `csr.nnz` in all."""
    return _converted(csr, like.n_lanes, entry_ptr(like), GIVEN)


def _converted(csr: CSR, n_lanes: int, nonzero: np.ndarray, split: int) -> CVRTables:
    """The tables whose chunks begin and end at `nonzero` (n_chunks + 1,), which is filled unless `split` is GIVEN."""
    index, n_rows, n_chunks = csr.indices.dtype, csr.shape[0], nonzero.size - 1
    csr = csr._replace(indptr=offsets(csr.indptr, index))
    cuts = Cuts(
        row=np.empty(n_rows, index),
        ptr=np.empty(n_rows + 1, np.int64),
        empty_row=np.empty(n_rows, index),
        nonzero=nonzero,
        first_row=np.empty(n_chunks, np.int64),
        row_end=np.empty(n_chunks, np.int64),
        rec_at=np.empty(n_chunks + 1, np.int64),
        low=np.empty(n_chunks, index),
        high=np.empty(n_chunks, index),
    )
    source = CSR(csr.indptr, csr.indices, memory.bits(csr.data[:0] if distinct.is_nothing(csr.data) else csr.data), csr.shape)
    version = compiled_by(csr.indptr.dtype, index, source.data.dtype, n_lanes == WARP)
    step_ptr, col_base, col_ptr = np.empty(n_chunks + 1, np.int64), np.empty(n_chunks, index), np.empty(n_chunks, np.int64)
    to_cut = csr.indptr, n_lanes, split, cuts, step_ptr
    n_filled = version(_cut, *to_cut)(*to_cut)
    threads.run(version(_column_range, 0, 0, cuts, csr.indices), nonzero, cuts, csr.indices, least=threads.QUICK)
    to_place = n_lanes, step_ptr, cuts, col_base, col_ptr
    n_narrow, n_wide = version(_column_places, *to_place)(*to_place)
    n_steps = int(step_ptr[-1])
    val = memory.empty(n_steps * n_lanes if source.data.size else 0, csr.data.dtype)
    tables = CVRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        n_lanes=n_lanes,
        step_ptr=step_ptr,
        val=memory.bits(val),
        col_base=col_base,
        col_ptr=col_ptr,
        col_narrow=memory.empty(n_narrow, np.uint16),
        col_wide=memory.empty(n_wide, index),
        rec_mask=np.empty(n_steps, np.uint32),
        rec_ptr=np.empty(n_chunks + 1, np.int64),
        rec_wb=np.empty(cuts.rec_at[-1], index),  # chunks with gaps between them, until they are laid out
        tail=np.empty((n_chunks, n_lanes), index),
        carry_row=np.empty(n_chunks, index),
        cut_row=np.empty(n_chunks, index),
        cut_ptr=np.empty((n_chunks, 2), np.int64),
        empty_row=cuts.empty_row[: n_rows - n_filled].copy(),
    )
    to_fill = source, cuts, tables, (0,) * (n_lanes == WARP)
    threads.run(version(_lay_out, 0, 0, *to_fill), nonzero, *to_fill, least=threads.QUICK)
    n_cut = version(_finish, cuts, tables)(cuts, tables)
    tables.rec_wb.resize(int(tables.rec_ptr[-1]), refcheck=False)  # gives back what was too much
    return tables._replace(val=val, cut_row=tables.cut_row[:n_cut].copy(), cut_ptr=tables.cut_ptr[:n_cut].copy())


def entry_ptr(t: CVRTables) -> np.ndarray:
    """(n_chunks + 1,) int64: offsets by the entries of chunks."""
    entry_ptr = np.zeros(len(t.step_ptr), np.int64)
    threads.run(_count_entries, t.step_ptr, t.n_lanes, t.step_ptr, t.rec_mask, entry_ptr, unit=t.n_lanes)
    memory.accumulate(entry_ptr)
    return entry_ptr


def fill(tables: CVRTables, runs: Runs, data: np.ndarray, values: np.ndarray) -> None:
    """Write the value table `values` of the structure `tables`, whose values `data` are in the order of a canonical
    CSR.
    """
    t = tables
    past = memory.goes_past_caches(values)
    args = (t.step_ptr, *runs, memory.bits(data), t.n_lanes, (0,) * (t.n_lanes == WARP), past, memory.bits(values))
    version = compiled_by(args[4].dtype, runs[2].dtype, t.n_lanes == WARP)
    threads.run(version(_fill_chunks, 0, 0, *args), t.step_ptr, *args, unit=t.n_lanes, least=threads.QUICK)


@inlined
def _filled_rows(indptr, cuts):
    """List the rows that have nonzeros, with their offsets and the last one's end, and those that have none."""
    n_rows, n_filled, n_empty, any_empty = len(indptr) - 1, 0, 0, 0
    begin, row = simd.pointer(indptr, 0), simd.pointer(cuts.row, 0)
    ptr, empty_row = simd.pointer(cuts.ptr, 0), simd.pointer(cuts.empty_row, 0)
    while n_filled < n_rows and not any_empty:
        end = min(n_filled + BATCH, n_rows)
        for r in range(n_filled, end):  # without a way out, so it compiles to vector instructions, as the next loop
            any_empty |= begin[r] == begin[r + 1]
        for r in range(n_filled, n_filled if any_empty else end):
            ptr[r], row[r] = begin[r], r
        n_filled = n_filled if any_empty else end
    for r in range(n_filled, n_rows):
        row[n_filled] = r
        ptr[n_filled] = begin[r]
        empty_row[n_empty] = r
        filled = begin[r] < begin[r + 1]
        n_filled += filled
        n_empty += not filled
    ptr[n_filled] = begin[n_rows]
    return n_filled


@kernel
def _cut(indptr, n_lanes, split, cuts, step_ptr):
    """Where chunks begin and end, in nonzeros, non-empty rows and steps; and where each has space for its records.

    The number of non-empty rows is returned.
    """
    ptr, nonzero, first_row, row_end, rec_at = cuts.ptr, cuts.nonzero, cuts.first_row, cuts.row_end, cuts.rec_at
    n_rows, n_chunks = _filled_rows(indptr, cuts), len(first_row)
    nonzero[0] = step_ptr[0] = rec_at[0] = 0
    if n_chunks == 0:
        return n_rows
    of_row = int(split == EVEN and ptr[n_rows] >= n_chunks * LEAST_WITH_ROWS)
    work = ptr[n_rows] + of_row * n_rows
    share, rest = work // n_chunks, work % n_chunks
    r = 0
    for k in range(1, n_chunks if split != GIVEN else 1):
        aim = k * share + min(k, rest)
        r = _row_at(ptr, n_rows, r, aim, of_row)
        ideal = min(max(ptr[r], aim - of_row * r), ptr[r + 1])
        nonzero[k] = _row_end_near(ptr, n_rows, r, ideal, n_lanes, share, split) if split else ideal
    nonzero[n_chunks] = ptr[n_rows]
    r = 0
    for k in range(n_chunks):
        r = _row_at(ptr, n_rows, r, nonzero[k], 0)
        first_row[k] = r
        if k:
            row_end[k - 1] = r + (nonzero[k] > ptr[r])
        step_ptr[k + 1] = step_ptr[k] + (nonzero[k + 1] - nonzero[k] + n_lanes - 1) // n_lanes
    row_end[n_chunks - 1] = n_rows
    for k in range(n_chunks):
        rec_at[k + 1] = rec_at[k] + row_end[k] - first_row[k] + n_lanes - 1
    return n_rows


@helper
def _row_at(ptr, n_rows, low, nonzero, of_row):
    """The last non-empty row, from `low` on, that begins at a nonzero or before, where each row counts as so many more: by
    doubling steps, as it is near, then halving ones.
    """
    step, last = 1, n_rows - 1
    while low + step <= last and ptr[low + step] + of_row * (low + step) <= nonzero:
        low += step
        step *= 2
    while step > 1:
        step //= 2
        if low + step <= last and ptr[low + step] + of_row * (low + step) <= nonzero:
            low += step
    return low


@inlined
def _row_end_near(ptr, n_rows, r, ideal, n_lanes, share, split):
    """The end of a group of rows, else of row r, that is less than half a share from the `ideal` cut; else that cut.

    Where chunks are even, the end of row r that is less than a quarter and NEAR_STEPS away.
    """
    group = r - r % n_lanes
    by_group = _nearer(ideal, ptr[group], ptr[min(group + n_lanes, n_rows)])
    by_row = _nearer(ideal, ptr[r], ptr[r + 1])
    most = min(share, 4 * NEAR_STEPS * n_lanes) if split == EVEN else 2 * share
    if split == ROWS and 4 * abs(by_group - ideal) < most:
        return by_group
    return by_row if 4 * abs(by_row - ideal) < most else ideal


@inlined
def _nearer(to, low, high):
    return low if to - low <= high - to else high


@kernel
def _column_range(first, last, cuts, indices):
    """Smallest and largest column of every chunk. Columns increase in a row, so a long row's ends tell."""
    nonzero, ptr = cuts.nonzero, cuts.ptr
    for k in range(first, last):
        begin, first_row, row_end = nonzero[k], cuts.first_row[k], cuts.row_end[k]
        columns, length = simd.pointer(indices, begin), nonzero[k + 1] - begin
        least = most = columns[0]
        if length < SHORT * (row_end - first_row):
            for i in range(length):  # compiles to vector instructions
                least = min(least, columns[i])
                most = max(most, columns[i])
        else:
            for row in range(first_row, row_end):
                least = min(least, columns[max(ptr[row] - begin, 0)])
                most = max(most, columns[min(ptr[row + 1] - begin, length) - 1])
        cuts.low[k], cuts.high[k] = least, most


@kernel
def _column_places(n_lanes, step_ptr, cuts, col_base, col_ptr):
    """Which chunks are narrow, and where each has its columns; the slots of narrow chunks and of others."""
    n_narrow = n_wide = 0
    for k in range(len(col_base)):
        slots = (step_ptr[k + 1] - step_ptr[k]) * n_lanes
        if cuts.high[k] - cuts.low[k] < NARROW:
            col_base[k], col_ptr[k] = cuts.low[k], n_narrow
            n_narrow += slots
        else:
            col_base[k], col_ptr[k] = -1, n_wide
            n_wide += slots
    return n_narrow, n_wide


@kernel
def _lay_out(first, last, csr, cuts, t, vectors):
    """Feed, record, steal and pad, chunk by chunk, as the definition has it; every step is written whole, without values
    where there are none.

    ``t.rec_ptr`` gets the number of each chunk's records, and ``t.rec_wb`` the records from ``cuts.rec_at[k]`` on.
    """
    n_lanes = t.tail.shape[1]
    ints = simd.SINGLE
    lanes = Lanes(simd.scratch(cuts.ptr, ints), simd.scratch(cuts.ptr, ints), simd.scratch(cuts.row, ints))
    for k in range(first, last):
        n_steps, begin, end = t.step_ptr[k + 1] - t.step_ptr[k], cuts.nonzero[k], cuts.nonzero[k + 1]
        rows, offsets = simd.pointer(cuts.row, cuts.first_row[k]), simd.pointer(cuts.ptr, cuts.first_row[k])
        n_rows, next_row = cuts.row_end[k] - cuts.first_row[k], 0
        records, n_done = simd.pointer(t.rec_wb, cuts.rec_at[k]), 0
        rec_mask = simd.pointer(t.rec_mask, t.step_ptr[k])
        busy = np.uint32(0)
        _open_lanes(lanes, n_lanes)
        for step in range(n_steps + 1):
            ended = ~simd.not_equal_mask(lanes.end, 0, step)
            if step:
                rec_mask[step - 1] = ended & busy
            while ended:
                lane = simd.lowest(ended)
                bit = ended & (~ended + np.uint32(1))
                ended ^= bit
                if busy & bit:
                    records[n_done] = lanes.target[lane]
                    n_done += 1
                busy |= bit
                if next_row < n_rows:
                    start = max(offsets[next_row], begin)
                    lanes.source[lane] = start - step
                    lanes.end[lane] = step + min(offsets[next_row + 1], end) - start
                    lanes.target[lane] = rows[next_row]
                    next_row += 1
                    if next_row == n_rows:
                        _open_tail(lanes, simd.pointer(t.tail, k * n_lanes), n_lanes)
                elif not _steal(lanes, lane, n_lanes, step, n_steps):
                    busy ^= bit
            if step < n_steps:
                # The next chunk's entries, which are as many, are prefetched while this chunk's are copied.
                simd.prefetch(csr.data, end + step * n_lanes, simd.INTO_L1)
                simd.prefetch(csr.indices, end + step * n_lanes, simd.INTO_L1)
                _write_step(csr, t, k, step, lanes.source, busy, cuts.low[k], vectors)
        t.rec_ptr[k] = n_done


@inlined
def _open_lanes(lanes, n_lanes):
    """All lanes of a chunk are out of work at step 0, and those from `n_lanes` on at no step."""
    for lane in range(WARP):
        lanes.end[lane] = 0 if lane < n_lanes else -1
        lanes.source[lane] = 0
        lanes.target[lane] = -1


@inlined
def _open_tail(lanes, tail, n_lanes):
    """The last row is fed: `tail` takes the rows of all lanes, whose sums from now on go to its entries."""
    for entry in range(n_lanes):
        tail[entry] = lanes.target[entry]
        lanes.target[entry] = ~entry


@inlined
def _steal(lanes, lane, n_lanes, step, n_steps):
    """Take the share of a lane up to the end of the chunk from the lowest lane that has more than that, if one has."""
    victim = 0
    while victim < n_lanes and lanes.end[victim] <= n_steps:
        victim += 1
    if victim == n_lanes:
        lanes.end[lane] = -1
        return False
    lanes.source[lane] = lanes.source[victim]
    lanes.end[lane] = n_steps
    lanes.target[lane] = lanes.target[victim]
    lanes.source[victim] += n_steps - step
    lanes.end[victim] -= n_steps - step
    return True


@inlined
def _write_step(csr, t, k, step, source, busy, low, vectors):
    """A step's values and columns; pads have value 0 and the chunk's smallest column, `low`."""
    n_lanes = t.tail.shape[1]
    at, col_at = (t.step_ptr[k] + step) * n_lanes, t.col_ptr[k] + step * n_lanes
    narrow, has_values = t.col_base[k] >= 0, len(csr.data) > 0
    if len(vectors):
        if has_values:
            simd.store(simd.gather(csr.data, step, source, 0, busy), t.val, at, simd.WHOLE)
        columns = simd.pointer(csr.indices, step)
        if narrow:
            simd.gather_store(columns, source, busy, low, low, t.col_narrow, col_at)
        else:
            simd.gather_store(columns, source, busy, low, 0, t.col_wide, col_at)
        return
    for lane in range(n_lanes):
        column, is_entry = low, busy >> np.uint32(lane) & np.uint32(1)
        if is_entry:
            column = csr.indices[source[lane] + step]
        if has_values:
            t.val[at + lane] = csr.data[source[lane] + step] if is_entry else t.val.dtype.type(0)
        if narrow:
            t.col_narrow[col_at + lane] = column - low
        else:
            t.col_wide[col_at + lane] = column


@kernel
def _finish(cuts, t):
    """Turn counts of records into offsets, close the gaps between records, and list the rows that chunks' starts cut.

    The number of these rows is returned.
    """
    rec_ptr, carry_row, cut_row, cut_ptr = t.rec_ptr, t.carry_row, t.cut_row, t.cut_ptr
    total = 0
    n_cut = 0
    for k in range(len(carry_row)):
        n_records = rec_ptr[k]
        to, records = simd.pointer(t.rec_wb, total), simd.pointer(t.rec_wb, cuts.rec_at[k])
        for r in range(n_records):
            to[r] = records[r]
        rec_ptr[k] = total
        total += n_records
        carry_row[k] = -1
        first_row = cuts.first_row[k]
        if cuts.nonzero[k] > cuts.ptr[first_row]:
            carry_row[k] = cuts.row[first_row]
            if n_cut == 0 or cut_row[n_cut - 1] != carry_row[k]:
                cut_row[n_cut] = carry_row[k]
                cut_ptr[n_cut, 0] = k
                n_cut += 1
            cut_ptr[n_cut - 1, 1] = k + 1
    rec_ptr[len(carry_row)] = total
    return n_cut


@kernel
def _fill_chunks(first, last, step_ptr, run_mask, run_ptr, starts, data, n_lanes, vectors, past, values):
    """From the last step to the first, as :func:`_scatter_chunk`; pads have 0."""
    source = simd.scratch(starts, simd.SINGLE)
    for k in range(first, last):
        for lane in range(n_lanes):
            source[lane] = 0
        run, real = run_ptr[k + 1], np.uint32(0)
        for step in range(step_ptr[k + 1] - 1, step_ptr[k] - 1, -1):
            ended = run_mask[step]
            real |= ended
            while ended:
                lane = simd.highest(ended)
                ended ^= np.uint32(1) << np.uint32(lane)
                run -= 1
                source[lane] = starts[run]
            if len(vectors):
                simd.stream(simd.gather(data, step, source, 0, real), values, step * n_lanes, past)
            else:
                for lane in range(n_lanes):
                    values[step * n_lanes + lane] = 0
                    if real >> np.uint32(lane) & np.uint32(1):
                        values[step * n_lanes + lane] = data[source[lane] + step]


@kernel
def _count_entries(first, last, n_lanes, step_ptr, rec_mask, entry_ptr):
    """entry_ptr[k + 1] = entries of chunk k: those up to each lane's last record."""
    for k in range(first, last):
        done = np.uint32(0)
        total = 0
        for step in range(step_ptr[k + 1] - 1, step_ptr[k] - 1, -1):
            done |= rec_mask[step]
            for lane in range(n_lanes):
                total += done >> np.uint32(lane) & np.uint32(1)
        entry_ptr[k + 1] = total
