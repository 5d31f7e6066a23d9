"""BBCSR's tables as kernels take them, what their sizes say, and the threads of a block."""

from __future__ import annotations

import numpy as np

from ..core.tables import WARP, BBCSRTables
from . import distinct
from .compiler import Coded
from .launches import Struct, struct

#: Of the kernels that are compiled without a GPU: index dtype, block size, whether there are holes.
SHAPES = (("int32", 1, False), ("int32", 3, False), ("int32", 6, True), ("int64", 7, True))

BLOCK = 128  #: threads of a thread block, at least: four warps


def threads(sharers: int) -> int:
    """Of a thread block, where so many warps share a bin."""
    return max(BLOCK, sharers * WARP)


def slot_bytes(value: np.dtype | str | Coded) -> int:
    """Of the value table, for each slot."""
    return {"Few": 1, "One": 0}[value.kind] if isinstance(value, Coded) else np.dtype(value).itemsize


def n_slots(t: BBCSRTables) -> int:
    """Slots of all bins, padding counted. The value table may have none: see :mod:`cvrarray.core.tables`."""
    return (t.col_narrow.size + t.col_wide.size) * t.block_size


def mean_blocks(t: BBCSRTables) -> int:
    """Blocks of a row, padding counted."""
    return n_slots(t) // (WARP * t.block_size * max(1, t.col_base.size))


def is_wide(t: BBCSRTables) -> bool:
    """Are most bins wide, of single columns?"""
    return t.block_size == 1 and t.col_wide.size > t.col_narrow.size


def as_struct(t: BBCSRTables) -> Struct:
    """The tables as kernels take them."""
    return struct(
        t.bin_rowptr, *distinct.fields(t.data, t.distinct), t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.present,
        *t.shape, t.col_base.size,
    )  # fmt: skip
