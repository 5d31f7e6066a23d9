"""The columns of dense matrices in tiles whose sums a kernel keeps in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from cvrarray.core.tables import WARP
from cvrarray.cpu import lanes
from cvrarray.cpu.caching import njit
from cvrarray.cpu.scaling import Run, scaled

SIZES = (1, 2, 3, 4, 8, 16, 32, 64)  #: columns of a tile: each size, for each dtype, is a kernel compiled when needed
MOST_BYTES = 512  #: of a tile's row: 8 registers of AVX-512

AHEAD = 2048  #: slots: rows take every 32nd, so the first to come to a step would wait for it


def product(multiply: Callable[[np.ndarray, np.ndarray, int, tuple[int, ...]], None]) -> Run:
    """``run(x, y, alpha, beta)`` from ``multiply(x, y, first, tile)``, which does as many columns as `tile` is long."""

    def multiply_all(x: np.ndarray, y: np.ndarray) -> None:
        for first, size in tiles(y.shape[1], y.itemsize):
            multiply(x, y, first, tuple(range(size)))

    return scaled(multiply_all)


def tiles(n_columns: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """(first column, columns) of tiles that cover all columns; the last reaches back over the one before where that fits."""
    sizes = [size for size in SIZES if size * itemsize <= MOST_BYTES]
    first = 0
    while first < n_columns:
        left = n_columns - first
        size = next((size for size in sizes if left <= size <= n_columns), max(size for size in sizes if size <= left))
        first = min(first, n_columns - size)
        yield first, size
        first += size


@njit(**lanes.OPTIONS, forceinline=True)
def ask(array, at, n):
    """Prefetch n numbers, as many as are used meanwhile, so that memory is busy all the time."""
    for k in range(0, n, WARP):
        lanes.prefetch(array, at + AHEAD + k, ())
