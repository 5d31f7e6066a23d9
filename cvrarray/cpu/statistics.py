"""Counts over a CSR in host memory that tell which format suits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cvrarray.core.tables import CSR, NARROW, WARP, WINDOW
from cvrarray.cpu import simd
from cvrarray.cpu.runtime.caching import njit
from cvrarray.cpu.runtime.compiler import OPTIONS, compiled, helper, inlined, kernel

#: Integers below it are divided by small ones by a float64's product with the inverse: half of one is more than its
#: error.
EXACT = 1 << 40
#: Block columns up to which each has a counter; further ones share these. A prime: columns are often powers of two apart.
MOST_COUNTERS = (1 << 26) - 5
#: Of windows with OFTEN times the nonzeros that are wanted, BANDS bands of columns are looked at.
OFTEN, BANDS = 4, 8
#: Columns of a sector of x, sectors of a line, and how many sectors are told apart.
SECTOR, LINE, SECTORS = 8, 8, 1 << 16


class Windows:
    """Rows that stand for all of a matrix, whole bins of them.

    `nnz` are their nonzeros, `narrow` those in bins whose columns need 16 bits, ``single_rows[size]`` the different
    block columns of each row, summed: times the size, a lower bound of the blocks' entries. `sectors` and `lines`
    are the different ones of `x` that bins need.

    Parameters
    ----------
    indptr, indices : arrays of a canonical CSR
    n_cols : int
    sizes : of blocks
    first, height : the first row of each window, and how many each has; the last may be cut. Default: all rows
    most : int, optional
        Nonzeros that are looked at, about. Of rows that have more, only those in some bands of columns count.
    """

    def __init__(
        self,
        indptr: np.ndarray,
        indices: np.ndarray,
        n_cols: int,
        sizes: Sequence[int],
        first: np.ndarray | None = None,
        height: int = 0,
        most: int | None = None,
    ):
        self._rows = (np.zeros(1, np.int64), max(indptr.size - 1, 0)) if first is None else (first, height)
        self._matrix, self._n_cols, found = (indptr, indices), n_cols, np.zeros(2, np.int64)
        if indptr.size:
            _call(_count_narrow, *self._matrix, *self._rows, found)
        of_rows, narrow = found.tolist()
        self._bands = _ALL_COLUMNS if most is None or of_rows <= OFTEN * most else _bands(n_cols, most / of_rows)
        counts = np.zeros(1 + len(sizes), np.int64)
        if of_rows:
            _call(_count_single_rows, *self._matrix, *self._rows, *self._bands, np.array(sizes, np.int64), counts)
        self.nnz, *of_sizes = counts.tolist()
        self.single_rows = dict(zip(sizes, of_sizes, strict=True))
        self.is_part = self.nnz < of_rows  # of the nonzeros of these rows
        self.narrow = narrow * self.nnz // max(1, of_rows)
        x = np.zeros(2, np.int64)
        if of_rows:
            seen_in = np.zeros(SECTORS, np.int32), np.zeros(SECTORS // LINE, np.int32)
            _call(_count_of_x, *self._matrix, *self._rows, *self._bands, *seen_in, x)
        self.sectors, self.lines = x.tolist()

    def in_groups(self, sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The different blocks, and the most blocks of a row, summed over bins, for each of `sizes`."""
        found = {}
        for size in sizes:
            counts, n_block_cols = np.zeros(2, np.int64), -(-self._n_cols // size)
            seen_in = np.zeros(min(n_block_cols, MOST_COUNTERS), np.int32)
            _call(_count_groups, *self._matrix, *self._rows, *self._bands, size, WARP, seen_in, counts)
            found[size] = counts.item(0), counts.item(1)
        return found


def survey(
    csr: CSR, n_windows: int, n_counted: int, sizes: Sequence[int], most: int | None = None
) -> tuple[tuple[int, int, int, int], Windows]:
    """Slots if bins were padded to their longest row, empty rows, the shortest and the longest row; and windows of rows.

    Of the `n_windows` of WINDOW rows that the matrix has those are taken that stand evenly spaced, `n_counted`, and of
    those `most` nonzeros. There is at least one row.
    """
    first = np.arange(n_counted) * (n_windows - 1) // max(n_counted - 1, 1) * WINDOW if n_counted < n_windows else None
    lengths = _call(row_lengths, csr.indptr, WARP)
    return lengths, Windows(csr.indptr, csr.indices, csr.shape[1], sizes, first, WINDOW, most)


#: One band that is taken for all columns, as it has no width.
_ALL_COLUMNS = np.zeros(1, np.int64), 0


def _bands(n_cols: int, share: float) -> tuple[np.ndarray, int]:
    """The first column of each of BANDS evenly spaced bands, and how wide each is: `share` of the columns in all.

    They begin and end between blocks, for sizes that divide WINDOW.
    """
    width = min(n_cols, -(-int(n_cols * share / BANDS) // WINDOW) * WINDOW)
    return np.arange(BANDS) * (n_cols - width) // (BANDS - 1) // WINDOW * WINDOW, width


def _call(kernel: Callable, *args: Any) -> Any:
    """A look-up by dtypes takes less time than Numba's choice of a version at each call."""
    return compiled(kernel, *args)(*args)


@kernel
def row_lengths(indptr: np.ndarray, group: int) -> tuple[int, int, int, int]:
    """Slots if groups of `group` rows are padded to their longest; empty rows; the shortest and the longest row."""
    n_rows = len(indptr) - 1
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


@kernel
def _count_narrow(indptr, indices, windows, height, found):
    """The nonzeros of windows of rows; and those in bins whose columns span less than NARROW. Columns ascend in a row."""
    n_rows = len(indptr) - 1
    for w in range(len(windows)):
        window_end = min(windows[w] + height, n_rows)
        for first in range(windows[w], window_end, WARP):
            last = min(first + WARP, window_end)
            low, high = np.int64(2**62), np.int64(-1)
            for row in range(first, last):
                if indptr[row] < indptr[row + 1]:
                    low = min(low, np.int64(indices[indptr[row]]))
                    high = max(high, np.int64(indices[indptr[row + 1] - 1]))
            nonzeros = indptr[last] - indptr[first]
            found[0] += nonzeros
            found[1] += nonzeros if high - low < NARROW else 0


@inlined
def _in_band(indices, begin, end, band, width):
    """The entries of a row, `begin` to before `end`, in the columns of a band; all of them where it has no width."""
    if width == 0:
        return begin, end
    return _first_from(indices, begin, end, band), _first_from(indices, begin, end, band + width)


@helper
def _first_from(indices, begin, end, column):
    """The first entry of `begin` to before `end` whose column is not below `column`."""
    while begin < end:
        middle = (begin + end) // 2
        if indices[middle] < column:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def _count_single_rows(indptr, indices, windows, height, bands, width, sizes, found):
    """The nonzeros of windows of rows in bands of columns; and for each of `sizes` the block columns of each row, summed."""
    n_rows = len(indptr) - 1
    for w in range(len(windows)):
        first, last = windows[w], min(windows[w] + height, n_rows)
        for row in range(first, last):
            for b in range(len(bands)):
                begin, end = _in_band(indices, np.int64(indptr[row]), np.int64(indptr[row + 1]), bands[b], width)
                found[0] += end - begin
                for k in range(len(sizes) if begin < end else 0):
                    found[1 + k] += _block_changes(sizes[k], np.int64(indices[end - 1]), indices, begin, end)


@kernel
def _count_of_x(indptr, indices, windows, height, bands, width, sector_in, line_in, found):
    """The different sectors and lines of x of each bin, in bands of columns. `sector_in` and `line_in`: the bin, counted from
    1, that needed one last.
    """
    n_rows, number = len(indptr) - 1, 0
    for w in range(len(windows)):
        window_end = min(windows[w] + height, n_rows)
        for first in range(windows[w], window_end, WARP):
            number += 1
            for row in range(first, min(first + WARP, window_end)):
                for b in range(len(bands)):
                    begin, end = _in_band(indices, np.int64(indptr[row]), np.int64(indptr[row + 1]), bands[b], width)
                    for k in range(begin, end):
                        sector = np.uint64(indices[k]) // np.uint64(SECTOR) % np.uint64(SECTORS)
                        line = sector // np.uint64(LINE)
                        found[0] += sector_in[sector] != number
                        found[1] += line_in[line] != number
                        sector_in[sector] = line_in[line] = number


@inlined
def _block_changes(size, highest, indices, begin, end):
    """Runs of the same block column among entries; `highest` is the largest column of them."""
    if begin == end:
        return np.int64(0)
    here, before, n = simd.pointer(indices, begin + 1), simd.pointer(indices, begin), end - begin - 1
    total, inverse = np.int64(1), 1 / size
    if highest < EXACT:
        for k in range(n):  # a division would take ten times as long
            total += np.int64((here[k] + 0.5) * inverse) != np.int64((before[k] + 0.5) * inverse)
    else:
        for k in range(n):
            total += here[k] // size != before[k] // size
    return total


@kernel
def _count_groups(indptr, indices, windows, height, bands, width, size, group, seen_in, found):
    """The different blocks of windows of rows in bands of columns; and the most blocks of a row, summed over groups of
    `group` rows.

    `seen_in`: for each block column the block row, counted from 1, that had an entry there last.
    """
    n_rows, number = len(indptr) - 1, 0
    for w in range(len(windows)):
        start, window_end = windows[w], min(windows[w] + height, n_rows)
        slots, next_group = np.int64(0), start + group
        for row in range(start, window_end, size):
            row_end, blocks = min(row + size, window_end), np.int64(0)
            for b in range(len(bands)):
                number += 1
                for r in range(row, row_end):
                    begin, end = _in_band(indices, np.int64(indptr[r]), np.int64(indptr[r + 1]), bands[b], width)
                    blocks += _marked_blocks(size, indices, begin, end, number, seen_in)
            found[0] += blocks
            slots = max(slots, blocks)
            while row_end >= next_group:  # a block row may lie in two groups
                found[1] += slots
                slots = blocks if row_end > next_group else np.int64(0)
                next_group += group
        found[1] += slots


@inlined
def _marked_blocks(size, indices, begin, end, number, seen_in):
    """The block columns of a row, whose entries stand from `begin` to before `end`, that were not yet marked with `number`."""
    count, before, inverse, seen = np.int64(0), np.int64(-1), 1 / size, simd.pointer(seen_in, 0)
    for k in range(begin, end):
        block = np.int64((indices[k] + 0.5) * inverse) if indices[k] < EXACT else np.int64(indices[k]) // size
        if block != before:
            before = block
            if block >= len(seen_in):
                block %= len(seen_in)
            count += seen[block] != number
            seen[block] = number
    return count


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
