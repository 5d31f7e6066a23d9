"""``A @ X`` with CVR on the GPU: how lanes share rows of A and of X, and how long chunks should be.

``docs/measurements/matrix-products.md`` has the reasons, and the kernels' files say what each does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import cupy
import numpy as np

from ..core.arrays import Run
from ..core.matmat_kernels import LINE, MATRIX_LANES, Tiles
from ..core.tables import CSR, WARP, CVRTables
from . import cut_rows, distinct, plan
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

#: Nonzeros of a row of A, on average, from which rows are long: most steps have no record then. There, threads that a
#: multiprocessor holds, so that they have many registers, and bytes of a tile.
LONG, LONG_THREADS, LONG_TILE = 12, 512, 512
#: Steps that a chunk should have there, where X fits L2, and where it does not: some chunks wait for more of it than others.
STEPS_IN_L2, STEPS_BEYOND = 1024, 256
L2_FOR_X = 0.75  # the rest of L2 is for A and Y
#: Threads that a multiprocessor holds otherwise, and nonzeros from which a matrix is not small.
MATRIX_THREADS, SMALL = 1024, 1_500_000
#: An array with more chunks than k columns should have gets chunks for the last power of two in this range that k reaches; with
#: fewer columns it keeps its own.
FEWEST_COLUMNS, MOST_COLUMNS = 4, 256
#: Bytes of a row of X, at most. Kernels count them in 32 bits.
MOST_ROW_BYTES = 2_000_000_000
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
            ("int32", WARP, 1, vector_width(product), 1, False, int(PLAIN)),
            ("int32", WARP, 4, 1, 2, False, int(PLAIN)),
            ("int32", WARP, 8, vector_width(product), 2, False, int(ACCUMULATE)),
            ("int64", 4, 8, 1, 2, False, int(SCALE)),
            ("int32", WARP, 8, vector_width(product), 1, True, int(PLAIN)),
            ("int32", WARP, 16, vector_width(product), 2, True, int(ACCUMULATE)),
            ("int64", 4, 16, 1, 2, True, int(SCALE)),
        )
    ],
    lambda value, product, index, n_lanes, lanes, width, vectors, is_long, form: (
        value, product, index, n_lanes, lanes, width, vectors,
        8 // vectors if is_long else matrix_unroll(vectors, width * product.itemsize), is_long, form,
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
        columns = min(1 << k.bit_length() - 1, MOST_COLUMNS)
        is_right = k < FEWEST_COLUMNS or n_chunks <= max(wanted(columns), wanted(k))
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
    nothing, stored = struct(*[None] * 3), distinct.kind(t.val, t.distinct)

    def way(k, how):
        grid, threads, n_columns = matrix_grid(n_blocks, how.tiles.tiles), (WARP * how.tiles.lanes,), argument(np.int32(k))
        counters = grid[1] * grid[2], n_chunks  # for each tile, and those of the grid beyond all columns
        meeting = Meeting(lambda: struct(span, cupy.zeros(counters, np.uint32), None), 2, 2 * n_chunks * k * dtype.itemsize)

        @cache
        def multiply(form):
            return MATMAT(stored, dtype, index, t.n_lanes, *how.tiles[:3], how.is_long, int(form))

        def run(x, y, alpha, beta):
            cuts, _sums = meeting.take() if is_cut else (nothing, None)  # which live until the launch
            found = multiply(update(alpha, beta))
            found(grid, threads, (chunks, n_columns, x, y, cuts, *scaling(alpha, beta)[:2]))

        return run

    @cache
    def prepared(k, width):
        found = candidates(k, width, Kind(t.shape, t.nnz, t.n_lanes, dtype), n_chunks)
        ways = [plan.Candidate("long rows" if how.is_long else "groups", partial(way, k, how)) for how in found]
        return plan.fastest(ways, t.step_ptr, ("A @ X", dtype, k, width))

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
    steps: int  # that a chunk should have
    at_once: int  # tiles that are under way together
    is_long: bool  # whether for rows of A that are

    def n_chunks(self, of: Kind) -> int:
        """Chunks of about so many steps, whose blocks fill the device a whole number of times."""
        threads = LONG_THREADS if self.is_long else MATRIX_THREADS
        blocks = max(1, processors() * threads // (WARP * self.tiles.lanes))
        n_waves = max(1, round(of.nnz * self.at_once / (of.n_lanes * blocks * self.steps)))
        return max(1, n_waves * blocks // self.at_once)


def limited(n_chunks: int, of: Kind, columns: int) -> int:
    """`n_chunks`, or fewer for products with so many columns, several."""
    if waves(of.nnz, of.n_lanes, of.dtype) >= FEW_WAVES:
        return n_chunks
    return min(n_chunks, candidates(columns, math.gcd(columns, vector_width(of.dtype)), of)[0].n_chunks(of))


def candidates(k: int, width: int, of: Kind, n_chunks: int = 0) -> list[Layout]:
    """How lanes may share `k` columns of X, in vector loads of `width` numbers, of so many chunks: each gives the same bits.

    First products take the first one, and it says how many chunks are best. Where rows of A are long, a multiprocessor has few
    chunks at a time: few rows of A advance together, and meet more rows of X in L1. Many chunks are short for that.
    """
    of_groups = _groups(k, width, of)
    if k * of.dtype.itemsize < LINE:
        return [of_groups]
    of_long_rows = _long_rows(k, width, of)
    if of.nnz >= LONG * of.shape[0] and n_chunks <= 2 * of_long_rows.n_chunks(of):
        return [of_long_rows, of_groups]
    return [of_groups, of_long_rows]


def _groups(k: int, width: int, of: Kind) -> Layout:
    """A load covers half a cache line or a whole one. From a line on a lane holds two vectors: values and columns are
    loaded, and records are met, once for both. More would take registers from warps that hide the loads' latency. Of
    one line small matrices have one vector a lane: more warps.
    """
    size, in_a_row = width * of.dtype.itemsize, max(1, -(-k // width))
    line = in_a_row * size
    is_odd = width == 1 and MOST_OF_ONE < in_a_row <= 2 * MOST_OF_ONE  # fewer groups that a warp decodes steps for
    vectors = 2 if line > LINE or (line == LINE and of.nnz >= SMALL) or is_odd else 1
    lanes = min(MATRIX_LANES, LINE // size, 1 << (-(-in_a_row // vectors) - 1).bit_length())
    tiles = Tiles.of(k, lanes, width, vectors)
    return Layout(tiles, MATRIX_STEPS, tiles.tiles, is_long=False)


def _long_rows(k: int, width: int, of: Kind) -> Layout:
    """Tiles of a line or several. Where X does not fit L2 as a whole, there are so many chunks that only tiles that do are read
    at a time.
    """
    size, line = width * of.dtype.itemsize, k * of.dtype.itemsize
    lanes, vectors = min(MATRIX_LANES, (LINE if line < LONG_TILE else LONG_TILE) // size), 1 + (line > LINE)
    tiles = Tiles.of(k, lanes, width, vectors)
    at_once, tiles_in_l2 = tiles.tiles, L2_FOR_X * attribute("L2CacheSize") / (max(1, of.shape[1]) * lanes * vectors * size)
    while at_once > max(1, tiles_in_l2):
        at_once = -(-at_once // 2)
    return Layout(tiles, STEPS_IN_L2 if tiles.tiles <= tiles_in_l2 else STEPS_BEYOND, at_once, is_long=True)


def matrix_unroll(vectors: int, size: int) -> int:
    """Steps whose rows of X are loaded before the first is multiplied, where a lane has vectors of so many bytes."""
    return 4 if vectors == 1 or size <= 4 else 2
