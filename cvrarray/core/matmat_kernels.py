"""Which kernel multiplies in ``A @ X`` on a GPU, as far as counts tell.

The kernels' own modules go by it, and so does the choice of a format (:mod:`.wide`):
``docs/measurements/matrix-products.md`` has the reasons. A row of X is loaded in vectors of up to 16 bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from .fitted import L2_BYTES, PROCESSORS
from .tables import WARP

LOAD, SECTOR, LINE = 16, 32, 128  #: bytes of a vector load, at most, of the least that is read, and of a cache line
#: Lanes that share a row of X, at most. With more, each would have more sums than there are registers for.
MATRIX_LANES = 16
#: Warps that a multiprocessor should have rows for.
ENOUGH_WARPS = 16

#: CVR: bytes of a row of X from which rows of A may be long, and nonzeros of an average one from which they are: most steps
#: have no record then. Bytes of more than which a warp has a row of X; nonzeros up to which rows of A that are long have
#: their own kernel there too, and from which a warp has shorter rows of X of which lanes would load few bytes at a time.
LONG_LINE, LONG, LONG_ROW, FEW_LONG, MANY_ODD = 128, 12, 256, 1_000_000, 2_000_000

#: Single columns: rows, and entries of an average one, from which thread blocks walk over neighbouring rows: by the vectors
#: that a row of X has, at least; and nonzeros. The entries of the longest row, and slots over nonzeros, at most.
WALKED = {
    8: ((40_000, 8), (100_000, 6)),
    16: ((30_000, 2),),
    32: ((30_000, 3),),
    64: ((40_000, 6),),
    128: ((90_000, 6),),
}
WALKED_NNZ, WALK_STEPS, WALK_PADDING = 150_000, 32, 1.75
#: A warp takes a line of each row of X, where rows of a bin read other parts of it, if X has LARGE_X times the bytes of L2 or
#: more, a tile of a line LARGE_TILE times these or less, and A no more padding, and REUSE nonzeros a column. Where rows of X
#: are no whole number of lines: REUSE_OF_PARTS, whole sectors, and so much of the lines that have parts of them.
LARGE_X, LARGE_TILE, TURNS_PADDING, REUSE, REUSE_OF_PARTS, FULL_LINES = 0.75, 3, 2, 2, 12, 0.85
#: So much of X do the columns of a bin spread over, if they are anywhere. Otherwise what rows that are under way read of it
#: should be BEYOND times the bytes of L2.
ANYWHERE, BEYOND = 0.85, 1.5
#: Bins from which a warp takes a whole one, where a row of X has at most FEW_VECTORS vectors: with rows of at most SHORT
#: entries, longer ones, and much padding. A row of LATE times the steps that a warp takes on average is too long for that.
MANY_BINS, FEW_VECTORS, SHORT, MUCH_PADDING, LATE = 12_000, (16, 8, 4), 16, 1.25, 2
#: Lanes that share a row of X in turns, at most. Twice as many would do as well with half the vectors each, but for the
#: instructions that pass on a nonzero.
TURN_LANES = 8
#: Rows of at most so many entries are thin. Warps take bins in turns there, where there are so many, and for the first of
#: these numbers of vectors a row of X MANY_BINS.
THIN, THIN_BINS, THIN_VECTORS = 2, 5000, (*range(2, 9), 16)
#: A copy engine brings a warp's next tables to shared memory meanwhile, where no row has more than COPIED_STEPS entries, X has
#: up to COPIED_VECTORS vectors a row, and a value with its column up to COPIED_BYTES.
COPIED_STEPS, COPIED_VECTORS, COPIED_BYTES = 8, 4, 11

#: Rows of more steps than LEAST_LONG, in single columns and in blocks, and than LONG_FACTOR times the mean, or than
#: ALWAYS_LONG and the share that all threads would have, have thread blocks of their own.
LEAST_LONG, LONG_FACTOR, ALWAYS_LONG = (64, 24), 2, (1024, 96)

#: Of blocks of up to MOST_ROWS_A_GROUP rows a group of lanes holds all sums, if at least MANY_LANES share
#: them. Fewer lanes would read values of too many rows at a time.
MOST_ROWS_A_GROUP, MANY_LANES = 8, 2
#: Vectors of a row of X from which each of them has two, where a block has up to 4 rows and where it has more, and four.
TWO_VECTORS, FOUR_VECTORS = (8, 32), 64
#: Bins up to which of larger blocks two lanes share a row of X that is one vector.
FEW_BINS = 2000
#: Block rows are uneven where a group of the longest has more than UNEVEN_FROM blocks, and UNEVEN times its share of all.
UNEVEN, UNEVEN_FROM = 2, 8
#: Blocks of these sizes without holes, of values of so many bytes: tables go through shared memory where at least so many
#: lanes share a row of X. Each of them has two vectors from so many vectors a row on.
STAGED_SIZES, STAGED_BYTES, STAGED_LANES, STAGED_TWO_VECTORS = (6, 7, 8), 8, 4, 16


class GPU(NamedTuple):
    """What a kernel is chosen for. Models know an H200."""

    processors: int = PROCESSORS
    l2_bytes: int = L2_BYTES


class Tiles(NamedTuple):
    """How the columns of X are shared: the template parameters of ``kernels/matrix.cuh``."""

    lanes: int  # G: that share a row, a power of two
    width: int  # V: numbers in a vector load
    vectors: int  # W: that each lane holds
    tiles: int  # of lanes * width * vectors columns

    @classmethod
    def of(cls, k: int, lanes: int, width: int, vectors: int) -> Tiles:
        """As many as `k` columns take."""
        return cls(lanes, width, vectors, max(1, -(-k // (lanes * width * vectors))))


def vector_width(itemsize: int) -> int:
    """Numbers of so many bytes in a vector load: 16 bytes, and no more than 4 numbers."""
    return min(4, LOAD // itemsize)


def tiles(k: int, width: int, most_vectors: int = 1) -> Tiles:
    """The layout for `k` columns. A lane holds several vectors where many lanes would share a row, but no more than
    asked for.

    So fewer lanes load the same value and column, and more of X is under way at a time.
    """
    in_a_row = max(1, -(-k // width))
    vectors = min(most_vectors, 4 if in_a_row >= MATRIX_LANES else 2 if in_a_row >= MATRIX_LANES // 2 else 1)
    lanes = min(MATRIX_LANES, 1 << (-(-in_a_row // vectors) - 1).bit_length())
    return Tiles.of(k, lanes, width, vectors)


# ---------------------------------------------------------------------------------------------------- CVR


def of_chunks(shape: tuple[int, int], nnz: int, line: int, load: int) -> str:
    """CVR's kernel with rows of X of `line` bytes, of which a lane loads `load` at a time: "cvr", "cvr long rows" or
    "cvr warps".

    A warp has a long row of X. Of a large matrix it has a shorter one of which a lane loads less than 16 bytes at a time, as
    that takes many loads: but for single numbers where rows of A are short.
    """
    are_long = nnz >= LONG * shape[0]
    is_odd = nnz >= MANY_ODD and load < LOAD and (load > 4 or are_long)
    least = LONG_LINE if is_odd else LONG_ROW
    if line >= LONG_LINE and are_long and (line <= least or nnz < FEW_LONG):
        return "cvr long rows"
    return "cvr warps" if line > least else "cvr"


# ---------------------------------------------------------------------------------------------------- BBCSR, single columns


class Rows(NamedTuple):
    """Of a matrix in single columns."""

    shape: tuple[int, int]
    nnz: int
    slots: int  # padding counted
    longest: int

    @property
    def n_bins(self) -> int:
        return -(-self.shape[0] // WARP)

    @property
    def mean(self) -> int:
        """Entries of a row, padding counted."""
        return self.slots // (WARP * max(1, self.n_bins))

    @property
    def are_thin(self) -> bool:
        """Whether rows have an entry or two, as those of a permutation: little is read twice, so a warp has many under way."""
        return self.slots <= THIN * WARP * self.n_bins

    def are_late(self, gpu: GPU) -> bool:
        """Would a warp with the longest rows be late, if each took all rows of a bin?"""
        return self.longest * ENOUGH_WARPS * gpu.processors * WARP > LATE * self.slots


class RowOfX(NamedTuple):
    """A row of X, which is loaded in vectors of `load` bytes."""

    n_vectors: int
    load: int

    @property
    def n_bytes(self) -> int:
        return self.n_vectors * self.load


def may_take_lines(rows: Rows, x: RowOfX, gpu: GPU) -> bool:
    """Whether a warp takes all rows of a bin, in turns, and a line of each row of X at a time, if they read X far apart.

    Then a tile of X is small, and L2 holds more of it; and what warps read of it at a time is near each other, as all begin
    with the first columns of their rows. Not where most rows of X are read once.
    """
    if x.load != LOAD or x.n_bytes < 2 * LINE or not is_large(rows.shape[1] * x.n_bytes, gpu):
        return False
    if x.n_bytes % SECTOR or x.n_bytes < FULL_LINES * LINE * -(-x.n_bytes // LINE):
        return False
    if rows.nnz < (REUSE_OF_PARTS if x.n_bytes % LINE else REUSE) * rows.shape[1]:
        return False
    if rows.shape[1] * LINE > LARGE_TILE * gpu.l2_bytes or rows.slots > TURNS_PADDING * rows.nnz:
        return False
    return not rows.are_late(gpu)


def read_beyond_l2(rows: Rows, x: RowOfX, spread: float, gpu: GPU) -> bool:
    """Whether rows that are under way read more of X than L2 holds, if columns of neighbouring ones spread over such a part of
    it. Otherwise they find there what others have read, without lines.
    """
    under_way = ENOUGH_WARPS * WARP * gpu.processors / rows.shape[0]
    return spread >= ANYWHERE or min(1.0, spread + under_way) * rows.shape[1] * x.n_bytes >= BEYOND * gpu.l2_bytes


def is_large(n_bytes: int, gpu: GPU) -> bool:
    """Whether X has about as many bytes as L2, or more."""
    return n_bytes >= LARGE_X * gpu.l2_bytes


def may_walk(rows: Rows, x: RowOfX) -> bool:
    """Whether thread blocks walk over neighbouring rows, so that these find rows of X in L1, where a copy engine can bring
    tables.
    """
    n = x.n_vectors
    if x.load != LOAD or n < 8 or (n != 8 and n % 16) or rows.are_thin:
        return False
    enough = WALKED[max(least for least in WALKED if least <= n)]
    if rows.nnz < WALKED_NNZ or not any(rows.shape[0] >= least and rows.nnz >= mean * rows.shape[0] for least, mean in enough):
        return False
    return rows.longest <= WALK_STEPS and rows.slots <= WALK_PADDING * rows.nnz


def may_copy(rows: Rows, x: RowOfX, slot_bytes: int) -> bool:
    """Whether a warp's next tables, of so many bytes a slot, are copied to shared memory while it multiplies, where a copy
    engine can: all rows are short.
    """
    if rows.longest > COPIED_STEPS or x.n_vectors > COPIED_VECTORS or rows.n_bins < MANY_BINS or rows.are_thin:
        return False
    return slot_bytes <= COPIED_BYTES


def takes_turns(rows: Rows, x: RowOfX, gpu: GPU) -> bool:
    """Whether a warp takes all rows of a bin, in turns. Otherwise lanes share rows.

    Turns load tables with fewer instructions, and multiply padding too; a warp that has a very long row is late.
    """
    if rows.are_late(gpu):
        return False
    if rows.are_thin:
        least = MANY_BINS if x.n_vectors == THIN_VECTORS[0] else THIN_BINS
        return rows.n_bins >= least and x.n_vectors in THIN_VECTORS
    if rows.slots > MUCH_PADDING * rows.nnz:
        most = FEW_VECTORS[2]
    else:
        most = FEW_VECTORS[rows.longest <= COPIED_STEPS or rows.mean > SHORT]
    return rows.n_bins >= MANY_BINS and x.n_vectors <= most and not leaves_lanes_idle(x.n_vectors)


def leaves_lanes_idle(n_vectors: int) -> bool:
    """Whether in turns more than one of TURN_LANES has no vector, in the mean over tiles of a row of X."""
    return TURN_LANES // 2 < n_vectors < (TURN_LANES - 1) * -(-n_vectors // TURN_LANES)


def longest_whole_row(block_size: int, n_blocks: int, mean: int, gpu: GPU) -> int:
    """Steps from which rows have thread blocks of their own, where groups hold no block rows; of blocks of several rows,
    bins. `n_blocks` blocks are stored, padding counted, and `mean` in a row.
    """
    is_larger = block_size > 1
    share = n_blocks * MATRIX_LANES // (ENOUGH_WARPS * WARP * gpu.processors)
    even = max(LONG_FACTOR * mean, share // 2 if is_larger else 0)
    return max(LEAST_LONG[is_larger], min(even, max(ALWAYS_LONG[is_larger], share)))


# ---------------------------------------------------------------------------------------------------- BBCSR, larger blocks


class BlockRows(NamedTuple):
    """Of a matrix in larger blocks."""

    n: int
    mean: int  # blocks of one, padding counted
    longest: int


def tiles_of_groups(block_size: int, k: int, width: int, n_bins: int) -> Tiles | None:
    """How groups of lanes share `k` columns where each has a block row; None where warps take bins in turns."""
    if not 1 < block_size <= MOST_ROWS_A_GROUP:
        return None
    few = k == width > 1 and n_bins < FEW_BINS
    of_group = width // 2 if few else width  # a second lane, so that several groups can share a block row
    found = tiles(k, of_group, vectors_of_a_lane(block_size, k // of_group))
    return found if found.lanes >= MANY_LANES else None


def vectors_of_a_lane(block_size: int, n_vectors: int) -> int:
    """Vectors of a row of X, of `n_vectors`, that each lane of a group has in blocks of 2 to 8, at most.

    More of them pass on the values of a block fewer times, and take more registers.
    """
    most = 4 if block_size <= 4 else 2
    return most if n_vectors >= FOUR_VECTORS else 2 if n_vectors >= TWO_VECTORS[block_size > 4] else 1


def tiles_of_staged(block_size: int, itemsize: int, k: int, width: int) -> Tiles | None:
    """The same where tables go through shared memory, if block rows are even and blocks have no holes; None where they should
    not.
    """
    if block_size not in STAGED_SIZES or itemsize != STAGED_BYTES:
        return None
    n_vectors = -(-k // width)
    most = 1 if n_vectors < STAGED_TWO_VECTORS else 4 if block_size == 6 and n_vectors >= FOUR_VECTORS else 2
    found = tiles(k, width, most)
    if k < found.lanes * width * found.vectors:
        found = tiles(k, width)
    return found if found.lanes >= STAGED_LANES else None


def sharers(rows: BlockRows, of: Tiles, gpu: GPU) -> int:
    """Groups, of one warp, that share a block row: several where rows of some length would leave most of the device idle. 0:
    block rows differ so much that their lengths decide.
    """
    n_threads, enough = rows.n * of.lanes * of.tiles, ENOUGH_WARPS * WARP * gpu.processors
    n = 1
    while 2 * n * of.lanes <= WARP and 2 * n * n_threads <= enough and 4 * n <= rows.mean:
        n *= 2
    even_share = rows.mean * n_threads / enough
    return n if rows.longest <= n * max(UNEVEN_FROM, UNEVEN * even_share) else 0
