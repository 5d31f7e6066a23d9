"""BBCSR on the GPU. The same functions as :mod:`cvrarray.cpu.bbcsr`; the kernels' files say what each does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core import sharing
from ..core.tables import CSR, WARP, BBCSRTables, Measured, Wanted, mask_dtype
from . import bbcsr_rows, distinct, prefix, shared_memory, transposed, uneven_rows
from .autotune import autotuned
from .compiler import (
    MATRIX_LANES,
    NULL,
    PRODUCTS,
    STORED,
    Coded,
    Kernel,
    Struct,
    aside,
    blocks,
    matrix_grid,
    matrix_tiles,
    matrix_width,
    processors,
    struct,
    synchronize,
    update,
    vector_width,
)
from .look import Look, host
from .memory import leading, together
from .uneven_rows import Pieces, Schedule
from .words import WORDS

BLOCK = 128  # threads, at least: four warps
THREADS_OF_RUNS = 256  # that share a bin of long rows
THREADS_OF_SHORT_ROWS = 256  # ``bbcsr_matmat_short``
TILE_WIDTH = 16  # entries of a row that a conversion reads at a time, in blocks of 1: 16 or 32
#: Rows with more than LONG entries are long. Their columns may be far apart (:func:`is_far`).
LONG, FEW_WARPS = 40, 32
#: Where all warps read the same parts of x (:func:`reads_alike`), in rows of more than ALIKE_FROM entries: each warp that
#: shares a row has FEWEST of them at least, and sharing makes no more than ALIKE_WARPS a multiprocessor. Where there are
#: more, x is SMALL_X bytes or not: entries in flight then.
ALIKE_FROM, FEWEST, ALIKE_WARPS, SMALL_X = 16, 4, 48, 1 << 19
WIDE_WARPS = 144  #: a multiprocessor, where bins are wide and warps read other parts of x: sharing makes no more
SAMPLED, MOST_PADDING = (16, 8), 0.25  #: bins, and steps of each, that are looked at for that; the share of padding there

#: ``A @ X``: of blocks of up to MOST_ROWS_A_GROUP rows a group of lanes holds all sums, if at least MANY_LANES share
#: them. Fewer lanes would read values of too many rows at a time.
MOST_ROWS_A_GROUP, MANY_LANES = 8, 2
#: Vectors of a row of X from which each of them has two, where a block has up to 4 rows and where it has more, and four.
TWO_VECTORS, FOUR_VECTORS = (8, 32), 64
#: Row by row, the most lanes that share a row of X. Twice as many would do as well with half the vectors each, but for the
#: instructions that pass on a nonzero.
MOST_LANES = 8
#: Warps that row by row there should be at least before one more lane than one, and than two, share a row.
ENOUGH_TILES = 1800, 2400
#: Bins up to which of larger blocks two lanes share a row of X that is one vector.
FEW_BINS = 2000
#: Single columns: bins from which a warp takes a whole one, where a row of X has at most FEW_VECTORS vectors: with rows of
#: at most SHORT entries, longer ones, and much padding.
MANY_BINS, FEW_VECTORS, SHORT, MUCH_PADDING = 12_000, (16, 8, 4), 16, 1.25
#: Otherwise lanes share a row. It has several groups of them where all rows have no more threads than these a multiprocessor.
ENOUGH_THREADS = 760
#: The most of them, with two vectors each; rows from which fewer lanes have four.
MOST_LANES_A_ROW, MANY_ROWS = 16, 40_000
#: Rows of more steps than LEAST_LONG, in single columns and in blocks, and than LONG_FACTOR times the mean, or than
#: ALWAYS_LONG and the share that all threads would have, have thread blocks of their own: one for each piece in which a
#: thread block loads rows of X about PIECE_ROUNDS times, or as many times longer ones as keep the pieces of a row fewer
#: than their steps.
LEAST_LONG, LONG_FACTOR, ALWAYS_LONG, PIECE_ROUNDS = (64, 24), 2, (1024, 96), 8
#: Block rows are uneven where a group of the longest has more than UNEVEN_FROM blocks, and UNEVEN times its share of all
#: blocks. They then have no more warps than UNEVEN_WARPS a multiprocessor.
UNEVEN, UNEVEN_FROM, UNEVEN_WARPS = 2, 8, 20
#: Single columns: from compute capability COPIES_SINCE on a warp's next tables are copied to shared memory meanwhile, where
#: no row has more than STEPS entries, X has up to SHORT_VECTORS vectors a row, and a value with its column up to SHORT_BYTES.
COPIES_SINCE, STEPS, SHORT_VECTORS, SHORT_BYTES = 90, 8, 4, 11
#: Blocks of these sizes without holes, of values of so many bytes: tables go through shared memory, AHEAD steps ahead, where
#: at least so many lanes share a row of X. Each of them has two vectors from so many vectors a row on.
STAGED_SIZES, STAGED_BYTES, STAGED_LANES, STAGED_TWO_VECTORS, AHEAD = (6, 7, 8), 8, 4, 16, 3
#: Single columns: a row that has this many times the steps that a warp takes on average is too long for turns.
LATE = 2


def unroll(block_size: int, itemsize: int, is_far: bool) -> tuple[int, int]:
    """Blocks in flight in a narrow and in a wide bin, measured on an H200: see ``docs/decisions/0003-gpu-products.md``.

    More of them hide more latency, but widen the part of `x` that a multiprocessor's warps read at a time. Where rows
    are long and their columns far apart (`is_far`), only few keep that part in cache.
    """
    narrow = sharing.blocks_in_flight(block_size, itemsize)
    if block_size == 1:
        return narrow, (4 if is_far else 8 if itemsize <= 4 else 6 if itemsize <= 8 else 4)
    return narrow, narrow


def matrix_unroll(block_size: int, vectors: int) -> int:
    """Blocks that are loaded before the first is multiplied: several where one block makes few loads. A lane loads
    `vectors` of X for each column of a block.
    """
    return 4 if block_size * vectors <= 2 else 2 if block_size * vectors <= 4 or (block_size, vectors) == (1, 8) else 1


def group(block_size: int) -> int:
    """Threads that merge a block row: ``BlockRow::GROUP`` of the kernel file."""
    return 1 << (block_size - 1).bit_length()


def tiles_in_a_block(value: np.dtype, index: np.dtype, width: int) -> int:
    """Warps a block of ``bbcsr_fill``, each with a tile of values and columns in the 48 KB of shared memory."""
    size = WARP * (width + 1) * (np.dtype(value).itemsize + np.dtype(index).itemsize)
    return next(n for n in (4, 2, 1) if n * size <= 48 << 10)


def slot_bytes(value: np.dtype | str | Coded) -> int:
    """Of the value table, for each slot."""
    return {"Few": 1, "One": 0}[value.kind] if isinstance(value, Coded) else np.dtype(value).itemsize


SIZES = (1, 2, 3, 6, 7, 32)  # of blocks, that are compiled without a GPU
#: Index dtype, block size, whether there are holes.
SHAPES = (("int32", 1, False), ("int32", 3, False), ("int32", 6, True), ("int64", 7, True))
COUNTED = [(*dtypes, size) for dtypes in (("int32", "int32"), ("int64", "int64")) for size in SIZES if size > 1]

COUNT_HOLES = Kernel("bbcsr_convert", "bbcsr_count_holes", COUNTED)
BINS = Kernel("bbcsr_convert", "bbcsr_bins", [("int32",), ("int64",)])
FILL = Kernel(
    "bbcsr_convert",
    "bbcsr_fill",
    [
        ("int32", "int32", "bool"),
        ("int32", "int32", "float16"),
        ("int32", "int32", "complex128"),
        ("int64", "int64", "complex128"),
    ],
    lambda pointer, index, value: (pointer, index, value, tiles_in_a_block(value, index, TILE_WIDTH), TILE_WIDTH),
)
COLUMNS = Kernel("bbcsr_convert", "bbcsr_columns", COUNTED)
FILL_RUNS = Kernel(
    "bbcsr_convert",
    "bbcsr_fill_runs",
    [("int32", "int32", word, 3) for word in WORDS.values()] + [("int64", "int64", "uint64", 6)],
    lambda pointer, index, word, size: (pointer, index, word, size, THREADS_OF_RUNS, numbers_of_runs(word)),
)
FILL_HOLES = Kernel(
    "bbcsr_convert",
    "bbcsr_fill_holes",
    [(*dtypes, size) for size in SIZES for dtypes in (("int32", "int32", "bool"), ("int64", "int64", "complex128"))]
    + [("int32", "int32", "float16", 6)],
    lambda pointer, index, value, size: (pointer, index, value, mask_dtype(size), size),
)
SLOTS = Kernel(
    "bbcsr_convert", "bbcsr_slots", [(i, mask) for i in ("int32", "int64") for mask in ("uint8", "uint16", "uint32")]
)
OFFSETS_AND_WORDS = [("int64", word) for word in WORDS.values()] + [("int32", "uint64")]
VALUES = Kernel("bbcsr_values", "bbcsr_values", OFFSETS_AND_WORDS, lambda pointer, word: (pointer, word, warps_of_tiles(word)))
VALUES_RUNS = Kernel(
    "bbcsr_values",
    "bbcsr_values_runs",
    OFFSETS_AND_WORDS,
    lambda pointer, word: (pointer, word, THREADS_OF_RUNS, numbers_of_runs(word)),
)
VALUES_HOLES = Kernel(
    "bbcsr_values", "bbcsr_values_holes", [(word, mask) for word in WORDS.values() for mask in ("uint8", "uint32")]
)
MATVEC = Kernel(
    "bbcsr_matvec",
    "bbcsr_matvec",
    [
        (*dtypes, *how)
        for dtypes in STORED
        for how in (
            ("int32", 1, 0, 1, False),
            ("int32", 1, 4, 16, False),
            ("int32", 1, 2, 1, False),
            ("int32", 3, 0, 2, False),
            ("int32", 6, 0, 1, True),
            ("int64", 7, 0, 4, True),
        )
    ],
    lambda value, product, index, size, alike, sharers, holes: (
        value, product, index, mask_dtype(size), size, unroll(size, product.itemsize, False)[0],
        alike or unroll(size, product.itemsize, False)[1], holes, sharers,
    ),
)  # fmt: skip
SAMPLED_COLUMNS = Kernel("bbcsr_matvec", "bbcsr_sampled_columns", [("int32",), ("int64",)])
MATMAT = Kernel(
    "bbcsr_matmat",
    "bbcsr_matmat",
    [
        (value, product, *shape, *layout, offset, False, is_cut)
        for value, product in STORED
        for shape, layout, offset, is_cut in zip(
            SHAPES,
            ((1, 1, 1), (8, vector_width(product), 2), (4, 1, 1), (8, vector_width(product), 1)),
            ("uint32", "uint32", "uint32", "uint64"),
            (True, False, False, True),
            strict=True,
        )
    ]
    + [(*dtypes, "int32", 1, False, 8, vector_width(dtypes[1]), 1, "uint32", True, True) for dtypes in transposed.ROUNDED],
    lambda value, product, index, size, holes, lanes, width, vectors, offset, dots, is_cut: (
        value, product, index, mask_dtype(size), size, holes, lanes, width, vectors, matrix_unroll(size, lanes * vectors),
        offset, dots, is_cut,
    ),
)  # fmt: skip
MATMAT_BLOCKS = Kernel(
    "bbcsr_matmat",
    "bbcsr_matmat_blocks",
    [
        (value, product, *shape, lanes, vector_width(product) if lanes < MATRIX_LANES else 1, vectors, sharers, False, is_cut)
        for value, product in STORED
        for shape, lanes, vectors, sharers, is_cut in zip(
            SHAPES[1:], (8, 2, 16), (2, 1, 4), (2, 8, 1), (True, False, True), strict=True
        )
    ]
    + [(*dtypes, "int32", 3, False, 8, vector_width(dtypes[1]), 1, 2, True, True) for dtypes in transposed.ROUNDED],
    lambda value, product, index, size, holes, lanes, width, vectors, sharers, dots, is_cut: (
        value, product, index, mask_dtype(size), size, holes, lanes, width, vectors, sharers, dots, is_cut,
    ),
)  # fmt: skip
MATMAT_STAGED = Kernel(
    "bbcsr_matmat_staged",
    "bbcsr_matmat_staged",
    [
        (value, product, index, size, lanes, vector_width(product), vectors, sharers, offset)
        for value, product in PRODUCTS
        if np.dtype(value).itemsize == STAGED_BYTES
        for index, size, lanes, vectors, sharers, offset in (
            ("int32", 6, 8, 1, 1, "uint32"),
            ("int64", 7, 16, 2, 1, "uint64"),
            ("int32", 8, 8, 1, 4, "uint32"),
        )
    ],
    lambda value, product, index, size, lanes, width, vectors, sharers, offset: (
        value, product, index, mask_dtype(size), size, lanes, width, vectors, sharers, offset,
    ),
)  # fmt: skip
MATMAT_ROWS = Kernel(
    "bbcsr_matmat_rows",
    "bbcsr_matmat_rows",
    [
        (value, product, *how)
        for value, product in STORED
        for how in (
            ("int32", 1, vector_width(product), 1, 8, 4, False, "uint32"),
            ("int32", 4, 1, 1, 4, 8, True, "uint32"),
            ("int64", 8, vector_width(product), 4, 1, 8, True, "uint64"),
            ("int32", 16, vector_width(product), 2, 2, 8, False, "uint32"),
        )
    ],
    lambda value, product, index, lanes, width, vectors, sharers, loads, is_cut, offset: (
        value, product, index, mask_dtype(1), lanes, width, vectors, sharers, loads, is_cut, offset,
    ),
)  # fmt: skip
MATMAT_SHORT = Kernel(
    "bbcsr_matmat_short",
    "bbcsr_matmat_short",
    [
        (value, product, "int32", lanes, vector_width(product), is_wide)
        for value, product in STORED
        for lanes, is_wide in ((1, False), (4, True))
        if slot_bytes(value) + (4 if is_wide else 2) <= SHORT_BYTES
    ],
    lambda value, product, index, lanes, width, is_wide: (value, product, index, mask_dtype(1), lanes, width, is_wide),
)
TRANSPOSED = Kernel(
    "bbcsr_transposed",
    "bbcsr_transposed",
    [
        (*dtypes, *shape, transposed.ADD, floats)
        for dtypes in STORED
        for shape in SHAPES
        for floats in dict.fromkeys((False, transposed.may_be_floats(dtypes[1])))
    ]
    + [(*dtypes, *SHAPES[0], transposed.COUNT, False) for dtypes in transposed.ROUNDED],
    lambda value, product, index, size, holes, step, floats: (
        value, product, index, mask_dtype(size), size, holes, step, BLOCK // WARP, floats,
    ),
)  # fmt: skip
TRANSPOSED_FINISH = Kernel(
    "bbcsr_transposed",
    "bbcsr_transposed_finish",
    [
        (*dtypes, *shape, k % 2 == 0 and transposed.may_be_floats(dtypes[1]))
        for dtypes in STORED
        for k, shape in enumerate(SHAPES)
    ],
    lambda value, product, index, size, holes, floats: (
        value, product, index, mask_dtype(size), size, holes, transposed.BLOCK // WARP, floats,
    ),
)  # fmt: skip


def convert(csr: CSR, block_size: int) -> BBCSRTables:
    """Canonical CSR on the current device as BBCSR tables there, which the current stream fills."""
    n_rows, n_bins = csr.shape[0], -(-csr.shape[0] // WARP)
    pointer, index, value = csr.indptr.dtype, csr.indices.dtype, csr.data.dtype
    *_, sums, col_base, n_values, n_narrow, has_holes = _measured(csr, block_size)
    bin_rowptr, narrow_ptr = leading(sums, n_bins + 1), sums.data.ptr + 8 * (n_bins + 1)
    n_columns = n_values // block_size
    col_ptr, col_narrow, col_wide, present = together(
        (n_bins, np.int64),
        (n_narrow, np.uint16),
        (n_columns - n_narrow, index),
        (n_columns if has_holes else 0, mask_dtype(block_size)),
    )
    tables = BBCSRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        block_size=block_size,
        bin_rowptr=bin_rowptr,
        data=cupy.empty(n_values, value),
        col_base=col_base,
        col_ptr=col_ptr,
        col_narrow=col_narrow,
        col_wide=col_wide,
        present=present if has_holes else None,
    )
    if not n_bins:
        return tables
    if block_size > 1 and not has_holes:
        _fill_blocks(csr, tables, narrow_ptr)
    else:
        inputs = (
            csr.indptr, csr.indices, csr.data, np.int64(n_rows), np.int64(n_bins), bin_rowptr, np.uint64(narrow_ptr), col_base,
            tables.col_ptr, tables.data, tables.col_narrow, tables.col_wide,
        )  # fmt: skip
        if has_holes:
            FILL_HOLES(pointer, index, value, block_size)(
                blocks(-(-n_bins * WARP // block_size) * group(block_size), BLOCK), (BLOCK,), (*inputs, tables.present)
            )
        else:
            warps = tiles_in_a_block(value, index, TILE_WIDTH)
            FILL(pointer, index, value)(blocks(n_bins * WARP, warps * WARP), (warps * WARP,), inputs)
    return tables


def _fill_blocks(csr: CSR, t: BBCSRTables, narrow_ptr: int) -> None:
    """Columns and values of blocks of 2 or more without holes."""
    n_rows, n_bins, how = np.int64(csr.shape[0]), t.col_base.size, (csr.indptr.dtype, csr.indices.dtype)
    columns = struct(t.bin_rowptr, narrow_ptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide)
    if has_long_rows(t.data, n_bins):
        FILL_RUNS(*how, WORDS[t.data.itemsize], t.block_size)(
            (n_bins,), (THREADS_OF_RUNS,), (csr.indptr, csr.indices, csr.data, n_rows, columns, t.data)
        )
    else:
        _fill_values(t, csr.indptr, csr.data, t.data)
        COLUMNS(*how, t.block_size)(
            blocks(n_bins * WARP, BLOCK), (BLOCK,), (csr.indptr, csr.indices, n_rows, np.int64(n_bins), columns)
        )


def _measured(csr: CSR, block_size: int) -> Measured:
    """The bins, which the check of the CSR may have seen: of blocks without holes. Those of others are counted here."""
    seen, n_bins = csr.seen, -(-csr.shape[0] // WARP)
    if not n_bins:
        nothing = cupy.zeros(1, np.int64)
        return Measured(csr.indptr, csr.indices, block_size, nothing, cupy.empty(0, csr.indices.dtype), 0, 0, False)
    if seen.measured is not None and seen.measured.is_of(csr, block_size):
        return seen.measured
    if block_size == 1 or seen.with_holes != block_size:
        wanted = Wanted(block_size=block_size)
        measured = Look(csr.indptr, csr.indices, csr.shape[1], wanted, checks=False).found().measured
        if measured is not None:
            return measured
    return _measured_with_holes(csr, block_size, n_bins)


def _measured_with_holes(csr: CSR, block_size: int, n_bins: int) -> Measured:
    """The bins of any blocks."""
    index, n_rows = csr.indices.dtype, np.int64(csr.shape[0])
    n_block_rows, n_sizes = -(-csr.shape[0] // block_size), 2 * (n_bins + 1)
    n_states, (pointer, numbers) = prefix.n_states(n_sizes), host()
    counts, col_base = cupy.empty(n_sizes + n_states, np.int64), cupy.empty(n_bins, index)
    n_blocks, columns = cupy.empty(n_block_rows, np.int32), cupy.empty(2 * n_block_rows, index)
    by_row = n_blocks, columns, columns[n_block_rows:]
    COUNT_HOLES(csr.indptr.dtype, index, block_size)(
        blocks(n_block_rows * group(block_size), BLOCK),
        (BLOCK,),
        (csr.indptr, csr.indices, n_rows, np.int64(n_block_rows), *by_row),
    )
    end = n_bins + 1
    bins = struct(n_bins, counts, counts.data.ptr + 8 * end, col_base)
    states = np.uint64(counts.data.ptr + 8 * n_sizes)
    BINS(index)(blocks(n_bins * WARP, 1024), (1024,), (*by_row, n_rows, np.int32(block_size), bins, states, np.int32(n_states)))
    sums = prefix.sums(counts, n_sizes, pointer, 2)
    synchronize()
    n_values, both = numbers[:2].tolist()
    n_narrow = both - n_values
    return Measured(csr.indptr, csr.indices, block_size, sums, col_base, n_values, n_narrow, True)


def product(tables: BBCSRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y`` on the current device and stream.

    `x` and `y` are contiguous and `dtype`, the product's, as are the scalars.
    """
    t, size, n_bins = tables, tables.block_size, tables.col_base.size
    bins, (sharers, in_flight) = _struct(t), schedule(t, dtype.itemsize)
    multiply = MATVEC(
        distinct.kind(t.data, t.distinct), dtype, t.col_wide.dtype, size, in_flight, sharers, t.present is not None
    )
    block = max(BLOCK, sharers * WARP)
    grid = blocks(n_bins * sharers * WARP, block)
    return lambda x, y, alpha, beta: multiply(grid, (block,), (bins, x, y, alpha, beta, update(alpha, beta)))


def schedule(t: BBCSRTables, itemsize: int) -> tuple[int, int]:
    """Warps that share a bin, and entries of wide bins in flight, 0 for as many as :func:`unroll` says; `itemsize` is the
    product's.

    Where all warps read the same parts of `x` (:func:`reads_alike`), what a multiprocessor's warps read at a time is the
    larger the more warps there are, and the more each has in flight. It should stay in L1: so both are few then. Else
    bins are shared by :mod:`cvrarray.core.sharing`, wide bins of single columns by no more than WIDE_WARPS a
    multiprocessor.
    """
    n_bins, size = t.col_base.size, t.block_size
    n_processors = processors(cupy.cuda.runtime.getDevice())
    if reads_alike(t):
        most = min(ALIKE_WARPS * n_processors / n_bins, _mean_blocks(t) // FEWEST)
        sharers = max(sharers for sharers in sharing.SHARERS if sharers == 1 or sharers <= most)
        is_crowded = sharers * n_bins > ALIKE_WARPS * n_processors
        return sharers, (3 if t.shape[1] * itemsize <= SMALL_X else 2) if is_crowded else 4
    if not 0 < n_bins <= sharing.MOST_BINS:
        return 1, 0
    with aside():
        lengths = np.diff(t.bin_rowptr.get()) / (WARP * size)
    bins = sharing.Bins(n_bins, float(lengths.mean()), float(lengths.max()), size, itemsize)
    sharers = sharing.least(bins, n_processors).sharers
    while sharers > 1 and is_wide(t) and sharers * n_bins > WIDE_WARPS * n_processors:
        sharers //= 2
    return sharers, 0


def reads_alike(t: BBCSRTables) -> bool:
    """Do warps that are as far along in their bins read the same part of `x`, whichever bins these are?

    They do where columns are anywhere, not where bins have columns near their own rows, or in diagonals. A sample
    tells: of 32 rows' columns at a step of a bin, the spread is larger than that of their means over bins. Nor where
    rows of a bin are uneven: much of it is padding then, and long bins end last if few warps share them.
    """
    n_bins = t.col_base.size
    if not is_wide(t) or _mean_blocks(t) <= ALIKE_FROM:
        return False
    with aside():
        columns = cupy.empty((*SAMPLED, WARP), t.col_wide.dtype)
        SAMPLED_COLUMNS(columns.dtype)(
            SAMPLED,
            (WARP,),
            (t.bin_rowptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, np.int64(n_bins), columns),
        )
        found = np.ma.masked_less(columns.get().astype(float), 0)  # but for padding
    if np.ma.getmaskarray(found).mean() > MOST_PADDING:
        return False
    return bool(found.mean(axis=2).std(axis=0).mean() < found.std(axis=2).mean())


def is_wide(t: BBCSRTables) -> bool:
    """Are most bins wide, of single columns?"""
    return t.block_size == 1 and t.col_wide.size > t.col_narrow.size


def is_far(t: BBCSRTables) -> bool:
    """Are rows long, and most columns so far apart that bins are wide?"""
    return t.col_wide.size > t.col_narrow.size and _mean_blocks(t) * t.block_size > LONG


def _mean_blocks(t: BBCSRTables) -> int:
    """Blocks of a row, padding counted."""
    return n_slots(t) // (WARP * t.block_size * max(1, t.col_base.size))


def numbers_pay(t: BBCSRTables) -> bool:
    """Whether products gain by values that are looked up: not in long rows whose columns are far apart.

    There the speed is 0.73 to 0.79 times that with plain values. L1 may bound them: tables of values leave less of it
    for x.
    """
    return not is_far(t)


class MatrixKernel(NamedTuple):
    """A kernel of ``A @ X``, its grid, the pieces of long rows if it knows of them, and its arguments after those that all
    have.
    """

    function: cupy.cuda.Function
    grid: tuple[int, int, int]
    pieces: Pieces | None = None
    last: tuple[Any, ...] = ()
    threads: int = BLOCK  # of a thread block

    def __call__(self, bins: Struct, k: int, x: cupy.ndarray, y: cupy.ndarray, alpha: Any, beta: Any) -> None:
        """Launch it."""
        pieces = () if self.pieces is None else (self.pieces.struct(),)
        arguments = bins, *pieces, np.int64(k), x, y, alpha, beta, update(alpha, beta), *self.last
        self.function(self.grid, (self.threads,), arguments, 0 if self.pieces is None else self.pieces.shared_bytes)


class Lengths:
    """How long the bins and rows of an array are, in blocks; what is asked for is found out once."""

    def __init__(self, tables: BBCSRTables) -> None:
        self._tables = tables
        with aside():
            slots = tables.bin_rowptr.get()
        self.bins = np.diff(slots) // (WARP * tables.block_size)
        self.most, self.mean = int(self.bins.max(initial=0)), _mean_blocks(tables)
        self.n_block_rows = -(-tables.shape[0] // tables.block_size)

    @cached_property
    def rows(self) -> np.ndarray:
        """(n_bins * 32,) int64."""
        with aside():
            found: np.ndarray = bbcsr_rows.blocks_of_rows(self._tables).get().ravel()
        return found.astype(np.int64)

    @cached_property
    def block_rows(self) -> np.ndarray:
        """(n_block_rows,) int64."""
        return self.rows[: self._tables.shape[0] : self._tables.block_size]


def product_matrix(tables: BBCSRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``; X (n_cols, k) and Y (n_rows, k) in C
    order.
    """
    bins = _struct(tables)
    lengths, of_vector = cache(lambda: Lengths(tables)), cache(lambda: product(tables, dtype))

    @cache
    def prepared(k, width):
        if takes_copies(tables, k, width, lengths()):
            return _kernel_of_short_rows(tables, dtype, k, width)
        if takes_lanes(tables, k, width, lengths()):
            return _kernel_of_lanes(tables, dtype, k, width, lengths())
        staged = _staged_kernel(tables, dtype, k, width, lengths())
        return staged or _matrix_kernel(tables, dtype, k, width, NULL, lengths())

    def run(x, y, alpha, beta):
        k = x.shape[1]
        if k == 1:
            of_vector()(x, y, alpha, beta)
        elif k:
            prepared(k, matrix_width(k, x, y))(bins, k, x, y, alpha, beta)

    return run


def product_matrix_with_dots(tables: BBCSRTables, x: cupy.ndarray, y: cupy.ndarray) -> tuple[Callable[[], None], cupy.ndarray]:
    """``run()``, which does ``Y = A @ X`` for a square A, and leaves sums (m, k) of ``conj(X) * Y`` over some rows each,
    real parts in double precision; X and Y (n, k) are of a dtype that is rounded. The sums are the second result.
    """
    dtype, k = y.dtype, x.shape[1]
    multiply = _matrix_kernel(tables, dtype, k, matrix_width(k, x, y), None, Lengths(tables))
    dots, bins = cupy.zeros((multiply.grid[0] * BLOCK // WARP, k)), _struct(tables)
    multiply = multiply._replace(last=(dots,))
    return lambda: multiply(bins, k, x, y, dtype.type(1), dtype.type(0)), dots


def _matrix_kernel(t: BBCSRTables, dtype: np.dtype, k: int, width: int, dots: Any, lengths: Lengths) -> MatrixKernel:
    """For `k` columns in vectors of `width`: where warps, or groups of lanes, have a block row or a bin.

    `dots` is what the kernel gets for them; None stands for an array that the caller has.
    """
    size, n_bins, has_dots = t.block_size, t.col_base.size, dots is None
    in_groups = 1 < size <= MOST_ROWS_A_GROUP
    if in_groups and k == width > 1 and n_bins < FEW_BINS:
        width //= 2  # a second lane, so that several groups can share a block row
    lanes, _, vectors, tiles = matrix_tiles(k, width, vectors_of_a_lane(size, k // width))
    how = distinct.kind(t.data, t.distinct), dtype, t.col_wide.dtype, size, t.present is not None
    if in_groups and lanes >= MANY_LANES:
        n_threads = lengths.n_block_rows * lanes
        sharers, schedule = share_of_block_rows(lengths, lanes, tiles)
        is_uneven = schedule is not None
        pieces = Pieces(
            lengths.block_rows if is_uneven else lengths.bins[:0],
            schedule or Schedule(lengths.most, 1),
            tiles,
            (size, lanes * width * vectors),
            dtype,
        )
        n_groups = n_threads * sharers // lanes if pieces.share is None else pieces.share.size
        return MatrixKernel(
            MATMAT_BLOCKS(*how, lanes, width, vectors, sharers, has_dots, is_uneven),
            matrix_grid(pieces.n + blocks(n_groups * lanes, BLOCK)[0], tiles),
            pieces,
            (dots,),
        )
    n_vectors = -(-k // width)
    lanes, vectors = matrix_layout(n_bins, n_vectors)
    tiles = -(-n_vectors // (lanes * vectors))
    under_way = matrix_unroll(size, lanes * vectors)
    pieces = _pieces(t, lengths, 1, WARP / under_way, tiles, (lanes, WARP * width * vectors), dtype)
    return MatrixKernel(
        MATMAT(*how, lanes, width, vectors, _offset(t, n_vectors), has_dots, pieces.n > 0),
        matrix_grid(pieces.n + blocks(n_bins * WARP, BLOCK)[0], tiles),
        pieces,
        (dots,),
    )


def _staged_kernel(t: BBCSRTables, dtype: np.dtype, k: int, width: int, lengths: Lengths) -> MatrixKernel | None:
    """For `k` columns in vectors of `width`, where tables go through shared memory; None where they should not."""
    stored, size = distinct.kind(t.data, t.distinct), t.block_size
    if isinstance(stored, Coded) or stored.itemsize != STAGED_BYTES or t.present is not None:
        return None
    if size not in STAGED_SIZES or lengths.most * size * WARP >= 1 << 31 or not has_asynchronous_copies():
        return None
    n_vectors = -(-k // width)
    vectors = 1 if n_vectors < STAGED_TWO_VECTORS else vectors_of_a_lane(size, max(n_vectors, TWO_VECTORS[1]))
    lanes, _, vectors, tiles = matrix_tiles(k, width, vectors)
    if k < lanes * width * vectors:
        lanes, _, vectors, tiles = matrix_tiles(k, width)
    sharers, schedule = share_of_block_rows(lengths, lanes, tiles)
    if lanes < STAGED_LANES or staged_bytes(size, lanes) > 48 << 10 or schedule is not None:
        return None
    return MatrixKernel(
        MATMAT_STAGED(stored, dtype, t.col_wide.dtype, size, lanes, width, vectors, sharers, _offset(t, n_vectors)),
        matrix_grid(-(-lengths.n_block_rows * sharers * lanes // BLOCK), tiles),
    )


def has_asynchronous_copies() -> bool:
    """Can the current device copy to shared memory while it computes?"""
    return int(cupy.cuda.Device().compute_capability) >= 80


def staged_bytes(size: int, lanes: int) -> int:
    """Of shared memory that a thread block of ``bbcsr_matmat_staged`` takes."""
    values = 16 * (-(-size * size * STAGED_BYTES // 16) | 1)
    return BLOCK // lanes * (AHEAD + 1) * (values + 8)


def _kernel_of_lanes(t: BBCSRTables, dtype: np.dtype, k: int, width: int, lengths: Lengths) -> MatrixKernel:
    """For `k` columns in vectors of `width`: where lanes share rows of single columns."""
    n_vectors = -(-k // width)
    lanes, vectors, sharers, loads = rows_layout(t.shape[0], lengths.mean, n_vectors)
    tiles = -(-n_vectors // (lanes * vectors))
    how = distinct.kind(t.data, t.distinct), dtype, t.col_wide.dtype
    (n_blocks,) = blocks(t.col_base.size * WARP * lanes * sharers, BLOCK)
    pieces = _pieces(t, lengths, WARP, lanes * vectors / loads, tiles, (1, lanes * width * vectors), dtype)
    return MatrixKernel(
        MATMAT_ROWS(*how, lanes, width, vectors, sharers, loads, pieces.n > 0, _offset(t, n_vectors)),
        matrix_grid(pieces.n + n_blocks, tiles),
        pieces,
    )


def _kernel_of_short_rows(t: BBCSRTables, dtype: np.dtype, k: int, width: int) -> MatrixKernel:
    """For `k` columns in vectors of `width`: where a warp's next tables are copied meanwhile."""
    n_vectors, warps = -(-k // width), THREADS_OF_SHORT_ROWS // WARP
    lanes = 1 << (n_vectors - 1).bit_length()
    how = distinct.kind(t.data, t.distinct), dtype, t.col_wide.dtype
    n_blocks = min(-(-t.col_base.size // warps), FEW_WARPS // warps * processors(cupy.cuda.runtime.getDevice()))
    function = MATMAT_SHORT(*how, lanes, width, t.col_wide.size > 0)
    return MatrixKernel(function, matrix_grid(n_blocks, 1), threads=THREADS_OF_SHORT_ROWS)


def _pieces(
    t: BBCSRTables, lengths: Lengths, rows: int, lanes: float, tiles: int, sums: tuple[int, int], dtype: np.dtype
) -> Pieces:
    """Of bins, where `rows` is 1, or of rows: a step that is under way takes so many lanes."""
    longest = longest_whole_row(t, lengths)
    n_steps = max(1, math.isqrt(lengths.most), int(PIECE_ROUNDS * BLOCK / lanes))
    of = lengths.bins if rows == 1 or lengths.most <= longest else lengths.rows
    return Pieces(of, Schedule(longest, n_steps), tiles, sums, dtype)


def _offset(t: BBCSRTables, n_vectors: int) -> np.dtype:
    """What counts the vectors of X, `n_vectors` a row."""
    return np.dtype(np.uint32 if (t.shape[1] + t.block_size) * n_vectors < 1 << 32 else np.uint64)


def takes_copies(t: BBCSRTables, k: int, width: int, lengths: Lengths) -> bool:
    """Whether in ``A @ X`` a warp's next tables are copied to shared memory while it multiplies: where all rows are short."""
    if t.block_size > 1 or lengths.most > STEPS or t.col_wide.dtype != np.int32 or -(-k // width) > SHORT_VECTORS:
        return False
    if t.col_base.size < MANY_BINS or int(cupy.cuda.Device().compute_capability) < COPIES_SINCE:
        return False
    size = slot_bytes(distinct.kind(t.data, t.distinct)) + (4 if t.col_wide.size else 2)
    return size <= SHORT_BYTES and all(table.data.ptr % 16 == 0 for table in (t.data, t.col_narrow, t.col_wide))


def takes_lanes(t: BBCSRTables, k: int, width: int, lengths: Lengths) -> bool:
    """Whether in ``A @ X`` lanes share rows. Otherwise a warp takes all rows of a bin, in turns.

    Turns load tables with fewer instructions, and multiply padding too; a warp that has a very long row is late.
    """
    if t.block_size > 1:
        return False
    warps = FEW_WARPS // 2 * processors(cupy.cuda.runtime.getDevice())
    if lengths.most * warps * WARP > LATE * n_slots(t):
        return True
    if n_slots(t) > MUCH_PADDING * t.nnz:
        most = FEW_VECTORS[2]
    else:
        most = FEW_VECTORS[lengths.most <= STEPS or _mean_blocks(t) > SHORT]
    return t.col_base.size < MANY_BINS or -(-k // width) > most


def rows_layout(n_rows: int, mean: int, n_vectors: int) -> tuple[int, int, int, int]:
    """How lanes share rows of A, of `mean` entries, and of X, of `n_vectors` vectors, in ``A @ X`` with blocks of 1: lanes of
    a group, vectors that each holds, groups that share a row, and vectors under way.
    """
    if n_vectors < 8:
        lanes, vectors = 1 << (n_vectors - 1).bit_length(), 1
    elif n_rows >= MANY_ROWS and n_vectors >= 2 * MOST_LANES_A_ROW:
        lanes, vectors = MOST_LANES_A_ROW // 2, 4
    else:
        lanes, vectors = min(MOST_LANES_A_ROW, 1 << (n_vectors // 2).bit_length() - 1), 2
    n_threads = n_rows * lanes * -(-n_vectors // (lanes * vectors))
    enough, sharers = ENOUGH_THREADS * processors(cupy.cuda.runtime.getDevice()), 1
    while 2 * sharers * lanes <= WARP and 2 * sharers * n_threads <= enough and 2 * sharers <= mean:
        sharers *= 2
    return lanes, vectors, sharers, 4 if lanes <= 2 else 8


def vectors_of_a_lane(block_size: int, n_vectors: int) -> int:
    """Vectors of a row of X, of `n_vectors`, that each lane of a group has in ``A @ X`` with blocks of 2 to 8, at most.

    More of them pass on the values of a block fewer times, and take more registers.
    """
    most = 4 if block_size <= 6 else 2
    return most if n_vectors >= FOUR_VECTORS else 2 if n_vectors >= TWO_VECTORS[block_size > 4] else 1


def longest_whole_row(t: BBCSRTables, lengths: Lengths) -> int:
    """Steps from which rows, or bins, have thread blocks of their own in ``A @ X``, where groups hold no block rows."""
    size = t.block_size
    threads = FEW_WARPS // 2 * WARP * processors(cupy.cuda.runtime.getDevice())
    n_steps = n_slots(t) // size**2
    share = n_steps * MATRIX_LANES // threads
    even = max(LONG_FACTOR * lengths.mean, share // 2 if size > 1 else 0)
    return max(LEAST_LONG[size > 1], min(even, max(ALWAYS_LONG[size > 1], share)))


def share_of_block_rows(lengths: Lengths, lanes: int, tiles: int) -> tuple[int, Schedule | None]:
    """Groups of `lanes` lanes, of one warp, that share a block row in ``A @ X``: several where rows of some length would
    leave most of the device idle. Where rows differ much, their lengths decide: then the second result says how.
    """
    n_threads, all_threads = lengths.n_block_rows * lanes * tiles, WARP * processors(cupy.cuda.runtime.getDevice())
    sharers, enough = 1, FEW_WARPS // 2 * all_threads
    while 2 * sharers * lanes <= WARP and 2 * sharers * n_threads <= enough and 4 * sharers <= lengths.mean:
        sharers *= 2
    even_share = lengths.mean * n_threads / enough
    if lengths.most <= sharers * max(UNEVEN_FROM, UNEVEN * even_share):
        return sharers, None
    return 1, uneven_rows.evened_out(lengths.block_rows, lanes, tiles, UNEVEN_WARPS * all_threads)


def matrix_layout(n_bins: int, n_vectors: int) -> tuple[int, int]:
    """Lanes that share a row of `n_vectors` vector loads in ``A @ X``, row by row, and the vectors that each holds.

    A warp takes as many turns as lanes share a row. Of few bins, more warps with less turns each keep the device busy.
    """
    lanes = min(MOST_LANES, 1 << (max(1, n_vectors) - 1).bit_length())
    vectors = 2 if n_vectors >= 2 * MOST_LANES else 1
    while lanes * vectors > 1 and n_bins * -(-n_vectors // (lanes * vectors)) < ENOUGH_TILES[lanes > 2]:
        lanes, vectors = (lanes, 1) if vectors > 1 else (lanes // 2, 1)
    return lanes, vectors


def product_transposed(tables: BBCSRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A.T @ x + beta * y``; x (n_rows,) and y (n_cols,)."""
    t, size = tables, tables.block_size
    bins, grid = _struct(t), blocks(t.col_base.size * WARP, BLOCK)
    how = distinct.kind(t.data, t.distinct), dtype, t.col_wide.dtype, size, t.present is not None

    def scatter(found, x, sums):
        found(grid, (BLOCK,), (bins, x, sums))

    @cache
    def finishing(floats):
        return TRANSPOSED_FINISH(*how, floats)

    def finish(floats, x, sums, y, alpha, beta, form):
        transposed.cooperative(finishing(floats), bins, x, sums, y, alpha, beta, form)

    passes = transposed.Passes(lambda sums: scatter(TRANSPOSED(*how, transposed.COUNT, False), NULL, sums), finish)
    sums = transposed.ColumnSums(passes, distinct.different(t.data, t.distinct), t.shape[1], dtype)
    plain = sums.product(partial(scatter, TRANSPOSED(*how, transposed.ADD, sums.floats)))
    if size > 1 or t.present is not None:
        return plain
    by_segments = partial(shared_memory.product_transposed_by_segments, t, sums, _struct)
    return autotuned(n_slots(t), t.shape[1], plain, by_segments)


def fill(tables: BBCSRTables, starts: cupy.ndarray, data: cupy.ndarray, values: cupy.ndarray) -> None:
    """Write the value table `values` of the structure `tables`, whose values `data` are in the order of a canonical
    CSR.

    `starts` (n_rows + 1,) int64: its row offsets.
    """
    if tables.present is None:
        _fill_values(tables, starts, data, values)
        return
    t, sizes = tables, (np.int64(tables.shape[0]), np.int64(tables.col_base.size))
    VALUES_HOLES(WORDS[values.itemsize], t.present.dtype)(
        blocks(t.col_base.size * WARP, BLOCK),
        (BLOCK,),
        (t.bin_rowptr, starts, *sizes, np.int32(t.block_size), t.present, data, values),
    )


def _fill_values(tables: BBCSRTables, starts: cupy.ndarray, data: cupy.ndarray, values: cupy.ndarray) -> None:
    """:func:`fill` of a structure without holes; the row offsets may have 32 bits."""
    t, n_bins, how = tables, tables.col_base.size, (starts.dtype, WORDS[values.itemsize])
    if has_long_rows(values, n_bins):
        VALUES_RUNS(*how)((n_bins,), (THREADS_OF_RUNS,), (t.bin_rowptr, starts, np.int64(t.shape[0]), data, values))
    else:
        warps = warps_of_tiles(how[1])
        sizes = np.int64(t.shape[0]), np.int64(n_bins)
        VALUES(*how)(blocks(n_bins * WARP, warps * WARP), (warps * WARP,), (t.bin_rowptr, starts, *sizes, data, values))


def has_long_rows(values: cupy.ndarray, n_bins: int) -> bool:
    """Whether runs of whole rows of a value table are long enough to be read as such."""
    return bool(values.size > LONG * WARP * n_bins)


def numbers_of_runs(word: np.dtype) -> int:
    """Numbers that a block of ``bbcsr_values_runs`` holds in the 48 KB of shared memory: 32 rows of 180, or 80."""
    return 5760 if word.itemsize <= 8 else 2560


def warps_of_tiles(word: np.dtype) -> int:
    """Warps a block of ``bbcsr_values``, each with a tile of values in the 48 KB of shared memory."""
    return {1: 4, 2: 4, 4: 4, 8: 4, 16: 2}[word.itemsize]


def n_slots(t: BBCSRTables) -> int:
    """Slots of all bins, padding counted. The value table may have none: see :mod:`cvrarray.core.tables`."""
    return (t.col_narrow.size + t.col_wide.size) * t.block_size


def _struct(t: BBCSRTables) -> Struct:
    """The tables as kernels take them."""
    return struct(
        t.bin_rowptr, *distinct.fields(t.data, t.distinct), t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.present,
        *t.shape, t.col_base.size,
    )  # fmt: skip


to_csr = bbcsr_rows.to_csr


def to_coo(tables: BBCSRTables) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray]:
    """Row, column and value of every stored entry, in slot order; padding and holes left out.

    The tables may be those of some bins, with the columns of all: their values tell how many slots there are.
    """
    t, index = tables, tables.col_wide.dtype
    n_bins = t.col_base.size
    row, col = cupy.empty(t.data.size, index), cupy.empty(t.data.size, index)
    if n_bins:
        SLOTS(index, mask_dtype(t.block_size))(
            blocks(n_bins * WARP, BLOCK),
            (BLOCK,),
            (np.int64(n_bins), np.int32(t.block_size), t.bin_rowptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide,
             NULL if t.present is None else t.present, row, col),
        )  # fmt: skip
    stored = row >= 0
    return row[stored], col[stored], t.data[stored]
