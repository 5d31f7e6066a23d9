"""``A @ x`` with as many slots for every row, for small matrices of short, even rows in either format.

Such a product is a chain of waits: for where a bin or a chunk lies, for its columns, for x. With as many slots for every row
nothing says where they lie, so the first wait is saved, and with it all that depends on the answer. The nonzeros are copied
for that. Measured: ``docs/measurements/gpu-products.md``.

The order of sums may be another one than without: the structure alone decides, as with :mod:`.segments`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cupy
import numpy as np

from ..core import short_rows
from ..core.arrays import Run
from ..core.remembered import Remembered
from ..core.tables import CSR, BBCSRTables, CVRTables
from . import copied, distinct, left_in_l2
from .captures import aside
from .compiler import LONG_ROWS_OF_X, ROWS_OF_X, STORED, Kernel
from .launches import blocks, scaling, struct

THREADS = 128

MATVEC = Kernel(
    "short_rows",
    "short_rows_matvec",
    [
        (*dtypes, *how)
        for dtypes in [*STORED, *ROWS_OF_X, *LONG_ROWS_OF_X]
        for how in (("int32", 1, True), ("int32", 7, False), ("int64", short_rows.WIDEST, True))
    ],
    lambda value, product, index, width, keeps: (value, product, index, width, THREADS, keeps),
)
FILL = Kernel("short_rows", "short_rows_fill", [("int32",), ("int64",)])

#: By the table of a structure: its longest row.
_LONGEST = Remembered()


class Layout:
    """Which slot of the format's each one has its value from, and its column: 8 bytes a slot, or 12."""

    def __init__(self, t: BBCSRTables | CVRTables, nonzeros: CSR, width: int) -> None:
        """`nonzeros`: each one's slot, from 1."""
        (ptr, col_of, source_of), n_rows = nonzeros[:3], t.shape[0]
        size = short_rows.n_slots(n_rows, width)
        self.source, self.col = cupy.empty(size, np.int32), cupy.empty(size, col_of.dtype)
        FILL(col_of.dtype)(
            blocks(n_rows, THREADS),
            (THREADS,),
            (ptr, source_of, col_of, np.int64(n_rows), np.int32(width), self.source, self.col),
        )


def longest(t: BBCSRTables | CVRTables, nonzeros: Callable[[], CSR]) -> int:
    """Nonzeros of the longest row; ``nonzeros()`` as for :func:`product`."""

    def found() -> int:
        with aside():
            return int(cupy.diff(nonzeros()[0]).max())

    length: int = _LONGEST.of(copied.structure(t), "longest", found)
    return length


def product(t: BBCSRTables | CVRTables, dtype: np.dtype, nonzeros: Callable[[], CSR]) -> Run | None:
    """``run(x, y, alpha, beta)``, as that of the format's module; ``nonzeros()`` is the CSR of the slots' numbers, from 1. None
    where rows are long, or many, or the longest one would leave too many slots of others empty.
    """
    if not short_rows.may_suit(t.shape[0], t.nnz):
        return None
    nonzeros = cache(nonzeros)
    width = longest(t, nonzeros)
    if not short_rows.suit(t.shape[0], t.nnz, width):
        return None
    layout, values = copied.prepared(t, "short rows", lambda: Layout(t, nonzeros(), width), in_full=False)
    keeps = left_in_l2.keeps(values.copy.nbytes + layout.col.nbytes)
    multiply = MATVEC(distinct.kind(copied.values(t), t.distinct), dtype, layout.col.dtype, width, keeps)
    grid, matrix = blocks(t.shape[0], THREADS), struct(*distinct.fields(values.copy, t.distinct), layout.col, t.shape[0])

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        multiply(grid, (THREADS,), (matrix, x, y, *scaling(alpha, beta)))

    run.renew = values.renew  # type: ignore[attr-defined]
    return run
