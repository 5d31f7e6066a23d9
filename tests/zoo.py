"""The one list of matrices. Each names the bug that it is there to catch.

``ZOO`` maps a name to a function that makes the matrix as a canonical ``scipy.sparse.csr_array`` of small integers in
int8, so that every dtype holds its products exactly. ``integers`` and ``floats`` give the same pattern in other values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.sparse import csr_array

ZOO: dict[str, Callable[[], csr_array]] = {}
DENSE_SIZE = 1_000_000  # larger matrices are left out where a test makes them dense


def matrix(function):
    """Adds a function without arguments to the zoo under its own name."""
    ZOO[function.__name__] = function
    return function


def family(*arguments):
    """Adds one matrix for each tuple of arguments."""

    def add(function):
        for values in arguments:
            values = values if isinstance(values, tuple) else (values,)
            ZOO["_".join([function.__name__, *map(str, values)])] = lambda values=values: function(*values)
        return function

    return add


def entries(shape, row, col, zero=()) -> csr_array:
    """A matrix with the stored entries (row, col), in any order, of which those numbered `zero` are explicit zeros.

    The values follow from the place alone: nonzero integers from -4 to 5.
    """
    row, col = np.broadcast_arrays(np.asarray(row, np.int64), np.asarray(col, np.int64))
    row, col = row.ravel(), col.ravel()
    val = (7 * row + 3 * col) % 9 - 4
    val[val == 0] = 5
    val[list(zero)] = 0
    place = row * max(shape[1], 1) + col
    _, first = np.unique(place, return_index=True)  # sorts by row, then column
    row, col, val = row[first], col[first], val[first].astype(np.int8)
    indptr = np.searchsorted(row, np.arange(shape[0] + 1))
    return csr_array((val, col.astype(np.int32), indptr.astype(np.int32)), shape=shape)


def lengths(row_lengths) -> csr_array:
    """Rows of the given lengths; row r's columns begin at r, two apart, and wrap around an odd number of columns."""
    row_lengths = np.asarray(row_lengths)
    n_cols = max(2 * row_lengths.max(), len(row_lengths)) | 1
    row = np.repeat(np.arange(len(row_lengths)), row_lengths)
    step = np.arange(row.size) - np.repeat(np.cumsum(row_lengths) - row_lengths, row_lengths)
    return entries((len(row_lengths), n_cols), row, (row + 2 * step) % n_cols)


# Nothing, or next to it


@family((0, 5), (5, 0), (0, 0))
def shape_without_entries(n_rows, n_cols):
    """A launch over 0 elements, a minimum of nothing, a prefix sum that is one entry too short."""
    return entries((n_rows, n_cols), [], [])


@matrix
def one_by_one():
    """Off-by-one in every count: one row, one chunk, one bin, one lane in use."""
    return entries((1, 1), [0], [0])


@matrix
def one_row():
    """All lanes steal from the only row, in step 0."""
    return entries((1, 77), 0, np.arange(0, 77, 2))


@matrix
def one_column():
    """Every row holds one entry: a record in every slot."""
    return entries((77, 1), np.arange(0, 77, 3), 0)


@matrix
def all_rows_empty():
    """Chunks counted from rows where there is no nonzero; y left as it was."""
    return entries((40, 30), [], [])


@matrix
def empty_first_and_last_rows():
    """Empty rows before the first and after the last record are never written."""
    return entries((50, 20), np.arange(5, 45)[:, None], [[1, 7, 13]])


@matrix
def many_empty_rows_between():
    """A feed that takes the next row instead of the next non-empty one."""
    return entries((700, 60), np.arange(3, 700, 61)[:, None], np.arange(0, 60, 7)[None])


@matrix
def empty_rows_by_bins():
    """Bins of nothing but padding, between and after bins with blocks: a base column of no block."""
    return entries((32 * 9, 50), np.arange(64, 96)[:, None], np.arange(0, 50, 9)[None])


@matrix
def hypersparse():
    """Fewer entries than lanes in 5000 rows: an empty row is the rule."""
    return entries((5000, 4000), [17, 17, 2500, 4999], [3999, 0, 1234, 1])


@matrix
def only_last_entry():
    """The last row and column are reached."""
    return entries((97, 65), [96], [64])


# Long and short rows


@matrix
def one_dense_row():
    """A row over many chunks among short ones: its carries are added in order, and once."""
    row = np.concatenate([np.full(1500, 11), np.arange(30)])
    return entries((30, 1500), row, np.concatenate([np.arange(1500), np.arange(30) * 3]))


@matrix
def one_dense_column():
    """Every row reads the same x: a gather that mixes lanes up shows at once."""
    return entries((300, 40), np.r_[np.arange(300), np.arange(0, 300, 2)], np.r_[np.full(300, 17), np.full(150, 3)])


@matrix
def only_dense_row():
    """No row but one: every chunk begins and ends in it."""
    return entries((5, 900), 2, np.arange(900))


@matrix
def two_long_rows_share_a_chunk():
    """A chunk that ends one cut row and begins the next: its carry and its tail are different rows."""
    return entries((2, 500), np.repeat([0, 1], 500), np.tile(np.arange(500), 2))


@matrix
def first_and_last_row_cut():
    """Chunk ends inside the first and inside the last row, none between."""
    return lengths([200, 3, 1, 2, 200])


@family(3, 4, 5, 31, 32, 33, 64, 128)
def nonzeros(count):
    """Lanes - 1, lanes, lanes + 1 nonzeros and exact multiples: a step too many, a pad too few."""
    return entries((12, 40), *np.divmod(3 * np.arange(count), 40))


@family(31, 32, 33, 95, 96, 97)
def tridiagonal(n_rows):
    """The last bin has all its rows, one too few, or one; block rows of 6 and 3 lie across bins."""
    diagonal = np.arange(n_rows)
    row, col = np.r_[diagonal, diagonal[1:], diagonal[:-1]], np.r_[diagonal, diagonal[:-1], diagonal[1:]]
    return entries((n_rows, n_rows), row, col)


@matrix
def rows_of_equal_length():
    """All lanes in phase: every record of a feed falls in one step."""
    return lengths(np.full(100, 6))


@matrix
def rows_end_at_chunk_ends():
    """Rows of 16: a chunk of 32 or 64 nonzeros ends exactly where a row does, so nothing is cut."""
    return lengths(np.full(24, 16))


@matrix
def rows_of_mixed_length():
    """Lanes run dry at different steps: steals from the front, a thief's and a victim's records."""
    return lengths([1, 40, 2, 1, 17, 3, 90, 1, 1, 5, 64, 2, 2, 33, 1, 7, 1, 1, 1, 28])


@matrix
def long_rows_last():
    """The longest rows are fed last, so nearly every lane steals."""
    return lengths([1, 1, 2, 1, 3, 1, 2, 1, 1, 1, 120, 1, 75])


@matrix
def long_row_first():
    """The first lane holds a row that others steal from until the end."""
    return lengths([150] + [1] * 20)


@matrix
def growing_rows():
    """Lengths 0, 1, 2, ..., 63: each length once."""
    return lengths(np.arange(64))


@matrix
def power_law():
    """Rows from empty to thousands, columns hit unevenly."""
    rng = np.random.default_rng(7)
    n = 400
    row, col = (np.minimum(rng.pareto(0.7, 3000) * 3, n - 1).astype(np.int64) for _ in "rc")
    return entries((n, n), row * 13 % n, col * 7 % n)


@matrix
def banded_stencil():
    """What a 2-D mesh gives: five diagonals, shorter rows on the boundary."""
    n = 12
    centre = np.arange(n * n).reshape(n, n)
    pairs = [(centre, centre), (centre[1:], centre[:-1]), (centre[:-1], centre[1:])]
    pairs += [(centre[:, 1:], centre[:, :-1]), (centre[:, :-1], centre[:, 1:])]
    return entries((n * n, n * n), *(np.concatenate([p[k].ravel() for p in pairs]) for k in (0, 1)))


@matrix
def diagonal():
    """One entry a row, at its own column: a transposed or shifted x shows at once."""
    return entries((130, 130), np.arange(130), np.arange(130))


@matrix
def full():
    """No zero at all: density 1."""
    return entries((23, 37), np.arange(23)[:, None], np.arange(37)[None])


# Blocks


@family(*((blk, edge) for blk in (1, 2, 3, 6, 7, 32) for edge in (-1, 0, 1)))
def block_edge(blk, edge):
    """Shapes one less than, equal to and one more than a multiple of the block size: the last block row and column."""
    n = max(4 * blk + edge, 1) if blk < 32 else 2 * blk + edge
    row = np.arange(n)
    return entries((n, n), np.r_[row, row, row], np.r_[row, np.full(n, n - 1), (row * 5) % n])


@family(2, 3, 6)
def perfect_blocks(blk):
    """Every block full and inside the shape: no presence bits are kept, and no hole must appear."""
    blocks = lengths([2, 1, 0, 4, 1, 3, 9, 2, 1, 5, 2, 1])
    return _expanded(blocks, blk)


@matrix
def blocks_with_holes():
    """Some slots of a block are no entries: they must not touch x, nor come back as explicit zeros."""
    full_blocks = _expanded(lengths([2, 1, 3, 0, 2, 1]), 6)
    coo = full_blocks.tocoo()
    keep = (coo.row + 2 * coo.col) % 5 != 0
    return entries(coo.shape, coo.row[keep], coo.col[keep])


@matrix
def runs_of_rows_with_the_same_columns():
    """Neighbours that share columns, whole blocks or not, in runs that keep to no block row or bin: merged as one row."""
    run = np.repeat(np.arange(32), np.arange(32) % 7 + 1)
    row = np.repeat(np.arange(run.size), 9)
    return entries((run.size, 70), row, (run[:, None] * 5 + [0, 1, 2, 3, 7, 20, 21, 40, 44]).ravel() % 70)


@matrix
def explicit_zeros():
    """Stored zeros are entries: they survive the round trip and turn inf in x into nan."""
    row, col = np.divmod(np.arange(0, 40 * 40, 7), 40)
    return entries((40, 40), row, col, zero=range(0, row.size, 3))


@matrix
def only_explicit_zeros():
    """Entries whose values are all 0 are not padding."""
    return entries((10, 12), np.arange(10)[:, None], [[0, 5, 11]], zero=range(30))


@matrix
def explicit_zeros_beside_holes():
    """Inside one block, stored zeros and holes have the same value and only the bits tell them apart."""
    coo = _expanded(lengths([2, 1, 3, 0, 2, 1]), 6).tocoo()
    keep = (coo.row + 2 * coo.col) % 5 != 0
    row, col = coo.row[keep], coo.col[keep]
    return entries(coo.shape, row, col, zero=range(0, row.size, 4))


@matrix
def blocks_over_the_edge():
    """The last block column hangs over the shape's right edge: reads past x."""
    return entries((20, 20), np.arange(20)[:, None], [[0, 18, 19]])


@matrix
def wide_blocks_over_the_edge():
    """As above, in a rectangle with one lone column in the last block."""
    return entries((13, 43), np.r_[np.arange(13), np.arange(13)], np.r_[np.full(13, 42), np.arange(13)])


@matrix
def one_long_block_row_across_bins():
    """Block row 5 (of 6) lies in bins 0 and 1 and is the longest: both bins must be as long as it."""
    return entries((70, 120), np.r_[np.full(20, 33), np.arange(70)], np.r_[np.arange(20) * 6, np.zeros(70, int)])


# Wide and narrow tiles


@family(65534, 65535, 65536, 65537)
def column_span(span):
    """max - min column around 2^16: where 16-bit offsets stop being enough (one earlier for blocks of 1)."""
    return entries((6, span + 20), [0, 0, 1, 2, 3, 5], [10, span + 10, 11, span + 9, 500, 40_000])


@family((2, 65534), (2, 65535), (6, 65534), (6, 65535))
def block_column_span(blk, span):
    """max - min block column around 2^16 - 1: 0xFFFF is the mark of padding and no offset."""
    block_column = np.array([1, span + 1, 2, span // 2, 1])
    return entries((5, blk * (span + 2)), [0, 0, 1, 2, 4], blk * block_column)


@matrix
def narrow_and_wide_tiles():
    """Chunks and bins of both kinds in turn: offsets into the two column arrays."""
    band, turn = np.arange(256), np.arange(256) // 32 % 2
    col = np.stack([band, band + 1 + 30_000 * turn, band + 2 + 100_000 * turn], 1)
    return entries((256, 100_300), band[:, None], col)


def _expanded(blocks: csr_array, blk: int) -> csr_array:
    """Every entry becomes a full block of blk x blk entries."""
    coo = blocks.tocoo()
    inner = np.arange(blk)
    row = coo.row[:, None, None] * blk + inner[None, :, None]
    col = coo.col[:, None, None] * blk + inner[None, None, :]
    return entries((blocks.shape[0] * blk, blocks.shape[1] * blk), *np.broadcast_arrays(row, col))


# Values


@cache
def _pattern(name: str) -> csr_array:
    return ZOO[name]()


def integers(name: str, dtype=np.int8) -> csr_array:
    """The zoo's matrix in small integers of `dtype`: sizes where unsigned, a second part where complex."""
    pattern, dtype = _pattern(name), np.dtype(dtype)
    val = pattern.data
    if dtype.kind == "u":
        val = np.abs(val)
    if dtype.kind == "c":
        val = val * (1 - 2j)
    return csr_array((val.astype(dtype), pattern.indices.copy(), pattern.indptr.copy()), shape=pattern.shape)


def floats(name: str, dtype=np.float64) -> csr_array:
    """The zoo's pattern in random values of both signs and of sizes from 1e-3 to 1e3; explicit zeros stay 0."""
    csr, rng = integers(name, dtype), np.random.default_rng(1)
    val = rng.standard_normal(csr.nnz) * 10 ** rng.uniform(-3, 3, csr.nnz)
    if csr.dtype.kind == "c":
        val = val * np.exp(1j * rng.uniform(0, 6, csr.nnz))
    csr.data[:] = np.where(csr.data == 0, 0, val.astype(dtype))
    return csr


def random_rows(lengths, n_cols: int, dtype, rng: np.random.Generator) -> csr_array:
    """Rows of so many normal random numbers in columns anywhere; those that meet are one."""
    row = np.repeat(np.arange(len(lengths)), lengths)
    col_of = (rng.standard_normal(row.size).astype(dtype), (row, rng.integers(0, n_cols, row.size)))
    csr = csr_array(col_of, shape=(len(lengths), n_cols))
    csr.sum_duplicates()
    return csr


def vector(length: int, dtype=np.float64, seed: int = 2) -> np.ndarray:
    """A vector of small integers, -3 to 3 (0 to 3 where unsigned), with a second part where complex."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    x = rng.integers(0 if dtype.kind in "bu" else -3, 4, length)
    return (x * (2 + 1j) if dtype.kind == "c" else x).astype(dtype)


def float_vector(length: int, dtype=np.float64, seed: int = 3) -> np.ndarray:
    """A vector of normal random numbers."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    x = rng.standard_normal(length)
    return (x + 1j * rng.standard_normal(length) if dtype.kind == "c" else x).astype(dtype)
