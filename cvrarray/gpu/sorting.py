"""Coordinates sorted by row, then column, then as they come: ``kernels/csr_sort.cu``.

CuPy sorts all of them by one key of 64 bits, in eight passes over keys and places. Here they are put into buckets of a few
rows, with their values, and a thread block sorts a bucket in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np

from . import prefix
from .compiler import Kernel, allowed
from .launches import blocks, struct
from .look import read
from .properties import attribute, processors
from .words import WORDS, as_words

#: Threads of a block, entries that each of them puts to buckets, and thread blocks that sort buckets on a multiprocessor.
THREADS, UNROLL, AT_ONCE = 512, 8, 2
#: Buckets up to which entries are put there at once, and coarse buckets otherwise, at most.
MOST_AT_ONCE, MOST_COARSE = 512, 256
#: Entries that a bucket should have, and rows that it may have.
AVERAGE, MOST_ROWS = 3072, 4096
#: Buckets, at most: each takes 4 bytes of shared memory where entries are counted.
MOST_BUCKETS = 16384
#: Bytes of shared memory that a thread block has beside the keys.
OWN = 2048


def unroll(word: np.dtype) -> int:
    """Entries of a thread that puts them with such values: tiles of 32 KB of shared memory."""
    return UNROLL if word.itemsize <= 8 else UNROLL // 2


COUNT_BUCKETS = Kernel("csr_sort", "csr_count_buckets")
PUT_INTO_BUCKETS = Kernel(
    "csr_sort",
    "csr_put_into_buckets",
    [(word, *steps) for word in WORDS.values() for steps in ((True, True), (True, False), (False, True))],
    lambda word, first, last: (word, first, last, THREADS, unroll(word)),
)
SORT_BUCKETS = Kernel(
    "csr_sort",
    "csr_sort_buckets",
    [(word, True) for word in WORDS.values()] + [("uint8", False)],
    lambda word, takes: (word, takes, THREADS, AT_ONCE),
)
FIND_PLACES = Kernel("csr_sort", "csr_find_places", [()], lambda: (prefix.THREADS, prefix.NUMBERS))


class Keys(NamedTuple):
    """How keys are made: the bits of what they hold, and the buckets for each row, times 2^32."""

    of_row: int
    of_col: int
    of_number: int
    of_place: int
    scale: int

    def struct(self) -> np.ndarray:
        """As kernels take it."""
        return np.array(self[1:], np.uint32).view("V16")

    def first_rows(self, buckets: np.ndarray) -> np.ndarray:
        """The first row of each of these."""
        return -(-(buckets.astype(np.int64) << 32) // self.scale)


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


def in_buckets(row: cupy.ndarray, col: cupy.ndarray, shape: tuple[int, int], val: cupy.ndarray | None = None) -> Buckets | None:
    """The entries at `row` and `col` (n,), n of 1 at least, with their values if these are given; None where a key would need
    more than 64 bits, or buckets more rows than they may have.
    """
    n, (n_rows, n_cols) = row.size, shape
    wanted = min(n_rows, MOST_BUCKETS, max(-(-n // AVERAGE), -(-n_rows // MOST_ROWS)))
    scale = min((wanted << 32) // n_rows, (1 << 32) - 1)
    rows = -(-(1 << 32) // scale)  # of a bucket, at most
    if max(*shape, n) >= 2**31 or rows > 2 * MOST_ROWS:
        return None
    n_buckets = ((n_rows - 1) * scale >> 32) + 1
    most, average = attribute("MaxSharedMemoryPerBlockOptin"), -(-n // n_buckets)
    for bytes_of_block in (attribute("MaxSharedMemoryPerMultiprocessor") // 2 - 2048, most):  # two blocks there, or one
        cap = min(n, max(3 * AVERAGE, 2 * average), (min(most, bytes_of_block) - OWN - 4 * (rows + 1)) // 8)
        if 2 * average <= cap:
            break
    keys = Keys(*(max(1, (number - 1).bit_length()) for number in (rows, n_cols, n, cap)), scale)
    if max(keys.of_row, keys.of_place) + keys.of_col + keys.of_number > 64:
        return None
    row, col = row.astype(np.int32, copy=False), col.astype(np.int32, copy=False)
    return Buckets(row, col, val, n_rows, keys, n_buckets, (cap, 8 * cap + 4 * (rows + 1)))


class Buckets:
    """Coordinates in buckets of rows, which the current stream fills.

    Parameters
    ----------
    row, col
        (n,) int32.
    val
        (n,), or None.
    n_rows, keys, n_buckets
        What :func:`in_buckets` found.
    room
        Keys that a thread block has room for, and bytes of shared memory that it takes then.
    """

    def __init__(
        self, row: cupy.ndarray, col: cupy.ndarray, val: Any, n_rows: int, keys: Keys, n_buckets: int, room: tuple[int, int]
    ) -> None:
        self._n_rows, self._how, self._n_buckets, self._room, self._val = n_rows, keys, n_buckets, room, val
        n, shift = row.size, (-(-n_buckets // MOST_COARSE) - 1).bit_length() if n_buckets > MOST_AT_ONCE else 0
        n_counts, n_coarse = n_buckets + 1, -(-n_buckets >> shift) if shift else 0
        memory = cupy.zeros(n_counts + prefix.n_states(n_counts) + -(-(n_buckets + n_coarse) // 2), np.int64)
        taken = memory.data.ptr + 8 * (n_counts + prefix.n_states(n_counts))
        n_blocks = min(blocks(n, THREADS)[0], 4 * processors())
        allowed(COUNT_BUCKETS(), attribute("MaxSharedMemoryPerBlockOptin"))(
            (n_blocks,), (THREADS,), (row, np.int64(n), keys.struct(), np.int32(n_buckets), memory), shared_mem=4 * n_buckets
        )
        self._begins = prefix.sums(memory, n_counts)
        words = None if val is None else as_words(val)
        word = np.dtype(np.uint8) if words is None else words.dtype

        def beside(n):  # values that go with so many entries
            return None if words is None else cupy.empty(n, word)

        tile = THREADS * unroll(word)
        self._keys, self._words = cupy.empty(n, np.uint64), beside(n)
        moved = (cupy.empty(n, np.uint64), cupy.empty(n, np.uint32), beside(n)) if shift else (None,) * 3
        entries = struct(row, col, words, *moved, self._keys, self._words)
        for first, last in ((True, False), (False, True)) if shift else ((True, True),):
            of_step = np.uint64(taken if last else taken + 4 * n_buckets)
            put = PUT_INTO_BUCKETS(word, first, last)
            allowed(put, tile * max(8, word.itemsize))(
                (blocks(n, tile)[0] + (0 if first else n_coarse),),
                (THREADS,),
                (entries, np.int64(n), keys.struct(), np.int32(n_buckets), np.int32(shift), self._begins, of_step),
                shared_mem=tile * max(8, word.itemsize),
            )

    def taken(self) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray] | None:
        """The three arrays of a canonical CSR with the values; None where some place comes twice. It waits for the device."""
        val, n = self._val, self._keys.size
        indices, data = cupy.empty(n, np.int32), cupy.empty(n, val.dtype)

        def put(place, col, number, again):
            indices[place], data[place] = col, val[number]

        words = as_words(data)
        indptr, has_duplicates = self._sort(struct(None, self._words, indices, words), words.dtype, True, put)
        return None if has_duplicates else (indptr, indices, data)

    def sorted(self) -> Sorted:
        """The entries in their order. It waits for the device."""
        entries = cupy.empty(self._keys.size, np.uint64)

        def put(place, col, number, again):
            entries[place] = again << np.uint64(63) | col << np.uint64(32) | number

        indptr, has_duplicates = self._sort(struct(entries, None, None, None), np.dtype(np.uint8), False, put)
        return Sorted(indptr, entries, has_duplicates)

    def _sort(self, output: Any, word: np.dtype, takes: bool, put: Callable[..., None]) -> tuple[cupy.ndarray, bool]:
        """Where rows begin, and whether some place comes twice. `put` writes what buckets hold that are too large."""
        cap, in_shared = self._room
        indptr, large, found = (
            cupy.empty(self._n_rows + 1, np.int64),
            cupy.empty(self._n_buckets, np.int32),
            cupy.zeros(2, np.int64),
        )
        allowed(SORT_BUCKETS(word, takes), attribute("MaxSharedMemoryPerBlockOptin") - OWN)(
            (self._n_buckets,),
            (THREADS,),
            (self._begins, np.int64(self._n_rows), self._how.struct(), np.int32(cap), self._keys, output, indptr, large, found),
            shared_mem=in_shared,
        )
        n_large, has_duplicates = read(found).tolist()
        if n_large:
            has_duplicates |= self._sort_large(np.sort(large[:n_large].get()), indptr, put)
        return indptr, bool(has_duplicates)

    def _sort_large(self, which: np.ndarray, indptr: cupy.ndarray, put: Callable[..., None]) -> bool:
        """The same of buckets that do not fit shared memory: as many at a time as a key can tell apart."""
        how, twice = self._how, False
        begins = self._begins.get()
        for at in range(0, which.size, each := 1 << (64 - how.of_row - how.of_col - how.of_number)):
            buckets = which[at : at + each]
            begin, length = begins[buckets], np.diff(begins)[buckets]
            end = np.cumsum(length)
            bucket = cupy.searchsorted(cupy.asarray(end), cupy.arange(end[-1]), side="right")  # of each entry
            place = cupy.asarray(begin - end + length)[bucket] + cupy.arange(end[-1])
            key = self._keys[place] | bucket.astype(np.uint64) << np.uint64(how.of_row + how.of_col + how.of_number)
            key.sort()
            places, again = key >> np.uint64(how.of_number), cupy.zeros(key.size, np.uint64)
            again[1:] = places[1:] == places[:-1]
            twice |= bool(again.any())
            put(place, places & _ones(how.of_col), key & _ones(how.of_number), again)
            first, last = how.first_rows(buckets), np.minimum(how.first_rows(buckets + 1), self._n_rows)
            rows = places >> np.uint64(how.of_col) & _ones(how.of_row)
            rows = rows.astype(np.int64) + cupy.asarray(first)[bucket]
            wanted = np.concatenate([np.arange(*ends) for ends in zip(first, last, strict=True)])
            before = np.repeat(begin - end + length, last - first)
            indptr[cupy.asarray(wanted)] = cupy.searchsorted(rows, cupy.asarray(wanted)) + cupy.asarray(before)
        indptr[self._n_rows] = self._keys.size
        return twice


def _ones(bits: int) -> np.uint64:
    """A number of so many bits, all of them 1."""
    return np.uint64((1 << bits) - 1)


def grouped(
    row: cupy.ndarray, col: cupy.ndarray, shape: tuple[int, int]
) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray, cupy.ndarray]:
    """The order of entries that :func:`in_buckets` does not take; their rows and columns in it; and where each different place
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
