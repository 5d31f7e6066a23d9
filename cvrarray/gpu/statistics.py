"""Counts over a CSR in the memory of a GPU. The same function as in :mod:`cvrarray.cpu.statistics`."""

from __future__ import annotations

import cupy
import numpy as np

from ..core.tables import WARP
from .compiler import Kernel, blocks

BLOCK = 256
ROW_LENGTHS = Kernel("csr", "csr_row_lengths", [("int32",), ("int64",)])


def row_lengths(indptr: cupy.ndarray, group: int) -> tuple[int, int, int, int]:
    """Slots if groups of `group` rows, as many as a warp has threads, are padded to their longest; empty rows; the
    shortest and the longest row. There is at least one row.

    CuPy's own sums and extremes would each be compiled first, for a second or two.
    """
    assert group == WARP
    n_rows = indptr.size - 1
    found = cupy.zeros(4, np.int64)
    ROW_LENGTHS(indptr.dtype)(blocks(n_rows, BLOCK), (BLOCK,), (indptr, np.int64(n_rows), found))
    padded, empty, beyond_shortest, longest = found.get().tolist()
    return padded, empty, np.iinfo(np.int64).max - beyond_shortest, longest
