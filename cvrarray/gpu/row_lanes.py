"""``A @ x`` row by row, for CVR arrays of small matrices.

Such a product is a chain of waits: for a chunk's facts, its columns, x, the next steps, the parts that lanes have stolen,
and the sums of a row's other chunks. And its lanes are far apart, each in a row of its own, so that each gathers a sector
of x of its own. So the nonzeros are copied row by row. A row has as many neighbouring lanes as it fills, which load
neighbouring nonzeros, all at once. Measured: ``docs/measurements/0003-gpu-products.md``.

The order of sums is another one than without: the structure alone decides, as with :mod:`.segments`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import cupy
import numpy as np

from ..core import lanes
from ..core.tables import WARP, CVRTables
from . import distinct
from .compiler import STORED, Kernel, PerStream, aside, struct, update
from .words import as_words

THREADS = 256
#: Lanes that a part may leave empty before a row, so as not to cut it; on average they are.
SPARE = 8
EMPTY_ROWS_A_THREAD, MOST_BLOCKS_FOR_EMPTY = 8, 1 << 14

MATVEC = Kernel(
    "row_lanes",
    "row_lanes_matvec",
    [(value, product, *how) for value, product in STORED for how in (("uint16", "int32", 8), ("int64", "int64", 4))],
    lambda value, product, column, index, slots: (value, product, column, index, slots, THREADS),
)

FILL = Kernel("row_lanes", "row_lanes_fill", [("int32", 8), ("int64", 4)], lambda index, slots: (index, slots, THREADS))
#: The 16-bit column of a pad.
NARROW_PAD = 0xFFFF


def suits(t: CVRTables) -> bool:
    """Whether rows fill their lanes, and these are so few that a product waits for loads and not for their bytes.

    Only counts of rows and nonzeros decide. Lanes that someone asked for are used.
    """
    n_rows, n_cols = t.shape
    return t.nnz > 0 and t.n_lanes == WARP and _slots(t) > 0 and n_rows * n_cols < 1 << 62


def _slots(t: CVRTables) -> int:
    return lanes.slots_of_lanes(t.nnz, t.shape[0] - t.empty_row.size)


class Parts(NamedTuple):
    """How rows lie in parts of so many lanes."""

    begin: Any  # (n_parts + 1,) of its lanes, among all in the order of rows
    cut_row: Any  # (n_parts + 1,) the row that begins before a part and goes on in it; else -1
    span: Any  # (n_parts + 1, 2) int32: the first part of that row, and the one after its last; else -1


def parts(start: Any, n_lanes: int, threads: int, spare: int) -> Parts:
    """Parts of at most `threads` lanes, where rows begin at the lanes `start` (n_rows + 1,) of `n_lanes`, all of them rows
    with lanes.

    A part has about ``threads - spare`` lanes: it begins at a row, if one does in the `spare` lanes before. So all parts
    are found at once.
    """
    xp, step = cupy.get_array_module(start), threads - spare
    place = xp.arange(-(-n_lanes // step) + 1) * step
    row = xp.searchsorted(start, place, "right") - 1
    begin = xp.minimum(xp.where(start[row] >= place - spare, start[row], place), n_lanes)
    is_cut = start[row] < begin
    row = xp.minimum(row, start.size - 2)
    first, last = (xp.searchsorted(begin, lane, "right") - 1 for lane in (start[row], start[row + 1] - 1))
    span = xp.where(is_cut[:, None], xp.stack([first, last + 1], axis=1), -1).astype(np.int32)
    return Parts(begin, xp.where(is_cut, row, -1), span)


class Layout:
    """Which slot of CVR's each nonzero comes from, its column, and the parts: 6 bytes a slot.

    Columns are 16-bit offsets from the first of a part, where these are near enough in all parts.
    """

    def __init__(self, t: CVRTables, row: cupy.ndarray, col: cupy.ndarray) -> None:
        """`row` and `col` of every slot of `t`; the row of a pad is -1."""
        (n_rows, n_cols), index = t.shape, col.dtype
        self.step_ptr = t.step_ptr  # kept, for its address is what the layout is known by
        order = cupy.argsort(cupy.where(row < 0, np.int64(n_rows), row) * np.int64(n_cols) + col)[: t.nnz]
        row, col = row[order], col[order]
        ptr = cupy.searchsorted(row, cupy.arange(n_rows + 1, dtype=index))
        filled = None
        if t.empty_row.size:
            filled = cupy.flatnonzero(cupy.diff(ptr)).astype(index)
            ptr = cupy.append(ptr[filled], t.nnz)
        lengths = cupy.diff(ptr)
        self.slots = _slots(t)
        start = cupy.zeros_like(ptr)
        cupy.cumsum(-(-lengths // self.slots), out=start[1:])
        p = parts(start, int(start[-1]), THREADS, SPARE)
        self.n_parts = p.begin.size - 1
        shape = self.n_parts, THREADS * self.slots
        self.slot, columns = cupy.empty(shape[0] * shape[1], np.uint32), cupy.empty(shape, index)
        ends = cupy.empty(self.n_parts * THREADS // WARP, np.uint64)
        low_high = cupy.empty((self.n_parts, 2), np.int64)
        FILL(index, self.slots)(
            (self.n_parts,), (THREADS,),
            (start, p.begin, ptr, np.int64(lengths.size), order, col, self.slot, columns, low_high, ends),
        )  # fmt: skip
        low = cupy.ascontiguousarray(low_high[:, 0])
        if int((low_high[:, 1] - low).max()) < NARROW_PAD:
            columns = cupy.where(columns < 0, index.type(NARROW_PAD), columns - low[:, None]).astype(np.uint16)
        else:
            low[:] = 0
        self.col, self.span, cut_row = columns, p.span, p.cut_row.astype(index)
        if filled is not None:
            cut_row = cupy.where(cut_row < 0, cut_row, filled[cut_row])
        self.fields = columns, low, ends, filled, cut_row, t.empty_row, self.n_parts, t.empty_row.size
        n_for_empty = min(-(-t.empty_row.size // (THREADS * EMPTY_ROWS_A_THREAD)), MOST_BLOCKS_FOR_EMPTY)
        self.grid = (self.n_parts + n_for_empty,)
        self.is_cut = bool((cut_row >= 0).any())


#: By the address of step_ptr: arrays that differ in their values alone share it.
LAYOUTS: WeakValueDictionary[int, Layout] = WeakValueDictionary()


def product(
    t: CVRTables, dtype: np.dtype, places: Callable[[], tuple[cupy.ndarray, cupy.ndarray]]
) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, as that of ``gpu.cvr``; ``places()`` are row and column of every slot."""
    key = t.step_ptr.data.ptr
    with aside():
        layout = LAYOUTS.get(key) or Layout(t, *places())
        LAYOUTS[key] = layout
        values = cupy.empty(layout.slot.size if t.val.size else 0, t.val.dtype)  # one value alone has no table
        renew(t, layout, values)
    if cupy.cuda.get_current_stream().is_capturing():
        renew(t, layout, values)  # the graph may write them before
    multiply = MATVEC(distinct.kind(t.val, t.distinct), dtype, layout.col.dtype, t.tail.dtype, layout.slots)
    n_parts, words = layout.n_parts, -(-dtype.itemsize // 4)
    matrix = struct(*distinct.fields(values, t.distinct), *layout.fields)
    no_cuts = struct(layout.span, None, None)
    cuts = PerStream(lambda: struct(layout.span, cupy.zeros(n_parts, np.uint32), cupy.zeros((2 * n_parts, words), np.uint64)))
    cuts_of_stream = cuts.get if layout.is_cut else lambda: no_cuts

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        multiply(layout.grid, (THREADS,), (matrix, x, y, cuts_of_stream(), alpha, beta, update(alpha, beta)))

    run.renew = partial(renew, t, layout, values)  # type: ignore[attr-defined]
    return run


def renew(t: CVRTables, layout: Layout, values: cupy.ndarray) -> None:
    """Copy the values, again after they were replaced."""
    if values.size:
        as_words(t.val).take(layout.slot, out=as_words(values))
