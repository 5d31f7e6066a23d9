"""``A @ X``: the columns of X in tiles whose sums a kernel keeps in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from cvrarray.core.arrays import Run
from cvrarray.core.tables import WARP
from cvrarray.cpu import simd
from cvrarray.cpu.products.scaling import scaled
from cvrarray.cpu.runtime.compiler import inlined

SIZES = (1, 2, 3, 4, 8, 16, 32, 64)  #: columns of a tile: each size, for each dtype, is a kernel compiled when needed
MOST_BYTES = 512  #: of a tile's row: 8 registers of AVX-512
SLOTS_AHEAD = 2048  #: a row takes every 32nd slot, so the first row to reach a step would wait for its cache lines


def product(multiply: Callable[[np.ndarray, np.ndarray, int, tuple[int, ...]], None]) -> Run:
    """``run(x, y, alpha, beta)`` from ``multiply(x, y, first, tile)``, which does as many columns as `tile` is long."""

    def multiply_all(x: np.ndarray, y: np.ndarray) -> None:
        for first, size in tiles(y.shape[1], y.itemsize):
            multiply(x, y, first, tuple(range(size)))

    return scaled(multiply_all)


def tiles(n_columns: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """(first column, columns) of tiles that cover all columns; the last may overlap the one before."""
    sizes = [size for size in SIZES if size * itemsize <= MOST_BYTES]
    first = 0
    while first < n_columns:
        left = n_columns - first
        size = next((size for size in sizes if left <= size <= n_columns), max(size for size in sizes if size <= left))
        first = min(first, n_columns - size)
        yield first, size
        first += size


@inlined
def prefetch_ahead(array, at, n):
    """Prefetch n numbers, as many as are used meanwhile, so that memory is busy all the time."""
    for k in range(0, n, WARP):
        simd.prefetch(array, at + SLOTS_AHEAD + k, simd.INTO_L1)
