"""CVR on the GPU. The same functions as :mod:`cvrarray.cpu.cvr`; the kernels' files say what each does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.tables import CSR, SPLITS, WARP, CVRTables, Runs, Wanted
from . import distinct, long_rows, prefix, row_lanes, segments, shared_memory, transposed
from .autotune import Run, autotuned
from .compiler import (
    ACCUMULATE,
    MATRIX_LANES,
    NULL,
    PLAIN,
    SCALE,
    STORED,
    Kernel,
    PerStream,
    Scratch,
    Struct,
    Tiles,
    aside,
    blocks,
    matrix_grid,
    matrix_width,
    processors,
    struct,
    synchronize,
    update,
    vector_width,
)
from .look import Look, host, read
from .memory import together
from .rechunked import Rechunked
from .words import WORDS, as_words

BLOCK = 128  # threads: four chunks
#: Steps that are loaded before the first is multiplied, by the size of the product's dtype. As many warps fit a
#: multiprocessor as with 8 steps without the next ones' columns.
UNROLL = {1: 6, 2: 6, 4: 6, 8: 6, 16: 4}
#: Empty rows a thread, at least, and blocks for empty rows, at most, in ``A @ x``.
EMPTY_ROWS_A_THREAD, MOST_BLOCKS_FOR_EMPTY = 8, 1 << 14
#: Entries of rows that count as long where columns are far apart, as in BBCSR's ``is_far``.
LONG = 40
#: ``A @ X``: bytes of a row of X that one load of a group of lanes covers, at most. L2 answers so many requests, of up
#: to a cache line each.
MATRIX_LINE = 128
#: ``A @ X``: nonzeros a column, in the mean, from which rows of X are met again in L1 while few rows of A advance together.
REUSED = 64
#: ``A @ X``: bytes of a row of X from which a warp has it, where rows of X are reused, and steps of a chunk then.
LONG_ROW, LONG_STEPS = 512, 1024
#: ``A @ X``: threads that a multiprocessor holds, and nonzeros from which a matrix is not small.
MATRIX_THREADS, SMALL = 1024, 1_000_000
#: ``A @ X``: an array with more chunks than k columns should have gets chunks for the last of these numbers of columns
#: that X has; with fewer columns it keeps its own. Where rows of X are reused, there are further ones.
COLUMNS, FURTHER = (16, 64), (128, 256)
#: ``A @ X``: bytes of a row of X, at most. Kernels count them in 32 bits.
MOST_ROW_BYTES = 2_000_000_000
#: ``A @ X``: bytes of a sum, at most, in the kernel where a warp has a row of X: the shared memory of a thread block.
MOST_OF_WARPS = 8
#: Steps of a chunk for wide X whose rows are reused.
REUSED_STEPS = 96
#: Steps a chunk should have: STEPS, fewer (to MIN_STEPS) where there would not be ENOUGH_CHUNKS to keep the device
#: busy, more (to MAX_STEPS) where rows are longer. Measured: ``docs/decisions/0003-gpu-products.md``.
MIN_STEPS, STEPS, MAX_STEPS, ENOUGH_CHUNKS = 32, 64, 512, 7392
#: Chunks that are under way at once, with values of at most 4 bytes and longer ones: 92% of the warps that an H200's
#: 132 multiprocessors hold, as some of them store empty rows. A few chunks more would wait for all of these. So a
#: matrix of less than FEW_WAVES times as many chunks gets a whole multiple, or chunks of LEAST_STEPS where that is
#: fewer.
WAVE, FEW_WAVES, LEAST_STEPS = (3880, 2910), 3, 12
#: Steps of a chunk that the way back has in shared memory: the kernel's ``Window``.
STEPS_OF_WINDOW = 16

OFFSETS_AND_INDICES = [("int32", "int32"), ("int64", "int32"), ("int64", "int64")]
INDICES = [("int32",), ("int64",)]


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
SLOTS = Kernel("cvr_convert", "cvr_slots", INDICES)
ROW_LENGTHS = Kernel("cvr_convert", "cvr_row_lengths", INDICES)
ROWS = Kernel(
    "cvr_convert",
    "cvr_rows",
    [("int32", word) for word in WORDS.values()] + [("int64", "uint64")],
    lambda index, word: (index, word, warps_of_windows(index, word)),
)
SPANS = Kernel("cvr_convert", "cvr_spans")
VALUES = Kernel("cvr_values", "cvr_values", [(word,) for word in WORDS.values()])
MATVEC = Kernel(
    "cvr_matvec",
    "cvr_matvec",
    [
        (*dtypes, *how)
        for dtypes in STORED
        for how in (
            ("int32", WARP, int(PLAIN), False),
            ("int32", WARP, int(ACCUMULATE), True),
            ("int64", WARP, int(SCALE), False),
            ("int32", 4, int(PLAIN), True),
        )
    ],
    lambda value, product, index, n_lanes, form, cut: (value, product, index, n_lanes, UNROLL[product.itemsize], form, cut),
)
MATMAT = Kernel(
    "cvr_matmat",
    "cvr_matmat",
    [
        (value, product, *how)
        for value, product in STORED
        for how in (
            ("int32", WARP, 1, vector_width(product), 1, int(PLAIN)),
            ("int32", WARP, 16, 1, 2, int(PLAIN)),
            ("int32", WARP, 8, vector_width(product), 2, int(ACCUMULATE)),
            ("int64", 4, 8, 1, 2, int(SCALE)),
        )
    ],
    lambda value, product, index, n_lanes, lanes, width, vectors, form: (
        value, product, index, n_lanes, lanes, width, vectors, matrix_unroll(vectors), form,
    ),
)  # fmt: skip
MATMAT_WARPS = Kernel(
    "cvr_matmat_warps",
    "cvr_matmat_warps",
    [
        (value, product, *how)
        for value, product in STORED
        for how in (
            ("int32", WARP, vector_width(product), int(PLAIN)),
            ("int32", WARP, 1, int(ACCUMULATE)),
            ("int64", 4, vector_width(product), int(SCALE)),
        )
        if np.dtype(product).itemsize <= MOST_OF_WARPS
    ],
    lambda value, product, index, n_lanes, width, form: (
        value, product, index, n_lanes, width, rows_under_way(width * product.itemsize), form,
    ),
)  # fmt: skip
TRANSPOSED = Kernel(
    "cvr_transposed",
    "cvr_transposed",
    [
        (*dtypes, *how)
        for dtypes in STORED
        for how in (
            ("int32", WARP, transposed.COUNT, False),
            ("int32", WARP, transposed.ADD, transposed.may_be_floats(dtypes[1])),
            ("int64", 4, transposed.ADD, False),
        )
        if how[2] == transposed.ADD or dtypes in transposed.ROUNDED
    ],
)
TRANSPOSED_FINISH = Kernel(
    "cvr_transposed",
    "cvr_transposed_finish",
    [
        (*dtypes, *how)
        for dtypes in STORED
        for how in (("int32", WARP, transposed.may_be_floats(dtypes[1])), ("int64", 4, False))
    ],
)


def default_n_lanes(csr: CSR) -> int:
    """Lanes for a matrix: a warp."""
    return WARP


def default_n_chunks(csr: CSR, n_lanes: int) -> int:
    """Chunks for a matrix: whole groups of `n_lanes` average rows, in about STEPS steps.

    A group of long rows is cut where it would leave too few chunks for the device, or have more than MAX_STEPS steps.
    Small matrices fill the device a whole number of times: see WAVE.
    """
    n_rows, nnz = csr.shape[0], csr.nnz
    mean = max(1.0, nnz / max(1, n_rows))
    wave = WAVE[csr.data.dtype.itemsize > 4]
    waves = nnz / (n_lanes * STEPS * wave)
    if waves < FEW_WAVES:
        return max(1, min(wave * max(1, round(waves)), round(nnz / (n_lanes * LEAST_STEPS))))
    share = nnz / (n_lanes * ENOUGH_CHUNKS)
    wanted = min(max(share, MIN_STEPS), STEPS)
    steps = min(mean * max(1, round(wanted / mean)), max(share, wanted), MAX_STEPS)
    return max(1, round(nnz / (steps * n_lanes)))


def chunks_for_columns(csr: CSR, n_lanes: int, columns: int) -> dict[str, Any]:
    """``n_chunks`` for products with so many columns, where that is another number than for a vector, and their
    ``split``.

    A thread block has a chunk, and multiplies it by a tile of columns. What it does before the first step and after the
    last one counts. So chunks have about STEPS, and all blocks fill the device a whole number of times. The longest is
    waited for, so they are even.
    """
    n_chunks = _limited(default_n_chunks(csr, n_lanes), Kind(csr.nnz, csr.shape[1], n_lanes, csr.data.dtype), columns)
    return {"n_chunks": n_chunks, "split": "rows" if columns < COLUMNS[0] else "even"}


def _limited(n_chunks: int, of: Kind, columns: int) -> int:
    """`n_chunks`, or fewer for products with so many columns."""
    if columns == 1 or of.nnz >= FEW_WAVES * of.n_lanes * STEPS * WAVE[of.dtype.itemsize > 4]:
        return n_chunks
    return min(n_chunks, matrix_layout(columns, math.gcd(columns, vector_width(of.dtype)), of).n_chunks(of))


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
    ptr, row_id = together((n_filled + 1, csr.indptr.dtype), (n_filled, index))
    empty_row = cupy.empty(n_rows - n_filled, index)
    filled = np.uint64(seen.filled.data.ptr + 8 * (seen.filled.size - -(-n_rows // WARP) - 1))
    SPLIT_ROWS(csr.indptr.dtype, index)(
        blocks(n_rows, BLOCK), (BLOCK,), (csr.indptr, filled, np.int64(n_rows), ptr, row_id, empty_row)
    )
    return row_id, ptr, empty_row


def product(tables: CVRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y`` on the current device and stream.

    `x` and `y` are contiguous and `dtype`, the product's, as are the scalars.
    """
    t = tables
    by_segments = segments.cut(t, dtype)
    if by_segments is not None:
        return segments.product(t, dtype, by_segments, partial(_places, t))
    if long_rows.suits(t):
        return long_rows.product(t, dtype, partial(_places, t))
    if row_lanes.suits(t):
        return row_lanes.product(t, dtype, partial(_places, t))

    @cache
    def multiply(form):
        return MATVEC(distinct.kind(t.val, t.distinct), dtype, t.tail.dtype, t.n_lanes, int(form), t.cut_row.size > 0)

    n_for_empty = min(-(-t.empty_row.size // (BLOCK * EMPTY_ROWS_A_THREAD)), MOST_BLOCKS_FOR_EMPTY)
    grid = (max(1, n_for_empty + -(-t.carry_row.size * WARP // BLOCK)),)
    chunks, cuts = _struct(t), _cuts(t, dtype)

    def plain(x, y, alpha, beta):
        multiply(update(alpha, beta))(grid, (BLOCK,), (chunks, x, y, cuts(), np.int32(n_for_empty), alpha, beta))

    return autotuned(n_slots(t), t.shape[1], plain, lambda: shared_memory.product(t, dtype, _struct, cuts))


def _cuts(t: CVRTables, dtype: np.dtype) -> Callable[[], Struct]:
    """A function that gives the kernel file's ``Cuts`` for a product on the current stream."""
    n_chunks, n_cut = t.carry_row.size, t.cut_row.size
    if not n_cut:
        nothing = struct(*[None] * 3)
        return lambda: nothing
    span = _spans(t)

    def make():
        arrived = cupy.zeros(n_chunks, np.uint32)
        part = cupy.zeros((2 * n_chunks, -(-dtype.itemsize // 4)), np.uint64)
        return struct(span, arrived, part)

    return PerStream(make).get


def _spans(t: CVRTables) -> cupy.ndarray:
    """(n_chunks + 1, 2) as the kernels' ``Cuts`` have it; some row is cut."""
    n_chunks, n_cut = t.carry_row.size, t.cut_row.size
    span = cupy.empty((n_chunks + 1, 2), np.int32)
    with aside():
        SPANS()(blocks(n_chunks + 1, BLOCK), (BLOCK,), (t.cut_ptr, np.int64(n_cut), np.int64(n_chunks), span))
    return span


def numbers_pay(t: CVRTables) -> bool:
    """Whether products gain by values that are looked up: as with BBCSR, not in long rows whose columns are far apart."""
    return t.col_wide.size <= t.col_narrow.size or t.nnz <= LONG * t.shape[0]


def product_matrix(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``; X (n_cols, k) and Y (n_rows, k) in C
    order.
    """
    t = tables
    own, n_chunks, of = _product_in_own_chunks(t, dtype), t.carry_row.size, Kind(t.nnz, t.shape[1], t.n_lanes, dtype)
    longer: list[Rechunked] = []

    def wanted(columns):
        return _limited(n_chunks, of, columns)

    @cache
    def in_chunks(number):
        longer.append(Rechunked(t, number, partial(_places, t), convert))
        return _product_in_own_chunks(longer[-1].tables, dtype)

    @cache
    def multiply(k):
        columns = max((columns for columns in COLUMNS + FURTHER * of.is_reused if columns <= k), default=None)
        is_right = columns is None or n_chunks <= max(wanted(columns), wanted(k))
        return own if is_right else in_chunks(wanted(columns))

    def run(x, y, alpha, beta):
        k = x.shape[1]
        if k * dtype.itemsize > MOST_ROW_BYTES:
            most = MOST_ROW_BYTES // dtype.itemsize
            raise ValueError(f"X must have at most {most:,} columns of {dtype}; got {k:,}. Multiply parts of its columns")
        multiply(k)(x, y, alpha, beta)

    def renew():
        for chunks in longer:
            chunks.renew()

    run.renew = renew
    return run


def _product_in_own_chunks(t: CVRTables, dtype: np.dtype) -> Run:
    """The same by these tables."""
    index = t.tail.dtype
    n_chunks, is_cut = t.carry_row.size, t.cut_row.size > 0
    chunks, scratch = _struct(t), Scratch()
    n_blocks = max(1, n_chunks, min(-(-t.empty_row.size // WARP), MOST_BLOCKS_FOR_EMPTY))
    span = _spans(t) if is_cut else None

    nothing = struct(*[None] * 3)

    @cache
    def layout(k, width):
        found = matrix_layout(k, width, Kind(t.nnz, t.shape[1], t.n_lanes, dtype), n_chunks)
        grid = matrix_grid(n_blocks, found.tiles.tiles)
        return found, grid, PerStream(lambda: cupy.zeros((grid[1] * grid[2], n_chunks), np.uint32)).get

    @cache
    def multiply(how, form):
        of = distinct.kind(t.val, t.distinct), dtype, index, t.n_lanes
        lanes, width, vectors, _ = how.tiles
        return MATMAT_WARPS(*of, width, form) if lanes == WARP else MATMAT(*of, lanes, width, vectors, form)

    def run(x, y, alpha, beta):
        k = x.shape[1]
        how, grid, arrived = layout(k, matrix_width(k, x, y))
        cuts = struct(span, arrived(), scratch.empty((2 * n_chunks, k), dtype)) if is_cut else nothing
        found = multiply(how, int(update(alpha, beta)))
        found(grid, (how.threads,), (chunks, np.int32(k), x, y, cuts, alpha, beta))

    return run


class Kind(NamedTuple):
    """What the layout of a product with a matrix X depends on."""

    nnz: int
    n_cols: int
    n_lanes: int
    dtype: np.dtype  # of the product

    @property
    def is_reused(self) -> bool:
        """Whether rows of X are met again and again."""
        return self.nnz >= REUSED * self.n_cols


class Layout(NamedTuple):
    """How a thread block shares a chunk and a tile of columns."""

    tiles: Tiles
    threads: int
    steps: int  # that a chunk should have

    def n_chunks(self, of: Kind) -> int:
        """Chunks of about so many steps, whose blocks fill the device a whole number of times."""
        tiles, at_once = self.tiles.tiles, max(1, processors(cupy.cuda.runtime.getDevice()) * MATRIX_THREADS // self.threads)
        waves = max(1, round(of.nnz * tiles / (of.n_lanes * at_once * self.steps)))
        return max(1, waves * at_once // tiles)


def matrix_layout(k: int, width: int, of: Kind, n_chunks: int = 0) -> Layout:
    """How lanes share `k` columns of X, in vector loads of `width` numbers; for `n_chunks` that are there, if any.

    A load covers half a cache line or a whole one. From a line on a lane holds two vectors: values and columns are
    loaded, and records are met, once for both. More would take registers from warps that hide the loads' latency. Of
    one line small matrices have one vector a lane: more warps.

    Where long rows of X are reused and chunks are long, a warp has a whole row of X.
    """
    size, in_a_row = width * of.dtype.itemsize, max(1, -(-k // width))
    line = in_a_row * size
    if of.is_reused and line >= LONG_ROW and of.dtype.itemsize <= MOST_OF_WARPS:
        each = min(width, 1 << (-(-k // WARP) - 1).bit_length())
        found = Layout(Tiles(WARP, each, 1, -(-k // (WARP * each))), of.n_lanes * WARP, LONG_STEPS)
        if n_chunks <= 2 * found.n_chunks(of):
            return found
    vectors = 2 if line > MATRIX_LINE or (line == MATRIX_LINE and of.nnz >= SMALL) else 1
    lanes = min(MATRIX_LANES, MATRIX_LINE // size, 1 << (-(-in_a_row // vectors) - 1).bit_length())
    tiles = Tiles(lanes, width, vectors, max(1, -(-k // (lanes * width * vectors))))
    return Layout(tiles, WARP * lanes, REUSED_STEPS if of.is_reused else STEPS)


def rows_under_way(size: int) -> int:
    """Rows of X that a warp loads before the first is multiplied, where a lane has so many bytes of each."""
    return max(4, min(8, 64 // size))


def matrix_unroll(vectors: int) -> int:
    """Steps whose rows of X are loaded before the first is multiplied."""
    return 4 if vectors == 1 else 2


def product_transposed(tables: CVRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A.T @ x + beta * y``; x (n_rows,) and y (n_cols,)."""
    t, n_cols = tables, tables.shape[1]
    chunks, grid = _struct(t), blocks(t.carry_row.size * WARP, BLOCK)
    how = distinct.kind(t.val, t.distinct), dtype, t.tail.dtype, t.n_lanes

    def scatter(found, x, sums):
        found(grid, (BLOCK,), (chunks, x, sums))

    @cache
    def finishing(floats):
        return TRANSPOSED_FINISH(*how, floats)

    def finish(floats, x, sums, y, alpha, beta, form):
        transposed.cooperative(finishing(floats), chunks, x, sums, np.int64(n_cols), y, alpha, beta, form)

    passes = transposed.Passes(lambda sums: scatter(TRANSPOSED(*how, transposed.COUNT, False), NULL, sums), finish)
    sums = transposed.ColumnSums(passes, distinct.different(t.val, t.distinct), n_cols, dtype)
    plain = sums.product(partial(scatter, TRANSPOSED(*how, transposed.ADD, sums.floats)))
    return autotuned(n_slots(t), n_cols, plain, lambda: shared_memory.product_transposed(t, sums, _struct))


def fill(tables: CVRTables, runs: Runs, data: cupy.ndarray, values: cupy.ndarray) -> None:
    """Write the value table `values` of the structure `tables`, whose values `data` are in the order of a canonical
    CSR.
    """
    t, data, values = tables, as_words(data), as_words(values)
    n_chunks = t.carry_row.size
    VALUES(values.dtype)(
        blocks(n_chunks * WARP, BLOCK), (BLOCK,), (t.step_ptr, np.int64(n_chunks), np.int32(t.n_lanes), *runs, data, values)
    )


def n_slots(t: CVRTables) -> int:
    """Slots of all chunks, pads counted. The value table may have none: see :mod:`cvrarray.core.tables`."""
    return t.rec_mask.size * t.n_lanes


def _struct(t: CVRTables) -> Struct:
    """The tables as kernels take them."""
    return struct(
        t.step_ptr, *distinct.fields(t.val, t.distinct), t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.rec_mask,
        t.rec_ptr, t.rec_wb, t.tail, t.carry_row, t.empty_row, t.carry_row.size, t.empty_row.size,
    )  # fmt: skip


def to_csr(tables: CVRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last), numbered as the tables have them, which may be those of some chunks.

    Nothing is sorted: with the lengths of rows the conversion can be done again, from slots to entries. It waits once, or
    twice where some row is empty.
    """
    t, index, (n_rows, n_cols) = tables, tables.tail.dtype, tables.shape
    n_chunks, n_lanes = t.carry_row.size, np.int32(t.n_lanes)
    if not n_chunks:
        return CSR(cupy.zeros(last - first + 1, np.int64), cupy.empty(0, index), t.val[:0], (last - first, n_cols))
    n_sizes, warps = n_rows + n_chunks + 2, blocks(n_chunks * WARP, BLOCK)
    counts = cupy.zeros(n_sizes + prefix.n_states(n_sizes), np.int64)
    ROW_LENGTHS(index)(
        warps,
        (BLOCK,),
        (np.int64(n_chunks), n_lanes, t.step_ptr, t.rec_ptr, t.rec_mask, t.rec_wb, t.tail, counts, counts[n_rows + 1 :]),
    )
    sums = prefix.sums(counts, n_sizes)
    indptr, chunk_ptr = sums[: n_rows + 1], sums[n_rows + 1 :]
    nnz = int(indptr[-1])
    csr = CSR(indptr, cupy.empty(nnz, index), cupy.empty(nnz, t.val.dtype), t.shape)
    is_filled = nnz == t.nnz and not t.empty_row.size
    ptr = indptr if is_filled else _without_empty_rows(csr)[1]
    words = as_words(csr.data)
    threads = WARP * warps_of_windows(index, words.dtype)
    ROWS(index, words.dtype)(
        blocks(n_chunks * WARP, threads),
        (threads,),
        (ptr, np.int64(ptr.size - 1), chunk_ptr, np.int64(n_chunks), n_lanes, t.step_ptr, t.col_ptr, t.col_base, t.col_narrow,
         t.col_wide, as_words(t.val), csr.indices, words),
    )  # fmt: skip
    if (first, last) == (0, n_rows):
        return csr._replace(indptr=indptr.copy())  # which does not keep the sums of chunks
    begin, end = read(indptr[[first, last]]).tolist()
    rows = indptr[first : last + 1] - indptr[first]
    return CSR(rows, csr.indices[begin:end].copy(), csr.data[begin:end].copy(), (last - first, n_cols))


def to_coo(tables: CVRTables) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray]:
    """Row, column and value of every stored entry, in slot order."""
    row, col = _places(tables)
    stored = row >= 0
    return row[stored], col[stored], tables.val[stored]


def _places(t: CVRTables) -> tuple[cupy.ndarray, cupy.ndarray]:
    """Row and column of every slot; the row of a pad is -1."""
    index, n_chunks = t.tail.dtype, t.carry_row.size
    row, col = cupy.empty(n_slots(t), index), cupy.empty(n_slots(t), index)
    if n_chunks:
        SLOTS(index)(
            blocks(n_chunks * WARP, BLOCK),
            (BLOCK,),
            (np.int64(n_chunks), np.int32(t.n_lanes), t.step_ptr, t.rec_ptr, t.col_ptr, t.col_base, t.col_narrow, t.col_wide,
             t.rec_mask, t.rec_wb, t.tail, row, col),
        )  # fmt: skip
    return row, col
