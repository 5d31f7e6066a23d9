"""``A @ x`` row by row, for small matrices: CVR's, and either format's where rows are short and even.

Such a product is a chain of waits: for a chunk's facts, its columns, x, the next steps, the parts that lanes have stolen,
and the sums of a row's other chunks. And its lanes are far apart, each in a row of its own, so that each gathers a sector
of x of its own. So the nonzeros are copied row by row. A row has as many neighbouring lanes as it fills, which load
neighbouring nonzeros, all at once. Where rows are short and even, each has one lane with as many slots as the longest row
takes: nothing says where a row lies, so the first wait is saved too. Measured: ``docs/measurements/gpu-products.md``.

The order of sums is another one than without: the structure alone decides, as with :mod:`.segments`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import cupy
import numpy as np

from ..core import lanes, short_rows
from ..core.arrays import Run
from ..core.remembered import Remembered
from ..core.tables import CSR, WARP, BBCSRTables, CVRTables
from . import copied, distinct, left_in_l2, prefix
from .captures import aside, synchronize
from .compiler import LONG_ROWS_OF_X, ROWS_OF_X, STORED, Kernel
from .cvr_tables import blocks_for_empty, cuts
from .launches import NULL, scaling, struct
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
            ("uint16", "int32", 8, True, True, False),
            ("int32", "int32", lanes.MOST_SLOTS, False, True, False),
            ("int64", "int64", 4, True, False, False),
            ("int32", "int32", 7, False, True, True),
            ("int64", "int64", short_rows.WIDEST, True, True, True),
        )
    ],
    lambda value, product, column, index, slots, keeps, at_once, is_even: (
        value, product, column, index, slots, THREADS, keeps, at_once, is_even,
    ),
)  # fmt: skip

FILL = Kernel(
    "row_lanes",
    "row_lanes_fill",
    [
        (column, index, slots, is_even)
        for index, slots, is_even in (
            ("int32", 8, False), ("int32", lanes.MOST_SLOTS, False), ("int64", 4, False), ("int64", 1, True),
        )
        for column in ("uint16", index)[is_even:]
    ],
    lambda column, index, slots, is_even: (column, index, slots, THREADS, 0 if is_even else lanes.SPARE),
)  # fmt: skip

#: By the table of a structure: its longest row.
_LONGEST = Remembered()


def suits(t: CVRTables) -> bool:
    """Whether rows may fill their lanes, and these be so few that a product waits for loads and not for their bytes: by counts
    of rows and nonzeros. Lanes that someone asked for are used.
    """
    n_rows, n_cols = t.shape
    return (
        t.nnz > 0
        and t.n_lanes == WARP
        and lanes.may_have_lanes(t.nnz, _n_filled(t), processors())
        and n_rows * n_cols < 1 << 62
    )


def slots(t: CVRTables, dtype: np.dtype, longest: Callable[[], int]) -> int:
    """Of a lane, for products in `dtype`, however values are stored: these change no bit. 0: rows should not be in lanes.
    ``longest()`` are the nonzeros of the longest row, which is asked for where it decides.
    """
    known = t.nnz, _n_filled(t), dtype.itemsize
    even, uneven = (lanes.slots_of_products(*known, length, processors()) for length in (0, t.nnz))
    return even if even == uneven else lanes.slots_of_products(*known, longest(), processors())


def _n_filled(t: CVRTables) -> int:
    return t.shape[0] - t.empty_row.size


def _lanes(t: BBCSRTables | CVRTables, dtype: np.dtype, nonzeros: Callable[[], CSR]) -> tuple[int, bool]:
    """Slots of a lane, or 0, and whether rows are even, one lane each."""
    if short_rows.may_suit(t.shape[0], t.nnz, processors()):
        width = longest(t, nonzeros)
        if short_rows.suit(t.shape[0], t.nnz, width, processors()):
            return width, True
    return slots(t, dtype, lambda: longest(t, nonzeros)) if isinstance(t, CVRTables) else 0, False


def longest_even(t: BBCSRTables | CVRTables, dtype: np.dtype, nonzeros: Callable[[], CSR]) -> tuple[int, bool]:
    """Nonzeros of the longest row, and True, where :func:`product` has as many slots for every row of `t`; else 0 and False."""
    is_cvr = isinstance(t, CVRTables)
    length, is_even = (0, False) if is_cvr and not suits(t) else _lanes(t, dtype, nonzeros)
    return (length, True) if is_even else (0, False)


def longest(t: BBCSRTables | CVRTables, nonzeros: Callable[[], CSR]) -> int:
    """Nonzeros of the longest row; ``nonzeros()`` as for :func:`product`."""

    def found() -> int:
        with aside():
            return int(cupy.diff(nonzeros()[0]).max())

    length: int = _LONGEST.of(copied.structure(t), "longest", found)
    return length


class Layout:
    """Which slot of the format's each nonzero comes from, its column, and the parts of rows: 6 bytes a slot.

    Columns are 16-bit offsets from the first of a part, where these are near enough in all parts. Where rows are even, they
    are as they are: 8 bytes a slot, or 12.
    """

    def __init__(self, nonzeros: CSR, slots: int, empty_row: cupy.ndarray | None) -> None:
        """`nonzeros`: each one's slot, from 1. A lane has so many `slots`. `empty_row` None: rows are even."""
        self.index, n_rows = nonzeros.indices.dtype, nonzeros.shape[0]
        self.slots, self.is_even, n_empty = slots, empty_row is None, 0 if empty_row is None else empty_row.size
        pointer, numbers = host()
        start = prefix.parts(nonzeros.indptr, slots, int(self.is_even), pointer)  # lanes
        synchronize()
        self.n_parts = n = -(-int(numbers[0]) // (THREADS - (0 if self.is_even else lanes.SPARE)))
        self.source, ends, base, row, cut_row, self.span = together(
            (n * THREADS * slots, np.int32),
            (n * THREADS // WARP, np.uint64),
            (n, np.int64),
            (n_rows - n_empty if n_empty else 0, self.index),
            (n + 1, self.index),
            ((n + 1, 2), np.int32),
        )
        for column in (np.dtype(np.uint16), self.index)[self.is_even :]:
            self.col = cupy.empty(self.source.size, column)
            numbers[:2] = 0
            FILL(column, self.index, slots, self.is_even)(
                (n,), (THREADS,),
                (start, nonzeros.indptr, np.int64(n_rows), NULL if self.is_even else empty_row, np.int64(n_empty),
                 nonzeros.data, nonzeros.indices, self.source, self.col, base, ends, row, cut_row, self.span,
                 np.uint64(pointer)),
            )  # fmt: skip
            synchronize()
            is_far, self.is_cut = map(bool, numbers[:2].tolist())
            if not is_far:
                break
        self.fields = self.col, base, ends, row if n_empty else None, cut_row, empty_row, n, n_empty, n_rows
        self.grid = (n + blocks_for_empty(n_empty, THREADS),)


def product(t: BBCSRTables | CVRTables, dtype: np.dtype, nonzeros: Callable[[], CSR]) -> Run | None:
    """``run(x, y, alpha, beta)``, as that of the format's module; ``nonzeros()`` is the CSR of the slots' numbers, from 1. None
    where the matrix is not for it.
    """
    if isinstance(t, CVRTables) and not suits(t):
        return None
    by_rows = cache(nonzeros)
    own, is_even = _lanes(t, dtype, by_rows)
    if not own:
        return None
    empty_row = None if is_even else t.empty_row  # type: ignore[union-attr]  # CVR's
    layout, values = copied.prepared(
        t, ("rows in lanes", own, is_even), lambda: Layout(by_rows(), own, empty_row), in_full=False
    )
    keeps = left_in_l2.keeps(values.copy.nbytes + layout.col.nbytes)
    at_once = is_even or layout.n_parts <= AT_ONCE.get((own, dtype.itemsize), 0) * processors()
    stored = distinct.kind(copied.values(t), t.distinct)
    multiply = MATVEC(stored, dtype, layout.col.dtype, layout.index, own, keeps, at_once, is_even)
    matrix = struct(*distinct.fields(values.copy, t.distinct), *layout.fields)
    no_cuts = struct(layout.span, None, None)
    cuts_of_stream = cuts(layout.n_parts, dtype, layout.span) if layout.is_cut else lambda: no_cuts

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        multiply(layout.grid, (THREADS,), (matrix, x, y, cuts_of_stream(), *scaling(alpha, beta)))

    run.renew = values.renew  # type: ignore[attr-defined]
    return run
