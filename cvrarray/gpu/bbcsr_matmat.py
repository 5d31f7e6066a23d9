"""``A @ X`` with BBCSR on the GPU: which kernel multiplies, and how lanes and warps share rows of A and of X.

``docs/measurements/matrix-products.md`` has the reasons, and the kernels' files say what each does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core import matmat_kernels
from ..core.arrays import Run
from ..core.matmat_kernels import LOAD, MATRIX_LANES, TURN_LANES, Tiles
from ..core.tables import WARP, BBCSRTables, mask_dtype
from . import distinct, plan, uneven_rows
from .bbcsr_lengths import Lengths
from .bbcsr_tables import SHAPES, as_struct, n_slots, slot_bytes
from .compiler import STORED, Coded, Kernel, allowed, constant
from .launches import MOST_IN_Y, Struct, argument, blocks, matrix_grid, matrix_width, scaling, struct, vector_width
from .properties import attribute, has_copy_engine, processors
from .streams import PerStream
from .uneven_rows import BLOCK, Pieces, Schedule

#: Warps that row by row there should be at least before one more lane than one, and than two, share a row.
ENOUGH_TILES = 1800, 2400
#: Blocks that a group has at least where it multiplies several together.
LONG_ENOUGH = 8
#: Where lanes share a row of single columns, it has several groups of them, of LEAST_ENTRIES entries each, where all rows have
#: no more threads than these a multiprocessor: all are under way at once. The second number is for rows of LONG_ROWS entries or
#: more that have no more lanes than a warp, where a lane has several vectors: such a warp finds more of X in L1.
ENOUGH_THREADS, LEAST_ENTRIES, LONG_ROWS = (1024, 3000), 2, 30
#: Single columns: rows from which first products walk over neighbouring ones, and few lanes share a row; vectors of a lane, at
#: most; vectors of a row of X up to which a warp may take the rows of a bin in turns.
MANY_ROWS, MOST_VECTORS, MOST_OF_TURNS = 16_000, 4, 8
#: A long row is cut in pieces. For each a thread block loads rows of X about PIECE_ROUNDS times, or as many times more as keep
#: the pieces of a row fewer than their steps.
PIECE_ROUNDS = 8
#: Where block rows are uneven, they have no more warps than UNEVEN_WARPS a multiprocessor.
UNEVEN_WARPS = 20
#: Where thread blocks walk over neighbouring rows, HELD bins are in shared memory, beside WALK_OWN bytes.
WALK_THREADS, WALK_OWN, HELD = 1024, 4096, constant("bbcsr_matmat_walk.cu", "HELD")
#: Lanes, vectors of each and steps under way there: of X with so many vectors a row, and with twice as many or a multiple of
#: that. A piece has the most bins for the first, and for the second as many as have so many nonzeros.
WALK_LAYOUTS = (8, 1, 8), (8, 2, 4)
LEAST_BINS, MOST_BINS, PIECE_NNZ = 4, 16, 1600
EACH_BIN = 0.01  #: Of the time, that a piece of another number of bins has to save for each bin of the difference.
#: Tiles of which thread blocks walk at a time, at most, where a part of L2 holds X; elsewhere one.
TILES_AT_ONCE, L2_FOR_X = 4, 0.75


def blocks_under_way(block_size: int, vectors: int) -> int:
    """Blocks that are loaded before the first is multiplied: several where one block makes few loads. A lane loads
    `vectors` of X for each column of a block.
    """
    return 4 if block_size * vectors <= 2 else 2 if block_size * vectors <= 4 or (block_size, vectors) == (1, 8) else 1


MATMAT = Kernel(
    "bbcsr_matmat",
    "bbcsr_matmat",
    [
        (value, product, *shape, *layout, offset, is_cut)
        for value, product in STORED
        for shape, layout, offset, is_cut in zip(
            SHAPES,
            ((1, 1, 1), (8, vector_width(product), 2), (4, 1, 1), (8, vector_width(product), 1)),
            ("uint32", "uint32", "uint32", "uint64"),
            (False, False, False, True),
            strict=True,
        )
    ],
    lambda value, product, index, size, holes, lanes, width, vectors, offset, is_cut: (
        value, product, index, mask_dtype(size), size, holes, lanes, width, vectors, blocks_under_way(size, lanes * vectors),
        offset, is_cut,
    ),
)  # fmt: skip
MATMAT_BLOCKS = Kernel(
    "bbcsr_matmat",
    "bbcsr_matmat_blocks",
    [
        (value, product, *shape, lanes, vector_width(product) if lanes < MATRIX_LANES else 1, *how, is_cut)
        for value, product in STORED
        for shape, lanes, how, is_cut in zip(
            SHAPES[1:], (8, 2, 16), ((2, 2, 1), (1, 8, 2), (4, 1, 1)), (True, False, True), strict=True
        )
    ],
    lambda value, product, index, size, holes, lanes, width, vectors, sharers, together, is_cut: (
        value, product, index, mask_dtype(size), size, holes, lanes, width, vectors, sharers, together, is_cut,
    ),
    # of sums and rows of X that nearly fit these, the compiler would take a few more, and one thread block fewer have room
    lambda value, product, index, size, holes, lanes, width, vectors, sharers, together, is_cut: (
        128 if product == np.float32 and size * vectors == 12 and not (holes or is_cut) else None
    ),
)  # fmt: skip
MATMAT_ROWS = Kernel(
    "bbcsr_matmat_rows",
    "bbcsr_matmat_rows",
    [
        (value, product, *how)
        for value, product in STORED
        for how in (
            ("int32", 1, vector_width(product), 1, 8, 4, False, False, "uint32"),
            ("int32", 4, 1, 1, 4, 8, False, True, "uint32"),
            ("int64", 8, vector_width(product), 4, 1, 8, False, True, "uint64"),
            ("int32", 16, vector_width(product), 3, 2, 8, True, False, "uint32"),
            ("int32", WARP, vector_width(product), 1, 1, 8, False, False, "uint32"),
            ("int32", 1, 1, 3, 1, 12, False, False, "uint32"),
        )
    ],
    lambda value, product, index, lanes, width, vectors, sharers, loads, is_part, is_cut, offset: (
        value, product, index, mask_dtype(1), lanes, width, vectors, sharers, loads, is_part, is_cut, offset,
    ),
)  # fmt: skip
MATMAT_WALK = Kernel(
    "bbcsr_matmat_walk",
    "bbcsr_matmat_walk",
    [
        (value, product, *layout[:3], is_wide)
        for product in ("float32", "float64")
        for value, layout, is_wide in (
            (product, WALK_LAYOUTS[0], False),
            (product, WALK_LAYOUTS[1], True),
            (Coded("Few", product), WALK_LAYOUTS[1], False),
            (Coded("One", product), WALK_LAYOUTS[0], True),
        )
    ],
    lambda value, product, lanes, vectors, loads, is_wide: (
        value, product, "int32", mask_dtype(1), lanes, vector_width(product), vectors, loads, is_wide, WALK_THREADS,
    ),
)  # fmt: skip


class Asked(NamedTuple):
    """What a kernel is chosen for: a product in `dtype` with `k` columns of X, in vectors of `width` numbers."""

    t: BBCSRTables
    lengths: Lengths
    dtype: np.dtype
    k: int
    width: int

    @property
    def n_vectors(self) -> int:
        """Of a row of X."""
        return -(-self.k // self.width)

    @property
    def stored(self) -> np.dtype | Coded:
        """How values are."""
        return distinct.kind(self.t.data, self.t.distinct)

    @property
    def block_rows(self) -> matmat_kernels.BlockRows:
        return matmat_kernels.BlockRows(self.lengths.n_block_rows, self.lengths.mean, self.lengths.most)

    @property
    def load(self) -> int:
        """Bytes of a vector load of X."""
        return self.width * self.dtype.itemsize


class MatrixKernel(NamedTuple):
    """A kernel of ``A @ X``, its grid, and the structure that it has after the bins."""

    function: cupy.cuda.Function
    grid: tuple[int, int, int]
    structure: Pieces | Walk
    threads: int = BLOCK  # of a thread block

    def of(self, bins: Struct, k: int) -> Run:
        """``run(x, y, alpha, beta)`` for `k` columns: what is left to each launch."""
        launch, grid, threads, structure = self.function, self.grid, (self.threads,), self.structure
        n_columns, plain, shared_bytes = argument(np.int64(k)), structure.plain, structure.shared_bytes

        def run(x, y, alpha, beta):
            own, _sums = (plain, None) if plain is not None else structure.take()  # which live until the launch
            launch(grid, threads, (bins, own, n_columns, x, y, *scaling(alpha, beta)), shared_bytes)

        return run


class Walk:
    """How thread blocks walk over `n_bins` bins of at most `bin_bytes`: the structure of ``bbcsr_matmat_walk``."""

    plain = None  #: as :class:`.Pieces` has it: each stream and each graph counts for itself

    def __init__(self, n_bins: int, bin_bytes: int, tiles: int, bins_of_piece: int) -> None:
        self.n_pieces, self.shared_bytes = -(-n_bins // bins_of_piece), HELD * bin_bytes
        fields = self.n_pieces, bins_of_piece, bin_bytes
        self.take = PerStream(lambda: (struct(*fields, cupy.zeros(tiles, np.uint32)), None)).get


def product(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``; X (n_cols, k) and Y (n_rows, k) in C
    order, and not empty.
    """
    bins, lengths = as_struct(tables), Lengths(tables)

    @cache
    def prepared(k, width):
        found = candidates(Asked(tables, lengths, dtype, k, width))
        ways = [plan.Candidate(name, lambda make=make: make().of(bins, k)) for name, make in found.items()]
        return plan.fastest(ways, tables.bin_rowptr, ("A @ X", dtype, k, width))

    def run(x, y, alpha, beta):
        k = x.shape[1]
        prepared(k, matrix_width(k, x, y))(x, y, alpha, beta)

    return run


def candidates(asked: Asked) -> dict[str, Callable[[], MatrixKernel]]:
    """The kernels that may multiply, by name: each adds up a row in the same order. First products take the first.

    Groups that share a row, and pieces of long rows, add up in an order of their own. So there is one candidate then.
    """
    if asked.t.block_size > 1:
        return {"blocks": lambda: _kernel_of_blocks(asked)}
    layouts = rows_layouts(asked.n_vectors, asked.t.shape[0])
    sharers = rows_sharers(asked, layouts[0])
    if sharers > 1 or asked.lengths.most > _longest(asked):
        return {_name(layouts[0]): lambda: _kernel_of_rows(asked, layouts[0], sharers)}
    found = {_name(layout): partial(_kernel_of_rows, asked, layout, 1) for layout in layouts}
    if asked.n_vectors <= MOST_OF_TURNS:
        found["turns"] = partial(_kernel_of_turns, asked)
    if walks(asked):
        walk = {"walk": partial(_walking_kernel, asked)}
        found = walk | found if asked.t.shape[0] >= MANY_ROWS else found | walk
    return found


def _name(layout: tuple[int, int]) -> str:
    return "rows {}x{}".format(*layout)


def rows_layouts(n_vectors: int, n_rows: int) -> list[tuple[int, int]]:
    """Lanes that share a row of single columns, and the vectors that each has of a row of X, of `n_vectors`.

    A tile of 8 vectors is a cache line of a row of X: L2 holds more of X then. A row of X of no whole lines is one tile where
    lanes have room for it, as tiles would begin anywhere in a line. Few rows have more lanes, to keep the device busy.
    """
    if n_vectors <= 4:
        whole = 1 << (n_vectors - 1).bit_length(), 1
        return [whole, (1, 3)] if n_vectors == 3 else [whole]
    if n_vectors <= 8:
        return [(4, 2), (8, 1)]
    if n_vectors <= 12:
        return [(4, 3), (8, 2)]
    if n_vectors % WARP:
        fitting = next((lanes for lanes in (8, 16, WARP) if lanes * MOST_VECTORS >= n_vectors), 8)
        found = [(lanes, -(-n_vectors // (lanes * -(-n_vectors // (lanes * MOST_VECTORS))))) for lanes in (fitting, 8)]
        return list(dict.fromkeys(found))
    wide, narrow = ((16, 4), (WARP, 2)) if n_vectors > WARP else ((8, 4), (16, 2))
    return [wide, narrow] if n_rows >= MANY_ROWS else [narrow, wide]


def rows_sharers(asked: Asked, layout: tuple[int, int]) -> int:
    """Groups that share a row of single columns: several where one each would leave threads of the device idle."""
    (lanes, vectors), mean = layout, asked.lengths.mean
    n_threads = asked.t.shape[0] * lanes * -(-asked.n_vectors // (lanes * vectors))
    sharers = 1
    while 2 * sharers * lanes <= BLOCK and 2 * sharers * LEAST_ENTRIES <= mean:
        is_more = mean >= LONG_ROWS and vectors > 1 and 2 * sharers * lanes <= WARP
        if 2 * sharers * n_threads > ENOUGH_THREADS[is_more] * processors():
            break
        sharers *= 2
    return sharers


def _kernel_of_rows(asked: Asked, layout: tuple[int, int], sharers: int) -> MatrixKernel:
    """Where lanes share rows of single columns, or one lane has a row of X."""
    (t, _, dtype, _, width), n_vectors, (lanes, vectors) = asked, asked.n_vectors, layout
    tiles, is_part = -(-n_vectors // (lanes * vectors)), vectors > 1 and n_vectors < lanes * vectors
    loads = max(4 if lanes * vectors <= 4 else 8, vectors * LOAD // asked.load if vectors > 1 else 0)
    pieces = _pieces(asked, WARP, lanes * vectors / loads, tiles, (1, lanes * width * vectors))
    (n_blocks,) = blocks(t.col_base.size * WARP * lanes * sharers, BLOCK)
    how = asked.stored, dtype, t.col_wide.dtype, lanes, width, vectors, sharers, loads, is_part, pieces.n > 0, _offset(asked)
    return MatrixKernel(MATMAT_ROWS(*how), matrix_grid(pieces.n + n_blocks, tiles), pieces)


def _kernel_of_blocks(asked: Asked) -> MatrixKernel:
    """Where groups of lanes have a block row, or warps a bin."""
    tiles = matmat_kernels.tiles_of_groups(asked.t.block_size, asked.k, asked.width, asked.t.col_base.size)
    return _kernel_of_turns(asked) if tiles is None else _kernel_of_groups(asked, tiles)


def _kernel_of_groups(asked: Asked, of: Tiles) -> MatrixKernel:
    """Where groups of lanes have a block row."""
    (lanes, width, vectors, tiles), lengths, size = of, asked.lengths, asked.t.block_size
    sharers, schedule = matmat_kernels.sharers(asked.block_rows, of, processors()), None
    is_uneven = sharers == 0
    if is_uneven:
        sharers, schedule = 1, uneven_rows.evened_out(lengths.block_rows, lanes, tiles, UNEVEN_WARPS * WARP * processors())
    together = 1 if is_uneven else blocks_together(size, lanes * width, vectors, lengths.mean // sharers)
    pieces = Pieces(
        lengths.block_rows if is_uneven else lengths.bins[:0],
        schedule or Schedule(lengths.most, 1),
        tiles,
        (size, lanes * width * vectors),
        asked.dtype,
    )
    n_groups = lengths.n_block_rows * sharers if pieces.share is None else pieces.share.size
    return MatrixKernel(
        MATMAT_BLOCKS(*_how(asked), lanes, width, vectors, sharers, together, is_uneven),
        matrix_grid(pieces.n + blocks(n_groups * lanes, BLOCK)[0], tiles),
        pieces,
    )


def _kernel_of_turns(asked: Asked) -> MatrixKernel:
    """Where warps have a bin, and take its rows in turns."""
    n_bins, n_vectors = asked.t.col_base.size, asked.n_vectors
    lanes, vectors = turns_layout(n_bins, n_vectors)
    tiles = -(-n_vectors // (lanes * vectors))
    step = WARP / blocks_under_way(asked.t.block_size, lanes * vectors)
    pieces = _pieces(asked, 1, step, tiles, (lanes, WARP * asked.width * vectors))
    return MatrixKernel(
        MATMAT(*_how(asked), lanes, asked.width, vectors, _offset(asked), pieces.n > 0),
        matrix_grid(pieces.n + blocks(n_bins * WARP, BLOCK)[0], tiles),
        pieces,
    )


def _how(asked: Asked) -> tuple[Any, ...]:
    """The template arguments that say what the tables are, with those for blocks."""
    t = asked.t
    return asked.stored, asked.dtype, t.col_wide.dtype, t.block_size, t.present is not None


def _walking_kernel(asked: Asked) -> MatrixKernel:
    """Where thread blocks walk over neighbouring rows."""
    t, lengths, dtype, k, width = asked
    lanes, vectors, loads = WALK_LAYOUTS[k // width > WALK_LAYOUTS[0][0]]
    n_bins, tiles = t.col_base.size, k // (lanes * width * vectors)
    is_large = t.shape[1] * k * dtype.itemsize >= L2_FOR_X * attribute("L2CacheSize")
    at_once = 1 if is_large else min(tiles, TILES_AT_ONCE)
    n_blocks, bins_of_piece = max(1, processors() // at_once), MOST_BINS
    if vectors > 1:
        bins_of_piece = max(LEAST_BINS, min(MOST_BINS, round(PIECE_NNZ * n_bins / t.nnz)))
    if tiles == at_once:  # else thread blocks of the next tile come where one has ended
        bins_of_piece = even_pieces(n_bins, bins_of_piece, n_blocks)
    walk = Walk(n_bins, lengths.most * WARP * copied_bytes(t), tiles, bins_of_piece)
    function = allowed(MATMAT_WALK(asked.stored, dtype, lanes, vectors, loads, t.col_wide.size > 0), _room())
    return MatrixKernel(function, matrix_grid(min(walk.n_pieces, n_blocks), tiles), walk, threads=WALK_THREADS)


def even_pieces(n_bins: int, bins_of_piece: int, n_blocks: int) -> int:
    """Bins of a piece, about `bins_of_piece`, with which no thread block waits long for one that has a piece more."""

    def time(size: int) -> float:
        bins_of_most = size * -(-n_bins // (size * n_blocks))
        return bins_of_most * (1 + EACH_BIN * abs(size - bins_of_piece))

    return min(range(max(LEAST_BINS, bins_of_piece // 2), max(2 * LEAST_BINS, bins_of_piece) + 1), key=time)


def _longest(asked: Asked) -> int:
    """Steps of more than which rows are cut in pieces."""
    size = asked.t.block_size
    return matmat_kernels.longest_whole_row(size, n_slots(asked.t) // size**2, asked.lengths.mean, processors())


def _pieces(asked: Asked, rows: int, lanes: float, tiles: int, sums: tuple[int, int]) -> Pieces:
    """Of bins, where `rows` is 1, or of rows: a step that is under way takes so many lanes."""
    lengths, longest = asked.lengths, _longest(asked)
    n_steps = max(1, math.isqrt(lengths.most), int(PIECE_ROUNDS * BLOCK / lanes))
    of = lengths.bins if rows == 1 or lengths.most <= longest else lengths.rows
    return Pieces(of, Schedule(longest, n_steps), tiles, sums, asked.dtype)


def _offset(asked: Asked) -> np.dtype:
    """What counts the vectors of X."""
    n_rows = asked.t.shape[1] + asked.t.block_size
    return np.dtype(np.uint32 if n_rows * asked.n_vectors < 1 << 32 else np.uint64)


def can_be_copied(t: BBCSRTables) -> bool:
    """Whether a copy engine takes the tables, of single columns: they begin at multiples of 16 bytes, as bins then do."""
    is_aligned = all(table.data.ptr % 16 == 0 for table in (t.data, t.col_narrow, t.col_wide))
    return t.block_size == 1 and t.col_wide.dtype == np.int32 and is_aligned and has_copy_engine()


def copied_bytes(t: BBCSRTables) -> int:
    """Of a slot with its column, at most."""
    return slot_bytes(distinct.kind(t.data, t.distinct)) + (4 if t.col_wide.size else 2)


def _room() -> int:
    """Bytes of shared memory that a thread block may ask for, beside ``bbcsr_matmat_walk``'s own variables."""
    return attribute("MaxSharedMemoryPerBlockOptin") - WALK_OWN


def walks(asked: Asked) -> bool:
    """Whether thread blocks walk over neighbouring rows, so that these find rows of X in L1."""
    (t, lengths, dtype, _, _), stored = asked, asked.stored
    if not t.nnz or dtype not in (np.float32, np.float64) or dtype != (stored.dtype if isinstance(stored, Coded) else stored):
        return False
    n, n_bytes = asked.n_vectors, asked.load
    if t.block_size > 1 or n_bytes < LOAD or (n != WALK_LAYOUTS[0][0] and n % (2 * WALK_LAYOUTS[0][0])):
        return False
    lanes, vectors, _ = WALK_LAYOUTS[n > WALK_LAYOUTS[0][0]]
    if n // (lanes * vectors) > MOST_IN_Y:  # the kernel counts tiles by the grid's y alone
        return False
    return HELD * lengths.most * WARP * copied_bytes(t) <= _room() and can_be_copied(t)


def blocks_together(block_size: int, columns: int, vectors: int, n_blocks: int) -> int:
    """Blocks that a group of lanes multiplies together in ``A @ X`` with blocks of 2 to 8, of `n_blocks` of a block row, where
    lanes have `vectors` of `columns` columns each: two of small blocks, so that enough loads are under way.
    """
    is_small = block_size <= 3 and vectors <= 2 and vectors * columns <= 64
    return 2 if is_small and n_blocks >= LONG_ENOUGH else 1


def turns_layout(n_bins: int, n_vectors: int) -> tuple[int, int]:
    """Lanes that share a row of `n_vectors` vector loads in ``A @ X``, row by row, and the vectors that each holds.

    A warp takes as many turns as lanes share a row. Of few bins, more warps with less turns each keep the device busy.
    """
    lanes = min(TURN_LANES, 1 << (max(1, n_vectors) - 1).bit_length())
    vectors = 2 if n_vectors >= 2 * TURN_LANES else 1
    while lanes * vectors > 1 and n_bins * -(-n_vectors // (lanes * vectors)) < ENOUGH_TILES[lanes > 2]:
        lanes, vectors = (lanes, 1) if vectors > 1 else (lanes // 2, 1)
    return lanes, vectors
