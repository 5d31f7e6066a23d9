"""CVR on the CPU: conversion, product and the way back, on raw arrays.

A chunk is laid out and multiplied by one thread; chunks are handed out in contiguous ranges
(:mod:`cvrarray.cpu.runtime.threads`). Chunks depend on the conversion's parameters alone, never on the threads.

Kernels take the tables as they are, as one named tuple ``t``; float16 values as
:func:`cvrarray.cpu.runtime.memory.values` has them. What decides which loops a kernel has comes as a tuple of its
own, of which only the length counts: it is known when the kernel is compiled (see :mod:`cvrarray.cpu.simd`).

The trackers of the paper are kept per *segment*: a lane works on one run of nonzeros, up to before step ``end``; at a
step it has nonzero ``source + step`` (the paper's ``valID``; its ``count`` is ``end - step``), and its sum goes to
``target`` (``rowID``). A step is then one gather of values and one of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from cvrarray.core.arrays import Run
from cvrarray.core.distinct import pads_with_zero
from cvrarray.core.tables import CSR, NARROW, SPLITS, THREES, WARP, CVRTables, Runs
from cvrarray.cpu import decoding, distinct, simd, statistics
from cvrarray.cpu.csr import offsets
from cvrarray.cpu.products import locality, parts, tiling
from cvrarray.cpu.products.scaling import scaled
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled, helper, inlined, kernel
from cvrarray.cpu.runtime.team import Work
from cvrarray.cpu.simd import masks

#: Steps a chunk should have: STEPS, fewer (to MIN_STEPS) where there would be less than ENOUGH_CHUNKS, more (to
#: MAX_STEPS) where rows are longer. Measured: ``docs/measurements/cpu-kernels.md``.
MIN_STEPS, STEPS, MAX_STEPS = 32, 64, 512
ENOUGH_CHUNKS = 256
#: The same where keeping lanes in phase brings nothing (rows whose lengths spread over UNEVEN times their mean) or is
#: automatic (row triplets).
MIN_LONG, LONG, UNEVEN = 256, 512, 0.5
#: Row triplets are looked for at SAMPLED_TRIPLETS places; with a share of the nonzeros of at least MOSTLY in them
#: chunks have 24 lanes.
SAMPLED_TRIPLETS, MOSTLY = 256, 0.5

ALL = np.uint32(0xFFFFFFFF)  #: mask of all lanes
CONTIGUOUS, SCALAR, GATHER, TRIPLETS = range(4)  #: how x is loaded, by ``simd.gather_...`` or ``simd.gather``
ROWS, EVEN = SPLITS.index("rows"), SPLITS.index("even")
GIVEN = len(SPLITS)  #: where the caller says
#: Where chunks are even, a row counts as one more nonzero, if chunks have so many nonzeros on average: then none is empty.
#: A cut moves by less than so many steps.
LEAST_WITH_ROWS, NEAR_STEPS = 4, 16
SHORT = 32  #: mean nonzeros of a row up to which scanning all columns is quicker than looking at the ends of rows
BATCH = 256  #: rows that are listed together, up to the first that is empty
MANY = 7  #: lanes from which it is quicker to feed them as vectors
NO_PADDING = -1  #: no narrow column: pads have their chunk's smallest


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


class Sums(NamedTuple):
    """Where the sums of a chunk go."""

    y: np.ndarray
    carry: np.ndarray  # (n_chunks,)
    tail: np.ndarray  # pointer to the sums of the entries of the chunk's tail
    chunk: int
    carry_row: int  # the row whose sum goes to carry[chunk], or -1


def default_n_lanes(csr: CSR) -> int:
    """Lanes for a matrix: WARP, two AVX-512 vectors of float32; or THREES.

    Where most nonzeros lie in triplets of rows with the same columns, as those of a mesh's vertex with three
    unknowns, the three lie in neighbouring lanes. One load of x serves them, and 24 lanes keep it so throughout a
    chunk.
    """
    share = statistics.in_threes(csr.indptr, csr.indices, SAMPLED_TRIPLETS)
    return THREES if share >= MOSTLY else WARP


def default_n_chunks(csr: CSR, n_lanes: int) -> int:
    """Chunks for a matrix: whole groups of `n_lanes` average rows, in about STEPS steps.

    A group of long rows is cut where it would leave too few chunks, or have more than MAX_STEPS steps. Short chunks
    keep lanes in phase, so that they find x side by side. Where nothing keeps or nothing breaks the phase, long ones
    have fewer ends.
    """
    n_rows, nnz = csr.shape[0], csr.nnz
    least, most = MIN_STEPS, STEPS
    mean = max(1.0, nnz / max(1, n_rows))
    if n_lanes == THREES or (mean <= STEPS and statistics.spread(csr.indptr) >= UNEVEN):
        least, most = MIN_LONG, LONG
    share = nnz / (n_lanes * ENOUGH_CHUNKS)
    wanted = min(max(share, least), most)
    steps = min(mean * max(1, round(wanted / mean)), max(share, wanted), MAX_STEPS)
    return max(1, round(nnz / (steps * n_lanes)))


def default_split(csr: CSR, n_lanes: int) -> str:
    """Where chunks end."""
    return "rows"


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
    return _converted(csr, like.n_lanes, _entry_ptr(like), GIVEN)


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
    kernels = _conversion(csr.indptr.dtype, index, memory.bits(csr.data).dtype, n_lanes)
    step_ptr, col_base, col_ptr = np.empty(n_chunks + 1, np.int64), np.empty(n_chunks, index), np.empty(n_chunks, np.int64)
    n_filled = kernels.cut(csr.indptr, n_lanes, split, cuts, step_ptr)
    threads.run(kernels.column_range, cuts.nonzero, cuts, csr.indices, least=threads.QUICK)
    n_narrow, n_wide = kernels.column_places(n_lanes, step_ptr, cuts, col_base, col_ptr)
    n_steps = int(step_ptr[-1])
    source = csr._replace(data=memory.bits(csr.data[:0] if distinct.is_nothing(csr.data) else csr.data))
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
    threads.run(kernels.lay_out, cuts.nonzero, source, cuts, tables, simd.width(n_lanes), least=threads.QUICK)
    n_cut = kernels.finish(cuts, tables)
    tables.rec_wb.resize(int(tables.rec_ptr[-1]), refcheck=False)  # gives back what was too much
    return tables._replace(val=val, cut_row=tables.cut_row[:n_cut].copy(), cut_ptr=tables.cut_ptr[:n_cut].copy())


def product(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y``.

    x (n_cols,) and y (n_rows,) are contiguous arrays of `dtype`: any number type but bool (compute ``bool @ bool`` in
    int64 and cast). alpha and beta are scalars of it. Where beta is 0, y is written and never read.
    """
    args = _args_of_product(tables, dtype)
    t, like = args[0], np.empty(0, dtype)
    rows = threads.prepare(compiled(_product, 0, 0, *args, like, like, like), t.step_ptr, t.n_lanes)
    add_carries = compiled(_add_carries, 0, 0, t.cut_row, t.cut_ptr, like, like)
    n_chunks, n_cut = len(t.carry_row), len(t.cut_row)

    def multiply(x: np.ndarray, y: np.ndarray) -> None:
        carry = np.empty(n_chunks, dtype)
        rows(*args, x, y, carry)
        if n_cut:
            add_carries(0, n_cut, t.cut_row, t.cut_ptr, carry, y)

    return scaled(multiply)


def row_sums(tables: CVRTables, dtype: np.dtype) -> Callable[[np.ndarray], None]:
    """``run(y)``, which does ``y = A @ ones``, y (n_rows,) of `dtype`, as for :func:`product`: columns are not read."""
    t = _for_kernels(tables, dtype)
    like, width, level = np.empty(0, dtype), simd.width(t.n_lanes), simd.prefetch_level(tables.val)
    rows = threads.prepare(compiled(_row_sums, 0, 0, t, width, level, like, like), t.step_ptr, t.n_lanes)
    add_carries = compiled(_add_carries, 0, 0, t.cut_row, t.cut_ptr, like, like)

    def add_up(y: np.ndarray) -> None:
        carry = np.empty(len(t.carry_row), dtype)
        rows(t, width, level, y, carry)
        add_carries(0, len(t.cut_row), t.cut_row, t.cut_ptr, carry, y)

    return add_up


def column_sums(tables: CVRTables, dtype: np.dtype) -> Callable[[np.ndarray], None] | None:
    """``run(y)``, which does ``y = A.T @ ones``, y (n_cols,) of `dtype`, as for :func:`product_transposed`: slots are added
    up, whatever rows they are of.

    None where numbers stand for values and that in pads not for 0.
    """
    if not pads_with_zero(tables.distinct):
        return None
    t, like = _for_kernels(tables, dtype), np.empty(0, dtype)
    add_up = _by_parts(t, _add_slots, (t,), dtype)
    return lambda y: add_up(like, y)


def work_of_product(tables: CVRTables, x: np.ndarray, y: np.ndarray) -> list[Work]:
    """``y = A @ x`` as calls one after the other, for loops in compiled code. x and y are as for :func:`product`."""
    args = _args_of_product(tables, x.dtype)
    t, carry = args[0], np.empty(len(tables.carry_row), x.dtype)
    rows = Work(_product, (*args, x, y, carry), t.step_ptr, t.n_lanes)
    if not len(t.cut_row):
        return [rows]
    return [rows, Work(_add_carries, (t.cut_row, t.cut_ptr, carry, y), np.arange(len(t.cut_row) + 1))]


def _args_of_product(tables: CVRTables, dtype: np.dtype) -> tuple[Any, ...]:
    """What :func:`_product` takes before x, y and the carries."""
    t = _for_kernels(tables, dtype)
    width = simd.width(t.n_lanes)
    scalar = np.empty(0, np.uint8)
    if len(width) == WARP:  # other kernels have one way to load x
        scalar = locality.prefers_scalar_loads(t.step_ptr, (t.n_lanes, 1), t, np.dtype(dtype).itemsize)
    # Kernels have only the loops that a matrix needs: other loops would cost these registers.
    wide = (0,) if len(t.col_wide) else ()
    return t, width, wide, simd.prefetch_level(tables.val), scalar


def product_matrix(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``.

    X (n_cols, k) and Y (n_rows, k) are C-contiguous arrays, otherwise as for :func:`product`; k is any number of
    columns.
    """
    t = _for_kernels(tables, dtype)
    like = np.empty(0, dtype)

    @cache
    def rows(tile: tuple[int, ...]) -> Callable:
        return threads.prepare(compiled(_product_matrix, 0, 0, t, 0, 0, tile, like, like, like), t.step_ptr, t.n_lanes)

    def multiply(x: np.ndarray, y: np.ndarray, first: int, tile: tuple[int, ...]) -> None:
        carry = np.empty((len(t.carry_row), len(tile)), y.dtype)
        rows(tile)(t, y.shape[1], first, tile, x.ravel(), y.ravel(), carry.ravel())
        if len(t.cut_row):
            _add_carry_rows(t.cut_row, t.cut_ptr, first, carry, y)

    return tiling.product(multiply)


def product_transposed(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A.T @ x + beta * y``, from the tables of :func:`product`.

    x (n_rows,) and y (n_cols,) are as there. A call takes up to ``parts.MOST_VECTORS`` times the memory of y.
    """
    t = _for_kernels(tables, dtype)
    return scaled(_by_parts(t, _scatter, (t, simd.width(t.n_lanes)), dtype))


def _by_parts(t: CVRTables, scatter: Callable, args: tuple[Any, ...], dtype: np.dtype) -> Callable:
    """``multiply(x, y)`` by a kernel that scatters."""
    n_cols = t.shape[1]
    low, high = parts.column_ranges(t.step_ptr, (t.n_lanes, 1), t, NO_PADDING, n_cols)
    of = parts.divide(t.step_ptr, t.n_lanes, low, high, n_cols)
    return parts.transposed(scatter, of, t.step_ptr, t.n_lanes, args, n_cols, dtype)


def _entry_ptr(t: CVRTables) -> np.ndarray:
    """(n_chunks + 1,) int64: offsets by the entries of chunks."""
    entry_ptr = np.zeros(len(t.step_ptr), np.int64)
    threads.run(_count_entries, t.step_ptr, t.n_lanes, t.step_ptr, t.rec_mask, entry_ptr, unit=t.n_lanes)
    memory.accumulate(entry_ptr)
    return entry_ptr


def to_csr(tables: CVRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last), numbered as the tables have them."""
    return decoding.from_cvr(tables, first, last)


def fill(tables: CVRTables, runs: Runs, data: np.ndarray, values: np.ndarray) -> None:
    """Write the value table `values` of the structure `tables`, whose values `data` are in the order of a canonical
    CSR.
    """
    t = tables
    past = memory.goes_past_caches(values)
    args = (t.step_ptr, *runs, memory.bits(data), t.n_lanes, simd.width(t.n_lanes), past, memory.bits(values))
    kernel = _filler(args[4].dtype, runs[2].dtype, t.n_lanes)
    threads.run(kernel, t.step_ptr, *args, unit=t.n_lanes, least=threads.QUICK)


@cache
def _filler(bits: np.dtype, starts: np.dtype, n_lanes: int) -> Callable:
    """One look-up takes less time than Numba's choice of a version at each call."""
    number, values = np.empty(0, np.int64), np.empty(0, bits)
    runs = np.empty(0, np.uint32), number, np.empty(0, starts)
    return compiled(_fill_chunks, 0, 0, number, *runs, values, 0, simd.width(n_lanes), False, values)


def _for_kernels(t: CVRTables, dtype: np.dtype) -> CVRTables:
    """The tables as products in `dtype` take them: `val` is what :func:`cvrarray.cpu.distinct.values` gives."""
    return t._replace(val=distinct.values(t.val, t.distinct, dtype), distinct=None)


class Conversion(NamedTuple):
    """The kernels of a conversion, compiled for the dtypes of a matrix."""

    cut: Callable
    column_range: Callable
    column_places: Callable
    lay_out: Callable
    finish: Callable


@cache
def _conversion(indptr: np.dtype, index: np.dtype, bits: np.dtype, n_lanes: int) -> Conversion:
    """One look-up takes less time than Numba's choice of a version at each call: most conversions are short."""
    number, offset, numbers = np.empty(0, index), np.empty(0, np.int64), np.empty((0, 0), index)
    csr = CSR(np.empty(0, indptr), number, np.empty(0, bits), (0, 0))
    cuts = Cuts(number, offset, number, offset, offset, offset, offset, number, number)
    tables = CVRTables(
        (0, 0), 0, 0, offset, csr.data, number, offset, np.empty(0, np.uint16), number, np.empty(0, np.uint32), offset,
        number, numbers, number, number, np.empty((0, 0), np.int64), number
    )  # fmt: skip
    return Conversion(
        cut=compiled(_cut, csr.indptr, 0, 0, cuts, offset),
        column_range=compiled(_column_range, 0, 0, cuts, number),
        column_places=compiled(_column_places, 0, offset, cuts, number, offset),
        lay_out=compiled(_lay_out, 0, 0, csr, cuts, tables, simd.width(n_lanes)),
        finish=compiled(_finish, cuts, tables),
    )


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
def _lay_out(first, last, csr, cuts, t, width):
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
            n_ended = masks.count(ended)
            # Enough lanes, whole rows for all of them, and space for a vector of records.
            if (
                simd.COMPRESSES
                and n_ended >= MANY
                and step
                and next_row + n_ended < n_rows
                and n_done + WARP < n_rows + n_lanes
            ):
                done = simd.load(lanes.target, 0, lanes.target, simd.WHOLE)
                n_done = simd.compress(done, ended & busy, records, n_done)
                next_row = _feed(lanes, ended, step, offsets, rows, next_row)
                busy, ended = busy | ended, np.uint32(0)
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
                _write_step(csr, t, k, step, lanes.source, busy, cuts.low[k], width)
        t.rec_ptr[k] = n_done


@inlined
def _feed(lanes, ended, step, offsets, rows, next_row):
    """Feed the lanes in `ended` the next rows, all of which lie in the chunk as a whole; the row after them."""
    simd.expand(offsets, next_row, ended, lanes.source)
    simd.expand(offsets, next_row + 1, ended, lanes.end)
    simd.expand(rows, next_row, ended, lanes.target)
    for lane in range(WARP):
        fed = -np.int64(ended >> np.uint32(lane) & np.uint32(1))
        lanes.source[lane] -= step & fed
        lanes.end[lane] -= lanes.source[lane] & fed
    return next_row + masks.count(ended)


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
def _write_step(csr, t, k, step, source, busy, low, width):
    """A step's values and columns; pads have value 0 and the chunk's smallest column, `low`."""
    n_lanes = t.tail.shape[1]
    at, col_at = (t.step_ptr[k] + step) * n_lanes, t.col_ptr[k] + step * n_lanes
    narrow, has_values = t.col_base[k] >= 0, len(csr.data) > 0
    if len(width):
        if has_values:
            simd.store(simd.gather(csr.data, step, source, 0, busy), t.val, at, width)
        columns = simd.pointer(csr.indices, step)
        if narrow:
            simd.gather_store(columns, source, busy, low, low, t.col_narrow, col_at, width)
        else:
            simd.gather_store(columns, source, busy, low, 0, t.col_wide, col_at, width)
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
def _product(first, last, t, width, wide, level, scalar, x, y, carry):
    """``scalar[k]`` tells how a wide chunk of 32 lanes loads x; `wide` is empty where no chunk is wide."""
    tail = simd.scratch(y, simd.SINGLE)
    for k in range(first, last):
        simd.store(simd.zeros(y, simd.WHOLE), tail, 0, simd.WHOLE)
        to = Sums(y, carry, tail, k, t.carry_row[k])
        if len(width) == 0:
            if len(wide) == 0 or t.col_base[k] >= 0:
                _chunk_by_lane(t, k, t.col_base[k], t.col_narrow, x, to)
            else:
                _chunk_by_lane(t, k, 0, t.col_wide, x, to)
        elif len(wide) == 0 or t.col_base[k] >= 0:
            load_by = TRIPLETS if len(width) == THREES else CONTIGUOUS
            _chunk(t, k, load_by, t.col_base[k], t.col_narrow, width, level, x, to)
        elif len(width) == THREES:
            _chunk(t, k, TRIPLETS, 0, t.col_wide, width, level, x, to)
        elif scalar[k]:
            _chunk(t, k, SCALAR, 0, t.col_wide, width, level, x, to)
        else:
            _chunk(t, k, GATHER, 0, t.col_wide, width, level, x, to)
        _store_tail(t, k, tail, to)
    _clear_empty_rows(first, last, t, y)


@kernel
def _row_sums(first, last, t, width, level, y, carry):
    """:func:`_product` with an x of ones, which is not there."""
    tail, sums = simd.scratch(y, simd.SINGLE), simd.scratch(y, simd.SINGLE)
    for k in range(first, last):
        simd.store(simd.zeros(y, simd.WHOLE), tail, 0, simd.WHOLE)
        to, record, acc = Sums(y, carry, tail, k, t.carry_row[k]), t.rec_ptr[k], simd.zeros(y, simd.WHOLE)
        for lane in range(t.n_lanes):
            sums[lane] = 0
        for step in range(t.step_ptr[k], t.step_ptr[k + 1]):
            simd.prefetch(t.val, (step + simd.STEPS_AHEAD) * t.n_lanes, level)
            ended = t.rec_mask[step]
            if len(width):
                acc = simd.add(acc, simd.load(t.val, step * len(width), y, width))
                if ended:
                    simd.store(acc, sums, 0, simd.WHOLE)
                    acc = simd.clear(acc, ended)
            else:
                for lane in range(t.n_lanes):
                    sums[lane] += simd.load_number(t.val, step * t.n_lanes + lane, y)
            while ended:
                lane = simd.lowest(ended)
                ended &= ended - np.uint32(1)
                _write(t.rec_wb[record], sums[lane], to)
                record += 1
                sums[lane] = 0
        _store_tail(t, k, tail, to)
    _clear_empty_rows(first, last, t, y)


@inlined
def _store_tail(t, k, tail, to):
    """Write the sums of the rows with which the lanes of chunk k end."""
    for lane in range(t.n_lanes):
        if t.tail[k, lane] >= 0:
            _store(t.tail[k, lane], tail[lane], to)


@inlined
def _clear_empty_rows(first, last, t, y):
    """Set to 0 the share of the empty rows that goes with these chunks."""
    begin, end = _empty_rows(first, last, len(t.carry_row), len(t.empty_row))
    for i in range(begin, end):
        y[t.empty_row[i]] = 0


@inlined
def _empty_rows(first, last, n_chunks, n_empty):
    """The share of the empty rows that the call for the chunks `first` to before `last` sets to 0."""
    n_shares = max(n_chunks, 1)
    return n_empty * first // n_shares, n_empty * last // n_shares if last < n_chunks else n_empty


@inlined
def _chunk(t, k, load_by, base, col, width, level, x, to):
    """Multiply a chunk of 24 or 32 lanes, whose columns are `base` plus `col`."""
    record, at = t.rec_ptr[k], t.col_ptr[k]
    sums = simd.scratch(to.y, simd.BATCH_ROW)
    n_sums = 0
    acc = simd.zeros(to.y, simd.WHOLE)
    for step in range(t.step_ptr[k], t.step_ptr[k + 1]):
        _prefetch_step(t.val, step, col, at, load_by, width, level)
        values = simd.load(t.val, step * len(width), to.y, width)
        if load_by == TRIPLETS:
            entries = simd.gather_triplets(x, base, col, at)
        elif load_by == CONTIGUOUS:
            entries = simd.gather_contiguous(x, base, col, at)
        elif load_by == SCALAR:
            entries = simd.gather_scalar(x, base, col, at)
        else:
            entries = simd.gather(x, base, col, at, ALL)
        acc = simd.multiply_add(acc, values, entries)
        at += len(width)
        ended = t.rec_mask[step]
        if ended:
            if load_by == CONTIGUOUS or to.y.itemsize > 4 or not simd.COMPRESSES:
                simd.store(acc, sums, 0, simd.WHOLE)
                record = _write_back(ended, record, t.rec_wb, sums, to)
            else:
                n_sums = simd.compress(acc, ended, sums, n_sums)
                if n_sums > simd.BATCH - WARP:
                    record = _write_batch(n_sums, record, t.rec_wb, sums, to)
                    n_sums = 0
            acc = simd.clear(acc, ended)
    _write_batch(n_sums, record, t.rec_wb, sums, to)


@inlined
def _prefetch_step(val, step, col, at, load_by, width, level):
    """Prefetch the values and columns of a later step, as far ahead as suits the way in which x is loaded."""
    if load_by == CONTIGUOUS:
        simd.prefetch(val, (step + simd.STEPS_AHEAD) * WARP, level)
        simd.prefetch(col, at + simd.STEPS_AHEAD * WARP, level)
    else:
        simd.prefetch(val, (step + simd.STEPS_AHEAD_INTO_L2) * len(width), simd.INTO_L2)
        simd.prefetch(col, at + simd.STEPS_AHEAD_INTO_L2 * len(width), simd.INTO_L2)
    if load_by == TRIPLETS:
        simd.prefetch(val, (step + simd.STEPS_AHEAD_IN_BLOCKS) * len(width), simd.INTO_L1)
        simd.prefetch(col, at + simd.STEPS_AHEAD_IN_BLOCKS * len(width), simd.INTO_L1)


@inlined
def _chunk_by_lane(t, k, base, col, x, to):
    """Multiply a chunk of any number of lanes, whose columns are `base` plus `col`."""
    record, at, n_lanes = t.rec_ptr[k], t.col_ptr[k], t.n_lanes
    sums = simd.scratch(to.y, simd.SINGLE)
    simd.store(simd.zeros(to.y, simd.WHOLE), sums, 0, simd.WHOLE)
    for step in range(t.step_ptr[k], t.step_ptr[k + 1]):
        for lane in range(n_lanes):
            sums[lane] += simd.load_number(t.val, step * n_lanes + lane, x) * x[base + col[at + lane]]
        at += n_lanes
        ended = t.rec_mask[step]
        if ended:
            record = _write_back(ended, record, t.rec_wb, sums, to)
            for lane in range(n_lanes):
                if ended >> np.uint32(lane) & np.uint32(1):
                    sums[lane] = 0


@inlined
def _write_back(ended, record, rec_wb, sums, to):
    """Take the sums of the lanes in `ended` where their records say; the number of the next record."""
    while ended:
        lane = simd.lowest(ended)
        ended &= ended - np.uint32(1)
        _write(rec_wb[record], sums[lane], to)
        record += 1
    return record


@inlined
def _write_batch(n_sums, record, rec_wb, sums, to):
    """:func:`_write_back` of sums that lie side by side: one loop is mispredicted less often than one for each step."""
    for i in range(n_sums):
        _write(rec_wb[record + i], sums[i], to)
    return record + n_sums


@inlined
def _write(wb, total, to):
    if wb < 0:
        to.tail[~wb] += total
    else:
        _store(wb, total, to)


@inlined
def _store(row, total, to):
    if row == to.carry_row:
        to.carry[to.chunk] = total
    else:
        to.y[row] = total


@kernel
def _add_carries(first, last, cut_row, cut_ptr, carry, y):
    for i in range(first, last):
        for k in range(cut_ptr[i, 0], cut_ptr[i, 1]):
            y[cut_row[i]] += carry[k]


@kernel
def _product_matrix(first, last, t, k, first_column, tile, x, y, carry):
    """As many columns as `tile` is long, from `first_column` on, of x and y, which have k columns each and are flat."""
    x, y = simd.pointer(x, first_column), simd.pointer(y, first_column)
    tail = simd.scratch(y, tile)
    for chunk in range(first, last):
        to = Sums(y, carry, tail, chunk, t.carry_row[chunk])
        if t.col_base[chunk] >= 0:
            _chunk_matrix(t, t.col_narrow, k, tile, simd.pointer(x, t.col_base[chunk] * k), to)
        else:
            _chunk_matrix(t, t.col_wide, k, tile, x, to)
    begin, end = _empty_rows(first, last, len(t.carry_row), len(t.empty_row))
    for i in range(begin, end):
        simd.store(simd.zeros(y, tile), y, t.empty_row[i] * k, tile)


@inlined
def _chunk_matrix(t, col, k, tile, x, to):
    """Lane by lane from record to record: a row's sums stay in registers, and a chunk's values in the cache."""
    n, n_lanes, first_step, at = len(tile), t.n_lanes, t.step_ptr[to.chunk], t.col_ptr[to.chunk]
    begin = simd.scratch(t.step_ptr, simd.SINGLE)
    for lane in range(n_lanes):
        begin[lane] = first_step
        simd.store(simd.zeros(x, tile), to.tail, lane * n, tile)
    done = 0
    record = t.rec_ptr[to.chunk]
    for step in range(first_step, t.step_ptr[to.chunk + 1]):
        ended = t.rec_mask[step]
        while ended:
            lane = simd.lowest(ended)
            ended &= ended - np.uint32(1)
            slot = (begin[lane] - first_step) * n_lanes + lane
            values = simd.pointer(t.val, begin[lane] * n_lanes + lane)
            length = step + 1 - begin[lane]
            tiling.prefetch_ahead(t.val, first_step * n_lanes + done, length)
            tiling.prefetch_ahead(col, at + done, length)
            done += length
            acc = _row(simd.pointer(col, at + slot), values, length, n_lanes, k, tile, x)
            begin[lane] = step + 1
            wb = t.rec_wb[record]
            record += 1
            if wb < 0:
                simd.store(simd.add_row(acc, to.tail, ~wb * n), to.tail, ~wb * n, tile)
            else:
                _store_row(wb, acc, k, tile, to)
    for lane in range(n_lanes):
        row = t.tail[to.chunk, lane]
        if row >= 0:
            _store_row(row, simd.add_row(simd.zeros(x, tile), to.tail, lane * n), k, tile, to)


@inlined
def _row(columns, values, length, stride, k, tile, x):
    """The sum of `length` entries, `stride` apart, times rows of x: in two sums that do not wait for each other."""
    even = simd.zeros(x, tile)
    odd = simd.zeros(x, tile)
    for s in range(0, length - 1, 2):
        even = simd.multiply_add_row(even, values, s * stride, x, columns[s * stride] * k)
        odd = simd.multiply_add_row(odd, values, (s + 1) * stride, x, columns[(s + 1) * stride] * k)
    if length % 2:
        s = length - 1
        even = simd.multiply_add_row(even, values, s * stride, x, columns[s * stride] * k)
    return simd.add(even, odd)


@inlined
def _store_row(row, acc, k, tile, to):
    if row == to.carry_row:
        simd.store(acc, to.carry, to.chunk * len(tile), tile)
    else:
        simd.store(acc, to.y, row * k, tile)


@kernel
def _add_carry_rows(cut_row, cut_ptr, first_column, carry, y):
    for i in range(len(cut_row)):
        for chunk in range(cut_ptr[i, 0], cut_ptr[i, 1]):
            for j in range(carry.shape[1]):
                y[cut_row[i], first_column + j] += carry[chunk, j]


@kernel
def _add_slots(first, last, part, t, x, sums):
    """:func:`_scatter` with an x of ones: `x` only tells their dtype."""
    for p in range(first, last):
        y = parts.open_part(p, part, sums)
        for k in range(part.tile[p], part.tile[p + 1]):
            begin, end = t.step_ptr[k] * t.n_lanes, t.step_ptr[k + 1] * t.n_lanes
            if t.col_base[k] >= 0:
                _add_chunk_slots(t.val, begin, end, simd.pointer(t.col_narrow, t.col_ptr[k]), x, simd.pointer(y, t.col_base[k]))
            else:
                _add_chunk_slots(t.val, begin, end, simd.pointer(t.col_wide, t.col_ptr[k]), x, y)


@inlined
def _add_chunk_slots(val, begin, end, columns, like, y):
    for slot in range(end - begin):
        y[columns[slot]] += simd.load_number(val, begin + slot, like)


@kernel
def _scatter(first, last, part, t, width, x, sums):
    for p in range(first, last):
        y = parts.open_part(p, part, sums)
        for k in range(part.tile[p + 1] - 1, part.tile[p] - 1, -1):
            if t.col_base[k] >= 0:
                _scatter_chunk(t, k, t.col_narrow, width, x, simd.pointer(y, t.col_base[k]))
            else:
                _scatter_chunk(t, k, t.col_wide, width, x, y)


@inlined
def _scatter_chunk(t, k, col, width, x, y):
    """From the last step to the first: a record tells the row of the slots before it, and a lane's pads come first.

    Chunks are taken from the last to the first too, so that memory is read in one direction.
    """
    n_lanes = t.n_lanes
    entries = simd.scratch(x, simd.SINGLE)
    record = t.rec_ptr[k + 1]
    real = np.uint32(0)
    at = t.col_ptr[k] + (t.step_ptr[k + 1] - t.step_ptr[k]) * n_lanes
    for step in range(t.step_ptr[k + 1] - 1, t.step_ptr[k] - 1, -1):
        at -= n_lanes
        simd.prefetch(t.val, (step - simd.STEPS_AHEAD) * n_lanes, simd.INTO_L1)
        simd.prefetch(col, at - simd.STEPS_AHEAD * n_lanes, simd.INTO_L1)
        ended = t.rec_mask[step]
        real |= ended
        while ended:
            lane = simd.highest(ended)
            ended ^= np.uint32(1) << np.uint32(lane)
            record -= 1
            wb = t.rec_wb[record]
            entries[lane] = x[wb if wb >= 0 else t.tail[k, ~wb]]
        if len(width) and real == ALL >> np.uint32(WARP - n_lanes):
            values = simd.load(t.val, step * n_lanes, x, width)
            terms = simd.multiply_add(simd.zeros(x, simd.WHOLE), values, simd.load(entries, 0, x, simd.WHOLE))
            simd.scatter_add(terms, y, col, at, width)
        else:
            for lane in range(n_lanes):
                if real >> np.uint32(lane) & np.uint32(1):
                    y[col[at + lane]] += simd.load_number(t.val, step * n_lanes + lane, x) * entries[lane]


@kernel
def _fill_chunks(first, last, step_ptr, run_mask, run_ptr, starts, data, n_lanes, width, past, values):
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
            if len(width) and past:
                simd.stream(simd.gather(data, step, source, 0, real), values, step * n_lanes, width)
            elif len(width):
                simd.store(simd.gather(data, step, source, 0, real), values, step * n_lanes, width)
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
