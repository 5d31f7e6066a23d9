"""Which kernel multiplies in ``A @ X`` on a GPU, and how lanes share rows, as far as counts tell.

A row of X is loaded in vectors of up to 16 bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from .tables import WARP

LOAD, SECTOR, LINE = 16, 32, 128  #: bytes of a vector load, at most, of the least that is read, and of a cache line
#: Lanes that share a row of X, at most. With more, each would have more sums than there are registers for.
MATRIX_LANES = 16
#: Warps that a multiprocessor should have rows for.
ENOUGH_WARPS = 16

#: Lanes that share a row of X in turns, at most. Twice as many would do as well with half the vectors each, but for the
#: instructions that pass on a nonzero.
TURN_LANES = 8

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


# ------------------------------------------------------------------------------------------------------------------ BBCSR


def longest_whole_row(block_size: int, n_blocks: int, mean: int, processors: int) -> int:
    """Steps from which rows have thread blocks of their own, where groups hold no block rows; of blocks of several rows,
    bins. `n_blocks` blocks are stored, padding counted, and `mean` in a row.
    """
    is_larger = block_size > 1
    share = n_blocks * MATRIX_LANES // (ENOUGH_WARPS * WARP * processors)
    even = max(LONG_FACTOR * mean, share // 2 if is_larger else 0)
    return max(LEAST_LONG[is_larger], min(even, max(ALWAYS_LONG[is_larger], share)))


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


def sharers(rows: BlockRows, of: Tiles, processors: int) -> int:
    """Groups, of one warp, that share a block row: several where rows of some length would leave most of the device idle. 0:
    block rows differ so much that their lengths decide.
    """
    n_threads, enough = rows.n * of.lanes * of.tiles, ENOUGH_WARPS * WARP * processors
    n = 1
    while 2 * n * of.lanes <= WARP and 2 * n * n_threads <= enough and 4 * n <= rows.mean:
        n *= 2
    even_share = rows.mean * n_threads / enough
    return n if rows.longest <= n * max(UNEVEN_FROM, UNEVEN * even_share) else 0
