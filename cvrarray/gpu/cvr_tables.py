"""CVR's tables as kernels take them, what these read out of them, and how long chunks should be."""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np

from ..core.tables import CVRTables
from . import distinct
from .captures import aside
from .compiler import Kernel
from .launches import Struct, blocks, struct
from .properties import processors
from .streams import PerStream

BLOCK = 128  # threads: four chunks
#: Steps that a chunk should have.
STEPS = 64
#: Chunks of a multiprocessor that are under way at once, with values of at most 4 bytes and longer ones: 92% of the warps that
#: it has registers for, as some of them store empty rows. A few chunks more would wait for all of these. So a matrix of less
#: than FEW_WAVES times as many chunks has chunks that fill the device a whole number of times.
WAVE, FEW_WAVES = (29.4, 22.05), 3
#: Of empty rows that a thread stores in ``A @ x``, at least, and of thread blocks for them, at most.
EMPTY_ROWS_A_THREAD, MOST_BLOCKS_FOR_EMPTY = 8, 1 << 14

INDICES = [("int32",), ("int64",)]
SPANS = Kernel("cvr_convert", "cvr_spans")


def wave(value: np.dtype) -> int:
    """Chunks that are under way at once, with such values."""
    return round(WAVE[value.itemsize > 4] * processors())


def waves(nnz: int, n_lanes: int, value: np.dtype) -> float:
    """How often chunks of STEPS steps fill the device."""
    return nnz / (n_lanes * STEPS * wave(value))


def n_slots(t: CVRTables) -> int:
    """Slots of all chunks, pads counted. The value table may have none: see :mod:`cvrarray.core.tables`."""
    return t.rec_mask.size * t.n_lanes


def as_struct(t: CVRTables) -> Struct:
    """The tables as kernels take them."""
    return struct(
        t.step_ptr, *distinct.fields(t.val, t.distinct), t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.rec_mask,
        t.rec_ptr, t.rec_wb, t.tail, t.carry_row, t.empty_row, t.carry_row.size, t.empty_row.size,
    )  # fmt: skip


def blocks_for_empty(n_empty: int, threads: int) -> int:
    """Thread blocks that store empty rows in ``A @ x``."""
    return min(-(-n_empty // (threads * EMPTY_ROWS_A_THREAD)), MOST_BLOCKS_FOR_EMPTY)


def cuts(n: int, dtype: np.dtype, span: cupy.ndarray | None) -> Callable[[], Struct]:
    """A function that gives the kernels' ``Cuts`` of `n` chunks, or parts, for a product on the current stream."""
    words = -(-dtype.itemsize // 4)
    return PerStream(lambda: struct(span, cupy.zeros(n, np.uint32), cupy.zeros((2 * n, words), np.uint64))).get


def cuts_of_chunks(t: CVRTables, dtype: np.dtype) -> Callable[[], Struct]:
    """The same of a matrix."""
    if t.cut_row.size:
        return cuts(t.carry_row.size, dtype, spans(t))
    nothing = struct(*[None] * 3)
    return lambda: nothing


def spans(t: CVRTables) -> cupy.ndarray:
    """(n_chunks + 1, 2) as the kernels' ``Cuts`` have it; some row is cut."""
    n_chunks, n_cut = t.carry_row.size, t.cut_row.size
    with aside():
        span = cupy.empty((n_chunks + 1, 2), np.int32)
        SPANS()(blocks(n_chunks + 1, BLOCK), (BLOCK,), (t.cut_ptr, np.int64(n_cut), np.int64(n_chunks), span))
    return span
