"""``A @ x`` by parts of rows, for CVR arrays of small matrices with long rows.

Such a product is a chain of waits: for a chunk's facts, its columns, x, the next steps, the parts that lanes have stolen,
and the sums of a row's other chunks. And its lanes are far apart in a row, so that each gathers a sector of x of its own.
So the nonzeros are copied row by row. A thread block has a part of a row, of which neighbouring threads have neighbouring
nonzeros, and loads all of it at once. Measured: ``docs/measurements/0003-gpu-products.md``.

The order of sums is another one than without: the structure alone decides, as with :mod:`.segments`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import cupy
import numpy as np

from ..core.tables import CVRTables
from .compiler import PRODUCTS, Kernel, PerStream, aside, struct, update
from .segments import LEAST_NONZEROS, Values

THREADS = 256
#: Nonzeros of a thread, by the product's item size.
UNROLL = {1: 4, 2: 4, 4: 4, 8: 4, 16: 2}
LEAST_LENGTH = 192  # nonzeros of a row, on average
MOST_PARTS = 6000  # of all rows: some six times as many thread blocks as an H200 holds at once

MATVEC = Kernel(
    "long_rows",
    "long_rows_matvec",
    [(value, product, column) for value, product in PRODUCTS for column in ("uint16", "int64")],
    lambda value, product, column: (value, product, column, UNROLL[product.itemsize], THREADS),
)


def suits(t: CVRTables) -> bool:
    """Whether rows are long, and so few, as nonzeros are, that a product waits for loads and not for their bytes."""
    n_rows, n_cols = t.shape
    n_parts = n_rows + t.nnz // (THREADS * UNROLL[4])
    is_small = t.nnz < LEAST_NONZEROS and n_parts <= MOST_PARTS and n_rows * n_cols < 1 << 62
    return is_small and t.nnz >= LEAST_LENGTH * max(1, n_rows)


class Layout:
    """Which slot each nonzero comes from, row by row, its column, and the parts: 6 bytes a nonzero.

    Columns are 16-bit offsets from the first of a part, where these are near enough in all parts.
    """

    def __init__(self, t: CVRTables, row: cupy.ndarray, col: cupy.ndarray, most: int):
        """`row` and `col` of every slot; the row of a pad is -1. A part has `most` nonzeros at most."""
        n_rows, n_cols = t.shape
        self.step_ptr = t.step_ptr  # kept, for its address is what the layout is known by
        order = cupy.argsort(cupy.where(row < 0, np.int64(n_rows), row) * np.int64(n_cols) + col)[: t.nnz]
        self.slot, self.col = order.astype(np.uint32), col[order]
        found = parts(cupy.bincount(row[order], minlength=n_rows).get(), most)
        filled = found[:, 1] > 0
        begins = cupy.asarray(found[filled, 0])
        base = self.col[begins].astype(np.int64)
        offsets = self.col - base[cupy.searchsorted(begins, cupy.arange(t.nnz, dtype=begins.dtype), side="right") - 1]
        if int(offsets.max()) < 1 << 16:
            self.col = offsets.astype(np.uint16)
            found[filled, 6:] = base.get().view(np.int32).reshape(-1, 2)
        self.parts, self.n_parts = cupy.asarray(found), len(found)


def parts(of_row: np.ndarray, most: int) -> np.ndarray:
    """(n_parts, 8) int32: the kernel's ``Part`` for rows with so many nonzeros each, in equal parts."""
    n_parts = np.maximum(1, -(-of_row // most))
    row = np.repeat(np.arange(of_row.size), n_parts)
    first = (np.cumsum(n_parts) - n_parts)[row]
    number = np.arange(row.size) - first
    begin, end = (of_row[row] * (number + k) // n_parts[row] for k in range(2))
    found = np.zeros((row.size, 8), np.int32)
    for field, values in enumerate((((np.cumsum(of_row) - of_row)[row] + begin), end - begin, row, first, n_parts[row])):
        found[:, field] = values
    return found


#: By the address of step_ptr and the longest part: arrays that differ in their values alone share it.
LAYOUTS: WeakValueDictionary[tuple[int, int], Layout] = WeakValueDictionary()


def product(
    t: CVRTables, dtype: np.dtype, places: Callable[[], tuple[cupy.ndarray, cupy.ndarray]]
) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, as that of ``gpu.cvr``; ``places()`` are row and column of every slot."""
    threads, most = THREADS, THREADS * UNROLL[dtype.itemsize]
    key = t.step_ptr.data.ptr, most
    with aside():
        layout = LAYOUTS.get(key) or Layout(t, *places(), most)
        LAYOUTS[key] = layout
        values = Values(t, layout.slot)
        values.renew()
    if cupy.cuda.get_current_stream().is_capturing():
        values.renew()  # the graph may write them before
    multiply = MATVEC(values.copy.dtype, dtype, layout.col.dtype)
    n_parts, words = layout.n_parts, -(-dtype.itemsize // 4)
    cuts = PerStream(lambda: struct(None, cupy.zeros(n_parts, np.uint32), cupy.zeros((2 * n_parts, words), np.uint64)))

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        multiply(
            (n_parts,), (threads,), (layout.parts, values.copy, layout.col, x, y, cuts.get(), alpha, beta, update(alpha, beta))
        )

    run.renew = values.renew  # type: ignore[attr-defined]
    return run
