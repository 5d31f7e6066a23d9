"""``A @ x`` row by row, for CVR arrays of small matrices.

Such a product is a chain of waits: for a chunk's facts, its columns, x, the next steps, the parts that lanes have stolen,
and the sums of a row's other chunks. And its lanes are far apart, each in a row of its own, so that each gathers a sector
of x of its own. So the nonzeros are copied row by row. A row has as many neighbouring lanes as it fills, which load
neighbouring nonzeros, all at once. Measured: ``docs/measurements/gpu-products.md``.

The order of sums is another one than without: the structure alone decides, as with :mod:`.segments`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from ..core import lanes
from ..core.arrays import Run
from ..core.tables import CSR, WARP, CVRTables
from . import copied, distinct, left_in_l2, prefix
from .captures import synchronize
from .compiler import LONG_ROWS_OF_X, ROWS_OF_X, STORED, Kernel
from .cvr_tables import blocks_for_empty, cuts
from .launches import scaling, struct
from .look import host
from .memory import together
from .properties import processors

THREADS = 128
#: Thread blocks, for each multiprocessor, up to which a lane should have all loads of x under way at once, by its slots and
#: the product's item size: with so many registers a multiprocessor holds no more of them. Few slots need none for that.
AT_ONCE = {(8, 4): math.inf, (lanes.MOST_SLOTS, 4): 6, (8, 8): 8}

MATVEC = Kernel(
    "row_lanes",
    "row_lanes_matvec",
    [
        (value, product, *how)
        for value, product in [*STORED, *ROWS_OF_X, *LONG_ROWS_OF_X]
        for how in (
            ("uint16", "int32", 8, True, True),
            ("int32", "int32", lanes.MOST_SLOTS, False, True),
            ("int64", "int64", 4, True, False),
        )
    ],
    lambda value, product, column, index, slots, keeps, at_once: (
        value, product, column, index, slots, THREADS, keeps, at_once,
    ),
)  # fmt: skip

FILL = Kernel(
    "row_lanes",
    "row_lanes_fill",
    [
        (column, index, slots)
        for index, slots in (("int32", 8), ("int32", lanes.MOST_SLOTS), ("int64", 4))
        for column in ("uint16", index)
    ],
    lambda column, index, slots: (column, index, slots, THREADS, lanes.SPARE),
)


def suits(t: CVRTables) -> bool:
    """Whether rows may fill their lanes, and these be so few that a product waits for loads and not for their bytes: by counts
    of rows and nonzeros. Lanes that someone asked for are used.
    """
    n_rows, n_cols = t.shape
    return t.nnz > 0 and t.n_lanes == WARP and lanes.may_have_lanes(t.nnz, _n_filled(t)) and n_rows * n_cols < 1 << 62


def slots(t: CVRTables, dtype: np.dtype, longest: Callable[[], int]) -> int:
    """Of a lane, for products in `dtype`, however values are stored: these change no bit. 0: rows should not be in lanes.
    ``longest()`` are the nonzeros of the longest row, which is asked for where it decides.
    """
    known = t.nnz, _n_filled(t), dtype.itemsize
    even, uneven = (lanes.slots_of_products(*known, length) for length in (0, t.nnz))
    return even if even == uneven else lanes.slots_of_products(*known, longest())


def _n_filled(t: CVRTables) -> int:
    return t.shape[0] - t.empty_row.size


class Layout:
    """Which slot of CVR's each nonzero comes from, its column, and the parts of rows: 6 bytes a slot.

    Columns are 16-bit offsets from the first of a part, where these are near enough in all parts.
    """

    def __init__(self, t: CVRTables, nonzeros: CSR, slots: int) -> None:
        """`nonzeros`: each one's slot, from 1. A lane has so many `slots`."""
        index, n_rows, n_empty = t.tail.dtype, np.int64(t.shape[0]), t.empty_row.size
        self.slots = slots
        pointer, numbers = host()
        start = prefix.parts(nonzeros.indptr, self.slots, 0, pointer)  # lanes
        synchronize()
        self.n_parts = n = -(-int(numbers[0]) // (THREADS - lanes.SPARE))
        self.source, ends, base, row, cut_row, self.span = together(
            (n * THREADS * self.slots, np.int32),
            (n * THREADS // WARP, np.uint64),
            (n, np.int64),
            (t.shape[0] - n_empty if n_empty else 0, index),
            (n + 1, index),
            ((n + 1, 2), np.int32),
        )
        for column in np.dtype(np.uint16), index:
            self.col = cupy.empty(self.source.size, column)
            numbers[:2] = 0
            FILL(column, index, self.slots)(
                (n,), (THREADS,),
                (start, nonzeros.indptr, n_rows, t.empty_row, np.int64(n_empty), nonzeros.data, nonzeros.indices, self.source,
                 self.col, base, ends, row, cut_row, self.span, np.uint64(pointer)),
            )  # fmt: skip
            synchronize()
            is_far, self.is_cut = map(bool, numbers[:2].tolist())
            if not is_far:
                break
        self.fields = self.col, base, ends, row if n_empty else None, cut_row, t.empty_row, n, n_empty
        self.grid = (n + blocks_for_empty(n_empty, THREADS),)


def product(t: CVRTables, dtype: np.dtype, own: int, nonzeros: Callable[[], CSR]) -> Run:
    """``run(x, y, alpha, beta)``, as that of ``gpu.cvr``, by lanes of `own` slots; ``nonzeros()`` is the CSR of the slots'
    numbers, from 1.
    """
    layout, values = copied.prepared(t, ("rows in lanes", own), lambda: Layout(t, nonzeros(), own), in_full=False)
    keeps = left_in_l2.keeps(values.copy.nbytes + layout.col.nbytes)
    at_once = layout.n_parts <= AT_ONCE.get((own, dtype.itemsize), 0) * processors()
    multiply = MATVEC(distinct.kind(t.val, t.distinct), dtype, layout.col.dtype, t.tail.dtype, own, keeps, at_once)
    matrix = struct(*distinct.fields(values.copy, t.distinct), *layout.fields)
    no_cuts = struct(layout.span, None, None)
    cuts_of_stream = cuts(layout.n_parts, dtype, layout.span) if layout.is_cut else lambda: no_cuts

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        multiply(layout.grid, (THREADS,), (matrix, x, y, cuts_of_stream(), *scaling(alpha, beta)))

    run.renew = values.renew  # type: ignore[attr-defined]
    return run
