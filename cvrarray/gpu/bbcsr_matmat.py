"""``A @ X`` with BBCSR on the GPU: which kernel multiplies, and how lanes and warps share rows of A and of X.

``docs/measurements/matrix-products.md`` has the reasons, and the kernels' files say what each does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core import matmat_kernels
from ..core.arrays import Run
from ..core.matmat_kernels import LINE, LOAD, MATRIX_LANES, TURN_LANES, Tiles
from ..core.tables import WARP, BBCSRTables, mask_dtype
from . import distinct, transposed, uneven_rows
from .bbcsr_lengths import Lengths
from .bbcsr_reads import reads_apart, reads_near, spread
from .bbcsr_tables import SHAPES, as_struct, n_slots, slot_bytes
from .compiler import PRODUCTS, STORED, Coded, Kernel, allowed, constant
from .launches import NULL, Struct, argument, blocks, matrix_grid, matrix_width, scaling, struct, vector_width
from .properties import attribute, gpu, has_asynchronous_copies, has_copy_engine, processors
from .streams import PerStream
from .uneven_rows import BLOCK, Pieces, Schedule

#: Warps that row by row there should be at least before one more lane than one, and than two, share a row.
ENOUGH_TILES = 1800, 2400
#: Blocks that a group has at least where it multiplies several together.
LONG_ENOUGH = 8
#: Where lanes share a row of single columns, it has several groups of them, of LEAST_ENTRIES entries each, where all rows have
#: no more threads than these a multiprocessor: all are under way at once. The second number is for rows that are long, read
#: what others do, and have no more lanes than a warp, where a lane has several vectors: such a warp finds more of X in L1.
ENOUGH_THREADS, LEAST_ENTRIES = (1024, 3000), 2
#: Rows that are many, quite a few, or at least not few, and entries of one that is long; nonzeros a column from which rows of X
#: are reused much.
MANY_ROWS, MORE_ROWS, SOME_ROWS, LONG_ROWS, REUSED = 50_000, 30_000, 12_000, 30, 12
#: Entries of a row up to which, of MORE_ROWS, four lanes share a row of X of up to 16 vectors, and from which, of fewer than
#: MANY_ROWS, all lanes of a warp share one of WIDE vectors or more. What is read of X at a time is the longer for it, and so
#: is each row's part. Not where rows have about as many entries, EVEN times the mean at most, and read X apart.
FEW_ENTRIES, MANY_ENTRIES, WIDE, EVEN = 6, 10, 64, 2
#: Narrow vectors of a row of X that one lane has, where rows have fewer entries than the first number, or the second or more
#: and there are at most so many rows. So many of the vectors are under way, at least and at most.
OF_ONE_LANE, ONE_LANE_ROWS, FEW_ROWS, ONE_LANE_LOADS = (3, 5), (12, 64), 8_000, (12, 20)
#: The same where rows are near each other: narrow vectors, and others, of many rows, and of fewer rows; groups of columns over
#: entries (:func:`.bbcsr_reads.reads_near`), and where many rows have no more than OF_ONE_LANE columns.
NEAR_OF_ONE_LANE, NEAR_OF_FEW_ROWS, NEAR = ((3, 5, 7), (3, 5)), ((5,), ()), (0.4, 0.8)
#: Groups of columns over entries up to which rows of A share rows of X.
SHARED = 0.8
#: Vectors of a row of X for which a group of a power of two, one a lane, has lanes without any. Where rows are short, or so
#: many, two or four lanes have two to four vectors instead.
ODD, ODD_ROWS = (5, 6, 7), 120_000
#: Thread blocks have NEAR_WARPS where a row of X has WIDE vectors or more, rows of A NEAR_ENTRIES or more, and those of a bin
#: read other rows of X at a time, but of NEAR_GROUPS of columns over entries at most: then more of them meet in L1.
NEAR_WARPS, NEAR_ENTRIES, NEAR_GROUPS = 8, 20, 0.6
WARPS = BLOCK // WARP  #: of other thread blocks
#: A long row is cut in pieces. For each a thread block loads rows of X about PIECE_ROUNDS times, or as many times more as keep
#: the pieces of a row fewer than their steps.
PIECE_ROUNDS = 8
#: Where block rows are uneven, they have no more warps than UNEVEN_WARPS a multiprocessor.
UNEVEN_WARPS = 20
#: Where a copy engine brings a warp's next tables, a thread block has COPYING_WARPS, and a multiprocessor ALL_COPYING_WARPS.
COPYING_WARPS, ALL_COPYING_WARPS = constant("bbcsr_matmat_short.cu", "PER_BLOCK"), 32
AHEAD = constant("bbcsr_matmat_staged.cu", "AHEAD")  #: steps that tables are, where they go through shared memory
#: Where thread blocks walk over neighbouring rows, HELD bins are in shared memory, beside WALK_OWN bytes.
WALK_THREADS, WALK_OWN, HELD = 1024, 4096, constant("bbcsr_matmat_walk.cu", "HELD")
#: Lanes, vectors of each and steps under way there: of X with so many vectors a row, and with twice as many or a multiple of
#: that. A piece has the most bins for the first, and for the second as many as have so many nonzeros.
WALK_LAYOUTS = (8, 1, 8), (8, 2, 4)
LEAST_BINS, MOST_BINS, PIECE_NNZ = 4, 16, 1600
EACH_BIN = 0.01  #: Of the time, that a piece of another number of bins has to save for each bin of the difference.
TILES_AT_ONCE = 4  #: of which thread blocks walk, at most, where X is not large
#: Where rows of a bin read other parts of X each: of so many lines of one column.
FAR_APART = 4


def blocks_under_way(block_size: int, vectors: int) -> int:
    """Blocks that are loaded before the first is multiplied: several where one block makes few loads. A lane loads
    `vectors` of X for each column of a block.
    """
    return 4 if block_size * vectors <= 2 else 2 if block_size * vectors <= 4 or (block_size, vectors) == (1, 8) else 1


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
        value, product, index, mask_dtype(size), size, holes, lanes, width, vectors, blocks_under_way(size, lanes * vectors),
        offset, dots, is_cut,
    ),
)  # fmt: skip
MATMAT_BLOCKS = Kernel(
    "bbcsr_matmat",
    "bbcsr_matmat_blocks",
    [
        (value, product, *shape, lanes, vector_width(product) if lanes < MATRIX_LANES else 1, *how, False, is_cut)
        for value, product in STORED
        for shape, lanes, how, is_cut in zip(
            SHAPES[1:], (8, 2, 16), ((2, 2, 1), (1, 8, 2), (4, 1, 1)), (True, False, True), strict=True
        )
    ]
    + [(*dtypes, "int32", 3, False, 8, vector_width(dtypes[1]), 1, 2, 1, True, True) for dtypes in transposed.ROUNDED],
    lambda value, product, index, size, holes, lanes, width, vectors, sharers, together, dots, is_cut: (
        value, product, index, mask_dtype(size), size, holes, lanes, width, vectors, sharers, together, dots, is_cut,
    ),
    # of sums and rows of X that nearly fit these, the compiler would take a few more, and one thread block fewer have room
    lambda value, product, index, size, holes, lanes, width, vectors, sharers, together, dots, is_cut: (
        128 if product == np.float32 and size * vectors == 12 and not (holes or dots or is_cut) else None
    ),
)  # fmt: skip
MATMAT_STAGED = Kernel(
    "bbcsr_matmat_staged",
    "bbcsr_matmat_staged",
    [
        (value, product, index, size, lanes, vector_width(product), vectors, sharers, offset)
        for value, product in PRODUCTS
        if np.dtype(value).itemsize == matmat_kernels.STAGED_BYTES
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
            ("int32", 1, vector_width(product), 1, 8, 4, False, False, "uint32", WARPS),
            ("int32", 4, 1, 1, 4, 8, False, True, "uint32", WARPS),
            ("int64", 8, vector_width(product), 4, 1, 8, False, True, "uint64", WARPS),
            ("int32", 16, vector_width(product), 3, 2, 8, True, False, "uint32", WARPS),
            ("int32", WARP, vector_width(product), 2, 1, 8, False, False, "uint32", WARPS),
            ("int32", 16, vector_width(product), 4, 1, 8, False, False, "uint32", NEAR_WARPS),
            ("int32", 1, 1, 5, 16, 12, False, False, "uint32", WARPS),
            ("int32", 1, vector_width(product), 3, 1, 12, False, False, "uint32", WARPS),
        )
    ],
    lambda value, product, index, lanes, width, vectors, sharers, loads, is_part, is_cut, offset, warps: (
        value, product, index, mask_dtype(1), lanes, width, vectors, sharers, loads, is_part, is_cut, offset, warps,
    ),
)  # fmt: skip
MATMAT_SHORT = Kernel(
    "bbcsr_matmat_short",
    "bbcsr_matmat_short",
    [
        (value, product, "int32", lanes, vector_width(product), is_wide)
        for value, product in STORED
        for lanes, is_wide in ((1, False), (4, True))
        if slot_bytes(value) + (4 if is_wide else 2) <= matmat_kernels.COPIED_BYTES
    ],
    lambda value, product, index, lanes, width, is_wide: (value, product, index, mask_dtype(1), lanes, width, is_wide),
)

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
    def rows(self) -> matmat_kernels.Rows:
        return matmat_kernels.Rows(self.t.shape, self.t.nnz, n_slots(self.t), self.lengths.most)

    @property
    def block_rows(self) -> matmat_kernels.BlockRows:
        return matmat_kernels.BlockRows(self.lengths.n_block_rows, self.lengths.mean, self.lengths.most)

    @property
    def x(self) -> matmat_kernels.RowOfX:
        return matmat_kernels.RowOfX(self.n_vectors, self.width * self.dtype.itemsize)


class MatrixKernel(NamedTuple):
    """A kernel of ``A @ X``, its grid, the structure that it has after the bins, if any, and arguments after those of all."""

    function: cupy.cuda.Function
    grid: tuple[int, int, int]
    structure: Pieces | Walk | None = None
    last: tuple[Any, ...] = ()
    threads: int = BLOCK  # of a thread block

    def of(self, bins: Struct, k: int) -> Run:
        """``run(x, y, alpha, beta)`` for `k` columns: what is left to each launch."""
        launch, grid, threads, last = self.function, self.grid, (self.threads,), self.last
        n_columns, structure = argument(np.int64(k)), self.structure
        shared_bytes = 0 if structure is None else structure.shared_bytes
        if structure is not None and structure.plain is None:
            take = structure.take

            def run(x, y, alpha, beta):
                own, _sums = take()  # which live until the launch
                launch(grid, threads, (bins, own, n_columns, x, y, *scaling(alpha, beta), *last), shared_bytes)

        else:
            first = (bins, n_columns) if structure is None else (bins, structure.plain, n_columns)

            def run(x, y, alpha, beta):
                launch(grid, threads, (*first, x, y, *scaling(alpha, beta), *last), shared_bytes)

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
        return kernel(Asked(tables, lengths, dtype, k, width)).of(bins, k)

    def run(x, y, alpha, beta):
        k = x.shape[1]
        prepared(k, matrix_width(k, x, y))(x, y, alpha, beta)

    return run


def kernel(asked: Asked) -> MatrixKernel:
    """The one that multiplies."""
    if takes_lines(asked):
        return _kernel_of_turns(asked, in_lines=True)
    if walks(asked):
        return _walking_kernel(asked)
    of_one = has_one_lane(asked)
    if takes_copies(asked) and not (of_one and asked.x.load < LOAD // 2):
        return _kernel_of_short_rows(asked)
    if of_one or takes_lanes(asked):
        return _kernel_of_lanes(asked, of_one)
    return _staged_kernel(asked) or _matrix_kernel(asked)


def product_with_dots(tables: BBCSRTables, x: cupy.ndarray, y: cupy.ndarray) -> tuple[Callable[[], None], cupy.ndarray]:
    """``run()``, which does ``Y = A @ X`` for a square A, and leaves sums (m, k) of ``conj(X) * Y`` over some rows each,
    real parts in double precision; X and Y (n, k) are of a dtype that is rounded. The sums are the second result.
    """
    dtype, k = y.dtype, x.shape[1]
    multiply = _matrix_kernel(Asked(tables, Lengths(tables), dtype, k, matrix_width(k, x, y)), has_dots=True)
    dots, bins = cupy.zeros((multiply.grid[0] * BLOCK // WARP, k)), as_struct(tables)
    run = multiply._replace(last=(dots,)).of(bins, k)
    return lambda: run(x, y, dtype.type(1), dtype.type(0)), dots


def _matrix_kernel(asked: Asked, has_dots: bool = False) -> MatrixKernel:
    """Where groups of lanes have a block row, or warps a bin. Its last argument is a null pointer, or where sums go that
    `has_dots` asks for.
    """
    tiles = matmat_kernels.tiles_of_groups(asked.t.block_size, asked.k, asked.width, asked.t.col_base.size)
    if tiles is not None:
        return _kernel_of_groups(asked, tiles, has_dots)
    return _kernel_of_turns(asked, has_dots)


def _kernel_of_groups(asked: Asked, of: Tiles, has_dots: bool) -> MatrixKernel:
    """Where groups of lanes have a block row."""
    (lanes, width, vectors, tiles), lengths, size = of, asked.lengths, asked.t.block_size
    sharers, schedule = matmat_kernels.sharers(asked.block_rows, of, gpu()), None
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
        MATMAT_BLOCKS(*_how(asked), lanes, width, vectors, sharers, together, has_dots, is_uneven),
        matrix_grid(pieces.n + blocks(n_groups * lanes, BLOCK)[0], tiles),
        pieces,
        (NULL,),
    )


def _kernel_of_turns(asked: Asked, has_dots: bool = False, in_lines: bool = False) -> MatrixKernel:
    """Where warps have a bin, and take its rows in turns, maybe a line of X each."""
    n_bins, n_vectors = asked.t.col_base.size, asked.n_vectors
    lanes, vectors = (TURN_LANES, 1) if in_lines else turns_layout(n_bins, n_vectors)
    tiles = -(-n_vectors // (lanes * vectors))
    step = WARP / blocks_under_way(asked.t.block_size, lanes * vectors)
    pieces = _pieces(asked, 1, step, tiles, (lanes, WARP * asked.width * vectors))
    return MatrixKernel(
        MATMAT(*_how(asked), lanes, asked.width, vectors, _offset(asked), has_dots, pieces.n > 0),
        matrix_grid(pieces.n + blocks(n_bins * WARP, BLOCK)[0], tiles),
        pieces,
        (NULL,),
    )


def _how(asked: Asked) -> tuple[Any, ...]:
    """The template arguments that say what the tables are, with those for blocks."""
    t = asked.t
    return asked.stored, asked.dtype, t.col_wide.dtype, t.block_size, t.present is not None


def _staged_kernel(asked: Asked) -> MatrixKernel | None:
    """Where tables go through shared memory; None where they should not."""
    (t, lengths, dtype, k, width), stored, size = asked, asked.stored, asked.t.block_size
    if isinstance(stored, Coded) or t.present is not None or not has_asynchronous_copies():
        return None
    tiles = matmat_kernels.tiles_of_staged(size, stored.itemsize, k, width)
    if tiles is None or staged_bytes(size, tiles.lanes) > 48 << 10 or lengths.most * size * WARP >= 1 << 31:
        return None
    sharers = matmat_kernels.sharers(asked.block_rows, tiles, gpu())
    if not sharers:
        return None
    return MatrixKernel(
        MATMAT_STAGED(stored, dtype, t.col_wide.dtype, size, tiles.lanes, width, tiles.vectors, sharers, _offset(asked)),
        matrix_grid(-(-lengths.n_block_rows * sharers * tiles.lanes // BLOCK), tiles.tiles),
    )


def staged_bytes(size: int, lanes: int) -> int:
    """Of shared memory that a thread block of ``bbcsr_matmat_staged`` takes."""
    values = 16 * (-(-size * size * matmat_kernels.STAGED_BYTES // 16) | 1)
    return BLOCK // lanes * (AHEAD + 1) * (values + 8)


def _kernel_of_lanes(asked: Asked, of_one: bool) -> MatrixKernel:
    """Where lanes share rows of single columns, or one lane has a row of X."""
    (t, lengths, dtype, _, width), n_vectors = asked, asked.n_vectors
    reads = Reads(of_one, t.nnz >= REUSED * t.shape[1], are_apart(asked), are_near(asked))
    lanes, vectors, sharers, loads = rows_layout(t.shape[0], lengths.mean, n_vectors, asked.x.load, reads)
    tiles, is_part = -(-n_vectors // (lanes * vectors)), vectors > 1 and n_vectors < lanes * vectors
    pieces = _pieces(asked, WARP, lanes * vectors / loads, tiles, (1, lanes * width * vectors))
    warps = NEAR_WARPS if sharers == 1 and not pieces.n and share_parts(asked) else WARPS
    (n_blocks,) = blocks(t.col_base.size * WARP * lanes * sharers, warps * WARP)
    how = asked.stored, dtype, t.col_wide.dtype
    return MatrixKernel(
        MATMAT_ROWS(*how, lanes, width, vectors, sharers, loads, is_part, pieces.n > 0, _offset(asked), warps),
        matrix_grid(pieces.n + n_blocks, tiles),
        pieces,
        threads=warps * WARP,
    )


def _kernel_of_short_rows(asked: Asked) -> MatrixKernel:
    """Where a warp's next tables are copied meanwhile."""
    t, warps, lanes = asked.t, COPYING_WARPS, 1 << (asked.n_vectors - 1).bit_length()
    n_blocks = min(-(-t.col_base.size // warps), ALL_COPYING_WARPS // warps * processors())
    function = MATMAT_SHORT(asked.stored, asked.dtype, t.col_wide.dtype, lanes, asked.width, t.col_wide.size > 0)
    return MatrixKernel(function, matrix_grid(n_blocks, 1), threads=warps * WARP)


def _walking_kernel(asked: Asked) -> MatrixKernel:
    """Where thread blocks walk over neighbouring rows."""
    t, lengths, dtype, k, width = asked
    lanes, vectors, loads = WALK_LAYOUTS[k // width > WALK_LAYOUTS[0][0]]
    n_bins, tiles = t.col_base.size, k // (lanes * width * vectors)
    at_once = 1 if matmat_kernels.is_large(t.shape[1] * asked.x.n_bytes, gpu()) else min(tiles, TILES_AT_ONCE)
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


def _pieces(asked: Asked, rows: int, lanes: float, tiles: int, sums: tuple[int, int]) -> Pieces:
    """Of bins, where `rows` is 1, or of rows: a step that is under way takes so many lanes."""
    size, lengths = asked.t.block_size, asked.lengths
    longest = matmat_kernels.longest_whole_row(size, n_slots(asked.t) // size**2, lengths.mean, gpu())
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


def takes_copies(asked: Asked) -> bool:
    """Whether a warp's next tables are copied to shared memory while it multiplies."""
    t = asked.t
    return t.block_size == 1 and matmat_kernels.may_copy(asked.rows, asked.x, copied_bytes(t)) and can_be_copied(t)


def _room() -> int:
    """Bytes of shared memory that a thread block may ask for, beside ``bbcsr_matmat_walk``'s own variables."""
    return attribute("MaxSharedMemoryPerBlockOptin") - WALK_OWN


def walks(asked: Asked) -> bool:
    """Whether thread blocks walk over neighbouring rows, so that these find rows of X in L1."""
    (t, lengths, dtype, _, _), stored = asked, asked.stored
    if dtype not in (np.float32, np.float64) or dtype != (stored.dtype if isinstance(stored, Coded) else stored):
        return False
    if t.block_size > 1 or not matmat_kernels.may_walk(asked.rows, asked.x):
        return False
    return HELD * lengths.most * WARP * copied_bytes(t) <= _room() and can_be_copied(t)


def takes_lines(asked: Asked) -> bool:
    """Whether a warp takes all rows of a bin, in turns, and a line of each row of X at a time."""
    (t, *_), rows, x = asked, asked.rows, asked.x
    if t.block_size > 1 or not matmat_kernels.may_take_lines(rows, x, gpu()):
        return False
    if not reads_apart(t, asked.dtype.itemsize, FAR_APART * LINE):
        return False
    return matmat_kernels.read_beyond_l2(rows, x, spread(t), gpu())


def takes_lanes(asked: Asked) -> bool:
    """Whether lanes share rows of single columns. Otherwise a warp takes all rows of a bin, in turns."""
    return asked.t.block_size == 1 and not matmat_kernels.takes_turns(asked.rows, asked.x, gpu())


def has_one_lane(asked: Asked) -> bool:
    """Whether a lane has a whole row of X, of few vectors: where rows of A are short, or near each other, so that neighbours
    read near each other, or long and few, so that many groups share one.
    """
    (t, lengths, _, k, _), n_vectors, n_rows = asked, asked.n_vectors, asked.t.shape[0]
    is_narrow, is_many = asked.x.load < LOAD, n_rows >= MANY_ROWS
    if t.block_size > 1:
        return False
    is_short, is_long = lengths.mean < ONE_LANE_ROWS[0], lengths.mean >= ONE_LANE_ROWS[1]
    if is_short or is_long:
        return is_narrow and n_vectors in OF_ONE_LANE and (is_short or n_rows <= FEW_ROWS)
    if n_vectors not in (NEAR_OF_ONE_LANE if is_many else NEAR_OF_FEW_ROWS)[not is_narrow]:
        return False
    return reads_near(t, NEAR[is_many and k in OF_ONE_LANE])


def are_apart(asked: Asked) -> bool:
    """Whether rows of A, as long as each other, read other rows of X each: then no warp finds in L1 what another has read."""
    (t, lengths, *_), n_rows = asked, asked.t.shape[0]
    least = LONG_ROWS if asked.n_vectors % 32 else MANY_ENTRIES  # of fewer no layout asks
    if n_rows >= MANY_ROWS or lengths.mean < least or lengths.most > EVEN * lengths.mean:
        return False
    return not reads_near(t, SHARED)


def are_near(asked: Asked) -> bool:
    """Whether many neighbouring rows of A share rows of X, which have ODD vectors each."""
    return asked.n_vectors in ODD and asked.t.shape[0] >= ODD_ROWS and reads_near(asked.t, SHARED)


def share_parts(asked: Asked) -> bool:
    """Whether neighbouring rows of A that are not short read the same parts of a wide X, but not at the same time."""
    if asked.n_vectors < WIDE or asked.lengths.mean < NEAR_ENTRIES:
        return False
    return reads_near(asked.t, NEAR_GROUPS) and reads_apart(asked.t, 1, 1)


class Reads(NamedTuple):
    """Of X, by single columns."""

    of_one: bool = False  # a lane reads a whole row of X
    are_many: bool = False  # rows of X are read often, so that L2 should hold more of a narrower tile
    are_apart: bool = False  # rows of A share no rows of X
    are_near: bool = False  # they do, neighbouring ones of many


def rows_layout(n_rows: int, mean: int, n_vectors: int, load: int, reads: Reads) -> tuple[int, int, int, int]:
    """How lanes share rows of A, of `mean` entries, and of X, of `n_vectors` vectors of `load` bytes, in single columns: lanes
    of a group, vectors that each holds, groups that share a row, and vectors under way.

    A row of X of 32 vectors, or 64, and so on, has tiles. Any other is one tile if lanes have room for it: tiles would begin
    anywhere in a cache line.
    """
    is_narrow, is_many, is_long = load < LOAD, n_rows >= MANY_ROWS, mean >= LONG_ROWS
    are_more = n_rows >= MORE_ROWS
    is_short = are_more and mean < FEW_ENTRIES
    most = 1
    if reads.of_one:
        lanes, most = 1, n_vectors
    elif n_vectors in ODD:
        lanes, most = _lanes_of_odd(n_rows, mean, n_vectors, is_narrow, is_short or reads.are_near)
    elif n_vectors < 8 or (n_vectors == 8 and (is_long or not (is_many or is_short))):
        lanes = 1 << (n_vectors - 1).bit_length()
    elif n_vectors in (8, 16) and is_short:
        lanes, most = 4, n_vectors // 4
    elif n_vectors % 32 == 0:
        lanes, most = _lanes_of_tiles(n_rows, mean, n_vectors >= WIDE, reads)
    else:
        lanes, most = 4 if n_vectors <= 12 else 8, 5 if is_narrow or is_many else 4 if are_more and n_vectors > 32 else 3
        while lanes < WARP and lanes * most < n_vectors:
            lanes *= 2
    tiles = -(-n_vectors // (lanes * most))
    vectors = -(-n_vectors // (tiles * lanes))
    sharers = 1
    while 2 * sharers * lanes <= BLOCK and 2 * sharers * LEAST_ENTRIES <= mean:
        is_more = is_long and not reads.are_apart and vectors > 1 and 2 * sharers * lanes <= WARP
        enough = ENOUGH_THREADS[is_more] * processors()
        if 2 * sharers * n_rows * lanes * tiles > enough:
            break
        sharers *= 2
    loads = max(4 if lanes * vectors <= 4 else 8, vectors * LOAD // load if vectors > 1 else 0)
    if lanes == 1 < vectors:
        loads = max(ONE_LANE_LOADS[0], min(loads, ONE_LANE_LOADS[1]))
    return lanes, vectors, sharers, loads


def _lanes_of_odd(n_rows: int, mean: int, n_vectors: int, is_narrow: bool, are_few: bool) -> tuple[int, int]:
    """Lanes of a group, and vectors of each at most, where X has ODD vectors a row. `are_few`: a row of A has few entries, or
    many neighbouring ones share what they read of X.
    """
    if are_few:
        lanes = 2 if n_vectors < 7 or is_narrow else 4
        return lanes, -(-n_vectors // lanes)
    return (4, 2) if n_rows >= ODD_ROWS and mean < MANY_ENTRIES else (8, 1)


def _lanes_of_tiles(n_rows: int, mean: int, is_wide: bool, reads: Reads) -> tuple[int, int]:
    """Lanes of a group, and vectors of each at most, where X has 32 vectors a row or, `is_wide`, a multiple."""
    if reads.are_apart:
        return 8, 2
    if n_rows < SOME_ROWS or (n_rows < MANY_ROWS and mean >= MANY_ENTRIES):
        return WARP if is_wide else 16, 2
    if n_rows < MORE_ROWS:
        return 8, 2
    is_narrower = mean < FEW_ENTRIES and reads.are_many
    return 16 if is_wide and not is_narrower else 8, 4


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
