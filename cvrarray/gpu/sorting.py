"""Coordinates sorted by row, then column, then as they come: ``kernels/csr_sort.cu``.

CuPy sorts all of them by one key of 64 bits, in eight passes over keys and places. Here they are put into buckets of a few
rows, each of which a thread block sorts in shared memory.
"""

from __future__ import annotations

from typing import NamedTuple

import cupy
import numpy as np

from . import prefix
from .compiler import Kernel, blocks
from .look import read
from .transposed import strided

BLOCK = 256
#: Places in which the rows of a bucket begin, entries of a row that a bucket takes, and threads that sort a bucket. Keys and
#: what tells rows apart take 44 KB of shared memory.
SPAN, LONG, THREADS = 2048, 2048, 512

COUNT_ROWS = Kernel("csr_sort", "csr_count_rows")
FIND_BUCKETS = Kernel("csr_sort", "csr_find_buckets")
PUT_INTO_BUCKETS = Kernel("csr_sort", "csr_put_into_buckets")
SORT_BUCKETS = Kernel("csr_sort", "csr_sort_buckets", [()], lambda: (SPAN, LONG, THREADS))
FIND_PLACES = Kernel("csr_sort", "csr_find_places", [()], lambda: (prefix.THREADS, prefix.NUMBERS))


class Bits(NamedTuple):
    """What a key has beside the place of its row."""

    of_col: int
    of_number: int

    def struct(self) -> np.ndarray:
        """As kernels take it."""
        return np.array(self, np.int32).view("V8")

    def free(self) -> int:
        """Bits that are left."""
        return 64 - self.of_col - self.of_number


class Sorted(NamedTuple):
    """Entries in order of row, column, and number."""

    indptr: cupy.ndarray  # (n_rows + 1,) int64
    entries: cupy.ndarray  # (n,) uint64: one bit where the place is that of the one before, the column, the number in 32 bits
    has_duplicates: bool

    def order(self) -> cupy.ndarray:
        """(n,) int64: the numbers."""
        return self.entries.view(np.uint32)[::2].astype(np.int64)

    def starts(self) -> cupy.ndarray:
        """(n_places + 1,) int64: where each different place begins. It waits for the device where some come twice."""
        n = self.entries.size
        if not self.has_duplicates:
            return cupy.arange(n + 1)
        starts, state = cupy.empty(n + 1, np.int64), cupy.zeros(1 + prefix.n_states(n), np.int64)
        grid = blocks(n, prefix.THREADS * prefix.NUMBERS)
        FIND_PLACES()(grid, (prefix.THREADS,), (self.entries, np.int64(n), state[1:], starts, state))
        return starts[: int(read(state[:1])[0]) + 1]


def by_place(row: cupy.ndarray, col: cupy.ndarray, shape: tuple[int, int]) -> Sorted | None:
    """`row` and `col` (n,) sorted; None where a key would need more than 64 bits. n is 1 at least.

    It waits for the device once.
    """
    n, n_rows = row.size, shape[0]
    bits = Bits(*(max(1, (most - 1).bit_length()) for most in (shape[1], n)))
    if max(*shape, n) >= 2**31 or 1 << bits.free() < SPAN:
        return None
    row, col = row.astype(np.int32, copy=False), col.astype(np.int32, copy=False)
    n_states, (n_buckets,) = prefix.n_states(n_rows + 1), blocks(n, SPAN)
    memory = cupy.zeros(n_rows + 1 + n_states + 2 + -(-n_buckets // 2), np.int64)
    counts, found = memory[: n_rows + 1], memory[n_rows + 1 + n_states :]
    filled = np.uint64(found.data.ptr + 16)
    begins, longs = cupy.empty(n_buckets, np.int64), cupy.empty(n // LONG + 1, np.int32)
    keys, span, most = cupy.empty(n, np.uint64), np.int32(SPAN), np.int64(LONG)
    COUNT_ROWS()(strided(n), (BLOCK,), (row, np.int64(n), counts))
    indptr = prefix.sums(counts, n_rows + 1)
    FIND_BUCKETS()(blocks(n_rows, BLOCK), (BLOCK,), (indptr, np.int64(n_rows), span, most, begins, longs, found))
    PUT_INTO_BUCKETS()(
        strided(n),
        (BLOCK,),
        (row, col, np.int64(n), indptr, span, most, bits.struct(), begins, filled, counts, keys),
    )
    SORT_BUCKETS()((n_buckets,), (THREADS,), (begins, filled, bits.struct(), keys, found))
    n_long, has_duplicates = read(found[:2]).tolist()
    if n_long:
        has_duplicates |= _sort_long_rows(indptr, longs[:n_long], bits, keys)
    return Sorted(indptr, keys, bool(has_duplicates))  # entries are where their keys were


def _sort_long_rows(indptr: cupy.ndarray, rows: cupy.ndarray, bits: Bits, keys: cupy.ndarray) -> bool:
    """Sort the keys of `rows`, as many rows at a time as the bits tell that are left; whether one has a column twice."""
    twice, shift = False, np.uint64(bits.of_col + bits.of_number)
    first, lengths = indptr[rows].get(), (indptr[rows + 1] - indptr[rows]).get()
    for at in range(0, rows.size, 1 << bits.free()):
        part = slice(at, at + (1 << bits.free()))
        ends = np.cumsum(lengths[part])
        number = cupy.searchsorted(cupy.asarray(ends), cupy.arange(ends[-1]), side="right")
        place = cupy.asarray(first[part] - ends + lengths[part])[number] + cupy.arange(ends[-1])
        key = (keys[place] & ((np.uint64(1) << shift) - np.uint64(1))) | (number.astype(np.uint64) << shift)
        key.sort()
        places = key >> np.uint64(bits.of_number)
        col, numbers = places & np.uint64((1 << bits.of_col) - 1), key & np.uint64((1 << bits.of_number) - 1)
        again = cupy.zeros(place.size, np.uint64)
        again[1:] = places[1:] == places[:-1]
        keys[place] = again << np.uint64(63) | col << np.uint64(32) | numbers
        twice |= bool(again.any())
    return twice


def grouped(
    row: cupy.ndarray, col: cupy.ndarray, shape: tuple[int, int]
) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray, cupy.ndarray]:
    """The order of entries that :func:`by_place` does not take; their rows and columns in it; and where each different place
    begins.

    The order is (n,) int64, the beginnings are (n_places + 1,) int64.
    """
    if shape[0] * shape[1] < 2**63:  # one key a place: CuPy sorts integers by radix, but lexsort's pairs by comparison
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
