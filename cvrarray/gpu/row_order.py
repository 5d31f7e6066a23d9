"""``A @ x`` row by row, for CVR arrays of small matrices.

Such a product is a chain of waits: for a chunk's facts, its columns, x, the next steps, the parts that lanes have stolen,
and the sums of a row's other chunks. And its lanes are far apart, each in a row of its own, so that each gathers a sector
of x of its own. So the nonzeros are copied row by row. A thread block has a part of them, of which neighbouring threads
load neighbouring ones, all at once. Measured: ``docs/measurements/0003-gpu-products.md``.

The order of sums is another one than without: the structure alone decides, as with :mod:`.segments`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import cupy
import numpy as np

from ..core.tables import WARP, CVRTables
from . import distinct
from .assembly import as_words
from .compiler import STORED, Kernel, PerStream, aside, struct, update
from .segments import LEAST_NONZEROS

THREADS = 256
#: Nonzeros of a thread, by the product's item size.
UNROLL = {1: 4, 2: 4, 4: 4, 8: 4, 16: 2}
#: Parts end before a row that they would cut, where no more than this share of their slots is left empty.
LONG = 8
EMPTY_ROWS_A_THREAD, MOST_BLOCKS_FOR_EMPTY = 8, 1 << 14

MATVEC = Kernel(
    "row_order",
    "row_order_matvec",
    [(value, product, *how) for value, product in STORED for how in (("uint16", "int32"), ("int64", "int64"))],
    lambda value, product, column, index: (value, product, column, index, UNROLL[product.itemsize], THREADS),
)


def suits(t: CVRTables) -> bool:
    """Whether nonzeros are so few that a product waits for loads and not for their bytes; lanes that someone asked for are
    used.
    """
    n_rows, n_cols = t.shape
    return 0 < t.nnz < LEAST_NONZEROS and t.n_lanes == WARP and n_rows * n_cols < 1 << 62


class Parts(NamedTuple):
    """How rows that are not empty lie in parts of `capacity` slots; all on the host."""

    begin: np.ndarray  # (n_parts + 1,) of its nonzeros, among all in the order of rows
    cut_row: np.ndarray  # (n_parts + 1,) of these rows, that which begins before a part and goes on in it; else -1
    span: np.ndarray  # (n_parts + 1, 2) int32: the first part of that row, and the one after its last; else -1
    end_slot: np.ndarray  # (n_rows,) the slot of each row's last nonzero


def boundaries(start: np.ndarray, capacity: int) -> np.ndarray:
    """(n_parts + 1,) where parts begin among nonzeros whose rows begin at `start` (n_rows + 1,).

    A part that would end in a row ends before it, where less than a LONG-th of the part is left empty so.
    """
    begins, end, starts, spare = [0], 0, memoryview(start), capacity // LONG
    while end < starts[-1]:
        end = min(end + capacity, starts[-1])
        row_start = starts[bisect_right(starts, end) - 1]
        if row_start >= end - spare:
            end = row_start
        begins.append(end)
    return np.array(begins)


def parts(lengths: np.ndarray, capacity: int) -> Parts:
    """Parts of rows with so many nonzeros each, none of them 0."""
    start = np.concatenate([[0], np.cumsum(lengths)])
    begin = boundaries(start, capacity)
    row = np.minimum(np.searchsorted(start, begin, "right") - 1, lengths.size - 1)
    is_cut = (start[row] < begin) & (begin < start[-1])
    first, last = (np.searchsorted(begin, ends, "right") - 1 for ends in (start[row], start[row + 1] - 1))
    span = np.where(is_cut[:, None], np.stack([first, last + 1], axis=1), -1).astype(np.int32)
    end = start[1:] - 1
    part = np.searchsorted(begin, end, "right") - 1
    return Parts(begin, np.where(is_cut, row, -1), span, part * capacity + end - begin[part])


class Layout:
    """Which slot of CVR's each nonzero comes from, its column, and the parts: 6 bytes a nonzero.

    Columns are 16-bit offsets from the first of a part, where these are near enough in all parts.
    """

    def __init__(self, t: CVRTables, row: cupy.ndarray, col: cupy.ndarray, a_thread: int, threads: int = THREADS):
        """`row` and `col` of every slot; the row of a pad is -1. A thread has `a_thread` slots."""
        n_rows, n_cols = t.shape
        self.step_ptr = t.step_ptr  # kept, for its address is what the layout is known by
        order = cupy.argsort(cupy.where(row < 0, np.int64(n_rows), row) * np.int64(n_cols) + col)[: t.nnz]
        of_row = cupy.bincount(row[order], minlength=n_rows).get()
        index, filled, capacity = col.dtype, np.flatnonzero(of_row), a_thread * threads
        p = parts(of_row[filled], capacity)
        self.n_parts = p.begin.size - 1
        begin, place = cupy.asarray(p.begin), cupy.arange(self.n_parts * capacity)
        part = place // capacity
        nonzero = cupy.minimum(begin[part] + place % capacity, begin[part + 1] - 1)  # a pad is like the one before
        self.slot = order[nonzero].astype(np.uint32)
        columns = col[self.slot].reshape(self.n_parts, capacity)
        low = columns.min(axis=1).astype(np.int64)
        if int((columns.max(axis=1) - low).max()) < 1 << 16:
            self.col = (columns - low[:, None]).astype(np.uint16)
        else:
            self.col, low = columns, cupy.zeros(self.n_parts, np.int64)
        is_end = cupy.zeros(self.slot.size, np.uint8)
        is_end[cupy.asarray(p.end_slot)] = 1
        ends = (is_end.reshape(-1, a_thread) << cupy.arange(a_thread, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
        rank = np.searchsorted(p.end_slot, np.arange(0, self.slot.size, WARP * a_thread)).astype(np.int32)
        cut_row = np.where(p.cut_row >= 0, filled[p.cut_row], -1).astype(index)
        self.span = cupy.asarray(p.span)
        self.fields = (
            self.col, ends, low, cupy.asarray(rank), cupy.asarray(filled.astype(index)) if filled.size < n_rows else None,
            cupy.asarray(cut_row), t.empty_row, self.n_parts, t.empty_row.size,
        )  # fmt: skip
        n_for_empty = min(-(-t.empty_row.size // (threads * EMPTY_ROWS_A_THREAD)), MOST_BLOCKS_FOR_EMPTY)
        self.grid = (self.n_parts + n_for_empty,)


#: By the address of step_ptr and the slots of a thread: arrays that differ in their values alone share it.
LAYOUTS: WeakValueDictionary[tuple[int, int], Layout] = WeakValueDictionary()


def product(
    t: CVRTables, dtype: np.dtype, places: Callable[[], tuple[cupy.ndarray, cupy.ndarray]]
) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, as that of ``gpu.cvr``; ``places()`` are row and column of every slot."""
    key = t.step_ptr.data.ptr, UNROLL[dtype.itemsize]
    with aside():
        layout = LAYOUTS.get(key) or Layout(t, *places(), key[1])
        LAYOUTS[key] = layout
        values = cupy.empty(layout.slot.size if t.val.size else 0, t.val.dtype)  # one value alone has no table
        renew(t, layout, values)
    if cupy.cuda.get_current_stream().is_capturing():
        renew(t, layout, values)  # the graph may write them before
    multiply = MATVEC(distinct.kind(t.val, t.distinct), dtype, layout.col.dtype, t.tail.dtype)
    n_parts, words = layout.n_parts, -(-dtype.itemsize // 4)
    matrix = struct(*distinct.fields(values, t.distinct), *layout.fields)
    cuts = PerStream(lambda: struct(layout.span, cupy.zeros(n_parts, np.uint32), cupy.zeros((2 * n_parts, words), np.uint64)))

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        multiply(layout.grid, (THREADS,), (matrix, x, y, cuts.get(), alpha, beta, update(alpha, beta)))

    run.renew = partial(renew, t, layout, values)  # type: ignore[attr-defined]
    return run


def renew(t: CVRTables, layout: Layout, values: cupy.ndarray) -> None:
    """Copy the values, again after they were replaced."""
    if values.size:
        as_words(t.val).take(layout.slot, out=as_words(values))
