"""Which rows a block of threads has where one kernel runs all iterations, and how its warps share their bins."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import WARP

#: Threads of a block, and a few more, where more warps can share each bin then.
THREADS, SHARING_THREADS = 512, 640
#: Warps that may share a bin.
SHARERS = 1, 2, 3, 4, 6, 8, 12, 16
#: Work that a row is beside its slots, counted in slots.
A_ROW = 8


class Partition(NamedTuple):
    """Rows of each block of threads, and the bins that hold any of them."""

    first_row: np.ndarray  # (blocks + 1,) int64
    first_bin: np.ndarray  # (blocks,)
    n_bins: np.ndarray  # (blocks,)

    @classmethod
    def of(cls, rows: Sequence[int]) -> Partition:
        """With these first rows, and the number of rows."""
        first = np.array(rows, np.int64)
        first_bin = first[:-1] // WARP
        return cls(first, first_bin, -(-first[1:] // WARP) - first_bin)

    def most_work(self, pointer: np.ndarray) -> tuple[int, int]:
        """Slots and bins of the block that has the most."""
        slots = pointer[self.first_bin + self.n_bins] - pointer[self.first_bin]
        return int(slots.max()), int(self.n_bins.max())


def parted(pointer: np.ndarray, n: int, size: int, most: int) -> Partition:
    """At most `most` blocks of whole blocks of `size` rows of the preconditioner, with about the same work.

    A bin that is cut is read twice. So cuts lie between bins, unless that leaves some block more to do.
    """
    found = _balanced(pointer, n, lcm(WARP, size), most), _packed(pointer, n, size, most)
    return min(found, key=lambda part: part.most_work(pointer))


def _balanced(pointer: np.ndarray, n: int, unit: int, most: int) -> Partition:
    """Blocks of whole `unit` rows, which are whole bins: each ends where its share of all slots and rows does."""
    ends = np.minimum(np.arange(-(-n // unit) + 1) * unit, n)
    work = _work(pointer)[-(-ends // WARP)]
    blocks = min(most, ends.size - 1)
    cuts = np.searchsorted((work[:-1] + work[1:]) / 2, work[-1] * np.arange(1, blocks) / blocks)
    return Partition.of(np.unique([0, *ends[cuts], n]).tolist())


def _work(pointer: np.ndarray) -> np.ndarray:
    """Of all bins before each, in slots."""
    work: np.ndarray = pointer + A_ROW * WARP * np.arange(pointer.size)
    return work


def _packed(pointer: np.ndarray, n: int, size: int, most: int) -> Partition:
    """Blocks of whole `size` rows: each ends as late as it can without more work, and then without more bins, than the
    least that suffices.
    """
    work = _work(pointer).tolist()

    def rows(capacity: int, bins: int) -> list[int]:
        found = [0]
        while found[-1] < n and len(found) <= most:
            first = found[-1] // WARP
            end = min(bisect_right(work, work[first] + capacity) - 1, first + bins) * WARP
            found.append(n if end >= n else max(found[-1], end // size * size))
        return found

    def reaches(capacity: int, bins: int) -> bool:
        return rows(capacity, bins)[-1] == n

    n_bins = pointer.size - 1
    below = work[-1] // most  # no block has less than its share
    enough = below + max(1, int(np.diff(work).max(initial=0)))
    while not reaches(enough, n_bins):
        enough *= 2
    least = bisect_left(range(below, enough), True, key=lambda capacity: reaches(capacity, n_bins)) + below
    below = n_bins // most
    enough = int(Partition.of(rows(least, n_bins)).n_bins.max())
    fewest = bisect_left(range(below, enough), True, key=lambda bins: reaches(least, bins)) + below
    return Partition.of(rows(least, fewest))


def workers(bins: int, n_blocks: int, unroll: int, itemsize: int) -> tuple[int, int]:
    """Threads of a block that has `bins` bins of `n_blocks` blocks a row, and warps that share each: those with the
    fewest steps.

    A step are the loads of `unroll` blocks. Sharers need memory for their sums, so only bins that are fewer than warps
    have several. Wide numbers need the registers of few threads.
    """
    found = [(THREADS, 1)]
    for threads in (THREADS, SHARING_THREADS)[: 2 if itemsize <= 8 else 1]:
        most = min(threads // WARP // bins, -(-n_blocks // unroll))  # warps that all have blocks to load
        found += [(threads, sharers) for sharers in SHARERS if 1 < sharers <= most]

    def steps(choice: tuple[int, int]) -> tuple[int, int, int]:
        threads, sharers = choice
        return -(-n_blocks // (sharers * unroll)), threads, -sharers

    return min(found, key=steps)
