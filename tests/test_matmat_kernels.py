"""Which kernel multiplies in ``A @ X`` on a GPU, by counts: needs none."""

from __future__ import annotations

import pytest

from cvrarray.core import matmat_kernels
from cvrarray.core.matmat_kernels import GPU, BlockRows, RowOfX, Rows

H200 = GPU()


@pytest.mark.parametrize(
    ("line", "load", "nnz", "mean", "kernel"),
    [
        (200, 16, 3_000_000, 30, "cvr long rows"),
        (200, 8, 3_000_000, 30, "cvr warps"),
        (200, 8, 1_900_000, 30, "cvr long rows"),
        (200, 8, 3_000_000, 7, "cvr warps"),
        (132, 4, 3_000_000, 30, "cvr warps"),
        (132, 4, 3_000_000, 7, "cvr"),
        (128, 8, 3_000_000, 30, "cvr long rows"),
        (260, 4, 100_000, 7, "cvr warps"),
        (260, 4, 100_000, 30, "cvr long rows"),
    ],
)
def test_chunks_by_the_bytes_of_a_load(line, load, nnz, mean, kernel):
    """Of large matrices a warp has rows of X from 129 bytes on where a lane would load less than 16 bytes at a time."""
    assert matmat_kernels.of_chunks((nnz // mean, 100), nnz, line, load) == kernel


def rows(n, mean, longest=None, padding=1.0, n_cols=None):
    """Rows in single columns, with `padding` slots an entry."""
    nnz = int(n * mean)
    return Rows((n, n if n_cols is None else n_cols), nnz, int(nnz * padding), int(mean) if longest is None else longest)


def vectors(n, load=16):
    return RowOfX(n, load)


def test_lines_of_a_large_x():
    """Each condition alone: X is large, a line of it is not, little padding, even rows, whole vectors, and reuse."""
    of = rows(1_000_000, 8)
    assert matmat_kernels.may_take_lines(of, vectors(16), H200)
    assert not matmat_kernels.may_take_lines(of, vectors(8), H200)
    assert not matmat_kernels.may_take_lines(of, vectors(32, load=8), H200)
    assert not matmat_kernels.may_take_lines(rows(100_000, 8), vectors(16), H200)
    assert not matmat_kernels.may_take_lines(rows(1_000_000, 8, n_cols=1_500_000), vectors(16), H200)
    assert not matmat_kernels.may_take_lines(of._replace(slots=17_000_000), vectors(16), H200)
    assert not matmat_kernels.may_take_lines(of._replace(longest=300), vectors(16), H200)
    assert not matmat_kernels.may_take_lines(rows(1_000_000, 1.9), vectors(16), H200)
    assert not matmat_kernels.may_take_lines(of, vectors(22), H200)
    parts = rows(1_000_000, 12)
    taken = [n for n in range(16, 34) if matmat_kernels.may_take_lines(parts, vectors(n), H200)]
    assert taken == [16, 22, 24, 28, 30, 32]  # whole sectors, and most of the lines that have parts of them
    assert not matmat_kernels.may_take_lines(of, vectors(16), H200._replace(l2_bytes=1 << 30))


@pytest.mark.parametrize(
    ("n", "n_vectors", "spread", "are"),
    [
        (100_000, 16, 1.0, True),
        (100_000, 16, 0.84, False),  # 67,584 rows are under way, so most of 26 MB
        (400_000, 32, 0.1, False),  # 0.27 of 205 MB
        (400_000, 32, 0.5, True),  # 0.67
        (400_000, 64, 0.1, True),
        (1_000_000, 32, 0.1, False),
    ],
)
def test_what_rows_under_way_read_of_x(n, n_vectors, spread, are):
    assert matmat_kernels.read_beyond_l2(rows(n, 8), vectors(n_vectors), spread, H200) == are


def test_tables_by_the_copy_engine():
    of = rows(400_000, 5, longest=8)
    assert matmat_kernels.may_copy(of, vectors(4), 8)
    for other, x, slot_bytes in (
        (of._replace(longest=9), vectors(4), 8),
        (of, vectors(5), 8),
        (of, vectors(4), 12),
        (rows(380_000, 5, longest=8), vectors(4), 8),
        (rows(400_000, 2), vectors(4), 8),
    ):
        assert not matmat_kernels.may_copy(other, x, slot_bytes)


@pytest.mark.parametrize(
    ("of", "most"),
    [
        (rows(400_000, 7), 8),  # 12,500 bins, short rows
        (rows(400_000, 12), 16),
        (rows(400_000, 20), 8),
        (rows(400_000, 12, padding=1.3), 4),
        (rows(380_000, 7), 0),
        (rows(400_000, 7, longest=100), 0),  # a warp would be late
    ],
)
def test_turns_of_many_bins(of, most):
    """Not with numbers of vectors of which a tile leaves lanes idle."""
    assert [n for n in range(1, 20) if matmat_kernels.takes_turns(of, vectors(n), H200)] == [
        n for n in (1, 2, 3, 4, 7, 8, 14, 15, 16) if n <= most
    ]


def test_turns_of_an_entry_or_two():
    taken = {n: matmat_kernels.takes_turns(rows(200_000, 1), vectors(n), H200) for n in range(1, 20)}
    assert [n for n in taken if taken[n]] == [3, 4, 5, 6, 7, 8, 16]  # 2 with as many bins as other rows
    assert matmat_kernels.takes_turns(rows(400_000, 1), vectors(2), H200)
    assert not matmat_kernels.takes_turns(rows(100_000, 1), vectors(3), H200)


@pytest.mark.parametrize(
    ("block_size", "n_blocks", "mean", "longest"),
    [
        (1, 10_000, 10, 64),
        (1, 10_000, 100, 200),
        (1, 10_000, 5_000, 1_024),
        (1, 42_240_000, 8_000, 10_000),  # an even share of 67,584 threads
        (3, 10_000, 10, 24),
        (3, 10_000, 30, 60),
        (3, 10_000, 5_000, 96),
    ],
)
def test_whole_rows(block_size, n_blocks, mean, longest):
    assert matmat_kernels.longest_whole_row(block_size, n_blocks, mean, H200) == longest


@pytest.mark.parametrize(
    ("block_size", "columns", "width", "n_bins", "tiles"),
    [
        (3, 4, 4, 1_999, (2, 2, 1, 1)),  # of one vector two lanes have a half each
        (3, 4, 4, 2_000, None),
        (3, 16, 4, 5_000, (4, 4, 1, 1)),
        (3, 32, 4, 5_000, (4, 4, 2, 1)),
        (6, 32, 4, 5_000, (8, 4, 1, 1)),
        (3, 256, 4, 5_000, (16, 4, 4, 1)),
        (6, 256, 4, 5_000, (16, 4, 2, 2)),
        (1, 64, 4, 5_000, None),
        (9, 64, 4, 5_000, None),
    ],
)
def test_groups_of_block_rows(block_size, columns, width, n_bins, tiles):
    assert matmat_kernels.tiles_of_groups(block_size, columns, width, n_bins) == tiles


@pytest.mark.parametrize(
    ("block_size", "itemsize", "columns", "tiles"),
    [
        (6, 8, 4, None),
        (6, 8, 6, (4, 2, 1, 1)),
        (6, 8, 64, (16, 2, 2, 1)),
        (6, 8, 128, (16, 2, 4, 1)),
        (7, 8, 128, (16, 2, 2, 2)),
        (5, 8, 64, None),
        (6, 4, 64, None),
    ],
)
def test_staged_tables(block_size, itemsize, columns, tiles):
    assert matmat_kernels.tiles_of_staged(block_size, itemsize, columns, 2) == tiles


def test_groups_that_share_a_block_row():
    of = matmat_kernels.Tiles(4, 4, 1, 1)
    assert matmat_kernels.sharers(BlockRows(1_000, 30, 64), of, H200) == 8
    assert matmat_kernels.sharers(BlockRows(1_000, 7, 7), of, H200) == 2
    assert matmat_kernels.sharers(BlockRows(1_000_000, 30, 30), of, H200) == 1
    assert matmat_kernels.sharers(BlockRows(1_000, 30, 65), of, H200) == 0
    assert matmat_kernels.sharers(BlockRows(1_000, 30, 30), of, GPU(processors=1)) == 1


def test_the_kernels_know_as_much():
    compiler = pytest.importorskip("cvrarray.gpu.compiler", reason="needs CuPy")
    assert compiler.constant("bbcsr_matmat_short.cu", "SHORT") == matmat_kernels.COPIED_STEPS
