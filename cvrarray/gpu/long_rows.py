"""``A @ x`` by parts of rows, for CVR arrays of small matrices with long rows.

Such a product is a chain of waits: for a chunk's facts, its columns, x, the next steps, the parts that lanes have stolen,
and the sums of a row's other chunks. And its lanes are far apart in a row, so that each gathers a sector of x of its own.
So the nonzeros are copied row by row. A thread block has a part of a row, of which neighbouring threads have neighbouring
nonzeros, and loads all of it at once. Measured: ``docs/measurements/gpu-products.md``.

The order of sums is another one than without: the structure alone decides, as with :mod:`.segments`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from ..core import lanes
from ..core.arrays import Run
from ..core.tables import CSR, CVRTables
from . import copied, left_in_l2, prefix
from .captures import synchronize
from .compiler import LONG_ROWS_OF_X, PLAIN_ROWS_OF_X, PRODUCTS, Kernel
from .cvr_tables import cuts
from .launches import NULL, scaling
from .look import host

THREADS = 256
#: Nonzeros of a thread, by the product's item size.
UNROLL = {1: 4, 2: 4, 4: 4, 8: 4, 16: 2, 32: 2}

MATVEC = Kernel(
    "long_rows",
    "long_rows_matvec",
    [
        (value, product, *how)
        for value, product in PRODUCTS + PLAIN_ROWS_OF_X + LONG_ROWS_OF_X
        for how in (("uint16", True), ("int64", False))
    ],
    lambda value, product, column, keeps: (value, product, column, UNROLL[product.itemsize], THREADS, keeps),
)

FILL = Kernel("long_rows", "long_rows_fill", [("int32",), ("int64",)])


def suits(t: CVRTables) -> bool:
    """Whether rows are long, and few: only counts of rows and nonzeros decide."""
    n_rows, n_cols = t.shape
    return lanes.has_long_rows(n_rows, t.nnz) and n_rows * n_cols < 1 << 62


class Layout:
    """Which slot each nonzero comes from, row by row, its column, and the parts: 6 bytes a nonzero.

    Columns are 16-bit offsets from the first of a part, where these are near enough in all parts.
    """

    def __init__(self, nonzeros: CSR, most: int):
        """`nonzeros`: each one's slot, from 1. A part has `most` nonzeros at most."""
        (ptr, col, self.source), (pointer, numbers) = nonzeros[:3], host()
        first = prefix.parts(ptr, most, 1, pointer)
        synchronize()
        self.n_parts = int(numbers[0])
        self.parts = cupy.empty((self.n_parts, 8), np.int32)  # the kernel's Part
        for narrow in cupy.empty(col.size, np.uint16), None:
            self.col = col if narrow is None else narrow
            numbers[0] = 0
            FILL(col.dtype)(
                (self.n_parts,),
                (THREADS,),
                (first, ptr, np.int64(ptr.size - 1), col, self.parts, NULL if narrow is None else narrow, np.uint64(pointer)),
            )
            synchronize()
            if not numbers[0]:
                break


def product(t: CVRTables, dtype: np.dtype, nonzeros: Callable[[], CSR]) -> Run:
    """``run(x, y, alpha, beta)``, as that of ``gpu.cvr``; ``nonzeros()`` is the CSR of the slots' numbers, from 1."""
    threads, most = THREADS, THREADS * UNROLL[dtype.itemsize]
    layout, values = copied.prepared(t, ("long rows", most), lambda: Layout(nonzeros(), most), in_full=True)
    keeps = left_in_l2.keeps(values.copy.nbytes + layout.col.nbytes)
    multiply = MATVEC(values.copy.dtype, dtype, layout.col.dtype, keeps)
    n_parts, cuts_of_stream = layout.n_parts, cuts(layout.n_parts, dtype, None)

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        multiply((n_parts,), (threads,), (layout.parts, values.copy, layout.col, x, y, cuts_of_stream(), *scaling(alpha, beta)))

    run.renew = values.renew  # type: ignore[attr-defined]
    return run
