"""CVR on the GPU. The same functions as :mod:`cvrarray.cpu.cvr`; the kernels' files say what each does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import cupy
import numpy as np

from ..core import few_columns
from ..core.arrays import Run
from ..core.tables import CSR, SPLITS, WARP, CVRTables, Runs, Wanted
from . import (
    bbcsr,
    cvr_matmat,
    distinct,
    left_in_l2,
    plan,
    prefix,
    row_lanes,
    rows_as_entries,
    segments,
    shared_memory,
)
from .captures import synchronize
from .compiler import ROWS_OF_X, STORED, Kernel
from .copied import structure
from .cvr_tables import (
    BLOCK,
    FEW_WAVES,
    INDICES,
    STEPS,
    WAVE,
    as_struct,
    blocks_for_empty,
    cuts_of_chunks,
    n_slots,
    wave,
    waves,
)
from .launches import ACCUMULATE, NULL, PLAIN, SCALE, argument, blocks, scaling, struct, update
from .look import Look, host, read
from .memory import leading, together
from .properties import processors
from .words import WORDS, as_words

#: Steps that are loaded before the first is multiplied, by the size of the product's dtype. As many warps fit a
#: multiprocessor as with 8 steps without the next ones' columns.
UNROLL = {1: 6, 2: 6, 4: 6, 8: 6, 16: 4}
#: Entries of rows that count as long where columns are far apart, as in BBCSR's ``is_far``.
LONG = 40
#: Steps a chunk should have: STEPS, fewer (to MIN_STEPS) where a multiprocessor would not have ENOUGH_CHUNKS to be busy, more
#: (to MAX_STEPS) where rows are longer. Measured: ``docs/measurements/gpu-products.md``.
MIN_STEPS, MAX_STEPS, ENOUGH_CHUNKS = 32, 512, 56
#: A matrix of less than FEW_WAVES waves has a whole number of them, or chunks of LEAST_STEPS where that is fewer. One of
#: less than a wave has fewer chunks than the device holds with short values: so each has more steps between its ends.
LEAST_STEPS = 12
#: Steps of a chunk that the way back has in shared memory: the kernel's ``Window``.
STEPS_OF_WINDOW = 16

OFFSETS_AND_INDICES = [("int32", "int32"), ("int64", "int32"), ("int64", "int64")]


def warps_of_windows(index: np.dtype, value: np.dtype) -> int:
    """Warps a block of ``cvr_rows``, each with a ``Window`` of steps in the 48 KB of shared memory."""
    bytes_of_window = STEPS_OF_WINDOW * (WARP + 1) * (4 + np.dtype(index).itemsize + np.dtype(value).itemsize)
    return 4 if 4 * bytes_of_window <= 48 << 10 else 2


SPLIT_ROWS = Kernel("cvr_convert", "cvr_split_rows", OFFSETS_AND_INDICES)
COUNT = Kernel("cvr_convert", "cvr_count", OFFSETS_AND_INDICES)
FILL = Kernel(
    "cvr_convert",
    "cvr_fill",
    [(*offsets, value) for offsets in OFFSETS_AND_INDICES for value in ("bool", "float32", "complex128")]
    + [("int32", "int32", "float16")],
)
ROW_LENGTHS = Kernel("cvr_convert", "cvr_row_lengths", INDICES)
ROWS = Kernel(
    "cvr_convert",
    "cvr_rows",
    [("int32", word) for word in WORDS.values()] + [("int64", "uint64")],
    lambda index, word: (index, word, warps_of_windows(index, word)),
)
VALUES = Kernel("cvr_values", "cvr_values", [(word,) for word in WORDS.values()])
MATVEC = Kernel(
    "cvr_matvec",
    "cvr_matvec",
    [
        (*dtypes, *how)
        for dtypes in STORED + ROWS_OF_X
        for how in (
            ("int32", WARP, int(PLAIN), False, False),
            ("int32", WARP, int(ACCUMULATE), True, True),
            ("int64", WARP, int(SCALE), False, True),
            ("int32", 4, int(PLAIN), True, False),
        )
    ],
    lambda value, product, index, n_lanes, form, cut, keeps: (
        value, product, index, n_lanes, UNROLL[product.itemsize], form, cut, keeps,
    ),
)  # fmt: skip


def default_n_lanes(csr: CSR) -> int:
    """Lanes for a matrix: a warp."""
    return WARP


def default_n_chunks(csr: CSR, n_lanes: int) -> int:
    """Chunks for a matrix: whole groups of `n_lanes` average rows, in about STEPS steps.

    A group of long rows is cut where it would leave too few chunks for the device, or have more than MAX_STEPS steps.
    Small matrices fill the device a whole number of times: see ``WAVE``.
    """
    n_rows, nnz = csr.shape[0], csr.nnz
    mean = max(1.0, nnz / max(1, n_rows))
    n_waves = waves(nnz, n_lanes, csr.data.dtype)
    if n_waves < FEW_WAVES:
        many = wave(csr.data.dtype) * round(n_waves) if n_waves >= 1 else round(WAVE[1] * processors())
        return max(1, min(many, round(nnz / (n_lanes * LEAST_STEPS))))
    share = nnz / (n_lanes * ENOUGH_CHUNKS * processors())
    wanted = min(max(share, MIN_STEPS), STEPS)
    steps = min(mean * max(1, round(wanted / mean)), max(share, wanted), MAX_STEPS)
    return max(1, round(nnz / (steps * n_lanes)))


def default_split(csr: CSR, n_lanes: int) -> str:
    """Where chunks end: where few waves are all, the longest chunk is waited for, so they are even."""
    return "even" if waves(csr.nnz, n_lanes, csr.data.dtype) < FEW_WAVES else "rows"


def chunks_for_columns(csr: CSR, n_lanes: int, columns: int) -> dict[str, Any]:
    """``n_chunks`` for products with so many columns, and their ``split``, which is that of a vector's.

    A thread block has a chunk, and multiplies it by a tile of columns. What it does before the first step and after the
    last one counts. So chunks are long, and all blocks fill the device a whole number of times.
    """
    if few_columns.suit_chunks(few_columns.row_bytes(csr.data.dtype, columns), is_row_by_row=False):
        return {}  # those of a vector
    of = cvr_matmat.Kind(csr.shape, csr.nnz, n_lanes, csr.data.dtype)
    n_chunks = cvr_matmat.limited(default_n_chunks(csr, n_lanes), of, columns)
    return {"n_chunks": n_chunks, "split": default_split(csr, n_lanes)}


def convert(csr: CSR, n_lanes: int, n_chunks: int, split: str) -> CVRTables:
    """Canonical CSR on the current device as CVR tables there, which the current stream fills. `n_chunks` is at most
    ``csr.nnz``, and 0 without nonzeros.
    """
    index = csr.indices.dtype
    row_id, ptr, empty_row = _without_empty_rows(csr)
    n_rows = ptr.size - 1
    warps = blocks(n_chunks * WARP, BLOCK)

    n_sizes, n_states = 4 * (n_chunks + 1), prefix.n_states(4 * (n_chunks + 1))
    counts, chunk_ptr, col_low = together((n_sizes + n_states, np.int64), (n_chunks + 1, np.int64), (n_chunks, index))
    col_base, carry_row = together((n_chunks, index), (n_chunks, index))
    totals = [0] * 4
    if n_chunks:
        pointer, numbers = host()
        COUNT(ptr.dtype, index)(
            warps,
            (BLOCK,),
            (ptr, row_id, csr.indices, np.int64(n_rows), np.int64(csr.nnz), np.int64(n_chunks), np.int32(n_lanes),
             np.int32(SPLITS.index(split)), chunk_ptr, counts, np.uint64(counts.data.ptr + 8 * n_sizes), np.int32(n_states),
             col_low, col_base, carry_row),
        )  # fmt: skip
        sums = prefix.sums(counts, n_sizes, pointer, 4)
        synchronize()
        ends = numbers[:4].tolist()
        totals = [end - before for end, before in zip(ends, [0, *ends], strict=False)]
    t = _empty_tables(csr, n_lanes, n_chunks, totals, (col_base, carry_row, empty_row))
    if n_chunks:
        offsets = struct(sums, col_base, carry_row, t.step_ptr, t.rec_ptr, t.col_ptr, t.cut_row, t.cut_ptr, n_chunks)
        FILL(ptr.dtype, index, csr.data.dtype)(
            warps,
            (BLOCK,),
            (ptr, row_id, csr.indices, csr.data, np.int64(n_rows), chunk_ptr, np.int32(n_lanes), offsets, col_low, t.val,
             t.col_narrow, t.col_wide, t.rec_mask, t.rec_wb, t.tail),
        )  # fmt: skip
    return t


def _empty_tables(csr: CSR, n_lanes: int, n_chunks: int, totals: list[int], known: tuple[Any, Any, Any]) -> CVRTables:
    """Tables to be filled, with those that are `known`. `totals`: steps, records, slots of narrow chunks, cut rows."""
    index, (n_steps, n_records, n_narrow, n_cut) = csr.indices.dtype, totals
    col_base, carry_row, empty_row = known
    step_ptr, rec_ptr, col_ptr, cut_ptr, rec_mask, rec_wb, tail, cut_row, col_wide, col_narrow = together(
        (n_chunks + 1, np.int64),
        (n_chunks + 1, np.int64),
        (n_chunks, np.int64),
        ((n_cut, 2), np.int64),
        (n_steps, np.uint32),
        (n_records, index),
        ((n_chunks, n_lanes), index),
        (n_cut, index),
        (n_steps * n_lanes - n_narrow, index),
        (n_narrow, np.uint16),
    )
    if not n_chunks:
        step_ptr.fill(0)
        rec_ptr.fill(0)
    return CVRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        n_lanes=n_lanes,
        step_ptr=step_ptr,
        val=cupy.empty(n_steps * n_lanes, csr.data.dtype),
        col_base=col_base,
        col_ptr=col_ptr,
        col_narrow=col_narrow,
        col_wide=col_wide,
        rec_mask=rec_mask,
        rec_ptr=rec_ptr,
        rec_wb=rec_wb,
        tail=tail,
        carry_row=carry_row,
        cut_row=cut_row,
        cut_ptr=cut_ptr,
        empty_row=empty_row,
    )


def _without_empty_rows(csr: CSR) -> tuple[Any, cupy.ndarray, cupy.ndarray]:
    """The non-empty rows' numbers (null where that is all rows) and offsets, and the empty rows' numbers."""
    index, n_rows, seen = csr.indices.dtype, csr.shape[0], csr.seen.survey
    if n_rows and (seen is None or not seen.is_of(csr) or (seen.filled is None and seen.numbers[1])):
        seen = Look(csr.indptr, csr.indices, csr.shape[1], Wanted(filled=True), checks=False).found().survey
    n_filled = n_rows - seen.numbers[1] if n_rows else 0
    if n_filled == n_rows:
        return NULL, csr.indptr, cupy.empty(0, index)
    first = seen.filled.size - -(-n_rows // WARP) - 1
    return _split_rows(csr.indptr, index, seen.filled.data.ptr + 8 * first, n_filled)


def _split_rows(indptr: cupy.ndarray, index: np.dtype, filled: int, n_filled: int) -> tuple[Any, cupy.ndarray, cupy.ndarray]:
    """The numbers and offsets of the `n_filled` rows that are not empty, and the numbers of the others. `filled` is where
    the kernel's numbers lie.
    """
    n_rows = indptr.size - 1
    ptr, row_id = together((n_filled + 1, indptr.dtype), (n_filled, index))
    empty_row = cupy.empty(n_rows - n_filled, index)
    SPLIT_ROWS(indptr.dtype, index)(
        blocks(n_rows, BLOCK), (BLOCK,), (indptr, np.uint64(filled), np.int64(n_rows), ptr, row_id, empty_row)
    )
    return row_id, ptr, empty_row


def product(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y`` on the current device and stream.

    `x` and `y` are contiguous and `dtype`, the product's, as are the scalars.
    """
    t = tables
    by_segments = segments.cut(t, dtype)
    if by_segments is not None:
        return segments.product(t, dtype, by_segments, partial(slots_by_rows, t))
    by_rows = row_lanes.product(t, dtype, partial(slots_by_rows, t))
    if by_rows is not None:
        return by_rows

    keeps, turns = left_in_l2.keeps(left_in_l2.bytes_of_tables(t)), left_in_l2.turns()

    @cache
    def multiply(form):
        return MATVEC(distinct.kind(t.val, t.distinct), dtype, t.tail.dtype, t.n_lanes, int(form), t.cut_row.size > 0, keeps)

    n_for_empty = blocks_for_empty(t.empty_row.size, BLOCK)
    grid = (max(1, n_for_empty + -(-t.carry_row.size * WARP // BLOCK)),)
    chunks, cuts_of_stream, n_empty = as_struct(t), cuts_of_chunks(t, dtype), argument(np.int32(n_for_empty))

    def plain(x, y, alpha, beta):
        found = multiply(update(alpha, beta))
        found(grid, (BLOCK,), (chunks, x, y, cuts_of_stream(), n_empty, *scaling(alpha, beta)[:2], next(turns)))

    ways = [plan.Candidate("chunks, plain", lambda: plain)]
    if shared_memory.is_large(t):
        ways.append(plan.Candidate("chunks, shared", lambda: shared_memory.product(t, dtype, as_struct, cuts_of_stream)))
    return plan.fastest(ways, structure(t), ("A @ x", dtype))


def product_stack(
    tables: CVRTables, values: cupy.ndarray, dtype: np.dtype
) -> Callable[[cupy.ndarray, cupy.ndarray], None] | None:
    """As that of BBCSR, where :func:`product` has as many slots for every row: then both add in one order, so BBCSR's kernel
    multiplies by a copy of the values in that format's order. Else None.
    """
    is_even = row_lanes.longest_even(tables, dtype, partial(slots_by_rows, tables))[1]
    if segments.cut(tables, dtype) is not None or not is_even:
        return None
    numbers = slots_by_rows(tables)
    bins = bbcsr.convert(numbers._replace(indptr=numbers.indptr.astype(numbers.indices.dtype, copy=False)), 1)
    copy = values.take(cupy.maximum(bins.data - 1, 0), axis=1)  # what padding has is not multiplied
    return bbcsr.product_stack(bins, copy, dtype)


def numbers_pay(t: CVRTables) -> bool:
    """Whether products gain by values that are looked up: as with BBCSR, not in long rows whose columns are far apart."""
    return t.col_wide.size <= t.col_narrow.size or t.nnz <= LONG * t.shape[0]


def product_matrix(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``; X (n_cols, k) and Y (n_rows, k) in C
    order.
    """
    t = tables

    def of_vector(entry):
        if not few_columns.suit_chunks(entry.itemsize, is_row_by_row=False):
            return row_lanes.product(t, entry, partial(slots_by_rows, t))
        takes_segments = segments.cut(t, dtype) is not None and segments.cut(t, entry) is None  # but by fewer columns
        return None if takes_segments else product(t, entry)

    of_matrix = cvr_matmat.product(t, dtype, partial(slots_by_rows, t), partial(_of_slots, t.n_lanes))
    return rows_as_entries.product(dtype, of_vector, of_matrix)


def fill(tables: CVRTables, runs: Runs, data: cupy.ndarray, values: cupy.ndarray) -> None:
    """Write the value table `values` of the structure `tables`, whose values `data` are in the order of a canonical
    CSR.
    """
    t, data, values = tables, as_words(data), as_words(values)
    n_chunks = t.carry_row.size
    VALUES(values.dtype)(
        blocks(n_chunks * WARP, BLOCK), (BLOCK,), (t.step_ptr, np.int64(n_chunks), np.int32(t.n_lanes), *runs, data, values)
    )


def to_csr(tables: CVRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last), numbered as the tables have them, which may be those of some chunks.

    Nothing is sorted: with the lengths of rows the conversion can be done again, from slots to entries. It waits only for
    a part of the rows.
    """
    t, index, (n_rows, n_cols) = tables, tables.tail.dtype, tables.shape
    n_chunks, n_lanes = t.carry_row.size, np.int32(t.n_lanes)
    if not n_chunks:
        return CSR(cupy.zeros(last - first + 1, np.int64), cupy.empty(0, index), t.val[:0], (last - first, n_cols))
    # counted in one array: entries of rows, entries of chunks, rows of each warp that have any; each with a 0 before
    of_chunks, of_warps = n_rows + 1, n_rows + n_chunks + 2
    n_sizes, warps = of_warps + -(-n_rows // WARP) + 1, blocks(n_chunks * WARP, BLOCK)
    counts = cupy.zeros(n_sizes + prefix.n_states(n_sizes), np.int64)
    begins = [np.uint64(counts.data.ptr + 8 * k) for k in (0, of_chunks, of_warps)]
    ROW_LENGTHS(index)(
        warps, (BLOCK,), (np.int64(n_chunks), n_lanes, t.step_ptr, t.rec_ptr, t.rec_mask, t.rec_wb, t.tail, *begins)
    )
    sums = prefix.sums(counts, n_sizes)
    indptr, is_whole = leading(sums, of_chunks), (first, last) == (0, n_rows)
    if is_whole:
        nnz, n_filled = t.nnz, n_rows - t.empty_row.size
    else:
        begin, end, nnz, before, n_filled = read(sums[[first, last, n_rows, of_warps, n_sizes - 1]]).tolist()
        n_filled -= before
    ptr = indptr if n_filled == n_rows else _split_rows(indptr, index, sums.data.ptr + 8 * of_warps, n_filled)[1]
    indices, data = cupy.empty(nnz, index), cupy.empty(nnz, t.val.dtype)
    words = as_words(data)
    threads = WARP * warps_of_windows(index, words.dtype)
    ROWS(index, words.dtype)(
        blocks(n_chunks * WARP, threads),
        (threads,),
        (ptr, np.int64(n_filled), np.uint64(sums.data.ptr + 8 * of_chunks), np.int64(n_chunks), n_lanes, t.step_ptr, t.col_ptr,
         t.col_base, t.col_narrow, t.col_wide, as_words(t.val), indices, words),
    )  # fmt: skip
    if is_whole:
        return CSR(indptr.copy(), indices, data, t.shape)  # which does not keep the other sums
    rows = indptr[first : last + 1] - indptr[first]
    return CSR(rows, indices[begin:end].copy(), data[begin:end].copy(), (last - first, n_cols))


def slots_by_rows(t: CVRTables) -> CSR:
    """Canonical CSR with the number of each entry's slot for its value, from 1."""
    size = n_slots(t)
    numbers = cupy.arange(1, size + 1, dtype=np.int32 if size < 1 << 31 else np.int64)
    return to_csr(t._replace(val=numbers), 0, t.shape[0])


def _of_slots(n_lanes: int, slots: CSR, n_chunks: int) -> CVRTables:
    """Tables in so many chunks of a CSR whose values are the numbers of slots, from 1; 0: a pad."""
    ptr = slots.indptr.astype(slots.indices.dtype, copy=False)
    # the bits of floats, for which there is a kernel
    return convert(slots._replace(indptr=ptr, data=slots.data.view(np.float32)), n_lanes, n_chunks, "even")
