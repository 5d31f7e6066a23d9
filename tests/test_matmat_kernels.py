"""Which kernel multiplies in ``A @ X`` on a GPU, by counts: needs none."""

from __future__ import annotations

import pytest

from cvrarray.core import matmat_kernels
from cvrarray.core.matmat_kernels import BlockRows

H200 = 132  # multiprocessors


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


def test_groups_that_share_a_block_row():
    of = matmat_kernels.Tiles(4, 4, 1, 1)
    assert matmat_kernels.sharers(BlockRows(1_000, 30, 64), of, H200) == 8
    assert matmat_kernels.sharers(BlockRows(1_000, 7, 7), of, H200) == 2
    assert matmat_kernels.sharers(BlockRows(1_000_000, 30, 30), of, H200) == 1
    assert matmat_kernels.sharers(BlockRows(1_000, 30, 65), of, H200) == 0
    assert matmat_kernels.sharers(BlockRows(1_000, 30, 30), of, 1) == 1
