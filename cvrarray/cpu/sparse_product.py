"""``A @ B`` of two sparse matrices on the CPU: row by row, each row's sums in a dense vector (Gustavson).

Source: F. G. Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted Transposition", ACM
Transactions on Mathematical Software 4(3), 1978. The columns that a row has come out in order without sorting: a bit
for each column, a bit for each word of these that is not 0, and once more. A row's terms are added in the order of A's
entries, so the bits depend on nothing else.
"""

from __future__ import annotations

import queue

import numpy as np

from cvrarray.core.tables import CSR
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import inlined, kernel

MOST_COLUMNS = 1 << 25  #: of B: every thread has a number for each
TILE = 1 << 20  #: products of numbers that a tile of rows has, about: so many entries the result may have there


def multiply(a: CSR, b: CSR) -> CSR:
    """Canonical CSR of ``a @ b``, of one dtype that is not bool; what is 0 in it is not stored, as in SciPy."""
    a, b = (csr._replace(indptr=csr.indptr.astype(np.int64, copy=False)) for csr in (a, b))
    products = np.zeros(a.shape[0] + 1, np.int64)
    threads.run(_count_products, a.indptr, a.indptr, a.indices, b.indptr, products)
    np.cumsum(products, out=products)
    tiles = np.unique(threads.split(products, int(products[-1]) // TILE + 1)).astype(np.int64)
    found: list[tuple[np.ndarray, np.ndarray]] = [(b.indices[:0], a.data[:0])] * (len(tiles) - 1)
    ptr = np.zeros(a.shape[0] + 1, np.int64)
    spare: queue.SimpleQueue[tuple[np.ndarray, ...]] = queue.SimpleQueue()

    def rows(first: int, last: int) -> None:
        try:
            workspace = spare.get_nowait()
        except queue.Empty:
            workspace = _workspace(b.shape[1], a.data.dtype)
        for tile in range(first, last):
            most = int(products[tiles[tile + 1]] - products[tiles[tile]])
            # a 0 may be written behind
            indices, data = np.empty(most + 1, b.indices.dtype), np.empty(most + 1, a.data.dtype)
            n = _rows(tiles[tile], tiles[tile + 1], a, b, workspace, indices, data, ptr)
            here = indices[:n], data[:n]
            found[tile] = here if 2 * n > most else (here[0].copy(), here[1].copy())
        spare.put(workspace)

    threads.run(rows, products[tiles])
    np.cumsum(ptr, out=ptr)
    indices, data = memory.empty(ptr[-1], b.indices.dtype), memory.empty(ptr[-1], a.data.dtype)
    for tile in range(len(tiles) - 1):
        here = slice(ptr[tiles[tile]], ptr[tiles[tile + 1]])
        indices[here], data[here] = found[tile]
    small = indices.dtype == np.int32 and ptr[-1] < 2**31
    return CSR(ptr.astype(np.int32) if small else ptr, indices, data, (a.shape[0], b.shape[1]))


def _workspace(n_cols: int, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """A number for each column, and three levels of bits."""
    sizes = [-(-n_cols // 32**level) for level in (1, 2, 3)]
    return np.empty(n_cols, dtype), *(np.zeros(size, np.uint32) for size in sizes)


@kernel
def _count_products(first, last, indptr, indices, b_ptr, products):
    for row in range(first, last):
        total = 0
        for k in range(indptr[row], indptr[row + 1]):
            total += b_ptr[indices[k] + 1] - b_ptr[indices[k]]
        products[row + 1] = total


@kernel
def _rows(first, last, a, b, workspace, indices, data, ptr):
    """The rows one after the other from ``indices[0]`` on; how many entries they have, and in ``ptr[r + 1]`` each."""
    sums, ones, words, groups = workspace
    indices, data = simd.pointer(indices, 0), simd.pointer(data, 0)
    sums, ones, words = simd.pointer(sums, 0), simd.pointer(ones, 0), simd.pointer(words, 0)
    a_columns, a_values = simd.pointer(a.indices, 0), simd.pointer(a.data, 0)
    b_columns, b_values = simd.pointer(b.indices, 0), simd.pointer(b.data, 0)
    out = 0
    for row in range(first, last):
        for k in range(a.indptr[row], a.indptr[row + 1]):
            factor, other = a_values[k], a_columns[k]
            for j in range(b.indptr[other], b.indptr[other + 1]):
                column = np.int64(b_columns[j])
                bit = np.uint32(1) << np.uint32(column & 31)
                if ones[column >> 5] & bit:
                    sums[column] += factor * b_values[j]
                    continue
                sums[column] = factor * b_values[j]
                ones[column >> 5] |= bit
                words[column >> 10] |= np.uint32(1) << np.uint32(column >> 5 & 31)
                groups[column >> 15] |= np.uint32(1) << np.uint32(column >> 10 & 31)
        begin = out
        for g in range(len(groups)):
            group = groups[g]
            groups[g] = 0
            while group:
                w = g * 32 + simd.lowest(group)
                group &= group - np.uint32(1)
                out = _take_words(w, ones, words, sums, indices, data, out)
        ptr[row + 1] = out - begin
    return out


@inlined
def _take_words(w, ones, words, sums, indices, data, out):
    """Append the columns that the bits of ``words[w]`` stand for, but for sums of 0, and set these bits to 0."""
    word = words[w]
    words[w] = 0
    while word:
        o = w * 32 + simd.lowest(word)
        word &= word - np.uint32(1)
        one = ones[o]
        ones[o] = 0
        while one:
            column = o * 32 + simd.lowest(one)
            one &= one - np.uint32(1)
            value = sums[column]
            indices[out], data[out] = column, value
            out += value != 0
    return out
