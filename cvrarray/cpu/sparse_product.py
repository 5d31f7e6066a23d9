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
DENSE = 16  #: columns a term up to which all sums of a row are looked at


class Workspace(NamedTuple):
    """A number for each column, and three levels of bits. All of it is 0 between two rows."""

    sums: np.ndarray
    ones: np.ndarray  # uint32: bit c % 32 of word c // 32 is column c's
    words: np.ndarray  # uint32: the same of the words of `ones`
    groups: np.ndarray  # uint32: the same of the words of `words`


def multiply(a: CSR, b: CSR) -> CSR:
    """Canonical CSR of ``a @ b``, of one dtype that is not bool; what is 0 in it is not stored, as in SciPy."""
    a, b = (csr._replace(indptr=csr.indptr.astype(np.int64, copy=False)) for csr in (a, b))
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
            room = end + most[stop] - most[begin] + 1  # a 0 may be written behind
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
    larger = np.empty(size, array.dtype)
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
    """The rows one after the other from ``indices[out]`` on; where they end, and in ``ptr[r + 1]`` each one's entries."""
    indices, data = simd.pointer(indices, 0), simd.pointer(data, 0)
    a_columns, b_columns = simd.pointer(a.indices, 0), simd.pointer(b.indices, 0)
    columns, in_order = simd.scratch(b.indices, simd.BATCH_ROW), simd.scratch(b.indices, simd.BATCH_ROW)
    values, sums = simd.scratch(b.data, simd.BATCH_ROW), simd.scratch(b.data, simd.BATCH_ROW)
    for row in range(first, last):
        n_terms, low, high, begin = 0, np.int64(MOST_COLUMNS), np.int64(-1), out
        for k in range(a.indptr[row], a.indptr[row + 1]):
            start, end = b.indptr[a_columns[k]], b.indptr[a_columns[k] + 1]
            if start < end:
                n_terms += end - start
                low, high = min(low, b_columns[start]), max(high, b_columns[end - 1])
        if high - low < DENSE * n_terms:
            _add_terms(row, a, b, simd.pointer(workspace.sums, 0))
            out = _take_all(low, high, workspace.sums, indices, data, out)
        elif n_terms <= FEW:
            _list_terms(row, a, b, n_terms, columns, values)
            _add_in_order(n_terms, columns, values, in_order, sums)
            for i in range(n_terms):
                indices[out], data[out] = in_order[i], sums[i]
                out += sums[i] != 0
        else:
            _add_and_mark_terms(row, a, b, workspace)
            out = _take_marked(low, high, workspace, indices, data, out)
        ptr[row + 1] = out - begin
    return out


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
def _list_terms(row, a, b, n_terms, columns, values):
    """Write the terms of a row one after the other, and behind them columns beyond all, to a multiple of 32."""
    a_columns, a_values = simd.pointer(a.indices, 0), simd.pointer(a.data, 0)
    b_columns, b_values = simd.pointer(b.indices, 0), simd.pointer(b.data, 0)
    n = 0
    for k in range(a.indptr[row], a.indptr[row + 1]):
        factor, other = a_values[k], a_columns[k]
        for j in range(b.indptr[other], b.indptr[other + 1]):
            columns[n], values[n] = b_columns[j], factor * b_values[j]
            n += 1
    while n % WARP:
        columns[n] = MOST_COLUMNS
        n += 1


@inlined
def _add_in_order(n_terms, columns, values, in_order, sums):
    """Add up the terms of each column, columns in order; sums that no column has are 0."""
    for i in range(n_terms):
        sums[i] = 0
    for i in range(n_terms):
        place = WARP - masks.count(masks.at_least(columns, 0, columns[i]))
        if n_terms > WARP:
            place += WARP - masks.count(masks.at_least(columns, WARP, columns[i]))
        in_order[place] = columns[i]
        sums[place] += values[i]


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
