"""Counts over a CSR in host memory that tell which format suits it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cvrarray.core.tables import CSR, NARROW, WARP, WINDOW
from cvrarray.cpu import simd
from cvrarray.cpu.runtime.caching import njit
from cvrarray.cpu.runtime.compiler import OPTIONS, kernel

#: Integers below it are divided by small ones by a float64's product with the inverse: half of one is more than its
#: error.
EXACT = 1 << 40
#: Block columns up to which each has a counter.
MOST_COUNTERS = 1 << 32


class Windows:
    """Rows that stand for all of a matrix, whole bins of them, as a canonical CSR.

    `nnz` are their nonzeros, `narrow` those in bins whose columns need 16 bits, ``single_rows[size]`` the different
    block columns of each row, summed: times the size, a lower bound of the blocks' entries.
    """

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, n_cols: int, sizes: Sequence[int]):
        self._indptr, self._indices, self._n_cols = indptr, indices, n_cols
        self.nnz = int(indptr[-1]) if indptr.size else 0
        self.narrow = narrow_nonzeros(indptr, indices, WARP, NARROW) if self.nnz else 0
        self.single_rows = {size: blocks_of_single_rows(indptr, indices, size) if self.nnz else 0 for size in sizes}

    def in_groups(self, sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The different blocks, and the most blocks of a row, summed over bins, for each of `sizes`."""
        found = {}
        for size in sizes:
            block_col = self._indices // self._indices.dtype.type(size)
            if self._n_cols > MOST_COUNTERS:  # few of so many
                block_col = np.unique(block_col, return_inverse=True)[1]
            blocks, slots = blocks_in_groups(self._indptr, block_col, int(block_col.max()) + 1, size, WARP)
            found[size] = int(blocks), int(slots)
        return found


def survey(csr: CSR, n_windows: int, n_counted: int, sizes: Sequence[int]) -> tuple[tuple[int, int, int, int], Windows]:
    """Slots if bins were padded to their longest row, empty rows, the shortest and the longest row; and windows of rows.

    Of the `n_windows` of WINDOW rows that the matrix has those are taken that stand evenly spaced, `n_counted`. There
    is at least one row.
    """
    indptr, indices, n_rows = csr.indptr, csr.indices, csr.shape[0]
    lengths = row_lengths(indptr, WARP)
    if n_counted < n_windows:
        first = np.arange(n_counted) * (n_windows - 1) // (n_counted - 1) * WINDOW
        ptr = indptr[np.minimum(first[:, None] + np.arange(WINDOW + 1), n_rows)].astype(np.int64)
        in_row = np.diff(ptr, axis=1).ravel()
        indptr = np.concatenate([[0], np.cumsum(in_row)])
        indices = indices[np.repeat(ptr[:, :-1].ravel() - indptr[:-1], in_row) + np.arange(indptr[-1])]
    return lengths, Windows(indptr, indices, csr.shape[1], sizes)


@kernel
def row_lengths(indptr: np.ndarray, group: int) -> tuple[int, int, int, int]:
    """Slots if groups of `group` rows are padded to their longest; empty rows; the shortest and the longest row."""
    n_rows = indptr.size - 1
    begin, end = simd.pointer(indptr, 0), simd.pointer(indptr, 1)
    padded = empty = longest = np.int64(0)
    shortest = np.int64(end[0] - begin[0] if n_rows else 0)
    for first in range(0, n_rows, group):
        most = np.int64(0)
        for row in range(first, min(first + group, n_rows)):  # without a way out, so it compiles to vector instructions
            length = np.int64(end[row] - begin[row])
            most, shortest = max(most, length), min(shortest, length)
            empty += length == 0
        padded += most * group
        longest = max(longest, most)
    return padded, empty, shortest, longest


def blocks_per_block_row(indptr: np.ndarray, block_col: np.ndarray, n_block_cols: int, block_size: int) -> np.ndarray:
    """(ceil(n_rows / block_size),) int64: the different block columns in every block row, given each nonzero's."""
    counts = np.empty(-(-(indptr.size - 1) // block_size), np.int64)
    _count_blocks(indptr, block_col, np.zeros(n_block_cols, np.int32), block_size, counts)
    return counts


def blocks_in_groups(
    indptr: np.ndarray, block_col: np.ndarray, n_block_cols: int, block_size: int, group: int
) -> tuple[int, int]:
    """The different blocks, given each nonzero's block column; and the most blocks of a row, summed over groups."""
    counts = blocks_per_block_row(indptr, block_col, n_block_cols, block_size)
    return int(counts.sum()), _slots(counts, indptr.size - 1, block_size, group)


@kernel
def _count_blocks(indptr, block_col, seen_in, block_size, counts):
    """`seen_in`: the block row, from 1, that had an entry in a block column last."""
    n_rows = indptr.size - 1
    for block_row in range(counts.size):
        count = 0
        for position in range(indptr[block_row * block_size], indptr[min((block_row + 1) * block_size, n_rows)]):
            block = np.uint64(block_col[position])
            count += seen_in[block] != block_row + 1
            seen_in[block] = block_row + 1
        counts[block_row] = count


@kernel
def _slots(counts, n_rows, block_size, group):
    slots = 0
    for first in range(0, n_rows, group):
        most = 0
        for block_row in range(first // block_size, (min(first + group, n_rows) - 1) // block_size + 1):
            most = max(most, counts[block_row])
        slots += most
    return slots


@kernel
def blocks_of_single_rows(indptr: np.ndarray, indices: np.ndarray, block_size: int) -> int:
    """The different block columns of each row, summed: times block_size, a lower bound of the blocks' entries."""
    total, inverse = 0, 1 / block_size
    for row in range(indptr.size - 1):
        begin, end = indptr[row], indptr[row + 1]
        if begin == end:
            continue
        total += 1
        if indices[end - 1] < EXACT:
            for position in range(begin + 1, end):  # a division would take ten times as long
                here = np.int64((indices[position] + 0.5) * inverse)
                total += here != np.int64((indices[position - 1] + 0.5) * inverse)
        else:
            for position in range(begin + 1, end):
                total += indices[position] // block_size != indices[position - 1] // block_size
    return total


@njit(**OPTIONS, fastmath={"reassoc"})  # sums in any order compile to vector instructions
def spread(indptr: np.ndarray) -> float:
    """Standard deviation of the row lengths over their mean; 0 without nonzeros."""
    n_rows = indptr.size - 1
    mean = (indptr[n_rows] - indptr[0]) / max(n_rows, 1)
    squares = 0.0
    for row in range(n_rows):
        away = indptr[row + 1] - indptr[row] - mean
        squares += away * away
    return math.sqrt(squares / max(n_rows, 1)) / mean if mean else 0.0


@kernel
def in_threes(indptr: np.ndarray, indices: np.ndarray, looks: int) -> float:
    """Share of the nonzeros in rows 3 i, 3 i + 1 and 3 i + 2 that have the same columns, at about `looks` places i."""
    n_threes = (indptr.size - 1) // 3
    alike = total = 0
    for i in range(0, n_threes, max(1, n_threes // max(1, looks))):
        first, length = indptr[3 * i], indptr[3 * i + 1] - indptr[3 * i]
        nonzeros = indptr[3 * i + 3] - first
        total += nonzeros
        same = nonzeros == 3 * length and indptr[3 * i + 2] - first == 2 * length
        position = first
        while same and position < first + length:
            same = indices[position] == indices[position + length] and indices[position] == indices[position + 2 * length]
            position += 1
        alike += nonzeros if same else 0
    return alike / max(total, 1)


@kernel
def narrow_nonzeros(indptr: np.ndarray, indices: np.ndarray, group: int, span: int) -> int:
    """Nonzeros in groups of `group` rows whose columns span less than `span`; columns ascend in every row."""
    n_rows, total = indptr.size - 1, 0
    for first in range(0, n_rows, group):
        last = min(first + group, n_rows)
        low, high = np.int64(2**62), np.int64(-1)
        for row in range(first, last):
            if indptr[row] < indptr[row + 1]:
                low = min(low, np.int64(indices[indptr[row]]))
                high = max(high, np.int64(indices[indptr[row + 1] - 1]))
        if high - low < span:
            total += indptr[last] - indptr[first]
    return total
