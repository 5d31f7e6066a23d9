"""``A @ B`` of two sparse matrices on the CPU: row by row, each row's sums in a dense vector (Gustavson).

Source: F. G. Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted Transposition", ACM
Transactions on Mathematical Software 4(3), 1978. What differs is how the columns that a row has are put in order. Where
its terms are many for the columns between the first and the last of them, all sums there are looked at, 32 at a time.
Few terms have no dense vector: how many of them have a lower column is the place of each. Else there is a bit for each
column, a bit for each word of these that is not 0, and once more. A row's terms are added in the order of A's entries,
so the bits depend on nothing else.
"""

from __future__ import annotations

import queue
from typing import NamedTuple

import numpy as np

from cvrarray.core.tables import CSR, WARP
from cvrarray.cpu import simd
from cvrarray.cpu.csr import offsets
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import inlined, kernel
from cvrarray.cpu.simd import masks

MOST_COLUMNS = 1 << 25  #: of B: every thread has a number for each
TILE = 1 << 17  #: entries that the rows of a tile may have, about: so much room is made for them at once
FEW = 64  #: terms of a row up to which each is compared with all
EIGHT = tuple(range(8))  #: entries of a row of B that are multiplied at once
BUFFERS = simd.BATCH_ROW * 2  #: space for the terms of two rows
AHEAD = 4  #: rows from the one that is multiplied to the one whose rows of B are prefetched
DENSE = 16  #: columns a term up to which all sums of a row are looked at


class Workspace(NamedTuple):
    """A number for each column, and three levels of bits. All of it is 0 between two rows."""

    sums: np.ndarray
    ones: np.ndarray  # uint32: bit c % 32 of word c // 32 is column c's
    words: np.ndarray  # uint32: the same of the words of `ones`
    groups: np.ndarray  # uint32: the same of the words of `words`


def multiply(a: CSR, b: CSR) -> CSR:
    """Canonical CSR of ``a @ b``, of one dtype that is not bool; what is 0 in it is not stored, as in SciPy."""
    a, b = (CSR(csr.indptr.astype(np.int64, copy=False), csr.indices, csr.data, csr.shape) for csr in (a, b))
    terms = np.zeros(a.shape[0] + 1, np.int64)
    threads.run(_count_terms, a.indptr, a.indptr, a.indices, b.indptr, terms)
    most = memory.offsets(np.minimum(terms[1:], b.shape[1]))  # entries before each row, if no sum is 0
    memory.accumulate(terms)
    tiles = np.unique(threads.split(most, int(most[-1]) // TILE + 1)).astype(np.int64)
    ptr, spare = np.zeros(a.shape[0] + 1, np.int64), queue.SimpleQueue[Workspace]()
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by the first tile of some

    def rows(first: int, last: int) -> None:
        workspace = _workspace(b.shape[1], a.data.dtype) if spare.empty() else spare.get()
        indices, data, end = np.empty(0, b.indices.dtype), np.empty(0, a.data.dtype), 0
        for begin, stop in zip(tiles[first:last], tiles[first + 1 : last + 1], strict=True):
            room = end + most[stop] - most[begin] + WARP  # so much may be written behind
            if room > data.size:  # as many as there will be, if all rows are like those before
                before = most[begin] - most[tiles[first]]
                expected = end * (most[tiles[last]] - most[begin]) // before if before else 0
                size = int(room + expected + expected // 16)
                indices, data = _enlarged(indices, end, size), _enlarged(data, end, size)
            end = _rows(begin, stop, a, b, workspace, indices, data, ptr, end)
        found[first] = indices[:end], data[:end]
        spare.put(workspace)

    threads.run(rows, terms[tiles])
    memory.accumulate(ptr)
    indices, data = next(iter(found.values()), (b.indices[:0], a.data[:0]))
    if len(found) > 1:
        indices, data = memory.empty(ptr[-1], b.indices.dtype), memory.empty(ptr[-1], a.data.dtype)
        firsts = sorted(found)

        def put(first: int, last: int) -> None:
            for tile in firsts[first:last]:
                here, begin = found.pop(tile), ptr[tiles[tile]]
                indices[begin : begin + here[0].size], data[begin : begin + here[0].size] = here

        threads.run(put, np.append(ptr[tiles[firsts]], ptr[-1]))
    return CSR(offsets(ptr, indices.dtype), indices, data, (a.shape[0], b.shape[1]))


def _workspace(n_cols: int, dtype: np.dtype) -> Workspace:
    sizes = [-(-n_cols // WARP**level) for level in (1, 2, 3)]
    return Workspace(np.zeros(sizes[0] * WARP, dtype), *(np.zeros(size, np.uint32) for size in sizes))


def _enlarged(array: np.ndarray, n: int, size: int) -> np.ndarray:
    """The first n numbers of `array`, with room for `size` in all."""
    larger = memory.empty(size, array.dtype)
    larger[:n] = array[:n]
    return larger


@kernel
def _count_terms(first, last, indptr, indices, b_ptr, terms):
    for row in range(first, last):
        total = 0
        for k in range(indptr[row], indptr[row + 1]):
            total += b_ptr[indices[k] + 1] - b_ptr[indices[k]]
        terms[row + 1] = total


@kernel
def _rows(first, last, a, b, workspace, indices, data, ptr, out):
    """The rows one after the other from ``indices[out]`` on; where they end, and in ``ptr[r + 1]`` each one's entries.

    The terms of a row that has few are written while the row before waits to be added up: a vector of numbers that were
    just written one by one would have to wait until all of them have left the processor.
    """
    indices, data = simd.pointer(indices, 0), simd.pointer(data, 0)
    columns, values = simd.scratch(b.indices, BUFFERS), simd.scratch(b.data, BUFFERS)
    pattern, places = simd.scratch(b.indices, simd.BATCH_ROW), simd.scratch(b.indices, simd.BATCH_ROW)
    in_order, sums, n_pattern = simd.scratch(b.indices, simd.BATCH_ROW), simd.scratch(b.data, simd.BATCH_ROW), np.int64(0)
    n_waiting, buffer = np.int64(0), 0
    for row in range(first, last + 1):
        n_terms, low, high = _reach(row, last, a, b)
        is_dense = high - low < DENSE * n_terms
        is_few = n_terms <= FEW and not is_dense
        if is_few:
            _list_terms(row, a, b, simd.pointer(columns, buffer), simd.pointer(values, buffer))
        buffer ^= simd.BATCH
        if n_waiting:
            begin, its_columns, its_values = out, simd.pointer(columns, buffer), simd.pointer(values, buffer)
            if n_waiting != n_pattern or not _is_shifted(n_waiting, its_columns, pattern):
                n_pattern = n_waiting
                _put_in_order(n_pattern, its_columns, pattern, places, in_order)
            _add_in_places(n_pattern, its_values, places, sums)
            shift = np.int64(its_columns[0]) - pattern[0]
            out = _take_in_order(n_pattern, in_order, shift, sums, indices, data, out)
            ptr[row] = out - begin
        n_waiting = n_terms if is_few else 0
        if is_few or row == last:
            continue
        begin = out
        if is_dense:
            _add_terms(row, a, b, simd.pointer(workspace.sums, 0))
            out = _take_all(low, high, workspace.sums, indices, data, out)
        else:
            _add_and_mark_terms(row, a, b, workspace)
            out = _take_marked(low, high, workspace, indices, data, out)
        ptr[row + 1] = out - begin
    return out


@inlined
def _reach(row, last, a, b):
    """How many terms a row has, and between which columns; no terms for the one behind the last."""
    n_terms, low, high = np.int64(0), np.int64(MOST_COLUMNS), np.int64(-1)
    if row < last:
        _prefetch_rows(row + AHEAD, last, a, b)
        a_columns, b_columns = simd.pointer(a.indices, 0), simd.pointer(b.indices, 0)
        for k in range(a.indptr[row], a.indptr[row + 1]):
            start, end = b.indptr[a_columns[k]], b.indptr[a_columns[k] + 1]
            if start < end:
                n_terms += end - start
                low, high = min(low, b_columns[start]), max(high, b_columns[end - 1])
    return n_terms, low, high


@inlined
def _add_terms(row, a, b, sums):
    """Add the terms of a row to its sums."""
    a_columns, a_values = simd.pointer(a.indices, 0), simd.pointer(a.data, 0)
    b_columns, b_values = simd.pointer(b.indices, 0), simd.pointer(b.data, 0)
    for k in range(a.indptr[row], a.indptr[row + 1]):
        factor, other = a_values[k], a_columns[k]
        for j in range(b.indptr[other], b.indptr[other + 1]):
            sums[b_columns[j]] += factor * b_values[j]


@inlined
def _take_all(low, high, sums, indices, data, out):
    """Append the sums from column `low` to `high` that are not 0, and set them to 0."""
    for at in range(low & ~np.int64(WARP - 1), high + 1, WARP):
        left = simd.nonzero_mask(simd.load(sums, at, sums, simd.WHOLE))
        if not left:
            continue
        while left:
            column = at + simd.lowest(left)
            left &= left - np.uint32(1)
            indices[out], data[out] = column, sums[column]
            out += 1
        simd.store(simd.zeros(sums, simd.WHOLE), sums, at, simd.WHOLE)
    return out


@inlined
def _prefetch_rows(row, last, a, b):
    """Prefetch what begins the rows of B that a later row takes."""
    if row < last:
        a_columns = simd.pointer(a.indices, 0)
        for k in range(a.indptr[row], a.indptr[row + 1]):
            start = b.indptr[a_columns[k]]
            simd.prefetch_line(b.indices, start)
            simd.prefetch_line(b.data, start)
            simd.prefetch_line(b.data, start + len(EIGHT) - 1)


@inlined
def _list_terms(row, a, b, columns, values):
    """Write the terms of a row one after the other, and behind them columns beyond all, to a multiple of 32."""
    a_columns, a_values = simd.pointer(a.indices, 0), simd.pointer(a.data, 0)
    b_columns, b_values = simd.pointer(b.indices, 0), simd.pointer(b.data, 0)
    n, all_entries = 0, len(b.indices)
    for k in range(a.indptr[row], a.indptr[row + 1]):
        factor, other = a_values[k], a_columns[k]
        start, end = b.indptr[other], b.indptr[other + 1]
        if end + len(EIGHT) <= all_entries:  # more than there are are written, and the next ones over these
            _list_eight(start, n, a_values, k, b_columns, b_values, columns, values)
            for j in range(len(EIGHT), end - start, len(EIGHT)):  # few rows are as long
                _list_eight(start + j, n + j, a_values, k, b_columns, b_values, columns, values)
        else:
            for j in range(start, end):
                columns[n + j - start], values[n + j - start] = b_columns[j], factor * b_values[j]
        n += end - start
    while n % WARP:
        columns[n] = MOST_COLUMNS
        n += 1


@inlined
def _list_eight(at, n, a_values, k, b_columns, b_values, columns, values):
    simd.store(simd.load(b_columns, at, b_columns, EIGHT), columns, n, EIGHT)
    simd.store(simd.multiply_add_row(simd.zeros(values, EIGHT), a_values, k, b_values, at), values, n, EIGHT)


@inlined
def _is_shifted(n_terms, columns, pattern):
    """Whether the columns are those of the pattern, moved by one distance: so it is from row to row of a stencil."""
    shift, differ = np.int64(columns[0]) - pattern[0], np.int64(0)
    for i in range(n_terms):  # without a way out, so it compiles to vector instructions
        differ |= np.int64(columns[i]) - pattern[i] - shift
    return differ == 0


@inlined
def _add_in_places(n_terms, values, places, sums):
    """Add up the terms that belong to one place; 0 where none does."""
    simd.store(simd.zeros(sums, simd.WHOLE), sums, 0, simd.WHOLE)
    simd.store(simd.zeros(sums, simd.WHOLE), sums, WARP, simd.WHOLE)
    for i in range(n_terms):
        sums[places[i]] += values[i]


@inlined
def _take_in_order(n_terms, in_order, shift, sums, indices, data, out):
    """Append the sums that are not 0, and their columns, moved by `shift`."""
    if not simd.COMPRESSES:
        for i in range(n_terms):
            indices[out], data[out] = in_order[i] + shift, sums[i]
            out += sums[i] != 0
        return out
    begin = out
    for at in range(0, n_terms, WARP):
        found = simd.load(sums, at, sums, simd.WHOLE)
        mask = simd.nonzero_mask(found)
        simd.compress(simd.load(in_order, at, in_order, simd.WHOLE), mask, indices, out)
        out = simd.compress(found, mask, data, out)
    if shift:
        for i in range(begin, out):
            indices[i] += shift
    return out


@inlined
def _put_in_order(n_terms, columns, pattern, places, in_order):
    """Make a pattern of the columns: where each belongs among them, and which one is there. Where a column is met more
    than once, places behind it stay empty.
    """
    for i in range(n_terms):
        place = WARP - masks.count(masks.at_least(columns, 0, columns[i]))
        if n_terms > WARP:
            place += WARP - masks.count(masks.at_least(columns, WARP, columns[i]))
        in_order[place] = columns[i]
        pattern[i], places[i] = columns[i], place


@inlined
def _add_and_mark_terms(row, a, b, workspace):
    """:func:`_add_terms`, and set the bits of the columns that they are in."""
    a_columns, a_values = simd.pointer(a.indices, 0), simd.pointer(a.data, 0)
    b_columns, b_values = simd.pointer(b.indices, 0), simd.pointer(b.data, 0)
    sums, ones, words = simd.pointer(workspace.sums, 0), simd.pointer(workspace.ones, 0), simd.pointer(workspace.words, 0)
    for k in range(a.indptr[row], a.indptr[row + 1]):
        factor, other = a_values[k], a_columns[k]
        for j in range(b.indptr[other], b.indptr[other + 1]):
            column = np.int64(b_columns[j])
            sums[column] += factor * b_values[j]
            one = ones[column >> 5]
            ones[column >> 5] = one | np.uint32(1) << np.uint32(column & 31)
            if not one:
                words[column >> 10] |= np.uint32(1) << np.uint32(column >> 5 & 31)
                workspace.groups[column >> 15] |= np.uint32(1) << np.uint32(column >> 10 & 31)


@inlined
def _take_marked(low, high, workspace, indices, data, out):
    """Append the sums of the marked columns, from `low` to `high`, but for those that are 0; set all of them to 0."""
    groups = workspace.groups
    for g in range(low >> 15, (high >> 15) + 1):
        group = groups[g]
        groups[g] = 0
        while group:
            w = g * 32 + simd.lowest(group)
            group &= group - np.uint32(1)
            out = _take_words(w, workspace, indices, data, out)
    return out


@inlined
def _take_words(w, workspace, indices, data, out):
    """:func:`_take_marked` of the columns that the bits of ``words[w]`` stand for."""
    sums, ones = simd.pointer(workspace.sums, 0), simd.pointer(workspace.ones, 0)
    word = workspace.words[w]
    workspace.words[w] = 0
    while word:
        o = w * 32 + simd.lowest(word)
        word &= word - np.uint32(1)
        one = ones[o]
        ones[o] = 0
        while one:
            column = o * 32 + simd.lowest(one)
            one &= one - np.uint32(1)
            value = sums[column]
            sums[column] = 0
            indices[out], data[out] = column, value
            out += value != 0
    return out
