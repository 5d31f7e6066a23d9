"""How rows are dealt out to blocks of threads in the solvers' one kernel: no GPU is needed to tell."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cvrarray.core.tables import WARP
from cvrarray.linalg.gpu import partition


def pointer_of(n: int, seed: int) -> np.ndarray:
    """First slots of bins of very different lengths."""
    rng = np.random.default_rng(seed)
    return np.concatenate([[0], np.cumsum(WARP * rng.integers(1, 40, -(-n // WARP)) ** 2)])


def test_rows_are_dealt_out_whole():
    """All of them, in order, in whole blocks of the preconditioner, with the bins that hold them."""
    for n, size, most in itertools.product((1, 31, 32, 97, 1000, 30_000), (1, 2, 3, 6, 7, 40), (1, 7, 132)):
        part = partition.parted(pointer_of(n, n + size), n, size, most)
        first, blocks = part.first_row, part.n_bins.size
        assert 1 <= blocks <= most
        assert (first[0], first[-1]) == (0, n)
        assert (np.diff(first) > 0).all()
        assert (first[:-1] % size == 0).all()
        np.testing.assert_array_equal(part.first_bin, first[:-1] // WARP)
        np.testing.assert_array_equal(part.first_bin + part.n_bins, -(-first[1:] // WARP))


def test_small_systems_of_blocks_keep_the_device_busy():
    """Blocks of 6 rows and bins meet every 96 rows: cut there, a part would have 3 bins at least."""
    n = 6000
    pointer = np.arange(-(-n // WARP) + 1) * WARP * 132
    part = partition.parted(pointer, n, 6, 132)
    assert part.n_bins.max() == 2
    assert part.n_bins.size > 100


def test_the_largest_part_is_as_small_as_can_be():
    pointer = np.array([0, 10, 20, 100, 110, 120]) * WARP
    part = partition.parted(pointer, 5 * WARP, 1, 3)
    assert part.most_work(pointer)[0] == 80 * WARP
    np.testing.assert_array_equal(part.first_row, [0, 2 * WARP, 3 * WARP, 5 * WARP])


@pytest.mark.parametrize(
    ("bins", "n_blocks", "unroll", "itemsize", "expected"),
    [
        (8, 7, 2, 8, (512, 2)),  # 16 warps are enough for two a bin
        (9, 7, 2, 8, (640, 2)),  # 20 are needed
        (9, 7, 2, 16, (512, 1)),  # whose numbers are too wide for that
        (36, 14, 4, 8, (512, 1)),  # more bins than warps
        (1, 1, 2, 8, (512, 1)),  # nothing to share
    ],
)
def test_workers(bins, n_blocks, unroll, itemsize, expected):
    assert partition.workers(bins, n_blocks, unroll, itemsize) == expected
