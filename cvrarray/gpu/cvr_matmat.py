"""``A @ X`` with CVR on the GPU: how lanes and warps share rows of A and of X, and how long chunks should be.

``docs/measurements/matrix-products.md`` has the reasons, and the kernels' files say what each does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import cupy
import numpy as np

from ..core import matmat_kernels
from ..core.arrays import Run
from ..core.matmat_kernels import LINE, MATRIX_LANES, Tiles
from ..core.tables import CSR, WARP, CVRTables
from . import cut_rows, distinct
from .compiler import STORED, Kernel
from .cvr_tables import FEW_WAVES, MOST_BLOCKS_FOR_EMPTY, as_struct, spans, waves
from .launches import (
    ACCUMULATE,
    PLAIN,
    SCALE,
    argument,
    matrix_grid,
    matrix_width,
    scaling,
    struct,
    update,
    vector_width,
)
from .properties import attribute, processors
from .rechunked import Rearranged, Rechunked
from .streams import Meeting

#: Where rows of A are long: threads that a multiprocessor holds, so that they have many registers, and bytes of a tile.
LONG_THREADS, LONG_TILE = 512, 512
#: Steps that a chunk should have where rows of A or of X are long, and X fits L2, and where it does not: there some chunks wait
#: for more of it than others.
STEPS_IN_L2, STEPS_BEYOND = 1024, 256
L2_FOR_X = 0.75  # the rest of L2 is for A and Y
#: Threads that a multiprocessor holds otherwise, and nonzeros from which a matrix is not small.
MATRIX_THREADS, SMALL = 1024, 1_500_000
#: An array with more chunks than k columns should have gets chunks for the last of these numbers of columns that X has; with
#: fewer columns it keeps its own.
COLUMNS = (4, 8, 16, 32, 64, 128, 256)
#: Bytes of a row of X, at most. Kernels count them in 32 bits.
MOST_ROW_BYTES = 2_000_000_000
#: Bytes of a sum, at most, in the kernel where a warp has a row of X: the shared memory of a thread block.
MOST_OF_WARPS = 8
MATRIX_STEPS = 96  # that a chunk should have otherwise
#: Numbers of an odd row of X for which a lane has one each; of up to twice as many a lane has two.
MOST_OF_ONE = 4

MATMAT = Kernel(
    "cvr_matmat",
    "cvr_matmat",
    [
        (value, product, *how)
        for value, product in STORED
        for how in (
            ("int32", WARP, 1, vector_width(product), 1, int(PLAIN)),
            ("int32", WARP, 4, 1, 2, int(PLAIN)),
            ("int32", WARP, 8, vector_width(product), 2, int(ACCUMULATE)),
            ("int64", 4, 8, 1, 2, int(SCALE)),
        )
    ],
    lambda value, product, index, n_lanes, lanes, width, vectors, form: (
        value, product, index, n_lanes, lanes, width, vectors, matrix_unroll(vectors, width * product.itemsize), form,
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

MATMAT_LONG = Kernel(
    "cvr_matmat_long",
    "cvr_matmat_long",
    [
        (value, product, *how)
        for value, product in STORED
        for how in (
            ("int32", WARP, 8, vector_width(product), 1, int(PLAIN)),
            ("int32", WARP, 16, vector_width(product), 2, int(ACCUMULATE)),
            ("int64", 4, 16, 1, 2, int(SCALE)),
        )
    ],
    lambda value, product, index, n_lanes, lanes, width, vectors, form: (
        value, product, index, n_lanes, lanes, width, vectors, 8 // vectors, LONG_THREADS // (WARP * lanes), form,
    ),
)  # fmt: skip


def product(tables: CVRTables, dtype: np.dtype, nonzeros: Callable[[], CSR], convert: cut_rows.Convert) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``; X (n_cols, k) and Y (n_rows, k) in C
    order. ``nonzeros()`` is the CSR of the slots' numbers, from 1, and ``convert`` makes tables of such a one.
    """
    t = tables
    own, n_chunks, of = _in_own_chunks(t, dtype), t.carry_row.size, Kind(t.shape, t.nnz, t.n_lanes, dtype)
    copies: list[Rearranged] = []
    is_small = waves(t.nnz, t.n_lanes, dtype) < FEW_WAVES

    def wanted(columns):
        return limited(n_chunks, of, columns)

    @cache
    def in_chunks(number):
        copies.append(Rechunked(t, number, lambda: convert(nonzeros(), number)))
        return _in_own_chunks(copies[-1].tables, dtype)

    @cache
    def in_pieces(cut):
        copies.append(cut_rows.Pieces(t, cut, nonzeros, convert))
        return copies[-1], _in_own_chunks(copies[-1].tables, dtype)

    @cache
    def of_columns(k):
        if k * dtype.itemsize > MOST_ROW_BYTES:
            most = MOST_ROW_BYTES // dtype.itemsize
            raise ValueError(f"X must have at most {most:,} columns of {dtype}; got {k:,}. Multiply parts of its columns")
        columns = max((columns for columns in COLUMNS if columns <= k), default=None)
        is_right = columns is None or n_chunks <= max(wanted(columns), wanted(k))
        number = n_chunks if is_right else wanted(columns)
        cut = cut_rows.cut(t, k * dtype.itemsize, number, nonzeros) if is_small and number else None
        if cut is not None:
            pieces, of_pieces = in_pieces(cut)
            return pieces.product(k, dtype, of_pieces)
        chunks = own if is_right else in_chunks(number)
        return lambda x, y, alpha, beta: chunks(k, matrix_width(k, x, y))(x, y, alpha, beta)

    def run(x, y, alpha, beta):
        of_columns(x.shape[1])(x, y, alpha, beta)

    def renew():
        for copy in copies:
            copy.renew()

    run.renew = renew
    return run


def _in_own_chunks(t: CVRTables, dtype: np.dtype) -> Callable[[int, int], Run]:
    """The same by these tables, for so many columns in vectors of so many."""
    index = t.tail.dtype
    n_chunks, is_cut = t.carry_row.size, t.cut_row.size > 0
    chunks = as_struct(t)
    n_blocks = max(1, n_chunks, min(-(-t.empty_row.size // WARP), MOST_BLOCKS_FOR_EMPTY))
    span = spans(t) if is_cut else None

    nothing = struct(*[None] * 3), None

    @cache
    def prepared(k, width):
        how = matrix_layout(k, width, Kind(t.shape, t.nnz, t.n_lanes, dtype), n_chunks)
        grid, threads, n_columns = matrix_grid(n_blocks, how.tiles.tiles), (how.threads,), argument(np.int32(k))
        counters = grid[1] * grid[2], n_chunks  # for each tile, and those of the grid beyond all columns
        meeting = Meeting(lambda: struct(span, cupy.zeros(counters, np.uint32), None), 2, 2 * n_chunks * k * dtype.itemsize)

        @cache
        def multiply(form):
            of = distinct.kind(t.val, t.distinct), dtype, index, t.n_lanes
            lanes, width, vectors, _ = how.tiles
            if lanes == WARP:
                return MATMAT_WARPS(*of, width, int(form))
            return (MATMAT_LONG if how.is_long else MATMAT)(*of, lanes, width, vectors, int(form))

        def run(x, y, alpha, beta):
            cuts, _sums = meeting.take() if is_cut else nothing  # which live until the launch
            found = multiply(update(alpha, beta))
            found(grid, threads, (chunks, n_columns, x, y, cuts, *scaling(alpha, beta)[:2]))

        return run

    return prepared


class Kind(NamedTuple):
    """What the layout of a product with a matrix X depends on."""

    shape: tuple[int, int]
    nnz: int
    n_lanes: int
    dtype: np.dtype  # of the product


class Layout(NamedTuple):
    """How a thread block shares a chunk and a tile of columns."""

    tiles: Tiles
    threads: int
    steps: int  # that a chunk should have
    at_once: int  # tiles that are under way together
    is_long: bool = False  # whether rows of A are

    def n_chunks(self, of: Kind) -> int:
        """Chunks of about so many steps, whose blocks fill the device a whole number of times."""
        threads = LONG_THREADS if self.is_long else MATRIX_THREADS
        blocks = max(1, processors() * threads // self.threads)
        n_waves = max(1, round(of.nnz * self.at_once / (of.n_lanes * blocks * self.steps)))
        return max(1, n_waves * blocks // self.at_once)


def limited(n_chunks: int, of: Kind, columns: int) -> int:
    """`n_chunks`, or fewer for products with so many columns, several."""
    if waves(of.nnz, of.n_lanes, of.dtype) >= FEW_WAVES:
        return n_chunks
    return min(n_chunks, matrix_layout(columns, math.gcd(columns, vector_width(of.dtype)), of).n_chunks(of))


def matrix_layout(k: int, width: int, of: Kind, n_chunks: int | None = None) -> Layout:
    """How lanes share `k` columns of X, in vector loads of `width` numbers; for `n_chunks`, or as many as are best.

    A load covers half a cache line or a whole one. From a line on a lane holds two vectors: values and columns are
    loaded, and records are met, once for both. More would take registers from warps that hide the loads' latency. Of
    one line small matrices have one vector a lane: more warps.

    A multiprocessor has few chunks at a time where rows of A are long, or rows of X: so few rows of A advance together,
    and meet more rows of X in L1. A warp has a long row of X, and decodes a slot once, where rows of A are short, or many:
    warps that wait for one row each find more of X in L1 ready. Where X does not fit L2 as a whole, there are so many
    chunks that only tiles that do are read at a time.
    """
    size, in_a_row = width * of.dtype.itemsize, max(1, -(-k // width))
    line = in_a_row * size
    name = matmat_kernels.of_chunks(of.shape, of.nnz, line, size)
    is_long = name == "cvr long rows"
    if is_long or (name == "cvr warps" and of.dtype.itemsize <= MOST_OF_WARPS):
        lanes, vectors = WARP, 1
        if is_long:
            lanes, vectors = min(MATRIX_LANES, (LINE if line < LONG_TILE else LONG_TILE) // size), 1 + (line > LINE)
        tiles = Tiles.of(k, lanes, width, vectors)
        bytes_of_tile = max(1, of.shape[1]) * lanes * vectors * size
        at_once, tiles_in_l2 = tiles.tiles, L2_FOR_X * attribute("L2CacheSize") / bytes_of_tile
        while at_once > max(1, tiles_in_l2):
            at_once = -(-at_once // 2)
        steps = STEPS_IN_L2 if tiles.tiles <= tiles_in_l2 else STEPS_BEYOND
        found = Layout(tiles, WARP * lanes if is_long else of.n_lanes * WARP, steps, at_once, is_long)
        if n_chunks is None or n_chunks <= 2 * found.n_chunks(of):
            return found
    is_odd = width == 1 and MOST_OF_ONE < in_a_row <= 2 * MOST_OF_ONE  # fewer groups that a warp decodes steps for
    vectors = 2 if line > LINE or (line == LINE and of.nnz >= SMALL) or is_odd else 1
    lanes = min(MATRIX_LANES, LINE // size, 1 << (-(-in_a_row // vectors) - 1).bit_length())
    tiles = Tiles.of(k, lanes, width, vectors)
    return Layout(tiles, WARP * lanes, MATRIX_STEPS, tiles.tiles)


def rows_under_way(size: int) -> int:
    """Rows of X that a warp loads before the first is multiplied, where a lane has so many bytes of each."""
    return max(4, min(8, 64 // size))


def matrix_unroll(vectors: int, size: int) -> int:
    """Steps whose rows of X are loaded before the first is multiplied, where a lane has vectors of so many bytes."""
    return 4 if vectors == 1 or size <= 4 else 2
