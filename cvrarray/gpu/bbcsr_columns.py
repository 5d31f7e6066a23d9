"""``A @ X`` with BBCSR on the GPU, where columns of X are contiguous: X in Fortran order, or some of its rows and columns.

The kernel reads X as it is. It pays where the rows of a bin read neighbouring numbers of a column and X has few columns;
elsewhere a copy of X in C order does: ``docs/measurements/matrix-products.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from ..core.arrays import Run
from ..core.matmat_kernels import SECTOR
from ..core.tables import WARP, BBCSRTables, mask_dtype
from . import distinct
from .bbcsr_lengths import Lengths
from .bbcsr_reads import lines_of_a_step
from .bbcsr_tables import SHAPES, as_struct, mean_blocks, threads
from .compiler import STORED, Kernel
from .launches import argument, matrix_width, scaling, vector_width

#: Columns of X that a lane multiplies by at a time, and warps that share a bin, at most: shared memory holds the sums of all.
MOST_COLUMNS, MOST_SHARERS = 8, 8
#: Bytes of X that a lane loads before it uses the first, of short rows and of those of LONG blocks, in up to MOST_UNDER_WAY
#: blocks.
BYTES_UNDER_WAY, LONG, MOST_UNDER_WAY = (64, 128), 16, 4
#: Rows of X are counted in 32 bits. A lane has registers for so many bytes of a block's rows of X.
MOST_ROWS, MOST_BYTES = 1 << 32, 256
#: Blocks of 1: cache lines that the rows of a bin read at a time, at most, of all columns of X. Other blocks: columns of X, at
#: most, of blocks of up to SMALL and of larger ones, and cache lines of one of these.
MOST_LINES, MOST_OF_BLOCKS, SMALL, LINES_OF_BLOCKS = 50, (6, 5), 4, 8
#: How much longer than the mean a bin may be: it is waited for.
UNEVEN = 4
#: Blocks of 1: X is read as it is also where A has few nonzeros, rows of up to SHORT. A sector of each column for each takes at
#: most as many bytes as LITTLE of X, whose rows have up to FEW_BYTES.
LITTLE, SHORT, FEW_BYTES = 1.6, 64, 64

COLUMNS = Kernel(
    "bbcsr_columns",
    "bbcsr_columns",
    [
        (value, product, *shape, *how)
        for value, product in STORED
        for shape, how in zip(
            SHAPES,
            ((1, 8, vector_width(product), False), (4, 2, 2, True), (1, 3, 1, False), (8, 1, 1, False)),
            strict=True,
        )
    ],
    lambda value, product, index, size, holes, sharers, columns, width, is_long: (
        value, product, index, mask_dtype(size), size, under_way(size * columns * product.itemsize, is_long), holes, sharers,
        columns, min(width, vector_width(product)), threads(sharers),
    ),
)  # fmt: skip


def under_way(size: int, is_long: bool) -> int:
    """Blocks that are loaded before the first is used, where a lane loads `size` bytes of X for each."""
    return max(1, min(MOST_UNDER_WAY, BYTES_UNDER_WAY[is_long] // size))


def product(t: BBCSRTables, dtype: np.dtype, sharers: Callable[[], int]) -> Callable[[int], Run | None]:
    """A function of k that gives ``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y`` where columns of
    X (n_cols, k) are contiguous, and Y (n_rows, k) is in C or Fortran order; None where X should be in C order.

    ``sharers()`` warps share a bin in a product with a vector.
    """
    bins = as_struct(t)

    @cache
    def prepared(k, width, *strides):
        """The kernel with its grid and its threads, and its arguments after X and after Y."""
        columns, width = columns_at_a_time(k, width)
        warps = min(MOST_SHARERS, sharers())
        stored = distinct.kind(t.data, t.distinct)
        shape = t.col_wide.dtype, t.block_size, t.present is not None
        multiply = COLUMNS(stored, dtype, *shape, warps, columns, width, mean_blocks(t) >= LONG)
        n_threads = threads(warps)
        grid = (-(-t.col_base.size * warps * WARP // n_threads) * -(-k // columns),)
        x_apart, *of_y = [argument(np.int64(stride // dtype.itemsize)) for stride in strides]
        return partial(multiply, grid, (n_threads,)), (x_apart, argument(np.int32(k))), of_y

    def run(x, y, alpha, beta):
        k = x.shape[1]
        width = matrix_width(k, y, y) if y.flags.c_contiguous else 1
        launch, of_x, of_y = prepared(k, width, x.strides[1], *y.strides)
        launch((bins, x, *of_x, y, *of_y, *scaling(alpha, beta)))

    return cache(lambda k: run if pays(t, k, dtype.itemsize) else None)


def columns_at_a_time(k: int, width: int) -> tuple[int, int]:
    """Columns of X, of `k`, that a lane multiplies by at a time: even shares, and pairs where Y has vectors of `width`; and the
    width of vectors in these.
    """
    pairs = min(2, width)
    columns = pairs * -(-k // (pairs * -(-k // MOST_COLUMNS)))
    return columns, math.gcd(columns, width)


def pays(t: BBCSRTables, k: int, itemsize: int) -> bool:
    """Whether X of `k` columns is read as it is, faster than it is copied."""
    size = t.block_size
    if t.shape[1] >= MOST_ROWS or size * min(k, MOST_COLUMNS) * itemsize > MOST_BYTES:
        return False
    if size == 1 and k * itemsize <= FEW_BYTES and t.nnz * SECTOR <= LITTLE * t.shape[1] * itemsize and mean_blocks(t) <= SHORT:
        return not is_uneven(t)
    if k > (MOST_LINES if size == 1 else MOST_OF_BLOCKS[size > SMALL]):
        return False
    return lines_of_a_step(t, itemsize) <= (MOST_LINES / k if size == 1 else LINES_OF_BLOCKS) and not is_uneven(t)


def is_uneven(t: BBCSRTables) -> bool:
    """Whether a bin is much longer than the mean."""
    lengths = Lengths(t)
    return bool(lengths.most > UNEVEN * lengths.bins.mean()) if lengths.bins.size else False
