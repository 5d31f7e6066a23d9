"""Coordinates sorted by row, then column, then as they come: ``kernels/csr_sort.cu``.

CuPy sorts all of them by one key of 64 bits, in eight passes over keys and places. Here they are put into their rows, and rows
are sorted one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import cupy
import numpy as np

from ..core.tables import WARP
from . import prefix
from .compiler import Kernel, blocks
from .look import Look, read
from .transposed import strided

BLOCK = 256
#: The longest rows that a warp sorts, and the warps of a thread block: in registers, and in 48 KB of shared memory.
CAPS = ((WARP, 8), (256, 8), (1024, 4))

COUNT_ROWS = Kernel("csr_sort", "csr_count_rows")
PUT_INTO_ROWS = Kernel("csr_sort", "csr_put_into_rows")
SORT_ROWS = Kernel("csr_sort", "csr_sort_rows", CAPS)


class Sorted(NamedTuple):
    """Entries in order of row, column, and number."""

    indptr: cupy.ndarray  # (n_rows + 1,) int64
    keys: cupy.ndarray  # (n,) uint64: column, and number in the lower 32 bits
    has_duplicates: bool

    def order(self) -> cupy.ndarray:
        """(n,) int64: the numbers."""
        return self.keys.view(np.uint32)[::2].astype(np.int64)


def by_place(row: cupy.ndarray, col: cupy.ndarray, shape: tuple[int, int]) -> Sorted | None:
    """`row` and `col` (n,) sorted; None where they need more than 32 bits, or a row is too long. n is 1 at least.

    It waits for the device twice.
    """
    n, n_rows = row.size, shape[0]
    if max(*shape, n) >= 2**31:
        return None
    row, col = row.astype(np.int32, copy=False), col.astype(np.int32, copy=False)
    counts, within = cupy.zeros(n_rows + 1 + prefix.n_states(n_rows + 1), np.int64), cupy.empty(n, np.uint32)
    COUNT_ROWS()(strided(n), (BLOCK,), (row, np.int64(n), counts, within))
    indptr = prefix.sums(counts, n_rows + 1)
    longest = Look(indptr, col, shape[1], checks=False).found().survey.numbers[3]
    fitting = [cap for cap in CAPS if longest <= cap[0]]
    if not fitting:
        return None
    keys, found = cupy.empty(n, np.uint64), cupy.zeros(1, np.int64)
    PUT_INTO_ROWS()(strided(n), (BLOCK,), (row, col, np.int64(n), indptr, within, keys))
    cap, warps = fitting[0]
    SORT_ROWS(cap, warps)(blocks(n_rows, warps), (warps * WARP,), (indptr, np.int64(n_rows), keys, found))
    return Sorted(indptr, keys, bool(read(found)[0]))


def grouped(
    row: cupy.ndarray, col: cupy.ndarray, shape: tuple[int, int], entries: Sorted | None
) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray, cupy.ndarray]:
    """The order of entries by row, then column, equal ones as they come; their rows and columns in it; and where each
    different place begins.

    The order is (n,) int64, the beginnings are (n_places + 1,) int64. `entries` is what :func:`by_place` says.
    """
    if entries is not None:
        order = entries.order()
    elif shape[0] * shape[1] < 2**63:  # one key a place: CuPy sorts integers by radix, but lexsort's pairs by comparison
        order = cupy.argsort(row.astype(np.int64) * shape[1] + col)  # stable
    else:
        order = cupy.lexsort(cupy.stack([col.astype(np.int64), row.astype(np.int64)]))  # stable, by row, then column
    row, col = row[order], col[order]
    return order, row, col, cupy.concatenate([cupy.flatnonzero(is_first(row, col)), cupy.array([row.size])])


def is_first(row: cupy.ndarray, col: cupy.ndarray) -> cupy.ndarray:
    """(n,) whether an entry is the first of its place, where equal places are neighbours."""
    first = cupy.ones(row.size, bool)
    first[1:] = (row[1:] != row[:-1]) | (col[1:] != col[:-1])
    return first
