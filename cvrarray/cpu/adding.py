"""``A + B`` of two matrices in any formats on the CPU, as canonical CSR: some rows of both are read at a time and merged.

What is read lies in the caches until it is merged, and its memory is used again: fresh memory takes longer than all
else. Rows of the sum stand where they would if no entries of the two met, and are moved together at last.
"""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import CSR
from cvrarray.cpu import simd
from cvrarray.cpu.csr import offsets
from cvrarray.cpu.decoding import Reader
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import kernel

TILE = 1 << 16  #: entries of both, about, that are read at a time


def add(a: Reader, b: Reader, sign: int, shape: tuple[int, int], dtype: np.dtype) -> CSR:
    """``a + sign * b`` of one shape, index dtype and floating-point `dtype`, without the entries that are 0."""
    work = a.indptr + b.indptr
    tiles = np.unique(threads.split(work, max(1, int(work[-1]) // TILE))).astype(np.int64)
    before, ends = work[tiles], np.zeros(len(tiles) - 1, np.int64)
    # the most there can be: what is not written to is no memory
    indices, data = memory.empty(work[-1], a.index), memory.empty(work[-1], dtype)
    ptr, factor = np.zeros(shape[0] + 1, np.int64), dtype.type(sign)

    def rows(first: int, last: int) -> None:
        for tile in range(first, last):
            here = int(tiles[tile]), int(tiles[tile + 1])
            ends[tile] = _add(*here, a.indptr, *a.read(*here), b.indptr, *b.read(*here), factor, ptr, indices, data)

    threads.run(rows, before)
    total = 0
    for begin, end, first, last in zip(before[:-1], ends, tiles[:-1], tiles[1:], strict=True):
        if begin != total:
            indices[total : total + end - begin], data[total : total + end - begin] = indices[begin:end], data[begin:end]
            ptr[first + 1 : last + 1] -= begin - total
        total += end - begin
    indices, data = indices[:total], data[:total]
    if 2 * total < work[-1]:
        indices, data = indices.copy(), data.copy()
    return CSR(offsets(ptr, indices.dtype), indices, data, shape)


@kernel
def _add(first, last, a_ptr, a_columns, a_values, b_ptr, b_columns, b_values, sign, ptr, indices, data):
    """The sums of some rows one after the other, from where they would stand if no entries met; where they end.

    `a_columns` and the like are those of these rows alone.
    """
    a_columns, a_values = simd.pointer(a_columns, -a_ptr[first]), simd.pointer(a_values, -a_ptr[first])
    b_columns, b_values = simd.pointer(b_columns, -b_ptr[first]), simd.pointer(b_values, -b_ptr[first])
    indices, data = simd.pointer(indices, 0), simd.pointer(data, 0)
    out = a_ptr[first] + b_ptr[first]
    for row in range(first, last):
        i, j, i_end, j_end = a_ptr[row], b_ptr[row], a_ptr[row + 1], b_ptr[row + 1]
        while i < i_end or j < j_end:
            if j >= j_end or (i < i_end and a_columns[i] < b_columns[j]):
                column, value = a_columns[i], a_values[i]
                i += 1
            elif i >= i_end or b_columns[j] < a_columns[i]:
                column, value = b_columns[j], sign * b_values[j]
                j += 1
            else:
                column, value = a_columns[i], a_values[i] + sign * b_values[j]
                i += 1
                j += 1
            indices[out], data[out] = column, value
            out += value != 0
        ptr[row + 1] = out
    return out
